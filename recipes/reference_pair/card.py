"""The model card of a trained pair: how it was made, and what it measures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgauge.reporting.layout import environment

RECORD_NAME = "training.json"  # in the folder of a pair: how it was made


def write_card(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write a pair's ``README.md`` from what the evaluation measured and its training record."""
    training = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
    sizes = {path.parent.name: path.stat().st_size / 1e6 for path in sorted(folder.glob("*/model.safetensors"))}
    templates = environment("recipes.reference_pair", autoescape=False)
    templates.globals |= {"shown": _shown, "mixture": _mixture}
    text = templates.get_template("card.md.j2").render(
        training=training,
        earlier=list(_earlier(training)),
        sizes=sizes,
        parameters={row["model"]: row["parameters"] for row in rows if "parameters" in row},
        answers=[row for row in rows if "right" in row],
        drafts=[row for row in rows if "mean_accepted" in row],
        layers=[row for row in rows if "layer" in row],
    )
    path = folder / "README.md"
    path.write_text(text, encoding="utf-8")
    return path


def _shown(value: Any, digits: int) -> str:
    """A figure, or nothing where a row has none."""
    return f"{value:.{digits}f}" if isinstance(value, float) else ""


def _mixture(shares: Mapping[str, float]) -> str:
    """What a training text was made of, in percent."""
    return ", ".join(f"{share:.0%} {kind}" for kind, share in shares.items())


def _earlier(training: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The runs that a run went on from, the latest first."""
    while before := training.get("before"):
        yield before
        training = before
