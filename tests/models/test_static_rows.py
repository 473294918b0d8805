"""Rows of a static model, each a sequence of its own: the logits of single passes, and how many graphs there are."""

from __future__ import annotations

import pytest
import torch

from batched_models import static_pair
from draftgauge.models.rows import StaticRows
from draftgauge.models.static_model import StaticModel
from tiny import tokens


@pytest.fixture(scope="module")
def models() -> tuple[StaticModel, StaticModel]:
    return static_pair()


def test_rows_agree_with_single_passes(models: tuple[StaticModel, StaticModel]) -> None:
    model = models[0]
    rows = StaticRows(model, 3, 64)
    texts = [tokens(20, seed).tolist() for seed in (1, 2, 3)]
    begins, counts = (11, 3, 16), (1, 4, 2)
    for row, (text, begin) in enumerate(zip(texts, begins, strict=True)):
        rows.prefill(row, text[:begin])
    fed = [text[begin : begin + count] for text, begin, count in zip(texts, begins, counts, strict=True)]
    for which in ([0, 1, 2], [1], [0, 2]):
        for row in which:
            rows.truncate(row, begins[row])
        flat = torch.tensor([token for row in which for token in fed[row]])
        together = rows.step(which, [counts[row] for row in which], flat).split([counts[row] for row in which])
        for row, logits in zip(which, together, strict=True):
            model.reset()
            model.forward(torch.tensor(texts[row][: begins[row]]))
            torch.testing.assert_close(logits, model.forward(torch.tensor(fed[row])), rtol=1e-4, atol=1e-4)
