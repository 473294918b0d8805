"""The usual reasons for low acceptance or no speed-up, each looked for in what is known of a pair.

A check takes the evidence and says whether its fault is there, and what it saw; None where that cannot be told. A check
that lacks evidence is not made. Acceptance near chance is a symptom: a fault only where no other explains it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.parts import LEVELS
from draftgauge.judging.acceptance import acceptance_by_context, acceptance_by_depth
from draftgauge.judging.acceptance import shown as of_contexts
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.replay import plain_replay, replay_fixed_all
from draftgauge.serving.advice import acceptance_to_pay
from draftgauge.serving.counters import SpeculationCounts, constant_chance
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, context_lengths, narrow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Accepted this rarely, a drafted token adds 0.1 tokens to a step: it pays only if verifying two tokens costs less than
# 1.1 times verifying one, even where drafting is free.
TOO_RARE = 0.1
SELDOM = 1 / 3  # accepted this rarely, drafting adds half a token to a step however far it goes
ENOUGH = 100  # tokens to judge a rate by: its standard error is then at most 0.05, half of TOO_RARE
WORTH = 1.1  # a speed-up below this may not be worth a drafter's memory and care
TWICE = 2.0  # as many rejections per token halve the number of tokens accepted in a row
UNDECIDED = 1.0  # bits: the entropy of a fair coin
LOOKUP, CHECKPOINT, MTP = "prompt_lookup", "checkpoint", "mtp"
UNKNOWN: Any = None  # a check is only made where what it needs is known, so that it need not ask
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"))  # Qwen, Mistral, Gemma 4
Seen = tuple[bool, str] | None


@dataclass(frozen=True)
class Evidence:
    """What is known of a pair; None where nothing is.

    Attributes:
        target, kind: the target's name; the kind of drafter, as manifests have it.
        made_for: the target that the drafter's files name; empty if it is this one.
        map_error: what is wrong with a checkpoint's vocabulary map; empty if nothing is.
        mtp_missing, mtp_quantised, mtp_shifted: what is wrong with an MTP head's tensors; empty if nothing is.
        layout_rates: share of right first drafted tokens, by what a checkpoint's configuration may be meant to say,
            as it stands first.
        mtp_rates: the same by how the inputs of an MTP head may be meant.
        compression: how the target is held, and how the drafter is, or the target was when the drafter was trained.
        longest: text in tokens that the drafter was made for.
    """

    target: str = "the target"
    kind: str = UNKNOWN
    tokenizer: PreTrainedTokenizerBase = UNKNOWN
    draft_tokenizer: PreTrainedTokenizerBase = UNKNOWN
    made_for: str = UNKNOWN
    map_error: str = UNKNOWN
    layout_rates: Mapping[str, float] = UNKNOWN
    compression: tuple[str, str] = UNKNOWN
    longest: int = UNKNOWN
    trace: Trace = UNKNOWN
    costs: CostCurve = UNKNOWN
    counts: SpeculationCounts = UNKNOWN
    mtp_missing: str = UNKNOWN
    mtp_quantised: str = UNKNOWN
    mtp_shifted: str = UNKNOWN
    mtp_rates: Mapping[str, float] = UNKNOWN

    @cached_property
    def first(self) -> tuple[float, float, int]:
        """The share of first drafted tokens that are accepted, that which chance would give them, and how many there
        are. Chance: each compared with the output at another, random position."""
        if self.counts is None and self.trace is None:
            return UNKNOWN
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
        rate, chance, count = self.first or (0.0, 0.0, 0)
        return count > 0 and chance < 1 and rate - chance <= TOO_RARE * (1 - chance)

    @property
    def too_rare(self) -> bool:
        """Whether drafted tokens are accepted so rarely that no cost of a step is to blame."""
        return self.near_chance or (self.trace is not None and self.first[2] > 0 and self.first[0] < SELDOM)

    @cached_property
    def best(self) -> tuple[float, int, float | None]:
        """As of :func:`best_fixed`, and the least acceptance that pays; infinite speed where costs are not known."""
        if self.trace is None or self.costs is None or self.costs.doubt():
            return np.inf, 0, None
        least = acceptance_to_pay(narrow(self.trace, self.costs.gamma_max), self.costs)
        return (*best_fixed(self.trace, self.costs), least)


def first_tokens(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Positions from which something was drafted, and the chance that its first token is accepted (greedy: 0 or 1)."""
    rows = np.flatnonzero(trace.drafted > 0)
    if trace.sampled is not None:
        return rows, np.nan_to_num(trace.sampled.acceptance[rows]).astype(np.float64)
    return rows, (trace.draft_token[rows, 0] == trace.token[rows]).astype(np.float64)


