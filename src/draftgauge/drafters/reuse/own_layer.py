"""The design ``mtp`` as a network: one decoder layer of the target's own class, as models ship it (MTP).

A pair joins the target's state behind its final norm and the embedding of the token after it. Deeper pairs join the
head's own last state and the drafted token (FastMTP, arXiv 2509.18362). Embedding and output head stay the target's.
Parameters have the names of Qwen3.5's checkpoints. Letters in shapes as in :mod:`draftgauge.drafters.reuse.net`.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.drafters.anchors import KeysValues
from draftgauge.drafters.mtp.families import trained_family
from draftgauge.drafters.mtp.head import Head, head_config, take_norm
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import decoder_layers, final_norm, text_decoder
from draftgauge.models.folder import explained
from draftgauge.models.taps import Features


class OwnLayerNet(ReuseNet):
    """An MTP head that is trained; it lends the target's embedding, final norm and output head."""

    def __init__(self, config: ReuseConfig, target: PreTrainedModel) -> None:
        nn.Module.__init__(self)  # and none of the parts of other designs
        embedding, norm = target.get_input_embeddings(), final_norm(target)
        if norm is None:
            raise ModelError(f"this {config.target_family} target has no final norm, behind which an MTP head begins")
        self.config, self.traits, self.blocks, self.d2t, self.t2d = config, config.traits, (), None, None
        self.family = trained_family(config.target_family)
        self.register_buffer("embedding", embedding.weight.detach(), persistent=False)
        self._lent = embedding, norm, target.get_output_embeddings()  # a tuple, so that they are no parts of it
        device, width = embedding.weight.device, config.hidden_size
        kind: Any = type(text_decoder(target))
        with explained(f"an MTP head of {config.target_family}"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # for weights whose first values the family alone knows
            with torch.device(device):
                decoder = kind(head_config(target.config.get_text_config(), self.family)).float().eval()
        fresh = take_norm(decoder)
        parts = {name: copy.deepcopy(fresh) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
        if device.type != "meta":
            parts["norm"].load_state_dict(norm.state_dict())
        fc = nn.Linear(2 * width, width, bias=False, device=device)
        self.mtp = nn.ModuleDict({"fc": fc, **parts, "layers": decoder_layers(decoder)})
        self.core = Head(parts["pre_fc_norm_embedding"], parts["pre_fc_norm_hidden"], fc, decoder, parts["norm"])

    def logits(self, states: Tensor, before: Tensor | None = None) -> Tensor:
        head = self._lent[2]
        logits: Tensor = head(states.to(head.weight.dtype))
        return logits

    def cast(self, x: Tensor) -> Tensor:
        return x.to(self.core.projection.weight.dtype)

    def _unroll(self, tokens: Tensor, features: Features, depths: int, first: int, anchors: int) -> list[Tensor]:
        assert features.hidden is not None, "an MTP head reads hidden states"
        return self.unroll_from(tokens, features.hidden[:, :, 0], depths, torch.arange(first, anchors)[None])

    def unroll_from(self, tokens: Tensor, hidden: Tensor, depths: int, anchors: Tensor) -> list[Tensor]:
        """States ``[B, A, H]`` of all depths from ``anchors`` ``[B, A]`` or ``[1, A]``, where -1 is padding.

        Depth 0 runs for the whole text, as all pairs of the target's states are seen from behind them. At the other
        depths a row sees those up to its anchor, and its own.
        """
        length = tokens.shape[1] - 1 - depths
        kept: dict[int, list[KeysValues]] = defaultdict(list)

        def take(layer: int, keys: Tensor, values: Tensor) -> KeysValues:
            kept[layer].append((keys, values))
            every = [torch.cat(parts, 2) for parts in zip(*kept[layer], strict=True)]
            return every[0], every[1]

        embed, norm, _ = self._lent
        columns = torch.arange(length, device=tokens.device)[None]
        pairs = embed(tokens[:, 1 : length + 1]), norm(self.cast(hidden[:, :length])), columns
        states = self.core.run(self.family, pairs, columns[..., None] >= columns[:, None], columns, take)
        rows = anchors.to(tokens.device).clamp(min=0)
        states = states.gather(1, rows.expand(len(tokens), -1)[..., None].expand(-1, -1, states.shape[-1]))
        found, visible = [states], columns[:, None] <= rows[..., None]
        itself = torch.eye(rows.shape[1], dtype=torch.bool, device=tokens.device).expand(len(rows), -1, -1)
        for depth in range(1, depths):
            places = rows + depth
            columns = torch.cat((columns.expand(len(rows), -1), places), 1)
            visible = torch.cat((visible, itself), 2)
            drafted = tokens.gather(1, (places + 1).expand(len(tokens), -1))
            found.append(self.core.run(self.family, (embed(drafted), found[-1], places), visible, columns, take))
        return found
