#!/usr/bin/env bash
# speculators 0.9.0 (transformers 5.19.0): `convert_model(..., algorithm="eagle3")` of a checkpoint that says its layout.
# Expected: what the checkpoint's config.json says is in the converted one, as engines read both.
# Behaviour: three settings are replaced by defaults, and no warning is logged. The base of the rotary embedding is read
#   from `rope_theta` alone, which transformers 5 writes inside `rope_parameters`. The tapped layers and
#   `norm_before_residual` count as arguments only. The draft still decodes, from wrong positions and states.
# Output seen:
#   rope_theta: 1000000.0 becomes 10000.0
#   norm_before_residual: True becomes False
#   eagle_aux_hidden_state_layer_ids: [1, 4, 6] becomes None
#   warnings that name a setting: 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 speculators==0.9.0
"$folder/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

import torch
from loguru import logger
from safetensors.torch import save_file
from speculators.convert import convert_model
from transformers import LlamaConfig

root = Path(sys.argv[1])
logger.remove()
warnings = []
logger.add(lambda message: warnings.append(str(message)), level="WARNING", format="{message}")
sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2)
sizes |= dict(head_dim=8, max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
LlamaConfig(**sizes, num_hidden_layers=8, architectures=["LlamaForCausalLM"]).save_pretrained(root / "target")
given = {"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 4, 6]}
own = LlamaConfig(**sizes, num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"], dtype="float32")
(root / "draft").mkdir()
text = own.to_dict() | given | {"draft_vocab_size": 48}
text["eagle_config"] = {"use_aux_hidden_state": True, **{key: given[key] for key in list(given)[1:]}}
(root / "draft" / "config.json").write_text(json.dumps(text))
shapes = {"fc": (32, 96), "norm": (32,), "lm_head": (48, 32), "midlayer.hidden_norm": (32,)}
shapes |= {f"midlayer.{name}_layernorm": (32,) for name in ("input", "post_attention")}
shapes |= {f"midlayer.self_attn.{name}_proj": (rows, 64) for name, rows in (("q", 32), ("k", 16), ("v", 16))}
shapes |= {"midlayer.self_attn.o_proj": (32, 32), "midlayer.mlp.down_proj": (32, 64)}
shapes |= {f"midlayer.mlp.{name}_proj": (64, 32) for name in ("gate", "up")}
weights = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
weights |= {"d2t": torch.arange(48), "t2d": torch.arange(96) % 2 == 0}
save_file(weights, root / "draft" / "model.safetensors")
convert_model(str(root / "draft"), str(root / "target"), "eagle3", str(root / "converted"))
converted = json.loads((root / "converted" / "config.json").read_text())
pairs = {"rope_theta": (1e6, converted["transformer_layer_config"]["rope_parameters"]["rope_theta"])}
pairs |= {name: (value, converted[name]) for name, value in given.items()}
for name, (before, after) in pairs.items():
    print(f"{name}: {before} becomes {after}")
named = sum(any(name in warning for name in pairs) for warning in warnings)
print(f"warnings that name a setting: {named}")
if named or any(before == after for before, after in pairs.values()):
    sys.exit("the behaviour has changed")
print("as described: what the checkpoint says is replaced by defaults without a word")
PYTHON
