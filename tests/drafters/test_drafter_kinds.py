"""A drafter of a new kind is one class: registered, it generates, is recorded, replayed and benched like the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftgauge.api.bench import bench
from draftgauge.api.generate import generate
from draftgauge.api.pair import load_pair
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters import source as kinds
from draftgauge.drafters.base import Draft, KeepDrafting
from draftgauge.drafters.dense import DraftsEverywhere, DraftsRefused
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.source import DraftSource, choose_drafter, drafter_kind, drafter_kinds, register_drafter
from draftgauge.policies.base import Signal
from draftgauge.traces.manifest import Manifest
from tiny import save_tiny


class LastTokenAgain:
    """Proposes the last token over and over."""

    def __init__(self, end_tokens: frozenset[int]) -> None:
        self.end_tokens = end_tokens
        self.last = 0

    def prefill(self, context: list[int]) -> None:
        self.last = context[-1]

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, *_: Any) -> Draft:
        tokens = [] if self.last in self.end_tokens else [self.last] * max(0, limit)
        shown = [Signal(depth, 1.0, 0.0, 1.0, self.last) for depth in range(1, len(tokens) + 1)]
        return Draft(tokens, None, [] if keep_drafting is None else shown)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self.last = tokens[-1]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    drafter_kinds()  # the package's own are registered before the copy is taken
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))

    @register_drafter
    class LastTokenSource(DraftSource):
        name = "last-token"
        drafter_type = LastTokenAgain

        @classmethod
        def load(cls, *_: Any) -> LastTokenSource:
            return cls()

        def drafter(self, target: Any, taps: Any, end_tokens: frozenset[int], *_: Any) -> LastTokenAgain:
            return LastTokenAgain(end_tokens)

    return LastTokenSource.name


def test_a_toy_drafter_is_one_class(toy: str, tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"prompt {n}", "task": "a"}) for n in range(2)))
    pair = load_pair(target, drafter=toy, device="cpu")
    plain, _ = generate(pair, "hello", "plain", max_new_tokens=12)
    text, how = generate(pair, "hello", "fixed:3", max_new_tokens=12)
    assert text == plain
    assert sum(step.drafted for step in how.steps) >= 9
    common: dict[str, Any] = {"target": target, "prompts": prompts, "max_new_tokens": 8, "device": "cpu"}
    profile(**common, drafter=toy, out=tmp_path / "run", gamma_max=2, cost_seconds=0)
    assert Manifest.load(tmp_path / "run").drafter == toy
    assert any(row["policy"] == "fixed:2" for row in replay(tmp_path / "run", ["fixed"]))
    rows = bench(policies=["fixed:2"], **common, drafter=toy, rounds=1, baselines=False)
    assert [row["mismatches"] for row in rows if row["policy"] == "fixed:2"] == [0] * 2
    with pytest.raises(DraftgaugeError, match=f"drafter language_model, not {toy}"):
        profile(**common, drafter=toy, out=tmp_path / "sampled", gamma_max=2, temperature=1.0)


def test_a_kind_is_registered_once(toy: str) -> None:
    with pytest.raises(AssertionError, match="registered twice"):
        register_drafter(drafter_kind(toy))


def test_what_a_class_can_do_decides_how_it_is_recorded() -> None:
    assert set(drafter_kinds()) == {"checkpoint", "language_model", "prompt_lookup", "reuse"}
    dense = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsEverywhere)}
    sampled = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsRefused)}
    assert dense == {"checkpoint", "language_model"}
    assert sampled == {"language_model"}
    assert drafter_kind("language_model").drafter_type is LanguageModelDrafter


def test_a_choice_names_a_kind_or_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = "draftgauge.drafters.checkpoints.files"
    monkeypatch.setattr(f"{files}.cached_file", lambda *_, **__: pytest.fail("asked the hub for a bundled model"))
    assert choose_drafter("prompt_lookup", "ignored") == ("prompt_lookup", None)
    assert choose_drafter("language_model", "some/model") == ("language_model", "some/model")
    for drafter, draft, message in [
        ("language_model", None, "needs a draft model"),
        ("reuse", tmp_path, "drafter reuse needs the folder of a trained drafter"),
        ("reference/draft-small", None, "unknown drafter 'reference/draft-small'"),
        ("oracle", None, "unknown drafter 'oracle': choose language_model, prompt_lookup, or give an EAGLE-3"),
    ]:
        with pytest.raises(DraftgaugeError, match=message):
            choose_drafter(drafter, draft)
    with pytest.raises(DraftgaugeError, match="unknown drafter 'oracle'"):
        drafter_kind("oracle")
