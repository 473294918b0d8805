"""The usual reasons for low acceptance or no speed-up, each looked for in what is known of a pair.

A check takes the evidence and returns a :class:`Finding`, or in words what it saw instead. A check that lacks evidence
is not made. Acceptance near chance is a symptom: it is a finding of its own only where no other check explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from draftgauge.models.compression import DTYPES
from draftgauge.models.prompts_text import encode_prompt, token_ids
from draftgauge.models.vocabulary import difference
from draftgauge.replaying.acceptance import acceptance_by_depth
from draftgauge.replaying.evaluate import ALL_TASKS, plain_seconds
from draftgauge.replaying.rows import context_lengths
from draftgauge.replaying.simulate import replay_lengths
from draftgauge.serving.counters import SpeculationCounts, constant_chance
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

# Accepted this rarely, a drafted token adds 0.1 tokens to a step: it pays only if verifying two tokens costs less than
# 1.1 times verifying one, even where drafting is free.
TOO_RARE = 0.1
ENOUGH = 100  # tokens to judge a rate by: its standard error is then at most 0.05, half of TOO_RARE
TWICE = 2.0  # as many rejections per token halve the number of tokens accepted in a row
UNDECIDED = 1.0  # bits: the entropy of a fair coin
LOOKUP, CHECKPOINT = "prompt_lookup", "checkpoint"
UNKNOWN: Any = None  # a check is only made where what it needs is known, so that it need not ask
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"))  # Qwen, Mistral, Gemma 4


@dataclass(frozen=True)
class Finding:
    """A reason that was found; ``certain`` where it does harm whatever else is the case."""

    what: str
    evidence: str
    remedy: str
    certain: bool = True


@dataclass(frozen=True)
class Evidence:
    """What is known of a pair; None where nothing is.

    Attributes:
        target, kind: the target's name; the kind of drafter, as manifests have it.
        tokenizer, draft_tokenizer: of target and drafter.
        made_for: the target that the drafter's files name; empty if it is this one.
        map_error: what is wrong with a checkpoint's vocabulary map; empty if nothing is.
        layer_rates: by the target layers that a checkpoint may be meant to read, those of its configuration first, the
            share of its first drafted tokens that are right.
        compression: how the target is held, and how the drafter is, or the target was when the drafter was trained.
        longest: text in tokens that the drafter was made for.
        trace, costs: recorded with the pair.
        counts: of a serving engine.
    """

    target: str = "the target"
    kind: str = UNKNOWN
    tokenizer: PreTrainedTokenizerBase = UNKNOWN
    draft_tokenizer: PreTrainedTokenizerBase = UNKNOWN
    made_for: str = UNKNOWN
    map_error: str = UNKNOWN
    layer_rates: Mapping[tuple[int, ...], float] = UNKNOWN
    compression: tuple[str, str] = UNKNOWN
    longest: int = UNKNOWN
    trace: Trace = UNKNOWN
    costs: CostCurve = UNKNOWN
    counts: SpeculationCounts = UNKNOWN

    @cached_property
    def first(self) -> tuple[float, float, int]:
        """The share of first drafted tokens that are accepted, that which chance would give them, and how many there
        are. Chance: each compared with the output at another, random position."""
        if (counts := self.counts) is not None:
            if counts.by_position:
                return counts.by_position[0] / counts.drafts, 0.0, counts.drafts
            return constant_chance(counts.accepted / counts.drafts, max(1, round(counts.length))), 0.0, counts.drafts
        rows, right = first_tokens(self.trace)
        drafts, output = self.trace.draft_token[rows, 0], self.trace.token[rows]
        if not len(right) or self.trace.sampled is not None:
            return float(right.mean()) if len(right) else 0.0, 0.0, len(right)
        size = int(max(drafts.max(), output.max())) + 1
        chance = float(np.bincount(drafts, minlength=size) @ np.bincount(output, minlength=size)) / len(right) ** 2
        return float(right.mean()), chance, len(right)

    @property
    def near_chance(self) -> bool:
        if self.trace is None and self.counts is None:
            return False
        rate, chance, count = self.first
        return count > 0 and rate - chance <= TOO_RARE * (1 - chance)


def first_tokens(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The positions from which something was drafted, and the chance that its first token is accepted: 0 or 1 of greedy
    decoding."""
    rows = np.flatnonzero(trace.drafted > 0)
    if trace.sampled is not None:
        return rows, np.nan_to_num(trace.sampled.acceptance[rows]).astype(np.float64)
    return rows, (trace.draft_token[rows, 0] == trace.token[rows]).astype(np.float64)


