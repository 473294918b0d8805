"""All bottlenecks of one trained drafter, measured on held-out texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from draftgauge.core.progress import Progress, silent
from draftgauge.diagnostics.bottlenecks import Bottlenecks
from draftgauge.diagnostics.gradients import gradient_statistics
from draftgauge.diagnostics.query_error import query_errors
from draftgauge.diagnostics.texts import HeldOutText, text_batches
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.unroll import unroll_states
from draftgauge.models.taps import batch_features
from draftgauge.training.reuse.gate import GateWatch


def measure_bottlenecks(
    net: ReuseNet,
    module: PreTrainedModel,
    texts: Sequence[HeldOutText],
    depths: int,
    history: Sequence[Mapping[str, float]] = (),
    progress: Progress = silent,
) -> Bottlenecks:
    """Measure what limits a drafter, over greedy outputs of its target; of ``history``, the log of its training, the
    gate's figures are kept."""
    if isinstance(net, BlockNet):  # what is measured is of drafts that go token by token
        return Bottlenecks(None, [], [], [])
    query = query_errors(net, module, texts, depths)
    progress("bottlenecks", 1, 3)
    gradients = gradient_statistics(net, module, texts, depths)
    progress("bottlenecks", 2, 3)
    gate = gate_openness(net, module, texts, depths)
    progress("bottlenecks", 3, 3)
    logged = [
        {key: value for key, value in row.items() if key == "step" or key.startswith("gate_")}
        for row in history
        if "gate_mean" in row
    ]
    return Bottlenecks(query, gradients, gate, logged)


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
    by_depth = [{"depth": depth} | watch.row(depth) for depth in sorted(watch.sums)]
    return [watch.row(), *by_depth] if by_depth else []
