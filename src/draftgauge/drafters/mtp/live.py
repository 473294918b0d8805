"""MTP heads while their target decodes, and their kind: out of the target's own files, or a folder of tensors.

They are built for a loaded target: the family's own decoder layers, and the tensors of a checkpoint in them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.files import file_sha256
from draftgauge.drafters.base import Drafting, LoadOptions, Source, register_drafter
from draftgauge.drafters.formats.building import PLAIN
from draftgauge.drafters.formats.live import CheckpointDrafter, CheckpointSource
from draftgauge.drafters.mtp.families import MtpFamily
from draftgauge.drafters.mtp.files import Stored, announced, headers, heads_of, is_extracted, known_family, read, some
from draftgauge.drafters.mtp.head import Head, head_class, head_config, take_norm
from draftgauge.drafters.mtp.net import MtpLayout, MtpNet
from draftgauge.drafters.reuse.live import ReuseDrafter, new_drafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.drafters.reuse.persistence import is_mtp_head, load_drafter, read_description
from draftgauge.models.base import CachedModel, decoder_layers, final_norm, layer_count
from draftgauge.models.folder import OF_MTP, explained, is_gguf, resolve_source
from draftgauge.models.spec import LOADING, no_bars, no_hints, read_configuration
from draftgauge.models.taps import Taps


def build_mtp(source: str | Path, target: CachedModel) -> MtpNet:
    """The MTP heads in the files of ``source``, on the target's device and in the dtype of its activations.

    Raises:
        ModelError: if there are none, some tensors are missing or quantised, or they are not of this target.
    """
    if target.module is None:
        raise ModelError(f"an MTP head reads its target's hidden states, and the GGUF file {source} shows none")
    layers = len(decoder_layers(target.module))
    name, family, stored = stored_heads(source, target.module.config.get_text_config(), layers)
    heads = [_head(source, family, number, read(own), target) for number, own in enumerate(stored)]
    longest = None if family.reused and len(heads) == 1 else len(heads)
    return MtpNet(MtpLayout(f"mtp-{name}", (layers - 1,), longest), family, heads, target.module)


def stored_heads(source: str | Path, text: Any, layers: int) -> tuple[str, MtpFamily, list[dict[str, Stored]]]:
    """The family and the heads that headers show, for a target with this configuration and number of layers."""
    found = headers(source)
    name, family = known_family(text.model_type, found, source)
    stored, wanted = heads_of(family, found, layers), announced(text)
    if not stored:
        parts = some(family.named(0, layers).values())
        said = f"its configuration announces {wanted}, so a conversion dropped them; " if wanted else ""
        other = some(key for key in found if OF_MTP.match(key))
        raise ModelError(
            f"{source} holds no MTP head ({said}wanted are {parts}{f', found {other}' if other else ''}): take the "
            "original checkpoint, or draft with something else"
        )
    if len(stored) < wanted and family.projection != family.projection.format(i=0, layer=0):
        raise ModelError(
            f"{source} holds {len(stored)} of the {wanted} MTP heads that its configuration announces: download the "
            "rest, or take the original checkpoint"
        )
    return name, family, stored


def _head(
    source: str | Path, family: MtpFamily, number: int, tensors: Mapping[str, Tensor], target: CachedModel
) -> Head:
    module, device, dtype = target.module, target.spec.device, target.spec.dtype
    text, layers = module.config.get_text_config(), len(decoder_layers(module))
    if quantised := [name for name, tensor in tensors.items() if tensor.dtype not in PLAIN]:
        raise ModelError(f"{source}: {some(quantised)} are quantised: take the MTP head of the original checkpoint")
    named, left = family.named(number, layers), dict(tensors)
    parts = {part: left.pop(f"{name}.weight", None) for part, name in named.items()}
    missing = [f"{named[part]}.weight" for part, tensor in parts.items() if tensor is None]
    norm, width = final_norm(module), text.hidden_size
    for part, tensor in parts.items():
        shape = (width, 2 * width) if part == "projection" else (width,)
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ModelError(
                f"{source}: {named[part]}.weight is {list(tensor.shape)}, and for this target {list(shape)}: the MTP "
                "head is of another checkpoint"
            )
    blocks, state = family.prefixes(number, layers), {}
    for name, tensor in left.items():
        at, prefix = next((at, prefix) for at, prefix in enumerate(blocks) if name.startswith(prefix))
        part = name.rpartition(".")[0].rpartition(".")[2]
        if part in family.scaled:
            tensor = tensor * (width / getattr(text, family.scaled[part])) ** 0.5
        state[f"layers.{at}.{name.removeprefix(prefix)}"] = tensor
    config = head_config(text, family, number)
    with explained(f"the MTP head of {source}"), no_bars(), no_hints(*LOADING):
        decoder, report = head_class(module, config).from_pretrained(
            None, config=config, state_dict=state, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    take_norm(decoder)
    missing += [name for name in report["missing_keys"] if name.startswith("layers.")]
    extra, other = report["unexpected_keys"], [str(each[0]) for each in report["mismatched_keys"]]
    faults = (("lacks {}", missing), ("has {} beside what is wanted", extra), ("has {} in other shapes", other))
    if said := [words.format(some(names)) for words, names in faults if names]:
        raise ModelError(f"{source}: its MTP head {' and '.join(said)}: is it of another checkpoint, or half copied?")

    whole = {part: tensor for part, tensor in parts.items() if tensor is not None}

    def normed(part: str) -> nn.Module:
        if part not in whole:
            return nn.Identity()
        own: Any = copy.deepcopy(norm)
        own.weight.data = whole[part].to(device, dtype)
        return own  # type: ignore[no-any-return]

    projection = nn.Linear(2 * width, width, bias=False, device="meta")
    projection.weight = nn.Parameter(whole["projection"].to(device, dtype), requires_grad=False)
    return Head(normed("embedding"), normed("hidden"), projection, decoder.to(device).eval(), normed("norm"))


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
