"""A trained drafter on held-out prompts: acceptance by depth with intervals, accepted tokens a step, speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import TEST, for_judging, in_turn, learned_from
from draftgauge.core.verb import verb
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.evaluation import DrafterEvaluation, EvaluationPlan, evaluate_drafter
from draftgauge.diagnostics.texts import HeldOutText, greedy_texts
from draftgauge.drafters.reuse.persistence import (
    load_drafter,
    read_description,
    trained_compression,
    trained_depths,
    trained_prompts,
)
from draftgauge.judging.statistics.bootstrap import columns, ratio_interval
from draftgauge.judging.statistics.crossed import Counts, depth_rows, interval, mean_accepted, retention
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.tokenizer import end_tokens
from draftgauge.pair.prompts import choose_prompts, encode_prompts, encoder_of
from draftgauge.requests import DiagnoseRequest, EvaluateRequest

Row = dict[str, Any]
DEFAULT_DEPTHS = 7
SEEN = "the drafter has learned from prompts of {} that it is judged on here: its figures flatter it"


@verb(EvaluateRequest)
def evaluate(request: EvaluateRequest, *, progress: Progress = silent) -> list[Row]:
    """Measure a trained drafter on texts that its target decodes.

    Returns:
        One row a depth: ``depth`` (from 1), ``alpha``, ``agreement`` over all positions, ``survival``, the share of
        these where every token so far is right. One row of the drafter as a whole: ``mat`` and ``retention``, live and
        tree measures and speed. Rows of ``mat`` by task (``measure``, ``task``, ``estimate``, ``low``, ``high``).
        Intervals are 95%, by prompt.

    Raises:
        ModelError: if the folder holds no drafter, or one of another target.
        PromptError: if the prompts cannot be read.
    """
    description = read_description(request.drafter)
    target, tokenizer = load_single(request, description)
    net = load_drafter(request.drafter, target)
    settings = DecodingSettings(request.output.max_new_tokens, end_tokens=end_tokens(target, tokenizer))
    texts = held_out_texts(request, [description], target, tokenizer, settings, progress)
    plan = EvaluationPlan(depths_of(request, description), settings)
    return evaluation_rows(evaluate_drafter(net, target, texts, plan, progress))


def depths_of(request: EvaluateRequest | DiagnoseRequest, description: Mapping[str, Any]) -> int:
    longest = request.output.max_new_tokens
    if request.learned.depths is not None and request.learned.depths > longest:
        raise DraftgaugeError(f"no output holds {request.learned.depths} drafted tokens with max_new_tokens {longest}")
    return request.learned.depths or trained_depths(description) or DEFAULT_DEPTHS


def load_single(
    request: EvaluateRequest | DiagnoseRequest, description: Mapping[str, Any]
) -> tuple[CachedModel, PreTrainedTokenizerBase]:
    """The target of a drafter and its tokenizer: as asked for, else as the drafter's description has it."""
    learned, loading = request.learned, request.loading
    source = learned.target or description["config"]["target_source"]
    compression = learned.compression or trained_compression(description)
    trusted = loading.trust_remote_code
    model = load_model(source, compression, request.machine.device, loading.engine, trusted)
    return model, load_tokenizer(loading.tokenizer or source, trusted)


def held_out_texts(
    request: EvaluateRequest | DiagnoseRequest,
    descriptions: Sequence[Mapping[str, Any]],
    target: CachedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: DecodingSettings,
    progress: Progress,
) -> list[HeldOutText]:
    """The request's prompts, tasks in turn, with what the target answers; without a choice of split, test prompts where
    the file names such. Prompts that one of the described drafters has learned from are warned of."""
    asked = request.prompts
    everything = choose_prompts(replace(asked, per_task=None, limit=None))[1]
    if asked.split is None and len(for_judging(everything)) < len(everything):
        asked = replace(asked, split=TEST)
    path, chosen = choose_prompts(asked)
    places = {prompt.index // asked.turns for prompt in chosen}
    if any(learned_from(trained_prompts(description), path, places) for description in descriptions):
        warn(SEEN.format(path))
    kept = encode_prompts(encoder_of(target, tokenizer), in_turn(chosen), path, settings.max_new_tokens, asked)
    return greedy_texts(target, [(prompt.task, tokens) for prompt, tokens in kept], settings, progress)


def evaluation_rows(measured: DrafterEvaluation) -> list[Row]:
    """What :func:`evaluate` returns, from the counts."""
    forced = Counts.of(measured.reached, measured.accepted)
    agreed, survived = (Counts.of(measured.positions, counts) for counts in (measured.agreed, measured.accepted))
    rows: list[Row] = list(depth_rows(forced, agreed, survived))
    live = Counts.of(measured.live_reached, measured.live_accepted)
    trees = len(measured.tree_steps) > 0
    rows.append(
        {"texts": len(measured.tasks), "live_mismatched_prompts": measured.mismatched}
        | columns("mat", interval(forced, mean_accepted))
        | columns("retention", interval(forced, retention))
        | columns("live_mat", interval(live, mean_accepted))
        | (columns("tree_mat", ratio_interval(measured.tree_tokens, measured.tree_steps)) if trees else {})
        | ({} if measured.latency is None else vars(measured.latency))
    )
    tasks = np.array(measured.tasks)
    for task in dict.fromkeys(measured.tasks):
        found = interval(forced.prompts(tasks == task), mean_accepted)
        rows.append({"task": task, "measure": "mat"} | found._asdict())
    return rows
