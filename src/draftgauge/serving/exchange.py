"""Acceptance in the forms of others: results of load generators are read, and engines and planners are written for.

vLLM's ``synthetic_acceptance_rates`` and llama.cpp's ``--spec-synth-rates`` are *unconditional*: the share of drafts
accepted up to each position. AIConfigurator's ``--nextn-accepted`` is their sum, accepted tokens a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.core.artefacts import parse_json, parse_json_lines, read_text
from draftgauge.core.errors import TraceError, misread
from draftgauge.judging.evaluate import task_masks
from draftgauge.judging.replay import replay_lengths
from draftgauge.serving.engines import ENGINES
from draftgauge.traces.sampled import draws
from draftgauge.traces.trace import Trace, remaining_rows

FORMAT, VERSION = "draftgauge acceptance", 1
MARK = "spec_decode_acceptance"  # of aiperf's records
MAX_LENGTH = 1024  # of a draft
MAX_COUNT = 2.0**53


def answers_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Answers with what vLLM counts of each: its own, one a line, or the drafted ones in results of load generators.

    These are aiperf's ``profile_export.jsonl`` and guidellm's ``benchmarks.json``.
    """
    text = read_text(path, "file of answers", "give vLLM's answers as they came", TraceError)
    if text.startswith("{\n") and '"benchmarks"' in text:  # one object over many lines
        yield from _of_guidellm(parse_json(text, str(path), error=TraceError), path)
        return
    for where, answer in parse_json_lines(text, path, TraceError):
        if isinstance(answer, dict) and "benchmarks" in answer:
            yield from _of_guidellm(answer, path)
        elif isinstance(answer, dict) and {"metadata", "metrics"} <= answer.keys():
            if answer.get(MARK) is not None:
                yield where, _of_aiperf(answer, where)
        else:
            yield where, answer


def _of_guidellm(report: Any, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        counted = [
            (at, each, dict(each.get("response_metrics") or {}))
            for at, benchmark in enumerate(report["benchmarks"], start=1)
            for each in benchmark["requests"]["successful"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path} is no report of guidellm 0.8 ({misread(error)}): give its benchmarks.json") from error
    if not any(metrics.get("speculative_decoding") for _, _, metrics in counted):
        raise TraceError(
            f"{path} holds no request with what vLLM drafted: start vLLM with --per-request-spec-decode-metrics "
            "detailed, and take guidellm 0.8 or later"
        )
    for number, (at, each, metrics) in enumerate(counted, start=1):
        if metrics.get("speculative_decoding"):
            usage = {"prompt_tokens": each.get("prompt_tokens") or 0, "completion_tokens": each.get("output_tokens")}
            yield f"{path}, benchmark {at}, request {number}", {"usage": usage, "metrics": metrics}


def _of_aiperf(record: Mapping[str, Any], where: str) -> Any:
    try:
        counted, metrics = dict(record[MARK]), record.get("metrics") or {}
        histogram = {int(accepted): steps for accepted, steps in counted["acceptance_histogram"].items()}
        longest = draft_length(counted.get("num_spec_tokens") or max(histogram, default=0))
        counted["acceptance_histogram"] = [histogram.get(accepted, 0) for accepted in range(longest + 1)]
        prompt = (metrics.get("input_sequence_length") or {}).get("value", 0)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = f"{where} is no record of aiperf 0.13 ({misread(error)})"
        raise TraceError(f"{said}: give its profile_export.jsonl") from error
    usage = {"prompt_tokens": prompt, "completion_tokens": counted.get("completion_tokens")}
    return {"usage": usage, "metrics": {"speculative_decoding": counted}}


def count(value: Any) -> int:
    """A count as JSON has it; ValueError for what is none."""
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not 0 <= value <= MAX_COUNT or value != int(value):
        raise ValueError(f"{value!r} in place of a count")
    return int(value)


def draft_length(value: Any) -> int:
    """A count of tokens that one draft may have; ValueError beyond."""
    if (length := count(value)) > MAX_LENGTH:
        raise ValueError(f"drafts of {length} tokens, more than {MAX_LENGTH}")
    return length


def acceptance_of(trace: Trace, length: int) -> dict[str, list[float]]:
    """Conditional acceptance by depth at the steps of drafts of ``length`` tokens, the longest ones if 0. By task and
    for all; 0 at depths that none reached.

    Where the drafter proposed nothing, as lookup often does, nothing was accepted: tokens a step are those of replay.
    """
    length, walks = length or trace.gamma_max, [trace] if trace.sampled is None else list(draws(trace))
    reached, accepted = np.zeros((2, len(trace.prompts), length))
    for walk in walks:
        record = replay_lengths(walk, np.full(walk.positions, length)).record
        rows, depth = record.rows(walk), np.arange(length)
        inside = depth < remaining_rows(walk.offsets)[rows, None]  # behind the output's end nothing is known
        right = np.minimum(walk.accepted[rows], length)[:, None]
        np.add.at(reached, record.prompt, inside & (depth <= right))
        np.add.at(accepted, record.prompt, inside & (depth < right))
    return {task: (accepted[of].sum(0) / np.maximum(reached[of].sum(0), 1)).tolist() for task, of in task_masks(trace)}


def conditional(survival: Sequence[float]) -> list[float]:
    return [after / before if before else 0.0 for before, after in pairwise((1.0, *survival))]


def acceptance_document(source: str, rates: Mapping[str, Sequence[float]], length: int) -> dict[str, Any]:
    """What ``advise --export-acceptance`` writes, of conditional rates by category.

    Args:
        length: of the drafts that recipes are written for; all depths if 0.
    """
    categories = {}
    for name, of in rates.items():
        unconditional = list(accumulate(of, mul))
        kept = [round(rate, 6) for rate in unconditional[: length or None]]
        written = {engine.name: engine.synthetic for engine in ENGINES.values() if engine.synthetic}
        written |= {"aiconfigurator": f"--nextn {len(kept)} --nextn-accepted {sum(kept):.4f}"}
        categories[name] = {
            "conditional": list(of),
            "unconditional": unconditional,
            "accepted_per_step": list(accumulate(unconditional)),
            "recipes": {to: text.replace("{rates}", ",".join(map(str, kept))) for to, text in written.items()},
        }
    return {"format": FORMAT, "version": VERSION, "source": source, "length": length, "categories": categories}
