"""Which prompts a policy is fitted and judged on: whole prompts, as the steps of one depend on each other."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.prompts import SPLITS, TEST, TRAIN, VALIDATION
from draftgauge.traces.build import select
from draftgauge.traces.trace import PromptInfo, Trace

EVERYTHING = "all"
"""The split name of all prompts of a trace together."""

MIN_PROMPTS = 8
"""Fewer prompts than this make no split: an interval resampled from them would mean nothing."""

TRAIN_SHARE, TEST_SHARE = 0.6, 0.2


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


def prompt_keys(trace: Trace) -> list[str]:
    """``task/identifier`` of every prompt: how fitted policies name what they were fitted on."""
    return [prompt_key(prompt) for prompt in trace.prompts]


def prompt_key(prompt: PromptInfo) -> str:
    """``task/identifier``."""
    return f"{prompt.task}/{prompt.identifier}"


def names_splits(trace: Trace) -> bool:
    """Whether the prompts themselves say which of them are for training."""
    return any(prompt.split == TRAIN for prompt in trace.prompts)


def splits_of(trace: Trace) -> NDArray[np.str_]:
    """``[prompts]`` the split of every prompt.

    Where prompts name "train", what they name. Elsewhere 60% train, 20% validation and 20% test of every task, in the
    order of a hash of ``task/identifier``: the same for every compression, draft and machine, and whatever other tasks
    the trace holds.
    """
    if names_splits(trace):
        return np.array([prompt.split for prompt in trace.prompts])
    splits = np.full(len(trace.prompts), VALIDATION)
    tasks = np.array([prompt.task for prompt in trace.prompts])
    digests = np.array([hashlib.sha256(key.encode()).hexdigest() for key in prompt_keys(trace)])
    for task in np.unique(tasks):
        members = np.flatnonzero(tasks == task)
        shuffled = members[np.argsort(digests[members], kind="stable")]
        # Of two or three prompts one is for testing; a validation prompt comes with the fourth.
        testing = max(round(TEST_SHARE * len(members)), int(len(members) > 1))
        training = max(round(TRAIN_SHARE * len(members)), 1)
        splits[shuffled[:training]] = TRAIN
        splits[shuffled[len(members) - testing :]] = TEST
    return splits


def split_trace(trace: Trace, split: str) -> Trace:
    """The prompts of one split (see :func:`splits_of`); all of them for "all".

    Raises:
        TraceError: for an unknown split, or one of fewer than :data:`MIN_PROMPTS` prompts.
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
    if count < MIN_PROMPTS:
        raise TraceError(
            f"the {split} split of this trace has {count} prompts, fitting and evaluating take {MIN_PROMPTS} or more: "
            f"record more prompts; what was fitted on none of them `draftgauge replay` judges on all with --split "
            f"{EVERYTHING}"
        )
    return select(trace, chosen)


def design_of(trace: Trace, split: str | None = None, trained_on: Collection[str] = ()) -> Design:
    """What to evaluate on and what to choose the best fixed length on.

    Args:
        trace: all recorded prompts.
        split: to evaluate on. If None, "test" where the prompts name both train and test ones, or where some of them
            are in ``trained_on``; else all prompts.
        trained_on: ``task/identifier`` of the prompts that the policies to be evaluated were fitted on.

    Raises:
        TraceError: as :func:`split_trace`.
    """
    if split is None:
        named = {prompt.split for prompt in trace.prompts} >= {TRAIN, TEST}
        split = TEST if named or set(trained_on).intersection(prompt_keys(trace)) else EVERYTHING
    judged_alone = split in (TRAIN, EVERYTHING)
    return Design(split, split_trace(trace, split), None if judged_alone else split_trace(trace, TRAIN))


def choosing_unseen(design: Design, trace: Trace, trained_on: Collection[str]) -> Design:
    """The same with validation prompts in the place of training ones that a policy was fitted on.

    A fitted policy looks better on its own prompts than fixed lengths do, so to choose between them takes others. The
    design stays as it is where validation prompts are judged, are fewer than :data:`MIN_PROMPTS`, or were seen too.

    Args:
        design: of the trace.
        trace: all recorded prompts.
        trained_on: ``task/identifier`` of the prompts that policies were fitted on.
    """
    seen = set(trained_on)
    if design.train is None or design.split == VALIDATION or not seen.intersection(prompt_keys(design.train)):
        return design
    validation = splits_of(trace) == VALIDATION
    if validation.sum() < MIN_PROMPTS:
        return design
    unseen = select(trace, validation)
    return design if seen.intersection(prompt_keys(unseen)) else replace(design, train=unseen)
