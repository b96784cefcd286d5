"""The keyed tag of a packet: SipHash-2-4, which whoever does not have the run's key cannot make (docs/wire-format.md).

In C where that is built (aggregator/wire/native/tag.c); `siphash` is the reference, and slow.
"""

import ctypes
from functools import cache
from importlib.util import find_spec
from itertools import chain

KEY_BYTES = 16
TAG_AT = 48
TAG_BYTES = 8
_CHECKSUM_AT, _HEADER_BYTES = 60, 64
_NATIVE_MODULE = "aggregator._receive"
_WORD = (1 << 64) - 1
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def parse_key(text: str) -> bytes | None:
    """A key from hexadecimal; None for an empty text: no tags. Raises ValueError for anything else."""
    key = bytes.fromhex(text)
    if key and len(key) != KEY_BYTES:
        raise ValueError(f"tag_key has {len(key)} bytes, it must have {KEY_BYTES}: {2 * KEY_BYTES} hexadecimal digits")
    return key or None


def packet_tag(key: bytes, datagram: memoryview) -> int:
    """The tag of a datagram of at least 64 bytes; its tag and checksum fields count as zero."""
    native = _native()
    if native is not None:
        kind = ctypes.c_char * len(datagram)
        buffer = kind.from_buffer_copy(datagram) if datagram.readonly else kind.from_buffer(datagram)
        tag: int = native.tb_tag(key, buffer, len(datagram))
        return tag
    blank = bytearray(datagram)
    blank[TAG_AT : TAG_AT + TAG_BYTES] = bytes(TAG_BYTES)
    blank[_CHECKSUM_AT:_HEADER_BYTES] = bytes(_HEADER_BYTES - _CHECKSUM_AT)
    return siphash(key, bytes(blank))


def siphash(key: bytes, data: bytes) -> int:
    """SipHash-2-4 with a 128-bit key, as its authors define it."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v0, v1, v2, v3 = (start ^ half for start, half in zip(_START, (k0, k1, k0, k1), strict=True))
    whole = len(data) // 8 * 8
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    words = (int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8))
    for word in chain(words, [last]):
        v0, v1, v2, v3 = _mix(v0, v1, v2, v3 ^ word, 2)
        v0 ^= word
    v0, v1, v2, v3 = _mix(v0, v1, v2 ^ 0xFF, v3, 4)
    return v0 ^ v1 ^ v2 ^ v3


def _mix(v0: int, v1: int, v2: int, v3: int, rounds: int) -> tuple[int, int, int, int]:
    for _ in range(rounds):
        v0 = (v0 + v1) & _WORD
        v1 = _rotated(v1, 13) ^ v0
        v0 = _rotated(v0, 32)
        v2 = (v2 + v3) & _WORD
        v3 = _rotated(v3, 16) ^ v2
        v0 = (v0 + v3) & _WORD
        v3 = _rotated(v3, 21) ^ v0
        v2 = (v2 + v1) & _WORD
        v1 = _rotated(v1, 17) ^ v2
        v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _WORD


@cache
def _native() -> ctypes.CDLL | None:
    spec = find_spec(_NATIVE_MODULE)
    if spec is None or spec.origin is None:
        return None
    library = ctypes.CDLL(spec.origin)
    library.tb_tag.restype = ctypes.c_uint64
    library.tb_tag.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    return library
