"""What every link kind must do, for netem, on a kernel that has it: the tests of tests/netns/links, run in the machine.

Only those whose outcome does not depend on how fast the machine is; test_links.py judges times.
"""

from tests.vm.conftest import Note
from tests.vm.machine import Machine

LIMIT_S = 300
TIMED = (
    *("delay_of", "short_delays", "change_of_delay", "change_of_rate"),
    *("spaced", "slow_full_neighbour", "holds_nobody_back"),
)


def test_netem_does_what_every_kind_must(machine: Machine, note: Note) -> None:
    chosen = " and not ".join(["netem", *TIMED])
    command = ["/opt/testbed/venv/bin/python", "-m", "pytest", "-q", "tests/netns/links", "-k", chosen]
    done = machine.run(command, LIMIT_S)
    if done.status == 1:
        # The emulated machine may stall for as long as its host does something else: once more, what failed.
        done = machine.run([*command, "--last-failed"], LIMIT_S)
    assert done.status == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    note(f"conformance of netem: {done.stdout.splitlines()[-1]}")
