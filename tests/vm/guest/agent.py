"""Runs commands that the host sends through a virtio-serial port, one after the other, and sends back what they print.

A request is one line of JSON: argv, timeout_s. Answers are lines of JSON: `stream` with base64 `data` any number of
times, then `status`. Runs under the guest's own python3, with nothing but the standard library.
"""

import base64
import json
import os
import signal
import subprocess
import threading
import time
from typing import IO, BinaryIO

PORT_NAME = "testbed.control"


def find_port() -> str:
    """The device of the port with our name; the driver may still be looking at it."""
    for _ in range(200):
        for port in os.listdir("/sys/class/virtio-ports"):
            with open(f"/sys/class/virtio-ports/{port}/name", encoding="ascii") as name:
                if name.read().strip() == PORT_NAME:
                    return f"/dev/{port}"
        time.sleep(0.05)
    raise SystemExit(f"agent: there is no port {PORT_NAME}")


class Answers:
    """The way back to the host, shared by the threads that read a command's output."""

    def __init__(self, port: BinaryIO) -> None:
        self._port = port
        self._lock = threading.Lock()

    def send(self, **answer: object) -> None:
        left = memoryview(json.dumps(answer).encode() + b"\n")
        with self._lock:
            while left:  # the kernel takes at most 32 KiB at a time
                left = left[self._port.write(left) :]

    def pass_on(self, stream: str, output: IO[bytes]) -> None:
        while data := os.read(output.fileno(), 1 << 16):
            self.send(stream=stream, data=base64.b64encode(data).decode())


def run(argv: list[str], timeout_s: float, answers: Answers) -> int:
    """Run one command to its end, or to the end of its time: then it is killed, and the status is 124."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        answers.send(stream="stderr", data=base64.b64encode(f"{argv[0]}: {error.strerror}\n".encode()).decode())
        return 127
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=answers.pass_on, args=(name, output), daemon=True)
        for name, output in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    for reader in readers:
        reader.start()
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        status = 124
    for reader in readers:
        reader.join(5)
    return status


def main() -> None:
    with open(find_port(), "r+b", buffering=0) as port:
        answers = Answers(port)
        answers.send(ready=True)
        for line in port:
            request = json.loads(line)
            answers.send(status=run(request["argv"], request["timeout_s"], answers))


if __name__ == "__main__":
    main()
