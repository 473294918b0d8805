"""Which prompts a policy is fitted and judged on: whole prompts, as the steps of one depend on each other.

Policies that were fitted on another pair, or on the prompts to judge, are warned of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError, warn
from draftgauge.core.prompts import SPLITS, TEST, TRAIN, VALIDATION
from draftgauge.policies.spec import PolicySpec
from draftgauge.traces.trace import PromptInfo, Trace, conversations, select

EVERYTHING = "all"
"""The split name of all prompts of a trace together."""

MIN_PROMPTS = 8
"""Fewer prompts than this make no split: an interval resampled from them would mean nothing."""

SHARES = {TRAIN: 0.6, VALIDATION: 0.2, TEST: 0.2}


@dataclass(frozen=True)
class Design:
    """Which prompts of a trace an evaluation uses.

    Attributes:
        split: name of the prompts evaluated on: one of :data:`SPLITS`, or :data:`EVERYTHING`.
        trace: those prompts.
        train: the prompts that the best fixed length is chosen on; None where those are the very prompts evaluated on.
    """

    split: str
    trace: Trace
    train: Trace | None

    @property
    def training(self) -> Trace:
        return self.trace if self.train is None else self.train


def prompt_keys(trace: Trace) -> list[str]:
    return [prompt_key(prompt) for prompt in trace.prompts]


def keys_of(traces: Sequence[Trace]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for trace in traces for key in prompt_keys(trace)))


def prompt_key(prompt: PromptInfo) -> str:
    return f"{prompt.task}/{prompt.identifier}"


def names_splits(trace: Trace) -> bool:
    return any(prompt.split == TRAIN for prompt in trace.prompts)


def only_test(trace: Trace) -> bool:
    return all(prompt.split == TEST for prompt in trace.prompts)


def splits_of(trace: Trace) -> NDArray[np.str_]:
    """``[prompts]`` the split of every prompt.

    Where prompts name "train", what they name. Elsewhere 60% of every task train, 20% validate and 20% test, in the
    order of a hash of ``task/identifier``. That order is the same for every compression, draft and machine, and
    whatever other tasks the trace holds. The turns of a conversation stay together, where its first one belongs.
    """
    if names_splits(trace):
        return np.array([prompt.split for prompt in trace.prompts])
    conversation = conversations(trace)
    first = [trace.prompts[row] for row in np.unique(conversation, return_index=True)[1]]
    splits = np.full(len(first), VALIDATION)
    tasks = np.array([prompt.task for prompt in first])
    digests = np.array([hashlib.sha256(prompt_key(prompt).encode()).hexdigest() for prompt in first])
    for task in np.unique(tasks):
        members = np.flatnonzero(tasks == task)
        shuffled = members[np.argsort(digests[members], kind="stable")]
        # Of two or three prompts one is for testing; a validation prompt comes with the fourth.
        testing = max(round(SHARES[TEST] * len(members)), int(len(members) > 1))
        training = max(round(SHARES[TRAIN] * len(members)), 1)
        splits[shuffled[:training]] = TRAIN
        splits[shuffled[len(members) - testing :]] = TEST
    return splits[conversation]


def split_trace(trace: Trace, split: str, least: int = MIN_PROMPTS, why: str = "") -> Trace:
    """The prompts of one split (see :func:`splits_of`); all of them for "all".

    Args:
        least: prompts that it must have.
    """
    if split == EVERYTHING:
        return trace
    splits = splits_of(trace)
    if split not in {*SPLITS, *splits.tolist()}:
        raise TraceError(
            f"there is no split {split!r}; prompts are divided into {', '.join(SPLITS)}, or taken together as "
            f"{EVERYTHING}"
        )
    chosen = splits == split
    count = int(chosen.sum())
    if count < least:
        raise TraceError(f"{why}{_too_few(trace, split, count, least, split == TRAIN and least > 1)}")
    return select(trace, chosen)


def _too_few(trace: Trace, split: str, count: int, least: int, fixed: bool) -> str:
    """What to do about a split without prompts enough."""
    if names_splits(trace):
        more = f"more {split} prompts"
    else:
        shares = ", ".join(f"{share:.0%} {name}" for name, share in SHARES.items())
        more = f"some {ceil(least / SHARES[split])} prompts (those that name no split are divided, {shares})"
    together = "" if fixed else f", or take all of them together with --split {EVERYTHING}"
    return (
        f"{count} of the {len(trace.prompts)} recorded prompts {'is' if count == 1 else 'are'} {split} prompts, and it "
        f"takes {least} or more: record {more}{together}"
    )


def design_of(trace: Trace, split: str | None = None, trained_on: Collection[str] = ()) -> Design:
    """What to evaluate on and what to choose the best fixed length on.

    Args:
        split: to evaluate on. If None, "test" where the prompts name enough of both train and test ones, or where some
            of them are in ``trained_on``; else all prompts. If "test", all where none is named otherwise nor learned.
        trained_on: ``task/identifier`` of the prompts that the policies to be evaluated were fitted on.
    """
    why, seen = "", bool(set(trained_on).intersection(prompt_keys(trace)))
    if split is None:
        named = all(sum(prompt.split == name for prompt in trace.prompts) >= MIN_PROMPTS for name in (TRAIN, TEST))
        split = TEST if named or seen else EVERYTHING
        why = "a policy was fitted on some of these prompts, so test prompts are to judge it on, but " if seen else ""
    elif split == TEST and not seen and only_test(trace):
        return Design(TEST, trace, None)
    judged = split_trace(trace, split, why=why)
    return Design(split, judged, None if split in (TRAIN, EVERYTHING) else split_trace(trace, TRAIN))


PAIR = "pair"
"""Key of a fitted policy's provenance: fingerprints of target and draft."""


def fitted_on(policies: Sequence[PolicySpec]) -> set[str]:
    return {key for policy in policies if policy.fitted is not None for key in policy.fitted.trained_on}


def warn_of_other_pairs(policies: Sequence[PolicySpec], pair: Mapping[str, str | None]) -> None:
    """Warn of policies that were fitted on another target or draft than ``pair``, the fingerprints of these."""
    for policy in policies:
        fitted = {} if policy.fitted is None else policy.fitted.provenance
        if PAIR in fitted and fitted[PAIR] != dict(pair):
            warn(
                f"{policy} was fitted on another pair ({fitted.get('target')} and "
                f"{fitted.get('draft') or 'no model'}): its chances of acceptance are of that one; fit it on a run of "
                "this pair"
            )


def warn_of_seen(run: Path, design: Design, policies: Sequence[PolicySpec]) -> None:
    """Warn of policies that are evaluated on prompts that they were fitted on."""
    keys = set(prompt_keys(design.trace))
    for policy in policies:
        if policy.fitted is not None and (seen := len(keys.intersection(policy.fitted.trained_on))):
            warn(
                f"{policy} was fitted on {seen} of the {len(keys)} prompts that it is evaluated on ({run}, split "
                f"{design.split!r}): what it gains there says little about other prompts"
            )
