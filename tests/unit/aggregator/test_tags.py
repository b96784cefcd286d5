"""Keyed tags: SipHash-2-4 as published, the same in C and in Python, refused when missing, wrong, or of another key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.receiver import native_library
from aggregator.wire import tag
from aggregator.wire.packet import (
    FLAG_BYPASSED,
    HEADER_BYTES,
    Header,
    Kind,
    PacketError,
    Refusal,
    parse_packet,
    put_flag,
    seal,
    write_packet,
)
from aggregator.wire.tag import packet_tag, parse_key, siphash

KEY, OTHER = bytes(range(16)), bytes(range(1, 17))


def packet(key: bytes | None, values: int = 5) -> bytearray:
    header = Header(Kind.CONTRIBUTION, 1, 77, 0, 3, 0, 2, values, bitmap=2)
    out = bytearray(HEADER_BYTES + 4 * values)
    write_packet(memoryview(out), header, bytes(range(4 * values)), key)
    return out


def test_siphash_is_the_published_one() -> None:
    # From the appendix of the paper by Aumasson and Bernstein.
    assert siphash(KEY, bytes(range(15))) == 0xA129CA6149BE45E5


@pytest.mark.skipif(native_library() is None, reason="the C part is not built here")
@given(st.binary(min_size=16, max_size=16), st.binary(min_size=64, max_size=300))
def test_c_and_python_make_the_same_tag(key: bytes, datagram: bytes) -> None:
    blank = datagram[:48] + bytes(8) + datagram[56:60] + bytes(4) + datagram[64:]
    assert packet_tag(key, memoryview(datagram)) == siphash(key, blank)


def test_python_tags_where_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = packet_tag(KEY, memoryview(packet(KEY)))
    monkeypatch.setattr(tag, "_native", lambda: None)
    assert packet_tag(KEY, memoryview(packet(KEY))) == whole


def test_tag_of_the_key_is_wanted() -> None:
    assert parse_packet(memoryview(packet(KEY)), KEY).tag == packet_tag(KEY, memoryview(packet(KEY)))
    for datagram in (packet(None), packet(OTHER)):
        with pytest.raises(PacketError) as refused:
            parse_packet(memoryview(datagram), KEY)
        assert refused.value.refusal is Refusal.TAG
        parse_packet(memoryview(datagram))


def test_tag_covers_every_byte_but_itself_and_the_checksum() -> None:
    whole = packet(KEY)
    first = packet_tag(KEY, memoryview(whole))
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        covered = not (48 <= at < 56 or 60 <= at < 64)
        assert (packet_tag(KEY, memoryview(changed)) != first) == covered, at


def test_bypassed_contribution_is_tagged_anew() -> None:
    datagram = packet(KEY)
    put_flag(memoryview(datagram), FLAG_BYPASSED)
    seal(memoryview(datagram), KEY)
    assert parse_packet(memoryview(datagram), KEY).flags == FLAG_BYPASSED


def test_keys_are_32_hexadecimal_digits_or_none() -> None:
    assert parse_key("") is None
    assert parse_key(KEY.hex()) == KEY
    with pytest.raises(ValueError, match="tag_key has 2 bytes"):
        parse_key("abcd")
    with pytest.raises(ValueError, match="hex"):
        parse_key("zz")
