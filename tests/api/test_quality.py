"""What a compression costs in quality: measured against the uncompressed target, on its outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from draftgauge import profile
from draftgauge.api.runs import Run
from draftgauge.cli.main import run
from draftgauge.core.errors import ModelError
from draftgauge.models.loading import wrap
from draftgauge.pair import quality
from draftgauge.pair.quality import QUALITY_NAME, compared, log_probabilities, read_quality
from tiny import one_pass, save_noisy, save_tiny, tiny_model, tokens


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"task": "code", "prompt": f"w{number} w2 w5"}) for number in range(3)))
    pair = {"target": str(save_tiny(folder / "target")), "drafter": str(save_noisy(folder / "draft")), "device": "cpu"}
    return pair | {"prompts": str(prompts), "max_new_tokens": 8, "gamma_max": 2, "cost_seconds": 0.2}


def test_divergence_and_agreement_are_those_of_the_definition() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.8, 0.0]]), torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.8, 0.0]])
    found = compared([(p + 1e-30).log()], [(q + 1e-30).log()])
    assert found == {"kl": pytest.approx(float(torch.tensor(2.0).log()) / 8), "agreement": 0.5, "positions": 2}
    assert compared([p.log()[:1]], [p.log()[:1]]) == {"kl": 0.0, "agreement": 1.0, "positions": 1}


@pytest.mark.parametrize("count", [1, 4])
def test_rows_are_those_behind_the_prompt(count: int) -> None:
    model, text = tiny_model(), tokens(6 + count)
    rows = log_probabilities(wrap(model), (text[:6].tolist(), text[6:].tolist()))
    torch.testing.assert_close(rows, one_pass(model, text)[5:-1].log_softmax(-1), rtol=1e-4, atol=5e-4)


def test_profile_says_what_each_compression_costs(asked: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    rows = profile(out=tmp_path, compression=("uncompressed", "int8-weight", "int4"), **asked)
    kl, agreement = ({row["compression"]: row[key] for row in rows} for key in ("kl", "agreement"))
    assert kl["uncompressed"] is agreement["uncompressed"] is None
    assert 0 < kl["int8-weight"] < kl["int4"]
    assert all(0.05 < Run(tmp_path / name).costs.peak_memory_gib < 20 for name in kl)
    assert 0 < agreement["int4"] <= agreement["int8-weight"] <= 1
    assert 3 < read_quality(tmp_path / "int4")["positions"] <= 24
    monkeypatch.setattr(quality, "load_model", None)  # known already
    again = profile(out=tmp_path, compression=("uncompressed", "int8-weight", "int4"), **asked)
    assert [row["kl"] for row in again] == [row["kl"] for row in rows]


def test_a_single_compression_is_compared_too_and_shown(asked: dict[str, Any], tmp_path: Path, capsys) -> None:
    words = [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert run(["profile", "--out", str(tmp_path), "--compression", "int4", *words]) == 0
    assert re.search(r"(?s)Quality beside speed.*KL to uncompressed", capsys.readouterr().out)
    assert read_quality(tmp_path)["kl"] > 0
    (tmp_path / QUALITY_NAME).write_text("[1")
    assert read_quality(tmp_path) == {}


def test_an_uncompressed_target_that_cannot_be_loaded_is_said(asked: dict[str, Any], tmp_path: Path, monkeypatch):
    monkeypatch.setattr(quality, "load_model", Mock(side_effect=ModelError("it does not fit into the memory of cpu")))
    with pytest.warns(UserWarning, match="quality of int4 is not measured.*does not fit"):
        rows = profile(out=tmp_path, compression="int4", **asked)
    assert rows[0]["kl"] is None
