#!/usr/bin/env bash
# mlx-lm 0.32.2 (mlx 0.32.4 on a CPU): a draft model for a target with a sliding window (Gemma 3).
# Expected: greedy output is that without a draft, or the pair is refused, as a cache that cannot be trimmed is.
# Behaviour: whether rejected drafts can be trimmed is asked of the empty cache alone. Once the text is as long as the
#   window it cannot be, and from then on trimming does nothing, in no layer and without a word: rejected drafts stay
#   in the text that the target reads. The output departs from the first rejected draft at that length on. A draft
#   that is never rejected, such as the target itself, hides it.
# Output seen (prompt of 13 tokens, 60 new ones, two drafts a step):
#   window 8: the same for 1 token, draft by the target itself: the same for 60
#   window 32: the same for 18 tokens, draft by the target itself: the same for 60
#   window 128: the same for 60 tokens, draft by the target itself: the same for 60
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "mlx[cpu]==0.32.4" mlx-lm==0.32.2
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.gemma3_text import Model, ModelArgs

sizes = dict(hidden_size=64, num_hidden_layers=4, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2)


def build(seed, window):
    mx.random.seed(seed)
    args = ModelArgs("gemma3_text", **sizes, head_dim=16, vocab_size=64, sliding_window=window, sliding_window_pattern=2)
    model = Model(args)
    drawn = tree_map(lambda weight: mx.random.normal(weight.shape) * 0.3 if weight.ndim > 1 else weight, model.parameters())
    model.update(drawn)
    return model


prompt, same = mx.array([5, 6, 7, 8, 9] * 2 + [5, 6, 7]), {}
for window in (8, 32, 128):
    target, other = build(0, window), build(1, window)
    plain = [int(token) for token, _ in generate_step(prompt, target, max_tokens=60)]
    for name, draft in (("other", other), ("itself", target)):
        output = [int(token) for token, *_ in speculative_generate_step(prompt, target, draft, max_tokens=60)]
        same[window, name] = next((at for at, pair in enumerate(zip(plain, output)) if len(set(pair)) > 1), len(plain))
    print(f"window {window}: the same for {same[window, 'other']} tokens,", end=" ")
    print(f"draft by the target itself: the same for {same[window, 'itself']}")
cut = [same[window, "other"] for window in (8, 32)]
if max(cut) == 60 or same[128, "other"] < 60 or any(same[window, "itself"] < 60 for window in (8, 32, 128)):
    sys.exit("the behaviour has changed")
print("as described: from the window's length on, rejected drafts are not taken back")
PYTHON
