"""`python -m aggregator` outside the testbed: groups, sources and hosts on the command line, counts at the end."""

import json
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from edge_rig import (
    CONTRIBUTORS,
    EDGE,
    HOST,
    JOB,
    SO_RCVBUFFORCE,
    Namespace,
    group_of,
    root_refusal,
)

from aggregator.engines import engine_names
from aggregator.standalone import WINDOW
from aggregator.wire.packet import (
    CONTRIBUTION_PORT,
    HEADER_BYTES,
    RESULT_PORT,
    Header,
    Kind,
    Reason,
    parse_packet,
    write_packet,
)

pytestmark = pytest.mark.skipif(bool(root_refusal()), reason=root_refusal())
VALUES, CHUNKS, ROUNDS = 300, 5, 3 * WINDOW
FIRST_ROUND = 2**32 - WINDOW // 2  # it wraps


def values_of(source: int, round_number: int, chunk: int) -> np.ndarray:
    return np.random.default_rng([source, round_number, chunk]).integers(-(2**28), 2**28, VALUES, np.int32)


@pytest.mark.parametrize("engine", [name for name in ("native", "numpy") if name in engine_names()])
def test_rounds_are_summed_as_they_come(network: tuple[Namespace, Namespace, Namespace], engine: str) -> None:
    wan, edge, lan = network
    command = [sys.executable, "-m", "aggregator", "--address", EDGE, "--host", HOST, "--values", str(VALUES * CHUNKS)]
    command += ["--values-per-chunk", str(VALUES), "--job", str(JOB), "--engine", engine]
    command += ["--first-round", str(FIRST_ROUND), "--deadline-ms", "60000"]
    for source, contributor in CONTRIBUTORS.items():
        command += ["--flow", f"{group_of(source)},{source},{contributor}"]
    process = subprocess.Popen(edge.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    host = lan.udp_socket()
    try:
        host.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
        host.bind((HOST, RESULT_PORT))
        host.settimeout(10)
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"engine {engine}, 3 flows, 4096 slots")
        memory = memoryview(bytearray(9000))
        senders = {}
        for source in CONTRIBUTORS:
            senders[source] = wan.udp_socket()
            senders[source].bind((source, 0))
            senders[source].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(source))

        def send(source: str, round_number: int, chunk: int) -> None:
            contributor = CONTRIBUTORS[source]
            header = Header(
                Kind.CONTRIBUTION, contributor, JOB, 0, round_number, 0, chunk, VALUES, bitmap=1 << contributor
            )
            size = write_packet(memory, header, values_of(contributor, round_number, chunk).tobytes())
            senders[source].sendto(memory[:size], (group_of(source), CONTRIBUTION_PORT))

        time.sleep(0.2)  # however long nothing comes, the window stays where it is
        for k in range(ROUNDS):
            round_number = (FIRST_ROUND + k) % 2**32
            for source in CONTRIBUTORS:
                for chunk in range(CHUNKS):
                    send(source, round_number, chunk)
            for _ in range(CHUNKS):
                datagram = memoryview(host.recv(10_000))
                header = parse_packet(datagram)
                assert (header.round, header.reason, header.bitmap) == (round_number, Reason.COMPLETE, 0b100110)
                wanted = sum(values_of(source, round_number, header.chunk) for source in CONTRIBUTORS.values())
                assert (np.frombuffer(datagram[HEADER_BYTES:], "<i4") == wanted).all()
        # One that is long over, and one whose rest never comes: its partial sum goes out in the end.
        first, *_ = CONTRIBUTORS
        send(first, FIRST_ROUND, 0)
        send(first, round_number, CHUNKS - 1)
        send(first, (round_number + 1) % 2**32, 0)
        host.settimeout(0.3)
        with pytest.raises(TimeoutError):
            host.recv(10_000)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=10)
        assert errors == ""
        host.settimeout(5)
        header = parse_packet(memoryview(host.recv(10_000)))
        assert (header.round, header.reason, header.bitmap) == ((round_number + 1) % 2**32, Reason.TIMEOUT, 0b10)
    finally:
        host.close()
        for sender in senders.values():
            sender.close()
        if process.poll() is None:
            process.kill()
            process.communicate()
    counts = json.loads(output)
    assert process.returncode == 0
    assert (counts["complete"], counts["timeout"], counts["duplicate"]) == (ROUNDS * CHUNKS, 1, 1)
    assert counts["refused"] == {"epoch": 1}


def test_help_has_an_example() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aggregator", "--help"], check=True, capture_output=True, text=True, timeout=30
    )
    assert "example" in done.stdout
    assert "--flow 232.1.0.21,10.9.0.21,1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--flow", "10.0.0.1,10.0.0.2,1"], "--flow"),
        (["--flow", "232.1.0.1,10.0.0.2,64"], "--flow"),
        (["--flow", "232.1.0.1,10.0.0.2,1", "--values", "7"], "--values"),
        (["--flow", "232.1.0.1,10.0.0.2,1", "--engine", "fpga9"], "fpga9"),
        (["--flow", "232.1.0.1,10.0.0.2,1", "--seconds", "0"], "--seconds"),
    ],
)
def test_bad_input_is_refused_and_named(arguments: list[str], named: str) -> None:
    command = [sys.executable, "-m", "aggregator", "--address", "127.0.0.1", "--host", "127.0.0.1", "--values", "10"]
    done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert named in done.stderr.splitlines()[-1]
