"""New drafters for a target: seeded random weights, matched widths, and starting from a trained ``hidden`` drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.core.parts import derive_seed
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.config import DESIGNS, NORMS, WARM_START, ReuseConfig, reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.drafters.reuse.rotary import target_rotary
from draftgauge.models.base import final_norm

TOLERANCE = 0.02  # of the numbers of parameters of designs that are compared


def new_net(
    config: ReuseConfig, target_module: PreTrainedModel, seed: int, draft_tokens: Tensor | None = None
) -> ReuseNet:
    """A drafter for a target, in float32 on the target's device (on ``meta`` if the target is).

    Linears start normally distributed with variance 1 / inputs, norms at one, the head at the target's rows. Weights
    are drawn by name from ``seed``, so the parts that two designs share start the same. ``draft_tokens`` ``[V]`` are
    target ids, ascending, where the configuration has a draft vocabulary.
    """
    net = attach(config, target_module, draft_tokens)
    if net.embedding.is_meta:
        return net
    head = target_module.get_output_embeddings().weight
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name == "head.weight":
                parameter.copy_(head if net.d2t is None else head[net.d2t])
            elif parameter.ndim == 1 and config.traits.own_layer:
                continue  # as the family starts norms and biases, and the last norm as the target's
            elif name.endswith(".bias") or name == "markov.1.weight":
                parameter.zero_()
            elif parameter.ndim == 1:
                parameter.fill_(1)
            else:
                scale = float(net.embedding.float().std()) if name == "mask" else parameter.shape[-1] ** -0.5
                generator = torch.Generator().manual_seed(derive_seed(seed, "reuse", name))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return net


def _empty(config: ReuseConfig, embedding: Tensor, rotary: nn.Module, draft_tokens: Tensor | None) -> ReuseNet:
    return (BlockNet if config.block else ReuseNet)(config, embedding, rotary, draft_tokens)


@torch.no_grad()
def start_norm(net: ReuseNet, target_module: PreTrainedModel) -> None:
    """Start the drafter's last norm from the scale of the target's, which families store in several ways."""
    if isinstance(net, OwnLayerNet):
        return
    norm, ones = final_norm(target_module), torch.ones_like(net.norm.weight)
    if norm is not None:
        ones[::2] = -1  # of mean 0 and square 1, so that every kind of norm leaves it as it is before it scales
        probe = ones.to(target_module.dtype)
        net.norm.weight.copy_(((norm(probe) - norm(-probe)) / 2 * probe).to(net.norm.weight))


def attach(config: ReuseConfig, target_module: PreTrainedModel, draft_tokens: Tensor | None) -> ReuseNet:
    """A drafter around a target's embedding and rotary module, its float32 weights not yet filled in."""
    embedding = target_module.get_input_embeddings().weight
    if embedding.shape != (config.vocabulary, config.hidden_size):
        raise ModelError(
            f"this drafter is for a target of {config.vocabulary} tokens and hidden size {config.hidden_size}, "
            f"not {embedding.shape[0]} and {embedding.shape[1]}: choose the target that it was made for"
        )
    if config.traits.own_layer:
        return OwnLayerNet(config, target_module)
    rotary = target_rotary(target_module, config.rope, config.rope_kind, config.head_dim)
    with torch.device("meta"):  # no time and no random numbers for weights that are overwritten
        net = _empty(config, embedding, rotary, draft_tokens)
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(
                module, name, nn.Parameter(torch.empty_like(parameter, dtype=torch.float32, device=embedding.device))
            )
    return net


