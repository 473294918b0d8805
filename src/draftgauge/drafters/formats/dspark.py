"""DSpark: DFlash with a head that adds to a place's logits by the token before, and one that predicts acceptance.

Read are the flat configurations of SpecForge and DeepSpec, and that of speculators.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.drafters.formats.dflash import DFlashBranches, DFlashLayout, DFlashNet
from draftgauge.drafters.formats.layout import Shapes
from draftgauge.drafters.formats.settings import Settings

MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True)
class DSparkLayout(DFlashLayout):
    """The heads of a checkpoint.

    Attributes:
        markov: kind of the head that adds to a place's logits by the token before; empty if there is none.
        confidence: there is a head that predicts the chance of acceptance; ``confidence_reads_token`` whether it takes
            in the Markov head's embedding of the token before.
    """

    predicts_at_anchor: ClassVar[bool] = True

    markov: str = ""
    markov_rank: int = 0
    confidence: bool = False
    confidence_reads_token: bool = False

    @classmethod
    def read(cls, reader: Settings) -> DSparkLayout:
        fields, of_speculators = cls.fields_of(reader, "dspark"), "speculators_model_type" in reader.config
        rank = reader.integer("markov_rank", 0, least=0)
        kind = reader.get("markov_head_type", "vanilla") if rank else ""
        if kind and kind not in MARKOV_KINDS:
            reader.refuse(f"markov_head_type must be one of {', '.join(MARKOV_KINDS)}, not {kind!r}")
        confidence = reader.flag("enable_confidence_head", of_speculators)
        reads_token = confidence and reader.flag("confidence_head_with_markov", of_speculators)
        if reads_token and not kind:
            reader.refuse("the confidence head reads a Markov head (markov_rank), and there is none")
        return cls(**fields, markov=kind, markov_rank=rank, confidence=confidence, confidence_reads_token=reads_token)

    def shapes(self, found: Collection[str], target_width: int) -> tuple[Shapes, Shapes]:
        wanted, optional = super().shapes(found, target_width)
        hidden, rank = self.decoder.hidden_size, self.markov_rank
        if self.markov:
            wanted["markov_head.markov_w1.weight"] = (self.decoder.vocabulary, rank)
            wanted["markov_head.markov_w2.weight"] = (self.draft_vocabulary, rank)
        if self.markov in ("gated", "rnn"):
            name, out, states = ("gate_proj", rank, 1) if self.markov == "gated" else ("joint_proj", 3 * rank, 2)
            wanted |= {f"markov_head.{name}.weight": (out, hidden + states * rank), f"markov_head.{name}.bias": (out,)}
        if self.confidence:
            inputs = hidden + (rank if self.confidence_reads_token else 0)
            wanted |= {"confidence_head.proj.weight": (1, inputs), "confidence_head.proj.bias": (1,)}
        return wanted, optional


class DSparkNet(DFlashNet):
    layout: DSparkLayout

    def read_off(self, tokens: Tensor, states: Tensor, logits: Tensor) -> DSparkBranches:
        return DSparkBranches(self, tokens, states, logits)


class DSparkBranches(DFlashBranches):
    """Blocks whose places are read off by the token before each."""

    def __init__(self, net: DSparkNet, tokens: Tensor, states: Tensor, logits: Tensor) -> None:
        super().__init__(logits)
        self._net, self._states = net, states
        self._recurrent: Tensor | None = None
        self._read(tokens)

    def advance(self, tokens: Tensor) -> Tensor:
        super().advance(tokens)
        self._read(tokens)
        return self.logits

    @torch.inference_mode()
    def _read(self, before: Tensor) -> None:
        """The heads' part of the place's logits, and its confidence, by the token before it."""
        layout, weights, state = self._net.layout, self._net.weights, self._states[:, self._place]
        features: Tensor | None = None
        if layout.markov:
            features = F.embedding(before, weights["markov_head.markov_w1.weight"])
            added = weights.linear("markov_head.markov_w2", self._latent(state, features)).float()
            self.logits = self.logits + added
        if layout.confidence:
            joined = state
            if features is not None and layout.confidence_reads_token:
                joined = torch.cat((state, features), -1)
            self.confidence = weights.linear("confidence_head.proj", joined)[:, 0].float().sigmoid()

    def _latent(self, state: Tensor, features: Tensor) -> Tensor:
        """What the Markov head makes of the token before, ``[R, rank]``."""
        layout, weights = self._net.layout, self._net.weights
        if layout.markov == "vanilla":
            return features
        if layout.markov == "gated":
            gate = weights.linear("markov_head.gate_proj", torch.cat((state, features), -1)).sigmoid()
            return gate * features
        recurrent = torch.zeros_like(features) if self._recurrent is None else self._recurrent
        joined = torch.cat((recurrent, features, state), -1)
        gate, candidate, output = weights.linear("markov_head.joint_proj", joined).chunk(3, -1)
        self._recurrent = gate.sigmoid() * recurrent + (1 - gate.sigmoid()) * candidate.tanh()
        return output.tanh()
