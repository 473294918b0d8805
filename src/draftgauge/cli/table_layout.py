"""Which columns of a table stand side by side, and how wide they are: figures and intervals are never broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from rich.cells import cell_len

GAP, EDGES = 3, 2  # characters between two columns, and at both ends of a line
FOLDED = 24  # width that a name such as a policy with its parameters keeps where it must be folded
PROSE = 40  # width that a cell of several words keeps
KEYS = 3  # columns at most that say what a row is about
NARROWEST = 8


@dataclass(frozen=True)
class Column:
    """A column's heading and cells, as they are shown."""

    heading: str
    cells: Sequence[str]
    numeric: bool

    @property
    def whole(self) -> int:
        """Width that breaks nothing."""
        return max(self._longest, cell_len(self.heading))

    @property
    def least(self) -> int:
        """Width that breaks no cell but prose, and headings between words only."""
        longest = self._longest if self.numeric or not self._prose else min(self._longest, PROSE)
        return max(longest, *(cell_len(word) for word in self.heading.split()), 1)

    @property
    def names(self) -> bool:
        """Whether the cells are names, one word each."""
        return not self.numeric and not self._prose

    @property
    def _longest(self) -> int:
        return max((cell_len(cell) for cell in self.cells), default=0)

    @property
    def _prose(self) -> bool:
        return any(" " in cell for cell in self.cells)


Block = dict[int, int]
"""Widths of columns that stand side by side, by their places."""


def divide(columns: Sequence[Column], limit: int, *, may_exceed: bool) -> list[Block]:
    """Tables that hold all columns, each as wide as the limit at most.

    Where one table would be too wide, names are folded, and then columns are divided over several tables that all begin
    with those that say what a row is about. Where the limit ``may_exceed``, neither is done and the table is wider.
    """
    keys = len(list(takewhile(lambda column: column.names, columns[:KEYS]))) or 1
    widths = [column.least for column in columns]
    if may_exceed or _total(widths) <= limit:
        return [_widened(dict(enumerate(widths)), columns, limit)]
    first = {index: min(width, FOLDED) for index, width in enumerate(widths[:keys])}
    blocks = [dict(first)]
    for index in range(keys, len(columns)):
        if _total([*blocks[-1].values(), widths[index]]) > limit and len(blocks[-1]) > keys:
            blocks.append(dict(first))
        room = limit - _total([*blocks[-1].values(), 0])
        blocks[-1][index] = max(min(widths[index], room), NARROWEST)
    return [_widened(block, columns, limit) for block in blocks]


def line_width(block: Block) -> int:
    """Characters of a line of such a table."""
    return _total(list(block.values()))


def _total(widths: Sequence[int]) -> int:
    return EDGES + sum(widths) + GAP * (len(widths) - 1)


def _widened(block: Block, columns: Sequence[Column], limit: int) -> Block:
    """The block with what is left of the line given to columns that break something, the first ones first."""
    spare = limit - line_width(block)
    for index, width in block.items():
        more = max(0, min(spare, columns[index].whole - width))
        block[index] += more
        spare -= more
    return block
