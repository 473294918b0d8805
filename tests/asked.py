"""A policy in the hands of a test: asked token by token, whatever it could decide at once."""

from __future__ import annotations

from draftgauge.policies import Policy, Signal, Step
from draftgauge.policies.base import DropsLast, Extends, ReadsText, reads_of


class Asked:
    """Decides as another policy does."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.reads = inner, reads_of(inner)
        for name, kind in (("read", ReadsText), ("extend", Extends), ("drops_last", DropsLast)):
            if isinstance(inner, kind):
                setattr(self, name, getattr(inner, name))

    def reset(self) -> None:
        self.inner.reset()

    def limit(self) -> int:
        return self.inner.limit()

    def keep_drafting(self, signal: Signal) -> bool:
        return self.inner.keep_drafting(signal)

    def observe(self, step: Step) -> None:
        self.inner.observe(step)
