#!/usr/bin/env bash
# llmcompressor 0.14.0.1 (transformers 5.17.0): `oneshot` and `save_pretrained` of a model whose checkpoint has an MTP head.
# Expected: the quantised checkpoint has the head, as it has for Qwen3.5.
# Behaviour: a head is looked for where the configuration counts its layers, and by names that begin with `mtp`. Qwen3-Next
#   counts none, so its head is dropped without a word. GLM-4.5 keeps the head as one layer more: it is dropped with the
#   warning that there are no such weights, and the saved configuration announces it to engines still.
# Output seen:
#   Qwen3.5: 12 tensors of the head before, 12 saved, announced {'mtp_num_hidden_layers': 1}, warned of 0
#   Qwen3-Next: 12 tensors of the head before, 0 saved, announced {}, warned of 0
#   GLM-4.5: 10 tensors of the head before, 0 saved, announced {'num_nextn_predict_layers': 1}, warned of 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.17.0 llmcompressor==0.14.0.1
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import json
import sys
from pathlib import Path

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from loguru import logger
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Qwen3_5TextConfig, Qwen3NextConfig

root, warnings, seen = Path(sys.argv[1]), [], []
logger.remove()
logger.add(lambda message: warnings.append(str(message)), level="WARNING")
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
sizes |= dict(num_hidden_layers=2, bos_token_id=None, eos_token_id=0, pad_token_id=0)
linear = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)
linear |= dict(layer_types=["linear_attention", "full_attention"])
for name, config, head in (
    ("Qwen3.5", Qwen3_5TextConfig(**sizes, **linear, mtp_num_hidden_layers=1), "mtp."),
    ("Qwen3-Next", Qwen3NextConfig(**sizes, **linear, num_experts=0), "mtp."),
    ("GLM-4.5", Glm4MoeConfig(**sizes, first_k_dense_replace=2, num_nextn_predict_layers=1), "model.layers.2."),
):
    first, second = root / name / "first", root / name / "second"
    AutoModelForCausalLM.from_config(config).save_pretrained(first)
    weights = load_file(first / "model.safetensors")
    layer = head if head == "model.layers.2." else "mtp.layers.0."
    weights |= {key.replace("model.layers.1.", layer): weights[key].clone() for key in weights if "model.layers.1." in key}
    weights[f"{head}{'fc' if head == 'mtp.' else 'eh_proj'}.weight"] = torch.randn(32, 64)
    save_file(weights, first / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(first, dtype="auto")
    oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head"]))
    warnings.clear()
    model.save_pretrained(second)
    counts = []
    for path in (first, second):
        files = [safe_open(file, "pt") for file in path.glob("*.safetensors")]
        counts.append(sum(key.startswith(head) for file in files for key in file.keys()))
    saved = json.loads((second / "config.json").read_text())
    announced = {key: saved[key] for key in ("mtp_num_hidden_layers", "num_nextn_predict_layers") if key in saved}
    seen.append((counts[1] > 0, len(warnings)))
    print(f"{name}: {counts[0]} tensors of the head before, {counts[1]} saved, announced {announced}, warned of {len(warnings)}")
if seen != [(True, 0), (False, 0), (False, 1)]:
    sys.exit("the behaviour has changed")
print("as described: the head is kept for one of the three")
PYTHON
