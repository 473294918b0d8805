"""What a step costs in an engine: from servers started here, or from vLLM's ``bench forward`` without a service."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text, require_writable_file
from draftgauge.core.progress import Progress, silent
from draftgauge.core.verb import verb
from draftgauge.pair.started_costs import started_costs
from draftgauge.requests import CostsRequest
from draftgauge.serving.dspark_tables import StepTable, costs_of_table, table_of_costs
from draftgauge.serving.forward_bench import CONTEXTS, calibrated, cases_document, costs_of_results
from draftgauge.traces.engine_costs import load_engine_costs


@verb(CostsRequest)
def costs(request: CostsRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Measure a step in servers started here. For ``vllm bench forward``: write its cases, or read its two results.

    Returns:
        Of cases one row each: ``case``, and the ``command`` that runs them all. Of costs one row a batch size and
        length: ``batch``, ``length``, ``context``, ``verify_seconds`` and ``draft_seconds``. What a further token of
        text costs is ``context_seconds`` and ``draft_context_seconds``, with ``context_error``. ``beyond_seconds`` is
        what a served step takes beyond its forward pass, ``half_width`` half of what servers of a setting
        differ by, as a share. Of SGLang's table, ``step_seconds`` and ``table_error``.

    Raises:
        DraftgaugeError: for results of another version, or of cases that do not match. Also for a server that does not
            start, or ignores its length.
    """
    if request.from_costs is not None and request.out is not None:
        return _written_table(request.from_costs, request.out)
    if request.engine not in ("vllm", "sglang") and not request.start:
        raise DraftgaugeError(f"cases are for vLLM's bench forward: measure {request.engine} with --start")
    if request.cases is not None:
        require_writable_file(request.cases)
        document = cases_document(request.lengths, request.batches, request.contexts or CONTEXTS)
        atomic_write_text(request.cases, json.dumps(document, indent=1) + "\n")
        command = _commands(document["cases"], str(request.cases))
        return [{"case": case["name"], "command": command} for case in document["cases"]]
    results = request.dspark_table or (request.target_alone and request.with_drafter)
    if request.out is None or not (request.start or results):
        raise DraftgaugeError(
            "name --start to measure a server, --cases to write, or the results --target-alone and --with-drafter with "
            "--out"
        )
    require_writable_file(request.out)
    longest = max(request.lengths)  # beyond, lines go on
    if request.dspark_table is not None and request.served is not None:
        measured = costs_of_table(request.dspark_table, request.served, request.batches, request.lengths)
    elif request.target_alone is None or request.with_drafter is None:
        measured = started_costs(request, progress)
    else:
        measured = costs_of_results(request.target_alone, request.with_drafter)
        longest = len(measured.draft[0]) - 1
    made = measured if request.served is None or request.dspark_table else calibrated(measured, request.served)
    made.validate()
    made.save(request.out)
    law = {name: getattr(made, name) for name in ("context", "context_seconds", "draft_context_seconds")}
    law |= {"context_error": made.context_error, "half_width": made.half_width}
    law |= {"beyond_seconds": made.plain[0] - measured.plain[0]}
    return [
        {"batch": batch, "length": length, "verify_seconds": verify[length], "draft_seconds": draft[length], **law}
        for batch, verify, draft in zip(made.batches, made.verify, made.draft, strict=True)
        for length in range(longest + 1)
    ]


def _written_table(costs: Path, out: Path) -> list[dict[str, Any]]:
    """The costs as SGLang's table, and how far that is off."""
    if (known := load_engine_costs(costs, "sglang")) is None:
        raise DraftgaugeError(f"{costs} holds no costs of an engine: see docs/serving.md")
    document, off = table_of_costs(known)
    atomic_write_text(out, json.dumps(document, indent=1) + "\n")
    table, at = StepTable(**document), [(b, k) for b in known.batches for k in range(len(known.verify[0]))]
    return [{"batch": b, "length": k, "step_seconds": table.seconds(b, b + b * k), "table_error": off} for b, k in at]


def _commands(cases: list[dict[str, Any]], path: str) -> str:
    """What runs the cases without and with the drafter, and then makes costs of both."""
    requests = [case["requests"][0] for case in cases]
    longest = max(request["num_draft_tokens"] for request in requests)
    room = max(request["kv_len"] for request in requests) + longest + 1  # vLLM wants place to draft on
    config = json.dumps({"model": "DRAFT", "num_speculative_tokens": longest})
    words = ["vllm", "bench", "forward", "--model", "TARGET", "--speculative-config", config, "--shapes", path]
    words += ["--kv-len-jitter", "0", "--max-model-len", str(room), "--output-json"]
    runs = [[*words, "target.json", "--exclude-drafter"], [*words, "drafter.json"]]
    made = ["draftgauge", "costs", "--target-alone", "target.json", "--with-drafter", "drafter.json"]
    return "\n".join(map(shlex.join, [*runs, [*made, "--out", "vllm-costs.json"]]))
