"""How much the islands train, and when: steps of an emulated accelerator, the same number on all islands.

Without overlap a round's steps come before its exchange. With overlap training never waits: a round carries the state
that was there at its start, and steps go on while it is under way. How many go with which round follows from the plan
alone, never from how fast this machine is, so that the same training can be done without a network.
"""

from dataclasses import dataclass

from testbed.run.program import Epoch
from testbed.run.settings import TrainingSettings
from testbed.scale import Scale

# Undilated: what this machine takes, with overlap, from the last byte of a round to the start of the next: averaging,
# contributions, packets, checks, the margin of the announced start. In the field it would be little; training goes on.
BARRIER_MS = 250.0


@dataclass(frozen=True)
class Work:
    """Steps for every island: `steps` of them from `first_step` on, which last until `done_ns` (CLOCK_MONOTONIC)."""

    first_step: int
    steps: int
    done_ns: int


class Pace:
    """Hands out the steps of a run, round by round."""

    def __init__(self, training: TrainingSettings, scale: Scale) -> None:
        self.overlap = training.overlap
        self.step_ns = scale.emulated_ns(training.step_ms)
        self._fixed = training.steps_per_round
        self._barrier_ns = scale.emulated_ns(BARRIER_MS)
        self._next_step = 0
        self._planned_ns = 0  # from the start of the first round to that of the next one

    @property
    def set_training_s(self) -> float:
        """How long a set number of steps lasts; 0 where they fill what time there is."""
        return (self._fixed or 0) * self.step_ns / 1e9

    def period_ns(self, epoch: Epoch) -> int:
        """The planned time from a round's start to the next one's."""
        if not self.overlap:
            return epoch.period_ns
        packetisation_ns = max(phase.packetisation_ns for phase in epoch.phases)
        exchange_ns = epoch.period_ns + packetisation_ns + self._barrier_ns
        return max(exchange_ns, (self._fixed or 0) * self.step_ns + self._barrier_ns)

    def next_work(self, begin_ns: int, epoch: Epoch) -> Work:
        """The steps of a further round, which begin at `begin_ns`: with overlap, the round's start.

        With overlap they end a barrier's time before the next round starts. A step that would end later is the next
        round's, and has begun in this one; what the exchange brings meanwhile counts as if it had come before the step.
        """
        first = self._next_step
        if self._fixed is not None:
            self._next_step += self._fixed
            return Work(first, self._fixed, begin_ns + self._fixed * self.step_ns)
        round_began_ns = self._planned_ns
        self._planned_ns += self.period_ns(epoch)
        self._next_step = max((self._planned_ns - self._barrier_ns) // self.step_ns, first)
        return Work(first, self._next_step - first, begin_ns + self._next_step * self.step_ns - round_began_ns)
