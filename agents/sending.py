"""The sending half of a data plane: a round's packets in one buffer, and when each of them is due."""

import socket
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from agents.shard import Shard
from aggregator.wire.buffers import enlarge_send_buffer
from aggregator.wire.packet import (
    CONTRIBUTION_PORT,
    HEADER_BYTES,
    VALUE_BYTES,
    Header,
    Kind,
    frame_bytes,
    write_packet,
)

MULTICAST_TTL = 32
_BUFFER_BYTES = 4 << 20
_ALIGNMENT = 64
_PROBE_VALUES = 2

# Linux values that Python's socket module does not name.
_SO_NO_CHECK = 11
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DO = 2


def open_sender(address: str, port: int = 0) -> socket.socket:
    """A socket that sends from `address`, and multicasts through the interface that has it. Raises OSError."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge_send_buffer(sender, _BUFFER_BYTES)
    # Packets carry a checksum of their own; a wrong one is to be counted, not dropped by the kernel.
    sender.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
    # A frame that is too long must be an error: its fragments would be other traffic than the plan counts.
    sender.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, MULTICAST_TTL)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    sender.bind((address, port))
    return sender


def _value_counts(shard: Shard) -> list[int]:
    return [end - first for first, end in map(shard.value_range, range(shard.chunks))]


def frame_sizes(shard: Shard) -> list[int]:
    """On-wire bytes of each frame of a shard."""
    return [frame_bytes(count) for count in _value_counts(shard)]


def contribution_header(
    shard: Shard, epoch: int, round_number: int, chunk: int, number_format: int, flags: int = 0
) -> Header:
    """The header of one of the shard's contributions."""
    first, end = shard.value_range(chunk)
    return Header(
        kind=Kind.CONTRIBUTION,
        source=shard.island_id,
        job=shard.job,
        epoch=epoch,
        round=round_number,
        shard=shard.number,
        chunk=chunk,
        value_count=end - first,
        number=chunk,
        bitmap=shard.own_bit,
        flags=flags,
        number_format=number_format,
    )


class RoundPackets:
    """The contributions of one shard in one round, chunk by chunk, in slots of one buffer that serves every round."""

    def __init__(self, shard: Shard, number_format: int = 0, key: bytes | None = None) -> None:
        self._shard = shard
        self._number_format = number_format
        self._key = key
        longest = HEADER_BYTES + VALUE_BYTES * min(shard.values_per_chunk, shard.values)
        self.slot_bytes = -(-longest // _ALIGNMENT) * _ALIGNMENT
        self.buffer = bytearray(self.slot_bytes * shard.chunks)
        self._value_counts = _value_counts(shard)
        self.wire_bytes = frame_sizes(shard)
        self.lengths: NDArray[np.int32] = np.array(self._value_counts, np.int32) * VALUE_BYTES + HEADER_BYTES

    def build(self, values: NDArray[np.int32], epoch: int, round_number: int) -> None:
        """Write the packets of a round; `values` are the shard's, contiguous. Nothing may be sending them."""
        payloads = values.astype("<i4", copy=False).data.cast("B")
        slots = memoryview(self.buffer)
        at = 0
        for chunk, value_count in enumerate(self._value_counts):
            header = contribution_header(self._shard, epoch, round_number, chunk, self._number_format)
            payload = payloads[at : at + VALUE_BYTES * value_count]
            write_packet(slots[chunk * self.slot_bytes :], header, payload, self._key)
            at += VALUE_BYTES * value_count


def send_times_ns(wire_bytes: Sequence[int], begin_ns: int, duration_ns: int) -> NDArray[np.int64]:
    """When each frame is due, so that on-wire bytes flow at a constant rate for `duration_ns` from `begin_ns` on.

    A frame is due when its last byte has passed at that rate, as if it came over a line of it: the last one is due at
    the end of the duration. So the plan's last byte and the last frame's are one.
    """
    total = sum(wire_bytes)
    return np.array([begin_ns + duration_ns * passed // total for passed in accumulate(wire_bytes)], np.int64)


def turns_ns(
    frames: Sequence[Sequence[int]], shard: int, copies: int, begin_ns: int, duration_ns: int
) -> NDArray[np.int64]:
    """When each copy of each frame of one shard is due, if all shards of an island share the rate and take turns.

    `frames` has the on-wire bytes of each shard's frames. The order is by chunk, then shard, then copy.
    """
    chunks = max(len(sizes) for sizes in frames)
    order = [
        (number, sizes[chunk])
        for chunk in range(chunks)
        for number, sizes in enumerate(frames)
        if chunk < len(sizes)
        for _ in range(copies)
    ]
    due = send_times_ns([size for _, size in order], begin_ns, duration_ns)
    own: NDArray[np.int64] = due[np.array([number == shard for number, _ in order])]
    return own


def probe_packet(shard: Shard, epoch: int, probe: int, group: str, sent_ns: int, key: bytes | None = None) -> bytes:
    """A probe of the tree of `group`: it carries the group, and when it was sent as two 32-bit halves, low first."""
    header = Header(
        kind=Kind.PROBE,
        source=shard.island_id,
        job=shard.job,
        epoch=epoch,
        round=0,
        shard=shard.number,
        chunk=probe,
        value_count=_PROBE_VALUES,
        number=int.from_bytes(socket.inet_aton(group), "big"),
        bitmap=shard.own_bit,
    )
    out = bytearray(HEADER_BYTES + VALUE_BYTES * _PROBE_VALUES)
    write_packet(memoryview(out), header, sent_ns.to_bytes(VALUE_BYTES * _PROBE_VALUES, "little"), key)
    return bytes(out)


def destination(address: str) -> tuple[str, int]:
    """Where contributions and probes to a group, or to an edge, go."""
    return address, CONTRIBUTION_PORT
