"""The families of MTP heads, as data: where their tensors lie, how their inputs are joined, what a head passes on.

Names are those of checkpoints without ``model.`` and the like in front. ``{i}`` counts heads from 0, ``{layer}`` goes
on from the target's last decoder layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COUNTS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")  # how configurations announce heads
OUTER = ("model.language_model.", "language_model.model.", "language_model.", "model.")
UNUSED = ("embed_tokens.", "shared_head.head.", "rotary_emb.")  # tensors that are the target's, or computed


@dataclass(frozen=True)
class MtpFamily:
    """One layout of MTP heads.

    Attributes:
        targets: model types of targets that ship it.
        embedding, hidden: names of the norms of both inputs.
        projection: name of the linear that joins them.
        norm: name of the norm behind the layer; empty where there is none.
        blocks: what the names of each decoder layer of a head begin with.
        hidden_first: the hidden state stands before the embedding in the projection's input.
        after_norm: the target's state is taken behind its final norm.
        zero_first: the embedding at position 0 is zero.
        reused: a single head drafts on from its own state; several heads draft one token each.
        passes_normed: what goes on to the next depth has gone through ``norm``.
        one_plus: norms multiply by ``1 + w``, so their weights lie near 0.
        renamed: parts of names in some checkpoints, and what they are called here.
        settings: of the configuration with which transformers builds the layers of a head; ``model_type`` is theirs
            where it is not the target's.
        from_settings: settings that take the value of another one, where the configuration has that.
        scaled: norms whose output is multiplied by the root of the hidden size over a setting.
    """

    targets: tuple[str, ...]
    embedding: str
    hidden: str
    projection: str
    norm: str
    blocks: tuple[str, ...]
    hidden_first: bool = False
    after_norm: bool = True
    zero_first: bool = False
    reused: bool = True
    passes_normed: bool = True
    one_plus: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    from_settings: Mapping[str, str] = field(default_factory=dict)
    scaled: Mapping[str, str] = field(default_factory=dict)

    def named(self, head: int, layers: int) -> dict[str, str]:
        """The parts' names of a head, for a target of so many decoder layers."""
        parts = {name: getattr(self, name) for name in ("embedding", "hidden", "projection", "norm")}
        return {part: name.format(i=head, layer=layers + head) for part, name in parts.items() if name}

    def renaming(self, name: str) -> str:
        for old, new in self.renamed.items():
            name = name.replace(f".{old}", f".{new}", 1)
        return name

    def prefixes(self, head: int, layers: int) -> tuple[str, ...]:
        return tuple(block.format(i=head, layer=layers + head) for block in self.blocks)


_QWEN: dict[str, Any] = {
    "embedding": "mtp.pre_fc_norm_embedding",
    "hidden": "mtp.pre_fc_norm_hidden",
    "projection": "mtp.fc",
    "norm": "mtp.norm",
    "blocks": ("mtp.layers.0.",),
}
_APPENDED: dict[str, Any] = {
    "embedding": "layers.{layer}.enorm",
    "hidden": "layers.{layer}.hnorm",
    "projection": "layers.{layer}.eh_proj",
    "norm": "layers.{layer}.shared_head.norm",
    "blocks": ("layers.{layer}.",),
}
_FULL: dict[str, Any] = {"layer_types": ["full_attention"], "mlp_layer_types": ["sparse"], "first_k_dense_replace": 0}

