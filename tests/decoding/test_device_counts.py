"""Launches and waits of a step on a GPU, counted on fake ones; the table in ``docs/engines.md`` is what this finds.

``WRITE_COUNTS=1 pytest tests/decoding/test_device_counts.py`` writes the table.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies.base import PolicyBase
from draftgauge.verification import Sampling
from fake_cuda import FakeCuda, fake_cuda, on_gpu
from tiny import tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
BEGIN = "| a step | launches, lean | launches, static | waits |\n|---|---|---|---|\n"
GAMMA, TARGET_LAYERS, DRAFT_LAYERS = 4, 36, 28
PROMPT = list(range(1, 21))
ALL: Reads = OF_DRAFTED_TOKENS | {SignalName.TEXT}
# Of a kind of step: what its policy reads, or None for plain decoding; and how tokens are chosen.
STEPS: dict[str, tuple[Reads | None, Sampling]] = {
    "plain decoding, a token": (None, Sampling()),
    "fixed length 4": (NO_SIGNALS, Sampling()),
    "fixed length 4, sampled (top-k 20)": (NO_SIGNALS, Sampling(0.8, top_k=20)),
    "a policy that reads confidence": (frozenset({SignalName.CONFIDENCE}), Sampling()),
    "a policy that reads all signals and text": (ALL, Sampling()),
}


class Reading(PolicyBase):
    """Drafts four tokens."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads

    def limit(self) -> int:
        return GAMMA


def model(engine: str, layers: int) -> CachedModel:
    with unset_fake_temporarily():
        real = tiny_model(num_hidden_layers=layers)
    return wrap(on_gpu(real, "cuda:0", torch.bfloat16), engine)


def counted(fake: FakeCuda, step: str, engine: str, layers: tuple[int, int]) -> tuple[int, int]:
    """Launches and waits of one step in the middle of an output, with so many layers of target and draft."""
    reads, sampling = STEPS[step]
    length = 30 if engine == "static" else 15  # graphs are captured first
    settings, generator = DecodingSettings(length, sampling), torch.Generator()
    seen: list[tuple[int, int, int]] = []

    def committed(*_: object) -> None:
        counts = fake.counts
        waits = counts.reads.total() + counts.uploads["waits"]
        seen.append((counts.launches.total(), waits, counts.captures))

    with fake.counting():
        target = model(engine, layers[0])
        if reads is None:
            plain_decode(target, PROMPT, settings, generator, committed)
        else:
            drafter = LanguageModelDrafter(model(engine, layers[1]), sampling=sampling, generator=generator)
            speculative_decode(target, drafter, Reading(reads), PROMPT, settings, generator, committed)
    middle = len(seen) // 2  # graphs are captured before, and drafts get shorter at the end
    launches, waits, captures = (after - before for before, after in zip(seen[middle - 1], seen[middle], strict=True))
    assert captures == 0
    return launches, waits


def row(fake: FakeCuda, step: str) -> str:
    """A line of the table: eager launches grow with the layers, those of graphs do not."""
    one, wider, deeper = (counted(fake, step, "lean", layers) for layers in ((1, 1), (2, 1), (1, 2)))
    lean = one[0] + (TARGET_LAYERS - 1) * (wider[0] - one[0]) + (DRAFT_LAYERS - 1) * (deeper[0] - one[0])
    static = counted(fake, step, "static", (1, 1))
    assert counted(fake, step, "static", (2, 2)) == static
    assert static[1] == one[1]
    return f"| {step} | {lean:,} | {static[0]} | {static[1]} |"


@pytest.mark.slow
def test_the_table_in_the_docs_is_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch) as fake:
        rows = [row(fake, step) for step in STEPS]
    before, begin, after = PAGE.read_text().partition(BEGIN)
    assert begin, "the table is not in the docs"
    _, gap, rest = after.partition("\n\n")
    page = before + begin + "\n".join(rows) + gap + rest
    if os.environ.get("WRITE_COUNTS"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page
