"""What a checkpoint's ``config.json`` says, whichever tool wrote it.

EAGLE-3: SafeAILab's and SGLang's flat configuration (https://github.com/SafeAILab/EAGLE, ``sgl-project/SpecForge``,
``deepseek-ai/DeepSpec``) and that of speculators. DFlash and DSpark: the flat one of ``z-lab/dflash``, SpecForge and
DeepSpec, and speculators'. Tapped layers are counted in two ways: in lists named ``target_layer_ids`` (and in
SGLang's ``eagle_config``) ``i`` is the output of decoder layer ``i``; in those named ``*aux_hidden_state_layer_ids``
it is what enters layer ``i``, one layer below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgauge.core.errors import ModelError
from draftgauge.models.engines.lean_families import LENGTH_DEPENDENT_ROPE

FORMATS = (
    "EAGLE-3 (SafeAILab, SGLang, DeepSpec, speculators) and DFlash or DSpark (z-lab, SpecForge, DeepSpec, speculators)"
)
MARKOV_KINDS = ("vanilla", "gated", "rnn")
_UNKNOWN = ("use_swa", "attention_sink_bias", "add_swa_attention_sink_bias", "attention_value_scale")
_ROPE = ("rope_parameters", "rope_theta", "rope_scaling", "max_position_embeddings")


@dataclass(frozen=True)
class DecoderSpec:
    """The decoder layers of a drafter; ``rope`` are the settings of its rotary embedding, by transformers' names."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    vocabulary: int
    rope: Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """What every checkpoint has.

    Attributes:
        family: "eagle3", "dflash" or "dspark".
        taps: target decoder layers whose outputs are read, from 0, in the order that ``fc`` takes them; empty where the
            configuration leaves them to the target's number of layers.
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


@dataclass(frozen=True)
class Eagle3Layout(Layout):
    """The norms in which EAGLE-3 checkpoints differ; see ``speculators.models.eagle3``."""

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class DFlashLayout(Layout):
    """A block drafter (DFlash, arXiv 2602.06036).

    Attributes:
        block: tokens of a block, the last committed one first.
        mask_token: fills the others.
        from_anchor: the first place of the block predicts the token after the committed one; else the second does.
        windows: of each layer, how many tokens it sees back; None for all.
        window_from_anchor: a window is counted back from the block's first place (speculators), not from each place.
        causal: of each layer, whether the places of a block see none behind them.
        embedding_scale: what the embeddings of a block are multiplied by, ``logit_scale`` its logits, before a soft cap
            at ``softcap``; 0 for none.
        markov: kind of the head that adds to a place's logits by the token before; empty if there is none.
        confidence: there is a head that predicts the chance of acceptance; ``confidence_reads_token`` whether it takes
            in the Markov head's embedding of the token before.
    """

    block: int = 0
    mask_token: int = 0
    from_anchor: bool = False
    windows: tuple[int | None, ...] = ()
    window_from_anchor: bool = False
    causal: tuple[bool, ...] = ()
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    markov: str = ""
    markov_rank: int = 0
    confidence: bool = False
    confidence_reads_token: bool = False

    @property
    def longest(self) -> int:
        return self.block if self.from_anchor else self.block - 1


def read_layout(config: Mapping[str, Any], where: str) -> Layout:
    """The layout of a checkpoint, ``where`` naming it in messages."""
    kind = config.get("speculators_model_type")
    names = " ".join(map(str, config.get("architectures") or ())).lower()
    if kind in ("eagle3", "dflash", "dspark"):
        family = str(kind)
    elif kind is None and any(f"{name}draftmodel" in names or f"{name}model" in names for name in ("dflash", "dspark")):
        family = "dspark" if "dspark" in names or "markov_rank" in _reader(config, where).nested else "dflash"
    elif kind is None and ("eagle3" in names or not any(name in names for name in ("eagle", "dflash", "dspark"))):
        family = "eagle3"
    else:
        own_code = "; its own Python code (auto_map) is not run" if "auto_map" in config else ""
        raise ModelError(
            f"{where} is a drafter of a format that is not read here (speculators_model_type {kind!r}, architectures "
            f"{config.get('architectures')!r}){own_code}. These are: {FORMATS}"
        )
    reader = _reader(config, where)
    return _eagle3(reader) if family == "eagle3" else _dflash(reader, family)


@dataclass(frozen=True)
class _Reader:
    """Settings of a configuration: those of ``dflash_config`` (``nested``) stand there or beside the others."""

    config: Mapping[str, Any]
    decoder: Mapping[str, Any]
    nested: Mapping[str, Any]
    where: str

    def get(self, name: str, default: Any = None) -> Any:
        for place in (self.config, self.nested):
            if place.get(name) is not None:
                return place[name]
        return default

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(name, self.decoder.get(name))
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            shown = "is missing" if value is None else f"must be a whole number of at least {least}, not {value!r}"
            raise ModelError(f"{self.where}: {name} {shown}: is config.json whole?")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {name} must be true or false, not {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ModelError(f"{self.where}: {name} must be a number of at least 0, not {value!r}")
        return float(value)

    def layers(self, name: str, place: Mapping[str, Any], shift: int) -> tuple[int, ...]:
        ids = place.get(name)
        if not ids:
            return ()
        if not isinstance(ids, list) or not all(type(i) is int for i in ids) or len(set(ids)) < len(ids):
            raise ModelError(f"{self.where}: {name} must list target layers, each once, not {ids!r}")
        if min(ids) - shift < 0:
            raise ModelError(
                f"{self.where}: {name} {ids} names the target's token embedding, which is not tapped: drafters that "
                "read decoder layers are run"
            )
        return tuple(i - shift for i in ids)

    def taps(self) -> tuple[int, ...]:
        engine = self.config.get("eagle_config")
        return (
            self.layers("eagle_aux_hidden_state_layer_ids", self.config, 1)
            or self.layers("aux_hidden_state_layer_ids", self.config, 1)
            or self.layers("target_layer_ids", self.config, 0)
            or self.layers("target_layer_ids", self.nested, 0)
            or self.layers("eagle_aux_hidden_state_layer_ids", engine if isinstance(engine, dict) else {}, 0)
        )


def _reader(config: Mapping[str, Any], where: str) -> _Reader:
    decoder, nested = config.get("transformer_layer_config", config), config.get("dflash_config") or {}
    for name, value in (("transformer_layer_config", decoder), ("dflash_config", nested)):
        if not isinstance(value, Mapping):
            raise ModelError(f"{where}: {name} must be an object of settings, not {value!r}")
    return _Reader(config, decoder, nested, where)


def _decoder(reader: _Reader) -> DecoderSpec:
    decoder = reader.decoder
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    act, eps = decoder.get("hidden_act") or "silu", decoder.get("rms_norm_eps", 1e-6)
    if act != "silu":
        raise ModelError(f"{reader.where}: the activation {act!r} is not run here, drafters with 'silu' are")
    if not isinstance(eps, int | float) or not 0 < eps < 1:
        raise ModelError(f"{reader.where}: rms_norm_eps must be between 0 and 1, not {eps!r}")
    rope = {name: decoder[name] for name in _ROPE if decoder.get(name) is not None}
    for name in ("rope_parameters", "rope_scaling"):
        kind = rope.get(name, {})
        if not isinstance(kind, Mapping) or any(isinstance(value, Mapping) for value in kind.values()):
            raise ModelError(f"{reader.where}: {name} must describe one rotary embedding, not {kind!r}")
        if (scaling := kind.get("rope_type", kind.get("type"))) in LENGTH_DEPENDENT_ROPE:
            raise ModelError(
                f"{reader.where}: rotary embeddings that change with the text ({scaling}) are not run here"
            )
        if kind.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelError(f"{reader.where}: rotary embeddings of a part of each head are not run here")
    kv_heads = reader.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"{reader.where}: {heads} attention heads do not share {kv_heads} key and value heads evenly")
    return DecoderSpec(
        hidden_size=hidden,
        layers=reader.integer("num_hidden_layers", 1),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=reader.integer("head_dim", hidden // heads),
        intermediate_size=reader.integer("intermediate_size"),
        eps=float(eps),
        vocabulary=reader.integer("vocab_size"),
        rope=rope,
    )


def _windows(reader: _Reader, layers: int) -> tuple[int | None, ...]:
    kinds = reader.decoder.get("layer_types") or ["full_attention"] * layers
    if not isinstance(kinds, Sequence) or len(kinds) != layers:
        raise ModelError(
            f"{reader.where}: layer_types must name the attention of each of {layers} layers, not {kinds!r}"
        )
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise ModelError(f"{reader.where}: layers with {', '.join(sorted(map(str, unknown)))} are not run here")
    return tuple(reader.integer("sliding_window") if kind == "sliding_attention" else None for kind in kinds)


def _causal(reader: _Reader, windows: Sequence[int | None]) -> tuple[bool, ...]:
    """As vLLM, SGLang and SpecForge decide: what is said holds for all layers, else those with a window are causal."""
    if "speculators_model_type" in reader.config:
        return tuple(window is not None and not reader.flag("sliding_window_non_causal") for window in windows)
    said = "is_causal" if reader.get("is_causal") is not None else "causal"
    return tuple(reader.flag(said, window is not None) for window in windows)


def _shared(reader: _Reader, family: str) -> dict[str, Any]:
    decoder = _decoder(reader)
    return {
        "family": family,
        "decoder": decoder,
        "taps": reader.taps(),
        "draft_vocabulary": reader.integer("draft_vocab_size", decoder.vocabulary),
        "target_layers": reader.integer("num_target_layers") if reader.get("num_target_layers") is not None else None,
    }


def _eagle3(reader: _Reader) -> Eagle3Layout:
    shared = _shared(reader, "eagle3")
    if any(_windows(reader, shared["decoder"].layers)):
        raise ModelError(f"{reader.where}: EAGLE-3 drafters with sliding-window attention are not run here")
    shared["taps"] = tuple(sorted(shared["taps"]))  # engines hand them over in ascending order, whatever the list's is
    for norm in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        shared[norm] = reader.flag(norm)
    return Eagle3Layout(**shared)


def _dflash(reader: _Reader, family: str) -> DFlashLayout:
    shared = _shared(reader, family)
    if not shared["taps"]:
        raise ModelError(f"{reader.where} names no target layers (target_layer_ids, aux_hidden_state_layer_ids)")
    if strange := [name for name in _UNKNOWN if reader.get(name)]:
        raise ModelError(f"{reader.where}: block drafters with {', '.join(strange)} are not run here")
    of_speculators = "speculators_model_type" in reader.config
    deepspec = any("DSparkModel" in str(name) for name in reader.config.get("architectures") or ())
    vocabulary, rank = shared["decoder"].vocabulary, reader.integer("markov_rank", 0, least=0)
    kind = reader.get("markov_head_type", "vanilla") if family == "dspark" and rank else ""
    if kind and kind not in MARKOV_KINDS:
        raise ModelError(f"{reader.where}: markov_head_type must be one of {', '.join(MARKOV_KINDS)}, not {kind!r}")
    confidence = family == "dspark" and reader.flag("enable_confidence_head", of_speculators)
    windows = _windows(reader, shared["decoder"].layers)
    layout = DFlashLayout(
        **shared,
        block=reader.integer("block_size", least=2),
        mask_token=reader.integer("mask_token_id", least=0),
        from_anchor=reader.flag("sample_from_anchor", deepspec or (of_speculators and family == "dspark")),
        windows=windows,
        window_from_anchor=of_speculators,
        causal=_causal(reader, windows),
        embedding_scale=reader.number("input_embedding_scale", 1.0),
        logit_scale=reader.number("output_multiplier", 1.0),
        softcap=reader.number("final_logit_softcapping", 0.0),
        markov=kind,
        markov_rank=rank if kind else 0,
        confidence=confidence,
        confidence_reads_token=confidence and reader.flag("confidence_head_with_markov", of_speculators),
    )
    if layout.mask_token >= vocabulary:
        raise ModelError(f"{reader.where}: mask_token_id {layout.mask_token} is not among {vocabulary} tokens")
    if layout.confidence_reads_token and not kind:
        raise ModelError(f"{reader.where}: the confidence head reads a Markov head (markov_rank), and there is none")
    return layout
