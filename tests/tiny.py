"""Tiny random models of many architectures, seeded, for tests: a millisecond to build, and every attention kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma3Config, PreTrainedModel, PreTrainedTokenizerFast

from draftgauge.models.device import lacks_library
from draftgauge.models.loading import attention_of

needs_bitsandbytes = pytest.mark.skipif(lacks_library("int8"), reason="bitsandbytes is not installed")
END = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WINDOW = 8  # of the sliding models: shorter than the texts of the tests

# heads and key heads
ATTENTION = {"mha": (4, 4), "gqa": (4, 2), "mqa": (4, 1)}

EXPERTS = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
SLIDING = {"sliding_window": WINDOW}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3"},
    "qwen2": {"model_type": "qwen2"},
    "llama": {"model_type": "llama"},
    "llama3-rope": {"model_type": "llama", "rope_parameters": LLAMA3},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-sliding": {"model_type": "mistral", "sliding_window": WINDOW},
    "qwen3-sliding": {"model_type": "qwen3", "use_sliding_window": True, **SLIDING, "max_window_layers": 1},
    "gemma": {"model_type": "gemma"},
    "gemma2": {"model_type": "gemma2", "sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "gemma3": {"model_type": "gemma3_text", **SLIDING, "query_pre_attn_scalar": 16, "sliding_window_pattern": 2},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "qwen2_moe": {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 64, **EXPERTS},
    "qwen3_moe": {"model_type": "qwen3_moe", "mlp_only_layers": [0], **EXPERTS},
}
LEAN = ("qwen3", "qwen2", "llama", "llama3-rope", "llama-biases", "mistral", "mistral-sliding", "qwen3-sliding")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
LEAN += ("gemma", "gemma2", "gemma3", *MIXTURES)


def tiny_model(family: str = "qwen3", attention: str = "gqa", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random model in float32, in evaluation mode.

    Args:
        family: a key of ``FAMILIES``, or a ``model_type`` of transformers.
        attention: a key of ``ATTENTION``.
        seed: of the weights, large enough that its logits are far from uniform.
        overrides: of the configuration; by default hidden 64, 2 layers, vocabulary 96, context 128. ``...`` leaves a
            setting out.
    """
    heads, key_heads = ATTENTION[attention]
    settings: dict[str, Any] = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": heads, "num_key_value_heads": key_heads, "head_dim": 16}
    settings |= {"max_position_embeddings": 128, "initializer_range": 0.25}
    settings |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": False}
    settings |= FAMILIES.get(family, {"model_type": family}) | overrides
    settings = {name: value for name, value in settings.items() if value is not ...}
    config = CONFIG_MAPPING[settings.pop("model_type")](**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_of(config))
        # transformers starts norms and biases at one and zero: too kind a test
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn(parameter.shape)
            assert not name.endswith("lm_head.bias")
    return model.eval()


def tiny_multimodal(text: PreTrainedModel) -> PreTrainedModel:
    """A Gemma 3 that takes images, around a text model and with its weights."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config=text.config.to_dict(),
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=1,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.get_decoder().load_state_dict(text.get_decoder().state_dict())
    model.get_output_embeddings().load_state_dict(text.get_output_embeddings().state_dict())
    return model


def tiny_tokenizer(size: int = 96, chat: bool = False, swap: tuple[int, int] | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters: id 0 ends the text, the printable characters follow.

    Args:
        size: of the vocabulary, at most 96.
        chat: with a chat template.
        swap: two ids that trade tokens, for vocabularies of the same size that differ.
    """
    tokens = [END, *(chr(32 + index) for index in range(size - 1))]
    if swap is not None:
        tokens[swap[0]], tokens[swap[1]] = tokens[swap[1]], tokens[swap[0]]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[], unk_token=END)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, chat_template=CHAT_TEMPLATE if chat else None
    )


def save_tiny(
    folder: Path, family: str = "qwen3", attention: str = "gqa", seed: int = 0, chat: bool = False, **overrides: Any
) -> Path:
    """Save a tiny model and its tokenizer as ``save_pretrained`` does; returns the folder."""
    model = tiny_model(family, attention, seed, **overrides)
    model.save_pretrained(folder)
    tiny_tokenizer(min(96, model.config.vocab_size), chat).save_pretrained(folder)
    return folder


@torch.no_grad()
def one_pass(model: PreTrainedModel, text: torch.Tensor) -> torch.Tensor:
    """Logits of the whole text in one pass, without any cache."""
    return model(text[None], use_cache=False).logits[0]


def noisy(model: PreTrainedModel, noise: float) -> PreTrainedModel:
    """The model, its weights changed by noise: a draft that is often right for the one without."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * parameter.std().nan_to_num() * torch.randn(parameter.shape, generator=generator)
    return model


def save_noisy(folder: Path, noise: float = 0.1) -> Path:
    """Write :func:`noisy` of the model that :func:`save_tiny` writes."""
    noisy(tiny_model(), noise).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tokens(length: int, seed: int = 0, vocabulary: int = 96) -> torch.Tensor:
    """Random token ids ``[length]``, the end token left out."""
    return torch.randint(1, vocabulary, (length,), generator=torch.Generator().manual_seed(seed))


def edit(folder: Path, **changes: Any) -> None:
    """Change settings of a ``config.json``; ``...`` leaves one out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))
