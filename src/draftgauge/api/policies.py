"""The policies that a verb was asked for. Each spec is read once, here; fitted files bring what they were fitted on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftgauge.api.runs import fingerprints_of
from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.judging.fitting.two_source import FITTED, replay_fitted
from draftgauge.judging.replay import Replay
from draftgauge.judging.splits import Design, design_of, prompt_keys
from draftgauge.policies.base import Policy
from draftgauge.policies.batch import WHOLE_BATCH
from draftgauge.policies.fitted import FITTED_SUFFIX, FittedPolicy, is_fitted, load_fitted, policy_of_file
from draftgauge.policies.registry import POLICIES, compared_policies, current_name, make_parsed, parse_spec, weighs_cost
from draftgauge.policies.two_source import TWO_SOURCE
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace

PAIR = "pair"
"""Key of a fitted policy's provenance: fingerprints of target and draft."""


@dataclass(frozen=True)
class NamedPolicy:
    """A policy by its spec: its name and arguments, or its numbers where the spec names a fitted file."""

    spec: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fitted: FittedPolicy | None = None

    @property
    def weighs_cost(self) -> bool:
        return self.name not in POLICIES or weighs_cost(self.name)

    def make(self, gamma_max: int, costs: CostCurve | None, compression: str | None = None) -> Policy:
        """A new one; ``compression`` is the target's."""
        if self.fitted is None:
            return make_parsed(self.name, self.arguments, gamma_max, costs, compression)
        return policy_of_file(Path(self.spec), gamma_max, costs, self.fitted, compression or "")


def read_policies(specs: Iterable[str]) -> tuple[NamedPolicy, ...]:
    """The policies of these specs, each once."""
    policies = []
    for spec in dict.fromkeys(map(current_name, specs)):
        if spec in WHOLE_BATCH:
            raise DraftgaugeError(f"{spec} is for batches: profile with --batches 1,8, then replay with --batches 8")
        if spec.endswith(FITTED_SUFFIX):
            fitted = load_fitted(Path(spec))
            policies.append(NamedPolicy(spec, fitted.policy, fitted=fitted))
        else:
            policies.append(NamedPolicy(spec, *parse_spec(spec)))
    return tuple(policies)


def default_policies(run: Path, gamma_max: int | None = None) -> tuple[str, ...]:
    """Those compared, and what lies fitted in a run's folder; with ``gamma_max`` only for drafts that long."""
    files = [path for path in sorted(run.glob(f"*{FITTED_SUFFIX}")) if is_fitted(path)]
    return (*compared_policies(), *(str(path) for path in files if gamma_max in (None, load_fitted(path).gamma_max)))


def expanded(policies: Iterable[NamedPolicy], gamma_max: int) -> tuple[NamedPolicy, ...]:
    """Bare ``fixed`` as every length up to ``gamma_max``; all others as they are."""
    single: dict[str, NamedPolicy] = {}
    for policy in policies:
        if policy.spec == "fixed":
            lengths = range(1, gamma_max + 1)
            single |= {f"fixed:{n}": NamedPolicy(f"fixed:{n}", policy.name, {"gamma": n}) for n in lengths}
        else:
            single[policy.spec] = policy
    return tuple(single.values())


def fitted_on(policies: Sequence[NamedPolicy]) -> set[str]:
    return {key for policy in policies if policy.fitted is not None for key in policy.fitted.trained_on}


def fitted_here(policies: Sequence[NamedPolicy], design: Design, costs: CostCurve) -> dict[str, Replay]:
    """``two-source`` as it would do once it is fitted to the pair; nothing where a file is, or where it cannot be."""
    with suppress(DraftgaugeError):
        if not any(policy.name == TWO_SOURCE and policy.fitted is not None for policy in policies):
            return {FITTED: replay_fitted(design, costs)}
    return {}


def design_for(
    policies: Sequence[NamedPolicy], run: Path, manifest: Manifest, trace: Trace, split: str | None
) -> Design:
    """The prompts of a run to judge policies on; warns of those fitted on another pair, or on some of these prompts."""
    design = design_of(trace, split, fitted_on(policies))
    warn_of_other_pairs(policies, fingerprints_of(manifest))
    warn_of_seen(run, design, policies)
    return design


def warn_of_other_pairs(policies: Sequence[NamedPolicy], pair: Mapping[str, str | None]) -> None:
    """Warn of policies that were fitted on another target or draft than ``pair``, the fingerprints of these."""
    for policy in policies:
        fitted = {} if policy.fitted is None else policy.fitted.provenance
        if PAIR in fitted and fitted[PAIR] != dict(pair):
            warn(
                f"{policy.spec} was fitted on another pair ({fitted.get('target')} and "
                f"{fitted.get('draft') or 'no model'}): its chances of acceptance are of that one; fit it on a run of "
                "this pair"
            )


def warn_of_seen(run: Path, design: Design, policies: Sequence[NamedPolicy]) -> None:
    """Warn of policies that are evaluated on prompts that they were fitted on."""
    keys = set(prompt_keys(design.trace))
    for policy in policies:
        if policy.fitted is not None and (seen := len(keys.intersection(policy.fitted.trained_on))):
            warn(
                f"{policy.spec} was fitted on {seen} of the {len(keys)} prompts that it is evaluated on ({run}, split "
                f"{design.split!r}): what it gains there says little about other prompts"
            )
