"""The cost curve of a loaded pair: measured once on a machine, then kept in the user's cache by its fingerprint."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from draftgauge.core.errors import DraftgaugeError, TraceError, warn
from draftgauge.core.files import cache_folder
from draftgauge.core.parts import derive_seed, generator
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import read_prompts
from draftgauge.core.provenance import environment
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.folder import PAIR_FOLDER
from draftgauge.models.tokenizer import token_ids, vocabulary_digest
from draftgauge.pair.loading import Pair
from draftgauge.requests import CostSpec
from draftgauge.traces.costs import VERSION, CostCurve
from draftgauge.verification import Sampling

CONTEXTS = (64, 256, 1024)  # lengths measured at, as far as the models take them
PROMPTS = 16  # whose text is decoded for it
METER = 8  # raised where the meter measures otherwise, so that no curve of an earlier one is taken from the cache
_MACHINE = ("cpu", "cores", "threads", "gpu")
_IN_DOUBT: dict[Path, CostCurve] = {}  # measured by this process on a busy machine: the next one measures anew
_LIBRARIES = ("draftgauge", "torch", "transformers", "bitsandbytes", "llama-cpp-python")


def pair_costs(
    pair: Pair,
    spec: CostSpec | None = None,
    gamma_max: int = 16,
    sampling: Sampling | None = None,
    progress: Progress = silent,
) -> CostCurve:
    """The cost curve of a pair on this machine, from the cache or measured now, which overwrites its models' caches.

    A curve is of one pair, compression, engine, device and number of threads. ``sampling`` is the target's, greedy if
    None.
    """
    spec, sampling = spec or CostSpec(), sampling or Sampling()
    path = _cached(pair, gamma_max, sampling)
    vocabulary = vocabulary_digest(pair.tokenizer)
    if not spec.measure:
        with suppress(TraceError):  # not measured yet, or damaged
            kept = _IN_DOUBT.get(path) or CostCurve.load(path)
            if path in _IN_DOUBT or not kept.doubt():  # else the machine was busy: measured again
                return replace(kept, vocabulary=vocabulary)  # which no cost depends on
    plan = MeterPlan(
        text=token_ids(pair.tokenizer, bundled_text(), special=False),
        contexts=CONTEXTS,
        gamma_max=gamma_max,
        seconds=spec.cost_seconds,
        context_limit=pair.context,
        compression=pair.compression,
        vocabulary=vocabulary,
        sampling=sampling,
    )
    curve = measured(pair, plan, 0, progress)
    if doubt := curve.doubt():
        warn(f"costs are not certain, and measured again next time: {doubt}")
    keep_costs(pair, curve, sampling)
    return curve


def bundled_text() -> str:
    """Text of bundled prompts: costs hardly depend on the words, but drafts should be accepted now and then."""
    prompts = read_prompts(PAIR_FOLDER / "prompts" / "train.jsonl", PROMPTS)
    return "\n\n".join(prompt.text or "\n".join(message.content for message in prompt.messages) for prompt in prompts)


def keep_costs(pair: Pair, curve: CostCurve, sampling: Sampling) -> None:
    """Put what was measured of a pair into the cache, for the next to use it; in doubt, for this process alone."""
    path = _cached(pair, curve.gamma_max, sampling)
    _IN_DOUBT.pop(path, None)
    if curve.doubt():
        _IN_DOUBT[path] = curve
        return
    with suppress(OSError, DraftgaugeError):  # a cache that cannot be written costs the next run its time
        path.parent.mkdir(parents=True, exist_ok=True)
        curve.save(path)


def measured(pair: Pair, plan: MeterPlan, seed: int, progress: Progress) -> CostCurve:
    drawing = pair.generator(plan.sampling, derive_seed(seed, "costs"))
    drafter = pair.drafter(plan.sampling, drawing, end_tokens=frozenset())  # one that no end token stops
    label, rng = f"cost curve {pair.compression}", generator(seed, "costs", pair.compression)
    return measure_costs(pair.target, drafter, plan, rng, drawing, lambda done, total: progress(label, done, total))


def _cached(pair: Pair, gamma_max: int, sampling: Sampling) -> Path:
    """The file of a curve, named by all that decides what a step costs."""
    machine = environment()
    identity = {
        "format": VERSION,
        "meter": METER,
        **pair.fingerprints(),
        "drafter": pair.draft_source.name,
        "compression": pair.compression,
        "engines": [pair.target.spec.engine, pair.draft_source.engine],
        "device": str(pair.target.spec.device),
        "draft_device": None if pair.draft is None else str(pair.draft.spec.device),
        "dtype": str(pair.target.spec.dtype),
        "kernels": pair.target.spec.kernels,
        "gamma_max": gamma_max,
        "sampled": [not sampling.greedy, sampling.top_k > 0, sampling.top_p < 1],  # each takes time of its own
        **{name: machine[name] for name in _MACHINE},
        "versions": {name: machine["versions"].get(name) for name in _LIBRARIES},
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "costs" / f"{digest[:32]}.json"
