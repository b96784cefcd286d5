"""When to ask, and when to ask again: from the round trips and the reordering that were seen."""

_LARGEST_BACKOFF = 4
_SETTLING = 0.999


class RoundTrip:
    """How long an answer takes, smoothed as TCP does it (RFC 6298). Only unambiguous ones should be observed."""

    def __init__(self, guess_ns: int, least_ns: int) -> None:
        """`guess_ns`: how long to wait before anything has been seen; `least_ns`: the shortest wait."""
        self._timeout_ns = guess_ns
        self._least_ns = least_ns
        self._mean_ns: float | None = None
        self._deviation_ns = 0.0

    def observe(self, took_ns: int) -> None:
        if self._mean_ns is None:
            self._mean_ns, self._deviation_ns = float(took_ns), took_ns / 2
        else:
            self._deviation_ns += (abs(took_ns - self._mean_ns) - self._deviation_ns) / 4
            self._mean_ns += (took_ns - self._mean_ns) / 8
        self._timeout_ns = max(self._least_ns, round(self._mean_ns + 4 * self._deviation_ns))

    def timeout_ns(self, asked: int) -> int:
        """How long to wait for an answer after having asked so many times: each time twice as long, up to four.

        Before anything has been seen always the guess, which is long: losses may go on for several requests, as a link
        that loses in bursts stays as it is while hardly anything passes.
        """
        if self._mean_ns is None:
            return self._timeout_ns
        return self._timeout_ns * min(1 << (asked - 1), _LARGEST_BACKOFF)


class Reordering:
    """How much later than its successors a packet came that was not lost: the largest of late, and half as much again.

    It falls slowly, so that a path that has become calm is waited for less.
    """

    def __init__(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self._largest_ns = 0.0

    def observe(self, late_ns: int) -> None:
        self._largest_ns = max(late_ns, self._largest_ns * _SETTLING)

    @property
    def hold_off_ns(self) -> int:
        """How long to wait for a packet that others have overtaken before it counts as lost."""
        return max(self._least_ns, round(1.5 * self._largest_ns))
