"""What a pair costs in batches: what can be measured, and measuring it."""

from __future__ import annotations

from collections.abc import Sequence

from draftgauge.api.pair import Pair
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress
from draftgauge.core.seeds import generator
from draftgauge.decoding.batch_meter import BatchMeterPlan, measure_batches
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.models.lean import LeanModel
from draftgauge.models.static_rows import check_caches_fit
from draftgauge.traces.batch_costs import BatchCosts


def batch_models(pair: Pair) -> tuple[LeanModel, LeanModel]:
    """Target and draft, as batches run them.

    Raises:
        DraftgaugeError: if they run on another engine, or something else than a draft model drafts.
    """
    target, draft = pair.target, pair.draft
    if not isinstance(pair.draft_source, LanguageModelSource) or draft is None:
        raise DraftgaugeError(
            f"batches are decoded with a draft model, and {pair.draft_source.name} drafts here: leave out --batches"
        )
    if not isinstance(target, LeanModel) or not isinstance(draft, LeanModel):
        raise DraftgaugeError(
            f"batches run on the engines lean and static, and target and draft run on {target.spec.engine} and "
            f"{draft.spec.engine}: leave out --batches"
        )
    return target, draft


def check_batches(pair: Pair, batches: Sequence[int], longest: int) -> None:
    """Refuse batches that cannot be measured.

    Args:
        pair: loaded.
        batches: requests at once; nothing is checked without any.
        longest: tokens of the longest request.

    Raises:
        DraftgaugeError: for sizes below 1, or as :func:`batch_models`.
        ModelError: if the caches of the largest do not fit into memory.
    """
    if not batches:
        return
    if min(batches) < 1:
        raise DraftgaugeError(f"a batch holds at least one request, not {min(batches)}")
    check_caches_fit([(model, min(longest, model.spec.context)) for model in batch_models(pair)], max(batches))


def measure_pair_batches(pair: Pair, plan: BatchMeterPlan, seed: int, progress: Progress) -> BatchCosts:
    """Measure the passes of batches of a pair."""
    target, draft = batch_models(pair)
    label = f"batches {pair.compression}"
    rng = generator(seed, "batches", pair.compression)
    return measure_batches(target, draft, plan, rng, lambda done, total: progress(label, done, total))
