"""Kinds of drafters: named or found by what is given, registered once, recorded by what their class can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.base import choose_drafter, drafter_kind, drafter_kinds, register_drafter
from draftgauge.drafters.dense import DraftsEverywhere, DraftsRefused
from draftgauge.drafters.language_model import LanguageModelDrafter
from tiny import save_tiny


def test_a_kind_is_registered_once() -> None:
    with pytest.raises(AssertionError, match="registered twice"):
        register_drafter(drafter_kind("prompt_lookup"))


def test_what_a_class_can_do_decides_how_it_is_recorded() -> None:
    assert set(drafter_kinds()) == {
        "checkpoint",
        "gemma4_assistant",
        "language_model",
        "mtp",
        "pard",
        "prompt_lookup",
        "reuse",
    }
    dense = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsEverywhere)}
    sampled = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsRefused)}
    assert dense == {"checkpoint", "gemma4_assistant", "language_model", "mtp", "pard"}
    assert sampled == {"language_model"}
    assert drafter_kind("language_model").drafter_type is LanguageModelDrafter


def test_a_choice_names_a_kind_or_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = "draftgauge.drafters.formats.files"
    monkeypatch.setattr(f"{files}.cached_file", lambda *_, **__: pytest.fail("asked the hub for a bundled model"))
    assert choose_drafter("prompt_lookup") == choose_drafter("lookup") == ("prompt_lookup", None)
    for bundled in (None, "reference", "language_model"):
        assert choose_drafter(bundled) == ("language_model", "reference/draft")
    assert choose_drafter("reference/draft-small") == ("language_model", "reference/draft-small")
    model = save_tiny(tmp_path / "model")
    assert choose_drafter(model) == ("language_model", model)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").touch()
    for drafter, message in [
        ("reuse", "drafter reuse needs the folder of a trained drafter"),
        ("oracle", "unknown drafter 'oracle': choose prompt_lookup, or give an EAGLE-3 .* or a draft model"),
        (tmp_path / "run", "is a recorded run"),
        (tmp_path / "none", "there is no model folder"),
    ]:
        with pytest.raises(DraftgaugeError, match=message):
            choose_drafter(drafter)
    with pytest.raises(DraftgaugeError, match="unknown drafter 'oracle'"):
        drafter_kind("oracle")
