"""What the link kind `delayline` costs and how exact it is on this machine. Run as root:

python tests/bench/bench_delayline.py [delay] [rate] [throughput] [nine]
"""

import os
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "netns" / "links")]

from conftest import Bench  # noqa: E402
from frame_source import Load, Sink, hogs, open_load_socket, processor_seconds, tick_seconds  # noqa: E402
from link_probes import PROBE_TYPE, Node, Tap, direction, link, send_in_thread, settled  # noqa: E402

from testbed.links.delayline import DelayLine  # noqa: E402
from testbed.links.delayline.sizes import MOST_RATE_BPS  # noqa: E402
from testbed.links.interface import Lateness, Link, RunningLinks, default_queue_bytes  # noqa: E402
from testbed.links.veth import PairEnd, bring_up, make_pairs  # noqa: E402

NINE_CITY = {
    "nyc-chi": 10, "chi-lax": 28.5, "nyc-lax": 36.5, "lon-ams": 4, "lon-fra": 7, "ams-fra": 4, "tyo-hkg": 28.5,
    "hkg-sin": 20, "tyo-sin": 40, "nyc-lon": 40, "nyc-ams": 46, "lax-tyo": 58, "lax-hkg": 82.5, "fra-sin": 92,
}  # fmt: skip


@contextmanager
def bench() -> Iterator[Bench]:
    made = Bench(DelayLine())
    try:
        yield made
    finally:
        made.close()


def open_load(bench: Bench, node: str, neighbour: str, receives: bool = False) -> socket.socket:
    return bench.node(node).open(lambda: open_load_socket(f"to-{neighbour}", receives))


def us(ns: float) -> str:
    return f"{ns / 1000:.0f}"


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def process_of(bench: Bench) -> int:
    (pid,) = bench.processes()
    return pid


def measure_delay() -> None:
    print("\nDelay error of a 30 ms link over 10,000 probes, in us (kernel stamps at both ends)")
    print(f"{'state':34}{'min':>6}{'median':>8}{'p99':>7}{'p99.9':>8}{'max':>8}{'line, cores':>13}")
    for name, size, busy in (
        ("idle", 0, 0),
        ("50,000 frames/s of 1500 bytes", 1514, 0),
        ("50,000 frames/s of 9000 bytes", 9014, 0),
        ("both processors busy", 0, 2),
    ):
        with bench() as b:
            load = direction(30.0, 4000)
            b.build(link("a", "b", direction(30.0)), link("c", "d", load), link("e", "f", load))
            sender, receiver = b.port("a", "b"), b.port("b", "a")
            tap = Tap(b.node("a"), "to-b")
            loads = []
            if size:
                sockets = [open_load(b, "c", "d"), open_load(b, "e", "f")]
                loads = [Load(sockets, size, 50_000, 12)]
            processes = hogs(busy)
            time.sleep(0.5)
            used, began = processor_seconds(process_of(b)), time.monotonic()
            thread = send_in_thread(sender, 10_000, every_s=0.0009)
            received = receiver.receive(1.0, 10_000)
            cores = (processor_seconds(process_of(b)) - used) / (time.monotonic() - began)
            thread.join()
            for process in processes:
                process.terminate()
            for one in loads:
                one.finish()
            sent = tap.stamps()
            serialisation = 480
            errors = [r.received_ns - sent[r.number] - 30_000_000 - serialisation for r in received]
            print(
                f"{name:34}{us(min(errors)):>6}{us(statistics.median(errors)):>8}{us(quantile(errors, 0.99)):>7}"
                f"{us(quantile(errors, 0.999)):>8}{us(max(errors)):>8}{cores:>13.2f}"
                + (f"   {10_000 - len(received)} lost" if len(received) < 10_000 else "")
            )


def measure_rate() -> None:
    print("\nRate of back-to-back frames, sent at twice the rate asked: median over windows of 100, and spacing in us")
    print(f"{'asked':>14}{'frames':>8}{'bytes':>7}{'error':>10}{'p01':>8}{'p99':>8}")
    for rate_mbps, size, seconds in (
        (0.1, 64, 1.0),
        (1, 1514, 2.0),
        (10, 9014, 1.0),
        (100, 9014, 1.0),
        (1000, 9014, 0.3),
        (1000, 1514, 0.3),
        (2000, 9014, 0.2),
        (4000, 9014, 0.1),
        (6000, 9014, 0.1),
        (10000, 9014, 0.05),
    ):
        with bench() as b:
            running = b.build(link("a", "b", direction(10.0, rate_mbps, 200_000_000)))
            receiver = b.port("b", "a")
            sender = open_load(b, "a", "b")
            sent = Load([sender], size, 2 * rate_mbps * 1e6 / 8 / size, seconds, PROBE_TYPE).finish()
            stamps = [one.received_ns for one in receiver.receive(1.0)]
            spacing = size * 8e3 / rate_mbps
            gaps = [later - earlier - spacing for earlier, later in pairwise(stamps)]
            # A sender that is held up leaves the line idle for a while: not the line's fault.
            windows = [stamps[n + 100] - stamps[n] for n in range(0, len(stamps) - 100, 100)]
            error = 100 * spacing / statistics.median(windows) - 1
            print(
                f"{rate_mbps:>9g} Mb/s{len(stamps):>8}{size:>7}{100 * error:>9.3f}%{us(quantile(gaps, 0.01)):>8}"
                f"{us(quantile(gaps, 0.99)):>8}"
                + (f"   of {sent} sent: {running.counters()['a', 'b']}" if len(stamps) < sent else "")
            )


