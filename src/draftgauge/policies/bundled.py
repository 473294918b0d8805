"""The fitted policies that come with the package: fitted on the training prompts of the bundled pair."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from draftgauge.policies.fitted import FITTED_SUFFIX, FittedPolicy, load_fitted

_FOLDER = Path(__file__).parent / "bundled"


@cache
def bundled_policy(name: str) -> FittedPolicy:
    return load_fitted(_FOLDER / f"{name}{FITTED_SUFFIX}")
