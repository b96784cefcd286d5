"""Both link kinds on the real kernel: delay, rate and loss of three links, judged in undilated time.

The emulated machine may stall for as long as its host does something else. So medians and ninetieth percentiles are
judged, never an extreme, and what fails is tried once more.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

from tests.vm.conftest import Note
from tests.vm.machine import Machine

DILATION = 20.0
LIMIT_S = 180
LOSS = 0.05

# Undilated: 6 and 40 ms of the emulated machine's time, of which a hop and a timer take about half a millisecond.
MEDIAN_MS, NINETIETH_MS = 0.3, 2.0
EARLY_MS = 0.05
RATE = 0.01
# Five standard deviations: by chance alone, one in a million fails.
DEVIATIONS = 5


@dataclass(frozen=True)
class Judged:
    figures: list[str]
    wrong: list[str]


@pytest.mark.parametrize("kind", ["netem", "delayline"])
def test_links_have_the_physics_asked_for(machine: Machine, note: Note, kind: str) -> None:
    judged = measure(machine, kind)
    if judged.wrong:
        note(f"{kind}, first try: {'; '.join(judged.wrong)}")
        judged = measure(machine, kind)
    for figure in judged.figures:
        note(figure)
    assert not judged.wrong


def measure(machine: Machine, kind: str) -> Judged:
    command = ["/opt/testbed/venv/bin/python", "tests/vm/guest/link_figures.py", kind, str(DILATION)]
    done = machine.run(command, LIMIT_S)
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == kind
    return judge(document)


def judge(document: dict[str, Any]) -> Judged:
    figures, wrong = [], []
    for name, link in document["links"].items():
        errors = [error_ns / 1e6 / DILATION for error_ns in link["delay_error_ns"]]
        low, median, ninetieth = (errors[int(share * (len(errors) - 1))] for share in (0.1, 0.5, 0.9))
        lost, sent = link["dropped_loss"], link["sent"]
        allowed = DEVIATIONS * math.sqrt(sent * LOSS * (1 - LOSS))
        figures.append(
            f"{document['kind']:9} {link['delay_ms']:4g} ms: delay error p50 {median:+.3f} ms, "
            f"p90 {ninetieth:+.3f} ms; rate error {link['rate_error']:+.3%}; lost {lost} of {sent} at {LOSS:.0%}"
        )
        checks = {
            f"p10 {low:.3f} ms early": low >= -EARLY_MS,
            f"p50 {median:.3f} ms late": median <= MEDIAN_MS,
            f"p90 {ninetieth:.3f} ms late": ninetieth <= NINETIETH_MS,
            f"rate off by {link['rate_error']:.3%}": abs(link["rate_error"]) <= RATE,
            f"{lost} of {sent} lost": abs(lost - sent * LOSS) <= allowed,
            f"{link['received']} received and {lost} lost of {sent}": link["received"] + lost == sent,
            "drops that nobody asked for": link["dropped_queue"] == link["dropped_other"] == 0,
        }
        wrong += [f"{name}: {what}" for what, good in checks.items() if not good]
    return Judged(figures, wrong)
