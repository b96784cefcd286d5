"""Handwritten digits: a multi-layer perceptron, 64-600-600-10, trained by local SGD on scikit-learn's digits.

1797 pictures of 8×8 pixels; a fifth, stratified by class, is for testing and common to all islands. The rest is split
unevenly: each class is dealt out to the islands in shares drawn from a Dirichlet distribution. Islands train a few
minibatches per step on their own part only, with momentum that never leaves the island. Each time a picture is
used its pixels (0 to 1) get fresh noise, which a network this large needs to generalise from so few pictures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agents.workloads.interface import Parameters, Setting, Tensor, Trainer

LAYERS = (64, 600, 600, 10)
CLASSES = LAYERS[-1]
WEIGHT_RANGE = 4.0
BIAS_RANGE = 4.0
TEST_SHARE = 5
CONCENTRATION = 1.0
BATCHES_PER_STEP = 16
BATCH = 32
LEARNING_RATE = 0.1
MOMENTUM = 0.9
NOISE = 0.2
_FILE = "digits.npz"

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Layer:
    weights: Floats
    bias: Floats


def _tensors() -> list[Tensor]:
    tensors = []
    for number, (inputs, outputs) in enumerate(pairwise(LAYERS), 1):
        tensors += [
            Tensor(f"weights{number}", inputs * outputs, WEIGHT_RANGE),
            Tensor(f"bias{number}", outputs, BIAS_RANGE),
        ]
    return tensors


def _layers(flat: Floats) -> list[_Layer]:
    """The flat parameters as layers, without a copy."""
    layers, at = [], 0
    for inputs, outputs in pairwise(LAYERS):
        weights = flat[at : at + inputs * outputs].reshape(inputs, outputs)
        at += inputs * outputs
        layers.append(_Layer(weights, flat[at : at + outputs]))
        at += outputs
    return layers


def split_unevenly(labels: Integers, islands: int, generator: np.random.Generator) -> list[Integers]:
    """Deal the pictures out to the islands, class by class, in shares drawn from Dirichlet(CONCENTRATION).

    Returns the indices of each island's pictures; every picture goes to exactly one island. An island that would get
    fewer than a batch takes from the largest, so that all can train.
    """
    parts: list[list[int]] = [[] for _ in range(islands)]
    for label in range(CLASSES):
        indices = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(islands, CONCENTRATION))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64)
        for part, piece in zip(parts, np.split(indices, cuts), strict=True):
            part.extend(piece.tolist())
    enough = min(BATCH, len(labels) // islands)
    for part in parts:
        while len(part) < enough:
            part.append(max(parts, key=len).pop())
    return [np.array(part, np.int64) for part in parts]


class DigitsTrainer:
    """One island's model, its part of the pictures, and its place in them."""

    def __init__(self, setting: Setting, island_id: int) -> None:
        with np.load(setting.directory / _FILE) as data:
            mine = np.split(data["parts"], data["cuts"])[island_id]
            self._pictures: Floats = data["pictures"][mine]
            self._labels: Integers = data["labels"][mine]
            self._test_pictures: Floats = data["test_pictures"]
            self._test_labels: Integers = data["test_labels"]
            self._flat: Floats = data["initial"].copy()
        self._momentum = np.zeros_like(self._flat)
        self._gradient = np.zeros_like(self._flat)
        self._seed = [setting.seed, island_id]

    def parameters(self) -> Parameters:
        return self._flat

    def load_parameters(self, parameters: Parameters) -> None:
        self._flat[:] = parameters

    def train(self, step: int) -> None:
        generator = np.random.default_rng([*self._seed, step])
        for _ in range(BATCHES_PER_STEP):
            batch = generator.integers(len(self._labels), size=BATCH)
            noise = generator.standard_normal((BATCH, LAYERS[0]), dtype=np.float32) * np.float32(NOISE)
            self._differentiate(self._pictures[batch] + noise, self._labels[batch])
            self._momentum *= np.float32(MOMENTUM)
            self._momentum += self._gradient
            self._flat -= np.float32(LEARNING_RATE) * self._momentum

    def evaluate(self) -> Mapping[str, float]:
        outputs = self._forward(self._test_pictures)[-1]
        relative = outputs - outputs.max(axis=1, keepdims=True)
        of_label = relative[np.arange(len(outputs)), self._test_labels]
        losses = np.log(np.exp(relative).sum(axis=1)) - of_label
        accuracy = np.mean(outputs.argmax(axis=1) == self._test_labels)
        return {"accuracy": float(accuracy), "loss": float(losses.mean())}

    def _forward(self, pictures: Floats) -> list[Floats]:
        """What goes into each layer, and what comes out of the last."""
        values = [pictures]
        layers = _layers(self._flat)
        for layer in layers[:-1]:
            values.append(np.maximum(values[-1] @ layer.weights + layer.bias, 0))
        values.append(values[-1] @ layers[-1].weights + layers[-1].bias)
        return values

    def _differentiate(self, pictures: Floats, labels: Integers) -> None:
        """Leave the gradient of the batch's mean cross entropy in `_gradient`."""
        *inputs, outputs = self._forward(pictures)
        error = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error /= np.float32(len(labels))
        layers, gradients = _layers(self._flat), _layers(self._gradient)
        for position in reversed(range(len(layers))):
            np.matmul(inputs[position].T, error, out=gradients[position].weights)
            error.sum(axis=0, out=gradients[position].bias)
            if position:
                error = (error @ layers[position].weights.T) * (inputs[position] > 0)


class Digits:
    name = "digits"

    def tensors(self, setting: Setting) -> Sequence[Tensor]:
        return _tensors()

    def prepare(self, setting: Setting) -> None:
        from sklearn.datasets import load_digits  # noqa: PLC0415  (slow to import, and trainers must not need it)

        digits = load_digits()
        pictures = (digits.data / 16).astype(np.float32)
        labels = digits.target.astype(np.int64)
        generator = np.random.default_rng(setting.seed)
        test = _stratified(labels, generator)
        training = np.setdiff1d(np.arange(len(labels)), test)
        parts = split_unevenly(labels[training], setting.islands, generator)
        np.savez(
            setting.directory / _FILE,
            pictures=pictures[training],
            labels=labels[training],
            test_pictures=pictures[test],
            test_labels=labels[test],
            initial=_initial(generator),
            parts=np.concatenate(parts),
            cuts=np.cumsum([len(part) for part in parts])[:-1],
        )

    def island(self, setting: Setting, island_id: int) -> Trainer:
        return DigitsTrainer(setting, island_id)


def _stratified(labels: Integers, generator: np.random.Generator) -> Integers:
    """The indices of one picture in TEST_SHARE, class by class."""
    chosen = [generator.permutation(np.flatnonzero(labels == label)) for label in range(CLASSES)]
    return np.concatenate([indices[: len(indices) // TEST_SHARE] for indices in chosen])


def _initial(generator: np.random.Generator) -> Floats:
    """Initial parameters for rectified layers: normal with variance 2 / inputs; biases zero."""
    flat = np.zeros(sum(tensor.values for tensor in _tensors()), np.float32)
    for layer in _layers(flat):
        inputs = len(layer.weights)
        layer.weights[:] = generator.standard_normal(layer.weights.shape) * np.sqrt(2 / inputs)
    return flat
