"""PyTorch models as workloads: write a model and a training loop that yields after each step (docs/workloads.md).

The model's parameters are moved into one flat numpy array, which is what islands exchange, so a mean that is loaded is
in the model at once, whatever holds its tensors: an optimiser, or other modules. Buffers, such as the running
statistics of batch normalisation, and the optimiser's state stay on the island.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.workloads.interface import Parameters, Setting, Tensor, Trainer


@contextlib.contextmanager
def _nothing_on_standard_error() -> Iterator[None]:
    """Neither from Python nor from native code."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _import_torch() -> Any:
    """Raises ImportError, with the way out."""
    # Debian's PyTorch is built for an older numpy. It says so at length and does without, and so do we.
    with _nothing_on_standard_error():
        try:
            import torch  # noqa: PLC0415
        except ImportError as error:
            raise ImportError("needs PyTorch: vagrant/provision.sh --torch installs Debian's") from error
        # With several threads the order of additions depends on how many there are.
        torch.set_num_threads(1)
    return torch


torch = _import_torch()
_WITHOUT_NUMPY = ("Numpy is not available", "Could not infer dtype of numpy")


def _load_what_training_needs() -> None:
    """Newer PyTorch loads seconds' worth of modules at its first optimiser: not in the middle of a round."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], 0.1)
    parameter.sum().backward()
    optimiser.step()
    optimiser.zero_grad()


class TorchWorkload:
    """A workload made of a model and a loop; a subclass has a `name`, and `model` and `loop`."""

    name = "torch"

    def prepare(self, setting: Setting) -> None:
        """Leave data in `setting.directory`, once, for all islands' loops; by default there is none."""

    def model(self, setting: Setting) -> Any:
        """A new `torch.nn.Module`, seeded alike on all islands by the run."""
        raise NotImplementedError

    def loop(self, model: Any, setting: Setting, island_id: int) -> Iterator[None]:
        """Train `model` on the island's data, and `yield` after each step, for ever.

        Before each step PyTorch's random numbers are seeded anew from seed, island and step.
        """
        raise NotImplementedError

    def evaluate(self, model: Any, setting: Setting) -> Mapping[str, float]:
        """Measures of the model, such as `loss` or `accuracy`."""
        return {}

    def ranges(self, model: Any) -> Sequence[float]:
        """The largest magnitude to expect of each parameter: by default 1, or four times the largest initial one."""
        return [max(1.0, 4 * float(parameter.detach().abs().max())) for parameter in model.parameters()]

    def tensors(self, setting: Setting) -> Sequence[Tensor]:
        model = self._seeded_model(setting)
        named = zip(model.named_parameters(), self.ranges(model), strict=True)
        return [Tensor(name, parameter.numel(), largest) for (name, parameter), largest in named]

    def island(self, setting: Setting, island_id: int) -> Trainer:
        _load_what_training_needs()
        return TorchTrainer(self, self._seeded_model(setting), setting, island_id)

    def _seeded_model(self, setting: Setting) -> Any:
        torch.manual_seed(setting.seed)
        return self.model(setting)


class TorchTrainer:
    """One island: the model, the flat array that holds its parameters, and the loop as far as it has come."""

    def __init__(self, workload: TorchWorkload, model: Any, setting: Setting, island_id: int) -> None:
        self._workload = workload
        self._model = model
        self._setting = setting
        self._island_id = island_id
        self._flat = flatten(list(model.parameters()))
        self._loop = workload.loop(model, setting, island_id)

    def parameters(self) -> Parameters:
        return self._flat

    def load_parameters(self, parameters: Parameters) -> None:
        self._flat[:] = parameters

    def train(self, step: int) -> None:
        self._model.train()
        sequence = np.random.SeedSequence([self._setting.seed, self._island_id, step])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        try:
            with _arrays_explained():
                next(self._loop)
        except StopIteration:
            raise ValueError(f"the loop of workload {self._workload.name} ended before step {step}") from None

    def evaluate(self) -> Mapping[str, float]:
        self._model.eval()
        with torch.no_grad(), _arrays_explained():
            return self._workload.evaluate(self._model, self._setting)


@contextlib.contextmanager
def _arrays_explained() -> Iterator[None]:
    """Say the way out where Debian's PyTorch only says that it does without numpy. Raises ValueError."""
    try:
        yield
    except RuntimeError as error:
        if not any(said in str(error) for said in _WITHOUT_NUMPY):
            raise
        raise ValueError(
            "this PyTorch was built for an older numpy, so it cannot take or give arrays: use "
            "torch.tensor(array.tolist()) and tensor.tolist(), or install a newer PyTorch (docs/workloads.md)"
        ) from error


def flatten(tensors: Sequence[Any]) -> NDArray[np.float32]:
    """Move float32 tensors into one array, end to end, and leave them views of it. Raises ValueError for others."""
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        raise ValueError("the parameters of a model must be float32")
    flat: NDArray[np.float32] = np.zeros(sum(tensor.numel() for tensor in tensors), np.float32)
    shared, at = torch.frombuffer(flat, dtype=torch.float32), 0
    for tensor in tensors:
        part = shared[at : at + tensor.numel()].view(tensor.shape)
        part.copy_(tensor.detach())
        tensor.data = part
        at += tensor.numel()
    return flat
