#!/usr/bin/env bash
# transformers 5.24.0: universal assisted generation (`tokenizer` and `assistant_tokenizer`) with sampling.
# Expected: speculative sampling, under which the output has the target's distribution, and an assistant left as it was.
# Behaviour: where the assistant has a token that the target lacks, its head is cut to the common tokens in the order of
#   `get_vocab()`, and the logits are read in the order of ids. Each draft is tested with the probability of another token,
#   so the text does not have the target's distribution. The cut head and changed embedding stay in the assistant.
# Output seen (16 letters, the assistant knows two more, 1000 texts; the share depends on the order of `get_vocab()`):
#   plain: 5% of the first tokens are off the target's probabilities
#   assisted: 41% of the first tokens are off the target's probabilities
#   the assistant's head: 18 tokens before, {'lm_head.pruned_lm_head.weight': (16, 32)} afterwards
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.manual_seed(0)
letters, texts = "abcdefghijklmnop", 1000
others = letters[::-1] + "yz"


def tokenizer(alphabet):
    built = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    built.pre_tokenizer, built.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=built)


def model(alphabet):
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(alphabet), **sizes, bos_token_id=None, eos_token_id=None)).eval()


target, assistant = model(letters), model(others)
own, other = tokenizer(letters), tokenizer(others)
ids = own("abcabcab", return_tensors="pt")["input_ids"]
before = assistant.state_dict()["lm_head.weight"].shape[0]
with torch.no_grad():
    expected = target(ids).logits[0, -1].softmax(-1)
apart = {}
for name, options in (
    ("plain", {}),
    ("assisted", dict(assistant_model=assistant, tokenizer=own, assistant_tokenizer=other)),
):
    drawn = [int(target.generate(ids, max_new_tokens=2, do_sample=True, top_k=0, **options)[0, 8]) for _ in range(texts)]
    shares = torch.bincount(torch.tensor(drawn), minlength=16) / texts
    apart[name] = float((shares - expected).abs().sum() / 2)
    print(f"{name}: {apart[name]:.0%} of the first tokens are off the target's probabilities")
after = {name: tuple(weight.shape) for name, weight in assistant.state_dict().items() if name.startswith("lm_head")}
print(f"the assistant's head: {before} tokens before, {after} afterwards")
if apart["plain"] > 0.1 or apart["assisted"] < 0.15 or "lm_head.weight" in after:
    sys.exit("the behaviour has changed")
print("as described: probabilities of other tokens, and an assistant that stays changed")
PYTHON
