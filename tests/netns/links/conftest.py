"""Nodes for link tests: network namespaces, each held by a small process of its own."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from uuid import uuid4

import pytest
from link_probes import Node, Port, Tap

from testbed.links.delayline import DelayLine
from testbed.links.interface import Link, LinkKind, RunningLinks
from testbed.links.netem import Netem

KINDS: dict[str, type[LinkKind]] = {"delayline": DelayLine, "netem": Netem}


class Bench:
    """Builds links of one kind between fresh nodes, and clears up."""

    def __init__(self, kind: LinkKind) -> None:
        self.kind = kind
        self.run_id = f"test-{uuid4().hex[:8]}"
        self.nodes: dict[str, Node] = {}
        self.takes_seed = True  # of the links built last; kernels before 6.7 have no seed for netem
        self._running: list[RunningLinks] = []
        self._ports: list[Port | Tap] = []

    def node(self, name: str) -> Node:
        if name not in self.nodes:
            self.nodes[name] = Node(name)
        return self.nodes[name]

    @property
    def has_program(self) -> bool:
        """Whether a program of ours carries the frames: it can be stopped, killed, and asked how late it was."""
        return self.kind.name == "delayline"

    def build(self, *links: Link) -> RunningLinks:
        refusal = self.kind.refusal(links)
        if refusal and "is not emulated by" in refusal:
            pytest.skip(refusal)
        pids = {end.node: self.node(end.node).pid for link in links for end in (link.a, link.b)}
        running = self.kind.build(links, pids, self.run_id)
        self.takes_seed = not any("takes no seed" in warning for warning in running.warnings)
        self._running.append(running)
        return running

    def port(self, node: str, neighbour: str) -> Port:
        """A packet socket at a node's end of a link, open until the test ends."""
        port = Port(self.node(node), f"to-{neighbour}")
        self._ports.append(port)
        return port

    def tap(self, node: str, neighbour: str) -> Tap:
        """Sees what leaves a node's end of a link, until the test ends."""
        tap = Tap(self.node(node), f"to-{neighbour}")
        self._ports.append(tap)
        return tap

    def processes(self) -> Sequence[int]:
        """Processes that carry the mark of this run."""
        mark = f"TESTBED_RUN={self.run_id}".encode()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in _environment(pid)]

    def close(self) -> None:
        for port in self._ports:
            port.close()
        for running in self._running:
            running.close()
        for node in self.nodes.values():
            node.close()


@cache
def refusal(kind: str) -> str | None:
    return KINDS[kind]().refusal([])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of a kind that this machine cannot have: skipped here, for pytest to sum them up in one line.

    Those of netem run in tests/vm, on a kernel that has it.
    """
    kind = item.callspec.params.get("bench") if hasattr(item, "callspec") else None
    if kind is not None and (reason := refusal(kind)):
        pytest.skip(reason)


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as variables:
            return variables.read().split(b"\0")
    except OSError:  # it has ended, or is ending
        return []


@pytest.fixture(params=sorted(KINDS))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0:
        pytest.skip("no network namespaces here")
    bench = Bench(KINDS[request.param]())
    try:
        yield bench
    finally:
        bench.close()
