"""Kinds of drafters: named or found by what is given, registered once, recorded by what their class can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.dense import DraftsEverywhere, DraftsRefused
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.source import choose_drafter, drafter_kind, drafter_kinds, register_drafter


def test_a_kind_is_registered_once() -> None:
    with pytest.raises(AssertionError, match="registered twice"):
        register_drafter(drafter_kind("prompt_lookup"))


def test_what_a_class_can_do_decides_how_it_is_recorded() -> None:
    assert set(drafter_kinds()) == {"checkpoint", "language_model", "prompt_lookup", "reuse"}
    dense = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsEverywhere)}
    sampled = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsRefused)}
    assert dense == {"checkpoint", "language_model"}
    assert sampled == {"language_model"}
    assert drafter_kind("language_model").drafter_type is LanguageModelDrafter


def test_a_choice_names_a_kind_or_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = "draftgauge.drafters.formats.files"
    monkeypatch.setattr(f"{files}.cached_file", lambda *_, **__: pytest.fail("asked the hub for a bundled model"))
    assert choose_drafter("prompt_lookup", "ignored") == choose_drafter("lookup", None) == ("prompt_lookup", None)
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
