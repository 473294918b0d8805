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
from draftgauge.drafters.formats.settings import Settings

FORMATS = (
    "EAGLE-3 (SafeAILab, SGLang, DeepSpec, speculators) and DFlash or DSpark (z-lab, SpecForge, DeepSpec, speculators)"
)
MARKOV_KINDS = ("vanilla", "gated", "rnn")
_FROM_ANCHOR = ("sample_from_anchor", "query_zero_predicts_next", "shift_label")  # of speculators, DeepSpec, Domino
_BIASES = {"self_attn": "attention_bias", "mlp": "mlp_bias"}
_OF_BLOCKS = ("causal", "is_causal", "input_embedding_scale", "output_multiplier", "final_logit_softcapping")


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
    decoder, nested = config.get("transformer_layer_config") or config, config.get("dflash_config") or {}
    reader, kind = Settings(config, decoder, nested, where), config.get("speculators_model_type")
    names = " ".join(config.get("architectures") or ()).lower()
    if kind in ("eagle3", "dflash", "dspark"):
        family = str(kind)
    elif kind is None and any(f"{name}draftmodel" in names or f"{name}model" in names for name in ("dflash", "dspark")):
        of_dspark = "markov_rank" in nested or reader.get("projector_type") == "dspark"
        family = "dspark" if "dspark" in names or of_dspark else "dflash"
    elif kind is None and ("eagle3" in names or not any(name in names for name in ("eagle", "dflash", "dspark"))):
        family = "eagle3"
    else:
        own_code = "; its own Python code (auto_map) is not run" if "auto_map" in config else ""
        raise ModelError(
            f"{where} is a drafter of a format that is not read here (speculators_model_type {kind!r}, architectures "
            f"{config.get('architectures')!r}){own_code}. These are: {FORMATS}"
        )
    if family == "eagle3":
        reader.check_known("EAGLE-3", ())
        return _eagle3(reader)
    reader.check_known("block", _OF_BLOCKS)
    return _dflash(reader, family)


def _decoder(reader: Settings, family: str) -> DecoderSpec:
    decoder = reader.decoder
    # flat EAGLE-3: Llama's layers, whatever it names, and Llama's defaults
    plain = family == "eagle3" and "speculators_model_type" not in reader.config
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    act, eps = decoder.get("hidden_act") or "silu", reader.get("rms_norm_eps", 1e-6 if plain else None)
    if act != "silu":
        reader.refuse(f"the activation {act!r} is not run here, drafters with 'silu' are")
    if not isinstance(eps, int | float) or not 0 < eps < 1:
        reader.refuse(f"rms_norm_eps must be between 0 and 1, not {eps!r}")
    kv_heads = reader.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        reader.refuse(f"{heads} attention heads do not share {kv_heads} key and value heads evenly")
    return DecoderSpec(
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
        head_norms=str(decoder.get("model_type")).startswith("qwen3") and not plain,
    )


def _windows(reader: Settings, layers: int) -> tuple[int | None, ...]:
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


def _causal(reader: Settings, windows: Sequence[int | None]) -> tuple[bool, ...]:
    """As vLLM, SGLang and SpecForge decide: what is said holds for all layers, else those with a window are causal."""
    said, free = reader.spelled(("is_causal", "causal")), reader.flag("sliding_window_non_causal")
    return tuple(window is not None and not free if said is None else said for window in windows)


def _from_anchor(reader: Settings, family: str, block: int) -> bool:
    """Whether the first place of a block predicts the token after the committed one.

    A field says so; else the tokens that are proposed of a block; else DSpark is trained so, and DFlash is not.
    """
    said, tokens = reader.spelled(_FROM_ANCHOR), reader.proposed()
    places = block if said is not False else block - 1
    if tokens is not None and tokens > places:
        reader.refuse(
            f"speculative_tokens {tokens} contradicts block_size {block}, of which {places} places "
            "predict: keep the right one"
        )
    if said is None and tokens is not None and tokens >= block - 1:
        return tokens == block
    return family == "dspark" if said is None else said


def _shared(reader: Settings, family: str) -> dict[str, Any]:
    decoder = _decoder(reader, family)
    return {
        "family": family,
        "decoder": decoder,
        "taps": reader.taps(),
        "draft_vocabulary": reader.integer("draft_vocab_size", decoder.vocabulary),
        "target_layers": reader.integer("num_target_layers") if reader.get("num_target_layers") is not None else None,
    }


def _eagle3(reader: Settings) -> Eagle3Layout:
    shared = _shared(reader, "eagle3")
    if any(_windows(reader, shared["decoder"].layers)):
        reader.refuse("EAGLE-3 drafters with sliding-window attention are not run here")
    shared["taps"] = tuple(sorted(shared["taps"]))  # engines hand them over in ascending order, whatever the list's is
    for norm in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        shared[norm] = reader.flag(norm)
    return Eagle3Layout(**shared)


def _dflash(reader: Settings, family: str) -> DFlashLayout:
    shared = _shared(reader, family)
    if not shared["taps"]:
        raise ModelError(f"{reader.where} names no target layers (target_layer_ids, aux_hidden_state_layer_ids)")
    of_speculators = "speculators_model_type" in reader.config
    vocabulary, rank = shared["decoder"].vocabulary, reader.integer("markov_rank", 0, least=0)
    kind = reader.get("markov_head_type", "vanilla") if family == "dspark" and rank else ""
    if kind and kind not in MARKOV_KINDS:
        reader.refuse(f"markov_head_type must be one of {', '.join(MARKOV_KINDS)}, not {kind!r}")
    confidence = family == "dspark" and reader.flag("enable_confidence_head", of_speculators)
    windows, block = _windows(reader, shared["decoder"].layers), reader.integer("block_size", least=2)
    layout = DFlashLayout(
        **shared,
        block=block,
        mask_token=reader.integer("mask_token_id", least=0),
        from_anchor=_from_anchor(reader, family, block),
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
        reader.refuse(f"mask_token_id {layout.mask_token} is not among {vocabulary} tokens")
    if layout.confidence_reads_token and not kind:
        reader.refuse("the confidence head reads a Markov head (markov_rank), and there is none")
    return layout
