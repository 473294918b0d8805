#!/usr/bin/env bash
# transformers 5.24.0: `guidance_scale` and SynthID's watermark, with `prompt_lookup_num_tokens` or `assistant_model`.
# Expected: greedy output under guidance is that of plain decoding, a watermarked text is watermarked, or both are refused.
# Behaviour: their logits processors keep what they have read from call to call, and take each call for the text's next
#   token. Drafted tokens are shown to them too, rejected ones included, and nothing is taken back; an assistant model draws
#   its drafts through the same objects. So guidance reads rejected tokens as text of the unconditional prompt and the output
#   is another one. The watermark is of other contexts than the text's, and the text's own g values, which its detector
#   reads, are nearly those of a text without one. No warning says so.
# Output seen (8 prompts, 30 tokens each; one text of 200 tokens, 9 keys):
#   no guidance: the text of plain decoding in 8 of 8 (prompt lookup), in 8 of 8 (assistant)
#   guidance_scale 1.5: the text of plain decoding in 0 of 8 (prompt lookup), in 0 of 8 (assistant)
#   guidance_scale 1.5 and a negative prompt: the text of plain decoding in 0 of 8 (prompt lookup), in 0 of 8 (assistant)
#   mean g value of the text, no watermark: 0.48
#   mean g value of the text, plain: 0.73
#   mean g value of the text, prompt lookup: 0.52
#   mean g value of the text, assistant: 0.54
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import copy
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, SynthIDTextWatermarkingConfig

torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_attention_heads=4)
sizes |= dict(bos_token_id=None, eos_token_id=None)


def model(layers, spread):
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=layers, initializer_range=spread)).eval()


def ways(target):
    assistant = copy.deepcopy(target)
    with torch.no_grad():
        assistant.lm_head.weight += torch.randn_like(assistant.lm_head.weight) * 0.02
    assistant.generation_config.update(num_assistant_tokens=4)
    return {"prompt lookup": {"prompt_lookup_num_tokens": 4}, "assistant": {"assistant_model": assistant}}


target, negative = model(2, 0.3), torch.randint(64, (1, 6))
prompts = [torch.randint(64, (1, 12)).repeat(1, 2) for _ in range(8)]
same = {}
for name, guidance in (
    ("no guidance", {}),
    ("guidance_scale 1.5", {"guidance_scale": 1.5}),
    ("guidance_scale 1.5 and a negative prompt", {"guidance_scale": 1.5, "negative_prompt_ids": negative}),
):
    settings = dict(max_new_tokens=30, do_sample=False, **guidance)
    plain = [target.generate(ids, **settings) for ids in prompts]
    same[name] = {
        way: sum(torch.equal(target.generate(ids, **settings, **options), text) for ids, text in zip(prompts, plain))
        for way, options in ways(target).items()
    }
    counts = ", ".join(f"in {count} of {len(prompts)} ({way})" for way, count in same[name].items())
    print(f"{name}: the text of plain decoding {counts}", flush=True)
marked, mark = model(1, 0.05), SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123, 340, 443, 597, 160, 57], ngram_len=3)
shares = {}
for name, options in ({"no watermark": None, "plain": {}} | ways(marked)).items():
    options = {} if options is None else {"watermarking_config": mark, **options}
    text = marked.generate(prompts[0], max_new_tokens=200, do_sample=True, top_k=0, **options)[:, prompts[0].shape[1] :]
    shares[name] = float(mark.construct_processor(64, "cpu").compute_g_values(text).float().mean())
    print(f"mean g value of the text, {name}: {shares[name]:.2f}", flush=True)
changed = [set(counts.values()) != {len(prompts)} for counts in same.values()]
lost = [shares[way] < (shares["no watermark"] + shares["plain"]) / 2 for way in ("prompt lookup", "assistant")]
if changed != [False, True, True] or shares["plain"] < shares["no watermark"] + 0.05 or not all(lost):
    sys.exit("the behaviour has changed")
print("as described: drafts stay in the processors' state")
PYTHON
