"""Finds our packets in frames, whole columns at a time."""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import HEADER_BYTES, MAGIC, VALUE_BYTES, VERSION, Kind
from testbed.analyze.files import Frames, rows

# Where the IPv4 header begins in a frame, by link type (ascending): Ethernet, raw IP, Linux cooked captures.
IP_AT = {1: 14, 101: 0, 113: 16, 276: 20}

_HEADER = np.dtype(
    [
        ("magic", ">u2"),
        ("version", "u1"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("reason", "u1"),
        ("source", "u1"),
        ("contributors", "u1"),
        ("job", ">u4"),
        ("epoch", ">u4"),
        ("round", ">u4"),
        ("shard", ">u2"),
        ("value_count", ">u2"),
        ("chunk", ">u4"),
        ("number", ">u4"),
        ("trailing_edge", ">u4"),
        ("number_format", "u1"),
        ("zero", "u1", 3),
        ("bitmap", ">u8"),
        ("tag", ">u8"),
        ("stream", ">u4"),
        ("checksum", ">u4"),
    ]
)
_VLAN = 0x8100
_VLAN_BYTES = 4
_UDP = 17
_IP_BYTES = 20
_IP_CHECKSUM_WORD = 5
_FRAGMENT_MASK = 0x3FFF  # more fragments, or not the first
_CHECKSUM_AT = HEADER_BYTES - 4
_LAST_KIND = max(Kind)
# Odd numbers that spread 64-bit words (multilinear hashing); fixed, so that results can be compared.
_SPREAD = np.random.default_rng(0x5442).integers(1, 2**63, HEADER_BYTES // 8 + 3, np.uint64) * np.uint64(2) + np.uint64(
    1
)


@dataclass(frozen=True)
class Packets:
    """Our packets among frames, in columns. `frame` is a packet's frame, `header` its fields as in docs/wire-format.md.

    `identity` is a hash of addresses, ports and header: the same packet has the same one wherever it is seen. Where the
    checksum of IP is wrong, or the whole datagram was captured and its own is, it has another; `bad` says so. The
    addresses are IPv4's; `source_link` and `target_link` those of Ethernet, 0 if there are none.
    """

    frame: NDArray[np.int64]
    source_ip: NDArray[np.uint32]
    target_ip: NDArray[np.uint32]
    source_link: NDArray[np.uint64]
    target_link: NDArray[np.uint64]
    header: NDArray[np.void]
    identity: NDArray[np.uint64]
    bad: NDArray[np.bool_]

    def only(self, keep: NDArray[np.bool_]) -> "Packets":
        """Those packets alone."""
        return Packets(
            self.frame[keep],
            self.source_ip[keep],
            self.target_ip[keep],
            self.source_link[keep],
            self.target_link[keep],
            self.header[keep],
            self.identity[keep],
            self.bad[keep],
        )


@dataclass(frozen=True)
class Found:
    """What is in frames: our packets, and the other frames as packets with an empty header.

    `merged` frames hold several packets, since an offload was on; they are taken apart. `unreadable`: packets in such
    frames that were not captured, and frames that were cut before the end of our header.
    """

    packets: Packets
    others: Packets
    merged: int
    unreadable: int


def find_packets(frames: Frames, link_type: NDArray[np.int64]) -> Found:
    """Our packets, and the others, among these frames; `link_type` has each frame's."""
    data = np.concatenate([frames.buffer, np.zeros(256, np.uint8)])  # so that short frames can be read like others
    ip_offsets = np.array(list(IP_AT.values()), np.int64)
    ip_at = frames.at + ip_offsets[np.searchsorted(list(IP_AT), link_type)]
    ethernet = link_type == 1
    tagged = ethernet & (rows(data, frames.at + 12, 2).view(">u2")[:, 0] == _VLAN)
    ip_at = ip_at + np.where(tagged, _VLAN_BYTES, 0)
    ip = rows(data, ip_at, 20)
    ip_bytes = (ip[:, 0] & 15).astype(np.int64) * 4
    fragment = rows(data, ip_at + 6, 2).view(">u2")[:, 0] & _FRAGMENT_MASK
    room = frames.captured - (ip_at - frames.at)
    is_udp = (room >= 28) & (ip[:, 0] >> 4 == 4) & (ip[:, 9] == _UDP) & (fragment == 0) & (ip_bytes >= 20)
    udp_at: NDArray[np.int64] = np.where(is_udp, ip_at + ip_bytes, 0)
    udp_bytes = rows(data, udp_at + 4, 2).view(">u2")[:, 0].astype(np.int64) - 8
    begin = udp_at + 8
    here = frames.captured - (begin - frames.at)
    header = rows(data, np.where(is_udp, begin, 0), HEADER_BYTES).view(_HEADER)[:, 0]
    named = is_udp & (here >= 4) & (header["magic"] == MAGIC) & (header["version"] == VERSION)
    size = HEADER_BYTES + VALUE_BYTES * header["value_count"].astype(np.int64)
    whole = named & (here >= HEADER_BYTES)
    ours = whole & (size == udp_bytes) & (header["kind"] >= 1) & (header["kind"] <= _LAST_KIND)
    several = np.flatnonzero(whole & (size < udp_bytes) & (size > 0))
    frame, begin, unreadable = _take_apart(data, ours, several, begin, here, udp_bytes)
    unreadable += int((named & ~whole).sum())
    header = rows(data, begin, HEADER_BYTES).view(_HEADER)[:, 0]
    addresses = rows(data, ip_at[frame] + 12, 8).view(">u4").astype(np.uint32)
    ports = rows(data, udp_at[frame], 4).view("<u4")[:, 0].astype(np.uint64)
    words = rows(data, begin, HEADER_BYTES).view("<u8")
    identity = words @ _SPREAD[:-3]
    identity += addresses[:, 0] * _SPREAD[-3] + addresses[:, 1] * _SPREAD[-2] + ports * _SPREAD[-1]
    identity ^= identity >> np.uint64(29)
    bad = _wrong_checksums(data, begin, header, frames.captured[frame] - (begin - frames.at[frame]), identity)
    bad |= _wrong_ip_checksums(data, ip_at[frame], ip_bytes[frame], identity)
    link = _link_addresses(data, frames.at[frame], ethernet[frame])
    packets = Packets(frame, addresses[:, 0], addresses[:, 1], *link, header, identity, bad)
    without = np.ones(len(frames.at), bool)
    without[frame] = False
    merged = int((~without[several]).sum())
    return Found(packets, _others(data, frames, np.flatnonzero(without)), merged, unreadable)


def _others(data: NDArray[np.uint8], frames: Frames, which: NDArray[np.int64]) -> Packets:
    """Frames without a packet of ours; on one link all that was captured of it identifies a frame."""
    view = data.data
    places = zip(frames.at[which].tolist(), frames.captured[which].tolist(), strict=True)
    identity = np.array([zlib.crc32(view[at : at + captured]) for at, captured in places], np.uint64)
    identity = identity * _SPREAD[0] + frames.length[which].astype(np.uint64) * _SPREAD[-1]
    none, no_link = np.zeros(len(which), np.uint32), np.zeros(len(which), np.uint64)
    header = np.zeros(len(which), _HEADER)
    return Packets(which, none, none, no_link, no_link, header, identity, none.astype(bool))


def _link_addresses(
    data: NDArray[np.uint8], at: NDArray[np.int64], ethernet: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Source and target of Ethernet frames that begin there, as numbers of 48 bits."""
    words = rows(data, at, 12).view(">u2").astype(np.uint64) * ethernet[:, None].astype(np.uint64)
    numbers = words[:, 0::3] << np.uint64(32) | words[:, 1::3] << np.uint64(16) | words[:, 2::3]
    return numbers[:, 1], numbers[:, 0]


def _take_apart(
    data: NDArray[np.uint8],
    ours: NDArray[np.bool_],
    several: NDArray[np.int64],
    begin: NDArray[np.int64],
    here: NDArray[np.int64],
    udp_bytes: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Frame and beginning of each packet, those in merged frames included, and how many of these were not captured."""
    frame = np.flatnonzero(ours)
    if not len(several):
        return frame, begin[frame], 0
    places, unreadable = list(zip(frame.tolist(), begin[frame].tolist(), strict=True)), 0
    for row in several.tolist():
        found: list[tuple[int, int]] = []
        at, left, size = int(begin[row]), int(udp_bytes[row]), 0
        while left > 0:
            if at + HEADER_BYTES > begin[row] + here[row]:
                # Those that come after are as long as the first, but for the last.
                unreadable += -(-left // size) if found else 1
                break
            header = data[at : at + HEADER_BYTES].view(_HEADER)[0]
            size = HEADER_BYTES + VALUE_BYTES * int(header["value_count"])
            if header["magic"] != MAGIC or size > left:
                found = []
                break
            found.append((row, at))
            at, left = at + size, left - size
        places += found
    places.sort()
    table = np.array(places, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1], unreadable


def _wrong_checksums(
    data: NDArray[np.uint8],
    begin: NDArray[np.int64],
    header: NDArray[np.void],
    here: NDArray[np.int64],
    identity: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Which packets, of those that are there whole, have a wrong checksum; their identities are made others."""
    bad = np.zeros(len(begin), bool)
    size = HEADER_BYTES + VALUE_BYTES * header["value_count"].astype(np.int64)
    zero = bytes(4)
    view = data.data
    checksum = header["checksum"].astype(np.int64)
    for row in np.flatnonzero(here >= size).tolist():
        at = int(begin[row])
        crc = zlib.crc32(zero, zlib.crc32(view[at : at + _CHECKSUM_AT]))
        crc = zlib.crc32(view[at + HEADER_BYTES : at + int(size[row])], crc)
        if crc != checksum[row]:
            bad[row] = True
            identity[row] ^= np.uint64(crc | 1 << 40)
    return bad


def _wrong_ip_checksums(
    data: NDArray[np.uint8], ip_at: NDArray[np.int64], ip_bytes: NDArray[np.int64], identity: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Which packets have a wrong checksum of the IP header; their identities are made others.

    Headers with options are not looked at; without a checksum are frames that a network card was to complete.
    """
    words = rows(data, ip_at, _IP_BYTES).view(">u2").astype(np.uint32)
    total = words.sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    bad: NDArray[np.bool_] = (total != 0xFFFF) & (words[:, _IP_CHECKSUM_WORD] != 0) & (ip_bytes == _IP_BYTES)
    identity[bad] ^= total[bad].astype(np.uint64) | np.uint64(1 << 41)
    return bad
