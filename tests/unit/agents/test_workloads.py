import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import agents.workloads
from agents.fixed_point import largest_integer, quantise, scale_exponents
from agents.workloads import load_workload, workload_names
from agents.workloads.digits import Digits, split_unevenly
from agents.workloads.interface import Setting, value_count
from agents.workloads.synthetic import Synthetic, integers

VALUES = 418_018


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    setting = Setting(tmp_path_factory.mktemp("digits"), 1, 9, VALUES)
    Digits().prepare(setting)
    return setting


def test_built_in_workloads_are_found_by_name() -> None:
    assert {"digits", "synthetic"} <= set(workload_names())
    assert load_workload("digits").name == "digits"
    assert load_workload("synthetic").name == "synthetic"


def test_an_unknown_workload_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"^unknown workload 'poems': there are characters, digits, synthetic"
    ) as caught:
        load_workload("poems")
    assert "\n" not in str(caught.value)


def test_a_workload_from_outside_is_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("outside", "agents.workloads.synthetic:Synthetic", "testbed.workloads")
    monkeypatch.setattr(
        agents.workloads,
        "entry_points",
        lambda group, name=None: [point] if group == "testbed.workloads" and name in (None, "outside") else [],
    )
    assert isinstance(load_workload("outside"), Synthetic)
    assert workload_names() == ["characters", "digits", "outside", "synthetic"]


