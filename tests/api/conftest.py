"""Small models, loaded and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftgauge.pair.loading import Pair, load_pair
from draftgauge.traces.trace import Trace
from small_profiles import record, save_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def pair(models: dict[str, Any]) -> Pair:
    return load_pair(models["target"], models["drafter"], device="cpu")


@pytest.fixture(scope="module")
def whole(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, record(models, folder)
