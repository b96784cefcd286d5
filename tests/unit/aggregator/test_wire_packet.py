"""The wire format byte by byte: golden vectors and refusals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wire.packet import (
    FLAG_BYPASSED,
    HEADER_BYTES,
    Header,
    Kind,
    PacketError,
    Reason,
    Refusal,
    frame_bytes,
    parse_packet,
    probe_sent_ns,
    put_flag,
    put_number,
    put_trailing_edge,
    seal,
    values_per_frame,
    write_packet,
    write_probe,
)

CONTRIBUTION = Header(
    kind=Kind.CONTRIBUTION,
    source=5,
    job=0x01020304,
    epoch=0x11121314,
    round=0x21222324,
    shard=0x3132,
    chunk=0x41424344,
    value_count=2,
    number=0x51525354,
    bitmap=0x20,
)
CONTRIBUTION_BYTES = bytes.fromhex(
    "5442 01 01 00 00 05 01"  # magic, version, kind, flags, reason, source, contributors
    "01020304 11121314 21222324 3132 0002"  # job, epoch, round, shard, value_count
    "41424344 51525354 00000000 00 000000"  # chunk, number, trailing_edge, number_format, zero
    "0000000000000020 0000000000000000 00000000 e2071d7b"  # bitmap, tag, zero, checksum
    "01000000 feffffff"  # values 1 and −2
)
RESULT = Header(
    kind=Kind.RESULT,
    source=8,
    job=1,
    epoch=2,
    round=3,
    shard=4,
    chunk=5,
    value_count=1,
    number=0xFFFFFFFF,
    contributors=3,
    bitmap=0x8000000000000006,
    reason=Reason.TIMEOUT,
    trailing_edge=0xFFFFFFF0,
    number_format=1,
    tag=0xA1A2A3A4A5A6A7A8,
)
RESULT_BYTES = bytes.fromhex(
    "5442 01 02 00 02 08 03"
    "00000001 00000002 00000003 0004 0001"
    "00000005 ffffffff fffffff0 01 000000"
    "8000000000000006 a1a2a3a4a5a6a7a8 00000000 00000000"
    "04030201"
)
PROBE_BYTES = bytes.fromhex(
    "5442 01 03 00 00 05 01"
    "01020304 11121314 00000000 0000 0002"
    "0000001f e8010007 00000000 00 000000"
    "0000000000000020 0000000000000000 00000000 00000000"
    "11223344 55667788"
)


NACK = Header(
    kind=Kind.NACK,
    source=8,
    job=1,
    epoch=2,
    round=3,
    shard=4,
    chunk=0,
    value_count=0,
    number=0xFFFFFFFE,
    contributors=3,
    bitmap=0x8000000000000003,
    stream=0xC1C2C3C4,
)
NACK_BYTES = bytes.fromhex(
    "5442 01 04 00 00 08 03"
    "00000001 00000002 00000003 0004 0000"
    "00000000 fffffffe 00000000 00 000000"
    "8000000000000003 0000000000000000 c1c2c3c4 00000000"
)
HEARTBEAT = replace(NACK, kind=Kind.HEARTBEAT, number=5, trailing_edge=0xFFFFFFFE, contributors=0, bitmap=0)
HEARTBEAT_BYTES = bytes.fromhex(
    "5442 01 05 00 00 08 00"
    "00000001 00000002 00000003 0004 0000"
    "00000000 00000005 fffffffe 00 000000"
    "0000000000000000 0000000000000000 c1c2c3c4 00000000"
)
GONE = replace(NACK, kind=Kind.GONE, trailing_edge=1, contributors=1, bitmap=1)
GONE_BYTES = bytes.fromhex(
    "5442 01 06 00 00 08 01"
    "00000001 00000002 00000003 0004 0000"
    "00000000 fffffffe 00000001 00 000000"
    "0000000000000001 0000000000000000 c1c2c3c4 00000000"
)
FETCH = replace(NACK, kind=Kind.FETCH, chunk=0x41424344, number=0, contributors=2, bitmap=5, stream=0)
FETCH_BYTES = bytes.fromhex(
    "5442 01 07 00 00 08 02"
    "00000001 00000002 00000003 0004 0000"
    "41424344 00000000 00000000 00 000000"
    "0000000000000005 0000000000000000 00000000 00000000"
)


def written(header: Header, payload: bytes) -> bytes:
    out = bytearray(4096)
    return bytes(out[: write_packet(memoryview(out), header, payload)])


def refusal(datagram: bytes) -> Refusal:
    with pytest.raises(PacketError) as caught:
        parse_packet(memoryview(datagram))
    return caught.value.refusal


def sealed(datagram: bytes) -> bytes:
    """With the right checksum, computed bit by bit over the whole datagram with a zero field."""
    remainder = 0xFFFFFFFF
    for byte in datagram[:60] + bytes(4) + datagram[64:]:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xEDB88320 if remainder & 1 else 0)
    return datagram[:60] + (remainder ^ 0xFFFFFFFF).to_bytes(4, "big") + datagram[64:]


def test_contribution_golden_vector() -> None:
    assert written(CONTRIBUTION, CONTRIBUTION_BYTES[64:]) == CONTRIBUTION_BYTES
    assert parse_packet(memoryview(CONTRIBUTION_BYTES)) == CONTRIBUTION


def test_result_golden_vector() -> None:
    golden = sealed(RESULT_BYTES)
    assert written(RESULT, golden[64:]) == golden
    assert parse_packet(memoryview(golden)) == RESULT


@pytest.mark.parametrize(
    ("header", "datagram"),
    [(NACK, NACK_BYTES), (HEARTBEAT, HEARTBEAT_BYTES), (GONE, GONE_BYTES), (FETCH, FETCH_BYTES)],
)
def test_repair_golden_vectors(header: Header, datagram: bytes) -> None:
    golden = sealed(datagram)
    assert written(header, b"") == golden
    assert parse_packet(memoryview(golden)) == header


def test_probe_golden_vector() -> None:
    header = replace(CONTRIBUTION, kind=Kind.PROBE, round=0, shard=0, chunk=31, number=0xE8010007)
    out = bytearray(100)
    size = write_probe(memoryview(out), header, 0x8877665544332211)
    golden = sealed(PROBE_BYTES)
    assert bytes(out[:size]).hex() == golden.hex()
    assert probe_sent_ns(memoryview(golden)) == 0x8877665544332211


def test_probe_with_another_payload_is_refused() -> None:
    with pytest.raises(PacketError, match="length"):
        probe_sent_ns(memoryview(bytes(HEADER_BYTES + 4)))


def test_bypassed_contribution_differs_in_flag_and_place_in_the_stream_only() -> None:
    copy = bytearray(CONTRIBUTION_BYTES)
    put_flag(memoryview(copy), FLAG_BYPASSED)
    put_number(memoryview(copy), 7, 9)
    put_trailing_edge(memoryview(copy), 6)
    seal(memoryview(copy))
    assert bytes(copy) == sealed(bytes(copy[:60]) + bytes(4) + CONTRIBUTION_BYTES[64:])
    assert parse_packet(memoryview(copy)) == replace(CONTRIBUTION, flags=1, number=7, trailing_edge=6, stream=9)


def test_fewer_than_64_bytes_are_refused() -> None:
    assert [refusal(CONTRIBUTION_BYTES[:size]) for size in (0, 1, 63)] == [Refusal.LENGTH] * 3


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, 0x55, Refusal.MAGIC),
        (1, 0x43, Refusal.MAGIC),
        (2, 0, Refusal.VERSION),
        (2, 2, Refusal.VERSION),
        (3, 0, Refusal.KIND),
        (3, 8, Refusal.KIND),
        (3, 255, Refusal.KIND),
        (5, 5, Refusal.KIND),
        (22, 1, Refusal.LENGTH),
        (23, 1, Refusal.LENGTH),
        (23, 3, Refusal.LENGTH),
    ],
)
def test_wrong_field_is_refused_even_with_a_right_checksum(at: int, value: int, reason: Refusal) -> None:
    assert refusal(sealed(CONTRIBUTION_BYTES[:at] + bytes([value]) + CONTRIBUTION_BYTES[at + 1 :])) == reason


def test_truncated_and_overlong_datagrams_are_refused() -> None:
    assert refusal(sealed(CONTRIBUTION_BYTES[:-1])) == Refusal.LENGTH
    assert refusal(sealed(CONTRIBUTION_BYTES + b"\0")) == Refusal.LENGTH
    assert refusal(sealed(CONTRIBUTION_BYTES[:-4])) == Refusal.LENGTH


@given(at=st.integers(0, len(CONTRIBUTION_BYTES) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused(at: int, bit: int) -> None:
    flipped = bytearray(CONTRIBUTION_BYTES)
    flipped[at] ^= 1 << bit
    refusal(bytes(flipped))


@given(
    st.builds(
        Header,
        kind=st.sampled_from(Kind),
        source=st.integers(0, 255),
        job=st.integers(0, 2**32 - 1),
        epoch=st.integers(0, 2**32 - 1),
        round=st.integers(0, 2**32 - 1),
        shard=st.integers(0, 2**16 - 1),
        chunk=st.integers(0, 2**32 - 1),
        value_count=st.integers(0, 40),
        number=st.integers(0, 2**32 - 1),
        contributors=st.integers(0, 255),
        bitmap=st.integers(0, 2**64 - 1),
        flags=st.integers(0, 255),
        reason=st.sampled_from(Reason),
        trailing_edge=st.integers(0, 2**32 - 1),
        number_format=st.integers(0, 255),
        tag=st.integers(0, 2**64 - 1),
        stream=st.integers(0, 2**32 - 1),
    ),
    st.binary(min_size=160, max_size=160),
)
def test_what_is_written_is_what_is_parsed(header: Header, payload: bytes) -> None:
    datagram = written(header, payload[: 4 * header.value_count])
    assert parse_packet(memoryview(datagram)) == header
    assert datagram[HEADER_BYTES:] == payload[: 4 * header.value_count]


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    refusal(noise)


def test_frame_of_9000_bytes_mtu_holds_2227_values() -> None:
    assert values_per_frame(9000) == 2227
    assert frame_bytes(2227) == 9014
    assert values_per_frame(1500) == 352
    assert frame_bytes(352) == 1514
