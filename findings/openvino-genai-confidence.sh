#!/usr/bin/env bash
# openvino-genai 2026.4.1.0: a draft model with assistant_confidence_threshold.
# Expected: the draft goes on while its token is likelier than the threshold, so a lower threshold drafts more a pass.
# Behaviour: one token is drafted a pass whatever the threshold, also where every drafted token is likelier and accepted.
# Output seen (target and draft are the same model, every token counts as accepted):
#   num_assistant_tokens 4: tokens a pass 1 5 5 5 5 3
#   assistant_confidence_threshold 0.0001: tokens a pass 1 2 2 2 2 2 2 2 2 2 2 2 1
#   assistant_confidence_threshold 0.9: tokens a pass 1 2 2 2 2 2 2 2 2 2 2 2 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino-genai==2026.4.1.0 optimum-intel==2.2.0 torch==2.13.0 nncf==3.4.0
"$folder/venv/bin/pip" uninstall --quiet --yes torchvision
export HF_HUB_OFFLINE=1
"$folder/venv/bin/python" - "$folder/model" <<'PYTHON'
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
config = LlamaConfig(**sizes, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
tokenizer = Tokenizer(models.BPE(vocab={chr(48 + index): index for index in range(64)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="0").save_pretrained(sys.argv[1])
PYTHON
"$folder/venv/bin/optimum-cli" export openvino --model "$folder/model" --task text-generation-with-past \
  "$folder/exported" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
"$folder/venv/bin/python" - "$folder/exported" <<'PYTHON'
import sys

import numpy as np
import openvino
import openvino_genai as genai

ids = np.arange(1, 21, dtype=np.int64)[None]
passes = {}


class Chunks(genai.StreamerBase):
    """What the pipeline hands over is what one pass of the target committed."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def write(self, tokens):
        self.sizes.append(np.size(tokens))
        return genai.StreamingStatus.RUNNING

    def end(self):
        pass


pipeline = genai.LLMPipeline(sys.argv[1], "CPU", draft_model=genai.draft_model(sys.argv[1], "CPU"))
for name, value in (
    ("num_assistant_tokens", 4),
    ("assistant_confidence_threshold", 0.0001),
    ("assistant_confidence_threshold", 0.9),
):
    config = genai.GenerationConfig(max_new_tokens=24, do_sample=False, ignore_eos=True)
    setattr(config, name, value)
    chunks = Chunks()
    inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    pipeline.generate(inputs, config, chunks)
    passes[name, value] = chunks.sizes
    print(f"{name} {value}: tokens a pass", *chunks.sizes)
fixed = passes.pop(("num_assistant_tokens", 4))
if max(fixed) == 5 and all(max(sizes) == 2 for sizes in passes.values()):
    print("as described: one token is drafted a pass, whatever the threshold")
else:
    sys.exit("the behaviour has changed")
PYTHON
