"""Texts side by side draft as each alone, and so do passes that are recorded for GPUs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from drafters.test_checkpoints import FIXTURES, LAYOUTS, drafter_of
from drafters.test_checkpoints import target_module as checkpoint_target
from drafters.test_reuse_lossless import BLOCKWISE, VARIANTS, build_drafter, build_net, target_module
from draftgauge.core.signals import OF_DRAFTED_TOKENS
from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.decoding.plain import plain_decode
from draftgauge.drafters import anchors
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.reuse import live
from draftgauge.drafters.rows import Asked, LanguageModelRows
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.static import StaticRows
from draftgauge.models.graphs import Recorded
from draftgauge.models.loading import wrap
from draftgauge.policies.base import Signal
from draftgauge.policies.fixed import FixedLength
from tiny import tiny_model, tokens


def test_rows_roll_back_grow_and_take_passes_over_few_of_many() -> None:
    model = tiny_model(attention="gqa")
    rows, alone = StaticRows(LeanModel(model), 6, 16), LeanModel(model)
    texts = [tokens(3 + row, seed=row).tolist() for row in range(10)]
    for row, text in enumerate(texts):
        if row == 6:
            rows.reserve(10, 64)
        rows.append(row, [*text, 1, 2])
        rows.truncate(row, len(text))
    for feed in ({0: [5], 9: [6]}, {0: [7], 5: [8, 9, 10], 9: [11]}, {4: [12], 5: [13]}):
        counts, flat = [len(fed) for fed in feed.values()], [token for fed in feed.values() for token in fed]
        together = rows.step(list(feed), counts, torch.tensor(flat)).split(counts)
        for logits, (row, fed) in zip(together, feed.items(), strict=True):
            texts[row] += fed
            alone.reset()
            expected = alone.forward(torch.tensor(texts[row]))[-len(fed) :]
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
            assert rows.length(row) == len(texts[row])


def test_a_text_that_begins_as_a_closed_one_takes_over_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(seed=5)
    rows = LanguageModelRows(LeanModel(model))
    taken = list[int]()
    append = StaticRows.append

    def counted(of: StaticRows, row: int, behind: list[int]) -> None:
        taken.append(len(behind))
        append(of, row, behind)

    monkeypatch.setattr(StaticRows, "append", counted)
    one, two = (tokens(40, seed=seed).tolist() for seed in (1, 2))
    first, second = rows.open(one), rows.open(two)
    assert taken == [39, 39]
    rows.propose({first: Asked(5), second: Asked(3)})
    rows.commit(first, 0, [7])
    rows.close(first)
    back = [*one, 7, 8, 9]
    assert rows.open(back) == first  # it holds the first 40
    assert taken[2:] == [2]
    rows.close(second)
    turned = [*two[:20], *one]
    assert rows.open(turned) == second
    assert taken[3:] == [39]
    drafts = rows.propose({first: Asked(4), second: Asked(4)})
    for row, text in ((first, back), (second, turned)):
        drafter = LanguageModelDrafter(LeanModel(model))
        drafter.prefill(text)
        assert drafts[row].tokens == drafter.propose(4, None).tokens


def test_drafts_are_those_of_single_drafters() -> None:
    """Several texts with different limits, an end token, a rule that stops, and steps that commit part of a draft."""
    model = tiny_model(seed=5)
    ends = frozenset({3})
    together = LanguageModelRows(LeanModel(model), ends, 96)
    alone = {}
    for length in (4, 30, 17):
        context = tokens(length, seed=length).tolist()
        drafter = LanguageModelDrafter(LeanModel(model), ends, None, None, 96)
        drafter.prefill(context)
        alone[together.open(context)] = drafter

    def sure(signal: Signal) -> bool:
        return signal.confidence > 0.2

    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        asked = {
            row: Asked((step + row) % 5, sure if row == 1 else None, OF_DRAFTED_TOKENS)
            for row in alone
            if (step + row) % 5 and (step + row) % 4
        }
        drafts = together.propose(asked)
        assert set(drafts) == set(asked)
        for row, drafter in alone.items():
            accepted, drafted = 0, []
            if row in asked:
                expected = drafter.propose(asked[row].limit, asked[row].keep_drafting, asked[row].reads)
                drafted = drafts[row].tokens
                assert drafted == expected.tokens
                shown = torch.tensor([signal[:4] for signal in drafts[row].signals])
                torch.testing.assert_close(shown, torch.tensor([signal[:4] for signal in expected.signals]))
                accepted = int(torch.randint(0, len(drafted) + 1, (1,), generator=generator))
            own = int(torch.randint(4, 96, (1,), generator=generator))
            for each in (drafter.commit, lambda a, t, row=row: together.commit(row, a, t)):
                each(accepted, [*drafted[:accepted], own])


def test_tokens_that_the_draft_model_does_not_have_are_read_as_its_last() -> None:
    model = LeanModel(tiny_model(vocab_size=60))
    rows, alone = LanguageModelRows(model, vocabulary=96), LanguageModelDrafter(model, vocabulary=96)
    row = rows.open([5, 95, 7])
    alone.prefill([5, 95, 7])
    for committed in ([80, 3], [59, 94], [2]):
        assert rows.propose({row: Asked(4)})[row].tokens == alone.propose(4, None).tokens
        rows.commit(row, 0, committed)
        alone.commit(0, committed)


def test_a_text_that_outgrows_the_draft_model_is_not_drafted_for() -> None:
    rows = LanguageModelRows(LeanModel(tiny_model(max_position_embeddings=32)))
    short, long = rows.open(tokens(30).tolist()), rows.open(tokens(40).tolist())
    drafts = rows.propose({short: Asked(8), long: Asked(8)})
    assert len(drafts[short].tokens) == 3
    assert drafts[long].tokens == []


def test_texts_beyond_the_memory_are_not_drafted_for_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(max_position_embeddings=2048)
    rows, texts = LanguageModelRows(LeanModel(model)), [tokens(20, seed=seed).tolist() for seed in range(6)]
    monkeypatch.setattr("draftgauge.models.engines.static.free_bytes", lambda device: 0)
    *placed, fifth, sixth = [rows.open(text) for text in texts]
    drafts = rows.propose({row: Asked(4) for row in (*placed, fifth)})
    assert [len(drafts[row].tokens) for row in (*placed, fifth)] == [4, 4, 4, 4, 0]
    rows.commit(placed[0], 0, long := tokens(600).tolist())
    rows.commit(fifth, 0, [7])
    rows.close(sixth)
    assert rows.propose({placed[0]: Asked(4)})[placed[0]].tokens == []
    monkeypatch.undo()
    for row, text in ((placed[0], texts[0] + long), (fifth, [*texts[4], 7])):
        alone = LanguageModelDrafter(LeanModel(model))
        alone.prefill(text)
        assert rows.propose({row: Asked(4)})[row].tokens == alone.propose(4, None).tokens


class Again:
    """A pool whose recordings run again what they recorded, and write to where their first results lie."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.captured = 0

    def anew(self) -> Again:
        return self

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        self.captured += 1
        result = run()

        def replay() -> Any:
            for kept, new in zip(tree_leaves(result), tree_leaves(run()), strict=True):
                if isinstance(kept, torch.Tensor):
                    kept.copy_(new.clone())
            return result

        return torch.inference_mode()(replay)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Again:
    pool = Again()
    monkeypatch.setattr(live, "graph_pool", lambda device: pool)
    return pool


