"""How many steps go with which round, and how long they last."""

from testbed.run.pace import BARRIER_MS, Pace, Work
from testbed.run.program import Epoch, Phase
from testbed.run.settings import TrainingSettings
from testbed.scale import Scale
from tests.unit.testbed.plans import make_plan

T_MS, PACKETS_MS = 565.0, 4.0
PERIOD_MS = T_MS + PACKETS_MS + BARRIER_MS


def epoch_of(scale: Scale) -> Epoch:
    phase = Phase(((),), scale.emulated_ns(T_MS), scale.emulated_ns(PACKETS_MS), {}, 0, 0)
    return Epoch(0, make_plan([[]], T_MS), scale.emulated_ns(T_MS), (phase,), {}, {}, scale, ())


def test_without_overlap_steps_come_one_after_the_other() -> None:
    pace = Pace(TrainingSettings(step_ms=200.0, local_steps=3), Scale())
    epoch = epoch_of(Scale())
    assert pace.period_ns(epoch) == epoch.period_ns
    assert pace.next_work(1_000, epoch) == Work(0, 3, 600_001_000)
    assert pace.next_work(5_000, epoch) == Work(3, 3, 600_005_000)


def test_one_step_goes_with_a_round_unless_something_else_is_said() -> None:
    assert Pace(TrainingSettings(), Scale()).next_work(0, epoch_of(Scale())) == Work(0, 1, 200_000_000)
    untimed = Pace(TrainingSettings(overlap=True, step_ms=0.0), Scale())
    assert untimed.next_work(7, epoch_of(Scale())) == Work(0, 1, 7)


def test_with_overlap_steps_fill_the_time_whatever_the_dilation() -> None:
    for scale in (Scale(), Scale(time_dilation=3.0)):
        pace, epoch = Pace(TrainingSettings(overlap=True), scale), epoch_of(scale)
        assert pace.period_ns(epoch) == scale.emulated_ns(PERIOD_MS)
        begins_ns, step_ns = 0, scale.emulated_ns(200)
        works = []
        for _ in range(40):
            work = pace.next_work(begins_ns, epoch)
            begins_ns += pace.period_ns(epoch)
            # Every step lasts step_ns, without a gap from the first round to the last, and is over before the next.
            assert work.done_ns == (work.first_step + work.steps) * step_ns
            assert begins_ns - scale.emulated_ns(BARRIER_MS) - step_ns < work.done_ns
            assert work.done_ns <= begins_ns - scale.emulated_ns(BARRIER_MS)
            works.append(work)
        assert [work.first_step for work in works[1:]] == [work.first_step + work.steps for work in works[:-1]]
        assert sum(work.steps for work in works) == int((40 * PERIOD_MS - BARRIER_MS) / 200)


def test_a_round_waits_for_a_set_number_of_steps() -> None:
    pace, epoch = Pace(TrainingSettings(overlap=True, local_steps=10), Scale()), epoch_of(Scale())
    assert pace.period_ns(epoch) == Scale().emulated_ns(2_000 + BARRIER_MS)
    assert pace.next_work(5, epoch) == Work(0, 10, 2_000_000_005)
    assert pace.set_training_s == 2.0


def test_a_round_too_short_for_a_step_has_none() -> None:
    pace, epoch = Pace(TrainingSettings(overlap=True, step_ms=1_500.0), Scale()), epoch_of(Scale())
    assert [pace.next_work(0, epoch).steps for _ in range(6)] == [0, 0, 1, 1, 0, 1]
