"""All bottlenecks of one trained drafter, measured on held-out texts.

Beside KVShot's three stands the effective rank of the drafter's own projections: those that hardly learn, or that learn
one thing, use few directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.progress import Progress, silent
from draftgauge.diagnostics.bottlenecks import Bottlenecks
from draftgauge.diagnostics.gradients import gradient_statistics
from draftgauge.diagnostics.query_error import query_errors
from draftgauge.diagnostics.texts import HeldOutText, text_batches
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.taps import batch_features, nowhere
from draftgauge.training.reuse.tracking import GateWatch, gates_of, parameter_groups

PROJECTIONS = ("attention.queries", "attention.keys", "attention.values")


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
    return Bottlenecks(query, gradients, gate, logged, projection_ranks(net))


@torch.inference_mode()
def gate_openness(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int
) -> list[dict[str, float]]:
    """Openness of the gate over all positions of the outputs: of all depths, then of each; nothing without a gate. A
    block-wise ``hybrid`` has none: one softmax joins what it sees."""
    if not gates_of(net):
        return []
    watch = GateWatch(net)
    with watch.watching():
        for batch in text_batches(texts, depths, next(net.parameters()).device):
            anchors, begin = batch.tokens.shape[1] - 1 - depths, batch.begin
            watch.count_rows([batch.counted(depth, anchors)[:, begin:] for depth in range(depths)])
            features = batch_features(module, batch.tokens, net.config.tap_plan, nowhere(batch.tokens))
            net.unroll(batch.tokens, features, depths, begin)
    by_depth = [{"depth": depth} | watch.row(depth) for depth in sorted(watch.sums)]
    return [watch.row(), *by_depth] if by_depth else []


def effective_rank(matrix: Tensor) -> float:
    """The exponential of the entropy of the normalised singular values (Roy and Vetterli 2007). It is the whole rank
    where all are equal, and 0 for a matrix of zeros."""
    values = torch.linalg.svdvals(matrix.float())
    total = values.sum()
    return float(torch.special.entr(values / total).sum().exp()) if total > 0 else 0.0


@torch.no_grad()
def projection_ranks(net: ReuseNet) -> list[dict[str, Any]]:
    """``group, effective_rank, full_rank`` of the drafter's own queries, keys and values; of two matrices side by side
    where token and state are read."""
    found = []
    for group, parts in parameter_groups(net).items():
        if group.endswith(PROJECTIONS):
            matrix = torch.cat([parameter[rows] for parameter, rows in parts], 1)
            found.append({"group": group, "effective_rank": effective_rank(matrix), "full_rank": min(matrix.shape)})
    return found
