"""PyTorch models as workloads: the flat array behind a model, loops that yield, and a user's own file."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: vagrant/provision.sh --torch")

from agents.workloads import load_workload
from agents.workloads.characters import CONTEXT, Characters
from agents.workloads.characters import _text as characters_text
from agents.workloads.interface import Setting
from agents.workloads.pytorch import TorchWorkload, flatten, torch
from tests.documentation import python_block


class Line(TorchWorkload):
    """y = w·x + b, learned from two points per island; dropout draws random numbers."""

    name = "line"

    def model(self, setting: Setting) -> Any:
        return torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(1, 1))

    def loop(self, model: Any, setting: Setting, island_id: int) -> Iterator[None]:
        optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        data = torch.utils.data.TensorDataset(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [3.0 + island_id]]))
        for _ in range(6):
            for x, y in torch.utils.data.DataLoader(data, batch_size=1, shuffle=True):
                optimiser.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimiser.step()
                yield

    def evaluate(self, model: Any, setting: Setting) -> dict[str, float]:
        return {"at_one": float(model(torch.ones(1, 1)))}


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, 3, 2, 1000)


def test_parameters_are_views_of_one_array_both_ways() -> None:
    tensors = [torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), torch.nn.Parameter(torch.tensor([5.0]))]
    flat = flatten(tensors)
    assert flat.tolist() == [1, 2, 3, 4, 5]
    flat[2] = 7
    assert tensors[0].tolist() == [[1, 2], [7, 4]]
    with torch.no_grad():
        tensors[1].mul_(2)
    assert flat.tolist() == [1, 2, 7, 4, 10]
    with pytest.raises(ValueError, match="float32"):
        flatten([torch.zeros(1, dtype=torch.float64)])


def test_a_loop_trains_step_by_step_and_goes_on_from_what_is_loaded(setting: Setting) -> None:
    workload = Line()
    one, other = workload.island(setting, 0), workload.island(setting, 0)
    assert [tensor.values for tensor in workload.tensors(setting)] == [1, 1]
    assert one.parameters().tolist() == other.parameters().tolist()
    for step in range(3):
        one.train(step)
        torch.rand(17)  # whatever else draws random numbers in this process
        other.train(step)
    assert one.parameters().tolist() == other.parameters().tolist()
    other.load_parameters(np.array([2.0, 1.0], np.float32))
    assert other.evaluate() == {"at_one": 3.0}
    before = one.parameters().copy()
    one.train(3)
    assert (one.parameters() != before).any()


def test_islands_differ_and_a_loop_that_ends_is_an_error(setting: Setting) -> None:
    workload = Line()
    islands = [workload.island(setting, i) for i in range(2)]
    for island in islands:
        for step in range(12):
            island.train(step)
    assert islands[0].parameters().tolist() != islands[1].parameters().tolist()
    with pytest.raises(ValueError, match="the loop of workload line ended before step 12"):
        islands[0].train(12)


@pytest.mark.parametrize("said", ["Numpy is not available", "Could not infer dtype of numpy.float32"])
def test_an_older_pytorch_without_arrays_says_the_way_out(
    said: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_arrays(*_arguments: Any) -> Iterator[None]:
        raise RuntimeError(said)
        yield

    monkeypatch.setattr(Line, "loop", no_arrays)
    with pytest.raises(ValueError, match=r"use torch.tensor\(array.tolist\(\)\)"):
        Line().island(setting, 0).train(0)
    monkeypatch.setattr(Line, "evaluate", lambda *_arguments: torch.linalg.inv(torch.zeros(1, 1)))
    with pytest.raises(RuntimeError, match="singular"):
        Line().island(setting, 0).evaluate()


def test_characters_are_predicted_better_and_better(tmp_path: Path) -> None:
    setting = Setting(tmp_path, 1, 9, 418_018)
    workload = Characters()
    workload.prepare(setting)
    assert sum(tensor.values for tensor in workload.tensors(setting)) < 100_000
    trainer = workload.island(setting, 4)
    untrained = trainer.evaluate()["loss"]
    assert abs(untrained - np.log(len(set(characters_text())))) < 1.0
    for step in range(60):
        trainer.train(step)
    assert trainer.evaluate()["loss"] < untrained - 1.0
    assert CONTEXT > 1


def test_a_file_is_loaded_and_what_is_wrong_with_it_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from agents.workloads.synthetic import Synthetic as Mine\n1 / 1\n", encoding="utf-8")
    assert load_workload(f"{file}:Mine").name == "synthetic"
    for name, message in (
        (f"{file}:Yours", "it has no 'Yours'"),
        (f"{tmp_path}/none.py:Mine", "there is no such file"),
        ("poems", "there are characters, digits, synthetic, or path/file.py:Name"),
    ):
        with pytest.raises(ValueError, match=message):
            load_workload(name)


def test_the_documented_module_trains_two_islands_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "waves.py").write_text(python_block("workloads.md"), encoding="utf-8")
    command = [sys.executable, "-m", "agents.reference", "--workload", f"{tmp_path}/waves.py:Waves", "--islands", "2"]
    command += ["--seed", "1", "--rounds", "200", "--values", "1000", "--values-per-chunk", "100"]
    done = subprocess.run(
        [*command, "--schedule", "[[[0,1]]]"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    outcome = json.loads(done.stdout)
    assert [len(set(digests)) for digests in outcome["digests"]] == [1] * 200
    assert max(evaluation["loss"] for evaluation in outcome["evaluations"]) < 0.1


def test_without_pytorch_the_way_out_is_named() -> None:
    script = textwrap.dedent("""
        import sys
        sys.modules["torch"] = None
        from agents.workloads import load_workload
        try:
            load_workload("characters")
        except ValueError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "workload characters: needs PyTorch: vagrant/provision.sh --torch installs Debian's\n"
