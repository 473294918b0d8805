"""The cost curve of a loaded pair: measured once on a machine, then kept in the user's cache by its fingerprint."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftgauge.api.pair import Pair
from draftgauge.api.requests import CostSpec
from draftgauge.core.cache import cache_folder
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import read_prompts
from draftgauge.core.provenance import environment
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.prompts_text import token_ids
from draftgauge.models.reference import PAIR_FOLDER
from draftgauge.models.vocabulary import vocabulary_digest
from draftgauge.traces.costs import VERSION, CostCurve
from draftgauge.verification import Sampling

CONTEXTS = (64, 256, 1024)  # lengths measured at, as far as the models take them
PROMPTS = 16  # whose text is decoded for it
METER = 6  # raised where the meter measures otherwise, so that no curve of an earlier one is taken from the cache
_MACHINE = ("cpu", "cores", "threads", "gpu")
_LIBRARIES = ("draftgauge", "torch", "transformers", "bitsandbytes", "llama-cpp-python")


def pair_costs(
    pair: Pair,
    spec: CostSpec | None = None,
    gamma_max: int = 16,
    sampling: Sampling | None = None,
    progress: Progress = silent,
) -> CostCurve:
    """The cost curve of a pair on this machine, from the cache or measured now.

    A curve is of one pair, compression, engine, device and number of threads; anything else of these is measured anew.

    Args:
        pair: its models' caches are overwritten if it is measured.
        spec: whether to measure again, and how long measuring may take.
        gamma_max: longest draft.
        sampling: of the target, greedy if None.
        progress: told (what, done, total).
    """
    asked = spec or CostSpec()
    identity = _identity(pair, gamma_max, sampling or Sampling())
    path = _path(identity)
    if not asked.measure:
        with suppress(TraceError):  # not measured yet, or damaged
            return replace(CostCurve.load(path), vocabulary=vocabulary_digest(pair.tokenizer))  # no cost depends on it
    curve = _measured(pair, asked, gamma_max, sampling or Sampling(), progress)
    with suppress(OSError, DraftgaugeError):  # a cache that cannot be written costs the next run its time
        path.parent.mkdir(parents=True, exist_ok=True)
        curve.save(path)
    return curve


def _identity(pair: Pair, gamma_max: int, sampling: Sampling) -> dict[str, Any]:
    """All that decides what a step costs, ready for JSON."""
    machine = environment()
    return {
        "format": VERSION,
        "meter": METER,
        **pair.fingerprints(),
        "drafter": pair.draft_source.name,
        "compression": pair.compression,
        "engines": [pair.target.spec.engine, pair.draft_source.engine],
        "device": str(pair.target.spec.device),
        "draft_device": None if pair.draft is None else str(pair.draft.spec.device),
        "dtype": str(pair.target.spec.dtype),
        "gamma_max": gamma_max,
        "sampled": [not sampling.greedy, sampling.top_k > 0, sampling.top_p < 1],  # each takes time of its own
        **{name: machine[name] for name in _MACHINE},
        "versions": {name: machine["versions"].get(name) for name in _LIBRARIES},
    }


def _path(identity: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "costs" / f"{digest[:32]}.json"


def _measured(pair: Pair, spec: CostSpec, gamma_max: int, sampling: Sampling, progress: Progress) -> CostCurve:
    label = f"cost curve {pair.compression}"
    plan = MeterPlan(
        text=_text(pair),
        contexts=CONTEXTS,
        gamma_max=gamma_max,
        seconds=spec.cost_seconds,
        context_limit=pair.context,
        compression=pair.compression,
        vocabulary=vocabulary_digest(pair.tokenizer),
        sampling=sampling,
    )
    drawing = None if sampling.greedy else torch.Generator(pair.target.spec.device).manual_seed(0)
    drafter = pair.drafter(sampling, drawing, end_tokens=frozenset())  # one that no end token stops
    rng = np.random.default_rng(0)
    return measure_costs(pair.target, drafter, plan, rng, drawing, lambda done, total: progress(label, done, total))


def _text(pair: Pair) -> list[int]:
    """Token ids of bundled prompts; costs hardly depend on the words, but drafts should be accepted now and then."""
    prompts = read_prompts(PAIR_FOLDER / "prompts" / "train.jsonl", PROMPTS)
    text = "\n\n".join(prompt.text or "\n".join(message.content for message in prompt.messages) for prompt in prompts)
    return token_ids(pair.tokenizer, text, special=False)
