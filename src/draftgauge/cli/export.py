"""``draftgauge export``: a trained drafter as serving engines load it."""

from __future__ import annotations

import shlex
from typing import Any

from draftgauge.api.requests import ExportRequest
from draftgauge.cli.console import named, say, show_table

COLUMNS = named("format", "tensors", "parameters") | {"depths": "trained for"} | named("target")
SERVED = {"eagle3": {"vLLM": "vllm", "SGLang": "sglang"}, "dflash": {"vLLM": "vllm"}}


def export(request: ExportRequest) -> list[dict[str, Any]]:
    from draftgauge.api.export import export as run

    rows = run(request)
    show_table(f"Exported to {request.out}", rows, COLUMNS)
    for engine, command in serving_commands(rows[0]).items():
        say(f"{engine}: {command}")
    if rows[0]["llama_cpp_lacks"]:
        say(f"llama.cpp cannot run it: it lacks {rows[0]['llama_cpp_lacks']}")
    return rows


def serving_commands(row: dict[str, Any]) -> dict[str, str]:
    """How engines are started with a checkpoint, by engine; drafts as long as it was trained for."""
    from draftgauge.policies.registry import FIXED
    from draftgauge.serving.engines import Deployment, engine_of

    target, length = row["target"] or "TARGET", row["depths"] or 1
    deployment, served = Deployment(target, row["folder"], row["format"]), SERVED[row["format"]]
    commands = {title: engine_of(name).flags(f"{FIXED}{length}", deployment) for title, name in served.items()}
    if row["format"] == "eagle3" and row["llama_cpp_lacks"] is None:
        convert = ["python", "convert_hf_to_gguf.py", row["folder"], "--target-model-dir", target]
        server = ["llama-server", "--model", "TARGET.gguf", "--spec-type", "draft-eagle3", "--spec-draft-model"]
        server += ["DRAFTER.gguf", "--spec-draft-n-max", str(length)]
        commands["llama.cpp"] = f"{shlex.join([*convert, '--outfile', 'DRAFTER.gguf'])} && {shlex.join(server)}"
    return commands
