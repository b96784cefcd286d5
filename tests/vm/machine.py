"""A virtual machine with the current checkout: QEMU's software emulation, direct kernel boot, no network.

KVM is not used even where /dev/kvm exists: that it exists does not mean that a guest boots with it, and figures of
emulated and accelerated machines cannot be compared.
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.vm.image import Image, copy_checkout, make_disk

BOOT_LIMIT_S = 240
# However it is used, no virtual machine outlives this.
LIFE_LIMIT_S = 3600
SHELL_LIMIT_S = 12 * 3600

_MEMORY_MIB = 2048
_PROCESSORS = 2
_PORT_NAME = "testbed.control"
_CHECKOUT_SPARE_MIB = 512


class MachineError(Exception):
    """The virtual machine did not start, or stopped answering."""


@dataclass(frozen=True)
class Finished:
    """What a command left: its exit status (124: it ran out of time and was killed) and what it printed."""

    status: int
    stdout: str
    stderr: str
    seconds: float


class Machine:
    """A running virtual machine; leave the `with` block to end it. Everything it writes is thrown away."""

    def __init__(self, image: Image) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="testbed-vm-"))
        self._console = self._scratch / "console"
        self._socket = socket.socket(socket.AF_UNIX)
        self._unread = b""
        began = time.monotonic()
        try:
            self._qemu = self._start(image)
            self._connect(began + BOOT_LIMIT_S)
        except BaseException:
            self.close()
            raise
        self.boot_seconds = time.monotonic() - began

    def __enter__(self) -> "Machine":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self, argv: Sequence[str], timeout_s: float, on_output: Callable[[str, bytes], None] | None = None
    ) -> Finished:
        """Run a command as root in the checkout's directory. `on_output` also gets its output as it comes.

        Raises MachineError if the machine stops answering.
        """
        began = time.monotonic()
        self._socket.sendall(json.dumps({"argv": list(argv), "timeout_s": timeout_s}).encode() + b"\n")
        printed = {"stdout": b"", "stderr": b""}
        # The agent ends the command by its own clock; it gets time to say so.
        deadline = began + timeout_s + 60
        while "status" not in (answer := self._answer(deadline)):
            data = base64.b64decode(answer["data"])
            printed[answer["stream"]] += data
            if on_output is not None:
                on_output(answer["stream"], data)
        stdout, stderr = (printed[name].decode(errors="replace") for name in ("stdout", "stderr"))
        return Finished(answer["status"], stdout, stderr, time.monotonic() - began)

    def close(self) -> None:
        """End the machine and remove what it wrote. Safe to call twice."""
        self._socket.close()
        qemu = getattr(self, "_qemu", None)
        if qemu is not None:
            qemu.terminate()  # the guard passes it on, and waits for the emulator
            try:
                qemu.wait(10)
            except subprocess.TimeoutExpired:
                qemu.kill()
                qemu.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self, image: Image) -> "subprocess.Popen[bytes]":
        disk = checkout_disk(image, self._scratch)
        port = f"socket,id=control,path={self._scratch}/control,server=on,wait=off"
        command = [
            *qemu_command(image, disk, ""),
            *("-device", "virtio-serial", "-chardev", port),
            *("-device", f"virtserialport,chardev=control,name={_PORT_NAME}"),
            *("-serial", f"file:{self._console}"),
        ]
        environment = {**os.environ, "TMPDIR": str(self._scratch)}
        return subprocess.Popen(
            bounded(command, LIFE_LIMIT_S), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env=environment,
        )  # fmt: skip

    def _connect(self, deadline: float) -> None:
        while True:
            try:
                self._socket.connect(str(self._scratch / "control"))
                break
            except OSError:
                self._check_alive()
                if time.monotonic() > deadline:
                    raise MachineError("the emulator's control socket did not appear") from None
                time.sleep(0.05)
        if "ready" not in self._answer(deadline):
            raise MachineError("the agent did not report that it is ready")

    def _answer(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            self._check_alive()
            if time.monotonic() > deadline:
                raise MachineError(f"no answer within the time; the console's end:\n{self._console_end()}")
            self._socket.settimeout(1.0)
            try:
                part = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            if not part:
                raise MachineError(f"the emulator closed the connection; the console's end:\n{self._console_end()}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _check_alive(self) -> None:
        if self._qemu.poll() is not None:
            assert self._qemu.stderr is not None
            said = self._qemu.stderr.read().decode(errors="replace").strip()
            raise MachineError(
                f"the emulator ended with status {self._qemu.returncode}: {said[-300:]}\n{self._console_end()}"
            )

    def _console_end(self) -> str:
        return self._console.read_text(errors="replace")[-2000:] if self._console.exists() else ""


def shell(image: Image) -> int:
    """A shell on this terminal in a virtual machine, which ends with the shell. Returns the emulator's exit status."""
    with tempfile.TemporaryDirectory(prefix="testbed-vm-") as scratch:
        disk = checkout_disk(image, Path(scratch))
        # Ctrl-C and its like go to the shell, not to the emulator.
        terminal = ("-chardev", "stdio,id=terminal,signal=off", "-serial", "chardev:terminal")
        command = bounded([*qemu_command(image, disk, "testbed.shell"), *terminal], SHELL_LIMIT_S)
        status: int = subprocess.run(command, check=False, env={**os.environ, "TMPDIR": scratch}).returncode
        return status


def checkout_disk(image: Image, scratch: Path) -> Path:
    """A disk with the current checkout, native parts built."""
    files, disk = scratch / "checkout", scratch / "checkout.raw"
    copy_checkout(files)
    shutil.copytree(image.native, files, dirs_exist_ok=True)
    # Emulated, each process would spend seconds on compiling.
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(files)], check=True)
    make_disk(files, disk, _CHECKOUT_SPARE_MIB)
    shutil.rmtree(files)
    return disk


def qemu_command(image: Image, checkout: Path, parameters: str) -> list[str]:
    """QEMU, without its ports. Both disks are discarded overlays: an image stays as it was built."""
    kernel_line = (
        "root=/dev/vda rw init=/sbin/testbed-init console=ttyS0 quiet "
        f"net.ifnames=0 mitigations=off nokaslr tsc=reliable panic=-1 {parameters}"
    )
    disks = [
        word
        for path in (image.disk, checkout)
        for word in ("-drive", f"file={path},if=virtio,format=raw,snapshot=on,cache=unsafe")
    ]
    return [
        *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "EPYC"),
        *("-smp", str(_PROCESSORS), "-m", str(_MEMORY_MIB), "-display", "none", "-vga", "none", "-monitor", "none"),
        *("-no-reboot", "-nic", "none", *disks, "-device", "virtio-rng-pci"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", kernel_line),
    ]


def bounded(command: Sequence[str], limit_s: int) -> list[str]:
    """A command that ends after a time, and when this process does, however it does."""
    # Once for the guard, should this process be killed; once for the command, should the guard be.
    guard = ["setpriv", "--pdeathsig", "TERM", "timeout", "--foreground", "--kill-after=5", str(limit_s)]
    return [*guard, "setpriv", "--pdeathsig", "KILL", *command]


def to_terminal(stream: str, data: bytes) -> None:
    """Show a command's output where it belongs."""
    output = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    output.write(data)
    output.flush()
