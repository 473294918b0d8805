"""Policies and drafters of other installed packages, which name the modules that register them as entry points."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points


def import_others(group: str) -> None:
    """Import what packages name in a group of entry points; one that fails is left out with a warning."""
    for entry in entry_points(group=group):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(f"{entry.value} of the entry points {group} is left out: {error}", stacklevel=2)
