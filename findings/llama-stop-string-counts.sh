#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): `draft_n_accepted` in the timings of an answer that a stop string ends.
# Expected: the count of accepted tokens in the answer, so that answer less accepted is the number of the target's passes.
# Behaviour: all tokens count that the target accepts in a pass, also those behind the stop string, which the answer lacks.
#   `predicted_n` counts those up to the string. So accepted tokens a token of the answer are too many, and passes come out
#   below zero: the longer the draft, the further. `tokens_cached` counts them too. An answer that ends by length is right.
# Output seen (the model repeats w41 to w48 without end, an answer of 5 tokens each time):
#   NGRAM_CACHE, ended by length: 5 tokens, 3 drafted, 3 accepted, so 2 passes, 44 tokens cached
#   NGRAM_CACHE, ended by the stop string: 5 tokens, 8 drafted, 8 accepted, so -3 passes, 49 tokens cached
#   NGRAM_MOD, ended by length: 5 tokens, 3 drafted, 3 accepted, so 2 passes, 44 tokens cached
#   NGRAM_MOD, ended by the stop string: 5 tokens, 58 drafted, 58 accepted, so -53 passes, 99 tokens cached
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
cat >"$folder/model.py" <<'PYTHON'
"""A model whose next token is fixed by the last one: tokens 1 to 40 follow each other in a ring, as do 41 to 48."""

import sys

import gguf
import numpy as np

size, inner = 64, 32
ring = {token: token % 40 + 1 for token in range(1, 41)} | {token: (token - 40) % 8 + 41 for token in range(41, 49)}
writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_context_length(1024)
writer.add_embedding_length(size)
writer.add_block_count(1)
writer.add_feed_forward_length(inner)
writer.add_head_count(2)
writer.add_head_count_kv(2)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_dimension_count(32)
writer.add_vocab_size(size)
writer.add_tokenizer_model("llama")
writer.add_token_list([f"w{token}" for token in range(size)])
writer.add_token_scores([0.0] * size)
writer.add_token_types([gguf.TokenType.NORMAL] * size)
writer.add_unk_token_id(0)
writer.add_bos_token_id(0)
writer.add_eos_token_id(63)
head = np.zeros((size, size), np.float32)
for token, following in ring.items():
    head[following, token] = 4
tensors = {"token_embd": np.eye(size), "output": head, "output_norm": np.ones(size)}
tensors |= {f"blk.0.{name}": np.zeros((size, size)) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
tensors |= {f"blk.0.{name}": np.zeros((inner, size)) for name in ("ffn_gate", "ffn_up")}
tensors |= {"blk.0.ffn_down": np.zeros((size, inner)), "blk.0.attn_norm": np.ones(size), "blk.0.ffn_norm": np.ones(size)}
for name, tensor in tensors.items():
    writer.add_tensor(f"{name}.weight", tensor.astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
PYTHON
cat >"$folder/serve.py" <<'PYTHON'
import json
import socket
import sys
import urllib.request

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.n_ctx, params.warmup = sys.argv[1], ["127.0.0.1"], 1024, False
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    params.port = free.getsockname()[1]
kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{sys.argv[2]}")
params.speculative.types = [kind]
server = xllamacpp.Server(params)
for end in ({"n_predict": 5}, {"stop": ["w45"]}):
    body = {"prompt": [41 + at % 8 for at in range(40)], "n_predict": 60, "temperature": 0, "ignore_eos": True, **end}
    request = urllib.request.Request(f"http://127.0.0.1:{params.port}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)
    timings = answer["timings"]
    drafted, accepted = timings["draft_n"], timings["draft_n_accepted"]
    passes = timings["predicted_n"] - accepted
    print(
        f"{timings['predicted_n']} tokens, {drafted} drafted, {accepted} accepted, so {passes} passes,"
        f" {answer['tokens_cached']} tokens cached",
        flush=True,
    )
PYTHON
"$folder/venv/bin/python" "$folder/model.py" "$folder/model.gguf"
seen=""
for kind in NGRAM_CACHE NGRAM_MOD; do
  counts=$("$folder/venv/bin/python" "$folder/serve.py" "$folder/model.gguf" "$kind" 2>/dev/null | grep "tokens cached")
  echo "$kind, ended by length: ${counts%%$'\n'*}"
  echo "$kind, ended by the stop string: ${counts##*$'\n'}"
  seen+="$(sed -E 's/.*so (-?)[0-9]+ passes.*/\1+/' <<<"$counts" | tr -d '\n') "
done
[[ $seen == "+-+ +-+ " ]] || { echo "the behaviour has changed"; exit 1; }
echo "as described: tokens behind a stop string count as accepted"
