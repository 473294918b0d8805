"""Gradients by parameter group and depth, position by position.

Self-attention uses its keys and values at the whole prefix of a sample; a drafter's own are used only at the few
drafted positions. This is the second bottleneck of KVShot (arXiv 2604.26412). A *sample* is the draft from one anchor.
For a few of them the loss of the first depth and of the last is back-propagated alone:

- the norm of the mean gradient of a group, and that norm over the norm of its weights;
- the share of a sample's positions, and of its drafted ones, at which the loss reaches the group. There the gradient by
  the output of the group's module is at least ``REACHED`` of the largest.

A block has all its slots at every depth, where a chain has ``depth + 1`` drafted positions; its learned mask, an input,
is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.diagnostics.bottlenecks import GroupGradient
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse.attention import Attention
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.models.taps import Features, batch_features
from draftgauge.training.reuse.tracking import parameter_groups

REACHED = 0.01
TEXTS, SAMPLES = 6, 4  # of a probe, and samples of each text
LAST = ("norm", "head", "markov")  # called for the sample's own position alone

Columns = Sequence[tuple[str, slice]]
"""The groups that an output belongs to, and which part of it."""
Shown = tuple[Columns, int, Tensor]
"""An output ``[1, n, ...]``, or ``[1, heads, n, D]``, and its first position."""


def gradient_statistics(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int, samples: int = SAMPLES
) -> list[GroupGradient]:
    """Probe a drafter on the first target outputs that are long enough, ``samples`` of each; empty where none has a
    draft of all depths."""
    usable = [text for text in texts if len(text.prompt) > 1 and len(text.output) >= depths][:TEXTS]
    with _trainable(net):
        probe = _Probe(net, depths)
        for text in usable:
            tokens = torch.tensor([text.tokens], device=net.embedding.device)
            features = batch_features(module, tokens, net.config.tap_plan)
            first, last = len(text.prompt) - 2, len(text.tokens) - 2 - depths
            anchors = sorted({round(float(position)) for position in np.linspace(first, last, samples)})
            probe.add(tokens, features, anchors)
        return probe.statistics()


class _Probe:
    """Accumulates the gradients of samples by depth and group."""

    def __init__(self, net: ReuseNet, depths: int) -> None:
        self.net, self.depths = net, depths
        self.places = net.config.block + net.config.dflash if net.config.block else 0  # of a block
        self.groups = {name: parts for name, parts in parameter_groups(net).items() if name != "mask"}
        self.columns = _columns(net)
        names = [(depth, group) for depth in sorted({0, depths - 1}) for group in self.groups]
        self.shares: dict[tuple[int, str], list[tuple[float, float]]] = {name: [] for name in names}
        self.sums: dict[tuple[int, str], list[Tensor]] = {}

    def add(self, tokens: Tensor, features: Features, anchors: Sequence[int]) -> None:
        if isinstance(self.net, BlockNet):
            for anchor in anchors:
                slots, shown = self.block(self.net, tokens, features.until(anchor + 1), anchor)
                self.sample(slots, shown, tokens, features, anchor)
            return
        first, count = anchors[0], tokens.shape[1] - 1 - self.depths
        with _outputs(self.net, self.columns) as outputs:
            states = self.net.unroll(tokens, features, self.depths, first)
        # The rows of an output end with the last anchor, or go on with the tokens after it.
        shown = [
            (self.columns[name], call + max(0, count - output.shape[1]), output)
            for name, calls in outputs.items()
            for call, output in enumerate(calls)
        ]
        for anchor in anchors:
            self.sample([state[:, anchor - first] for state in states], shown, tokens, features, anchor)

    def block(
        self, net: BlockNet, tokens: Tensor, seen: Features, anchor: int
    ) -> tuple[Sequence[Tensor], Sequence[Shown]]:
        """The states of the slots of a block, each ``[1, H]``; outputs are those of the text, then of the slots."""
        with _outputs(net, self.columns) as outputs:
            context = net.contexts(seen.hidden, seen.keys, seen.values)
            of_text = {name: len(calls) for name, calls in outputs.items()}
            states = net.run(tokens[:, anchor + 1, None], torch.tensor([[anchor]]), context, None)
        shown: list[Shown] = [
            (self.columns[name], 0 if call < of_text[name] else anchor + 1, output)
            for name, calls in outputs.items()
            for call, output in enumerate(calls)
        ]
        for layer, pairs in enumerate(context.layers if net.traits.reads_hidden else ()):
            names = (f"layers.{layer}.attention.{kind}" for kind in ("keys", "values"))
            shown += [([(name, slice(None))], 0, part) for name, part in zip(names, pairs[0], strict=True)]
        return states[:, 0].unbind(1), shown

    def sample(
        self, states: Sequence[Tensor], shown: Sequence[Shown], tokens: Tensor, features: Features, anchor: int
    ) -> None:
        parameters = list(dict.fromkeys(parameter for parts in self.groups.values() for parameter, _ in parts))
        wanted = [*parameters, *(output for *_, output in shown)]
        for depth in dict.fromkeys(depth for depth, _ in self.shares):
            place = anchor + 1 + depth
            logits, taught = self.net.logits(states[depth], tokens[:, place]), features.logits[:, place]
            taught = taught if self.net.d2t is None else taught[:, self.net.d2t]
            loss = -(taught.float().softmax(-1) * logits.float().log_softmax(-1)).sum()
            derivatives = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
            self.take(depth, dict(zip(parameters, derivatives, strict=False)))
            drafted = self.places or depth + 1
            size = anchor + drafted + (self.places > 0)  # positions that the sample has so far
            self.reach(depth, shown, derivatives[len(parameters) :], size, drafted)

    @torch.no_grad()
    def take(self, depth: int, gradients: Mapping[Tensor, Tensor | None]) -> None:
        for name, parts in self.groups.items():
            total = self.sums.setdefault((depth, name), [torch.zeros_like(p)[rows] for p, rows in parts])
            for one, (parameter, rows) in zip(total, parts, strict=True):
                piece = gradients[parameter]
                if piece is not None:
                    one += piece[rows]

    def reach(
        self, depth: int, shown: Sequence[Shown], derivatives: Sequence[Tensor | None], size: int, drafted: int
    ) -> None:
        """Shares of a sample's ``size`` positions, and of the last ``drafted`` of them, where the loss reaches."""
        strength = {name: torch.zeros(size + self.depths) for name in self.groups}
        for (columns, begin, _), gradient in zip(shown, derivatives, strict=True):
            if gradient is None:
                continue
            rows_first = gradient.ndim == 3 or isinstance(self.net, OwnLayerNet)
            by_row = gradient[0] if rows_first else gradient[0].transpose(0, 1)
            for group, part in columns:
                norms = by_row.flatten(1)[:, part].float().norm(dim=-1).cpu()
                rows = norms[: max(0, len(strength[group]) - begin)]
                place = strength[group][begin : begin + len(rows)]
                torch.maximum(place, rows, out=place)
        for group, values in strength.items():
            largest = float(values.max())
            if group.split(".")[0] in LAST:
                values[size - 1] = largest = max(largest, 1.0)
            reached = (values >= REACHED * largest) & (values > 0)
            of_all, of_draft = (int(part.sum()) for part in (reached, reached[size - drafted : size]))
            self.shares[depth, group].append((min(1.0, of_all / size), of_draft / drafted))

    def statistics(self) -> list[GroupGradient]:
        found = []
        for (depth, group), shares in self.shares.items():
            if not shares:
                continue
            square = sum(float(part.float().square().sum()) for part in self.sums[depth, group])
            norm = square**0.5 / len(shares)
            weight = sum(float(p[rows].detach().float().square().sum()) for p, rows in self.groups[group]) ** 0.5
            share, draft_share = (float(each) for each in np.mean(shares, 0))
            found.append(GroupGradient(group, depth, norm, norm / weight if weight else None, share, draft_share))
        return found


