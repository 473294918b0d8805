"""How runs and report were made, as labelled lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftgauge.core.provenance import command_line, timestamp
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest, ModelEntry

Facts = tuple[tuple[str, str], ...]


def report_facts(command: str | None) -> Facts:
    """About the report itself; the running command if none is given."""
    return (("report made by", command_line() if command is None else command), ("report made", timestamp()))


def run_facts(manifest: Manifest, cost: CostCurve) -> Facts:
    """About one recorded run and its cost curve; what is not known is left out."""
    facts = [
        ("recorded by", manifest.command),
        ("recorded", f"{manifest.created}, draftgauge {manifest.draftgauge}"),
        ("target", _model(manifest.target)),
        ("draft", _model(manifest.draft) if manifest.draft is not None else ""),
        ("drafter", manifest.drafter),
        ("prompts", f"{manifest.prompts.count} of {manifest.prompts.path}, SHA-256 {manifest.prompts.sha256}"),
        (
            "lengths",
            f"drafts up to {manifest.gamma_max} tokens, outputs up to {manifest.max_new_tokens}; seed {manifest.seed}",
        ),
        ("costs measured on", f"{cost.device}, {cost.dtype}, contexts of {', '.join(map(str, cost.contexts))} tokens"),
        ("costs interpolated", "" if cost.measured is None else cost.measured.note),
        *((label.replace("_", " "), _plain(value)) for label, value in manifest.environment.items()),
    ]
    return tuple((label, value) for label, value in facts if value)


def split_facts(runs: Sequence[Facts]) -> tuple[Facts, tuple[Facts, ...]]:
    """What all runs have in common, and for each run the rest."""
    shared = tuple(fact for fact in runs[0] if all(fact in facts for facts in runs))
    return shared, tuple(tuple(fact for fact in facts if fact not in shared) for facts in runs)


def _model(entry: ModelEntry) -> str:
    return (
        f"{entry.source}: {entry.family}, compression {entry.compression}, {entry.dtype}, {entry.engine} engine, "
        f"{f'attention {entry.attention}, ' if entry.attention else ''}fingerprint {entry.fingerprint}"
    )


def _plain(value: Any) -> str:
    """A value of the environment in words; empty where it is not known."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return "" if value is None else str(value)
