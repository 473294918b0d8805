"""All bottlenecks of one trained drafter, measured on held-out texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from draftgauge.core.progress import Progress, silent
from draftgauge.diagnostics.bottlenecks import Bottlenecks
from draftgauge.diagnostics.gradients import gradient_statistics
from draftgauge.diagnostics.query_error import query_errors
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.diagnostics.unrolled import text_batches
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.unroll import unroll_states
from draftgauge.models.taps import batch_features
from draftgauge.training.reuse.gate import GateWatch

PARTS = 3


def measure_bottlenecks(
    net: ReuseNet,
    module: PreTrainedModel,
    texts: Sequence[HeldOutText],
    depths: int,
    history: Sequence[Mapping[str, float]] = (),
    progress: Progress = silent,
) -> Bottlenecks:
    """Measure what limits a drafter.

    Args:
        net: the drafter, in evaluation mode.
        module: its target, as transformers has it.
        texts: the target's own greedy outputs.
        depths: K.
        history: of its training.
        progress: told (what, done, total).
    """
    progress("bottlenecks", 0, PARTS)
    query = query_errors(net, module, texts, depths)
    progress("bottlenecks", 1, PARTS)
    gradients = gradient_statistics(net, module, texts, depths)
    progress("bottlenecks", 2, PARTS)
    gate = gate_openness(net, module, texts, depths)
    progress("bottlenecks", PARTS, PARTS)
    return Bottlenecks(query, gradients, gate, list(history))


@torch.inference_mode()
def gate_openness(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int
) -> list[dict[str, float]]:
    """Openness of the gate over all positions of the outputs: of all depths, then of each; nothing without a gate."""
    if not net.traits.gated:
        return []
    watch = GateWatch(net)
    with watch.watching():
        for batch in text_batches(texts, depths, next(net.parameters()).device):
            anchors, begin = batch.tokens.shape[1] - 1 - depths, batch.begin
            watch.count_rows([batch.counted(depth, anchors)[:, begin:] for depth in range(depths)])
            features = batch_features(module, batch.tokens, net.config.tap_plan)
            unroll_states(net, batch.tokens, features, depths, begin)
    rows = []
    for depth in (None, *range(depths)):
        figures = watch.figures(depth)
        if figures is not None:
            rows.append(({} if depth is None else {"depth": depth}) | figures.row())
    return rows
