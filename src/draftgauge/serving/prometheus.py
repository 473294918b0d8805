"""The text format of Prometheus' metrics, as far as counters of servers need it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from draftgauge.core.errors import DraftgaugeError

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Sample:
    """One line: a name, its labels, a value."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_metrics(text: str) -> list[Sample]:
    """The samples of a page (``text/plain; version=0.0.4``), in its order.

    Raises:
        DraftgaugeError: if a line is neither a sample nor a comment.
    """
    samples = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.match(line.strip())
        try:
            if match is None:
                raise ValueError(line)
            value = float(match["value"])  # NaN and +Inf as Prometheus writes them are floats too
        except ValueError as error:
            raise DraftgaugeError(f"this is no page of metrics: {line.strip()[:80]!r}") from error
        labels = {key: _unescaped(written) for key, written in _LABEL.findall(match["labels"] or "")}
        samples.append(Sample(match["name"], value, labels))
    return samples


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)
