"""The bundled target as GGUF, by llama.cpp's own converter; its text tokenised by llama.cpp as by transformers.

Needs a checkout of llama.cpp (LLAMA_CPP=FOLDER), what its converter needs (sentencepiece), and llama-cpp-python for the
second test.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from draftgauge.models.loading import load_tokenizer
from draftgauge.models.reference import PAIR_FOLDER, reference_path
from gguf_files import convert, need_converter

LINES = 1000
READ = """
import json, sys
sys.path[:0] = [sys.argv[1] + "/gguf-py"]
from gguf import GGUFReader
reader = GGUFReader(sys.argv[2])
names = ("general.architecture", "tokenizer.ggml.pre", "qwen3.block_count", "qwen3.context_length")
print(json.dumps({n: reader.fields[n].contents() for n in names} | {
    "tokens": reader.fields["tokenizer.ggml.tokens"].contents(), "tensors": len(reader.tensors)}))
"""


@pytest.fixture(scope="module")
def source() -> Path:
    return need_converter()


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(reference_path("target"), tmp_path_factory.mktemp("gguf") / "target.gguf")


def test_the_converter_takes_the_target(source: Path, converted: Path) -> None:
    done = subprocess.run([sys.executable, "-c", READ, str(source), str(converted)], capture_output=True, text=True)
    fields = json.loads(done.stdout)
    config = json.loads((reference_path("target") / "config.json").read_text())
    vocabulary = load_tokenizer("reference").get_vocab()
    assert fields["general.architecture"] == "qwen3"
    assert fields["tokenizer.ggml.pre"] == "qwen2"
    assert fields["qwen3.block_count"] == config["num_hidden_layers"]
    assert fields["qwen3.context_length"] == 2048
    assert fields["tokens"] == sorted(vocabulary, key=vocabulary.__getitem__)
    assert fields["tensors"] == 2 + 11 * config["num_hidden_layers"]


def test_llama_cpp_tokenises_as_transformers_does(converted: Path) -> None:
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs llama-cpp-python, built")
    from llama_cpp import Llama

    model, tokenizer = Llama(str(converted), vocab_only=True, verbose=False), load_tokenizer("reference")
    lines = _prompt_lines()[:LINES]
    assert len(lines) == LINES
    for line in lines:
        tokens = model.tokenize(line.encode(), add_bos=False, special=False)
        assert tokens == tokenizer(line, add_special_tokens=False).input_ids, line


def _prompt_lines() -> list[str]:
    rows = [json.loads(row) for path in sorted(PAIR_FOLDER.glob("prompts/*.jsonl")) for row in path.open()]
    texts = [message["content"] for row in rows for message in row["messages"]] + [row["reference"] for row in rows]
    return list(dict.fromkeys(line for text in texts for line in text.splitlines() if line))