def examine(evidence: Evidence) -> list[dict[str, Any]]:
    """All checks: rows with ``check``, ``status`` ("wrong", "suspect", "well", or "unknown" for lack of evidence),
    ``what``, ``evidence`` and ``remedy``; the findings first."""
    seen: dict[str, Finding | str | None] = {}
    for name, (needs, check) in CHECKS.items():
        seen[name] = check(evidence) if all(getattr(evidence, need) is not None for need in needs) else None
    explained = any(isinstance(each, Finding) and each.certain for each in seen.values())
    if evidence.trace is not None or evidence.counts is not None:
        seen["acceptance"] = acceptance(evidence, explained)
    rows: list[dict[str, Any]] = []
    for name, each in seen.items():
        row: dict[str, Any] = {"check": name, "status": "unknown" if each is None else "well"}
        if isinstance(each, Finding):
            row["status"] = "wrong" if each.certain else "suspect"
            rows.append(row | {"what": each.what, "evidence": each.evidence, "remedy": each.remedy})
        else:
            rows.append(row | {"what": None, "evidence": each, "remedy": None})
    return sorted(rows, key=lambda row: ("wrong", "suspect", "well", "unknown").index(row["status"]))


def tokenizer(e: Evidence) -> Finding | str:
    ours, theirs = e.tokenizer.get_vocab(), e.draft_tokenizer.get_vocab()
    if differing := sorted({index for _, index in ours.items() ^ theirs.items()}):
        names = [{index: token for token, index in vocabulary.items()} for vocabulary in (ours, theirs)]
        shown = difference(differing, names[0], names[1], ("the target", "the drafter"))
        remedy = "take a drafter of the target's own tokenizer"
        return Finding("the drafter has another tokenizer", f"{len(differing)} ids differ: {shown}", remedy)
    ends = [(each.bos_token, each.eos_token) for each in (e.tokenizer, e.draft_tokenizer)]
    if ends[0] == ends[1]:
        return f"the same {len(ours)} tokens, the same beginning and end of text"
    return Finding(
        "the drafter has other special tokens",
        f"beginning and end of text are {ends[0]} to the target, {ends[1]} to the drafter",
        "take a drafter of the same kind as the target, both base models or both instruct models",
    )


def chat_template(e: Evidence) -> Finding | str | None:
    if e.tokenizer.chat_template is None or not any(prompt.prompt_token for prompt in e.trace.prompts):
        return None
    added = set(e.tokenizer.added_tokens_decoder)
    marks = added & set(encode_prompt(e.tokenizer, "x")) - set(token_ids(e.tokenizer, "x"))
    if not marks:
        return None  # the template is plain text, which a prompt may hold by itself
    bare = sum(not marks & set(prompt.prompt_token) for prompt in e.trace.prompts)
    names = " ".join(e.tokenizer.convert_ids_to_tokens(sorted(marks)))
    if not bare:
        return f"every prompt has tokens of the chat template ({names})"
    return Finding(
        "prompts do not go through the target's chat template",
        f"{bare} of {len(e.trace.prompts)} prompts have none of its tokens ({names})",
        "leave out --raw, or post messages to /v1/chat/completions; a base model is right to have plain text",
    )