def examine(evidence: Evidence) -> list[dict[str, Any]]:
    """All checks: rows with ``check``, ``status`` ("wrong", "suspect", "well", or "unknown" for lack of evidence),
    ``what``, ``evidence`` and ``remedy``; the faults first."""
    rows: list[dict[str, Any]] = []
    for name, (check, needs) in CHECKS.items():
        seen = check(evidence) if all(getattr(evidence, need) is not None for need in needs) else None
        fault = seen is not None and seen[0]
        text, suspect = TEXTS[name], name in SUSPECT
        if check is acceptance:
            fault = fault and not any(row["status"] == "wrong" for row in rows)
            if evidence.too_rare and not evidence.near_chance:
                text, suspect = TEXTS["seldom"], evidence.best[0] >= 1
        status = "unknown" if seen is None else "well" if not fault else "suspect" if suspect else "wrong"
        rows.append(row_of(name, status, seen and seen[1], text))
    return in_order(rows)


def row_of(check: str, status: str, evidence: str | None, text: Mapping[str, str] | None = None) -> dict[str, Any]:
    text = text or TEXTS[check]
    what, remedy = (text["what"], text["do"]) if status in ("wrong", "suspect") else (None, None)
    return {"check": check, "status": status, "what": what, "evidence": evidence, "remedy": remedy}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: ("wrong", "suspect", "well", "unknown").index(row["status"]))


def tokenizer(e: Evidence) -> Seen:
    from draftgauge.models.tokenizer import difference

    ours, theirs = e.tokenizer.get_vocab(), e.draft_tokenizer.get_vocab()
    if differing := sorted({index for _, index in ours.items() ^ theirs.items()}):
        names = [{index: token for token, index in vocabulary.items()} for vocabulary in (ours, theirs)]
        shown = difference(differing, names[0], names[1], ("the target", "the drafter"))
        return True, f"{len(differing)} ids differ: {shown}"
    ends = [(each.bos_token, each.eos_token) for each in (e.tokenizer, e.draft_tokenizer)]
    if ends[0] != ends[1]:
        return True, f"beginning and end of text are {ends[0]} to the target, {ends[1]} to the drafter"
    return False, f"the same {len(ours)} tokens, the same beginning and end of text"


def chat_template(e: Evidence) -> Seen:
    from draftgauge.models.tokenizer import encode_prompt, token_ids

    if e.tokenizer.chat_template is None or not any(prompt.prompt_token for prompt in e.trace.prompts):
        return None
    added = set(e.tokenizer.added_tokens_decoder)
    marks = added & set(encode_prompt(e.tokenizer, "x")) - set(token_ids(e.tokenizer, "x"))
    if not marks:
        return None  # the template is plain text, which a prompt may hold by itself
    bare = sum(not marks & set(prompt.prompt_token) for prompt in e.trace.prompts)
    names = " ".join(e.tokenizer.convert_ids_to_tokens(sorted(marks)))
    return bare > 0, f"{bare} of {len(e.trace.prompts)} prompts have none of the template's tokens ({names})"


def made_for(e: Evidence) -> Seen:
    return bool(e.made_for), f"made for {e.made_for or e.target}, the target is {e.target}"


