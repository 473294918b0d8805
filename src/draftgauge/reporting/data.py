"""Everything that the report of recorded runs shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftgauge.reporting.choosing_views import ChoosingView
from draftgauge.reporting.table import Table
from draftgauge.reporting.views import CompressionView


@dataclass(frozen=True)
class ReportData:
    """Views by compression, in the order shown; ``choosing`` and ``batches`` of those that have them."""

    compressions: tuple[CompressionView, ...]
    provenance: tuple[tuple[str, str], ...] = field(default=())
    choosing: tuple[ChoosingView, ...] = ()
    batches: tuple[Table, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task, in order of first appearance."""
        return tuple(dict.fromkeys(curve.task for view in self.compressions for curve in view.acceptance))
