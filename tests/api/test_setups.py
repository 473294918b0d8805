"""``rank --setup``: drafters times setups in one command, compared in tokens a second; resumed, and within a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import draftgauge as dg
from command_line import draftgauge, refusal
from draftgauge.api import profile
from draftgauge.api.rank import _of_setup
from draftgauge.requests import RankRequest
from small_profiles import SMALL, save_models


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    models = save_models(tmp_path_factory.mktemp("models"))
    given = {"target": str(models["target"]), "prompts": str(models["prompts"]), "drafters": ("lookup",)}
    return SMALL | given | {"setups": ("fp32", "bf16"), "out": tmp_path_factory.mktemp("setups"), "limit": 8}


def test_setups_are_ranked_within_a_time_and_compared_when_all_are_there(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="bf16 is left out: the time of --seconds was over"):
        rows = dg.rank(**asked | {"seconds": 1e-6})
    assert [(row["setup"], "error" in row) for row in rows] == [("fp32", False), ("bf16", True)]
    assert rows[0]["verdict"].startswith(f"Deploy {asked['out'] / 'fp32' / 'lookup'} with")
    rows = dg.rank(**asked, live=2)
    assert {row["setup"] for row in rows} == {"fp32", "bf16"} == {row["compression"] for row in rows}
    assert {Path(row["run"]) for row in rows} == {asked["out"] / name / "lookup" for name in ("fp32", "bf16")}
    assert [row["live_tokens_per_second"] for row in rows] == sorted(
        (row["live_tokens_per_second"] for row in rows), reverse=True
    )
    assert all(row["live_plain_tokens_per_second"] > 0 for row in rows)
    assert all(row["live_policy"] != "no-draft" for row in rows)
    assert f"--compression {rows[0]['setup']}" in rows[0]["deploy"]
    assert {row["agreement"] for row in rows if row["setup"] == "fp32"} == {1}
    monkeypatch.setattr(profile, "record_missing", None)  # nothing is recorded anew
    options = [word for name in (*SMALL, "target", "prompts", "limit", "out") for word in _option(name, asked[name])]
    shown = draftgauge(["rank", "lookup", "--setup", "fp32,bf16", *options])
    assert shown.exit_code == 0, shown.output
    assert "best setting" in shown.stdout
    assert "draftgauge generate PROMPT" in shown.stdout


def _option(name: str, value: object) -> list[str]:
    return [f"--{name.replace('_', '-')}", str(value)]


def test_a_file_is_its_own_target_with_the_tokenizer_of_the_target_named(tmp_path: Path) -> None:
    file = tmp_path / "t.Q4_K_M.gguf"
    file.touch()
    request = RankRequest(drafters=("lookup",), target="some/target", setups=(f"gguf:{file}",), out=tmp_path / "out")
    asked = _of_setup(request, f"gguf:{file}")
    assert (asked.target, asked.setups) == (str(file), ())
    assert (asked.loading.engine, asked.loading.tokenizer) == ("gguf-fast", "some/target")
    assert asked.out.parent == tmp_path / "out"
    assert asked.out.name.endswith("t.Q4_K_M.gguf")
    folder = _of_setup(request, f"openvino:{tmp_path}")
    assert (folder.target, folder.loading.engine) == (str(tmp_path), "openvino-fast")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--setup", "bf17"], "a setup is one of uncompressed"),
        (["--setup", "gguf:"], "gguf:FILE or openvino:FOLDER"),
        (["--setup", "bf16,gguf:none.gguf"], "there is no none.gguf"),
        (["--setup", "bf16,bf16"], "each once"),
        (["--setup", "bf16", "--compression", "nf4"], "leave out --costs, --compression"),
        (["--setup", "bf16", "--costs", "lookup=x.json"], "leave out --costs, --compression"),
        (["--seconds", "0"], "--seconds must be"),
    ],
)
def test_setups_that_cannot_be_are_refused_before_anything_is_recorded(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal("rank", "lookup", *words)
    assert not (tmp_path / "rank").exists()
