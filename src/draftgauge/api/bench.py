"""Policies and baselines live, interleaved prompt by prompt: A B C A B C ..., in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.api.baselines import ASSISTED, ASSISTED_CONSTANT, GENERATE, TransformersBaseline
from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.profile_plan import choose_prompts, encode_prompts
from draftgauge.api.replay import best_gamma_of
from draftgauge.api.requests import BenchRequest
from draftgauge.api.runs import load_pair_of, prompts_of, read_run, select_runs
from draftgauge.api.verb import verb
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress, silent
from draftgauge.core.settings import get_setting, settings_of
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.policies.base import Policy
from draftgauge.policies.registry import compared_policies, expand_policy, make_policy
from draftgauge.replay.splits import TEST, design_of
from draftgauge.statistics.bootstrap import RESAMPLES
from draftgauge.statistics.paired import paired_gain, ratio_interval
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest

PLAIN = "plain"
DEFAULT_CONSTANT = 5
ADAPTIVE = compared_policies(with_costs=False)
UNMEASURED = ("none", "fixed:2", "fixed:4", "fixed:6", *ADAPTIVE)  # without a recorded run of this drafter
SETTLED = ("target", "draft", "compression", "prompts", "max_new_tokens", "gamma_max")  # by the manifest of a run


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt ready to decode."""

    tokens: list[int]
    task: str


@dataclass(frozen=True)
class ArmRun:
    """One prompt decoded once: committed tokens, target passes (0 if unknown), decoding seconds of ``timed`` tokens."""

    tokens: list[int]
    steps: int
    timed: int
    seconds: float
    prefill_seconds: float


@dataclass
class Arm:
    """One way of decoding, with all its runs by prompt and round."""

    name: str
    decode: Callable[[list[int]], ArmRun]
    runs: list[list[ArmRun]] = field(default_factory=list)


def plain_arm(pair: Pair, settings: DecodingSettings) -> Arm:
    """Plain decoding with the pair's engine: what every output and speed is compared with."""

    def decode(prompt: list[int]) -> ArmRun:
        g = plain_decode(pair.target, prompt, settings)
        return ArmRun(g.tokens, len(g.steps), len(g.tokens), g.decode_seconds, g.prefill_seconds)

    return Arm(PLAIN, decode)


def policy_arm(pair: Pair, name: str, policy: Policy, settings: DecodingSettings) -> Arm:
    """Speculative decoding under a policy."""
    drafter = pair.drafter()

    def decode(prompt: list[int]) -> ArmRun:
        g = speculative_decode(pair.target, drafter, policy, prompt, settings)
        return ArmRun(g.tokens, len(g.steps), len(g.tokens), g.decode_seconds, g.prefill_seconds)

    return Arm(name, decode)


def transformers_arms(pair: Pair, max_new_tokens: int, gamma: int = DEFAULT_CONSTANT) -> list[Arm]:
    """``generate()`` plain, assisted at its defaults, and assisted at a constant length."""
    baselines = [TransformersBaseline(pair, GENERATE)]
    if pair.draft is not None:
        baselines += [TransformersBaseline(pair, ASSISTED), TransformersBaseline(pair, ASSISTED_CONSTANT, gamma)]

    def arm(baseline: TransformersBaseline) -> Arm:
        def decode(prompt: list[int]) -> ArmRun:
            r = baseline.run(prompt, max_new_tokens)
            return ArmRun(r.tokens, 0, max(len(r.tokens) - r.first_tokens, 0), r.decode_seconds, r.prefill_seconds)

        return Arm(f"{baseline.name}:{gamma}" if baseline.name == ASSISTED_CONSTANT else baseline.name, decode)

    return [arm(b) for b in baselines]


def bench_arms(
    arms: Sequence[Arm], prompts: Sequence[BenchPrompt], rounds: int, progress: Progress, label: str
) -> None:
    """Decode every prompt with every arm, arm after arm within a prompt, ``rounds`` times; fills the arms' runs.

    All arms decode the first prompt once beforehand, which is not counted.
    """
    if rounds < 1:
        raise DraftgaugeError(f"rounds must be at least 1, not {rounds}")
    for arm in arms:
        arm.decode(prompts[0].tokens)
        arm.runs = [[] for _ in prompts]
    done, total = 0, rounds * len(prompts)
    progress(label, 0, total)
    for _ in range(rounds):
        for number, prompt in enumerate(prompts):
            for arm in arms:
                arm.runs[number].append(arm.decode(prompt.tokens))
            done += 1
            progress(label, done, total)


