"""Trained drafters that read their target, as a kind of drafter: a folder that says itself what it is."""

from __future__ import annotations

from pathlib import Path

from torch import Generator

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import drafter_fingerprint, is_drafter, load_drafter, read_description
from draftgauge.drafters.source import DraftSource, LoadOptions, Source, register_drafter
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import Taps
from draftgauge.verification import Sampling


@register_drafter
class ReuseSource(DraftSource):
    """A network trained on what one target's layers compute, and the layers it reads."""

    name = "reuse"
    takes = "the folder of a trained drafter (as `draftgauge train` writes it)"
    self_describing = True
    drafter_type = ReuseDrafter

    def __init__(self, folder: Path, net: ReuseNet) -> None:
        self.folder = folder
        self.net = net
        self.family, self.engine = f"reuse-{net.config.design}", "modules"
        self.tap_plan = net.config.tap_plan

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        return is_drafter(drafter)

    @classmethod
    def resolve(cls, source: Source) -> Source:
        if source is None or not is_drafter(source):
            raise DraftgaugeError(
                f"drafter reuse needs {cls.takes}{'' if source is None else f'; {source} is not one'}"
            )
        return source

    @classmethod
    def trained_for(cls, source: Source) -> str | None:
        assert source is not None
        return str(read_description(Path(source))["config"]["target_source"]) or None

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> ReuseSource:
        assert source is not None
        return cls(Path(source), load_drafter(source, target))

    def drafter(
        self,
        target: CachedModel,
        taps: Taps | None,
        end_tokens: frozenset[int],
        sampling: Sampling | None,
        generator: Generator | None,
    ) -> ReuseDrafter:
        assert taps is not None
        return ReuseDrafter(self.net, target, taps, end_tokens, sampling, generator)

    def fingerprint(self) -> str:
        return drafter_fingerprint(self.folder)
