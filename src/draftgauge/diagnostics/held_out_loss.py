"""The loss of a drafter on held-out texts: what learning rates and the like are chosen by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from draftgauge.diagnostics.texts import HeldOutText, text_batches
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.unroll import unroll_states
from draftgauge.models.taps import batch_features


@torch.inference_mode()
def held_out_kl(net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int) -> list[float]:
    """Mean KL from the target's distribution to the drafter's at each depth, in nats, over all output positions.

    With a draft vocabulary both are distributions over it.
    """
    totals, counts = [0.0] * depths, [0] * depths
    for batch in text_batches(texts, depths, next(net.parameters()).device):
        features = batch_features(module, batch.tokens, net.config.tap_plan)
        begin = batch.begin
        for depth, states in enumerate(unroll_states(net, batch.tokens, features, depths, begin)):
            row, anchor = batch.counted(depth, begin + states.shape[1])[:, begin:].nonzero(as_tuple=True)
            taught = features.logits[row, begin + anchor + 1 + depth]
            taught = (taught if net.d2t is None else taught[:, net.d2t]).float().log_softmax(-1)
            guessed = (
                net.logits(states[row, anchor], batch.tokens[row, begin + anchor + 1 + depth]).float().log_softmax(-1)
            )
            totals[depth] += float((taught.exp() * (taught - guessed)).sum())
            counts[depth] += len(row)
    return [total / max(1, count) for total, count in zip(totals, counts, strict=True)]
