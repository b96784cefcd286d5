"""What an edge takes and refuses: the checks in Python and in C agree, datagram by datagram."""

import ctypes
import socket
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.admission import Admission, Shape
from aggregator.receiver import REASONS, NativeShape, native_library, network_order
from aggregator.wire.packet import (
    FLAG_BYPASSED,
    FLAG_RETRANSMITTED,
    HEADER_BYTES,
    Header,
    Kind,
    write_packet,
    write_probe,
)

SHAPE = Shape(
    job=77, contributors={"10.0.0.1": 1, "10.0.0.2": 2, "10.0.0.70": 70}, shard_values=[25, 8], values_per_chunk=10
)
FLOWS = [("232.1.0.1", "10.0.0.1"), ("232.1.0.2", "10.0.0.2"), ("232.1.0.70", "10.0.0.70")]
LIBRARY = native_library()


def packet(source: int = 1, count: int = 10, **fields: object) -> bytes:
    given: dict[str, object] = {"kind": Kind.CONTRIBUTION, "job": 77, "epoch": 3, "round": 9, "shard": 0, "chunk": 1}
    header = Header(**{**given, "source": source, "bitmap": 1 << source, "value_count": count, **fields})  # type: ignore[arg-type]
    out = bytearray(HEADER_BYTES + 4 * count)
    write_packet(memoryview(out), header, bytes(4 * count))
    return bytes(out)


def probe(**fields: object) -> bytes:
    given: dict[str, object] = {"kind": Kind.PROBE, "job": 77, "epoch": 3, "round": 0, "shard": 0, "chunk": 31}
    header = Header(**{**given, "source": 1, "bitmap": 2, "value_count": 2, **fields})  # type: ignore[arg-type]
    out = bytearray(HEADER_BYTES + 8)
    write_probe(memoryview(out), header, 12345)
    return bytes(out)


def in_python(datagram: bytes, source: str, group: str) -> str:
    admission = Admission(SHAPE)
    admission.allow(FLOWS)
    header = admission.admit(memoryview(datagram), source, socket.inet_aton(group))
    assert (header is None) == (admission.refused.total() == 1)
    return "admitted" if header is not None else next(iter(admission.refused))


def in_c(datagram: bytes, source: str, group: str) -> str:
    assert LIBRARY is not None
    shape = NativeShape(SHAPE)
    shape.allow(FLOWS)
    address = ctypes.addressof(shape.structure)
    return REASONS[LIBRARY.tb_check(address, datagram, len(datagram), network_order(group), network_order(source))]


CHECKS = [
    in_python,
    pytest.param(in_c, marks=pytest.mark.skipif(LIBRARY is None, reason="the C receiver is not built here")),
]
CASES = [
    ("admitted", packet()),
    ("admitted", packet(chunk=2, count=5)),
    ("admitted", packet(shard=1, chunk=0, count=8)),
    ("admitted", probe()),
    ("length", b""),
    ("length", packet()[:63]),
    ("length", packet()[:-1]),
    ("length", packet() + b"\0"),
    ("magic", b"\0" + packet()[1:]),
    ("version", packet()[:2] + b"\2" + packet()[3:]),
    ("kind", packet()[:3] + b"\x08" + packet()[4:]),
    ("kind", packet()[:5] + b"\5" + packet()[6:]),
    ("checksum", packet()[:-1] + b"\1"),
    ("checksum", packet()[:63] + bytes([packet()[63] ^ 1]) + packet()[64:]),
    ("source", packet(source=2)),
    ("source", packet(bitmap=6)),
    ("source", packet(contributors=2)),
    ("epoch", packet(job=78)),
    ("epoch", probe(job=78)),
    ("kind", packet(kind=Kind.RESULT)),
    *(("kind", packet(kind=kind)) for kind in (Kind.NACK, Kind.HEARTBEAT, Kind.GONE, Kind.FETCH)),
    ("kind", packet(flags=FLAG_RETRANSMITTED)),
    ("kind", packet(flags=FLAG_BYPASSED)),
    ("kind", packet(number_format=1)),
    ("length", packet(count=9)),
    ("length", packet(count=0)),
    ("length", packet(chunk=3, count=5)),
    ("length", packet(chunk=3, count=0)),
    ("length", packet(chunk=2**32 - 1)),
    ("length", packet(shard=2)),
    ("length", packet(shard=1, chunk=1, count=0)),
    ("length", packet(kind=Kind.PROBE)),
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("reason", "datagram"), CASES)
def test_reason(check: object, reason: str, datagram: bytes) -> None:
    assert check(datagram, "10.0.0.1", "232.1.0.1") == reason  # type: ignore[operator]


@pytest.mark.parametrize("check", CHECKS)
def test_flows_are_pairs_of_group_and_source(check: object) -> None:
    assert check(packet(), "10.0.0.1", "232.1.0.2") == "group"  # type: ignore[operator]
    assert check(packet(), "10.0.0.2", "232.1.0.1") == "group"  # type: ignore[operator]
    assert check(packet(), "10.0.0.2", "232.1.0.2") == "source"  # type: ignore[operator]
    assert check(packet(), "10.0.0.1", "10.0.0.9") == "group"  # type: ignore[operator]


@pytest.mark.parametrize("check", CHECKS)
def test_contributor_beyond_the_bitmap_is_refused(check: object) -> None:
    assert check(packet(source=70, bitmap=1 << 6), "10.0.0.70", "232.1.0.70") == "source"  # type: ignore[operator]


@pytest.mark.skipif(LIBRARY is None, reason="the C receiver is not built here")
@settings(max_examples=400, deadline=None)
@given(
    base=st.sampled_from([datagram for _, datagram in CASES if len(datagram) >= 64]),
    changes=st.lists(st.tuples(st.integers(0, 103), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 110),
    seal=st.booleans(),
    flow=st.sampled_from(FLOWS),
)
def test_python_and_c_agree(
    base: bytes, changes: list[tuple[int, int]], cut: int, seal: bool, flow: tuple[str, str]
) -> None:
    datagram = bytearray(base[: cut if cut < 20 else len(base)])
    for at, value in changes:
        if at < len(datagram):
            datagram[at] = value
    if seal and len(datagram) >= HEADER_BYTES:
        datagram[60:64] = bytes(4)
        datagram[60:64] = zlib.crc32(datagram).to_bytes(4, "big")
    group, source = flow
    assert in_c(bytes(datagram), source, group) == in_python(bytes(datagram), source, group)


@pytest.mark.skipif(LIBRARY is None, reason="the C receiver is not built here")
@given(st.binary(max_size=700), st.integers(0, 63))
def test_checksum_in_c_is_that_of_zlib(data: bytes, at: int) -> None:
    count = len(data[at:]) // 4
    payload = data[at : at + 4 * count]
    out = bytearray(HEADER_BYTES + len(payload))
    header = Header(Kind.CONTRIBUTION, 1, 77, 3, 9, 0, 1, count, bitmap=2)
    write_packet(memoryview(out), header, payload)
    assert in_c(bytes(out), "10.0.0.1", "232.1.0.1") == ("admitted" if count == 10 else "length")
    out[-1] ^= 0x80
    assert in_c(bytes(out), "10.0.0.1", "232.1.0.1") == "checksum"
