"""Captures of every kind, and files that are none."""

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aggregator.wire.packet import Kind
from testbed.analyze.analysis import analyse
from testbed.analyze.captures import Captures, find_captures
from testbed.analyze.results import Analysis
from testbed.capture import pcapng
from testbed.errors import TestbedError
from tests.unit.analyze.network import Network, edge, hop_of, host
from tests.unit.capture.frames import START_NS, Capture, frame, header

FRAMES = [frame(header(chunk=chunk), host("nyc"), "232.1.0.1") for chunk in range(5)]


def analysed(path: Path) -> Analysis:
    return analyse(Captures([path]))


def pcap(frames: list[bytes], order: str = "<", nanoseconds: bool = False, link_type: int = 1) -> bytes:
    magic, ticks = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1000)
    content = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link_type)
    for number, data in enumerate(frames):
        time_ns = START_NS + number * 1_000_000
        times = divmod(time_ns, 10**9)
        content += struct.pack(order + "IIII", times[0], times[1] // ticks, len(data), len(data)) + data
    return content


def big_endian(content: bytes) -> bytes:
    """A pcapng file of ours, in the other byte order."""
    result, at = b"", 0
    while at < len(content):
        kind, total = struct.unpack_from("<II", content, at)
        body = content[at + 8 : at + total - 4]
        fixed = {0x0A0D0D0A: "IHHq", 1: "HHI", 5: "III", 6: "IIIII"}[kind]
        size = struct.calcsize("<" + fixed)
        new = struct.pack(">" + fixed, *struct.unpack_from("<" + fixed, body))
        if kind == 6:
            captured = struct.unpack_from("<I", body, 12)[0]
            new, size = new + body[size : size + (captured + 3 & ~3)], size + (captured + 3 & ~3)
        while size + 4 <= len(body):
            code, length = struct.unpack_from("<HH", body, size)
            value = body[size + 4 : size + 4 + length]
            if code == 2 and kind == 6:
                value = value[::-1]
            elif kind == 5 and length == 8:
                value = value[::-1] if code > 3 else value[:4][::-1] + value[4:][::-1]
            new += struct.pack(">HH", code, length) + value + bytes(-length % 4)
            size += 4 + (length + 3 & ~3)
        result += struct.pack(">II", kind, total) + new + struct.pack(">I", total)
        at += total
    return result


def ours(captured: int = 128) -> bytes:
    network = Network(captured=captured)
    network.round(6, {2: "nyc>lon"})
    network.capture.end()
    return b"".join(network.capture.blocks)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_pcap_in_both_byte_orders_and_resolutions(tmp_path: Path, order: str, nanoseconds: bool) -> None:
    path = tmp_path / "foreign.pcap"
    path.write_bytes(pcap(FRAMES, order, nanoseconds))
    analysis = analysed(path)
    assert analysis.packets == {"contribution": 5}
    assert analysis.end_ns - analysis.start_ns == 4_000_000
    assert not analysis.complete  # it does not say whether it has every frame


@pytest.mark.parametrize("convert", [lambda content: content, big_endian])
def test_pcapng_in_both_byte_orders(tmp_path: Path, convert: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "x.pcapng"
    path.write_bytes(convert(ours()))
    analysis = analysed(path)
    assert analysis.reconciled
    assert analysis.complete
    assert hop_of(analysis, "nyc>lon").lost == 1


@pytest.mark.parametrize("cut", [1, 4, 33, 100])
def test_a_truncated_file_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    whole = ours()
    statistics = whole.index(struct.pack("<I", 5) + struct.pack("<I", len(pcapng.interface_statistics(_counts()))))
    path = tmp_path / "x.pcapng"
    path.write_bytes(whole[: statistics - cut])
    analysis = analysed(path)
    assert not analysis.complete
    assert any("the end of" in warning for warning in analysis.warnings)
    assert analysis.packets["contribution"] > 50


def _counts() -> pcapng.Statistics:
    return pcapng.Statistics(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x1f\x8b" + bytes(30), "compressed"),
        (b"no capture at all, just some text", "neither pcap nor pcapng"),
        (pcap([]), "none of our packets among 0 frames"),
        (pcap([bytes(60), bytes(10), b"\x01"]), "none of our packets among 3 frames"),
        (pcap(FRAMES, link_type=105), "link type 105 is not supported"),
        (pcap(FRAMES) + b"\xff" * 40, "damaged"),
        (b"".join(Capture().blocks) + b"\xff" * 40, "damaged"),
        (b"".join(Capture().blocks), "none of our packets among 0 frames"),
    ],
)
def test_what_is_no_capture_of_ours_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TestbedError, match=message) as refusal:
        analysed(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="No such file"):
        analysed(tmp_path / "none")


@pytest.mark.parametrize(
    ("link_type", "convert"),
    [
        (1, lambda data: data[:12] + b"\x81\x00\x00\x05" + data[12:]),
        (101, lambda data: data[14:]),
        (113, lambda data: bytes(14) + b"\x08\x00" + data[14:]),
        (276, lambda data: b"\x08\x00" + bytes(18) + data[14:]),
    ],
    ids=["VLAN", "raw", "cooked", "cooked-2"],
)
def test_other_ways_to_frame_a_packet(tmp_path: Path, link_type: int, convert: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([convert(data) for data in FRAMES], link_type=link_type))
    assert analysed(path).packets == {"contribution": 5}


