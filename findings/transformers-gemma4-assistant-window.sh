#!/usr/bin/env bash
# transformers 5.24.0: assisted generation with a Gemma 4 assistant, in a text longer than the sliding window.
# Expected: the assistant's sliding layers read the target's keys of committed tokens, as a rejected draft is cropped.
# Behaviour: the crop counts from the front up to the text's length, and the sliding keys are fewer than that. Keys of
#   rejected tokens stay at the end, where the window looks. The output stays right; drafts are made of the wrong text.
# Output seen (window 4, 5 drafts a step):
#   text of 20 processed tokens: 20 sliding keys, 4 of the last 4 are of committed tokens
#   text of 21 processed tokens: 9 sliding keys, 0 of the last 4 are of committed tokens
#   text of 24 processed tokens: 7 sliding keys, 1 of the last 4 are of committed tokens
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import torch
from transformers import AutoModelForCausalLM, Gemma4AssistantConfig, Gemma4TextConfig

torch.manual_seed(0)
window, kinds = 4, ["sliding_attention", "full_attention"] * 2
sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2)
sizes |= dict(num_key_value_heads=1, head_dim=16, global_head_dim=16, sliding_window=window, layer_types=kinds)
sizes |= dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, initializer_range=0.25)
sizes |= dict(max_position_embeddings=256, eos_token_id=None)
target = AutoModelForCausalLM.from_config(Gemma4TextConfig(**sizes)).eval()
text = Gemma4TextConfig(**sizes, num_kv_shared_layers=4)
assistant = AutoModelForCausalLM.from_config(Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32)).eval()
assistant.generation_config.num_assistant_tokens = 5
given, forward = {}, assistant.forward


def watched(*args, **kwargs):
    given[int(kwargs["position_ids"])] = kwargs["shared_kv_states"]["sliding_attention"][0][0]
    return forward(*args, **kwargs)


assistant.forward = watched
prompt = torch.randint(1, 96, (1, 20))
plain = target.generate(prompt, max_new_tokens=8, do_sample=False)
output = target.generate(prompt, max_new_tokens=8, do_sample=False, assistant_model=assistant)
assert torch.equal(output, plain), "the output is that of plain decoding"
wrong = 0
for length, keys in given.items():
    with torch.no_grad():
        seen = target(output[:, :length], return_shared_kv_states=True, use_cache=False).shared_kv_states
    true = seen["sliding_attention"][0][0, :, -window:]
    right = sum(bool(torch.isclose(true, key, atol=1e-4).all(-1).any()) for key in keys[:, -window:].unbind(1))
    wrong += right < window
    print(f"text of {length} processed tokens: {keys.shape[1]} sliding keys, {right} of the last {window} are of committed tokens")
assert wrong, "keys of rejected tokens are no longer read"
PYTHON
