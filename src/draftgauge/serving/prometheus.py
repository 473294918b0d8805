"""The text format of Prometheus' metrics (version 0.0.4), as far as counters of servers need it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from draftgauge.core.errors import DraftgaugeError

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a name, its labels as they are written, a value, which may be NaN or infinite."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_metrics(text: str) -> list[Sample]:
    """The samples of a page in its order."""
    samples = []
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        try:
            if match is None:
                raise ValueError(line)
            samples.append(Sample(match["name"], float(match["value"]), dict(_LABEL.findall(match["labels"] or ""))))
        except ValueError as error:
            raise DraftgaugeError(f"this is no page of metrics: {line[:80]!r}") from error
    return samples
