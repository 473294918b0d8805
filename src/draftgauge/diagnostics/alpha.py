"""Teacher-forced acceptance: how far the draft from every position of a held-out text agrees with it.

On text that the target decoded greedily, the tokens a drafter would have been fed at depth ``k`` are its own, as long
as all its earlier ones were accepted; and only then is depth ``k`` counted. One unroll over the text therefore gives
what decoding would have found, position by position, whatever steps it took (KVShot, section 3: alpha_k is conditional
on the acceptance of all earlier steps).

    L  tokens of a text, P of them the prompt's      n  tokens of its output, L - P
    K  depths of the draft                           p  output tokens committed before a draft, 0 .. n - 1
    t  anchor of that draft, P + p - 2               k  depth, whose label is output token p + k
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.unroll import unroll
from draftgauge.models.taps import TapPlan, batch_features

Ints = NDArray[np.int64]


def accepted_lengths(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int, batch_tokens: int = 2048
) -> list[Ints]:
    """Accepted length ``0 .. depths`` of the draft from every output position, ``[n]`` for each text.

    A draft counts as accepted up to the end of the text, beyond which nothing is known; see :func:`known_depths`.

    Args:
        net: the drafter.
        module: its target, as transformers has it.
        texts: the target's own greedy outputs.
        depths: K, tokens a draft.
        batch_tokens: texts of similar lengths are unrolled together up to so many tokens, padding included.
    """
    return [accepted(agreed) for agreed in agreement(net, module, texts, depths, batch_tokens)]


def accepted(agreed: Ints) -> Ints:
    """``[n]`` accepted lengths of drafts ``[n, depths]``, see :func:`agreement`."""
    lengths: Ints = agreed.cumprod(-1).sum(-1)
    return lengths


@torch.inference_mode()
def agreement(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int, batch_tokens: int = 2048
) -> list[Ints]:
    """Whether the token at each depth of the draft from every output position is the text's, ``[n, depths]`` of 0 and 1
    for each text, whatever became of the tokens before it; 0 where there is no label, see :func:`known_depths`.

    Where a token before was wrong, the drafter was fed the text's in its place: the drafter of every design is asked
    the same question at every position, so designs can be compared depth by depth. Arguments as in
    :func:`accepted_lengths`.
    """
    plan = TapPlan(net.config.hidden_layers, net.config.kv_layers)
    device = next(net.parameters()).device
    agreed: dict[int, Ints] = {}
    for members in _batches(texts, depths, batch_tokens):
        tokens = _padded([texts[i] for i in members], depths).to(device)
        predicted = unroll(net, tokens, batch_features(module, tokens, plan), depths)
        right = _agreement(predicted, tokens, net.d2t).cpu().numpy()  # [B, A, K]
        for row, i in enumerate(members):
            agreed[i] = _by_position(right[row], texts[i])
    return [agreed[i] for i in range(len(texts))]


def known_depths(text: HeldOutText, depths: int) -> Ints:
    """``[n]`` how many depths of the draft from each output position have a label, at most K.

    None at position 0 of a prompt of one token: nothing of that text has been through the target when its first draft
    is due.
    """
    left = np.arange(len(text.output), 0, -1)
    known = np.minimum(left, depths)
    if len(text.prompt) < 2:
        known[:1] = 0
    return known


def depth_counts(accepted: Ints, known: Ints, depths: int) -> tuple[Ints, Ints]:
    """Drafts that reached each depth, and those accepted there, ``[depths]`` each.

    Args:
        accepted: ``[drafts]`` accepted lengths.
        known: ``[drafts]`` how many depths of each draft are known.
    """
    depth = np.arange(depths)
    reached = (accepted[:, None] >= depth) & (known[:, None] > depth)
    return reached.sum(0), (reached & (accepted[:, None] > depth)).sum(0)


def walked(text: HeldOutText, accepted: Ints, known: Ints, max_new_tokens: int) -> tuple[Ints, Ints]:
    """The drafts that a decoding loop makes on its way through the text, as (accepted, drafted) lengths of its steps.

    Each step commits the accepted tokens and one more; a draft leaves room for that one, as the live loop does.
    """
    steps, position = [], 0
    while position < len(text.output):
        drafted = min(int(known[position]), max_new_tokens - position - 1)
        steps.append((min(int(accepted[position]), drafted), drafted))
        position += steps[-1][0] + 1
    return np.array([s[0] for s in steps], np.int64), np.array([s[1] for s in steps], np.int64)


def _batches(texts: Sequence[HeldOutText], depths: int, batch_tokens: int) -> Iterator[list[int]]:
    """Indices of texts to unroll together: of similar lengths, within the budget."""
    members: list[int] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i].tokens)):
        width = len(texts[i].tokens) + depths
        if members and (len(members) + 1) * width > batch_tokens:
            yield members
            members = []
        members.append(i)
    if members:
        yield members


def _padded(texts: Sequence[HeldOutText], depths: int) -> Tensor:
    """``[B, T]`` tokens padded on the right, so far that even the last output token is the first label of an anchor."""
    width = max(len(text.tokens) for text in texts) + depths - 1
    return torch.tensor([text.tokens + [0] * (width - len(text.tokens)) for text in texts])


def _agreement(predicted: Sequence[Tensor], tokens: Tensor, draft_to_target: Tensor | None) -> Tensor:
    """``[B, A, K]`` whether the drafted token of each anchor and depth is the text's."""
    columns = []
    for depth, logits in enumerate(predicted):
        drafted = logits.argmax(-1)
        if draft_to_target is not None:
            drafted = draft_to_target[drafted]
        anchors = drafted.shape[1]
        columns.append(drafted == tokens[:, depth + 2 : depth + 2 + anchors])
    return torch.stack(columns, -1).long()


def _by_position(right: Ints, text: HeldOutText) -> Ints:
    """From anchors ``[A, K]`` of a padded text to its output positions ``[n, K]``, cut at the end of the text."""
    n, first, depths = len(text.output), len(text.prompt) - 2, right.shape[-1]
    rows = np.zeros((n, depths), np.int64)
    skipped = max(0, -first)
    rows[skipped:] = right[first + skipped : first + n]
    labelled = np.arange(n)[:, None] + np.arange(depths) < n
    return rows * labelled
