"""Recorded runs and prompt files: which folder holds what. No model is loaded, and no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from draftgauge.core.errors import PromptError
from draftgauge.core.prompts import SPLITS, Prompt
from draftgauge.models.reference import PAIR_FOLDER
from draftgauge.traces.costs import CostCurve, run_costs
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.reader import find_runs, read_trace
from draftgauge.traces.trace import Trace

BUNDLED_PROMPTS = "reference:"
ALL_SPLITS = "all"
_UNCOMPRESSED_FIRST = ("none", "fp32", "bf16", "fp16", "int8", "nf4")

EncodedPrompt = tuple[Prompt, list[int]]


def prompt_file(prompts: str | Path | None, split: str = "test") -> Path:
    """What a prompts argument means: a path, ``reference:SPLIT`` and None for bundled prompts, ``reference:all`` for
    all of them.

    Raises:
        PromptError: for a split of the bundled pair that there is not.
    """
    if prompts is None:
        return _bundled_file(split)
    if str(prompts) == f"{BUNDLED_PROMPTS}{ALL_SPLITS}":
        return PAIR_FOLDER / "prompts"
    if str(prompts).startswith(BUNDLED_PROMPTS):
        return _bundled_file(str(prompts).removeprefix(BUNDLED_PROMPTS))
    return Path(prompts)


def _bundled_file(split: str) -> Path:
    path = PAIR_FOLDER / "prompts" / f"{split}.jsonl"
    if not path.is_file():
        raise PromptError(f"the bundled pair has no prompts of split {split!r}: choose one of {', '.join(SPLITS)}")
    return path


def prompt_name(path: Path) -> str:
    """How a manifest names a prompt file: bundled ones by their split, so that the name holds on every machine."""
    if path == PAIR_FOLDER / "prompts":
        return f"{BUNDLED_PROMPTS}{ALL_SPLITS}"
    return f"{BUNDLED_PROMPTS}{path.stem}" if path.parent == PAIR_FOLDER / "prompts" else str(path)


def select_runs(folder: Path) -> list[tuple[Path, Manifest]]:
    """The runs at a place with their manifests, uncompressed targets first, checkpoints that come quantised last."""
    order = {name: position for position, name in enumerate(_UNCOMPRESSED_FIRST)}
    runs = [(run, Manifest.load(run)) for run in find_runs(folder)]
    return sorted(runs, key=lambda r: (order.get(r[1].target.compression, len(order)), r[0].name))


def read_run(run: Path, tasks: Sequence[str] | None = None) -> tuple[Trace, CostCurve]:
    """Trace and cost curve of a run."""
    return read_trace(run, tasks), run_costs(run)


def first_per_task(prompts: list[Prompt], count: int | None) -> list[Prompt]:
    """The first ``count`` prompts of every task in every split, in the file's order; all of them if None."""
    if count is None:
        return prompts
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for prompt in prompts:
        seen[prompt.task, prompt.split] += 1
        if seen[prompt.task, prompt.split] <= count:
            kept.append(prompt)
    return kept