def made_for(e: Evidence) -> Finding | str:
    if not e.made_for:
        return f"the drafter was made for {e.target}"
    return Finding(
        "the drafter was trained on another checkpoint of the target",
        f"its files name {e.made_for}, the target is {e.target}",
        "load the target that it was trained on, or train it on this one (`draftgauge train --warm-start`)",
    )


def vocabulary_map(e: Evidence) -> Finding | str | None:
    """Also without the files: a drafter whose tokens carry other ids predicts well once its ids are translated."""
    remedy = "take d2t and t2d, or the tokenizer, from the files that the weights came with"
    if e.map_error:
        return Finding("the checkpoint's vocabulary map is damaged or of another checkpoint", e.map_error, remedy)
    if e.trace is None or e.trace.sampled is not None or e.kind == LOOKUP:
        return None if e.map_error is None else "d2t and t2d agree"
    if not e.near_chance:
        return f"{e.first[0]:.0%} of first drafted tokens are right as they are"
    rows, right = first_tokens(e.trace)
    output, before = e.trace.token[rows], np.roll(e.trace.token, 1)[rows]
    translated, repeated = translated_rate(e.trace.draft_token[rows, 0], output), translated_rate(before, output)
    # A drafter that knows nothing but the last token is translated as well as that token is.
    if translated - max(repeated, float(right.mean())) <= TOO_RARE:
        return f"translating the drafted ids does not help ({translated:.0%} right)"
    seen = f"{right.mean():.0%} of first drafted tokens are right, and {translated:.0%} if each id is translated to the"
    return Finding("the drafter's token ids are not the target's", f"{seen} token that is mostly in its place", remedy)


def translated_rate(ids: NDArray[Any], output: NDArray[Any]) -> float:
    """How often ``output`` is what was most often there for the same id, learned on every other position."""
    pairs, counts = np.unique(np.stack([ids[::2], output[::2]]), axis=1, return_counts=True)
    most = {int(pairs[0, at]): int(pairs[1, at]) for at in np.argsort(counts, kind="stable")}  # the last one stays
    tested = [most.get(int(one)) == actual for one, actual in zip(ids[1::2], output[1::2], strict=True)]
    return float(np.mean(tested)) if tested else 0.0


def layers_read(e: Evidence) -> Finding | str:
    own, best = next(iter(e.layer_rates)), max(e.layer_rates, key=e.layer_rates.__getitem__)
    rates = [f"{e.layer_rates[layers]:.0%} with those of {list(layers)}" for layers in (own, best)]
    if e.layer_rates[best] - e.layer_rates[own] <= TOO_RARE:
        return f"no neighbouring layers do better than {list(own)}"
    return Finding(
        "the drafter reads the wrong layers of the target",
        f"of its first tokens are right, with the outputs of which layers, from 0: {', '.join(rates)}",
        f"correct its config.json: target_layer_ids {list(best)}, or eagle_aux_hidden_state_layer_ids "
        f"{[layer + 1 for layer in best]}, which count what enters a layer",
    )


def thinking(e: Evidence) -> Finding | str | None:
    vocabulary = e.tokenizer.get_vocab()
    inside = _thinking_rows(e.trace, [[vocabulary.get(mark, -1) for mark in pair] for pair in THINKING])
    rows, right = first_tokens(e.trace)
    there = inside[rows]
    if min(there.sum(), (~there).sum()) < ENOUGH or e.near_chance:
        return "no thinking in the outputs" if not inside.any() else None
    rates = [float(right[part].mean()) for part in (there, ~there)]
    seen = f"{rates[0]:.0%} of first drafted tokens are accepted in thinking, {rates[1]:.0%} in answers"
    if 1 - min(rates) < TWICE * (1 - max(rates)):
        return seen
    return Finding(
        f"the drafter was not trained on {'thinking' if rates[0] < rates[1] else 'answers without thinking'}",
        seen,
        "think as its training data do (--chat-template-args '{\"enable_thinking\": false}'), or train it on both",
        certain=False,
    )