def merged(frames: list[bytes]) -> bytes:
    """What a capture shows of several packets when segmentation was left to the interface."""
    payload = b"".join(data[42:] for data in frames)
    udp = frames[0][34:38] + struct.pack("!HH", 8 + len(payload), 0xBAD0)
    return frames[0][:34] + udp + payload


def test_packets_that_an_offload_has_merged_are_taken_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([FRAMES[0], merged(FRAMES[1:4]), FRAMES[4]]))
    assert analysed(path).packets == {"contribution": 5}


def test_merged_packets_that_were_cut_make_the_capture_incomplete(tmp_path: Path) -> None:
    capture = Capture()
    port = capture.interface("any")
    capture.add(port, 0, merged(FRAMES[:4]), True, 128)
    capture.end()
    analysis = analysed(capture.write(tmp_path / "x.pcapng"))
    assert analysis.packets == {"contribution": 1}
    assert "3 packets were cut" in analysis.warnings[0]


def test_frames_that_are_cut_too_short_make_the_capture_incomplete(tmp_path: Path) -> None:
    network = Network(captured=90)
    network.round(1, {})
    network.captured = 128
    network.round(1, {}, round_number=1)
    analysis = network.analysed(tmp_path)
    assert not analysis.complete
    assert "cut before the end of their header" in analysis.warnings[0]


def test_wrong_checksums_of_udp_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([data[:40] + b"\xba\xd0" + data[42:] for data in FRAMES]))
    assert analysed(path).packets == {"contribution": 5}


def test_options_before_the_direction_are_passed_over(tmp_path: Path) -> None:
    block = pcapng.packet(0, START_NS, FRAMES[0], len(FRAMES[0]), True)
    comment = struct.pack("<HH", 1, 4) + b"why?"
    total = len(block) + len(comment)
    at = 28 + (len(FRAMES[0]) + 3 & ~3)
    moved = block[:4] + struct.pack("<I", total) + block[8:at] + comment + block[at:-4] + struct.pack("<I", total)
    capture = Capture()
    capture.interface("a:x", "testbed node=a interface=x link=a-b kind=core peer=b:x")
    capture.interface("b:x", "testbed node=b interface=x link=a-b kind=core peer=a:x")
    capture.blocks.append(moved)
    capture.add(1, 5, FRAMES[0], False)
    capture.end()
    assert hop_of(analysed(capture.write(tmp_path / "x.pcapng")), "a>b").received == 1


def test_files_of_a_run_are_analysed_together(tmp_path: Path) -> None:
    """The ends of a link may be in different files."""
    (tmp_path / "pcap").mkdir()
    for name, index in (("a", 0), ("b", 1)):
        capture = Capture()
        other = "b" if name == "a" else "a"
        capture.interface(f"{name}:x", f"testbed node={name} interface=x link=a-b kind=core peer={other}:x")
        for number, data in enumerate(FRAMES[: 5 - index]):
            capture.add(0, 10**9 + number * 10**6 + index, data, outbound=index == 0)
        capture.end()
        capture.write(tmp_path / "pcap" / f"{name}.pcapng")
    analysis = analyse(Captures(find_captures([tmp_path])))
    assert (hop_of(analysis, "a>b").sent, hop_of(analysis, "a>b").lost) == (5, 1)


def test_an_interface_twice_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "one.pcapng", tmp_path / "two.pcapng"]
    for path in paths:
        path.write_bytes(ours())
    with pytest.raises(TestbedError, match=r"two.pcapng: nyc-h1:e0 is in another of these files too"):
        Captures(paths)


def test_a_run_may_have_several_recordings(tmp_path: Path) -> None:
    (tmp_path / "pcap").mkdir()
    for name in ("nyc", "lon", "nyc.2"):
        (tmp_path / "pcap" / f"{name}.pcapng").write_bytes(b"")
    with pytest.raises(TestbedError, match="recordings 1, 2; choose"):
        find_captures([tmp_path])
    assert [path.name for path in find_captures([tmp_path], 1)] == ["lon.pcapng", "nyc.pcapng"]
    assert [path.name for path in find_captures([tmp_path], 2)] == ["nyc.2.pcapng"]
    with pytest.raises(TestbedError, match="has 1, 2"):
        find_captures([tmp_path], 3)
    with pytest.raises(TestbedError, match="--recording 1: is for run directories"):
        find_captures([tmp_path / "nyc.pcapng"], 1)
    with pytest.raises(TestbedError, match="run with --capture"):
        find_captures([_empty(tmp_path)])


def _empty(directory: Path) -> Path:
    (directory / "other").mkdir()
    return directory / "other"


def test_results_are_told_from_contributions(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    result = frame(header(Kind.RESULT, 1, bitmap=1), edge("lon"), host("lon"), 47001)
    path.write_bytes(pcap([*FRAMES, result]))
    assert analysed(path).packets == {"contribution": 5, "result": 1}


DAMAGE = st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), DAMAGE)
@example(True, [(1266, b"\0")])  # an option without a value
def test_damage_is_survived_or_refused(tmp_path: Path, ng: bool, damage: list[tuple[int, bytes]]) -> None:
    content = bytearray(ours() if ng else pcap(FRAMES))
    for position, replacement in damage:
        at = position % len(content)
        content[at : at + len(replacement)] = replacement
    path = tmp_path / "x"
    path.write_bytes(content)
    with suppress(TestbedError):
        analysed(path)
