from collections.abc import Sequence

from typing_extensions import Buffer

class Pacer:
    """Sends datagrams on a UDP socket, each at its own CLOCK_MONOTONIC time, from a native thread.

    The thread runs under SCHED_FIFO at `priority` where that is allowed (`realtime` says so; 0: not asked for), with a
    timer slack of 1 ns. All that is due goes into one sendmmsg. What the kernel refuses for now (a full socket buffer
    or device queue) is sent again and counted in `retries`; any other error ends the sending and stays in `error`.
    What is late catches up at once, but at most `most_catch_up_ns` of the schedule, unless that is negative: after a
    longer stall the rest of the schedule moves, at the pace it had. Raises OSError if `fd` is not open, ValueError for
    a priority that does not exist.
    """

    def __init__(self, fd: int, priority: int, most_catch_up_ns: int = -1) -> None: ...
    @property
    def realtime(self) -> bool: ...
    @property
    def done_fd(self) -> int:
        """An eventfd: readable once all is sent, cancelled or failed; start() makes it unreadable again."""

    @property
    def running(self) -> bool: ...
    @property
    def sent(self) -> int:
        """How many datagrams of the last start() the kernel has taken: the first `sent` of them."""

    @property
    def retries(self) -> int: ...
    @property
    def error(self) -> int:
        """Error number (errno) that ended the last start() early, or 0."""

    def start(
        self,
        buffer: Buffer,
        slot_bytes: int,
        lengths: Buffer,
        times_ns: Buffer,
        destinations: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Send buffer[i·slot_bytes : i·slot_bytes + lengths[i]] at times_ns[i], for every i; returns at once.

        Without `destinations` the socket must be connected. With n of them, (IPv4 address, port), a copy of each
        datagram goes to each: copy j of datagram i at times_ns[i·n + j].

        `lengths` is an int32 array and `times_ns` an int64 array that never falls; both are copied. `buffer` is held
        until the next start() or close() and must not change while sending. Raises ValueError for arrays that do not
        fit together, RuntimeError while an earlier start() is still sending.
        """

    def lateness_ns(self) -> memoryview[int]:
        """Send call minus due time of each datagram sent, in nanoseconds, as int64."""

    def cancel(self) -> None:
        """Send no more. Returns when the thread is idle."""

    def close(self) -> None:
        """Cancel, end the thread and release everything. Safe to call twice; other calls then raise ValueError."""
