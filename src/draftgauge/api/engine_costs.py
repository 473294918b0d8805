"""What a step costs in an engine, without a service: cases to run, costs from their results, servers as cost meters."""

from __future__ import annotations

import json
import shlex
from typing import Any

from draftgauge.api.requests import CostsRequest
from draftgauge.api.verb import verb
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text, require_writable_file
from draftgauge.serving.engines import ENGINES, engine_of
from draftgauge.serving.forward_bench import calibrated, cases_document, costs_of_results

VLLM = "vllm"


@verb(CostsRequest)
def costs(request: CostsRequest) -> list[dict[str, Any]]:
    """Write the cases that ``vllm bench forward`` is to measure, or make costs of its two results.

    With ``acceptance`` it only says how a server accepts by these rates, whose outputs mean nothing and whose steps
    cost what they cost: ``draftgauge bench-servers`` then measures them.

    Returns:
        Of cases one row each: ``case``, ``batch``, ``length``, ``context``. Of results one row a batch size and length:
        ``batch``, ``length``, ``context``, ``verify_seconds``, ``draft_seconds``, ``context_seconds`` and
        ``draft_context_seconds`` a further token of text, ``context_error``, and ``beyond_seconds``, what a served step
        takes beyond its forward pass. Each has ``command`` or None: what to run.

    Raises:
        DraftgaugeError: for results of another version, or of cases that do not match.
    """
    engine = engine_of(request.engine)
    if request.acceptance:
        rates = list(request.acceptance)
        if not engine.synthetic:
            known = " and ".join(name for name, each in ENGINES.items() if each.synthetic)
            raise DraftgaugeError(f"{engine.name} does not accept by given rates: {known} do")
        if not all(1 >= before >= rate >= 0 for before, rate in zip([1.0, *rates], rates, strict=False)):
            raise DraftgaugeError(
                "--acceptance takes unconditional rates by position, as `advise --export-acceptance` writes them, from "
                f"1 to 0 and not rising, not {', '.join(map(str, rates))}"
            )
        how = engine.synthetic.replace("{rates}", ",".join(map(str, rates)))
        return [{"engine": engine.name, "length": len(rates), "command": how}]
    if engine.name != VLLM:
        raise DraftgaugeError(f"cases are for vLLM's bench forward: for {engine.name} give --acceptance")
    if request.cases is not None:
        require_writable_file(request.cases)
        document = cases_document(request.lengths, request.batches, request.contexts)
        atomic_write_text(request.cases, json.dumps(document, indent=1) + "\n")
        return _of_cases(document, str(request.cases))
    if request.target_alone is None or request.with_drafter is None or request.out is None:
        raise DraftgaugeError("name --cases to write, or the results --target-alone and --with-drafter with --out")
    require_writable_file(request.out)
    measured = costs_of_results(request.target_alone, request.with_drafter)
    made = measured if request.served is None else calibrated(measured, request.served)
    made.validate()
    made.save(request.out)
    return [
        {
            "engine": engine.name,
            "batch": batch,
            "length": length,
            "context": made.context,
            "verify_seconds": verify[length],
            "draft_seconds": draft[length],
            "context_seconds": made.context_seconds,
            "draft_context_seconds": made.draft_context_seconds,
            "context_error": made.context_error,
            "beyond_seconds": made.plain[0] - measured.plain[0],
            "command": None,
        }
        for batch, verify, draft in zip(made.batches, made.verify, made.draft, strict=True)
        for length in range(len(verify))
    ]


def _of_cases(document: dict[str, Any], path: str) -> list[dict[str, Any]]:
    shapes = [(case["name"], case["requests"][0]) for case in document["cases"]]
    longest = max(request["num_draft_tokens"] for _, request in shapes)
    room = max(request["kv_len"] for _, request in shapes) + longest + 1  # vLLM wants place to draft on
    config = json.dumps({"model": "DRAFT", "num_speculative_tokens": longest})
    words = ["vllm", "bench", "forward", "--model", "TARGET", "--speculative-config", config, "--shapes", path]
    words += ["--kv-len-jitter", "0", "--max-model-len", str(room)]
    runs = [[*words, "--exclude-drafter", "--output-json", "target.json"], [*words, "--output-json", "drafter.json"]]
    runs += [["draftgauge", "costs", "--target-alone", "target.json", "--with-drafter", "drafter.json"]]
    runs[-1] += ["--out", "vllm-costs.json"]
    return [
        {
            "engine": VLLM,
            "case": name,
            "batch": request["count"],
            "length": request["num_draft_tokens"],
            "context": request["kv_len"] - request["query_len"],
            "command": "\n".join(map(shlex.join, runs)),
        }
        for name, request in shapes
    ]
