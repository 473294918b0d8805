"""Models with the shapes of published ones and random weights, at any compression and without a file.

A published 70B model takes 140 GB of disk and a download. What a pass costs depends on shapes alone, so all layers are
given one layer's random weights: the host holds that one, the device its own copy for each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen3Config

from draftgauge.models.compression import activation_dtype, quantization_config

DEVIATION = 0.02  # of weights
LINEAR_BYTES = {"int8": 1.0, "nf4": 0.5625, "fp8": 1.0}  # of a weight; nf4 has a float32 for every 64 besides
FP8_BLOCK = (128, 128)
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(FP8_BLOCK)}
FP8_SCALE = 2.0**-12  # so that weights up to 5 deviations fit below 448
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(hidden: int, intermediate: int, layers: int, heads: int, head_dim: int, tied: bool = True) -> LlamaConfig:
    """A Llama 3.2 shape; those of 3.1 are not tied."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters=LLAMA3_ROPE | {"factor": 32.0 if tied else 8.0},
        tie_word_embeddings=tied,
    )


def qwen3(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> Qwen3Config:
    """A Qwen3 shape."""
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=tied,
    )


SHAPES: dict[str, PretrainedConfig] = {
    "llama-3.2-1b": llama(2048, 8192, 16, 32, 64),
    "llama-3.2-3b": llama(3072, 8192, 28, 24, 128),
    "llama-3.1-8b": llama(4096, 14336, 32, 32, 128, tied=False),
    "llama-3.1-70b": llama(8192, 28672, 80, 64, 128, tied=False),
    "qwen3-0.6b": qwen3(1024, 3072, 28, 16, tied=True),
    "qwen3-8b": qwen3(4096, 12288, 36, 32, tied=False),
}


def narrow(config: PretrainedConfig) -> PretrainedConfig:
    """The same family with two narrow layers, for a dry run."""
    small = type(config)(**config.to_dict())
    small.update(
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
        }
    )
    if getattr(config, "layer_types", None):
        small.update({"layer_types": ["full_attention"] * 2})
    return small


def outline(config: PretrainedConfig) -> PreTrainedModel:
    """The model without memory."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def weight_bytes(config: PretrainedConfig, compression: str, device: torch.device, read: bool = False) -> float:
    """Bytes of the weights of a model, quantised in its layers.

    Args:
        config: of the model.
        compression: how it is held.
        device: where, as it decides in which dtype.
        read: those alone that a pass over one token reads: no token embeddings, unless the head shares them.
    """
    model, item = outline(config), activation_dtype(compression, device).itemsize
    unread = model.get_input_embeddings().weight if read and not config.tie_word_embeddings else None
    return sum(
        weight.numel() * (LINEAR_BYTES.get(compression, item) if in_layers(name, weight) else item)
        for name, weight in model.named_parameters()
        if weight is not unread
    )


def in_layers(name: str, weight: Tensor) -> bool:
    """Whether this is the matrix of a linear in a layer, which compressions quantise."""
    return ".layers." in name and weight.ndim == 2


def random_model(config: PretrainedConfig, compression: str, device: torch.device) -> PreTrainedModel:
    """A model with random weights on the device.

    Args:
        config: of the model.
        compression: one of the package's, or ``fp8``: as checkpoints come that transformers reads (float8 weights in
            blocks of 128 by 128); where the device cannot multiply them, it expands them.
        device: where to put it.
    """
    config = type(config)(**config.to_dict())
    model = outline(config)
    dtype = activation_dtype(compression, device)
    weights = random_weights(model, dtype)
    options: dict[str, Any] = {"quantization_config": quantization_config(compression, device)}
    if compression == "fp8":
        config.quantization_config = FP8
        weights, options = in_fp8(weights), {}
    made, report = type(model).from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype=dtype,
        device_map={"": device},
        output_loading_info=True,
        **options,
    )
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    return made.eval()


def random_weights(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """By name; those of all layers are the first one's."""
    generator = torch.Generator().manual_seed(0)
    drawn: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        before, layers, rest = name.partition(".layers.")
        own = f"{before}{layers}{rest.partition('.')[2]}" if layers else name
        if own not in drawn and weight.ndim == 1:
            drawn[own] = torch.ones(weight.shape, dtype=dtype)
        elif own not in drawn:
            drawn[own] = torch.empty(weight.shape, dtype=dtype).normal_(std=DEVIATION, generator=generator)
        weights[name] = drawn[own]
    return weights


def in_fp8(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layers' linears in float8, each block with the same scale."""
    largest, converted = torch.finfo(torch.float8_e4m3fn).max, dict(weights)
    made: dict[int, Tensor] = {}
    for name, weight in weights.items():
        if in_layers(name, weight):
            if id(weight) not in made:
                made[id(weight)] = (weight / FP8_SCALE).clamp(-largest, largest).to(torch.float8_e4m3fn)
            converted[name] = made[id(weight)]
            blocks = [-(-size // block) for size, block in zip(weight.shape, FP8_BLOCK, strict=True)]
            converted[f"{name.removesuffix('weight')}weight_scale_inv"] = torch.full(blocks, FP8_SCALE)
    return converted
