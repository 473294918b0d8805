#!/usr/bin/env bash
# transformers 5.24.0: `output_hidden_states` and `output_attentions` of `generate` with `assistant_model`.
# Expected: one entry a new token, as without an assistant: the first has the prompt, each other is of the token before.
# Behaviour: the first step reads the prompt and its draft at once. Entries of that draft's accepted tokens are cut from the
#   front of what the step returned, where the prompt is: token after token of it, without a word. Number and shapes of the
#   entries are right, and so are text, scores, logits and the entries of later steps. Data collected from it, for a drafter
#   or a probe, has wrong pairs of token and state, in each answer whose first draft is accepted.
# Output seen (prompt of 12 tokens, positions 0 to 11, the assistant is the target itself, 5 drafted a step):
#   plain: hidden states of positions 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28
#   plain: attentions of positions 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28
#   assisted: hidden states of positions 11 0 1 2 3 4 17 18 19 20 21 22 23 24 25 26 27 28
#   assisted: attentions of positions 11 0 1 2 3 4 17 18 19 20 21 22 23 24 25 26 27 28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import copy
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
sizes |= dict(initializer_range=0.3, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
assistant = copy.deepcopy(model)
assistant.generation_config.update(num_assistant_tokens=5)
assistant.generation_config.assistant_confidence_threshold = 0
prompt = torch.randint(64, (1, 12))
asked = dict(output_hidden_states=True, output_attentions=True)
settings = dict(max_new_tokens=18, do_sample=False, return_dict_in_generate=True, **asked)
plain = model.generate(prompt, **settings)
assisted = model.generate(prompt, **settings, assistant_model=assistant)
assert torch.equal(plain.sequences, assisted.sequences), "another text"
with torch.no_grad():
    whole = model(plain.sequences, **asked)


def positions(entries, of_all):
    """The position of the whole text whose row is nearest to the last row of each entry's last layer."""
    found = []
    for entry in entries:
        row = entry[-1][0, ..., -1, :]
        apart = (of_all[-1][0, ..., : row.shape[-1]] - row.unsqueeze(-2)).abs()
        apart = apart.amax(-1) if apart.dim() == 2 else apart.amax((0, -1))
        assert apart.min() < 1e-4, "a row of no position"
        found.append(int(apart.argmin()))
    return found


right, wrong = list(range(11, 29)), [11, *range(5), *range(17, 29)]
seen = []
for name, output in (("plain", plain), ("assisted", assisted)):
    for kind in ("hidden_states", "attentions"):
        seen.append(positions(getattr(output, kind), getattr(whole, kind)))
        print(f"{name}: {kind.replace('_', ' ')} of positions {' '.join(map(str, seen[-1]))}")
if seen != [right, right, wrong, wrong]:
    sys.exit("the behaviour has changed")
print("as described: tokens accepted in the first step have the prompt's states")
PYTHON
