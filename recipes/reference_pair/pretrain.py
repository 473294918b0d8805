"""The bundled target and drafts: architectures, the target's training, the drafts' distillation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from draftgauge.training.optimise import autocast_dtype
from recipes.reference_pair.compiling import compiled
from recipes.reference_pair.loop import LossFunction
from recipes.reference_pair.trunk import ATTENTION, layer_states, logits_at

TARGET = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
DRAFT = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
SMALL_DRAFT = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
TAUGHT_SHARE = 0.5
GOLDEN = 0.6180339887
GROWTH = 4.0  # of the log of the mean square of a state over that of the embeddings: an RMS of 7 times theirs
GROWTH_WEIGHT = 0.05
STATE_SIZES = 0.3, 5.0  # of the states of every layer, once training is over


@dataclass(frozen=True)
class Marks:
    """Token ids that tell prompts, answers and plain text apart."""

    user: int
    assistant: int
    end: int


def build(shape: dict[str, int], vocabulary: int, end_token: int, seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 of a shape, embeddings tied, contexts up to 2,048 tokens."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        eos_token_id=end_token,
        bos_token_id=None,
        pad_token_id=end_token,
        initializer_range=0.02,
        **shape,
    )
    model = Qwen3ForCausalLM(config)
    model.set_attn_implementation(ATTENTION)
    return model


def taught_positions(batch: Tensor, marks: Marks, share: float = TAUGHT_SHARE) -> Tensor:
    """The positions of a batch whose next token is learned: a fixed share, as indices into the flattened batch.

    Every token of an answer comes first, then most of the plain text, then some of the prompts, whose numbers and
    names cannot be foretold. Positions in the window decide which ones of a kind, so that a resumed run learns the
    same.

    Args:
        batch: token ids ``[windows, length]``.
        marks: what separates prompts, answers and plain text.
        share: of all positions.
    """
    windows, length = batch.shape
    position = torch.arange(length, device=batch.device).expand(windows, length)
    mark = (batch == marks.user) | (batch == marks.assistant) | (batch == marks.end)
    last = torch.where(mark, position, 0).cummax(dim=1).values
    kind = batch.gather(1, last)
    spread = position * GOLDEN % 1
    worth = torch.where(kind == marks.assistant, 2 + spread, torch.where(kind == marks.user, spread / 2, spread))
    worth[:, -1] = -1
    return worth.flatten().topk(int(share * windows * length)).indices.sort().values


def language_model_loss(model: Qwen3ForCausalLM, marks: Marks) -> LossFunction:
    """Next-token cross-entropy in nats over :func:`taught_positions`, and a penalty on the :func:`growth` of states."""
    dtype = autocast_dtype(next(model.parameters()).device)

    def loss(batch: Tensor, taught: Tensor) -> Tensor:
        with torch.autocast(batch.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            states = layer_states(model, batch)
            logits = logits_at(model, states[-1].flatten(0, 1)[taught])
        return F.cross_entropy(logits.float(), batch.flatten()[taught + 1]) + GROWTH_WEIGHT * growth(states)

    fast = compiled(loss)
    return lambda batch: fast(batch, taught_positions(batch, marks))


def growth(states: Sequence[Tensor]) -> Tensor:
    """How far states outgrow the embeddings ``states[0]``: the mean squared excess of their log mean square.

    Pre-norm blocks read normalised states, so that nothing else keeps the residual stream from growing a
    hundredfold, and whoever taps it (a drafter, a quantiser) from meeting states of very different sizes.
    """
    embedded = states[0].float().square().mean().log()
    excess = [F.relu(state.float().square().mean(-1).log() - embedded - GROWTH).square().mean() for state in states[1:]]
    return torch.stack(excess).mean()


@torch.no_grad()
def state_sizes(model: Qwen3ForCausalLM, batch: Tensor) -> list[float]:
    """Root mean square of the residual stream behind the embedding and every layer, over ids ``[rows, length]``."""
    return [float(state.float().square().mean().sqrt()) for state in layer_states(model, batch)]


def centering_factor(sizes: Sequence[float]) -> float:
    """The factor that brings the smallest and the largest size to equal ratios from the middle of ``STATE_SIZES``."""
    low, high = STATE_SIZES
    return math.sqrt(low * high / (min(sizes) * max(sizes)))


@torch.no_grad()
def rescale_states(model: Qwen3ForCausalLM, factor: float) -> None:
    """Multiply the residual stream by a factor without changing what the model computes.

    Every block reads the stream through a norm, which takes the factor out; what the tied output head gains, the
    final norm loses.
    """
    model.model.embed_tokens.weight.mul_(factor)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)
    model.model.norm.weight.div_(factor)


def distillation_loss(target: Qwen3ForCausalLM, drafts: Sequence[Qwen3ForCausalLM], marks: Marks) -> LossFunction:
    """Sum over drafts of KL(target || draft) in nats a token, the target's logits computed once for all drafts."""
    dtype = autocast_dtype(next(target.parameters()).device)

    def logs(model: Qwen3ForCausalLM, batch: Tensor, taught: Tensor) -> Tensor:
        with torch.autocast(batch.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            logits = logits_at(model, layer_states(model, batch)[-1].flatten(0, 1)[taught])
        return logits.float().log_softmax(-1)

    def teach(batch: Tensor, taught: Tensor) -> Tensor:
        return logs(target, batch, taught)

    def loss(batch: Tensor, taught: Tensor, teacher: Tensor) -> Tensor:
        total = torch.zeros((), device=batch.device)
        for draft in drafts:
            total = total + F.kl_div(logs(draft, batch, taught), teacher, reduction="batchmean", log_target=True)
        return total

    fast_teach, fast_loss = compiled(teach), compiled(loss)

    def combined(batch: Tensor) -> Tensor:
        taught = taught_positions(batch, marks)
        with torch.no_grad():
            teacher = fast_teach(batch, taught).clone()
        result: Tensor = fast_loss(batch, taught, teacher)
        return result

    return combined
