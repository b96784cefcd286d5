"""The words of the control protocol (control.h) as the link interface's dataclasses, and back."""

from collections.abc import Mapping

from testbed.links.interface import Bursts, Direction, DirectionCounters, Lateness

_NO_BURSTS = Bursts(enter=0.0, leave=0.0, loss=0.0, loss_outside=0.0)
# Never physics: the machine could not keep up, or a frame was too long.
_DROPPED_OTHER = ("dropped_overflow", "dropped_room", "dropped_send", "dropped_cut")


def settings(direction: Direction) -> dict[str, int | float]:
    """A direction as the parameters of the command `set`."""
    bursts = direction.bursts or _NO_BURSTS
    return {
        "delay_ns": direction.one_way_delay_ns,
        "rate_bps": direction.rate_bps,
        "queue_bytes": direction.queue_bytes,
        "loss": float(direction.loss),
        "seed": direction.seed,
        "jitter_ns": direction.jitter_ns,
        "reorder": int(direction.reorder),
        "duplicate": float(direction.duplicate),
        "corrupt": float(direction.corrupt),
        "burst_enter": float(bursts.enter),
        "burst_leave": float(bursts.leave),
        "burst_loss": float(bursts.loss),
        "burst_loss_outside": float(bursts.loss_outside),
    }


def parse_direction(row: Mapping[str, str]) -> Direction:
    """A direction from the answer to `set`, which gives all of it."""
    bursts = Bursts(
        enter=float(row["burst_enter"]),
        leave=float(row["burst_leave"]),
        loss=float(row["burst_loss"]),
        loss_outside=float(row["burst_loss_outside"]),
    )
    return Direction(
        one_way_delay_ns=int(row["delay_ns"]),
        rate_bps=int(row["rate_bps"]),
        queue_bytes=int(row["queue_bytes"]),
        loss=float(row["loss"]),
        seed=int(row["seed"]),
        jitter_ns=int(row["jitter_ns"]),
        reorder=row["reorder"] == "1",
        duplicate=float(row["duplicate"]),
        corrupt=float(row["corrupt"]),
        bursts=None if bursts == _NO_BURSTS else bursts,
    )


def parse_counters(row: Mapping[str, str]) -> DirectionCounters:
    """Counters from a row of the answer to `counters`."""
    return DirectionCounters(
        frames_in=int(row["frames_in"]),
        bytes_in=int(row["bytes_in"]),
        frames_out=int(row["frames_out"]),
        bytes_out=int(row["bytes_out"]),
        dropped_queue=int(row["dropped_queue"]),
        dropped_loss=int(row["dropped_loss"]),
        dropped_other=sum(int(row[name]) for name in _DROPPED_OTHER),
        queue_high_water_bytes=int(row["queue_high_water_bytes"]),
        worst_lateness_ns=int(row["worst_lateness_ns"]),
        dropped_down=int(row["dropped_down"]),
        duplicated=int(row["duplicated"]),
        corrupted=int(row["corrupted"]),
        reordered=int(row["reordered"]),
        lateness=_lateness(row["lateness"]),
    )


def bucket_bound_ns(bucket: int) -> int:
    """The upper bound of a bucket of histogram.h: eight buckets per power of two."""
    if bucket < 8:
        return bucket
    exponent, step = bucket // 8 - 1, bucket % 8
    return (8 + step + 1 << exponent) - 1


def _lateness(text: str) -> Lateness:
    """A histogram from "bucket:frames,…"."""
    pairs = (pair.split(":") for pair in text.split(",") if pair)
    return Lateness(tuple((bucket_bound_ns(int(bucket)), int(frames)) for bucket, frames in pairs))
