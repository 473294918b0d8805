"""What a checkpoint's ``config.json`` says, whichever tool wrote it, and the weights that go with it.

Tapped layers are counted in two ways. In lists named ``target_layer_ids`` (and in SGLang's ``eagle_config``) ``i`` is
the output of decoder layer ``i``. In those named ``*aux_hidden_state_layer_ids`` it is what enters layer ``i``, one
layer below.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from draftgauge.drafters.formats.settings import Settings

FUSE, EMBEDDING, HEAD = "fc.weight", "embed_tokens.weight", "lm_head.weight"
MASK_STATE = "mask_hidden"  # what stands for the target's states at a mask
TO_TARGET, DRAFTED = "d2t", "t2d"  # offsets of the target's ids from the draft's; which of the target's are drafted
_BIASES = {"self_attn": "attention_bias", "mlp": "mlp_bias"}
_LINEARS = {  # of a layer, and what each gives and takes in
    "self_attn.q_proj": ("queries", "inputs"),
    "self_attn.k_proj": ("keys", "inputs"),
    "self_attn.v_proj": ("keys", "inputs"),
    "self_attn.o_proj": ("hidden", "queries"),
    "mlp.gate_proj": ("width", "hidden"),
    "mlp.up_proj": ("width", "hidden"),
    "mlp.down_proj": ("hidden", "width"),
}

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class DecoderSpec:
    """The decoder layers of a drafter.

    Attributes:
        rope: the settings of its rotary embedding, by transformers' names.
        biased: parts of a layer (``self_attn``, ``mlp``) that the configuration gives biases.
        head_norms: queries and keys are normalised for sure, as in Qwen3's layers.
    """

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    vocabulary: int
    rope: Mapping[str, Any]
    biased: tuple[str, ...] = ()
    head_norms: bool = False

    @classmethod
    def read(cls, reader: Settings, plain: bool) -> DecoderSpec:
        """``plain``: Llama's layers, whatever the configuration names, with Llama's defaults."""
        hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
        act, eps = reader.decoder.get("hidden_act") or "silu", reader.get("rms_norm_eps", 1e-6 if plain else None)
        if act != "silu":
            reader.refuse(f"the activation {act!r} is not run here, drafters with 'silu' are")
        if not isinstance(eps, int | float) or not 0 < eps < 1:
            reader.refuse(f"rms_norm_eps must be between 0 and 1, not {eps!r}")
        kv_heads = reader.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            reader.refuse(f"{heads} attention heads do not share {kv_heads} key and value heads evenly")
        return cls(
            hidden_size=hidden,
            layers=reader.integer("num_hidden_layers", 1),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=reader.integer("head_dim", hidden // heads),
            intermediate_size=reader.integer("intermediate_size"),
            eps=float(eps),
            vocabulary=reader.integer("vocab_size"),
            rope=reader.rotary(not plain),
            biased=tuple(part for part, name in _BIASES.items() if reader.flag(name)),
            head_norms=str(reader.decoder.get("model_type")).startswith("qwen3") and not plain,
        )


@dataclass(frozen=True)
class Layout:
    """What every checkpoint has.

    Attributes:
        family: "eagle3", "peagle", "dflash", "dflash2" or "dspark".
        taps: target decoder layers whose outputs are read, from 0, in the order of ``fc``; empty where the target's
            number of layers decides.
        target_layers: of the target it was made for; None where it does not say.
    """

    family: str
    decoder: DecoderSpec
    taps: tuple[int, ...]
    draft_vocabulary: int
    target_layers: int | None

    @property
    def maps_vocabulary(self) -> bool:
        return self.draft_vocabulary != self.decoder.vocabulary

    @property
    def longest(self) -> int | None:
        """Tokens of a draft at most; None if the context alone limits it."""
        return None

    def takes_token(self, layer: int, found: Collection[str]) -> bool:
        """Whether a layer takes in a token's embedding beside its state."""
        return False

    def shapes(self, found: Collection[str], target_width: int) -> tuple[Shapes, Shapes]:
        """Of the weights that must be there, and of those that may; ``found`` are the names of those that are."""
        decoder, hidden, drafted = self.decoder, self.decoder.hidden_size, self.draft_vocabulary
        wanted: Shapes = {FUSE: (hidden, len(self.taps) * target_width), "norm.weight": (hidden,)}
        optional: Shapes = {EMBEDDING: (decoder.vocabulary, hidden), HEAD: (drafted, hidden)}
        optional[DRAFTED] = (decoder.vocabulary,)
        (wanted if self.maps_vocabulary else optional)[TO_TARGET] = (drafted,)
        sizes = {"hidden": hidden, "width": decoder.intermediate_size}
        sizes |= {"queries": decoder.heads * decoder.head_dim, "keys": decoder.kv_heads * decoder.head_dim}
        for prefix, takes_token in ((f"layers.{n}.", self.takes_token(n, found)) for n in range(decoder.layers)):
            sizes["inputs"] = hidden * (1 + takes_token)
            for name, (out, into) in _LINEARS.items():
                wanted[f"{prefix}{name}.weight"] = sizes[out], sizes[into]
                biases = wanted if name.split(".")[0] in decoder.biased else optional
                biases[f"{prefix}{name}.bias"] = (sizes[out],)
            for name in ("input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if takes_token else [])):
                wanted[f"{prefix}{name}.weight"] = (hidden,)
            norms = [f"{prefix}self_attn.{name}_norm.weight" for name in "qk"]
            if decoder.head_norms or any(name in found for name in norms):
                wanted |= dict.fromkeys(norms, (decoder.head_dim,))
        return wanted, optional


def shared(reader: Settings, family: str, plain: bool = False) -> dict[str, Any]:
    """The fields of every layout."""
    decoder = DecoderSpec.read(reader, plain)
    return {
        "family": family,
        "decoder": decoder,
        "taps": reader.taps(),
        "draft_vocabulary": reader.integer("draft_vocab_size", decoder.vocabulary),
        "target_layers": reader.integer("num_target_layers") if reader.get("num_target_layers") is not None else None,
    }


def read_windows(reader: Settings, layers: int) -> tuple[int | None, ...]:
    """Of each layer how many tokens it sees back; None for all."""
    kinds = reader.get("layer_types")
    if kinds is None:
        if reader.get("sliding_window") and reader.flag("use_sliding_window", True):
            reader.refuse("sliding_window needs layer_types, which say what layers it holds for")
        kinds = ["full_attention"] * layers
    if len(kinds) != layers:
        reader.refuse(f"layer_types must name the attention of each of {layers} layers, not {kinds!r}")
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        reader.refuse(f"layers with {', '.join(sorted(unknown))} are not run here")
    return tuple(reader.integer("sliding_window") if kind == "sliding_attention" else None for kind in kinds)
