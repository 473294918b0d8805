#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): `n_probs` of `/completion` and `logprobs` of `/v1/completions`, with drafts.
# Expected: the model's log-probability of each token of the answer, and the likeliest others, as without drafts.
# Behaviour: the first token of the answer has them. A token that comes of a pass that checked drafts has log-probability 0,
#   probability 1, and no others beside it, accepted or not, and without a word. So perplexity, confidence and a comparison
#   of models are of other numbers as soon as the server speculates, and the better the drafts, the more.
# Output seen (the model repeats its prompt of tokens w41 to w48 without end, 12 tokens, all of the same probability):
#   NONE, both paths: -1.58 twelve times; others beside: 2 twelve times
#   NGRAM_CACHE, both paths: -1.58 and 0.00 eleven times; others beside: 2 and 0 eleven times
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
    head[following, token] = 0.35
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
params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{sys.argv[2]}")]
server = xllamacpp.Server(params)


def ask(path, **more):
    body = {"prompt": [41 + at % 8 for at in range(40)], "temperature": 0, "ignore_eos": True, **more}
    request = urllib.request.Request(f"http://127.0.0.1:{params.port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


answer = ask("/completion", n_predict=12, n_probs=2, return_tokens=True)
assert answer["tokens"] == [41 + at % 8 for at in range(12)], "the text does not repeat"
own = answer["completion_probabilities"]
openai = ask("/v1/completions", max_tokens=12, logprobs=2)["choices"][0]["logprobs"]["content"]
for name, tokens in (("/completion", own), ("/v1/completions", openai)):
    numbers = " ".join(f"{token['logprob'] + 0:.2f}" for token in tokens)
    print(f"{name}: {numbers}; others beside: {' '.join(str(len(token['top_logprobs'])) for token in tokens)}", flush=True)
PYTHON
"$folder/venv/bin/python" "$folder/model.py" "$folder/model.gguf"
seen=""
for kind in NONE NGRAM_CACHE; do
  lines=$("$folder/venv/bin/python" "$folder/serve.py" "$folder/model.gguf" "$kind" 2>/dev/null | grep "others beside")
  sed "s/^/$kind, /" <<<"$lines"
  seen+="$(sed -E 's/^[^:]*: //' <<<"$lines") "
done
read -r -d '' expected <<'SEEN' || true
-1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58; others beside: 2 2 2 2 2 2 2 2 2 2 2 2
-1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58 -1.58; others beside: 2 2 2 2 2 2 2 2 2 2 2 2
-1.58 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00; others beside: 2 0 0 0 0 0 0 0 0 0 0 0
-1.58 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00; others beside: 2 0 0 0 0 0 0 0 0 0 0 0
SEEN
[[ $(xargs -n 1 <<<"$seen") == "$(xargs -n 1 <<<"$expected")" ]] || { echo "the behaviour has changed"; exit 1; }
echo "as described: tokens of a pass that checked drafts have log-probability 0"