def _thinking_rows(trace: Trace, marks: list[list[int]]) -> NDArray[np.bool_]:
    """``[P]`` positions in a thought: from the output's beginning, or its opening mark, to its end."""
    inside = np.zeros(trace.positions, np.bool_)
    for start, stop in zip(trace.offsets[:-1], trace.offsets[1:], strict=True):
        for opening, closing in marks:
            opened, closed = (np.flatnonzero(trace.token[start:stop] == mark) for mark in (opening, closing))
            if len(opened) or len(closed):
                inside[start : start + closed[0] if len(closed) else stop] = True
    return inside


def compression(e: Evidence) -> Finding | str:
    target, drafter = e.compression
    full, seen = (UNCOMPRESSED, *DTYPES), f"target {target}, drafter {drafter}"
    if (target in full) == (drafter in full):
        return seen
    return Finding(
        "of target and drafter (or the target that it was trained on) one is quantised, the other not",
        seen,
        "compare acceptance at equal precision (`draftgauge profile --compression`), and keep the faster pair",
        certain=False,
    )


def context(e: Evidence) -> Finding | str:
    beyond = context_lengths(e.trace) > e.longest
    if not beyond.any():
        return f"no text is longer than the drafter's {e.longest} tokens"
    rows, right = first_tokens(e.trace)
    rates = [f"{right[part].mean():.0%}" if part.any() else "none" for part in (beyond[rows], ~beyond[rows])]
    return Finding(
        "texts are longer than the drafter was made for",
        f"{beyond.mean():.0%} of positions are beyond its {e.longest} tokens; accepted {rates[0]}, before {rates[1]}",
        "train it on longer texts, or switch speculation off for long requests",
    )


def temperature(e: Evidence) -> Finding | str:
    if e.trace.sampled is None:
        return "greedy decoding"
    rows, right = first_tokens(e.trace)
    undecided, rejected = e.trace.target_entropy[rows] > UNDECIDED, 1 - right
    share = float(rejected[undecided].sum() / max(rejected.sum(), 1e-9))
    seen = f"{share:.0%} of rejections are where the target itself is undecided (over {UNDECIDED:g} bit)"
    if share <= 0.5:  # most have other reasons
        return seen
    return Finding(
        "the sampling temperature costs acceptance",
        seen,
        "lower temperature or top_p if outputs allow it; stop drafts where entropy is high (policy svip)",
        certain=False,
    )


def busy(e: Evidence) -> Finding | str:
    if doubt := e.costs.doubt():
        remedy = "measure again on a quiet machine (--measure); costs are not judged here"
        return Finding("the machine was busy while costs were measured", doubt, remedy)
    return "the costs agree with each other"


def speedup(trace: Trace, costs: CostCurve) -> float:
    """Of the best fixed length over plain decoding; below 1 if none pays."""
    lengths = range(1, min(trace.gamma_max, costs.gamma_max) + 1)
    seconds = min(replay_lengths(trace, np.full(trace.positions, n), costs).seconds.sum() for n in lengths)
    return float(plain_seconds(trace, costs).sum() / seconds)


def draft_cost(e: Evidence) -> Finding | str | None:
    finding = Finding(
        "drafting costs too much on this device",
        f"drafting a token costs {e.costs.cost_ratio():.2f} of verifying one",
        "take a smaller drafter, one that reads the target (EAGLE-3, DFlash) or lookup, on the target's own device",
    )
    return _too_expensive(e, finding, _free_drafts(e.costs), _flat(e.costs))