@pytest.mark.parametrize("value", ["agents.workloads.synthetic:Nothing", "agents.workloads.nowhere:Synthetic"])
def test_an_entry_point_that_leads_nowhere_is_named_in_one_line(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("outside", value, "testbed.workloads")
    monkeypatch.setattr(agents.workloads, "entry_points", lambda group, name=None: [point])
    with pytest.raises(ValueError, match=r"^workload outside: .*(Nothing|nowhere)"):
        load_workload("outside")


def test_digits_has_the_tensors_that_fit_the_reference_payload(digits: Setting) -> None:
    tensors = Digits().tensors(digits)
    assert value_count(tensors) == 405_610 < VALUES
    assert [tensor.values for tensor in tensors] == [64 * 600, 600, 600 * 600, 600, 600 * 10, 10]
    assert Digits().island(digits, 0).parameters().shape == (405_610,)


def test_every_picture_goes_to_one_island_and_classes_are_uneven() -> None:
    labels = np.repeat(np.arange(10), 140)
    for seed in range(5):
        parts = split_unevenly(labels, 9, np.random.default_rng(seed))
        assert sorted(np.concatenate(parts).tolist()) == list(range(1400))
        assert min(len(part) for part in parts) >= 32
        shares = np.array([np.bincount(labels[part], minlength=10) / len(part) for part in parts])
        # An even split has a tenth of each class everywhere.
        assert np.abs(shares - 0.1).max(axis=1).min() > 0.05


def test_few_pictures_and_many_islands_leave_none_empty() -> None:
    labels = np.arange(130) % 10
    parts = split_unevenly(labels, 64, np.random.default_rng(3))
    assert sorted(np.concatenate(parts).tolist()) == list(range(130))
    assert min(len(part) for part in parts) == 2


def test_digits_islands_begin_alike_and_train_apart(digits: Setting) -> None:
    one, other = Digits().island(digits, 0), Digits().island(digits, 1)
    before = one.parameters().copy()
    assert before.tobytes() == other.parameters().tobytes()
    one.train(0)
    other.train(0)
    assert one.parameters().dtype == np.float32
    assert not np.array_equal(one.parameters(), before)
    assert not np.array_equal(one.parameters(), other.parameters())


def test_digits_training_follows_from_seed_island_and_round_alone(digits: Setting, tmp_path: Path) -> None:
    again = Setting(tmp_path, digits.seed, digits.islands, digits.payload_values)
    Digits().prepare(again)
    one, other = Digits().island(digits, 4), Digits().island(again, 4)
    for step in range(3):
        one.train(step)
        other.train(step)
    assert one.parameters().tobytes() == other.parameters().tobytes()
    different = Setting(tmp_path, digits.seed + 1, digits.islands, digits.payload_values)
    Digits().prepare(different)
    assert Digits().island(different, 4).parameters().tobytes() != Digits().island(digits, 4).parameters().tobytes()


def test_the_gradient_is_that_of_the_loss(digits: Setting) -> None:
    """Against central differences, along random directions, in float64."""
    trainer = Digits().island(digits, 0)
    for name in ("_flat", "_gradient"):
        setattr(trainer, name, getattr(trainer, name).astype(np.float64))
    pictures = trainer._pictures[:32].astype(np.float64)  # type: ignore[attr-defined]
    labels = trainer._labels[:32]  # type: ignore[attr-defined]

    def loss() -> float:
        outputs = trainer._forward(pictures)[-1]  # type: ignore[attr-defined]
        exponentials = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        chosen = exponentials[np.arange(32), labels] / exponentials.sum(axis=1)
        return float(-np.log(chosen).mean())

    trainer._differentiate(pictures, labels)  # type: ignore[attr-defined]
    flat, gradient = trainer._flat, trainer._gradient  # type: ignore[attr-defined]
    generator = np.random.default_rng(0)
    for _ in range(3):
        direction = generator.standard_normal(len(flat))
        step = 1e-6
        flat += step * direction
        above = loss()
        flat -= 2 * step * direction
        below = loss()
        flat += step * direction
        assert (above - below) / (2 * step) == pytest.approx(gradient @ direction, rel=1e-4)


def test_trainers_do_not_import_scikit_learn(digits: Setting) -> None:
    script = f"""
import sys
from pathlib import Path
import agents.trainer
from agents.workloads import load_workload
from agents.workloads.interface import Setting
trainer = load_workload("digits").island(Setting(Path({str(digits.directory)!r}), 1, 9, {VALUES}), 0)
trainer.train(0)
trainer.evaluate()
print("sklearn" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n", done.stderr


def test_synthetic_fills_the_payload_and_uses_the_whole_headroom(tmp_path: Path) -> None:
    setting = Setting(tmp_path, 5, 9, 10_000)
    workload = Synthetic()
    (tensor,) = workload.tensors(setting)
    assert tensor.values == 10_000
    limit = largest_integer(9)
    drawn = integers(setting, 3, 7)
    assert (drawn.max(), drawn.min()) == (limit, -limit)
    bits = (np.abs(drawn.astype(np.int64))[:, None] >> np.arange(31)) & 1
    assert bits.max(axis=0).tolist() == [1] * 27 + [0] * 4
    # Evenly spread: 10,000 draws are within six standard deviations of the middle.
    assert abs(drawn.mean()) < 6 * limit / np.sqrt(3 * 10_000)


@pytest.mark.parametrize(("clique", "exponent"), [(9, 0), (3, 2), (2, 3), (1, 4)])
def test_synthetic_integers_are_sent_without_loss(tmp_path: Path, clique: int, exponent: int) -> None:
    setting = Setting(tmp_path, 5, 9, 5_000)
    workload = Synthetic()
    trainer = workload.island(setting, 2)
    trainer.train(4)
    assert scale_exponents([workload.tensors(setting)[0].range], clique) == [exponent]
    sent = quantise(trainer.parameters(), np.full(5_000, exponent, np.int32), clique)
    assert sent.integers.tolist() == (integers(setting, 2, 4).astype(np.int64) << exponent).tolist()
    assert (sent.saturated, sent.residual.any()) == (0, False)


def test_synthetic_differs_by_seed_island_and_round_and_repeats(tmp_path: Path) -> None:
    setting = Setting(tmp_path, 5, 9, 1_000)
    drawn = integers(setting, 0, 0).tolist()
    assert integers(setting, 0, 0).tolist() == drawn
    for other in (
        integers(setting, 1, 0),
        integers(setting, 0, 1),
        integers(Setting(tmp_path, 6, 9, 1_000), 0, 0),
    ):
        assert other.tolist() != drawn
    assert [len(integers(Setting(tmp_path, 5, 9, n), 0, 0)) for n in (1, 2)] == [1, 2]