def vocabulary_map(e: Evidence) -> Seen:
    """Also without the files: a drafter whose tokens carry other ids predicts well once its ids are translated."""
    if e.map_error:
        return True, e.map_error
    if e.trace is None or e.trace.sampled is not None or e.kind == LOOKUP:
        return None if e.map_error is None else (False, "d2t and t2d agree")
    rate = e.first[0]
    if not e.near_chance:
        return False, f"{rate:.0%} of first drafted tokens are right as they are"
    if e.first[2] < ENOUGH:
        return None
    rows, _ = first_tokens(e.trace)
    output, before = e.trace.token[rows], np.roll(e.trace.token, 1)[rows]
    translated, repeated = translated_rate(e.trace.draft_token[rows, 0], output), translated_rate(before, output)
    seen = (
        f"{rate:.0%} of first drafted tokens are right, and {translated:.0%} with ids translated to those mostly there"
    )
    # A drafter that knows nothing but the last token is translated as well as that token is, and one that is stuck on
    # a token as well as nothing at all.
    return translated - max(repeated, rate, translated_rate(0 * output, output)) > TOO_RARE, seen


def translated_rate(ids: NDArray[Any], output: NDArray[Any]) -> float:
    """How often ``output`` is what was most often there for the same id, learned on every other position."""
    pairs, counts = np.unique(np.stack([ids[::2], output[::2]]), axis=1, return_counts=True)
    most = {int(pairs[0, at]): int(pairs[1, at]) for at in np.argsort(counts, kind="stable")}  # the last one stays
    tested = [most.get(int(one)) == actual for one, actual in zip(ids[1::2], output[1::2], strict=True)]
    return float(np.mean(tested)) if tested else 0.0


def _best_reading(rates: Mapping[str, float]) -> Seen:
    own, best = next(iter(rates)), max(rates, key=rates.__getitem__)
    shown = "; ".join(f"{rates[how]:.0%} with {how}" for how in dict.fromkeys((own, best)))
    return rates[best] - rates[own] > TOO_RARE, f"first tokens are right: {shown}"


def thinking(e: Evidence) -> Seen:
    vocabulary = e.tokenizer.get_vocab()
    inside = _thinking_rows(e.trace, [[vocabulary.get(mark, -1) for mark in pair] for pair in THINKING])
    rows, right = first_tokens(e.trace)
    there = inside[rows]
    if min(there.sum(), (~there).sum()) < ENOUGH or e.near_chance:
        return None if inside.any() else (False, "no thinking in the outputs")
    rates = [float(right[part].mean()) for part in (there, ~there)]
    seen = f"{rates[0]:.0%} of first drafted tokens are accepted in thinking, {rates[1]:.0%} in answers"
    return 1 - min(rates) >= TWICE * (1 - max(rates)), seen


def _thinking_rows(trace: Trace, marks: list[list[int]]) -> NDArray[np.bool_]:
    """``[P]`` positions in thoughts, from an opening mark to the next closing one. The opening one may stand in the
    prompt or before what was recorded."""
    inside = np.zeros(trace.positions, np.bool_)
    for prompt, output, start in zip(trace.prompts, trace.outputs, trace.offsets, strict=False):
        for opening, closing in marks:
            marked = np.where(output == opening, 1, np.where(output == closing, -1, 0))
            before = [token == opening for token in prompt.prompt_token if token in (opening, closing)]
            # A closing mark that comes first ends a thought that began before the output.
            begun = before[-1:] == [True] or marked[marked != 0][:1].tolist() == [-1]
            last = np.maximum.accumulate(np.where(marked != 0, np.arange(len(marked)), -1))
            inside[start : start + len(output)] |= np.where(last < 0, begun, marked[last] > 0)
    return inside


def compression(e: Evidence) -> Seen:
    target, drafter = e.compression
    full, also = (LEVELS.get(name) == 0 for name in e.compression)
    return full != also, f"target {target}, drafter (or the target of its training) {drafter}"


