#!/usr/bin/env bash
# onnxruntime-genai 0.18.0: `get_speculative_stats` of a `Generator` that drafts by lookup, `ngram_size`.
# Expected: figures of the text: the target's passes and time, how many tokens were accepted how often, and as
#   `observed_speedup` more than 1 where four of five tokens are drafted and accepted.
# Behaviour: steps in which lookup finds nothing are passes of the target as well, and count in `standard_fallback_steps`
#   alone: not in the passes, the time, the rounds or what is derived from them. `acceptance_length_histogram` stays zero.
#   A speedup is divided by the time of passes that follow a rejection. So it is 0 where no draft was ever rejected. All of
#   that is without a word. The output is that of plain decoding, and a round with a rejection costs two passes.
# Output seen (36 tokens, 4 drafted a step):
#   text that repeats: 8 target_forward_passes, 0 steps beside, 4.50 mean_emitted_tokens_per_round, histogram sum 0 of 8
#     rounds, observed_speedup 0
#   text that repeats in places: 8 target_forward_passes, 27 steps beside, 2.25 mean_emitted_tokens_per_round, histogram sum
#     0 of 4 rounds, observed_speedup above 0
#   new text: 0 target_forward_passes, 36 steps beside, 0.00 mean_emitted_tokens_per_round, histogram sum 0 of 0 rounds,
#     observed_speedup 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
from onnx import TensorProto, helper, numpy_helper

root, size, length = Path(sys.argv[1]), 64, 36
table = np.zeros((size, size), np.float32)
for token in range(40):  # the next token is fixed by the last one: tokens 0 to 39 follow each other in a ring
    table[token, (token + 1) % 40] = 8
nodes = [
    helper.make_node("Gather", ["table", "input_ids"], ["logits"], axis=0),
    helper.make_node("Unsqueeze", ["input_ids", "axes"], ["four"]),
    helper.make_node("Cast", ["four"], ["new"], to=TensorProto.FLOAT),
]
cache = {}
for name in ("key", "value"):
    nodes.append(helper.make_node("Concat", [f"past_key_values.0.{name}", "new"], [f"present.0.{name}"], axis=2))
    for end, span in (("past_key_values", "past"), ("present", "all")):
        key = f"{end}.0.{name}"
        cache[key] = helper.make_tensor_value_info(key, TensorProto.FLOAT, ["batch", 1, span, 1])
graph = helper.make_graph(
    nodes,
    "ring",
    [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "new"])]
    + [helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "all"])]
    + [value for name, value in cache.items() if name.startswith("past")],
    [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "new", size])]
    + [value for name, value in cache.items() if name.startswith("present")],
    [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1, 3]), "axes")],
)
opset = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), root / "model.onnx")
names = {f"past_{name}_names": f"past_key_values.%d.{name}" for name in ("key", "value")}
decoder = {"session_options": {}, "filename": "model.onnx", "head_size": 1, "hidden_size": 1, "num_attention_heads": 1}
decoder |= {"num_key_value_heads": 1, "num_hidden_layers": 1}
decoder["inputs"] = {"input_ids": "input_ids", "attention_mask": "attention_mask", **names}
decoder["outputs"] = {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
model = {"type": "llama", "vocab_size": size, "context_length": 512, "eos_token_id": 63, "pad_token_id": 63}
model["decoder"] = decoder
search = {"max_length": 512, "past_present_share_buffer": False}
(root / "genai_config.json").write_text(json.dumps({"model": model, "search": search}))
loaded, seen = og.Model(str(root)), []
for name, prompt in (
    ("text that repeats", [*range(40)] * 2),
    ("text that repeats in places", [20, 21, 22, 50, 51, 24, 25, 50, 52, 28, 29, 51, 54, 32, 33, 53, 51, 0, 1, 2]),
    ("new text", [0, 1, 2]),
):
    params = og.GeneratorParams(loaded)
    params.set_search_options(max_length=len(prompt) + length)
    params.set_speculative_options(ngram_size=2, max_draft_tokens=4)
    generator = og.Generator(loaded, params)
    generator.append_tokens(np.array(prompt, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    text = generator.get_sequence(0).tolist()[len(prompt) :]
    assert text == [(prompt[-1] + 1 + at) % 40 for at in range(length)], "another text than that of plain decoding"
    stats = generator.get_speculative_stats()
    passes, beside = stats["target_forward_passes"], stats["standard_fallback_steps"]
    assert stats["tokens_emitted"] + beside == length, "a token is of a round or of a step beside"
    counted, speedup = sum(stats["acceptance_length_histogram"]), stats["observed_speedup"]
    print(
        f"{name}: {passes} target_forward_passes, {beside} steps beside,"
        f" {stats['mean_emitted_tokens_per_round']:.2f} mean_emitted_tokens_per_round, histogram sum {counted} of"
        f" {stats['rounds']} rounds, observed_speedup {'above 0' if speedup else 0}"
    )
    seen.append((passes, beside, counted, speedup > 0))
if seen != [(8, 0, 0, False), (8, 27, 0, True), (0, 36, 0, False)]:
    sys.exit("the behaviour has changed")
print("as described: steps without a draft are left out, the histogram is empty, and a perfect text has no speedup")
PYTHON