@pytest.mark.parametrize("made", [*VARIANTS[::2], *LAYOUTS], ids=str)
def test_drafts_are_those_of_passes_that_just_run(made: Any, pool: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "FIRST_CAPACITY", 16)  # it grows while it decodes
    published = isinstance(made, str)
    target = wrap(checkpoint_target() if published else target_module("qwen3"))
    settings, steps = DecodingSettings(12), []
    prompts = tokens(9, vocabulary=6).tolist(), tokens(70, 1, 6).tolist()
    plain = [plain_decode(target, prompt, settings).tokens for prompt in prompts]
    for eager in (False, True):
        if eager:
            monkeypatch.setattr(live, "graph_pool", lambda device: None)
        net = None if published else build_net(target.module, made)
        new = drafter_of(FIXTURES / made, target) if published else build_drafter(target, net)
        for prompt, expected in zip(prompts, plain, strict=True):
            found = speculative_decode(target, new, FixedLength(4), prompt, settings)
            assert found.tokens == expected
            steps.append([(step.drafted, step.accepted) for step in found.steps])
    assert steps[:2] == steps[2:]
    assert pool.captured > 1


def test_a_recording_reads_what_it_is_given_now_and_ends_where_the_cache_grows(pool: Again) -> None:
    cache = AnchorCache([1], 2, torch.zeros(1), lambda length, like: (like.new_zeros(length, 2),) * 2)
    cache.extend(3)
    called = []

    def run(pair: tuple[torch.Tensor, int], other: torch.Tensor) -> torch.Tensor:
        called.append(pair)
        return pair[0] * pair[1] + other + cache.pairs[0][0].sum()

    double = Recorded(run, pool, lambda: cache.capacity)
    for value in (1.0, 2.0, 3.0):
        assert double((torch.tensor([value]), 2), torch.tensor([0.5])).tolist() == [2 * value + 0.5]
    assert pool.captured == 1
    assert called[1][0] is called[-1][0]  # its own memory
    assert double((torch.tensor([1.0]), 3), torch.tensor([0.5])).tolist() == [3.5]
    assert pool.captured == 1  # another number is another function
    cache.extend(600)
    cache.pairs[0][0][..., :1, :] = 1.0
    for captured in (1, 2):
        assert double((torch.tensor([1.0]), 2), torch.tensor([0.5])).tolist() == [4.5]
        assert pool.captured == captured


def test_what_a_recording_returned_is_read_where_it_lies(pool: Again) -> None:
    grow = Recorded(lambda depth, chain, token: (depth + 1, (*chain, token + 1)), pool)
    for start in (10.0, 20.0, 30.0, 40.0):
        depth, chain = 0, (torch.tensor([start]),)
        for drafted in range(3):
            depth, chain = grow(depth, chain, torch.tensor([start + drafted]))
        assert [float(each) for each in chain] == [start, start + 1, start + 2, start + 3]
    assert pool.captured == 3
    (read, _), (later, _) = list(grow._known.values())[1:]
    assert read[1] is later[1]  # the chain's first token is copied once


@pytest.mark.parametrize("made", [VARIANTS[2], BLOCKWISE[1], "eagle3-sglang"], ids=str)
def test_a_drafter_is_freed_with_its_last_reference(made: Any, pool: Again) -> None:
    published = isinstance(made, str)
    target = wrap(checkpoint_target() if published else target_module("qwen3"))
    new = drafter_of(FIXTURES / made, target) if published else build_drafter(target, build_net(target.module, made))
    speculative_decode(target, new, FixedLength(4), [1, 2, 3], DecodingSettings(8))
    kept = weakref.ref(new)
    gc.disable()
    try:
        del new
        assert kept() is None
    finally:
        gc.enable()
