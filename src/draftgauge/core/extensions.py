"""Policies and drafters of other installed packages, which name the modules that register them as entry points."""

from __future__ import annotations

from importlib.metadata import entry_points

from draftgauge.core.errors import warn


def import_others(group: str) -> None:
    """Import what packages name in a group of entry points; one that fails is left out with a warning."""
    for entry in entry_points(group=group):
        try:
            entry.load()
        except Exception as error:
            warn(f"{entry.value} of the entry points {group} is left out: {error}")
