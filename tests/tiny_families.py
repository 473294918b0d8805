"""Tiny random models of every type of transformers that writes text, made by shrinking each type's own defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from draftgauge.models.device import auto_class
from draftgauge.models.loading import attention_of

CAUSAL = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VISION = tuple(kind for kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if kind not in CAUSAL)
LARGEST = 20_000_000  # parameters of what is still tiny
# What the settings of a type are set to, by their names; later ones hold over earlier ones.
HIDDEN = """hidden_size d_model n_embd embed_dim dim embedding_size encoder_hidden_size cross_attention_hidden_size
    out_hidden_size projection_dim word_embed_proj_dim output_dim text_hidden_size projector_hidden_size hidden_dim
    vision_output_dim adapter_out_dim attention_hidden_size input_embedding_size
    output_embedding_size emb_dim"""
LAYERS = "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers encoder_layers"
VOCABULARY = "vocab_size vocab_size_per_layer_input unpadded_vocab_size output_vocab_size audio_vocab_size"
Sizes = list[tuple[Any, str]]
SIZES: Sizes = [
    (96, VOCABULARY),
    (64, HIDDEN),
    (4, LAYERS),
    (1, "depth num_encoder_layers resampler_depth n_group topk_group n_shared_experts num_shared_experts"),
    (1, "first_k_dense_replace moe_num_shared_experts"),
    (4, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads"),
    (4, "attention_heads swa_num_attention_heads num_experts n_routed_experts num_local_experts moe_num_experts"),
    (4, "linear_num_value_heads linear_num_heads"),
    (2, "num_key_value_heads swa_num_key_value_heads linear_num_key_heads mamba_n_groups n_groups"),
    (2, "num_experts_per_tok moe_topk top_k_experts moe_k num_ln_in_parallel_attn"),
    (16, "head_dim d_kv swa_head_dim swa_v_head_dim global_head_dim v_head_dim qk_nope_head_dim index_head_dim"),
    (16, "index_n_heads linear_key_head_dim linear_value_head_dim linear_head_dim"),
    (16, "mamba_head_dim mamba_d_head mamba_d_state state_size ssm_state_size"),
    (128, "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim d_ff ffn_hidden_size mlp_dim"),
    (128, "intermediate_size_mlp shared_intermediate_size dense_intermediate_size"),
    (32, "moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size"),
    (32, "expert_ffn_hidden_size moe_shared_expert_intermediate_size kv_lora_rank q_lora_rank"),
    (256, "max_position_embeddings n_positions max_seq_len max_source_positions block_size"),
    (8, "sliding_window window_size sliding_window_size qk_rope_head_dim mamba_n_heads mamba_num_heads"),
    (0.25, "initializer_range init_std"),
    (0, "bos_token_id eos_token_id pad_token_id"),
    (None, "forced_eos_token_id"),
    (False, "tie_word_embeddings"),
    (0.0, "attention_dropout dropout hidden_dropout_prob"),
    (28, "image_size"),
    (14, "patch_size"),
]
PADDING = 37
FILLED = ("head_dim", "num_key_value_heads")  # set where a type's own default is None, too
LAYERED = {"layer_types", "layers_block_type"}
FOR_FIXTURES = [(48, VOCABULARY), (16, HIDDEN), (6, LAYERS)]  # the targets of tests/drafters/checkpoints
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MROPE = {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3]}}
BY_KIND = {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}
QSA = {"indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 64}
ALTERNATING = ["linear_attention", "full_attention"] * 2
WINDOWED = ["full_attention", "sliding_attention"] * 2
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2}
# What the sizes above do not say of a type; ``...`` leaves a setting out.
MORE: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "big_bird": {"attention_type": "original_full"},
    "blt": {"encoder_hash_byte_group_vocab": 100, "encoder_hash_byte_group_size": [3]},
    "bamba": {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"layer_types": WINDOWED} | BY_KIND,
    "cosmos3_edge_text": MROPE,
    "cosmos3_omni_text": MROPE,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_ocr2_text": {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1},
    "glm5_next_text": {"qk_rope_head_dim": 0, "head_dim": 0},
    "hy_v4_vl_text": {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1]}},
    "hunyuan_vl_text": {"rope_parameters": ROPE | {"xdrope_section": [2, 2, 2, 2]}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots3_note_text": {f"swa_{name}": 16 for name in ("head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank")}
    | {"swa_qk_nope_head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4},
    "dots3_note_audio_encoder": {"adapter_input_size": 64},
    "dots3_note_vision_encoder": {"pyramid_num_routed": [-1, -1, 2, 4], "adapter_in_dim": 64, "num_local_experts": 4},
    "dory": {"n_input_layers": 1, "n_output_layers": 1},
    "dots1": EXPERTS | {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": WINDOWED[::-1], "intermediate_size": 128},
    "gemma4_text": {"layer_types": WINDOWED[::-1], "global_head_dim": 32},
    "gemma3_text": {"layer_types": WINDOWED[::-1]},
    "glm46v_text": MROPE,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ALTERNATING},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "longcat_flash": {"head_dim": 8, "zero_expert_num": 2, "num_key_value_heads": 4},
    "mamba2": {"num_heads": 8},
    "mistral": {"sliding_window": None},
    "mllama_text_model": {"cross_attention_layers": [1]},
    "moshi": {"sliding_window": 256},  # as published: no shorter than the context
    "paddleocr_vl_text": MROPE,
    "qwen2_5_omni_text": MROPE,
    "qwen2_5_vl_text": MROPE,
    "qwen2_vl_text": MROPE,
    "qwen4_exp_text": QSA
    | {"layer_types": ALTERNATING, "indexer_compress_ratio": 1, "hc_lowrank": 8}
    | {"ple_layer_ids": [1], "ple_embed_dim": 16, "ngram_vocab_size_base": 100, "split_ngram_parts": 1}
    | {"make_ngram_vocab_size_divisible_by": 1, "eos_token_id": 0},
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 16]},
    "step3p5": {"layer_types": WINDOWED, "sliding_window": 8, "num_sliding_attention_heads": 4, "share_expert_dim": 32},
    "prophetnet": {"num_encoder_layers": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2, "attention_hidden_size": 128, "attention_head_dim": 32},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
# Encoders by default; checkpoints of theirs that write text say is_decoder.
DECODERS = "bert bert-generation big_bird electra ernie megatron-bert rembert roc_bert roformer reformer"
ROBERTAS = "camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod"
for kind in DECODERS.split():
    MORE[kind] = MORE.get(kind, {}) | {"is_decoder": True}
for kind in ROBERTAS.split():  # their positions leave out the token that pads, so it is none of the prompt's
    MORE[kind] = MORE.get(kind, {}) | {"is_decoder": True, "pad_token_id": PADDING}
MORE |= dict.fromkeys(("glm4v_text", "glm_ocr_text", "glmga_text"), MROPE)
MORE |= {f"{kind}_thinker": {"vision_start_token_id": 1} for kind in ("qwen2_5_omni", "qwen3_omni_moe")}
MORE["glm4v_moe_text"] = {"rope_parameters": ROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}}


def shrunk(config: PreTrainedConfig, sizes: Sizes) -> dict[str, Any]:
    """Settings that make a type's default configuration tiny, its parts' too."""
    fields = {field.name: field.default for field in dataclasses.fields(type(config))}
    chosen: dict[str, Any] = {}
    for size, names in sizes:
        for name in names.split():
            if name in fields and (fields[name] is not None or name in FILLED):
                many = isinstance(fields[name], list | tuple)
                chosen[name] = [size] * len(fields[name]) if many else size
    if "kv_lora_rank" in fields:  # every head of MLA has a key of its own
        chosen["num_key_value_heads"] = 4
    for name in type(config).sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            chosen[name] = {"model_type": part.model_type} | shrunk(part, sizes)
    chosen |= MORE.get(config.model_type, {})
    for name in LAYERED.intersection(chosen):  # as many layers as asked for, their kinds in turn
        chosen[name] = (chosen[name] * 9)[: chosen["num_hidden_layers"]]
    return {name: value for name, value in chosen.items() if value is not ...}


def tiny_family(kind: str, seed: int = 0, sizes: Sizes | None = None) -> PreTrainedModel:
    """A random model of a type in float32, in evaluation mode; ``sizes`` are other ones than the usual."""
    default = CONFIG_MAPPING[kind]()
    config = CONFIG_MAPPING[kind](**shrunk(default, SIZES + (sizes or [])))
    with torch.device("meta"):
        count = sum(weight.numel() for weight in auto_class(config).from_config(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters are not tiny")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return auto_class(config).from_config(config, attn_implementation=attention_of(config)).eval()
