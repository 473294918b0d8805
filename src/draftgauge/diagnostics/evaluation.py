"""Everything that is measured of one trained drafter: teacher-forced, live, by distance, with trees, and its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from draftgauge.core.progress import Progress, silent
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.alpha import Ints, accepted, agreement, depth_counts, labelled_depths, walked
from draftgauge.diagnostics.distance import WINDOWS, counts_by_distance
from draftgauge.diagnostics.latency import Latency, measure_latency
from draftgauge.diagnostics.live_acceptance import live_acceptance
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.diagnostics.tree import tree_acceptance
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import attach_taps

PARTS = 5


@dataclass(frozen=True)
class EvaluationPlan:
    """How much to measure; the first texts of each measure are taken, so they should come in mixed order.

    Attributes:
        depths: K, tokens a draft.
        settings: that the texts were decoded with.
        live, tree, latency: how many texts; 0 leaves the measure out, None takes all.
    """

    depths: int
    settings: DecodingSettings
    live: int | None = None
    tree: int | None = 16
    latency: int | None = 4


@dataclass(frozen=True)
class DrafterEvaluation:
    """Counts, from which every figure is made with its interval.

    Attributes:
        tasks: of the texts.
        positions, agreed: ``[texts, depths]`` output positions from which each depth has a label, and those of them
            where the token at this depth is the label, whatever became of those before.
        reached, accepted: ``[texts, depths]`` of the draft from every output position, teacher-forced.
        walked_reached, walked_accepted: ``[live texts, depths]`` of only those drafts that decoding makes on its way,
            teacher-forced.
        live_reached, live_accepted: ``[live texts, depths]`` found in decoding: equal to the former if training saw
            what drafting sees.
        mismatched: live outputs that are not the plain ones.
        distance_reached, distance_accepted: ``[texts, classes, depths]`` by the context that a drafted token needs.
        tree_tokens, tree_steps: ``[tree texts]``.
        latency: of drafts of K tokens; None if left out.
    """

    tasks: list[str]
    positions: Ints
    agreed: Ints
    reached: Ints
    accepted: Ints
    walked_reached: Ints
    walked_accepted: Ints
    live_reached: Ints
    live_accepted: Ints
    mismatched: int
    distance_reached: Ints
    distance_accepted: Ints
    tree_tokens: Ints
    tree_steps: Ints
    latency: Latency | None

    def to_json(self) -> dict[str, object]:
        """Plain lists and numbers."""
        values = asdict(self).items()
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in values}


def evaluate_drafter(
    net: ReuseNet,
    target: CachedModel,
    texts: Sequence[HeldOutText],
    classes: Sequence[Ints],
    plan: EvaluationPlan,
    progress: Progress = silent,
) -> DrafterEvaluation:
    """Measure a drafter on held-out texts.

    Args:
        net: the drafter, in evaluation mode.
        target: its target.
        texts: the target's greedy outputs.
        classes: ``[n]`` for each text, see :func:`draftgauge.diagnostics.distance.needed_context`.
        plan: what to measure.
        progress: told (what, done, total).
    """
    count, classes_in_all = plan.depths, len(WINDOWS) + 1
    progress("evaluation", 0, PARTS)
    agreed = agreement(net, target.module, texts, count)
    lengths = [accepted(rows) for rows in agreed]
    labelled = [labelled_depths(text, count) for text in texts]
    forced = [depth_counts(a, k, count) for a, k in zip(lengths, labelled, strict=True)]
    distances = [
        counts_by_distance(a, k, c, classes_in_all, count) for a, k, c in zip(lengths, labelled, classes, strict=True)
    ]
    progress("evaluation", 2, PARTS)

    live_texts = texts[: plan.live]
    taps = attach_taps(target, net.config.tap_plan)
    drafter = ReuseDrafter(net, target, taps, plan.settings.end_tokens)
    live = live_acceptance(target, drafter, live_texts, count, plan.settings)
    walks = [
        walked(t, a, k, plan.settings.max_new_tokens) for t, a, k in zip(live_texts, lengths, labelled, strict=False)
    ]
    on_way = [depth_counts(a, drafted, count) for a, drafted in walks]
    progress("evaluation", 3, PARTS)

    trees = tree_acceptance(net, target.module, [text for text in texts[: plan.tree] if len(text.prompt) > 1])
    progress("evaluation", 4, PARTS)
    timed = texts[: plan.latency]
    latency = measure_latency(target, drafter, timed, count, plan.settings) if timed else None
    progress("evaluation", PARTS, PARTS)
    return DrafterEvaluation(
        tasks=[text.task for text in texts],
        positions=np.stack([(one[:, None] > np.arange(count)).sum(0) for one in labelled]),
        agreed=np.stack([rows.sum(0) for rows in agreed]),
        reached=_stacked(forced, 0, count),
        accepted=_stacked(forced, 1, count),
        walked_reached=_stacked(on_way, 0, count),
        walked_accepted=_stacked(on_way, 1, count),
        live_reached=live.reached,
        live_accepted=live.accepted,
        mismatched=live.mismatched,
        distance_reached=np.stack([reached for reached, _ in distances]),
        distance_accepted=np.stack([accepted for _, accepted in distances]),
        tree_tokens=np.array([tree.tokens for tree in trees], np.int64),
        tree_steps=np.array([tree.steps for tree in trees], np.int64),
        latency=latency,
    )


def _stacked(pairs: Sequence[tuple[Ints, Ints]], which: int, depths: int) -> Ints:
    """``[texts, depths]``, also of no text."""
    return np.array([pair[which] for pair in pairs], np.int64).reshape(-1, depths)
