"""Frames of the emulated network, made by hand, and captures of them."""

import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

from aggregator.wire.packet import CONTRIBUTION_PORT, HEADER_BYTES, Header, Kind, write_packet
from testbed.capture import pcapng

NODE_A, NODE_B = "02:00:00:00:00:01", "02:00:00:00:00:02"
HOUR_NS = 3_600_000_000_000
START_NS = 1_800_000_000 * 1_000_000_000


def header(kind: Kind = Kind.CONTRIBUTION, source: int = 0, chunk: int = 0, **fields: object) -> Header:
    """A header with 2 values; a contribution unless said otherwise."""
    base: dict[str, object] = {"job": 7, "epoch": 0, "round": 0, "shard": 0, "value_count": 2, "number": chunk}
    if kind is Kind.CONTRIBUTION:
        base["bitmap"] = 1 << source
    return Header(kind=kind, source=source, chunk=chunk, **{**base, **fields})  # type: ignore[arg-type]


def frame(header: Header, source: str, target: str, port: int = CONTRIBUTION_PORT, payload: bytes = b"") -> bytes:
    """An Ethernet frame with IPv4, UDP and our packet."""
    datagram = bytearray(HEADER_BYTES + 4 * header.value_count)
    write_packet(memoryview(datagram), header, payload or bytes(4 * header.value_count))
    udp = struct.pack("!HHHH", 40000, port, 8 + len(datagram), 0) + datagram
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 32, 17, 0) + addresses
    return bytes(6) + bytes(6) + b"\x08\x00" + ip + udp


@dataclass
class Capture:
    """A pcapng file in the making, as the recorder writes it. Times are ns after START_NS."""

    blocks: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    end_ns: int = HOUR_NS

    def __post_init__(self) -> None:
        self.blocks.append(pcapng.section_header("testbed", "testbed run=r recording=1 wall_minus_monotonic_ns=5"))

    def interface(self, name: str, comment: str = "") -> int:
        self.blocks.append(pcapng.interface_description(name, "", comment, 65535))
        self.counts.append(0)
        return len(self.counts) - 1

    def add(self, interface: int, time_ns: int, data: bytes, outbound: bool, captured: int | None = None) -> None:
        self.blocks.append(pcapng.packet(interface, START_NS + time_ns, data[:captured], len(data), outbound))
        self.counts[interface] += 1

    def end(self, lost: int = 0) -> None:
        for interface, arrived in enumerate(self.counts):
            counts = pcapng.Statistics(interface, START_NS, START_NS + self.end_ns, arrived + lost, lost, 0)
            self.blocks.append(pcapng.interface_statistics(counts))

    def write(self, path: Path) -> Path:
        path.write_bytes(b"".join(self.blocks))
        return path
