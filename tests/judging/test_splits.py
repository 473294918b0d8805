"""Prompts are divided the same way everywhere, and never so thinly that a figure would mean nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from draftgauge.core.errors import TraceError
from draftgauge.judging.splits import MIN_PROMPTS, design_of, prompt_keys, split_trace, splits_of
from draftgauge.traces.trace import Trace, select
from synthetic import SPLITS, same_rows, synthetic_trace


def renamed(trace: Trace, split: str) -> Trace:
    """The same prompts, all of one split."""
    return replace(trace, prompts=tuple(replace(prompt, split=split) for prompt in trace.prompts))


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Of every task 10 prompts, 4, 3 and 3 of the splits."""
    return synthetic_trace(8, prompts=40, length=12, gamma_max=4)


def test_prompts_that_name_training_ones_are_taken_at_their_word(trace: Trace) -> None:
    assert splits_of(trace).tolist() == [prompt.split for prompt in trace.prompts]
    train = split_trace(trace, "train")
    assert {prompt.split for prompt in train.prompts} == {"train"}
    assert same_rows(train, select(trace, splits_of(trace) == "train"))


@pytest.mark.parametrize("name", ["", "test"])
def test_others_are_divided_within_every_task(trace: Trace, name: str) -> None:
    found = splits_of(renamed(trace, name))
    counts = Counter((prompt.task, split) for prompt, split in zip(trace.prompts, found.tolist(), strict=True))
    assert len(counts) == 12
    for (_, split), count in counts.items():
        assert count == {"train": 6, "validation": 2, "test": 2}[split]


def test_the_division_follows_the_prompts_wherever_they_stand(trace: Trace) -> None:
    unnamed = renamed(trace, "")
    known = dict(zip(prompt_keys(unnamed), splits_of(unnamed).tolist(), strict=True))
    one_task = select(unnamed, [prompt.task == "math" for prompt in unnamed.prompts])
    assert dict(zip(prompt_keys(one_task), splits_of(one_task).tolist(), strict=True)).items() <= known.items()
    backwards = replace(unnamed, prompts=unnamed.prompts[::-1])
    assert dict(zip(prompt_keys(backwards), splits_of(backwards).tolist(), strict=True)) == known
    assert list(known.values()) != sorted(known.values())


def test_turns_of_a_conversation_stay_together(trace: Trace) -> None:
    prompts = tuple(
        replace(prompt, task="chat", identifier=f"{prompt.index // 2}" + "/2" * (prompt.index % 2))
        for prompt in renamed(trace, "").prompts
    )
    split = splits_of(replace(trace, prompts=prompts, turns=2))
    assert (split[::2] == split[1::2]).all()
    assert Counter(split.tolist()) == {"train": 24, "validation": 8, "test": 8}
    apart = splits_of(replace(trace, prompts=prompts))
    assert (apart[::2] != apart[1::2]).any()


@pytest.mark.parametrize(
    ("prompts", "expected"), [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (2, 0, 1)), (4, (2, 1, 1)), (5, (3, 1, 1))]
)
def test_few_prompts_of_a_task_are_trained_and_tested_on_first(prompts: int, expected: tuple[int, ...]) -> None:
    few = renamed(synthetic_trace(1, prompts=prompts, length=5, gamma_max=2), "")
    one_task = replace(few, prompts=tuple(replace(prompt, task="code") for prompt in few.prompts))
    counts = Counter(splits_of(one_task).tolist())
    assert tuple(counts[split] for split in SPLITS) == expected


def test_a_split_of_too_few_prompts_is_refused_with_their_number() -> None:
    small = synthetic_trace(8, prompts=19, length=12, gamma_max=4)  # 8, 7 and 4
    assert len(split_trace(small, "train").prompts) == MIN_PROMPTS
    with pytest.raises(TraceError, match=r"4 of the 19 recorded prompts are test prompts, .* 8 or more: record more"):
        split_trace(small, "test")
    assert len(split_trace(small, "test", least=4).prompts) == 4
    unnamed = renamed(synthetic_trace(8, prompts=5, length=12, gamma_max=4), "")
    with pytest.raises(TraceError, match=r"^3 of the 5 .*: record some 14 prompts \(.* 60% train, 20%"):
        split_trace(replace(unnamed, prompts=tuple(replace(p, task="code") for p in unnamed.prompts)), "train")
    with pytest.raises(TraceError, match=r"fitted on some of these prompts.*, but 4 of .* with --split all"):
        design_of(small, None, prompt_keys(small)[:1])
    assert split_trace(small, "all") is small
    with pytest.raises(TraceError, match=r"no split 'dev'.*train, validation, test"):
        split_trace(small, "dev")


def test_what_is_evaluated_on_by_default(trace: Trace) -> None:
    design = design_of(trace)
    assert (design.split, {prompt.split for prompt in design.trace.prompts}) == ("test", {"test"})
    assert design.train is not None
    assert {prompt.split for prompt in design.train.prompts} == {"train"}

    for split, named in ((None, "all"), ("test", "test")):
        together = design_of(renamed(trace, "test"), split)
        assert (together.split, together.train) == (named, None)
        assert len(together.trace.prompts) == len(trace.prompts)
    assert len(design_of(renamed(trace, "test"), "test", ["math/p1"]).trace.prompts) == 8  # fitted on the others

    fitted = design_of(renamed(trace, ""), trained_on=["math/p1", "elsewhere/p9"])
    assert fitted.split == "test"
    assert fitted.train is not None
    assert not set(prompt_keys(fitted.train)) & set(prompt_keys(fitted.trace))
    assert design_of(renamed(trace, ""), trained_on=["elsewhere/p9"]).split == "all"
    assert design_of(select(trace, splits_of(trace) != "validation")).split == "test"


@pytest.mark.parametrize("split", ["train", "all"])
def test_prompts_that_the_fixed_length_is_chosen_on_are_not_set_against_themselves(trace: Trace, split: str) -> None:
    design = design_of(trace, split)
    assert design.split == split
    assert design.train is None
    chosen = [prompt for prompt in trace.prompts if split in ("all", prompt.split)]
    assert list(design.trace.prompts) == chosen != []
