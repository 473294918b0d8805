"""The policies of papers and serving systems, by the names that specs use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from draftgauge.core.config import from_mapping
from draftgauge.core.signals import NO_SIGNALS
from draftgauge.policies import specdec as specdec_plus_plus
from draftgauge.policies import speckv as speckv_live
from draftgauge.policies.acceptance_model import StoppingNumbers, cut, for_any_vocabulary
from draftgauge.policies.adaedl import AdaEDL, AdaEDLSettings
from draftgauge.policies.bandit import EpsilonGreedy
from draftgauge.policies.base import Policy, StepCosts, seconds_by_length
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.checks import check_lengths, check_positive, check_share, check_tokens
from draftgauge.policies.sglang_adaptive import AdaptiveSteps, AdaptiveStepsSettings
from draftgauge.policies.sglang_throughput import ThroughputAware
from draftgauge.policies.stopping import STOPPING, ThroughputStopping
from draftgauge.policies.svip import EntropyThreshold
from draftgauge.policies.vllm import AdaptiveVerification


def svip(threshold: float = 0.3, scale: float = 0.15, tokens: int = 40, *, gamma_max: int) -> Policy:
    """Stop at a high draft entropy."""
    check_positive("svip", "threshold", threshold)
    check_positive("svip", "scale", scale)
    check_tokens("svip", "tokens", tokens)
    return EntropyThreshold(threshold, scale, min(tokens, gamma_max))


def adaedl(
    threshold: float = 0.6, factor: float = 0.2, target: float = 0.9, step: float = 0.01, *, gamma_max: int
) -> Policy:
    """Stop at a low entropy-based bound of acceptance, with a threshold that follows the acceptance rate."""
    check_share("adaedl", "threshold", threshold)
    check_positive("adaedl", "factor", factor)
    check_share("adaedl", "target", target)
    check_share("adaedl", "step", step)
    return AdaEDL(gamma_max, AdaEDLSettings(threshold, factor, target, step))


def specdec(threshold: float = 0.7, minimum: int = 2, *, gamma_max: int) -> Policy:
    """Stop at a high predicted chance of a rejection; the head is the bundled one."""
    fitted = bundled_policy(specdec_plus_plus.NAME)
    head = from_mapping(specdec_plus_plus.AcceptanceHead, fitted.parameters, "bundled policy")
    return specdec_plus_plus.SpecDecPlusPlus(
        replace(head, threshold=threshold, minimum=minimum), min(gamma_max, fitted.gamma_max)
    )


def speckv(
    reading: speckv_live.Reading = "previous", compression: speckv_live.Compression = "none", *, gamma_max: int
) -> Policy:
    """The length with the highest predicted tokens per step; the networks are the bundled ones."""
    fitted = bundled_policy(speckv_live.NAME)
    numbers = from_mapping(speckv_live.SpecKVNumbers, fitted.parameters, "bundled policy")
    return speckv_live.make_speckv(replace(numbers, reading=reading, compression=compression), gamma_max)


def stopping(horizon: int = 8, online: bool = False, *, gamma_max: int, costs: StepCosts) -> Policy:
    """Throughput-optimal stopping; the models of acceptance are the bundled ones, which know the bundled pair's tokens one by one."""
    check_tokens("stopping", "horizon", horizon)
    fitted = bundled_policy(STOPPING)
    numbers = from_mapping(StoppingNumbers, fitted.parameters, "bundled policy")
    longest = min(gamma_max, fitted.gamma_max)
    if numbers.vocabulary != costs.vocabulary:
        numbers = for_any_vocabulary(numbers)
    shorter = cut(numbers, longest)
    return ThroughputStopping(replace(shorter, horizon=horizon, online=online), longest, costs)


def sglang_adaptive(
    candidates: tuple[int, ...] = (1, 3, 7),
    start: int = 3,
    smoothing: float = 0.2,
    warm_up: int = 10,
    every: int = 5,
    down: float = -0.25,
    up: float = 0.0,
    *,
    gamma_max: int,
) -> Policy:
    """Move along candidate lengths with the smoothed number of accepted tokens."""
    name = "sglang-adaptive"
    check_share(name, "smoothing", smoothing)
    check_tokens(name, "warm_up", warm_up, least=0)
    check_tokens(name, "every", every)
    # As in SGLang, the first length joins the candidates.
    lengths = check_lengths(name, "candidates and start", (*candidates, start), gamma_max)
    return AdaptiveSteps(lengths, min(start, gamma_max), AdaptiveStepsSettings(smoothing, warm_up, every, down, up))


def sglang_throughput(
    candidates: tuple[int, ...] = (1, 3, 5, 7),
    start: int = 3,
    window: int = 20,
    every: int = 5,
    hysteresis: float = 0.1,
    *,
    gamma_max: int,
    costs: StepCosts,
) -> Policy:
    """Take the candidate length with the most expected tokens per second, from windowed acceptance by depth."""
    name = "sglang-throughput"
    check_tokens(name, "window", window)
    check_tokens(name, "every", every)
    check_share(name, "hysteresis", hysteresis)
    lengths = check_lengths(name, "candidates and start", (*candidates, start), gamma_max)
    seconds = seconds_by_length(costs, lengths[-1], NO_SIGNALS).tolist()
    return ThroughputAware(lengths, min(start, gamma_max), seconds, window, every, hysteresis)


def vllm(tokens: int = 7, refit: int = 100, warm_up: int = 3, *, gamma_max: int, costs: StepCosts) -> Policy:
    """Draft on while the expected tokens per second rise, by survival chances learned while running."""
    check_tokens("vllm", "tokens", tokens)
    check_tokens("vllm", "refit", refit)
    check_tokens("vllm", "warm_up", warm_up, least=0)
    gamma = min(tokens, gamma_max)
    return AdaptiveVerification(
        gamma, seconds_by_length(costs, gamma, AdaptiveVerification.reads).tolist(), refit, warm_up
    )


def bandit(
    arms: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8),
    epsilon: float = 0.1,
    seed: int = 0,
    *,
    gamma_max: int,
    costs: StepCosts,
) -> Policy:
    """Draft the length with the most tokens per second so far, and now and then any."""
    check_share("bandit", "epsilon", epsilon)
    check_tokens("bandit", "seed", seed, least=0)
    lengths = check_lengths("bandit", "arms", arms, gamma_max, least=0)
    return EpsilonGreedy(lengths, seconds_by_length(costs, lengths[-1], NO_SIGNALS).tolist(), epsilon, seed)


FIELD: dict[str, Callable[..., Policy]] = {
    STOPPING: stopping,
    "svip": svip,
    "adaedl": adaedl,
    specdec_plus_plus.NAME: specdec,
    speckv_live.NAME: speckv,
    "sglang-adaptive": sglang_adaptive,
    "sglang-throughput": sglang_throughput,
    "vllm": vllm,
    "bandit": bandit,
}
"""Their factories, for the registry of policies."""
