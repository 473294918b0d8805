"""MTP heads while their target decodes, and their kind: out of the target's own files, or a folder of tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import file_sha256
from draftgauge.drafters.base import Drafting, LoadOptions, Source, register_drafter
from draftgauge.drafters.formats.live import CheckpointDrafter, CheckpointSource
from draftgauge.drafters.mtp.building import build_mtp, stored_heads
from draftgauge.drafters.mtp.files import headers, is_extracted
from draftgauge.drafters.mtp.net import MtpLayout, MtpNet
from draftgauge.drafters.reuse.live import ReuseDrafter, new_drafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.drafters.reuse.persistence import is_mtp_head, load_drafter, read_description
from draftgauge.models.base import CachedModel, layer_count
from draftgauge.models.folder import OF_MTP, is_gguf, resolve_source
from draftgauge.models.spec import read_configuration
from draftgauge.models.taps import Taps


class MtpDrafter(CheckpointDrafter):
    """Drafts with the MTP heads of its target."""

    net: MtpNet  # type: ignore[assignment]


def drafting_net(net: OwnLayerNet, target: CachedModel) -> MtpNet:
    """A trained head as it drafts, with the same weights."""
    return MtpNet(MtpLayout("mtp-trained", net.config.hidden_layers, None), net.family, [net.core], target.module)


def drafter_of(net: ReuseNet, target: CachedModel, taps: Taps, how: Drafting) -> ReuseDrafter:
    """The drafter of a trained network of any design."""
    if isinstance(net, OwnLayerNet):
        return MtpDrafter(drafting_net(net, target), target, taps, *how)  # type: ignore[arg-type]
    return new_drafter(net, target, taps, how)


@register_drafter
class MtpSource(CheckpointSource):
    """The MTP heads of a target."""

    name = "mtp"
    takes = "mtp (the target's own heads, or a folder of their tensors)"
    self_describing = False
    net: MtpNet
    drafter_type = MtpDrafter

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        return is_extracted(drafter) or is_mtp_head(drafter)

    @classmethod
    def trained_for(cls, source: Source) -> str | None:
        trained = source is not None and is_mtp_head(source)
        return str(read_description(Path(source))["config"]["target_source"]) or None if trained else None  # type: ignore[arg-type]

    @classmethod
    def resolve(cls, source: Source) -> Source:
        return source  # none: out of the target's own files

    @classmethod
    def check(cls, source: Source, tokenizer: PreTrainedTokenizerBase, options: LoadOptions) -> None:
        own = options.target if source is None else source
        if options.target and not is_gguf(options.target) and not is_mtp_head(own):
            text = read_configuration(options.target, options.trust_remote_code).get_text_config()
            stored_heads(resolve_source(own), text, layer_count(text))

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> MtpSource:
        own = target.module.config.name_or_path if source is None and target.module is not None else source
        if not own:
            raise DraftgaugeError("the target was not loaded from files, so its MTP head is not found: name a folder")
        if is_mtp_head(own):
            trained = load_drafter(own, target)
            assert isinstance(trained, OwnLayerNet)
            return cls(own, drafting_net(trained, target))
        return cls(own, build_mtp(own, target))

    def fingerprint(self) -> str:
        """Of the files that hold the tensors."""
        paths = sorted({stored.path for name, stored in headers(self.source).items() if OF_MTP.match(name)})
        return hashlib.sha256(" ".join(file_sha256(path) for path in paths).encode()).hexdigest()
