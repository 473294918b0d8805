#!/usr/bin/env bash
# mlx-lm 0.32.2 (mlx 0.32.4 on a CPU): a draft model at temperature 1, `speculative_generate_step` with a sampler.
# Expected: the acceptance rule of speculative sampling, under which a target that drafts for itself accepts all drafts.
# Behaviour: target and draft are sampled apart, and a draft is accepted where both samples happen to be one token. The
#   output has the target's distribution. Accepted is the sum of p*q over the vocabulary, not that of min(p, q), so the
#   better draft is no help where the text is open, and acceptance measured at temperature 0 does not carry over.
# Output seen (target and draft are the same model, two drafts a step):
#   temperature 0: 400 of 400 first drafts of a step accepted, two samples of the target agree in 400 of 400
#   temperature 1: 34 of 400 first drafts of a step accepted, two samples of the target agree in 45 of 400
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "mlx[cpu]==0.32.4" mlx-lm==0.32.2
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys
from itertools import groupby

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_sampler

mx.random.seed(0)
sizes = dict(hidden_size=32, num_hidden_layers=2, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2)
model = Model(ModelArgs("llama", **sizes, rms_norm_eps=1e-5, vocab_size=64, head_dim=8, tie_word_embeddings=False))
model.update(tree_map(lambda weight: mx.random.normal(weight.shape) * 0.3 if weight.ndim > 1 else weight, model.parameters()))
steps, seen = 400, {}
for temperature in (0.0, 1.0):
    sampler = make_sampler(temp=temperature)
    first = agree = done = 0
    fresh = True  # the next token answers the first draft of a step
    for _, logprobs, drafted in speculative_generate_step(
        mx.arange(1, 13), model, model, num_draft_tokens=2, max_tokens=3 * steps, sampler=sampler
    ):
        if fresh:
            done += 1
            first += drafted
            agree += mx.exp(2 * logprobs).sum().item() if temperature else 1
        fresh = not drafted
        if done == steps and fresh:
            break
    seen[temperature] = first / done
    print(f"temperature {temperature:g}: {first} of {done} first drafts of a step accepted,", end=" ")
    print(f"two samples of the target agree in {agree:.0f} of {done}")
if seen[0.0] < 1 or seen[1.0] > 0.5:
    sys.exit("the behaviour has changed")
print("as described: independent samples of one model are compared")
PYTHON
