"""What a step costs in vLLM without a service: cases for ``vllm bench forward`` (0.33), and costs from its results.

It times forward passes of given batches as captured graphs: the target's alone with ``--exclude-drafter``, else the
drafter's too, which always drafts ``num_speculative_tokens``. Sampling and the CPU's share of a step are left out, so a
step of a running server calibrates the costs once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from draftgauge.core.artefacts import read_json
from draftgauge.core.errors import TraceError, misread
from draftgauge.serving.exchange import MAX_COUNT, count, draft_length
from draftgauge.traces.costs import fit_law
from draftgauge.traces.engine_costs import MIN_DRAFT, EngineCosts

AGAIN = "give what `vllm bench forward --output-json` of vLLM 0.33 wrote"
CONTEXTS = (256, 2048, 8192)  # where none are asked for
SHORTEST, LONGEST = 1e-6, 3600.0  # seconds of a forward pass: beyond, the times are in another unit


class Case(NamedTuple):
    """A batch in which every request verifies as many drafted tokens."""

    requests: int
    drafted: int


def cases_document(lengths: Sequence[int], batches: Sequence[int], contexts: Sequence[int]) -> dict[str, Any]:
    """A file for ``--shapes``: every length, 0 among them, at every batch size and context length (before the step)."""
    return {
        "cases": [
            {
                "name": f"b{batch}-k{length}-c{context}",
                "requests": [
                    {
                        "query_len": length + 1,
                        "kv_len": context + length + 1,
                        "num_draft_tokens": length,
                        "count": batch,
                    }
                ],
            }
            for batch in sorted(set(batches))
            for length in sorted({0, *lengths})
            for context in sorted(set(contexts))
        ]
    }


def read_results(path: Path) -> dict[Case, dict[int, float]]:
    """Median seconds of each case by the sum of its texts before the step."""
    document, found = (
        read_json(path, "result of vllm bench forward", AGAIN, TraceError),
        defaultdict[Case, dict[int, float]](dict),
    )
    if not isinstance(document, list) or not document:
        raise TraceError(f"{path} is no result of vllm bench forward: {AGAIN}")
    for entry in document:
        try:
            shapes = {(count(r["query_len"]), draft_length(r["num_draft_tokens"])) for r in entry["requests"]}
            texts = [count(count(r["kv_len"]) - r["query_len"]) for r in entry["requests"]]
            if len(shapes) != 1:
                raise ValueError(f"requests of {len(shapes)} shapes in place of one")
            seconds, ((query, drafted),) = entry["median_us"] / 1e6, shapes
            if query != drafted + 1 or not SHORTEST <= seconds <= LONGEST or sum(texts) > MAX_COUNT:
                raise ValueError(f"a query of {query} tokens with {drafted} drafted ones in {seconds:g} s")
        except (KeyError, TypeError, ValueError) as error:
            name = entry.get("case") if isinstance(entry, dict) else entry
            what = f"{path}: case {name!r} is not one of `draftgauge costs --cases` ({misread(error)})"
            raise TraceError(f"{what}: {AGAIN}") from error
        found[Case(len(texts), drafted)][sum(texts)] = seconds
    return dict(found)


def costs_of_results(target: Path, both: Path) -> EngineCosts:
    """Costs from two runs of the same cases: ``--exclude-drafter`` (``target``), and with the drafter.

    Drafting is what a pass that verifies the longest draft takes beyond the target's; shorter drafts take their share
    of it. Of several contexts a law is fitted (:func:`~draftgauge.traces.costs.fit_law`).
    """
    alone, whole = read_results(target), read_results(both)
    if {case: sorted(of) for case, of in alone.items()} != {case: sorted(of) for case, of in whole.items()}:
        raise TraceError(f"{target} and {both} are of other cases: run both with one file and --kv-len-jitter 0")
    batches, lengths = ([*sorted({case[at] for case in alone})] for at in (0, 1))
    wanted = [(batch, length) for batch in batches for length in lengths]
    contexts = {case: [texts // case.requests for texts in sorted(of)] for case, of in alone.items()}
    differ = len(set(map(tuple, contexts.values()))) > 1
    if lengths[0] != 0 or len(lengths) < 2 or set(wanted) != set(alone) or differ:
        raise TraceError(f"{target} lacks cases: it needs lengths 0 and more, each at the same batches and contexts")
    texts = np.array([sorted(alone[Case(*case)]) for case in wanted], np.float64)  # [cases, contexts]
    verify = np.array([[alone[Case(*case)][int(of)] for of in row] for case, row in zip(wanted, texts, strict=True)])
    longest = [at for at, (_, length) in enumerate(wanted) if length == lengths[-1]]  # by batch
    beyond = [[whole[Case(*wanted[at])][int(of)] for of in texts[at]] - verify[at] for at in longest]
    drafting = np.maximum(beyond, MIN_DRAFT * lengths[-1])  # [batches, contexts] of a whole draft
    slope = draft_slope = error = 0.0
    if texts.shape[1] > 1:
        law, drafts = fit_law(texts, verify), fit_law(texts[longest], drafting / lengths[-1])
        slope, draft_slope, error = law.slope, drafts.slope, law.error
    columns, first = np.arange(lengths[-1] + 1), verify[:, 0].reshape(len(batches), len(lengths))
    table = np.maximum.accumulate([np.interp(columns, lengths, row) for row in first], axis=1)
    return EngineCosts(
        engine="vllm",
        batches=tuple(batches),
        plain=tuple(table[:, 0].tolist()),
        verify=tuple(map(tuple, table.tolist())),
        draft=tuple(tuple((columns * seconds / lengths[-1]).tolist()) for seconds in drafting[:, 0]),
        context=int(texts[0, 0]) // batches[0],
        context_seconds=slope,
        draft_context_seconds=draft_slope,
        context_error=error,
        provenance="vllm bench forward",
    )


def calibrated(costs: EngineCosts, served: float) -> EngineCosts:
    """With what a served step at the smallest batch, without drafts, takes beyond its forward pass added to all."""
    beyond = served - costs.plain[0]
    if beyond < 0:
        raise TraceError(
            f"a served step of {served:g} s is shorter than its forward pass, {costs.plain[0]:g} s: serve the model on "
            f"the same machine, at {costs.batches[0]} requests and {costs.context} tokens of context"
        )
    plain = tuple(seconds + beyond for seconds in costs.plain)
    verify = tuple(tuple(seconds + beyond for seconds in row) for row in costs.verify)
    return replace(costs, plain=plain, verify=verify, provenance=f"{costs.provenance}, calibrated by {beyond:.3g} s")