def _columns(net: ReuseNet) -> dict[str, Columns]:
    """By module with weights."""
    columns: dict[str, Columns] = {}
    for name, module in net.named_modules():
        if isinstance(module, Attention):
            for part, linear in (("from_token", module.from_token), ("from_state", module.from_state)):
                if linear is not None:
                    columns[f"{name}.{part}"] = [(f"{name}.{kind}", rows) for kind, rows in module.parts().items()]
            if module.key_norm is not None:  # the keys of the text come out of it alone
                columns[f"{name}.key_norm"] = [(f"{name}.{kind}", slice(None)) for kind in ("key_norm", "keys")]
                columns[f"{name}.from_state"] = [
                    part for part in columns[f"{name}.from_state"] if "keys" not in part[0]
                ]
    for name, module in net.named_modules():
        if name not in columns and "weight" in module._parameters:
            biased = module._parameters.get("bias") is not None
            columns[name] = [(group, slice(None)) for group in ((name, f"{name}.bias") if biased else (name,))]
    return columns


@contextmanager
def _outputs(net: ReuseNet, columns: Mapping[str, Columns]) -> Iterator[dict[str, list[Tensor]]]:
    """Collects the outputs of every module with weights, in the order of its calls."""
    outputs: dict[str, list[Tensor]] = {name: [] for name in columns}
    with ExitStack() as hooks:
        for name, calls in outputs.items():
            hook = net.get_submodule(name).register_forward_hook(
                lambda part, inputs, output, calls=calls: calls.append(output)  # type: ignore[misc]
            )
            hooks.enter_context(hook)
        yield outputs


@contextmanager
def _trainable(net: nn.Module) -> Iterator[None]:
    """Enables gradients, also of frozen weights."""
    before = [parameter.requires_grad for parameter in net.parameters()]
    try:
        with torch.enable_grad():
            net.requires_grad_(True)
            yield
    finally:
        for parameter, was in zip(net.parameters(), before, strict=True):
            parameter.requires_grad_(was)
            parameter.grad = None
