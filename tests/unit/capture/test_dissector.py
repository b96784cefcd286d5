"""Wireshark's view of our packets, through tshark."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from aggregator.wire.packet import FLAG_BYPASSED, FLAG_RETRANSMITTED, REPAIR_PORT, RESULT_PORT, Kind, Reason
from testbed.capture.wireshark import DISSECTOR
from testbed.cli import build_parser
from tests.unit.capture.frames import Capture, frame, header

HOST, EDGE, GROUP = "10.1.0.10", "10.1.0.2", "232.1.0.1"

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def tshark(path: Path, *arguments: str) -> list[list[str]]:
    """The lines that tshark prints, as fields."""
    command = ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One second at an edge: everything that a packet can be."""
    capture = Capture()
    port = capture.interface("nyc-e:h0")
    result = header(Kind.RESULT, 3, 5, reason=Reason.COMPLETE, bitmap=6, contributors=2, number=100, stream=0xABCD)
    partial = header(Kind.RESULT, 3, 6, reason=Reason.TIMEOUT, bitmap=2, number=101, stream=0xABCD)
    repaired = header(
        Kind.RESULT, 3, 5, flags=FLAG_RETRANSMITTED, reason=Reason.COMPLETE, bitmap=6, number=100, stream=0xABCD
    )
    late = header(Kind.CONTRIBUTION, 2, 6, flags=FLAG_BYPASSED, number=102, stream=0xABCD)
    nack = header(Kind.NACK, 3, value_count=0, number=98, bitmap=0b101, contributors=2, stream=0xABCD)
    gone = header(Kind.GONE, 3, value_count=0, number=98, bitmap=1, stream=0xABCD)
    next_round = header(Kind.RESULT, 3, 5, round=1, reason=Reason.COMPLETE, number=103, stream=0xABCD)
    packets = [
        (frame(header(Kind.CONTRIBUTION, 1, 5), HOST, GROUP), True),
        (frame(result, EDGE, HOST, RESULT_PORT), True),
        (frame(partial, EDGE, HOST, RESULT_PORT), True),
        (frame(partial, EDGE, HOST, RESULT_PORT), True),
        (frame(late, EDGE, HOST, RESULT_PORT), True),
        (frame(nack, HOST, EDGE, REPAIR_PORT), False),
        (frame(repaired, EDGE, HOST, RESULT_PORT), True),
        (frame(gone, EDGE, HOST, RESULT_PORT), True),
        (frame(next_round, EDGE, HOST, RESULT_PORT), True),
        (frame(header(Kind.RESULT, 3, 7, number=104), EDGE, HOST, RESULT_PORT), True),
    ]
    for number, (data, outbound) in enumerate(packets):
        capture.add(port, number * 100_000_000, data, outbound, captured=128)
    capture.end()
    return capture.write(tmp_path_factory.mktemp("capture") / "nyc-e.pcapng")


def test_every_field_of_the_header_has_a_name(capture: Path) -> None:
    names = (
        *("magic", "version", "kind", "flags", "reason", "source", "contributors", "job", "epoch", "round", "shard"),
        *("value_count", "chunk", "number", "trailing_edge", "number_format", "bitmap", "tag", "stream"),
    )
    fields = [argument for name in names for argument in ("-e", f"tb.{name}")]
    assert tshark(capture, "-T", "fields", *fields)[1] == [
        *("0x5442", "1", "2", "0x00", "1", "3", "2", "0x00000007", "0", "0", "0"),
        *("2", "5", "100", "0", "0", "0x0000000000000006", "0x0000000000000000", "0x0000abcd"),
    ]


def test_what_is_remarkable_can_be_filtered(capture: Path) -> None:
    frames = {
        "tb.partial": [3, 4],
        "tb.duplicate": [4],
        "tb.late": [5, 10],
        "tb.retransmitted": [7],
        "tb.gone": [8],
        "tb.malformed": [],
        "tb.nack_in": [7],
    }
    # Two passes, as a user does who clicks: what was found at first is found again.
    lines = tshark(capture, "-2", "-T", "fields", *(argument for name in frames for argument in ("-e", name)))
    found = {name: [n for n, line in enumerate(lines, 1) if line[at]] for at, name in enumerate(frames)}
    assert found == frames


def test_repair_time_counts_from_the_nack(capture: Path) -> None:
    repaired = "tb.flags.retransmitted == 1 && tb.nack_in == 6"
    lines = tshark(capture, "-Y", repaired, "-T", "fields", "-e", "tb.repair_time")
    assert [float(line[0]) for line in lines] == pytest.approx([0.1])


def test_checksums_on_request(tmp_path: Path) -> None:
    capture = Capture()
    port = capture.interface("nyc-e:h0")
    good = frame(header(chunk=1), HOST, GROUP)
    capture.add(port, 0, good, True)
    capture.add(port, 1, good[:-1] + b"\1", True)
    capture.add(port, 2, good[:-2], True)
    path = capture.write(tmp_path / "x.pcapng")
    ask = ("-o", "tb.check_checksums:TRUE", "-T", "fields", "-e", "frame.number", "-Y")
    assert tshark(path, *ask, "tb.checksum.bad") == [["2"]]
    assert tshark(path, *ask, "tb.malformed") == [["3"]]


@pytest.mark.parametrize("by_sudo", [False, True])
def test_it_is_installed_where_tshark_finds_it(
    by_sudo: bool, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if by_sudo:
        home = SimpleNamespace(pw_dir=str(tmp_path), pw_uid=os.getuid(), pw_gid=os.getgid())
        monkeypatch.setattr(pwd, "getpwuid", lambda _uid: home)
        monkeypatch.setenv("SUDO_UID", str(os.getuid()))
    else:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SUDO_UID", raising=False)
    arguments = build_parser().parse_args(["dissector", "--install"])
    assert arguments.execute(arguments) == 0
    assert Path(capsys.readouterr().out.strip()).is_relative_to(tmp_path)
    command = ["tshark", "-r", str(capture), "-Y", "tb.partial", "-T", "fields", "-e", "frame.number"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert done.stdout.split() == ["3", "4"]
