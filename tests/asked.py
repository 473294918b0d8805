"""A policy in the hands of a test: asked token by token, whatever it could decide at once."""

from __future__ import annotations

from draftgauge.policies import Policy
from draftgauge.policies.base import DropsLast, Extends, ReadsText, reads_of

KINDS = {"read": ReadsText, "extend": Extends, "drops_last": DropsLast}


class Asked:
    """Decides as another policy does, but for methods of its own."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.reads = inner, reads_of(inner)
        for name in ("reset", "limit", "keep_drafting", "observe", *KINDS):
            if not hasattr(self, name) and isinstance(inner, KINDS.get(name, Policy)):
                setattr(self, name, getattr(inner, name))