def context(e: Evidence) -> Seen:
    beyond = context_lengths(e.trace) > e.longest
    rows, right = first_tokens(e.trace)
    rates = [f"{right[part].mean():.0%}" if part.any() else "none" for part in (beyond[rows], ~beyond[rows])]
    seen = f"{beyond.mean():.0%} of positions are beyond the drafter's {e.longest} tokens"
    return bool(beyond.any()), seen + f": accepted {rates[0]}, before {rates[1]}" * bool(beyond.any())


def temperature(e: Evidence) -> Seen:
    if e.trace.sampled is None:
        return False, "greedy decoding"
    rows, right = first_tokens(e.trace)
    undecided, rejected = e.trace.target_entropy[rows] > UNDECIDED, 1 - right
    share = float(rejected[undecided].sum() / max(rejected.sum(), 1e-9))
    return share > 0.5, f"{share:.0%} of rejections are where the target is undecided (over {UNDECIDED:g} bit)"


def busy(e: Evidence) -> Seen:
    doubt = e.costs.doubt()
    return bool(doubt), doubt or "the costs agree with each other"


def best_fixed(trace: Trace, costs: CostCurve) -> tuple[float, int]:
    """The speed of the best fixed length over plain decoding, below 1 if none pays, and that length."""
    seconds = [of.seconds.sum() for of in replay_fixed_all(narrow(trace, costs.gamma_max), costs)[1:]]
    best = int(np.argmin(seconds))
    return float(plain_replay(trace, costs).seconds.sum() / seconds[best]), best + 1


def draft_cost(e: Evidence) -> Seen:
    seen = f"drafting a token costs {e.costs.cost_ratio():.2f} of verifying one"
    return _too_expensive(e, seen, "draft")