def bench_rows(
    arms: Sequence[Arm], prompts: Sequence[BenchPrompt], compression: str, best_fixed: str | None = None
) -> list[dict[str, Any]]:
    """One flat row for every arm and task (and ``all``); the arm named ``plain`` must be among them.

    Rows hold ``policy, compression, task, prompts, tokens_per_step, tokens_per_second`` (with
    ``_low`` and ``_high``), ``ratio_to_plain`` (median of the
    interleaved pairs with its 95% interval over prompts), ``ratio_to_best_transformers``, ``mismatches`` (positions
    whose token is not plain decoding's), ``mismatched_prompts`` and ``prefill_seconds``. With ``best_fixed``, the name
    of the arm of the best fixed length, also ``best_fixed`` and ``gain`` (with ``_low``, ``_high``): tokens per second
    over that arm's, minus 1, resampled by prompt.
    """
    plain = next(arm for arm in arms if arm.name == PLAIN)
    fixed = next((arm for arm in arms if arm.name == best_fixed), None)
    tasks = [*dict.fromkeys(p.task for p in prompts), "all"]
    rows = []
    for task in tasks if len(tasks) > 2 else [*tasks[:1], "all"]:
        chosen = [n for n, p in enumerate(prompts) if task in (p.task, "all")]
        outside = [arm for arm in arms if arm.name.startswith("transformers")]
        best = max(outside, key=lambda arm: _speed(arm, chosen)[0], default=None)
        for arm in arms:
            row = {"policy": arm.name, "compression": compression, "task": task, "prompts": len(chosen)}
            row |= _figures(arm, plain, best, chosen)
            row |= {} if fixed is None else _gain(arm, fixed, chosen)
            rows.append(row)
    return rows


def _figures(arm: Arm, plain: Arm, best: Arm | None, chosen: list[int]) -> dict[str, Any]:
    steps = sum(arm.runs[n][0].steps for n in chosen)
    differing = [_mismatches(arm.runs[n][0].tokens, plain.runs[n][0].tokens) for n in chosen]
    speed, low, high = _speed(arm, chosen)
    ratio, ratio_low, ratio_high = _paired_ratio(arm, plain, chosen)
    return {
        "tokens_per_step": sum(len(arm.runs[n][0].tokens) for n in chosen) / steps if steps else None,
        "tokens_per_second": speed,
        "tokens_per_second_low": low,
        "tokens_per_second_high": high,
        "ratio_to_plain": ratio,
        "ratio_to_plain_low": ratio_low,
        "ratio_to_plain_high": ratio_high,
        "ratio_to_best_transformers": _paired_ratio(arm, best, chosen)[0] if best is not None else None,
        "best_transformers": best.name if best is not None else None,
        "mismatches": sum(differing),
        "mismatched_prompts": sum(d > 0 for d in differing),
        "prefill_seconds": float(np.median([r.prefill_seconds for n in chosen for r in arm.runs[n]])),
    }


def _gain(arm: Arm, fixed: Arm, chosen: list[int]) -> dict[str, Any]:
    gain = paired_gain(*_timed(arm, chosen), *_timed(fixed, chosen))
    return {"best_fixed": fixed.name, "gain": gain.estimate, "gain_low": gain.low, "gain_high": gain.high}


def _mismatches(tokens: list[int], reference: list[int]) -> int:
    """Positions at which two outputs differ; missing ones differ too."""
    return sum(a != b for a, b in zip(tokens, reference, strict=False)) + abs(len(tokens) - len(reference))


def _speed(arm: Arm, chosen: list[int]) -> tuple[float, float, float]:
    """Tokens per second with its interval over prompts; the median of the rounds stands for each prompt."""
    return ratio_interval(*_timed(arm, chosen))


def _timed(arm: Arm, chosen: list[int]) -> tuple[list[int], list[float]]:
    """Timed tokens and seconds of each prompt, the median of its rounds."""
    return [arm.runs[n][0].timed for n in chosen], [float(np.median([r.seconds for r in arm.runs[n]])) for n in chosen]


def _paired_ratio(arm: Arm, other: Arm, chosen: list[int]) -> tuple[float, float, float]:
    """Median over prompts and rounds of one arm's speed over the other's in the same round, with a 95% interval over prompts."""
    ratios = np.array(
        [[_per_second(a) / _per_second(b) for a, b in zip(arm.runs[n], other.runs[n], strict=True)] for n in chosen]
    )
    draws = np.random.default_rng(0).integers(0, len(chosen), (RESAMPLES, len(chosen)))
    medians = np.nanmedian(ratios[draws].reshape(RESAMPLES, -1), axis=1)
    low, high = np.nanquantile(medians, [0.025, 0.975])
    return float(np.nanmedian(ratios)), float(low), float(high)


def _per_second(run: ArmRun) -> float:
    return run.timed / run.seconds if run.timed and run.seconds else float("nan")


