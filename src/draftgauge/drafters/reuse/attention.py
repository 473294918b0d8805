"""The attention of all designs: input projections, heads with rotary embedding, joint attention, output.

Joint attention is over two sets of keys in one softmax: keys that all rows share, and a few keys of each row's own.
Rows are anchors in training and branches in drafting. The shared keys are a prefix (causal in training); a row's own
keys are those of its chain of drafted tokens, one for each depth. Laid out as one masked attention, ``k`` depths would
cost ``k`` times the keys. Here each depth adds one dot product a row, as in EAGLE-3's training-time test.

Letters in shapes: ``B`` texts, ``Q`` query heads, ``KV`` key heads, ``R`` rows, ``L`` shared keys, ``D`` head
dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from draftgauge.drafters.anchors import KeysValues
from draftgauge.drafters.reuse.rotary import Tables, like, rotate
from draftgauge.models.device import private


class Heads(NamedTuple):
    """Rotated queries ``[B, Q, R, D]``, rotated keys and values ``[B, KV, R, D]``."""

    queries: Tensor
    keys: Tensor
    values: Tensor

    def since(self, row: int) -> Heads:
        return Heads(*(part[:, :, row:] for part in self))


class Attention(nn.Module):
    """Attention that reads the token's embedding, the drafter's state, or both side by side.

    The linear of ``[embedding; state]`` is kept as two: the half of the embedding does not depend on the depth, so an
    unroll computes it once.
    """

    def __init__(
        self, hidden: int, query_heads: int, kv_heads: int, head_dim: int, reads_token: bool, reads_state: bool
    ) -> None:
        super().__init__()
        self.query_heads, self.kv_heads = query_heads, kv_heads
        width = (query_heads + 2 * kv_heads) * head_dim
        self.from_token = nn.Linear(hidden, width, bias=False) if reads_token else None
        self.from_state = nn.Linear(hidden, width, bias=False) if reads_state else None
        self.output = nn.Linear(query_heads * head_dim, hidden, bias=False)
        self.query_norm: nn.RMSNorm | None = None
        self.key_norm: nn.RMSNorm | None = None

    def normalise_heads(self, eps: float) -> None:
        """Normalise queries and keys by head, before they are rotated."""
        head_dim = self.output.in_features // self.query_heads
        self.query_norm, self.key_norm = nn.RMSNorm(head_dim, eps), nn.RMSNorm(head_dim, eps)

    def parts(self) -> dict[str, slice]:
        width = self.output.in_features // self.query_heads
        queries, keys = self.query_heads * width, (self.query_heads + self.kv_heads) * width
        return {"queries": slice(0, queries), "keys": slice(queries, keys), "values": slice(keys, None)}

    def match_queries_to_keys(self) -> None:
        for linear in (self.from_token, self.from_state):
            if linear is not None:
                heads = linear.weight.unflatten(0, (self.query_heads + 2 * self.kv_heads, -1))
                keys = heads[self.query_heads : self.query_heads + self.kv_heads]
                heads[: self.query_heads].copy_(keys.repeat_interleave(self.query_heads // self.kv_heads, 0))

    def token_part(self, normed: Tensor) -> Tensor:
        """The share of normalised embeddings ``[B, n, H]`` in queries, keys and values, ``[B, n, width]``."""
        assert self.from_token is not None
        return self.from_token(normed)

    def heads(self, token_part: Tensor | None, state: Tensor | None, tables: Tables) -> Heads:
        """Queries, keys and values of ``R`` rows at the positions of ``tables``.

        They are computed from the rows' tokens ``[B, R, width]`` (see :meth:`token_part`), from the normalised state
        ``[B, R, H]``, or from both.
        """
        projected = token_part
        if self.from_state is not None:
            read = self.from_state(state)
            projected = read if projected is None else projected + read
        assert projected is not None
        split = projected.unflatten(-1, (self.query_heads + 2 * self.kv_heads, -1)).transpose(1, 2)  # [B, heads, R, D]
        both = split[:, : -self.kv_heads]
        if self.query_norm is not None:
            queries, keys = both[:, : self.query_heads], both[:, self.query_heads :]
            both = torch.cat((_normed(self.query_norm, queries), _normed(self.key_norm, keys)), 1)
        rotated = rotate(both, like(tables, split))
        return Heads(rotated[:, : self.query_heads], rotated[:, self.query_heads :], split[:, -self.kv_heads :])

    def keys_values(self, state: Tensor, tables: Tables) -> KeysValues:
        """Keys and values ``[B, KV, n, D]`` of states ``[B, n, H]`` that are only attended to."""
        assert self.from_state is not None
        projected = F.linear(state, self.from_state.weight[self.parts()["keys"].start :])
        split = projected.unflatten(-1, (2 * self.kv_heads, -1)).transpose(1, 2)
        keys = _normed(self.key_norm, split[:, : self.kv_heads])
        return rotate(keys, like(tables, split)), split[:, self.kv_heads :]

    def forward(
        self,
        queries: Tensor,
        shared: KeysValues | None,
        own: Sequence[KeysValues],
        causal: bool,
        empty: Tensor | None = None,
    ) -> Tensor:
        mixed = joint_attention(queries, shared, own, causal, empty)
        return self.output(mixed.transpose(1, 2).flatten(2))


def _normed(norm: nn.RMSNorm | None, heads: Tensor) -> Tensor:
    if norm is None:
        return heads
    normed: Tensor = norm(heads.to(norm.weight.dtype))  # another one under autocast
    return normed.to(heads.dtype)


FUSED_DTYPES = {"cpu": (torch.float32, torch.bfloat16, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
_NAME = "ops.aten._scaled_dot_product_flash_attention"
FLASH = {
    "cpu": (f"{_NAME}_for_cpu", f"{_NAME}_for_cpu_backward"),
    "cuda": (_NAME, f"{_NAME}_backward"),
}  # PyTorch's own: where it lacks one, scores are written out


def joint_attention(
    queries: Tensor, shared: KeysValues | None, own: Sequence[KeysValues], causal: bool, empty: Tensor | None = None
) -> Tensor:
    """Softmax attention of every row over the shared keys and its own, ``[B, Q, R, D]``.

    Args:
        shared: keys and values ``[B, KV, L, D]``, or None.
        own: keys and values ``[B, KV, R, D]`` for every depth; row ``r`` sees only theirs at ``r``.
        causal: the rows are the last of the ``L``, and each sees no shared keys after it.
        empty: ``[L]`` or ``[R, L]`` true for shared places that rows do not see, which are not causal.
    """
    if causal and shared is not None and _has_flash(queries):
        flat = [tensor for pair in (shared, *own) for tensor in pair]
        if queries.device.type == "cpu":  # whose kernels are two to three times as fast in float32 as in bfloat16
            wide: Tensor = FusedCausal.apply(queries.float(), *(tensor.float() for tensor in flat))  # type: ignore[no-untyped-call]
            return wide.to(queries.dtype)
        # Under autocast what is handed on as the target left it comes in float32: the kernels take one dtype alone.
        return FusedCausal.apply(queries, *(tensor.to(queries.dtype) for tensor in flat))  # type: ignore[no-any-return, no-untyped-call]
    return plain_attention(queries, shared, own, causal, empty)


def _has_flash(queries: Tensor) -> bool:
    """Whether flash kernels take them: on a GPU in half precision, from Ampere on, heads of up to 256 by eights."""
    kind, width = queries.device.type, queries.shape[-1]
    if queries.dtype not in FUSED_DTYPES.get(kind, ()) or None in map(private, FLASH[kind]):
        return False
    return kind == "cpu" or (
        width % 8 == 0 and width <= 256 and torch.cuda.get_device_capability(queries.device)[0] >= 8
    )


def plain_attention(
    queries: Tensor, shared: KeysValues | None, own: Sequence[KeysValues], causal: bool, empty: Tensor | None = None
) -> Tensor:
    """:func:`joint_attention` with its scores written out: for few rows, and as reference for the fused one."""
    texts, heads, rows, dim = queries.shape
    key_heads = (shared or own[0])[0].shape[1]
    grouped = (queries * dim**-0.5).view(texts, key_heads, heads // key_heads, rows, dim)
    scores = []
    if shared is not None:
        far = torch.matmul(grouped.flatten(2, 3), shared[0].mT).view(*grouped.shape[:-1], -1)
        if causal:
            length = far.shape[-1]
            hidden = torch.ones(rows, length, dtype=torch.bool, device=far.device).triu(1 + length - rows)
            far = far.masked_fill(hidden, float("-inf"))
        if empty is not None:
            far = far.masked_fill(empty, float("-inf"))
        scores.append(far)
    if own:
        keys = torch.stack([pair[0] for pair in own], -2)  # [B, KV, R, depths, D]
        scores.append((grouped[..., None, :] * keys[:, :, None]).sum(-1))
    weights = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(queries.dtype)
    length = weights.shape[-1] - len(own)
    mixed = torch.zeros_like(grouped)
    if shared is not None:
        mixed = torch.matmul(weights[..., :length].flatten(2, 3), shared[1]).view_as(grouped)
    if own:
        values = torch.stack([pair[1] for pair in own], -2)
        mixed = mixed + (weights[..., length:, None] * values[:, :, None]).sum(-2)
    return mixed.reshape(texts, heads, rows, dim)


class FusedCausal(torch.autograd.Function):
    """Causal :func:`joint_attention` on PyTorch's flash kernels, which never write the scores out.

    A flash kernel returns its output and the logarithm of its normaliser, so other keys can be folded in afterwards.
    The joint normaliser is a log-sum-exp of all. Backwards the same kernel is given the *joint* output and normaliser.
    It rebuilds the weights as ``exp(score - normaliser)``, which are then the joint softmax's. Its gradients are right
    for its part of the keys.

    Shared keys before those of the rows are seen by all rows, so they go through the kernel apart, without a mask.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, *own: Tensor) -> Tensor:
        """``own`` holds keys and values of every depth in turn."""
        group = queries.shape[1] // keys.shape[1]
        parts_forward = [_flash(queries, *part) for part in _parts(queries, keys, values)]
        normalisers = [part[1][..., None] for part in parts_forward]
        if own:
            scores = torch.stack([(queries * _repeat(key, group)).sum(-1, dtype=torch.float32) for key in own[::2]], -1)
            normalisers.append(scores * queries.shape[-1] ** -0.5)  # [B, Q, R, depths]
        joint = torch.logsumexp(torch.cat(normalisers, -1), -1, keepdim=True)
        weights = (torch.cat(normalisers, -1) - joint).exp().to(queries.dtype)  # of each part, then of each depth
        output = parts_forward[0][0] * weights[..., :1]
        others = [part[0] for part in parts_forward[1:]] + [_repeat(value, group) for value in own[1::2]]
        for part, other in enumerate(others, start=1):
            output = torch.addcmul(output, weights[..., part, None], other)
        ctx.save_for_backward(queries, keys, values, output, joint[..., 0], weights[..., len(parts_forward) :], *own)
        ctx.extras = [part[2:] for part in parts_forward]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the queries, shared keys and values, and own keys and values in turn."""
        queries, keys, values, output, joint, weights, *own = ctx.saved_tensors
        group = queries.shape[1] // keys.shape[1]
        gradient = gradient.contiguous()
        parts = zip(_parts(queries, keys, values), ctx.extras, strict=True)
        parts_backward = [_flash_backward(gradient, queries, *part, (output, joint, *extras)) for part, extras in parts]
        for_queries = parts_backward[0][0] if len(parts_backward) == 1 else parts_backward[0][0] + parts_backward[1][0]
        # The kernel's first part are the last keys, see _parts.
        results = [_sum_groups(torch.cat([part[n] for part in reversed(parts_backward)], 2), group) for n in (1, 2)]
        if own:
            shared = (gradient * output).sum(-1)
            scaled = queries * queries.shape[-1] ** -0.5
        for depth, (key, value) in enumerate(zip(own[::2], own[1::2], strict=True)):
            weight = weights[..., depth]
            key = _repeat(key, group)
            score = (weight * ((gradient * _repeat(value, group)).sum(-1) - shared))[..., None]
            for_queries = torch.addcmul(for_queries, score * queries.shape[-1] ** -0.5, key)
            results += [_sum_groups(score * scaled, group), _sum_groups(weight[..., None] * gradient, group)]
        return for_queries, *results


def _parts(queries: Tensor, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor, bool]]:
    """Keys and values ``[B, Q, L, D]`` of the rows themselves, attended to causally, and of those before, if any."""
    group, before = queries.shape[1] // keys.shape[1], keys.shape[2] - queries.shape[2]
    wide = _repeat(keys, group), _repeat(values, group)
    parts = [(wide[0][:, :, before:], wide[1][:, :, before:], True)]
    return [*parts, (wide[0][:, :, :before], wide[1][:, :, :before], False)] if before else parts


def _repeat(x: Tensor, group: int) -> Tensor:
    return x if group == 1 else x.repeat_interleave(group, 1)


def _sum_groups(x: Tensor, group: int) -> Tensor:
    return x if group == 1 else x.unflatten(1, (-1, group)).sum(2)


def _flash(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> tuple[Any, ...]:
    """Output ``[B, Q, R, D]``, normaliser ``[B, Q, R]`` in float32, and what the backward kernel wants besides."""
    if queries.device.type == "cpu":
        return tuple(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, causal))
    output, normaliser, *extras = torch.ops.aten._scaled_dot_product_flash_attention(queries, keys, values, 0.0, causal)
    return output, normaliser, *extras[:6]


def _flash_backward(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, causal: bool, saved: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """``saved`` is what :func:`_flash` returned, with the joint normaliser in place of its own."""
    output, normaliser, *extras = saved
    same = (gradient, queries, keys, values, output, normaliser)
    if queries.device.type == "cpu":
        return tuple(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*same, 0.0, causal))  # type: ignore[return-value]
    cum_q, cum_k, max_q, max_k, seed, offset = extras
    return tuple(  # type: ignore[return-value]
        torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *same, cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset
        )
    )
