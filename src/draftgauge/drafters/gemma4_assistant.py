"""Gemma 4's assistants: layers of queries alone, which read the keys and values that the target has stored.

A draft begins with the last committed token and the target's state at the token before it, after the final norm. Each
layer attends to what the target's last storing layer of its kind (sliding or full attention) holds of the processed
text. The assistant keeps nothing: its own state goes from step to step, and text and position stay as they are.

Engines turn the queries to different positions. The default, ``bonus``, is the last committed token's, as in
transformers and llama.cpp. ``FOLDER:position=processed`` is that of the last processed token, as in vLLM and SGLang.

Letters in shapes: ``R`` rows, ``T`` positions of the text, ``H`` the target's hidden size, ``d`` the assistant's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.base import Drafting, DraftSource, LoadOptions, Source, register_drafter
from draftgauge.drafters.formats.files import has_config, read_config
from draftgauge.drafters.formats.live import CheckpointDrafter
from draftgauge.models.base import CachedModel, decoder_layers, final_norm
from draftgauge.models.device import draft_compression, upload
from draftgauge.models.folder import fingerprint, source_setting
from draftgauge.models.loading import load_module
from draftgauge.models.taps import TapPlan, Taps

TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
SLIDING = "sliding_attention"
POSITIONS = {"bonus": 1, "processed": 0}  # of the queries, from the last processed token on


class Sight(NamedTuple):
    """What drafts from consecutive anchors see, by kind of layer.

    Attributes:
        shared: keys and values ``[1, KV, T, D]``.
        masks: ``[1, 1, R, T]`` to add to scores, None where one row sees all.
        positions: ``[1, R]`` of the queries.
    """

    shared: dict[str, tuple[Tensor, ...]]
    masks: dict[str, Tensor | None]
    positions: Tensor


class AssistantNet:
    """An assistant beside its target, whose cache it reads.

    Attributes:
        layout: this itself, as of a network that drafts without a longest draft.
    """

    family, longest, d2t = TYPES[0], None, None

    def __init__(self, model: PreTrainedModel, target: CachedModel, position: str) -> None:
        self.model: Any = model
        self._target, self._shift = target, POSITIONS[position]
        self.layout = self
        assert target.module is not None
        config = target.module.config.get_text_config()
        self._stored = {
            kind: layer
            for layer, (kind, mode) in enumerate(zip(config.layer_types, config.kv_sharing_modes, strict=True))
            if mode == "store"
        }
        self._window = config.sliding_window
        self._embed, self._norm = target.module.get_input_embeddings(), final_norm(target.module)

    def begin(self) -> AnchorCache:
        """Which counts anchors, and holds nothing."""
        weight = self.model.lm_head.weight
        return AnchorCache([], 1, weight, lambda length, like: (like.new_empty(length, 1),) * 2)

    @torch.inference_mode()
    def take_in(self, cache: AnchorCache, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What drafts begin with ``[n, d]``, of states ``[n, 1, H]`` at anchors and the token ``[n]`` after each."""
        cache.length += len(tokens)
        assert self._norm is not None
        return self.enter(tokens, self._norm(hidden[:, 0]))

    def enter(self, tokens: Tensor, states: Tensor) -> Tensor:
        return self.model.pre_projection(torch.cat((self._embed(tokens), states), -1).to(self.model.dtype))  # type: ignore[no-any-return]

    def branches(
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> AssistantBranches:
        return AssistantBranches(self, self._sight(first, len(begin)), begin)

    def _sight(self, first: int, rows: int) -> Sight:
        shared, masks, device = {}, {}, self.model.device
        ends = torch.arange(first + 1, first + rows + 1, device=device)
        for kind, layer in self._stored.items():
            begin = max(0, first + 1 - self._window) if kind == SLIDING else 0
            keys, values = self._target.keys_values(layer)  # type: ignore[attr-defined]
            shared[kind] = tuple(part[None, :, begin : first + rows].to(self.model.dtype) for part in (keys, values))
            at = torch.arange(begin, first + rows, device=device)
            unseen = at >= ends[:, None]
            if kind == SLIDING:
                unseen = unseen | (at < ends[:, None] - self._window)
            mask = torch.zeros(unseen.shape, dtype=self.model.dtype, device=device).masked_fill(unseen, -torch.inf)
            masks[kind] = mask[None, None] if rows > 1 else None
        return Sight(shared, masks, (ends - 1 + self._shift)[None])

    def run(self, entering: Tensor, sight: Sight) -> tuple[Tensor, Tensor]:
        """Logits ``[R, V]`` and the states ``[R, H]`` that the next step takes in."""
        states = self.model.model(
            inputs_embeds=entering[None],
            attention_mask=sight.masks,
            position_ids=sight.positions,
            shared_kv_states=dict(sight.shared),
            use_cache=False,
            logits_to_keep=None,  # a number would drop rows before the first layer that stores nothing
        ).last_hidden_state[0]
        return self._logits(states).float(), self.model.post_projection(states)

    def _logits(self, states: Tensor) -> Tensor:
        ordered = self.model.masked_embedding
        if ordered is None:
            return self.model.lm_head(states)  # type: ignore[no-any-return]
        nearest = ordered.centroids(states).topk(ordered.centroid_intermediate_top_k, -1).indices
        tokens = ordered.token_ordering.long().view(ordered.num_centroids, -1)[nearest].flatten(1)  # [R, n]
        near = torch.einsum("rd,rnd->rn", states, self.model.lm_head.weight[tokens])
        # transformers gives other tokens the least of these less 1; here they are never drafted
        return near.new_full((len(states), self.model.vocab_size), -torch.inf).scatter(-1, tokens, near)


class AssistantBranches:
    """Drafts from consecutive anchors."""

    confidence: Tensor | None = None
    logits: Tensor

    def __init__(self, net: AssistantNet, sight: Sight, begin: Tensor) -> None:
        self._net, self._sight = net, sight
        self._step(begin)

    def advance(self, tokens: Tensor) -> Tensor:
        return self._step(self._net.enter(tokens, self._states))

    @torch.inference_mode()
    def _step(self, entering: Tensor) -> Tensor:
        self.logits, self._states = self._net.run(entering, self._sight)
        return self.logits


class AssistantDrafter(CheckpointDrafter):
    """Drafts with an assistant; there is nothing to catch up with, and nothing to roll back."""

    net: AssistantNet  # type: ignore[assignment]

    def keeps_drafted(self) -> bool:
        return True

    def backlog(self) -> int:
        return 0

    def record_passes(self, most: int, longest: int) -> None:
        """Nothing: what is read grows with the text."""

    def _take_in(self) -> None:
        end = len(self._text) - 1
        if end <= 0 or self._cache.length == end:
            return
        self._cache.length = end - 1
        last = upload(self._text[-1:], self.target.spec.device)
        self._begun = self.net.take_in(self._cache, last, self.taps.hidden(end - 1, end))

    def _passes(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return self.net.take_in, self.net.run


@register_drafter
class AssistantSource(DraftSource):
    """An assistant, and the last layer of its target, whose states it takes in."""

    name = "gemma4_assistant"
    takes = "a Gemma 4 assistant (a folder, or an id of the hub)"
    self_describing = True
    drafter_type: ClassVar[type[Any]] = AssistantDrafter

    def __init__(self, source: str | Path, net: AssistantNet, layers: int) -> None:
        self.source, self.net = source, net
        self.family, self.engine = net.family, "modules"
        self.tap_plan = TapPlan((layers - 1,))

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        return has_config(drafter) and read_config(drafter).get("model_type") in TYPES

    @classmethod
    def check(cls, source: Source, tokenizer: PreTrainedTokenizerBase, options: LoadOptions) -> None:
        assert source is not None
        folder, position = source_setting(source)
        if position is not None and position not in POSITIONS:
            raise DraftgaugeError(f"{folder}: position must be one of {', '.join(POSITIONS)}, not {position!r}")

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> AssistantSource:
        assert source is not None
        folder, position = source_setting(source)
        if target.module is None:
            raise ModelError(f"{folder} reads its target's keys and values, and a GGUF target shows none")
        model = load_module(folder, draft_compression(options.compression), target.spec.device).eval()
        _check_target(folder, model, target.module)
        net = AssistantNet(model, target, position or "bonus")
        return cls(source, net, target.module.config.get_text_config().num_hidden_layers)

    def drafter(self, target: CachedModel, taps: Taps | None, how: Drafting) -> AssistantDrafter:
        assert taps is not None
        return AssistantDrafter(self.net, target, taps, *how)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        return f"{fingerprint(self.source, texts=False)} {source_setting(self.source)[1] or 'bonus'}"


def _check_target(folder: str, assistant: PreTrainedModel, target: PreTrainedModel) -> None:
    """Refuse a target of another family, or with other keys and values than an assistant reads."""
    config = target.config.get_text_config()
    if not hasattr(config, "kv_sharing_modes"):
        raise ModelError(
            f"{folder} reads the keys and values of a Gemma 4 target, and this one is a {config.model_type}: load the "
            "target that it was made for"
        )
    own = assistant.config.get_text_config()
    pairs = {"width": (assistant.config.backbone_hidden_size, config.hidden_size)}
    pairs["vocabulary"] = own.vocab_size, config.vocab_size
    for layer, kind in enumerate(own.layer_types):
        stored = [
            n for n, other in enumerate(config.layer_types) if other == kind and config.kv_sharing_modes[n] == "store"
        ]
        reads: Any = decoder_layers(assistant)[layer].self_attn
        heads = reads.q_proj.out_features // (reads.head_dim * reads.num_key_value_groups)
        has: Any = decoder_layers(target)[stored[0]].self_attn if stored else None
        found = None if has is None else (has.k_proj.out_features // has.head_dim, has.head_dim)
        pairs[f"{kind} (heads, numbers of a key)"] = (heads, reads.head_dim), found
    if other := [f"{name} {wanted}, not {found}" for name, (wanted, found) in pairs.items() if wanted != found]:
        raise ModelError(f"{folder} was made for a target of {'; '.join(other)}: load the target that it was made for")
