"""The cost curve of a loaded pair: measured once on a machine, then kept in the user's cache by its fingerprint.

Of a mixture of experts it is counted how many a pass reads: its tokens go to different ones, so verifying more reads
more weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftgauge.core.errors import DraftgaugeError, TraceError, warn
from draftgauge.core.files import cache_folder
from draftgauge.core.parts import derive_seed, generator
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import read_prompts
from draftgauge.core.provenance import environment
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.base import CachedModel, skeleton_of
from draftgauge.models.device import upload
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


EXPERT_TOKENS = 1024  # of a text, for which it is looked up which experts they go to


@torch.inference_mode()
def experts_read(target: CachedModel, text: Sequence[int], most: int) -> tuple[float, ...]:
    """``[most]`` how many different experts a layer reads in a pass over 1, 2, ... consecutive tokens of a text.

    It is the mean over passes and layers with experts, and empty where no layer has any. The target's cache is emptied.
    Where a token goes follows from the text before it, however many tokens a pass takes in: one pass tells of all.
    """
    chosen: list[Tensor] = []  # [T, experts a token] of each layer

    def note(router: nn.Module, inputs: Any, output: Any) -> None:
        chosen.extend(part for part in output if isinstance(part, Tensor) and not part.is_floating_point())

    skeleton = skeleton_of(target)
    modules = () if skeleton is None else skeleton.modules()
    routers = [module for module in modules if type(module).__name__.endswith("Router")]
    tokens = text[: min(EXPERT_TOKENS, target.spec.context)]
    if not routers or len(tokens) < most:
        return ()
    with ExitStack() as hooks:
        for router in routers:
            hooks.enter_context(router.register_forward_hook(note))
        target.reset()
        target.forward(upload(list(tokens), target.spec.device), last_only=True)
        target.reset()
    used = [torch.zeros(len(ids), int(ids.max()) + 1).scatter_(1, ids.cpu(), 1) for ids in chosen if len(ids) >= most]
    counted = ([layer.unfold(0, count, 1).amax(-1).sum(-1).mean() for layer in used] for count in range(1, most + 1))
    return tuple(float(torch.stack(layers).mean()) for layers in counted if layers)
