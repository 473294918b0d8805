"""Teacher-forced acceptance: how far the draft from every position of a held-out text agrees with it.

The target decoded the text greedily, so where all earlier drafted tokens were accepted, a drafter would be fed the
text's tokens. Only there is depth ``k`` counted. So one unroll over the text gives what decoding would have found at
every position, whatever steps it took. In KVShot, section 3, alpha_k is likewise conditional on the acceptance of all
earlier steps.

    L  tokens of a text, P of them the prompt's      n  tokens of its output, L - P
    K  depths of the draft                           p  output tokens committed before a draft, 0 .. n - 1
    t  anchor of that draft, P + p - 2               k  depth, whose label is output token p + k
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from draftgauge.diagnostics.texts import HeldOutText, text_batches
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.taps import batch_features, nowhere

Ints = NDArray[np.int64]


@torch.inference_mode()
def agreement(net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int) -> list[Ints]:
    """Whether the token at each depth of the draft from every output position is the text's: ``[n, depths]`` of 0 and 1
    for each text. It is 0 where there is no label, see :func:`labelled_depths`.

    Earlier tokens need not be right: where one is wrong, the drafter is fed the text's. So every design is asked the
    same question at every position, and designs can be compared depth by depth. Texts of similar lengths are unrolled
    together.
    """
    agreed = [np.zeros((len(text.output), depths), np.int64) for text in texts]
    for batch in text_batches(texts, depths, next(net.parameters()).device):
        features = batch_features(module, batch.tokens, net.config.tap_plan, nowhere(batch.tokens))
        states = net.unroll(batch.tokens, features, depths, batch.begin)
        right = np.stack([batch.right(net, state, depth).cpu().numpy() for depth, state in enumerate(states)], -1)
        for row, i in enumerate(batch.index):
            first = int(batch.first[row]) - batch.begin
            skipped = max(0, -first)
            agreed[i][skipped:] = right[row, first + skipped : first + len(agreed[i])]
    return agreed


def labelled_depths(text: HeldOutText, depths: int) -> Ints:
    """``[n]`` how many depths of the draft from each output position have a label, at most K.

    None at position 0 of a prompt of one token: nothing of that text has been through the target when its first draft
    is due.
    """
    left = np.arange(len(text.output), 0, -1)
    labelled = np.minimum(left, depths)
    if len(text.prompt) < 2:
        labelled[:1] = 0
    return labelled


def depth_counts(accepted: Ints, labelled: Ints, depths: int) -> tuple[Ints, Ints]:
    """Drafts that reached each depth, and those accepted there, ``[depths]`` each, from the accepted lengths and the
    labelled depths of drafts."""
    depth = np.arange(depths)
    reached = (accepted[:, None] >= depth) & (labelled[:, None] > depth)
    return reached.sum(0), (reached & (accepted[:, None] > depth)).sum(0)
