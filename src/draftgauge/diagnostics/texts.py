"""Held-out texts, prompts with the target's greedy outputs, and how far drafts from their positions agree with them.

The target decoded the text greedily, so where all earlier drafted tokens were accepted, a drafter would be fed the
text's tokens. Only there is depth ``k`` counted. So one unroll over the text gives what decoding would have found at
every position, whatever steps it took. In KVShot, section 3, alpha_k is likewise conditional on the acceptance of all
earlier steps.

    L  tokens of a text, P of them the prompt's      n  tokens of its output, L - P
    K  depths of the draft                           p  output tokens committed before a draft, 0 .. n - 1
    t  anchor of that draft, P + p - 2               k  depth, whose label is output token p + k
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.progress import Progress, silent
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import batch_features, nowhere
from draftgauge.training.reuse.answers import groups

BATCH_TOKENS = 2048
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class HeldOutText:
    """One prompt and the target's greedy output, token ids; the last one is an end token where it ended by itself."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    task: str = ""

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.output]


def greedy_texts(
    target: CachedModel,
    prompts: Sequence[tuple[str, list[int]]],
    settings: DecodingSettings,
    progress: Progress = silent,
) -> list[HeldOutText]:
    """Decode every prompt, (task, token ids), greedily and without speculation; the target's cache is overwritten."""
    assert settings.sampling.greedy
    texts = []
    for number, (task, prompt) in enumerate(prompts, start=1):
        output = plain_decode(target, prompt, settings).tokens
        texts.append(HeldOutText(tuple(prompt), tuple(output), task))
        progress("held-out texts", number, len(prompts))
    return texts


@dataclass(frozen=True)
class TextBatch:
    """Texts of similar lengths, padded on the right so far that even the last output token is a label.

    Attributes:
        index: which texts these are.
        first: ``[B]`` anchor of each text's first output token; negative where a prompt of one token leaves none.
    """

    index: tuple[int, ...]
    tokens: Tensor
    first: Tensor
    outputs: Tensor

    @property
    def begin(self) -> int:
        return max(0, int(self.first.min()))

    def counted(self, depth: int, anchors: int) -> Tensor:
        """``[B, anchors]`` bool: anchors whose draft has an output token as its label at this depth."""
        position = torch.arange(anchors) - self.first[:, None]  # in the output
        return (position >= 0) & (position + depth < self.outputs[:, None])

    def right(self, net: ReuseNet, states: Tensor, depth: int) -> Tensor:
        """``[B, anchors]`` int64: 1 where an anchor counts and its drafted token is the text's, else 0; the depth's
        ``states`` ``[B, anchors, H]`` begin with the anchor ``begin``."""
        begin = self.begin
        counted = self.counted(depth, begin + states.shape[1])[:, begin:]
        row, anchor = counted.nonzero(as_tuple=True)
        logits = net.logits(states[row, anchor], self.tokens[row, begin + anchor + depth + 1])
        drafted = net.target_ids(logits.argmax(-1))
        right = torch.zeros(counted.shape, dtype=torch.int64, device=states.device)
        right[row, anchor] = (drafted == self.tokens[row, begin + anchor + depth + 2]).long()
        return right


def text_batches(texts: Sequence[HeldOutText], depths: int, device: torch.device) -> Iterator[TextBatch]:
    """Batches of all texts, longest first, of up to ``BATCH_TOKENS`` tokens, padding included."""
    for index in groups([len(text.tokens) for text in texts], depths, BATCH_TOKENS):
        chosen = [texts[i] for i in index]
        width = len(chosen[0].tokens) + depths - 1
        tokens = torch.tensor([text.tokens + [0] * (width - len(text.tokens)) for text in chosen], device=device)
        first = torch.tensor([len(text.prompt) - 2 for text in chosen])
        yield TextBatch(tuple(index), tokens, first, torch.tensor([len(text.output) for text in chosen]))


def by_text(batch: TextBatch, counted: Tensor, values: Tensor) -> np.ndarray:
    """Sums over the counted anchors of each text: ``[B, ...]`` float64 of ``values`` ``[B, anchors, ...]``."""
    weights = counted.to(values.device, values.dtype)
    return torch.einsum("ba,ba...->b...", weights, values).double().cpu().numpy()


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
