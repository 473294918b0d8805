#!/usr/bin/env bash
# transformers 5.24.0: an assistant model at its defaults, before and after scikit-learn is installed beside it.
# Expected: the same settings give the same drafts. As its text says, `assistant_confidence_threshold` adapts itself and is
#   "persistent over multiple generation calls", and `num_assistant_tokens` given to `generate` says how far is drafted.
# Behaviour: the threshold adapts where scikit-learn can be imported, and stays at 0.4 without a word where not. So another
#   package decides what is drafted, and timed runs of two machines differ. It adapts in a copy that each call makes, and
#   the next call starts at 0.4 again. What `generate` is given for either does not count, also without a word: both are
#   read from `assistant_model.generation_config` alone.
# Output seen (200 tokens, the same text each time, two calls):
#   without scikit-learn: 127 steps, 177 tokens drafted, 73 accepted, longest draft 4
#   the same, num_assistant_tokens 2 and assistant_confidence_threshold 0.9 given to generate: 127 steps, 177 tokens drafted,
#   73 accepted, longest draft 4
#   beside scikit-learn: 122 steps, 479 tokens drafted, 78 accepted, longest draft 20
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
cat >"$folder/draft.py" <<'PYTHON'
import copy
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.candidate_generator import AssistedCandidateGenerator as Generator

torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
sizes |= dict(initializer_range=0.3, bos_token_id=None, eos_token_id=None, max_position_embeddings=512)
target = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
assistant = copy.deepcopy(target)
with torch.no_grad():
    assistant.lm_head.weight += torch.randn_like(assistant.lm_head.weight) * 0.2
drafts, update = [], Generator.update_candidate_strategy


def counted(generator, ids, scores, matches):
    drafts.append((scores.shape[1] - 1, int(matches)))
    return update(generator, ids, scores, matches)


Generator.update_candidate_strategy = counted
prompt = torch.arange(1, 13)[None]
assistant.generation_config.assistant_confidence_threshold = 0.4  # the default, set so that it can be read afterwards
options = {"num_assistant_tokens": 2, "assistant_confidence_threshold": 0.9} if sys.argv[1:] else {}
settings, calls = dict(max_new_tokens=200, do_sample=False), []
for _ in range(2):
    drafts.clear()
    output = target.generate(prompt, **settings, assistant_model=assistant, **options)
    assert torch.equal(output, target.generate(prompt, **settings)), "another text"
    drafted, accepted = (sum(column) for column in zip(*drafts))
    calls.append(f"{len(drafts)} steps, {drafted} tokens drafted, {accepted} accepted, longest draft {max(drafts)[0]}")
assert calls[0] == calls[1], "the behaviour has changed: the second call drafts otherwise"
assert assistant.generation_config.assistant_confidence_threshold == 0.4, "the behaviour has changed: a threshold is kept"
print(calls[1])
PYTHON
export HF_HUB_OFFLINE=1
without=$("$folder/venv/bin/python" "$folder/draft.py" 2>"$folder/log")
given=$("$folder/venv/bin/python" "$folder/draft.py" given 2>"$folder/log")
"$folder/venv/bin/pip" install --quiet scikit-learn==1.9.1
beside=$("$folder/venv/bin/python" "$folder/draft.py" 2>"$folder/log")
echo "without scikit-learn: $without"
echo "the same, num_assistant_tokens 2 and assistant_confidence_threshold 0.9 given to generate: $given"
echo "beside scikit-learn: $beside"
[[ $without == "$given" && $without != "$beside" ]] || { echo "the behaviour has changed"; exit 1; }
echo "as described: scikit-learn changes the drafts, the settings given to generate do not"
