"""Qwen3 models written as GGUF, with the package gguf alone; tests without it or libllama are skipped."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from draftgauge.core.errors import MissingLibraryError

NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"}
NAMES |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm"}
NAMES |= {"self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm"}
NAMES |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}

# The converter knows tokenizers by a hash of what they make of a test text, which a new vocabulary is never among; its
# documented way is to register the hash, and that is what this does: the split pattern is that of "qwen2".
CONVERT = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
sys.argv = ["convert_hf_to_gguf.py", *sys.argv[2:], "--outtype", "f32"]
runpy.run_path(sys.path[0] + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def need_libllama() -> None:
    """Skip where there is no libllama, or no package gguf."""
    from draftgauge.models.engines.gguf_library import libllama

    if importlib.util.find_spec("gguf") is None:
        pytest.skip("needs the package gguf: pip install 'draftgauge[gguf]'")
    try:
        libllama()
    except MissingLibraryError as error:
        pytest.skip(str(error))


def need_converter() -> Path:
    """A checkout of llama.cpp, whose converter needs sentencepiece."""
    folder = os.environ.get("LLAMA_CPP", "")
    if not (folder and (Path(folder) / "convert_hf_to_gguf.py").is_file()):
        pytest.skip("needs a checkout of llama.cpp: set LLAMA_CPP to its folder")
    return Path(folder)


def convert(folder: Path, path: Path, *options: str) -> Path:
    """A folder as GGUF in float32, by llama.cpp's own converter."""
    command = [sys.executable, "-c", CONVERT, str(need_converter()), str(folder), "--outfile", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return path


def write_gguf(folder: Path, path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Convert a Qwen3 folder in float32. Its rotary order is llama.cpp's, so that tensors are only renamed."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    assert config.model_type == "qwen3", config.model_type
    writer = GGUFWriter(str(path), "qwen3")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_file_type(0)
    _add_tokenizer(writer, tokenizer, config.vocab_size, TokenType)
    for name, tensor in model.state_dict().items():
        renamed = _renamed(name, config.tie_word_embeddings)
        if renamed is not None:
            writer.add_tensor(renamed, tensor.float().contiguous().numpy(), raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: object, tokenizer: PreTrainedTokenizerBase, size: int, kinds: object) -> None:
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    names = {index: token for token, index in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"].get("merges", [])]
    writer.add_tokenizer_model("gpt2")  # type: ignore[attr-defined]
    writer.add_tokenizer_pre("qwen2")  # type: ignore[attr-defined]
    writer.add_token_list([names.get(index, f"[PAD{index}]") for index in range(size)])  # type: ignore[attr-defined]
    control, normal, unused = kinds.CONTROL, kinds.NORMAL, kinds.UNUSED  # type: ignore[attr-defined]
    types = [control if i in special else normal if i in names else unused for i in range(size)]
    writer.add_token_types(types)  # type: ignore[attr-defined]
    writer.add_token_merges(merges)  # type: ignore[attr-defined]
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)  # type: ignore[attr-defined]
    writer.add_add_bos_token(False)  # type: ignore[attr-defined]


def _renamed(name: str, tied: bool) -> str | None:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name == "lm_head.weight":
        return None if tied else "output.weight"
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
