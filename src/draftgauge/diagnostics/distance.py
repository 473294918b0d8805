"""Acceptance by distance to the context that is needed.

How much context a token needs is a property of the target alone: the shortest stretch of text before the token from
which the target still predicts it as it did from everything. A token that eight tokens of context settle asks nothing
of a drafter's memory; one that needs two hundred can only be drafted by what can look that far back. KVShot expects the
KV cache to help there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.diagnostics.alpha import Ints
from draftgauge.diagnostics.texts import HeldOutText

WINDOWS = (4, 16, 64)


@torch.inference_mode()
def needed_context(
    module: PreTrainedModel, texts: Sequence[HeldOutText], windows: Sequence[int] = WINDOWS, batch_tokens: int = 16384
) -> list[Ints]:
    """``[n]`` for each greedy output: the index of the first window (context lengths in tokens, increasing) from which
    the target predicts the token; ``len(windows)`` where it needs more."""
    assert list(windows) == sorted(set(windows))
    classes = [np.full(len(text.output), len(windows), np.int64) for text in texts]
    for index, window in enumerate(windows):
        open_places: list[tuple[int, int]] = []
        for number, text in enumerate(texts):
            for position in np.flatnonzero(classes[number] == len(windows)).tolist():
                if len(text.prompt) + position <= window:  # the window is the whole text
                    classes[number][position] = index
                else:
                    open_places.append((number, position))
        rows = max(1, batch_tokens // window)
        for start in range(0, len(open_places), rows):
            part = open_places[start : start + rows]
            for (number, position), settled in zip(part, _settled(module, texts, part, window), strict=True):
                if settled:
                    classes[number][position] = index
    return classes


def distance_names(windows: Sequence[int] = WINDOWS) -> list[str]:
    """What the classes of :func:`needed_context` are called: tokens of context, from and to."""
    edges = [0, *windows]
    return [*(f"{low + 1}-{high}" for low, high in pairwise(edges)), f">{windows[-1]}"]


def counts_by_distance(accepted: Ints, labelled: Ints, classes: Ints, count: int, depths: int) -> tuple[Ints, Ints]:
    """Drafts of one text that reached each depth and were accepted there, ``[count, depths]`` each, by the class of the
    token at that depth; ``accepted``, ``labelled`` and ``classes`` are ``[n]``."""
    reached, right = np.zeros((2, count, depths), np.int64)
    for depth in range(depths):
        places = np.flatnonzero((accepted >= depth) & (labelled > depth))
        label = classes[places + depth]
        np.add.at(reached[:, depth], label, 1)
        np.add.at(right[:, depth], label[accepted[places] > depth], 1)
    return reached, right


def _settled(
    module: PreTrainedModel, texts: Sequence[HeldOutText], places: Sequence[tuple[int, int]], window: int
) -> NDArray[np.bool_]:
    """Whether the last ``window`` tokens before each place give the token there."""
    rows, labels = [], []
    for number, position in places:
        text = texts[number]
        end = len(text.prompt) + position
        rows.append(text.tokens[end - window : end])
        labels.append(text.output[position])
    logits: Tensor = module(
        input_ids=torch.tensor(rows, device=module.device), use_cache=False, logits_to_keep=1
    ).logits
    predicted: NDArray[np.int64] = logits[:, -1].argmax(-1).cpu().numpy()
    return predicted == np.array(labels)