def verify_cost(e: Evidence) -> Seen:
    row = e.costs.verify[len(e.costs.contexts) // 2]
    seen = f"verifying 2 tokens costs {row[1] / row[0]:.2f} times one, {len(row)} tokens {row[-1] / row[0]:.2f} times"
    return _too_expensive(e, seen, "verify")


def rollback_cost(e: Evidence) -> Seen:
    if not e.costs.rollback or e.costs.doubt():
        return None if e.costs.rollback else (False, "no recurrent state has to be rolled back")
    now, then = e.best[0], best_fixed(e.trace, replace(e.costs, rollback=()))[0]
    share = e.costs.rollback[0] / e.costs.verify[len(e.costs.contexts) // 2][1]
    seen = f"a rejected first token costs {share:.0%} of verifying it; the best length is {now:.2f} times"
    return then >= WORTH and now - 1 < (then - 1) / 2, f"{seen} as fast as plain decoding, {then:.2f} without that"


def _too_expensive(e: Evidence, cost: str, part: str) -> Seen:
    """Whether speculation does not pay and would without this part of the costs, or would only without both."""
    if e.costs.doubt():
        return None
    free = replace(e.costs, draft=tuple((0.0,) * len(row) for row in e.costs.draft), catch_up=(), signals=0.0)
    flat = replace(e.costs, verify=tuple((row[0],) * len(row) for row in e.costs.verify))
    both = replace(free, verify=flat.verify)
    without = (free, flat, both) if part == "draft" else (flat, free, both)
    then, other, neither = (best_fixed(e.trace, costs)[0] for costs in without)
    now = e.best[0]
    seen = f"{cost}; on all {len(e.trace.prompts)} prompts the best length is {now:.2f} times as fast as plain decoding"
    if e.too_rare and now < WORTH:  # to blame, unless no acceptance would be enough
        return None if e.best[2] is None else (False, f"{seen}, as too little is accepted")
    if now >= 1 or (then < 1 and (other >= 1 or neither < 1)):  # the other is to blame, or none of them
        return False, seen
    return True, f"{seen}, and would be {then:.2f} times without that cost"


def depth(e: Evidence) -> Seen:
    if e.near_chance or (e.counts is not None and not (e.counts.by_position and e.counts.alike)):
        return None
    if e.counts is not None:
        rates = [(b / max(1, a), a) for a, b in pairwise((e.counts.drafts, *e.counts.by_position))]
    else:
        found = [row for row in acceptance_by_depth(e.trace, resamples=1) if row["task"] == ALL_TASKS]
        rates = [(row["alpha"] or 0.0, row["positions"]) for row in found]
    shown = " ".join(f"{rate:.2f}" for rate, count in rates if count)
    by_context = acceptance_by_context(e.trace) if e.trace is not None else {}
    broken = any(count >= ENOUGH and rate <= TOO_RARE for rate, count in rates[1:])
    seen = f"accepted at depth 1, 2, ... among those that got there: {shown}"
    return broken, f"{seen}; {of_contexts(by_context)} of context" if len(by_context) > 1 else seen


def long_context(e: Evidence) -> Seen:
    rates = {name: of[0] for name, of in acceptance_by_context(e.trace).items()}
    if len(rates) < 2 or e.near_chance:
        return None
    first, *_, last = rates.values()
    seen = ", ".join(f"{rate:.0%} of first drafted tokens accepted at {name}" for name, rate in rates.items())
    return 1 - last > TWICE * (1 - first) and last < first, f"{seen} of context"


def acceptance(e: Evidence) -> Seen:
    rate, chance, count = e.first
    seen = f"{rate:.0%} of {count} first drafted tokens are accepted, {chance:.0%} by chance"
    if e.counts is not None:
        seen += f"; acceptance length {1 + e.counts.accepted / e.counts.drafts:.2f}, the bonus token counted"
    speed, length, least = e.best
    if slow := e.too_rare and speed < WORTH:
        seen += f"; least that pays at these costs: {'none' if least is None else f'{least:.0%}'}; "
        seen += f"the best fixed length, {length}, is modelled at {speed:.2f} times plain decoding"
    return e.near_chance or count == 0 or slow, seen


SUSPECT = (
    "mtp-norms",
    "thinking",
    "compression",
    "long-context",
    "temperature",
)  # harmful in some pairs: no error by itself
TEXTS = tomllib.loads(files(__package__).joinpath("checks.toml").read_text("utf-8"))
# By name: the check, and the evidence that it needs.
CHECKS: dict[str, tuple[Callable[[Evidence], Seen], tuple[str, ...]]] = {
    "tokenizer": (tokenizer, ("tokenizer", "draft_tokenizer")),
    "chat-template": (chat_template, ("tokenizer", "trace")),
    "made-for": (made_for, ("made_for",)),
    "vocabulary-map": (vocabulary_map, ()),
    "layout": (lambda e: _best_reading(e.layout_rates), ("layout_rates",)),
    "mtp-tensors": (lambda e: (bool(e.mtp_missing), e.mtp_missing or "all are there"), ("mtp_missing",)),
    "mtp-quantised": (lambda e: (bool(e.mtp_quantised), e.mtp_quantised or "none is"), ("mtp_quantised",)),
    "mtp-norms": (lambda e: (bool(e.mtp_shifted), e.mtp_shifted or "as the target's own"), ("mtp_shifted",)),
    "mtp-layout": (lambda e: _best_reading(e.mtp_rates), ("mtp_rates",)),
    "thinking": (thinking, ("tokenizer", "trace")),
    "compression": (compression, ("compression",)),
    "context": (context, ("longest", "trace")),
    "long-context": (long_context, ("trace",)),
    "temperature": (temperature, ("trace",)),
    "busy-machine": (busy, ("costs",)),
    "draft-cost": (draft_cost, ("trace", "costs")),
    "verify-cost": (verify_cost, ("trace", "costs")),
    "rollback-cost": (rollback_cost, ("trace", "costs")),
    "depth": (depth, ("first",)),
    "acceptance": (acceptance, ("first",)),
}
