#!/usr/bin/env bash
# transformers 5.24.0: assisted generation with a Gemma 4 assistant and sampling, `do_sample`.
# Expected: speculative sampling, under which the output has the target's distribution whatever the assistant drafts.
# Behaviour: the assistant drafts its likeliest token and the target tests it as if it had been drawn at random from the
#   assistant's probabilities. So it is accepted too often: the text leans to what the assistant finds likeliest.
# Output seen (vocabulary 8, 1000 texts, temperature 1):
#   the second token is the assistant's likeliest: 14.0% by the target's probabilities, 14.7% of plain texts, 57.3% of
#   assisted texts
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import AutoModelForCausalLM, Gemma4AssistantConfig, Gemma4TextConfig

torch.manual_seed(0)
kinds, texts = ["sliding_attention", "full_attention"], 1000
sizes = dict(vocab_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
sizes |= dict(num_key_value_heads=1, head_dim=16, global_head_dim=16, sliding_window=64, layer_types=kinds)
sizes |= dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, initializer_range=0.1)
sizes |= dict(max_position_embeddings=256, eos_token_id=None, pad_token_id=None)
target = AutoModelForCausalLM.from_config(Gemma4TextConfig(**sizes)).eval()
text = Gemma4TextConfig(**sizes, num_kv_shared_layers=2)
assistant = AutoModelForCausalLM.from_config(Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32)).eval()
assistant.generation_config.num_assistant_tokens = 1
favourite, forward = [], assistant.forward


def watched(*args, **kwargs):
    outputs = forward(*args, **kwargs)
    favourite.append(int(outputs.logits[0, -1].argmax()))
    return outputs


assistant.forward = watched
prompt = torch.randint(1, 8, (1, 12))
with torch.no_grad():
    first = target(prompt).logits[0, -1].softmax(-1)
    second = target(torch.cat([prompt.expand(8, -1), torch.arange(8)[:, None]], 1)).logits[:, -1].softmax(-1)
settings = dict(max_new_tokens=3, do_sample=True, top_k=0)
likeliest, seen = {}, 0
for _ in range(texts):  # the first token is the target's own, the second is drafted
    favourite.clear()
    output = target.generate(prompt, **settings, assistant_model=assistant)[0, 12:].tolist()
    likeliest.setdefault(output[0], favourite[0])
    assert likeliest[output[0]] == favourite[0], "the draft is not greedy"
    seen += output[1] == favourite[0]
known = list(likeliest)
expected = float(sum(first[token] * second[token, likeliest[token]] for token in known) / first[known].sum())
plain = [target.generate(prompt, **settings)[0, 12:].tolist() for _ in range(texts)]
agree = sum(likeliest.get(token) == following for token, following, _ in plain)
print(f"the second token is the assistant's likeliest: {expected:.1%} by the target's probabilities,", end=" ")
print(f"{agree / texts:.1%} of plain texts, {seen / texts:.1%} of assisted texts")
if abs(agree / texts - expected) > 0.05 or seen / texts - expected < 0.1:
    sys.exit("the behaviour has changed")
print("as described: sampled text leans to the assistant")
PYTHON
