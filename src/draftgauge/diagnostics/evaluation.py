"""Everything that is measured of one trained drafter: teacher-forced, live, with trees, and its speed.

The tree is EAGLE-2's (Li et al., arXiv 2406.16858, section 4); KVShot calls its accepted length HF MAT. Each level
expands the ``top_k`` nodes of the most probable paths, each into its ``top_k`` most probable tokens. Of all nodes, the
most probable ones are verified. On text that the target decoded greedily the accepted path follows the text, so no pass
of the target is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.progress import Progress, silent
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.diagnostics.texts import HeldOutText, Ints, agreement, depth_counts, labelled_depths
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.base import Draft, Drafter, Drafting, DraftsUnread, UnreadDraft, device_of, record_passes
from draftgauge.drafters.mtp.live import drafter_of
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.drafting import Chain, begin, step, take_in
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.models.base import CachedModel
from draftgauge.models.device import seconds
from draftgauge.models.taps import attach_taps, batch_features, nowhere
from draftgauge.policies.fixed import FixedLength


@dataclass(frozen=True)
class TreeShape:
    """How large a tree is drafted.

    Attributes:
        depth: levels of drafted tokens.
        top_k: nodes expanded at each level, and children of each.
        tokens: that the target verifies at once, the last committed one (the root) included.
    """

    depth: int = 8
    top_k: int = 10
    tokens: int = 60


@torch.inference_mode()
def tree_acceptance(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], shape: TreeShape | None = None
) -> list[tuple[int, int]]:
    """Tokens and steps of every text decoded with draft trees; their ratio is the accepted length plus one.

    Prompts have at least two tokens.
    """
    found = []
    for text in texts:
        tokens = text.tokens
        whole = torch.tensor([tokens], device=module.device)
        features = batch_features(module, whole, net.config.tap_plan, nowhere(whole))
        cache, steps = begin(net), 0
        committed = len(text.prompt)
        while committed < len(tokens):
            # The drafter takes in the anchors since its last step, each with the token after it.
            anchors, new = cache.length, slice(cache.length, committed - 1)
            following = torch.tensor(tokens[anchors + 1 : committed], device=features.logits.device)
            hidden = None if features.hidden is None else features.hidden[0, new]
            keys, values = (None if each is None else each[0, :, :, new] for each in (features.keys, features.values))
            logits, chain = take_in(net, cache, following, hidden, keys, values)
            committed += _accepted(net, cache, chain, logits[0], tokens[committed:], shape or TreeShape()) + 1
            steps += 1
        found.append((len(text.output), steps))
    return found


def _accepted(
    net: ReuseNet, cache: AnchorCache, chain: Chain, logits: Tensor, future: list[int], shape: TreeShape
) -> int:
    """Length of the path of a tree that follows the text; the text's last token is the target's own at the latest."""
    parents, drafted, scores = grow(net, cache, chain, logits, shape)
    # A parent is more probable than its children, and earlier, so it is kept with them.
    kept = scores.argsort(descending=True, stable=True)[: shape.tokens - 1]
    children = {(int(parents[node]), int(drafted[node])): int(node) for node in kept}
    node, length = -1, 0
    for token in future[:-1]:
        if (node, token) not in children:
            break
        node, length = children[node, token], length + 1
    return length


def grow(
    net: ReuseNet, cache: AnchorCache, chain: Chain, logits: Tensor, shape: TreeShape
) -> tuple[Tensor, Tensor, Tensor]:
    """All candidates of one tree, from the chain after ``take_in`` and the logits ``[V_d]`` of the first drafted token.

    Returns:
        Of each candidate, level by level: the candidate before it (-1 for the root), its token in the target's
        vocabulary, its path's log-probability.
    """
    children = min(shape.top_k, logits.shape[-1])
    scores, tokens = logits.log_softmax(-1).topk(children)
    parents = torch.full_like(tokens, -1)
    levels = [(parents, net.target_ids(tokens), scores)]
    first = 0  # index of the level's first candidate
    frontier = torch.arange(children, device=tokens.device)  # candidates of the last level that are expanded
    rows = torch.zeros_like(frontier)  # the branch of the chain that each continues
    for _ in range(shape.depth - 1):
        _, drafted, scores = levels[-1]
        logits, chain = step(net, cache, chain.rows(rows), drafted[frontier])
        more, tokens = logits.log_softmax(-1).topk(children)  # [branches, children]
        scores = (scores[frontier, None] + more).flatten()
        parents = (first + frontier).repeat_interleave(children)
        first += len(drafted)
        levels.append((parents, net.target_ids(tokens.flatten()), scores))
        frontier = scores.topk(min(shape.top_k, len(scores))).indices
        rows = frontier // children
    columns_of_all = [torch.cat(columns).cpu() for columns in zip(*levels, strict=True)]
    return columns_of_all[0], columns_of_all[1], columns_of_all[2]


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
