"""Texts side by side: the logits of each alone, and the drafts of drafters of single texts."""

from __future__ import annotations

import pytest
import torch

from draftgauge.core.signals import OF_DRAFTED_TOKENS
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.rows import Asked, LanguageModelRows
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.static import StaticRows
from draftgauge.policies.base import Signal
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
