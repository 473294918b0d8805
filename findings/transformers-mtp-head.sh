#!/usr/bin/env bash
# transformers 5.24.0: the MTP head of a checkpoint, with `generate(use_mtp=True)` and `save_pretrained` (GLM-4.5).
# Expected: the head is read once for a loaded model, `num_assistant_tokens` says how far it drafts, and a saved model
#   has its head, or a configuration that announces none.
# Behaviour: every call of `generate` reads the head from disk anew, so timed calls hold that. A step drafts one token a
#   head whatever `num_assistant_tokens` says, where engines run the one head several times. Loading drops the head
#   without a warning, and what is saved announces it still: engines then look for a head that is not there.
# Output seen:
#   use_mtp, 1 call(s): head read 1 times, longest draft 1
#   use_mtp, num_assistant_tokens 4, 3 call(s): head read 3 times, longest draft 1
#   saved again: num_nextn_predict_layers 1, tensors of the head 21 before, 0 now, warnings 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import logging
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, modeling_layers
from transformers.utils.logging import get_logger

torch.manual_seed(0)
root, layers = Path(sys.argv[1]), 46  # as in GLM-4.5-Air: the head is layer 46
sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)
sizes |= dict(head_dim=8, n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, n_group=1, topk_group=1)
config = Glm4MoeConfig(**sizes, num_hidden_layers=layers, num_nextn_predict_layers=1, eos_token_id=None)
Glm4MoeForCausalLM(config).save_pretrained(root / "first")
weights = load_file(root / "first" / "model.safetensors")
last, head = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
weights |= {name.replace(last, head): tensor.clone() for name, tensor in weights.items() if name.startswith(last)}
weights |= {f"{head}{name}.weight": torch.ones(16) for name in ("enorm", "hnorm", "shared_head.norm")}
weights[f"{head}eh_proj.weight"] = torch.randn(16, 32) * 0.1
save_file(weights, root / "first" / "model.safetensors", metadata={"format": "pt"})

warnings, handler = [], logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage()) if record.levelno >= logging.WARNING else None
get_logger("transformers").addHandler(handler)
model = Glm4MoeForCausalLM.from_pretrained(root / "first").eval()
spoken = len(warnings)

reads, widths, opened = [], [], modeling_layers.safe_open
modeling_layers.safe_open = lambda *args, **kwargs: reads.append(args) or opened(*args, **kwargs)
model.model.register_forward_pre_hook(lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
prompt = torch.arange(1, 10)[None]
plain, seen = model.generate(prompt, max_new_tokens=12, do_sample=False), []
for name, calls, options in (("", 1, {}), (", num_assistant_tokens 4", 3, {"num_assistant_tokens": 4})):
    reads.clear()
    widths.clear()
    for _ in range(calls):
        assert torch.equal(model.generate(prompt, max_new_tokens=12, do_sample=False, use_mtp=True, **options), plain)
    longest = max(width for width in widths if width < prompt.shape[1]) - 1
    seen.append((len(reads), longest))
    print(f"use_mtp{name}, {calls} call(s): head read {len(reads)} times, longest draft {longest}")
warnings.clear()
model.save_pretrained(root / "second")
spoken += len(warnings)
announced = json.loads((root / "second" / "config.json").read_text())["num_nextn_predict_layers"]
kept = [sum(name.startswith(head) for name in load_file(root / at / "model.safetensors")) for at in ("first", "second")]
print(f"saved again: num_nextn_predict_layers {announced}, tensors of the head {kept[0]} before, {kept[1]} now,", end=" ")
print(f"warnings {spoken}")
if seen != [(1, 1), (3, 1)] or announced != 1 or not kept[0] or kept[1] or spoken:
    sys.exit("the behaviour has changed")
print("as described: read at every call, one token a head, and dropped by saving")
PYTHON
