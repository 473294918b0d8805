#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): `--spec-type ngram-simple` with its sizes, `size-n` looked up (12 unless
#   said otherwise) and `size-m` drafted (48).
# Expected: what followed the last n-gram is drafted, up to size-m tokens; a text that repeats sooner is drafted too.
# Behaviour: a draft shorter than size-n is dropped without a word, and no earlier place is tried. So size-m below size-n
#   drafts nothing at all, and neither does a text that repeats itself in fewer tokens than size-n, such as a table.
#   `min-hits` changes nothing.
# Output seen (the model repeats its prompt without end, 100 tokens):
#   size-n 12, size-m 48, min-hits 1: drafted and accepted at period 40, at period 8: [[96, 96], [0, 0]]
#   size-n 12, size-m 8, min-hits 1: drafted and accepted at period 40, at period 8: [[0, 0], [0, 0]]
#   size-n 4, size-m 8, min-hits 1: drafted and accepted at period 40, at period 8: [[88, 88], [86, 86]]
#   size-n 4, size-m 8, min-hits 50: drafted and accepted at period 40, at period 8: [[88, 88], [86, 86]]
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

length, drafted, hits = map(int, sys.argv[2:5])
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.n_ctx, params.warmup = sys.argv[1], ["127.0.0.1"], 1024, False
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    params.port = free.getsockname()[1]
params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
sizes = params.speculative.ngram_simple
sizes.size_n, sizes.size_m, sizes.min_hits = length, drafted, hits
server = xllamacpp.Server(params)
counts = []
for first, period in ((1, 40), (41, 8)):
    prompt = [first + at % period for at in range(120)]
    body = {"prompt": prompt, "n_predict": 100, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    request = urllib.request.Request(f"http://127.0.0.1:{params.port}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)
    assert answer["tokens"] == [first + at % period for at in range(120, 220)], "the text does not repeat"
    counts.append([answer["timings"].get(f"draft_n{kind}") or 0 for kind in ("", "_accepted")])
print(json.dumps(counts), flush=True)
PYTHON
"$folder/venv/bin/python" "$folder/model.py" "$folder/model.gguf"
seen=""
while read -r length drafted hits; do
  counts=$("$folder/venv/bin/python" "$folder/serve.py" "$folder/model.gguf" "$length" "$drafted" "$hits" 2>/dev/null | tail -n 1)
  echo "size-n $length, size-m $drafted, min-hits $hits: drafted and accepted at period 40, at period 8: $counts"
  seen+="$(sed -E 's/[1-9][0-9]*/+/g' <<<"$counts");"
done <<'SIZES'
12 48 1
12 8 1
4 8 1
4 8 50
SIZES
[[ $seen == "[[+, +], [0, 0]];[[0, 0], [0, 0]];[[+, +], [+, +]];[[+, +], [+, +]];" ]] || { echo "the behaviour has changed"; exit 1; }
echo "as described: a draft shorter than size-n is dropped"
