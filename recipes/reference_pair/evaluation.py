"""A trained pair evaluated on its held-out prompts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.core.errors import ModelError
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import read_prompts
from draftgauge.judging.acceptance import acceptance_by_depth
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import PAIR_FOLDER
from draftgauge.pair.loading import Pair, load_pair
from draftgauge.pair.prompts import choose_prompts, encode_prompts
from draftgauge.pair.recording import make_manifests, record_missing
from draftgauge.requests import DraftSpec, OutputSpec, PairSpec, ProfileRequest, PromptSpec
from draftgauge.traces.run import read_trace
from draftgauge.traces.trace import Trace, gram_counts, select
from draftgauge.traces.writer import TraceWriter
from recipes.reference_pair import measures
from recipes.reference_pair.recipe import DRAFT_SHAPES

ALL = "all"


def evaluate_pair(
    folder: Path = PAIR_FOLDER,
    split: str = "test",
    output: OutputSpec | None = None,
    drafts: DraftSpec | None = None,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Figures of a pair on its prompts: rows for every task (and ``all``), for every draft and task, for every layer.

    Rows of the target hold ``right`` (share of right greedy answers; of a summary's facts), ``distinct_4grams`` (share
    of different 4-grams within an answer), ``copied_4grams`` (share of an answer's 4-grams that its prompt has too),
    ``acceptance_depth_1`` (of ``draft``) and ``perplexity`` (of the reference answers, given their prompts); rows of a
    draft hold ``perplexity``, ``acceptance_depth_1``, ``_4`` and ``_8`` (at that depth, given acceptance before it) and
    ``mean_accepted`` of ``gamma_max``; rows of layers hold the ``rms`` of the target's states and the ``largest`` of a
    position.

    Args:
        folder: of the pair.
        split: of its prompts: train, validation or test.
        output: lengths of the answers; the default of ``draftgauge profile`` if None.
        drafts: lengths of the drafts; the default of ``draftgauge profile`` if None.
        progress: told (what, done, total).

    Raises:
        ModelError: if the folder holds no pair.
    """
    prompts = folder / "prompts" / f"{split}.jsonl"
    if not prompts.is_file():
        raise ModelError(f"there is no pair to evaluate in {folder}: {prompts.relative_to(folder)} is missing")
    targets: list[dict[str, Any]] = []
    draft_rows: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in DRAFT_SHAPES:
            run = Path(scratch) / name
            spec = PairSpec(target=str(folder / "target"), drafter=str(folder / name))
            pair = load_pair(spec)
            asked = ProfileRequest(
                out=run,
                pair=spec,
                prompts=PromptSpec(prompts=str(prompts)),
                output=output or OutputSpec(),
                drafts=drafts or DraftSpec(),
            )
            trace = _record(pair, asked, progress)
            assert pair.draft is not None
            answers = _answers(pair, trace, prompts)
            draft_rows += _draft_rows(name, pair.draft, trace, answers)
            if not targets:
                targets = _target_rows(pair.target, trace, answers)
                layers = [{"model": "target", **row} for row in measures.state_rms(pair.target, answers.texts)]
    return targets + draft_rows + layers


def _record(pair: Pair, request: ProfileRequest, progress: Progress) -> Trace:
    """The trace of a pair on the prompts of a request, without its costs."""
    path, chosen = choose_prompts(request.prompts)
    encoded = encode_prompts(pair.encoder, chosen, path, request.output.max_new_tokens, request.prompts)
    manifest = make_manifests(pair, [prompt for prompt, _ in encoded], path, request)[pair.compression]
    with TraceWriter(request.out, manifest) as writer:
        record_missing(pair, writer, encoded, request, progress)
    return read_trace(request.out)


@dataclass(frozen=True)
class _Answers:
    """The prompts of a trace, their reference answers as tokens, and how right the recorded outputs are."""

    tasks: list[str]
    prompts: list[list[int]]
    references: list[list[int]]
    outputs: list[list[int]]
    right: list[float]

    @property
    def texts(self) -> list[list[int]]:
        """Prompts with the target's answers."""
        return [prompt + output for prompt, output in zip(self.prompts, self.outputs, strict=True)]

    def of(self, task: str) -> list[int]:
        """The numbers of the prompts of a task."""
        return [number for number, name in enumerate(self.tasks) if task in (name, ALL)]


def _answers(pair: Pair, trace: Trace, path: Path) -> _Answers:
    prompts = read_prompts(path)
    checked = measures.checks(path)
    outputs = [
        trace.token[first:end].tolist() for first, end in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)
    ]
    tasks = [prompt.task for prompt in prompts]
    written = [pair.tokenizer.decode(output, skip_special_tokens=True) for output in outputs]
    right = measures.right_shares(tasks, [checked[prompt.identifier] for prompt in prompts], written)
    references = [pair.tokenizer(p.reference, add_special_tokens=False).input_ids for p in prompts]
    return _Answers(tasks, [pair.encode(prompt) for prompt in prompts], references, outputs, right)


def _perplexities(model: CachedModel, answers: _Answers) -> dict[str, float]:
    nats = [
        measures.answer_nats(model, prompt, reference)
        for prompt, reference in zip(answers.prompts, answers.references, strict=True)
    ]
    counts = [len(reference) for reference in answers.references]
    return {
        task: measures.perplexity([nats[n] for n in chosen], [counts[n] for n in chosen])
        for task in _tasks(answers)
        if (chosen := answers.of(task))
    }


def _tasks(answers: _Answers) -> list[str]:
    return [*dict.fromkeys(answers.tasks), ALL]


def _target_rows(model: CachedModel, trace: Trace, answers: _Answers) -> list[dict[str, Any]]:
    perplexity, rows = _perplexities(model, answers), []
    for task in _tasks(answers):
        chosen = answers.of(task)
        distinct = [gram_counts(answers.outputs[n]) for n in chosen]
        copied = [measures.copied_grams(answers.outputs[n], answers.prompts[n]) for n in chosen]
        rows.append(
            {
                "model": "target",
                "task": task,
                "parameters": model.module.num_parameters(),
                "right": float(np.mean([answers.right[n] for n in chosen])),
                "distinct_4grams": _share(distinct),
                "copied_4grams": _share(copied),
                "acceptance_depth_1": _acceptance(trace, task)[1],
                "perplexity": perplexity[task],
                "output_tokens": sum(len(answers.outputs[n]) for n in chosen),
            }
        )
    return rows


def _share(counts: Sequence[tuple[int, int]]) -> float:
    return sum(part for part, _ in counts) / max(1, sum(whole for _, whole in counts))


def _acceptance(trace: Trace, task: str) -> dict[int, float]:
    rows: list[dict[str, Any]] = acceptance_by_depth(_part(trace, task))
    return {row["depth"]: row["alpha"] for row in rows if row["task"] == ALL}


def _part(trace: Trace, task: str) -> Trace:
    return select(trace, np.array([task in (p.task, ALL) for p in trace.prompts]))


def _draft_rows(name: str, model: CachedModel, trace: Trace, answers: _Answers) -> list[dict[str, Any]]:
    perplexity, rows = _perplexities(model, answers), []
    for task in _tasks(answers):
        alpha = _acceptance(trace, task)
        rows.append(
            {
                "model": name,
                "task": task,
                "parameters": model.module.num_parameters(),
                "perplexity": perplexity[task],
                "acceptance_depth_1": alpha[1],
                "acceptance_depth_4": alpha.get(4),
                "acceptance_depth_8": alpha.get(8),
                "mean_accepted": float(_part(trace, task).accepted.mean()),
            }
        )
    return rows
