"""The designs: what a drafter reads of its target, and by which attentions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Design:
    """What sets a design apart; everything else is the same for all.

    Attributes:
        reads_hidden: it takes the target's hidden states at depth 0, and its own state at the others: recurrent, one
            layer.
        reads_kv: it attends to the target's keys and values.
        self_attends: it has an attention over depth 0 of all anchors and its own chain.
        chain_attends: it has an attention over the injected keys of the target, if any, and its own chain.
        warm_starts: it can start from a trained ``hidden`` drafter, all of whose parts it has.
    """

    reads_hidden: bool = False
    reads_kv: bool = False
    self_attends: bool = False
    chain_attends: bool = False
    warm_starts: bool = False

    @property
    def gated(self) -> bool:
        return self.self_attends and self.chain_attends


DESIGNS: Mapping[str, Design] = MappingProxyType(
    {
        "hidden": Design(reads_hidden=True, self_attends=True),
        "kv": Design(reads_kv=True, chain_attends=True),
        "hybrid": Design(reads_hidden=True, reads_kv=True, self_attends=True, chain_attends=True, warm_starts=True),
        "cross": Design(reads_hidden=True, reads_kv=True, chain_attends=True, warm_starts=True),
        "none": Design(chain_attends=True),
    }
)
WARM_START = "hidden"  # the design that others start from
