"""Builds three links of one kind in the virtual machine, sends frames through them, and prints figures as JSON.

Times are the machine's own; the caller knows the dilation and judges. Arguments: kind, dilation, and the links to
measure (a-b …); without any, all.
"""

import json
import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "netns" / "links")]

from link_probes import LARGEST, Node, Port, Received, direction, link, send_in_thread, settled  # noqa: E402

from testbed.links.interface import Direction, RunningLinks  # noqa: E402
from testbed.links.kinds import choose_link_kind  # noqa: E402

RATE_MBPS = 100.0
DELAYS_MS = {("a", "b"): 4.0, ("b", "c"): 40.0, ("c", "a"): 92.0}
LOSS = 0.05
PROBES, TRAIN, LOSS_FRAMES = 200, 160, 3000
SMALL = 64


def main(kind_name: str, dilation: float, wanted: list[str]) -> None:
    kind = choose_link_kind(kind_name, [])

    def asked(delay_ms: float, loss: float = 0.0) -> Direction:
        return direction(delay_ms * dilation, RATE_MBPS / dilation, loss=loss, seed=1)

    # Loss on the way back: the way forth stays clean for delay and rate.
    links = [link(a, b, asked(delay), asked(delay, LOSS)) for (a, b), delay in DELAYS_MS.items()]
    nodes = {name: Node(name) for name in "abc"}
    try:
        running = kind.build(links, {name: node.pid for name, node in nodes.items()}, "vm-figures")
        try:
            figures = {
                f"{a}-{b}": {
                    "delay_ms": delay,
                    "probes": PROBES,
                    "delay_error_ns": delay_errors(nodes, a, b, delay * dilation, dilation),
                    "rate_error": rate_error(nodes, a, b, dilation),
                    **loss(running, nodes, b, a, delay * dilation),
                }
                for (a, b), delay in DELAYS_MS.items()
                if not wanted or f"{a}-{b}" in wanted
            }
            print(json.dumps({"kind": kind.name, "warnings": list(running.warnings), "links": figures}))
        finally:
            running.close()
    finally:
        for node in nodes.values():
            node.close()


def delay_errors(nodes: dict[str, Node], a: str, b: str, delay_ms: float, dilation: float) -> list[int]:
    """How much later than asked single frames arrive, transmission time included in what is asked; ascending."""
    sender, receiver = Port(nodes[a], f"to-{b}"), Port(nodes[b], f"to-{a}")
    thread = send_in_thread(sender, PROBES, SMALL, every_s=0.01)
    received = receiver.receive(2 + delay_ms / 1e3, PROBES)
    thread.join()
    close(sender, receiver)
    asked_ns = delay_ms * 1e6 + SMALL * 8e3 / (RATE_MBPS / dilation)
    return sorted(round(one.received_ns - one.sent_ns - asked_ns) for one in received)


def rate_error(nodes: dict[str, Node], a: str, b: str, dilation: float) -> float:
    """By what share a train takes longer than asked: by the median of its spans, so that a stall does not count."""
    sender, receiver = Port(nodes[a], f"to-{b}"), Port(nodes[b], f"to-{a}")
    thread = send_in_thread(sender, TRAIN, LARGEST)
    received: list[Received] = receiver.receive(3, TRAIN)
    thread.join()
    close(sender, receiver)
    half = TRAIN // 2
    spans = [received[n + half].received_ns - received[n].received_ns for n in range(half)]
    asked_ns = half * LARGEST * 8e3 / (RATE_MBPS / dilation)
    return statistics.median(spans) / asked_ns - 1


def loss(
    running: RunningLinks, nodes: dict[str, Node], sender_node: str, receiver_node: str, delay_ms: float
) -> dict[str, int]:
    """How many frames of a lossy direction arrive, and what its counters say."""
    sender, receiver = Port(nodes[sender_node], f"to-{receiver_node}"), Port(nodes[receiver_node], f"to-{sender_node}")
    # Not faster than an emulated processor takes frames: what it drops is no loss of the line.
    thread = send_in_thread(sender, LOSS_FRAMES, SMALL, every_s=0.001)
    received = receiver.receive(2 + delay_ms / 1e3)
    thread.join()
    close(sender, receiver)
    counters = settled(running, (sender_node, receiver_node), LOSS_FRAMES)
    return {
        "sent": LOSS_FRAMES,
        "received": len({one.number for one in received}),
        "dropped_loss": counters.dropped_loss,
        "dropped_queue": counters.dropped_queue,
        "dropped_other": counters.dropped_other,
    }


def close(*ports: Port) -> None:
    for port in ports:
        port.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
