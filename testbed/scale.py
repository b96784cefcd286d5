"""How full-size networks fit a small machine: rates and sizes are scaled, times are dilated."""

from dataclasses import dataclass

NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Scale:
    """`rate_scale` multiplies rates, payloads and memories; `time_dilation` multiplies times and divides rates.

    Durations at full size and on the emulated network are equal up to the dilation.
    """

    rate_scale: float = 1e-3
    time_dilation: float = 1.0

    def rate_bps(self, rate_gbps: float) -> int:
        """Emulated on-wire rate in bit/s of a full-size rate."""
        return round(rate_gbps * 1e9 * self.rate_scale / self.time_dilation)

    def full_rate_gbps(self, rate_bps: float) -> float:
        """Full-size rate of an emulated one."""
        return rate_bps * self.time_dilation / self.rate_scale / 1e9

    def size_bytes(self, size_gb: float) -> int:
        """Emulated bytes of a full-size amount of data."""
        return round(size_gb * 1e9 * self.rate_scale)

    def full_size_gb(self, size_bytes: float) -> float:
        """Full-size amount of data of emulated bytes."""
        return size_bytes / self.rate_scale / 1e9

    def emulated_ns(self, time_ms: float) -> int:
        """Emulated nanoseconds of an undilated time."""
        return round(time_ms * NS_PER_MS * self.time_dilation)

    def undilated_ms(self, time_ns: float) -> float:
        """Undilated time of emulated nanoseconds."""
        return time_ns / NS_PER_MS / self.time_dilation
