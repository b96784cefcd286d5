"""Plans of a run's policies; those that come up during its rounds are made in a process of their own.

So neither a long search nor a user's policy can hold up a round.

python -m testbed.run.planning --fd N
"""

import argparse
import os
import pickle
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from agents.plugin_file import split_name
from scheduler.errors import SchedulerError, SolverError
from scheduler.plan import Plan
from scheduler.planner import plan as make_plan
from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.policies import find_policy
from testbed.run.processes import pinned_environment, python_command
from testbed.run.settings import RunSettings

TIME_LIMIT_S = 120.0
_STOP_TIMEOUT_S = 3.0
_NICENESS_AHEAD = 19
_LOOK_S = 0.2


def plan_policy(settings: RunSettings, topology: Topology, policy: str) -> Plan:
    """The plan of a policy as the run's settings want it. Raises TestbedError if it cannot run, or SchedulerError."""
    plan = make_plan(
        topology,
        find_policy(policy),
        memory_gb=settings.memory_gb,
        payload_gb=settings.payload_gb,
        multicast="unicast" if settings.copies else "direct",
        aggregation=settings.aggregation,
        trees=settings.trees,
    )
    if not plan.feasible:
        raise TestbedError(f"policy {policy} cannot run with {settings.memory_gb:g} GB: {plan.reason}")
    return plan


@dataclass(frozen=True)
class PlanRequest:
    """A policy, by name or as file:Class, to be planned on a topology as the settings of a run want it."""

    settings: RunSettings
    topology: Topology
    policy: str
    memory_gb: float


class Planner:
    """The planning process; one that ends, or takes too long, is replaced.

    Used by one thread at a time; it ends with the thread that has started it.
    """

    def __init__(self, run_id: str, log_dir: Path) -> None:
        self._run_id = run_id
        self._log = log_dir / "planner.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._given_up = False

    def start(self, ahead: Sequence[PlanRequest] = ()) -> None:
        """Start the process, so that the first plan need not wait for it. Raises OSError.

        What will likely be asked for is planned `ahead`, whenever there is nothing else to do.
        """
        ours, theirs = Pipe()
        command = ["setpriv", "--pdeathsig", "KILL", *python_command(__name__, "--fd", str(theirs.fileno()))]
        with theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=pinned_environment(self._run_id),
                start_new_session=True,
            )
        self._connection = ours
        ours.send(list(ahead))

    def plan(self, request: PlanRequest, time_limit_s: float = TIME_LIMIT_S) -> Plan:
        """The plan of a policy. Raises TestbedError with the reason if there is none."""
        try:
            if self._process is None or self._process.poll() is not None:
                self.stop()
                self.start()
            assert self._connection is not None
            self._connection.send(request)
            deadline = time.monotonic() + time_limit_s
            while not self._connection.poll(_LOOK_S):
                if self._given_up or time.monotonic() > deadline:
                    self.stop()
                    raise TestbedError(f"policy {request.policy}: no plan within {time_limit_s:g} s")
            answer: Plan | str = self._connection.recv()
        except (OSError, EOFError, pickle.PickleError) as error:
            how = self.stop()
            raise TestbedError(
                f"policy {request.policy}: the planning process ended ({how}); see {self._log}"
            ) from error
        if isinstance(answer, str):
            raise TestbedError(answer)
        return answer

    def give_up(self) -> None:
        """From another thread: have `plan` wait no longer."""
        self._given_up = True

    def stop(self) -> str:
        """End the process; returns how it ended. Safe to call twice."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is None:
            return "it was not running"
        try:
            status = process.wait(0.1)  # it may have ended by itself
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait(_STOP_TIMEOUT_S)
        return f"signal {-status}" if status < 0 else f"exit status {status}"


def _answer(request: PlanRequest, known: dict[tuple[str, float, Topology], Plan]) -> Plan | str:
    """The plan, or why there is none. Plans of policies that are no files are `known` from then on."""
    key = request.policy, request.memory_gb, request.topology
    if key in known:
        return known[key]
    settings = replace(request.settings, memory_gb=request.memory_gb)
    try:
        plan = plan_policy(settings, request.topology, request.policy)
    except (TestbedError, SchedulerError, SolverError) as error:
        return str(error)
    except BaseException as error:  # a user's policy may raise anything
        return f"policy {request.policy}: {type(error).__name__}: {error}"
    if split_name(request.policy) is None:
        known[key] = plan
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(description="Plans for a run, which starts it.")
    parser.add_argument("--fd", type=int, required=True, metavar="N", help="inherited socket")
    known: dict[tuple[str, float, Topology], Plan] = {}
    with Connection(parser.parse_args().fd) as run:
        try:
            ahead: list[PlanRequest] = run.recv()
            while True:
                os.setpriority(os.PRIO_PROCESS, 0, _NICENESS_AHEAD)
                while ahead and not run.poll():
                    _answer(ahead.pop(0), known)
                request = run.recv()
                os.setpriority(os.PRIO_PROCESS, 0, 0)
                run.send(_answer(request, known))
        except EOFError:
            return 0


if __name__ == "__main__":
    raise SystemExit(main())
