"""Toy language models over tiny vocabularies, and the exact law of programs that draw from them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.drafters import dense, language_model
from draftgauge.models.base import ModelSpec
from draftgauge.verification import Sampling, acceptance, probabilities, sampling


class MarkovModel:
    """A ``CachedModel`` whose logits depend on the last two tokens: ``table[before, last]``.

    The first token has ``table[0, last]``. The model keeps the tokens themselves as its cache, refuses what a real
    cache would refuse, and counts its passes.
    """

    def __init__(self, table: Tensor, context: int = 1000) -> None:
        self.table = table
        self.spec = ModelSpec(table.shape[-1], context, torch.device("cpu"), torch.float32, "markov", "table")
        self.module = None  # there is no transformers model behind it
        self.cached: list[int] = []
        self.passes: list[int] = []

    @classmethod
    def random(cls, vocabulary: int, seed: int, scale: float = 1.5, context: int = 1000) -> MarkovModel:
        generator = torch.Generator().manual_seed(seed)
        return cls(scale * torch.randn(vocabulary, vocabulary, vocabulary, generator=generator), context)

    @classmethod
    def counting(cls, vocabulary: int) -> MarkovModel:
        """Counts up: 0, 1, 2, ..., 0, ..."""
        following = torch.eye(vocabulary).roll(1, dims=1)
        return cls(10 * following.expand(vocabulary, -1, -1))

    def noised(self, scale: float, seed: int) -> MarkovModel:
        """A model that resembles this one: a draft that is right sometimes."""
        generator = torch.Generator().manual_seed(seed)
        return MarkovModel(self.table + scale * torch.randn(self.table.shape, generator=generator), self.spec.context)

    @property
    def length(self) -> int:
        return len(self.cached)

    def reset(self) -> None:
        self.cached = []

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        assert tokens.dtype == torch.int64
        assert len(tokens) > 0
        self.passes.append(len(tokens))
        rows = []
        for token in tokens.tolist():
            rows.append(self.row(self.cached[-1] if self.cached else 0, token))
            self.cached.append(token)
        assert len(self.cached) <= self.spec.context
        return torch.stack(rows[-1:] if last_only else rows)

    def row(self, before: int, last: int) -> Tensor:
        return self.table[before, last]

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.cached)
        del self.cached[length:]

    def branches(self, starts: Tensor) -> MarkovBranches:
        assert all(1 <= start <= len(self.cached) for start in starts.tolist())
        return MarkovBranches(self, [self.cached[:start] for start in starts.tolist()])


class MarkovBranches:
    """Branches of a :class:`MarkovModel`, each with its text."""

    def __init__(self, model: MarkovModel, texts: list[list[int]]) -> None:
        self.model = model
        self.texts = texts

    def step(self, tokens: Tensor) -> Tensor:
        self.texts = [[*text, token] for text, token in zip(self.texts, tokens.tolist(), strict=True)]
        assert max(map(len, self.texts)) <= self.model.spec.context
        return torch.stack([self.model.row(text[-2], text[-1]) for text in self.texts])

    def keep(self, rows: Tensor) -> None:
        self.texts = [self.texts[row] for row in rows.tolist()]


Law = dict[Hashable, float]


class Enumerator:
    """Runs a program once for every way its random draws can fall, and sums the probability of each result.

    While it runs, the two functions through which verification and drafters draw are replaced by branching ones.
    """

    def __init__(self, monkeypatch) -> None:
        for module in (sampling, acceptance, language_model, dense):
            monkeypatch.setattr(module, "draw", self._draw)
        for module in (sampling, acceptance):
            monkeypatch.setattr(module, "flip", self._flip)
        self._path: list[int] = []
        self._weights: list[list[float]] = []
        self._depth = 0

    def law(self, program: Callable[[], Hashable]) -> Law:
        """The probability of every result of the program."""
        law: Law = defaultdict(float)
        self._path = []
        while True:
            self._weights, self._depth = [], 0
            result = program()
            chance = 1.0
            for weights, index in zip(self._weights, self._path, strict=True):
                chance *= weights[index]
            law[result] += chance
            if not self._advance():
                return dict(law)

    def _advance(self) -> bool:
        """Go to the next path: the last draw that has another outcome takes it, those after it start over."""
        while self._path:
            weights, index = self._weights.pop(), self._path.pop()
            following = [i for i in range(index + 1, len(weights)) if weights[i] > 0]
            if following:
                self._path.append(following[0])
                return True
        return False

    def _branch(self, weights: list[float]) -> int:
        if self._depth == len(self._path):
            self._path.append(next(i for i, weight in enumerate(weights) if weight > 0))
        self._weights.append(weights)
        self._depth += 1
        return self._path[self._depth - 1]

    def _draw(self, weights: Tensor, generator: object) -> Tensor:
        rows = weights.double().reshape(-1, weights.shape[-1])
        return torch.tensor([self._branch((row / row.sum()).tolist()) for row in rows]).reshape(weights.shape[:-1])

    def _flip(self, chances: Tensor, generator: object) -> Tensor:
        outcomes = [self._branch([1 - chance, chance]) for chance in chances.double().clamp(max=1).tolist()]
        return torch.tensor(outcomes, dtype=torch.bool)


def law_of_model(
    model: MarkovModel, prompt: list[int], count: int, settings: Sampling, end_tokens: frozenset[int] = frozenset()
) -> Law:
    """The law of ``count`` tokens after the prompt, fewer after an end token, by multiplying along every sequence."""
    law: Law = defaultdict(float)
    for tokens in itertools.product(range(model.spec.vocabulary), repeat=count):
        chance, output = 1.0, list(prompt)
        for token in tokens:
            before = output[-2] if len(output) > 1 else 0
            chance *= float(probabilities(model.row(before, output[-1]), settings)[token])
            output.append(token)
            if token in end_tokens:
                break
        output_tokens = tuple(output[len(prompt) :])
        if chance > 0 and output_tokens not in law:
            law[output_tokens] = chance
    return dict(law)


@torch.no_grad()
def law_of_module(module: PreTrainedModel, prompt: list[int], count: int, sampling: Sampling) -> Law:
    """As :func:`law_of_model`, of a transformer."""
    law: Law = {(): 1.0}
    for _ in range(count):
        rows = {
            text: probabilities(module(torch.tensor([[*prompt, *text]])).logits[:, -1], sampling)[0] for text in law
        }
        law = {
            (*text, token): chance * float(rows[text][token])
            for text, chance in law.items()
            for token in rows[text].nonzero()[:, 0].tolist()
        }
    return law


def assert_same_law(law: Law, expected: Law, tolerance: float = 2e-6) -> None:
    """Both give every result the same probability, up to the rounding of float32."""
    for result in law.keys() | expected.keys():
        ours, theirs = law.get(result, 0.0), expected.get(result, 0.0)
        assert abs(ours - theirs) < tolerance, (result, ours, theirs)