# vLLM zeroes the embedding at position 0 for DeepSeek's layout too; transformers and SGLang, as here, do not.
FAMILIES: dict[str, MtpFamily] = {
    "qwen3.5": MtpFamily(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        **_QWEN,
        one_plus=True,
        settings=_FULL | {"mlp_only_layers": [], "decoder_sparse_step": 1},
    ),
    "mellum": MtpFamily(
        ("mellum",),
        **_QWEN,
        settings={"layer_types": ["sliding_attention"], "mlp_layer_types": ["sparse"]},
        from_settings={"layer_types": "mtp_layer_types", "mlp_layer_types": "mtp_mlp_layer_types"},
    ),
    "deepseek": MtpFamily(
        ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "sarvam_moe", "sarvam_mla"), **_APPENDED, settings=_FULL
    ),
    "bailing": MtpFamily(
        ("bailing_hybrid",),
        **_APPENDED,
        renamed={"final_layernorm.": "shared_head.norm."},
        settings=_FULL | {"layer_group_size": 1},
    ),
    "hy3": MtpFamily(("hy_v3",), **_APPENDED | {"norm": "layers.{layer}.final_layernorm"}, settings=_FULL),
    "step": MtpFamily(
        ("step3p5", "step3p7_text"),
        **_APPENDED,
        after_norm=False,
        reused=False,
        passes_normed=False,
        one_plus=True,
        renamed={"transformer.": ""},
        settings={"layer_types": ["full_attention"], "mlp_layer_types": ["dense"]},
        from_settings={"layer_types": "mtp_layer_types", "mlp_layer_types": "mtp_mlp_layer_types"},
    ),
    "mimo": MtpFamily(
        ("mimo", "qwen2"),
        embedding="mtp_layers.{i}.token_layernorm",
        hidden="mtp_layers.{i}.hidden_layernorm",
        projection="mtp_layers.{i}.input_proj",
        norm="mtp_layers.{i}.final_layernorm",
        blocks=("mtp_layers.{i}.",),
        hidden_first=True,
        after_norm=False,
        zero_first=True,
        reused=False,
        settings={"layer_types": ["full_attention"]},
    ),
    "mimo-v2": MtpFamily(
        ("mimo_v2_flash", "mimo_v2"),
        embedding="mtp.layers.{i}.enorm",
        hidden="mtp.layers.{i}.hnorm",
        projection="mtp.layers.{i}.eh_proj",
        norm="mtp.layers.{i}.final_layernorm",
        blocks=("mtp.layers.{i}.",),
        reused=False,
        renamed={"pre_mlp_layernorm.": "post_attention_layernorm."},
        settings={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    ),
    "longcat": MtpFamily(  # whose own layers are double, and this one is not
        ("longcat_flash",),
        embedding="mtp.layers.0.enorm.m",
        hidden="mtp.layers.0.hnorm.m",
        projection="mtp.layers.0.eh_proj",
        norm="mtp.norm",
        blocks=("mtp.layers.0.",),
        renamed={"transformer_layer.": ""},
        settings={"model_type": "deepseek_v3", "first_k_dense_replace": 1},
        scaled={"q_a_layernorm": "q_lora_rank", "kv_a_layernorm": "kv_lora_rank"},
    ),
    "nemotron": MtpFamily(
        ("nemotron_h",),
        embedding="mtp.layers.0.enorm",
        hidden="mtp.layers.0.hnorm",
        projection="mtp.layers.0.eh_proj",
        norm="mtp.layers.1.final_layernorm",
        blocks=("mtp.layers.0.", "mtp.layers.1."),
        settings={"layers_block_type": ["full_attention", "moe"]},
        from_settings={"layers_block_type": "mtp_layers_block_type"},
    ),
    "ernie": MtpFamily(
        ("ernie4_5", "ernie4_5_moe"),
        embedding="mtp_emb_norm.{i}",
        hidden="mtp_hidden_norm.{i}",
        projection="mtp_linear_proj.{i}",
        norm="",
        blocks=("mtp_block.{i}.",),
        zero_first=True,
        reused=False,
        settings={"layer_types": ["full_attention"], "moe_layer_start_index": 1},
    ),
}


def trained_family(target_type: str) -> MtpFamily:
    """How a head that is trained here runs: Qwen3.5's layout, around a layer as the target's family ships it."""
    known = family_of(target_type)
    if known is not None and known[1].projection == _QWEN["projection"]:
        return known[1]
    return MtpFamily((target_type,), **_QWEN, settings=_FULL if known is None else known[1].settings)


def family_of(target_type: str) -> tuple[str, MtpFamily] | None:
    return next(((name, family) for name, family in FAMILIES.items() if target_type in family.targets), None)