def default_policies(manifest: Manifest, folder: Path) -> list[str]:
    """Without a choice: the best fixed length of the recorded run, with a shorter and a longer one, and the simple adaptive policies."""
    best = max(1, best_gamma_of(folder))
    near = sorted({max(1, best - 2), best, min(manifest.gamma_max, best + 2)})
    return ["none", *(f"fixed:{g}" for g in near), *ADAPTIVE]


@verb(BenchRequest)
def bench(request: BenchRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Bench policies live: on the pair and the prompts of recorded runs, or on a pair of which nothing has been
    recorded.

    Args:
        request: what to bench. With a run, its manifest names the pair, the prompts and the lengths, and only what is
            chosen among them may be asked for; test prompts are, where its prompts name training and test ones.
        progress: told (what, done, total).

    Returns:
        Rows as :func:`bench_rows` describes. Of a recorded run its best fixed length, chosen on training prompts where
        there are any, always runs.

    Raises:
        DraftgaugeError: for unknown policies, models that are not those of the trace, a trace of sampled decoding, or
            prompts or models that cannot be used.
    """
    if request.folder is None:
        return [row for name in request.pair.compression for row in _bench_pair(request, name, progress)]
    _check_given(request, request.folder)
    return [
        row for run, manifest in select_runs(request.folder) for row in _bench_run(request, run, manifest, progress)
    ]


def _check_given(request: BenchRequest, folder: Path) -> None:
    """Refuse what a recorded run settles itself."""
    settled = {
        entry.name: (value, entry.default)
        for entry in settings_of(BenchRequest)
        if entry.name in SETTLED
        for value in [get_setting(request, entry)]
    }
    given = [f"--{name.replace('_', '-')}" for name, (value, default) in settled.items() if value != default]
    if given:
        raise DraftgaugeError(
            f"the recorded run in {folder} has its own pair and prompts: leave out {', '.join(given)}, or the run"
        )


def _bench_run(request: BenchRequest, run: Path, manifest: Manifest, progress: Progress) -> list[dict[str, Any]]:
    if manifest.temperature > 0:
        raise DraftgaugeError(
            f"{run} holds a trace of sampled decoding (temperature {manifest.temperature:g}), and bench decodes greedily, "
            "to compare outputs token by token: name a run recorded at temperature 0, or `draftgauge replay` this one"
        )
    recorded = request.pair.drafter is None
    trace, costs = read_run(run)
    specs = request.policies or (default_policies(manifest, run) if recorded else UNMEASURED)
    policies, best_fixed = _made(specs, manifest.gamma_max, costs if recorded else None), None
    if recorded:
        best_fixed = f"fixed:{gamma}" if (gamma := best_gamma_of(run)) else "none"
        policies.setdefault(best_fixed, make_policy(best_fixed, manifest.gamma_max))
    judged = request.prompts.split or (TEST if design_of(trace).split == TEST else None)
    pair = load_pair_of(manifest, request.pair)
    prompts = [
        BenchPrompt(tokens, prompt.task)
        for prompt, tokens in prompts_of(run, manifest, pair, replace(request.prompts, split=judged))
    ]
    return _bench(request, pair, prompts, policies, manifest.max_new_tokens, progress, best_fixed)


def _bench_pair(request: BenchRequest, compression: str, progress: Progress) -> list[dict[str, Any]]:
    length = request.output.max_new_tokens
    policies = _made(request.policies or UNMEASURED, request.drafts.gamma_max)
    path, chosen = choose_prompts(request.prompts)
    pair = load_pair(request.pair.at(compression))
    encoded = encode_prompts(pair, chosen, path, length, request.prompts.long_prompts)
    prompts = [BenchPrompt(tokens, prompt.task) for prompt, tokens in encoded]
    return _bench(request, pair, prompts, policies, length, progress)


def _made(policies: Sequence[str], gamma_max: int, costs: CostCurve | None = None) -> dict[str, Policy]:
    specs = [spec for policy in policies for spec in expand_policy(policy, gamma_max)]
    return {spec: make_policy(spec, gamma_max, costs) for spec in specs}


def _bench(
    request: BenchRequest,
    pair: Pair,
    prompts: Sequence[BenchPrompt],
    policies: Mapping[str, Policy],
    max_new_tokens: int,
    progress: Progress,
    best_fixed: str | None = None,
) -> list[dict[str, Any]]:
    settings = DecodingSettings(max_new_tokens=max_new_tokens, end_tokens=pair.end_tokens)
    arms = [plain_arm(pair, settings), *(policy_arm(pair, spec, policy, settings) for spec, policy in policies.items())]
    arms += transformers_arms(pair, max_new_tokens) if request.baselines else []
    bench_arms(arms, prompts, request.rounds, progress, f"bench {pair.compression}")
    return bench_rows(arms, prompts, pair.compression, best_fixed)
