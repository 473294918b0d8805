#!/usr/bin/env bash
# aiperf 0.13.0: `aiperf speed-bench-report`, the acceptance length that a vLLM server reports for SPEED-Bench runs.
# Expected: the server's acceptance length in the run, one (the target's own token) plus accepted over drafts.
# Behaviour: of each counter the first series alone is read. vLLM has one for each engine, so under data parallelism the
#   report is of one engine, and without a word the others do not count: neither in the length, nor in the rate.
# Output seen (two engines, one accepts 3 of 3 tokens of each draft and the other none; so 2.50 and 0.50):
#   accept_length: 4.00
#   accept_rate: 1.00
#   all 2 series of the same run: 2.50
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet aiperf==0.13.0
cat >"$folder/serve.py" <<'PYTHON'
"""A server that answers chats and counts as vLLM does: of two engines in turn, one accepts all drafts, one none."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

root = Path(sys.argv[1])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
built = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
PreTrainedTokenizerFast(tokenizer_object=built).save_pretrained(root / "tokenizer")
(root / "tokenizer" / "config.json").write_text(json.dumps({"model_type": "llama"}))
rows = [
    {"question_id": f"{number:032d}", "category": "coding", "messages": [{"role": "user", "content": f"Question {number}?"}]}
    for number in range(8)
]
(root / "qualitative.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
served = [0, 0]  # chats of each engine: 10 drafts of 3 tokens each


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        served[sum(served) % 2] += 1
        parts = [{"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": None}]}]
        parts += [{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}}]
        common = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "model"}
        text = "".join(f"data: {json.dumps(common | part)}\n\n" for part in parts) + "data: [DONE]\n\n"
        self.reply("text/event-stream", text.encode())

    def do_GET(self):
        lines = []
        for name, amounts in (
            ("drafts", [10 * count for count in served]),
            ("draft_tokens", [30 * count for count in served]),
            ("accepted_tokens", [30 * served[0], 0]),
        ):
            lines += [f"# HELP vllm:spec_decode_num_{name}_total {name}.", f"# TYPE vllm:spec_decode_num_{name}_total counter"]
            for engine, amount in enumerate(amounts):
                labels = f'{{engine="{engine}",model_name="model"}}'
                lines.append(f"vllm:spec_decode_num_{name}_total{labels} {float(amount)}")
        self.reply("text/plain; version=0.0.4", ("\n".join(lines) + "\n").encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
(root / "port").write_text(str(server.server_port))
server.serve_forever()
PYTHON
"$folder/venv/bin/python" "$folder/serve.py" "$folder" &
server=$!
trap 'kill $server; rm -rf "$folder"' EXIT
until [[ -s $folder/port ]]; do sleep 0.2; done
url=http://127.0.0.1:$(<"$folder/port")
unset HF_HUB_OFFLINE  # with it a folder is refused as a tokenizer
"$folder/venv/bin/aiperf" profile --model model --url "$url" --endpoint-type chat --streaming --tokenizer "$folder/tokenizer" \
  --input-file "$folder/qualitative.jsonl" --custom-dataset-type speed_bench_coding --request-count 8 --concurrency 1 \
  --server-metrics "$url/metrics" --output-artifact-dir "$folder/run" --ui none >"$folder/log" 2>&1 \
  || { tail -n 30 "$folder/log"; exit 1; }
seen=""
for metric in accept_length accept_rate; do
  "$folder/venv/bin/aiperf" speed-bench-report "$folder/run" --metric "$metric" --format csv --output "$folder/$metric.csv" >/dev/null
  value=$(tail -n 1 "$folder/$metric.csv" | cut -d , -f 2)
  echo "$metric: $value"
  seen+="$value "
done
"$folder/venv/bin/python" - "$folder/run" <<'PYTHON'
import json
import sys
from pathlib import Path

metrics = json.loads((Path(sys.argv[1]) / "server_metrics_export.json").read_text())["metrics"]
drafts, accepted = (metrics[f"vllm:spec_decode_num_{name}"]["series"] for name in ("drafts", "accepted_tokens"))
total = {name: sum(one["stats"]["total"] for one in series) for name, series in (("d", drafts), ("a", accepted))}
print(f"all {len(drafts)} series of the same run: {1 + total['a'] / total['d']:.2f}")
PYTHON
[[ $seen == "4.00 1.00 " || $seen == "1.00 0.00 " ]] || { echo "the behaviour has changed"; exit 1; }
echo "as described: one engine's figures stand for the server's"
