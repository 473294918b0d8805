#!/usr/bin/env bash
# transformers 5.24.0: prompt lookup (`prompt_lookup_num_tokens`) with sampling, `do_sample` and `top_p`.
# Expected: drafts are what followed in the prompt, as in greedy decoding, and the target alone is cut by `top_p`.
# Behaviour: a draft ends, without a word, at the first token that the logits processors forbid, and they are asked about
#   equal logits. Of these `top_p` forbids a share 1 - top_p of the vocabulary, in places that the sort of equal numbers
#   happens to choose. Text of those tokens is decoded one token a pass. The output keeps its distribution.
# Output seen (the model repeats its prompt without end, 8 drafted, one text of each eighth of the vocabulary):
#   greedy: tokens a pass 9.0 9.0 9.0 9.0 9.0 9.0 9.0 9.0
#   sampled, top_p 1: tokens a pass 9.0 9.0 9.0 9.0 9.0 9.0 9.0 9.0
#   sampled, top_p 0.9: tokens a pass 9.0 9.0 9.0 9.0 9.0 1.2 9.0 9.0
#   sampled, top_p 0.8: tokens a pass 9.0 9.0 9.0 9.0 1.4 1.0 9.0 9.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

size, period, length = 400, 50, 81
sizes = dict(vocab_size=size, hidden_size=size, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=None, bos_token_id=None, tie_word_embeddings=False)).eval()
with torch.no_grad():  # the next token is fixed by the last one: each eighth of the vocabulary is a ring
    for name, weight in model.named_parameters():
        weight.fill_(1) if "norm" in name else weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(size))
    for token in range(size):
        model.lm_head.weight[token + 1 if (token + 1) % period else token + 1 - period, token] = 2
passes, rates = [], {}
model.register_forward_pre_hook(lambda *_: passes.append(1))
torch.manual_seed(0)
for name, options in (
    ("greedy", {"do_sample": False}),
    ("sampled, top_p 1", {"do_sample": True, "top_k": 0, "top_p": 1.0}),
    ("sampled, top_p 0.9", {"do_sample": True, "top_k": 0, "top_p": 0.9}),
    ("sampled, top_p 0.8", {"do_sample": True, "top_k": 0, "top_p": 0.8}),
):
    rates[name] = []
    for first in range(0, size, period):
        text = [first + at % period for at in range(2 * period + length)]
        passes.clear()
        output = model.generate(torch.tensor([text[:-length]]), max_new_tokens=length, prompt_lookup_num_tokens=8, **options)
        assert output[0].tolist() == text, "another text"
        rates[name].append(length / len(passes))
    print(f"{name}: tokens a pass {' '.join(f'{rate:.1f}' for rate in rates[name])}")
if min(rates["greedy"] + rates["sampled, top_p 1"]) < 8 or min(rates["sampled, top_p 0.9"]) > 4:
    sys.exit("the behaviour has changed")
print("as described: with top_p below 1 a share of the vocabulary is never drafted")
PYTHON