def plain_veth(size: int, seconds: float) -> tuple[float, float, float]:
    """What a sender and a receiver do through a veth pair with nothing in between.

    Frames per second that arrive, and processor time per frame, in us, of sender and receiver.
    """
    a, b = Node("a"), Node("b")
    try:
        make_pairs([(PairEnd("to-b", a.pid), PairEnd("to-a", b.pid))])
        bring_up(a.pid, ["to-b"])
        bring_up(b.pid, ["to-a"])
        out, into = a.open(lambda: open_load_socket("to-b")), b.open(lambda: open_load_socket("to-a", receives=True))
        sink, load = Sink(into, size), Load([out], size, 2_000_000, seconds)
        sent, received = load.finish(), sink.finish()
        return received / seconds, load.used_ns / 1e3 / sent, sink.used_ns / 1e3 / received
    finally:
        a.close()
        b.close()


@dataclass(frozen=True)
class Passage:
    """`costs_us`: processor time per frame of sender, line and receiver. `missed`: by the receiver, of what came."""

    frames_per_s: float
    lost: int
    missed: int
    late_p99_ns: int
    costs_us: tuple[float, float, float]


def through_link(size: int, frames_per_s: float, seconds: float) -> Passage:
    with bench() as b:
        running = b.build(link("a", "b", direction(30.0, MOST_RATE_BPS / 1e6, 100_000_000)))
        sink = Sink(open_load(b, "b", "a", receives=True), size)
        pid = process_of(b)
        used = processor_seconds(pid)
        load = Load([open_load(b, "a", "b")], size, frames_per_s, seconds)
        sent = load.finish()
        counters = settled(running, ("a", "b"), sent)
        line_ns = (processor_seconds(pid) - used) * 1e9
        lost = counters.dropped_other + counters.dropped_queue + sent - counters.frames_in
        missed = counters.frames_out - sink.finish()
        costs = (load.used_ns / 1e3 / sent, line_ns / 1e3 / sent, sink.used_ns / 1e3 / sent)
        return Passage(sent / seconds, lost, missed, counters.lateness.quantile_ns(0.99), costs)


def measure_throughput() -> None:
    print("\nFrames/s through one link of 30 ms; sender, line and receiver share the processors")
    for size in (1514, 9014):
        plain, sending, receiving = plain_veth(size, 2.0)
        print(
            f"{size - 14} bytes: plain veth pair {plain / 1000:.0f} kf/s; "
            f"us of processor time per frame: sender {sending:.1f}, receiver {receiving:.1f}"
        )
        for share in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9):
            seen = through_link(size, share * plain, 2.0)
            print(
                f"  asked {100 * share:.0f} %: {seen.frames_per_s / 1000:.0f} kf/s "
                f"({100 * seen.frames_per_s / plain:.0f} %), lost in the line {seen.lost}, lateness p99 "
                f"{us(seen.late_p99_ns)} us, missed by the receiver {seen.missed}; us per frame: sender "
                f"{seen.costs_us[0]:.1f}, line {seen.costs_us[1]:.1f}, receiver {seen.costs_us[2]:.1f}; "
                f"two processors at most {2e3 / sum(seen.costs_us):.0f} kf/s"
            )


def nine_city_links(rate_mbps: int) -> list[Link]:
    queue_bytes = default_queue_bytes(rate_mbps * 1_000_000)
    core = [link(*name.split("-"), direction(ms, rate_mbps, queue_bytes)) for name, ms in NINE_CITY.items()]
    cities = sorted({end.node for one in core for end in (one.a, one.b)})
    return core + [link(city, city + "-e", direction(0.1, rate_mbps, queue_bytes)) for city in cities]


def measure_nine_cities() -> None:
    print(
        "\nNine cities: 60,000 frames/s of 9000 bytes over all directions of 14 core and 9 access links at 200 Mbit/s"
    )
    for _ in range(2):
        with bench() as b:
            links = nine_city_links(200)
            ends = [(x, y) for one in links for x, y in ((one.a, one.b), (one.b, one.a))]
            for end, _ in ends:
                b.node(end.node)
            began = time.monotonic()
            running: RunningLinks = b.build(*links)
            built_ms = 1000 * (time.monotonic() - began)
            sockets = [open_load(b, x.node, y.node) for x, y in ends]
            pid = process_of(b)
            used = processor_seconds(pid)
            time.sleep(2)
            idle = (processor_seconds(pid) - used) / 2
            used, ticks = processor_seconds(pid), tick_seconds(pid)
            sent = Load(sockets, 9014, 60_000, 5).finish()
            cores, by_ticks = (processor_seconds(pid) - used) / 5, (tick_seconds(pid) - ticks) / 5
            time.sleep(0.5)
            counters = running.counters().values()
            lost = sent - sum(c.frames_out for c in counters)
            together: Counter[int] = Counter()
            for c in counters:
                together.update(dict(c.lateness.buckets))
            p99 = Lateness(tuple(sorted(together.items()))).quantile_ns(0.99)
            print(
                f"  built in {built_ms:.0f} ms; idle {idle:.3f} cores; sent {sent / 5000:.1f} kf/s, lost {lost}, "
                f"lateness p99 {us(p99)} us, max {us(max(c.worst_lateness_ns or 0 for c in counters))} us, "
                f"line {cores:.2f} cores ({by_ticks:.2f} by ticks)"
            )


PARTS = {
    "delay": measure_delay,
    "rate": measure_rate,
    "throughput": measure_throughput,
    "nine": measure_nine_cities,
}

if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - set(PARTS):
        sys.exit(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    os.nice(-15)  # what else runs on this machine is not to be measured
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
