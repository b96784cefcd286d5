"""A character-level language model: a small transformer on the language reference that comes with Python.

The text, some 450,000 characters, is what `help()` shows about Python's syntax, topic by topic. The last tenth is for
testing. The islands divide the rest: each has one stretch of it, so that islands see different topics.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from agents.workloads.interface import Setting
from agents.workloads.pytorch import TorchWorkload, torch

CONTEXT = 32
WIDTH = 48
HEADS = 4
LAYERS = 2
BATCH = 8
LEARNING_RATE = 2e-3
TEST_SHARE = 10
TEST_BATCH = 64
_FILE = "characters.npz"


class CharacterModel(torch.nn.Module):  # type: ignore[misc]
    """Logits of the next character after each of up to CONTEXT characters."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        nn = torch.nn
        self.embedding = nn.Embedding(alphabet, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, alphabet)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

    def forward(self, characters: Any) -> Any:
        hidden = self.embedding(characters) + self.position
        for layer in self.layers:
            hidden = layer(hidden, self.mask)
        return self.output(self.norm(hidden))


class Characters(TorchWorkload):
    name = "characters"

    def prepare(self, setting: Setting) -> None:
        text = _text()
        alphabet = sorted(set(text))
        numbers = {character: number for number, character in enumerate(alphabet)}
        np.savez(setting.directory / _FILE, text=np.array([numbers[character] for character in text], np.uint8))

    def model(self, setting: Setting) -> Any:
        return CharacterModel(len(set(_text())))

    def loop(self, model: Any, setting: Setting, island_id: int) -> Iterator[None]:
        training, _ = _parts(setting)
        mine = np.array_split(training, setting.islands)[island_id]
        optimiser = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
        generator = np.random.default_rng([setting.seed, island_id])
        while True:
            starts = generator.integers(len(mine) - CONTEXT, size=BATCH)
            optimiser.zero_grad()
            _loss(model, np.stack([mine[start : start + CONTEXT + 1] for start in starts])).backward()
            optimiser.step()
            yield

    def evaluate(self, model: Any, setting: Setting) -> Mapping[str, float]:
        _, test = _parts(setting)
        starts = np.linspace(0, len(test) - CONTEXT - 1, TEST_BATCH).astype(int)
        return {"loss": float(_loss(model, np.stack([test[start : start + CONTEXT + 1] for start in starts])))}


def _loss(model: Any, windows: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Mean cross entropy, in nats per character, of windows of CONTEXT + 1 characters."""
    characters = torch.frombuffer(np.ascontiguousarray(windows), dtype=torch.int64).view(windows.shape)
    logits = model(characters[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), characters[:, 1:].flatten())


def _parts(setting: Setting) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """The text to train on, and the text to test with, as numbers of characters."""
    with np.load(setting.directory / _FILE) as data:
        text = data["text"].astype(np.int64)
    cut = len(text) - len(text) // TEST_SHARE
    return text[:cut], text[cut:]


def _text() -> str:
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte that only this workload needs

    return "\n".join(topics[name] for name in sorted(topics))
