#!/usr/bin/env bash
# transformers 5.24.0: universal assisted generation (`tokenizer` and `assistant_tokenizer`) of a prompt with chat markup.
# Expected: the assistant reads the prompt, its markup included where both tokenizers have the same special tokens.
# Behaviour: text goes from one tokenizer to the other without special tokens, so the assistant reads a conversation
#   as bare text: no turns, no end of the question. The output is right, and drafts answer another prompt. Without the
#   markup, or with the tokenizers left out (where the vocabularies allow that), the same assistant is accepted.
# Output seen (the assistant is the target itself, with five unused tokens more, so it should always be right):
#   bare text: 33 of 34 drafted tokens accepted
#   with chat markup: 12 of 131 drafted tokens accepted
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
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from transformers.generation.candidate_generator import AssistedCandidateGenerator

torch.manual_seed(0)
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3)
config = LlamaConfig(vocab_size=259, **sizes, bos_token_id=None, eos_token_id=None, max_position_embeddings=256)
target = AutoModelForCausalLM.from_config(config).eval()
assistant = copy.deepcopy(target)
assistant.resize_token_embeddings(264, mean_resizing=False)
assistant.get_output_embeddings().weight.data[259:] = 0
assistant.generation_config.update(num_assistant_tokens=5, num_assistant_tokens_schedule="constant")
assistant.generation_config.assistant_confidence_threshold = 0


def tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=built, additional_special_tokens=["<|user|>", "<|bot|>", "<|end|>"])


own, other = tokenizer(), tokenizer()
other.add_tokens(["<|unused|>"])
letters = own("abcdefghijklmnopqrstuvwxyz")["input_ids"]
counts, update = [0, 0], AssistedCandidateGenerator.update_candidate_strategy


def counted(generator, ids, scores, matches):
    counts[0] += int(matches)
    counts[1] += scores.shape[1] - 1
    return update(generator, ids, scores, matches)


AssistedCandidateGenerator.update_candidate_strategy = counted
shares = []
question = "The quick brown fox jumps over the lazy dog and runs"
for name, text in (("bare text", question), ("with chat markup", f"<|user|>{question}<|end|><|bot|>")):
    ids = own(text, return_tensors="pt")["input_ids"]
    settings = dict(max_new_tokens=40, do_sample=False, suppress_tokens=[i for i in range(259) if i not in letters])
    plain = target.generate(ids, **settings)
    counts[:] = 0, 0
    both = dict(tokenizer=own, assistant_tokenizer=other)
    output = target.generate(ids, **settings, assistant_model=assistant, **both)
    assert torch.equal(output, plain), "the output is that of plain decoding"
    shares.append(counts[0] / counts[1])
    print(f"{name}: {counts[0]} of {counts[1]} drafted tokens accepted")
if shares[0] < 0.9 or shares[1] > 0.5:
    sys.exit("the behaviour has changed")
print("as described: the assistant does not see the markup")
PYTHON
