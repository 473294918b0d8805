"""The policies by name: what ``--policy`` and the Python API take."""

from __future__ import annotations

from pathlib import Path

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.registry import Registry
from draftgauge.policies.base import Policy, StepCosts
from draftgauge.policies.checks import check_threshold, check_tokens
from draftgauge.policies.confidence import ConfidenceThreshold, CumulativeConfidence
from draftgauge.policies.field import FIELD
from draftgauge.policies.fitted import FITTED_SUFFIX, fitted_policy, load_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.hf_confidence import AdaptiveConfidenceThreshold
from draftgauge.policies.hf_heuristic import HuggingFaceHeuristic

POLICIES: Registry[Policy] = Registry("policy", supplied=("costs",))
"""Factories whose parameters are those of a spec; each takes ``gamma_max`` and ``costs``, which the caller knows, by these names."""


def make_policy(spec: str, gamma_max: int, costs: StepCosts | None = None) -> Policy:
    """A new policy from its spec, e.g. ``none``, ``fixed:4``, ``hf-confidence:threshold=0.4,adaptive=true``, or from a fitted file.

    Policies hold state, some of it across prompts: make a new one for every run and replay.

    Args:
        spec: a name in :data:`POLICIES`, then its parameters; or the path of a file that ``draftgauge fit`` wrote (ending ``.json``).
        gamma_max: the longest draft possible; no policy's ``limit`` exceeds it. A spec may set a lower one
            (``hf-heuristic:gamma_max=8``).
        costs: of the pair on this machine, for the policies that weigh cost.

    Raises:
        DraftgaugeError: for an unknown policy (naming the known ones), a parameter it does not have or cannot take, or a policy
            that weighs cost without a cost curve.
    """
    if gamma_max < 1:
        raise DraftgaugeError(f"gamma_max is the longest draft and must be at least 1, not {gamma_max}")
    if spec.endswith(FITTED_SUFFIX):
        return fitted_policy(load_fitted(Path(spec)), gamma_max, costs)
    name, arguments = POLICIES.parse(spec)
    lower = arguments.get("gamma_max", gamma_max)
    if not 1 <= lower <= gamma_max:
        raise DraftgaugeError(f"policy {spec}: gamma_max must be 1 to {gamma_max}, the longest draft here, not {lower}")
    if costs is None and POLICIES.takes(name, "costs"):
        raise DraftgaugeError(
            f"policy {name} weighs the cost of a step: give the pair's cost curve (`draftgauge profile` measures it)"
        )
    return POLICIES.create(spec, gamma_max=gamma_max, costs=costs)


def expand_policy(spec: str, gamma_max: int) -> list[str]:
    """The specs that a spec stands for: bare ``fixed`` for every length from 1 to ``gamma_max``, any other for itself."""
    return [f"fixed:{gamma}" for gamma in range(1, gamma_max + 1)] if spec == "fixed" else [spec]


@POLICIES.register("none")
def no_speculation() -> Policy:
    """Draft nothing: every step commits one token of the target's."""
    return FixedLength(0)


@POLICIES.register("fixed")
def fixed(gamma: int, gamma_max: int) -> Policy:
    """Draft ``gamma`` tokens at every step."""
    if not 0 <= gamma <= gamma_max:
        raise DraftgaugeError(f"policy fixed:{gamma}: gamma must be 0 to {gamma_max}, the longest draft here")
    return FixedLength(gamma)


@POLICIES.register("hf-heuristic")
def hf_heuristic(start: int = 20, persistent: bool = True, *, gamma_max: int) -> Policy:
    """Transformers' heuristic schedule."""
    check_tokens("hf-heuristic", "start", start)
    return HuggingFaceHeuristic(gamma_max, start, persistent)


@POLICIES.register("hf-confidence")
def hf_confidence(threshold: float = 0.4, tokens: int = 20, adaptive: bool = False, *, gamma_max: int) -> Policy:
    """Transformers' confidence threshold; its default with ``adaptive``, which it does where scikit-learn is installed."""
    check_threshold("hf-confidence", threshold)
    check_tokens("hf-confidence", "tokens", tokens)
    kind = AdaptiveConfidenceThreshold if adaptive else ConfidenceThreshold
    return kind(threshold, min(tokens, gamma_max))


@POLICIES.register("cumulative-confidence")
def cumulative_confidence(threshold: float = 0.4, *, gamma_max: int) -> Policy:
    """Draft on while the product of confidences reaches the threshold."""
    check_threshold("cumulative-confidence", threshold)
    return CumulativeConfidence(threshold, gamma_max)


for _name, _factory in FIELD.items():
    POLICIES.register(_name)(_factory)