def check_warm_start(config: ReuseConfig, hidden: ReuseConfig) -> None:
    """Check that a drafter can start from a trained one of the design ``hidden``."""
    if not config.traits.warm_starts or hidden.design != WARM_START:
        takers = " or ".join(name for name, design in DESIGNS.items() if design.warm_starts)
        raise ModelError(
            f"a warm start takes a {takers} drafter from a hidden one, not a {config.design} one from a "
            f"{hidden.design} one"
        )
    if config.target_fingerprint and config.target_fingerprint != hidden.target_fingerprint:
        raise ModelError("the hidden drafter was trained for another target: train one for this target first")
    for name in ("block", "intermediate_size", "hidden_layers", "draft_vocabulary", *NORMS):
        ours, theirs = getattr(config, name), getattr(hidden, name)
        if ours != theirs:
            raise ModelError(
                f"a warm start needs the same shape: {name} of the hidden drafter is {theirs}, and {ours} is asked for"
            )


def warm_start(net: ReuseNet, hidden_net: ReuseNet) -> list[str]:
    """Start a ``hybrid`` or ``cross`` drafter from a trained ``hidden`` one; the names of the parameters copied."""
    check_warm_start(net.config, hidden_net.config)
    if net.d2t is not None and not torch.equal(net.d2t, hidden_net.d2t):  # type: ignore[arg-type]
        raise ModelError("the two drafters have different draft vocabularies: make both from the same token counts")
    ours, theirs = dict(net.named_parameters()), dict(hidden_net.named_parameters())
    shared = [name for name in theirs if name in ours]
    with torch.no_grad():
        for name in shared:
            ours[name].copy_(theirs[name])
    return shared


def frequent_tokens(counts: Tensor, size: int) -> Tensor:
    """The ``size`` most frequent token ids by ``counts`` ``[vocabulary]``, ascending; ties go to the lower id."""
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def count_parameters(config: ReuseConfig, target_module: PreTrainedModel | None = None) -> int:
    """Parameters of a drafter with its head. An MTP head has the target's, and needs the target's shapes."""
    if config.traits.own_layer:
        assert target_module is not None
        own = sum(parameter.numel() for parameter in OwnLayerNet(config, target_module).parameters())
        return own + config.vocabulary * config.hidden_size
    with torch.device("meta"):
        embedding = torch.empty(config.vocabulary, config.hidden_size)
        net = _empty(replace(config, draft_vocabulary=0), embedding, nn.Identity(), None)
    absent = config.vocabulary - config.logits  # rows of the head, and of the Markov head and its bias
    per_row = config.hidden_size + (config.markov_rank + 1 if config.markov_rank else 0)
    return sum(parameter.numel() for parameter in net.parameters()) - absent * per_row


def matched_widths(target_config: PreTrainedConfig, requests: Sequence[Mapping[str, Any]]) -> list[ReuseConfig]:
    """Configurations whose numbers of trainable parameters agree within ``TOLERANCE``, by the width of the SwiGLU.

    The size aimed at is that of the largest one, at its usual width and without a Markov head, among those of fewest
    layers. A request holds keyword arguments of :func:`reuse_config`.
    """
    natural = [reuse_config(target_config, **request) for request in requests]
    least = min(config.layers for config in natural)
    budget = max(count_parameters(replace(config, markov_rank=0)) for config in natural if config.layers == least)
    matched = []
    for config in natural:
        multiple = max(1, config.hidden_size // 64)  # of the width of the SwiGLU, that suits the hardware
        slope = 3 * config.hidden_size * config.layers  # parameters a unit of width
        fixed = count_parameters(config) - slope * config.intermediate_size
        width = round((budget - fixed) / (slope * multiple)) * multiple
        if width < 1:
            raise ModelError(
                f"{config.design} with {config.layers} layers has {fixed} parameters without its SwiGLU, of {budget} "
                "that all designs are to have: leave it out, or compare it at equal width"
            )
        matched.append(replace(config, intermediate_size=width))
    counts = [count_parameters(config) for config in matched]
    if max(counts) > (1 + TOLERANCE) * min(counts):
        raise ModelError(
            f"the drafters cannot be brought within {TOLERANCE:.1%} of each other: their numbers of parameters are "
            f"{', '.join(map(str, counts))}; leave out the designs or layers that differ most"
        )
    return matched