def verify_cost(e: Evidence) -> Finding | str | None:
    row = e.costs.verify[len(e.costs.contexts) // 2]
    finding = Finding(
        "verification is not flat",
        f"verifying 2 tokens costs {row[1] / row[0]:.2f} times one, {len(row)} tokens {row[-1] / row[0]:.2f} times",
        "draft fewer tokens and stop early by a rule; fewer requests at once; another compression or kernel (quantised "
        "ones may dequantise anew for each token); mixtures of experts read more experts for more tokens",
    )
    return _too_expensive(e, finding, _flat(e.costs), _free_drafts(e.costs))


def _free_drafts(costs: CostCurve) -> CostCurve:
    return replace(costs, draft=tuple((0.0,) * len(row) for row in costs.draft), catch_up=(), signals=0.0)


def _flat(costs: CostCurve) -> CostCurve:
    return replace(costs, verify=tuple((row[0],) * len(row) for row in costs.verify))


def _too_expensive(e: Evidence, finding: Finding, without: CostCurve, without_other: CostCurve) -> Finding | str | None:
    """The finding if speculation does not pay and would without this cost, or if it would only without both."""
    if e.costs.doubt() or e.near_chance:
        return None  # not known, or not the reason
    now, then = speedup(e.trace, e.costs), speedup(e.trace, without)
    seen = f"{finding.evidence}; the best length is {now:.2f} times as fast as plain decoding"
    if now >= 1 or then < 1 <= speedup(e.trace, without_other):
        return seen
    return replace(finding, evidence=f"{seen}, and would be {then:.2f} times without that cost")


def depth(e: Evidence) -> Finding | str | None:
    """Acceptance that breaks down behind the first token."""
    if e.near_chance or (e.trace is None and e.counts is None):
        return None
    if e.counts is not None:
        rates = [(b / max(1, a), a) for a, b in pairwise((e.counts.drafts, *e.counts.by_position))]
    else:
        found = [row for row in acceptance_by_depth(e.trace, resamples=1) if row["task"] == ALL_TASKS]
        rates = [(row["rate"] or 0.0, row["positions"]) for row in found]
    shown = " ".join(f"{rate:.2f}" for rate, count in rates if count)
    seen = f"accepted at depth 1, 2, ... among those that got there: {shown}"
    broken = [k for k, (rate, count) in enumerate(rates) if k and count >= ENOUGH and rate <= TOO_RARE]
    if not broken:
        return seen
    return Finding(
        "the drafter breaks down behind its first tokens",
        seen,
        f"draft {broken[0]} at most; heads trained for one token (MTP) and EAGLE drafters trained without their own "
        "states (training-time test) do this, as does an engine that hands on the wrong states",
    )


def acceptance(e: Evidence, explained: bool) -> Finding | str | None:
    rate, chance, count = e.first
    seen = f"{rate:.0%} of {count} first drafted tokens are accepted, {chance:.0%} by chance"
    if e.counts is not None:
        seen += f"; acceptance length {1 + e.counts.accepted / e.counts.drafts:.2f}, the bonus token counted"
    if not e.near_chance or explained:
        return seen
    if e.kind == LOOKUP:
        return Finding("outputs repeat little of their text", seen, "take a drafter that is a model", certain=False)
    return Finding(
        "the drafter is right hardly more often than chance",
        seen,
        "no other check explains it. By hand: weights that were not loaded (missing keys in an engine's log), another "
        "checkpoint or fine-tune of the target, prompts or thinking unlike the training data",
    )


Check = Callable[[Evidence], Finding | str | None]
CHECKS: dict[str, tuple[tuple[str, ...], Check]] = {
    "tokenizer": (("tokenizer", "draft_tokenizer"), tokenizer),
    "chat-template": (("tokenizer", "trace"), chat_template),
    "made-for": (("made_for",), made_for),
    "vocabulary-map": ((), vocabulary_map),
    "layers-read": (("layer_rates",), layers_read),
    "thinking": (("tokenizer", "trace"), thinking),
    "compression": (("compression",), compression),
    "context": (("longest", "trace"), context),
    "temperature": (("trace",), temperature),
    "busy-machine": (("costs",), busy),
    "draft-cost": (("trace", "costs"), draft_cost),
    "verify-cost": (("trace", "costs"), verify_cost),
    "depth": ((), depth),
}
