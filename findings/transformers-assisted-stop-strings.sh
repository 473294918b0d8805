#!/usr/bin/env bash
# transformers 5.24.0: `stop_strings` with `prompt_lookup_num_tokens` or `assistant_model`.
# Expected: the text ends where plain decoding ends it: "as soon as a token is generated that completes" a stop string.
# Behaviour: stop strings are looked for after a step, at the end of the text alone. A step commits all accepted tokens at
#   once, so a stop string that an accepted draft runs over is missed without a word, and the better the draft, the surer.
#   An assistant model is refused: the message asks for the tokenizer that was given. With `StopStringCriteria` among the
#   stopping criteria it is not refused, and misses the string as well. EOS tokens are looked for in all accepted ones.
# Output seen (the model recites the alphabet, the stop string is "d"):
#   plain: abcd
#   prompt lookup: abcdefghijklmnopqrstuvwxyz.abcdefghijklmnopqrstuvwxyz.abcdef
#   assistant: ValueError, "you must pass the model's tokenizer to the `tokenizer` argument of `generate`"
#   assistant, StopStringCriteria: abcdefghijklmnopqrstuvwxyz.abcdefghijklmnopqrstuvwxyz.abcdef
#   assistant, "d" as EOS token: abcd
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import copy
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, StoppingCriteriaList, StopStringCriteria

letters = "abcdefghijklmnopqrstuvwxyz."
built = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
built.pre_tokenizer, built.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=built)
sizes = dict(vocab_size=27, hidden_size=28, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
model = LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=None, bos_token_id=None, tie_word_embeddings=False)).eval()
with torch.no_grad():  # the next letter is fixed by the last one
    for name, weight in model.named_parameters():
        weight.fill_(1) if "norm" in name else weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(28)[:27])
    for token in range(27):
        model.lm_head.weight[(token + 1) % 27, token] = 4
ids = tokenizer(letters * 3, return_tensors="pt")["input_ids"]
assistant = {"assistant_model": copy.deepcopy(model)}
strings = {"stop_strings": ["d"], "tokenizer": tokenizer}
criteria = {"stopping_criteria": StoppingCriteriaList([StopStringCriteria(tokenizer, ["d"])])}
seen = {}
for name, options in (
    ("plain", strings),
    ("prompt lookup", strings | {"prompt_lookup_num_tokens": 10}),
    ("assistant", strings | assistant),
    ("assistant, StopStringCriteria", criteria | assistant),
    ('assistant, "d" as EOS token', {"eos_token_id": 3, "pad_token_id": 3} | assistant),
):
    try:
        output = model.generate(ids, max_new_tokens=60, do_sample=False, **options)
        seen[name] = tokenizer.decode(output[0, ids.shape[1] :])
    except ValueError as error:
        seen[name] = f"ValueError, {error}"
    print(f"{name}: {seen[name]}")
plain, lookup, refused, missed, ended = seen.values()
asks = "you must pass the model's tokenizer" in refused
if not plain == ended == "abcd" or len(lookup) < 60 or len(missed) < 60 or not asks:
    sys.exit("the behaviour has changed")
print("as described: stop strings inside an accepted draft are missed, and an assistant model is refused")
PYTHON
