"""Everything that is measured of one trained drafter: teacher-forced, live, with trees, and its speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from draftgauge.core.progress import Progress, silent
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.diagnostics.alpha import Ints, agreement, depth_counts, labelled_depths
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.diagnostics.tree import tree_acceptance
from draftgauge.drafters.base import Draft, Drafter, Drafting, DraftsUnread, UnreadDraft, device_of, record_passes
from draftgauge.drafters.mtp.live import drafter_of
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.models.base import CachedModel
from draftgauge.models.device import seconds
from draftgauge.models.taps import attach_taps
from draftgauge.policies.fixed import FixedLength


@dataclass(frozen=True)
class EvaluationPlan:
    """How much to measure; the first texts of each measure are taken, so they should come in mixed order.

    Attributes:
        depths: K, tokens a draft.
        live, tree, latency: how many texts; 0 leaves the measure out, None takes all. Blocks and
            MTP heads have no trees.
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
        positions, agreed: ``[texts, depths]`` output positions with a label at a depth, and those where the drafted
            token is the label. Earlier tokens may be wrong.
        reached, accepted: ``[texts, depths]`` of the draft from every output position, teacher-forced.
        live_reached, live_accepted: ``[live texts, depths]`` found in decoding: equal to the former if training saw
            what drafting sees.
        mismatched: live outputs that are not the plain ones.
        tree_tokens, tree_steps: ``[tree texts]``.
    """

    tasks: list[str]
    positions: Ints
    agreed: Ints
    reached: Ints
    accepted: Ints
    live_reached: Ints
    live_accepted: Ints
    mismatched: int
    tree_tokens: Ints
    tree_steps: Ints
    latency: Latency | None


def evaluate_drafter(
    net: ReuseNet, target: CachedModel, texts: Sequence[HeldOutText], plan: EvaluationPlan, progress: Progress = silent
) -> DrafterEvaluation:
    """Measure a drafter on greedy outputs of its target."""
    count = plan.depths
    agreed = agreement(net, target.module, texts, count)
    lengths = [rows.cumprod(-1).sum(-1) for rows in agreed]
    labelled = [labelled_depths(text, count) for text in texts]
    forced = np.array([depth_counts(a, k, count) for a, k in zip(lengths, labelled, strict=True)])
    progress("evaluation", 1, 4)

    drafter = drafter_of(net, target, attach_taps(target, net.config.tap_plan), Drafting(plan.settings.end_tokens))
    live, mismatched = live_acceptance(target, drafter, texts[: plan.live], count, plan.settings)
    live_counts = np.array(live, np.int64).reshape(-1, 2, count)  # also of no text
    progress("evaluation", 2, 4)

    treeless = isinstance(net, BlockNet | OwnLayerNet)
    with_trees = [] if treeless else [text for text in texts[: plan.tree] if len(text.prompt) > 1]
    trees = tree_acceptance(net, target.module, with_trees)
    progress("evaluation", 3, 4)
    timed = texts[: plan.latency]
    latency = measure_latency(target, drafter, timed, count, plan.settings) if timed else None
    progress("evaluation", 4, 4)
    return DrafterEvaluation(
        tasks=[text.task for text in texts],
        positions=np.stack([(one[:, None] > np.arange(count)).sum(0) for one in labelled]),
        agreed=np.stack([rows.sum(0) for rows in agreed]),
        reached=forced[:, 0],
        accepted=forced[:, 1],
        live_reached=live_counts[:, 0],
        live_accepted=live_counts[:, 1],
        mismatched=mismatched,
        tree_tokens=np.array([tokens for tokens, _ in trees], np.int64),
        tree_steps=np.array([steps for _, steps in trees], np.int64),
        latency=latency,
    )


def live_acceptance(
    target: CachedModel, drafter: Drafter, texts: Sequence[HeldOutText], depths: int, settings: DecodingSettings
) -> tuple[list[tuple[Ints, Ints]], int]:
    """Decode every prompt greedily with drafts of a fixed length.

    Returns:
        for each text the drafts that reached each depth and those accepted there, ``[depths]`` each; and how many
        outputs are not the plain ones. In float32 there must be none.
    """
    counts, mismatched = [], 0
    for text in texts:
        run = speculative_decode(target, drafter, FixedLength(depths), list(text.prompt), settings)
        accepted, drafted = (
            np.array([getattr(step, key) for step in run.steps], np.int64) for key in ("accepted", "drafted")
        )
        counts.append(depth_counts(accepted, drafted, depths))
        mismatched += tuple(run.tokens) != text.output
    return counts, mismatched


ROUNDS = 2


@dataclass(frozen=True)
class Latency:
    """Medians over prompts and rounds.

    Attributes:
        draft_ms: milliseconds a drafted token, what a step needs to begin with shared out among them.
        verify_ms: milliseconds of all else of a step, mostly the target's pass over the draft.
        tokens_per_second: of decoding with drafts.
        ratio_to_plain: of the two, prompt by prompt.
    """

    gamma: int
    draft_ms: float
    verify_ms: float
    tokens_per_second: float
    plain_tokens_per_second: float
    ratio_to_plain: float


class _TimedDrafter:
    """Sums the seconds of a drafter's proposals. On an accelerator this waits for the device after each."""

    def __init__(self, drafter: Drafter, *devices: torch.device) -> None:
        self._drafter, self._devices, self.seconds = drafter, devices, 0.0
        self.prefill, self.commit = drafter.prefill, drafter.commit

    def propose(self, *arguments: Any) -> Draft:
        return self._timed(self._drafter.propose, *arguments)

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        return self._timed(self._drafter.propose_unread, limit) if isinstance(self._drafter, DraftsUnread) else None

    def _timed(self, propose: Callable[..., Any], *arguments: Any) -> Any:
        begun = seconds(*self._devices)
        draft = propose(*arguments)
        self.seconds += seconds(*self._devices) - begun
        return draft


def measure_latency(
    target: CachedModel, drafter: Drafter, texts: Sequence[HeldOutText], gamma: int, settings: DecodingSettings
) -> Latency:
    """Decode some prompts plainly and with drafts in turn; the first one also beforehand, uncounted."""
    policy, device = FixedLength(gamma), target.spec.device
    rows = []
    record_passes(target, drafter, gamma, max(len(text.prompt) for text in texts) + settings.max_new_tokens)
    for number, text in enumerate([texts[0], *(text for _ in range(ROUNDS) for text in texts)]):
        prompt = list(text.prompt)
        plain = plain_decode(target, prompt, settings)
        timer = _TimedDrafter(drafter, device, device_of(drafter, device))
        run = timed = speculative_decode(target, timer, policy, prompt, settings)
        if device.type != "cpu":  # to time a part is to wait for the device, which decoding need not
            run = speculative_decode(target, drafter, policy, prompt, settings)
        drafted = sum(step.drafted for step in timed.steps)
        if number == 0 or drafted == 0:
            continue
        rows.append(
            (
                1e3 * timer.seconds / drafted,
                1e3 * (timed.decode_seconds - timer.seconds) / len(timed.steps),
                run.tokens_per_second,
                plain.tokens_per_second,
                run.tokens_per_second / plain.tokens_per_second,
            )
        )
    values = np.median(np.array(rows), axis=0) if rows else np.full(5, np.nan)
    return Latency(gamma, *(float(value) for value in values))
