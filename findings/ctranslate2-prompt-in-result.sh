#!/usr/bin/env bash
# ctranslate2 4.8.5: `Generator.generate_batch` with `include_prompt_in_result`, and `set_random_seed`.
# Expected: the switch says whether the result holds the prompt and how the prompt is read: False is advised for speed. The
#   new text and its score are the same. A seed set before each of two samplings makes them the same.
# Behaviour: with True, the default, the prompt counts as text that was generated. `max_length` covers it, all but its first
#   token, and the score is a mean in which its tokens have probability 1: the longer the prompt, the better it looks.
#   Penalties and forbidden repetitions count the prompt with True and not with False, so the text is another one. A seed
#   counts until the first sampling alone, and is ignored afterwards. All of that is without a word.
# Output seen (prompt of 12 tokens, `max_length` 24, greedy):
#   prompt in result True: 13 new tokens, 0 kinds of them in the prompt, the first 11: 4 62 1 39 38 61 15 32 17 15 32
#     score -0.83, mean log-probability of the new tokens -1.53
#   prompt in result False: 24 new tokens, 2 kinds of them in the prompt, the first 11: 4 62 1 39 38 61 15 32 17 15 32
#     score -1.53, mean log-probability of the new tokens -1.53
#   repetition_penalty 1.5, True: 13 new tokens, 0 kinds of them in the prompt, the first 11: 4 62 1 39 38 61 15 32 17 21 55
#   repetition_penalty 1.5, False: 24 new tokens, 4 kinds of them in the prompt, the first 11: 4 62 1 39 38 61 15 32 17 21 6
#   no_repeat_ngram_size 1, True: 13 new tokens, 0 kinds of them in the prompt, the first 11: 4 62 1 39 38 61 15 32 17 21 55
#   no_repeat_ngram_size 1, False: 24 new tokens, 5 kinds of them in the prompt, the first 11: 4 62 1 39 38 61 15 32 17 21 6
#   two samplings, each after set_random_seed(5): two texts
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ctranslate2==4.8.5 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerDecoderModelSpec

size, width, numbers = 64, 32, np.random.default_rng(0)


def drawn(*shape):
    return numbers.normal(0, 0.3, shape).astype(np.float32)


shape = dict(pre_norm=True, ffn_glu=True, rms_norm=True, rotary_dim=0, rotary_interleave=False)
spec = TransformerDecoderModelSpec.from_config(1, 2, **shape)
decoder = spec.decoder
decoder.scale_embeddings = False
decoder.embeddings.weight, decoder.projection.weight = drawn(size, width), drawn(size, width)
(layer,) = decoder.layer
for norm in (decoder.layer_norm, layer.self_attention.layer_norm, layer.ffn.layer_norm):
    norm.gamma = np.ones(width, np.float32)
layer.self_attention.linear[0].weight, layer.self_attention.linear[1].weight = drawn(3 * width, width), drawn(width, width)
layer.ffn.linear_0.weight, layer.ffn.linear_0_noact.weight = drawn(64, width), drawn(64, width)
layer.ffn.linear_1.weight = drawn(width, 64)
spec.register_vocabulary([f"w{token}" for token in range(size)])
spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "w0", "w1", "w2"
spec.validate()
spec.save(sys.argv[1])
generator = ctranslate2.Generator(sys.argv[1], intra_threads=1)
prompt = numbers.integers(3, size, 12).tolist()
words = [f"w{token}" for token in prompt]
new, score, own = {}, {}, {}
for options in ({}, {"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 1}):
    for kept in (True, False):
        settings = dict(max_length=24, end_token=[], return_scores=True, include_prompt_in_result=kept, **options)
        (result,) = generator.generate_batch([words], **settings)
        case = (*options, kept)
        new[case] = result.sequences_ids[0][len(prompt) if kept else 0 :]
        score[case] = result.scores[0]
        (scored,) = generator.score_batch([words + [f"w{token}" for token in new[case]]])
        own[case] = float(np.mean(scored.log_probs[len(prompt) - 1 :]))
        name = "".join(f"{key} {value}, " for key, value in options.items()) or "prompt in result "
        print(
            f"{name}{kept}: {len(new[case])} new tokens, {len(set(new[case]) & set(prompt))} kinds of them in"
            f" the prompt, the first 11: {' '.join(map(str, new[case][:11]))}"
        )
        if not options:
            print(f"  score {score[case]:.2f}, mean log-probability of the new tokens {own[case]:.2f}")
sampled = []
for _ in range(2):
    ctranslate2.set_random_seed(5)
    settings = dict(max_length=24, end_token=[], sampling_topk=0, include_prompt_in_result=False)
    (result,) = generator.generate_batch([words], **settings)
    sampled.append(result.sequences_ids[0])
print(f"two samplings, each after set_random_seed(5): {'the same text' if sampled[0] == sampled[1] else 'two texts'}")
names = ((), ("repetition_penalty",), ("no_repeat_ngram_size",))
plain, penalty, repeats = ((new[*name, True], new[*name, False]) for name in names)
lengths = [len(text) for text in plain] == [13, 24] and plain[0] == plain[1][:13]
scores = abs(score[(True,)] - own[(True,)] * 13 / 24) < 0.01 and abs(score[(False,)] - own[(False,)]) < 0.01
forbidden = not set(repeats[0]) & set(prompt) and set(repeats[1]) & set(prompt) and len(set(repeats[1])) == len(repeats[1])
if not (lengths and scores and forbidden) or penalty[0] == penalty[1][: len(penalty[0])] or sampled[0] == sampled[1]:
    sys.exit("the behaviour has changed")
print("as described: the prompt counts as generated text, and a later seed does not count")
PYTHON
