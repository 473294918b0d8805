"""The policies that a verb was asked for. Each spec is read once, here; fitted files bring what they were fitted on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftgauge.api.runs import Warn
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FITTED_SUFFIX, FittedPolicy, is_fitted, load_fitted, policy_of_file
from draftgauge.policies.registry import (
    POLICIES,
    compared_policies,
    current_name,
    expand_policy,
    make_policy,
    weighs_cost,
)
from draftgauge.replaying.splits import Design, prompt_keys
from draftgauge.traces.costs import CostCurve

PAIR = "pair"
"""Key of a fitted policy's provenance: fingerprints of target and draft."""


@dataclass(frozen=True)
class NamedPolicy:
    """A policy by its spec, with its numbers where the spec names a fitted file."""

    spec: str
    fitted: FittedPolicy | None = None

    @property
    def weighs_cost(self) -> bool:
        if self.fitted is None:
            return weighs_cost(self.spec)
        return self.fitted.policy not in POLICIES or weighs_cost(self.fitted.policy)

    def make(self, gamma_max: int, costs: CostCurve | None) -> Policy:
        if self.fitted is None:
            return make_policy(self.spec, gamma_max, costs)
        return policy_of_file(Path(self.spec), gamma_max, costs, self.fitted)


def read_policies(specs: Iterable[str]) -> tuple[NamedPolicy, ...]:
    """The policies of these specs, each once."""
    policies = []
    for spec in dict.fromkeys(map(current_name, specs)):
        if spec.endswith(FITTED_SUFFIX):
            policies.append(NamedPolicy(spec, load_fitted(Path(spec))))
        else:
            POLICIES.parse(spec)
            policies.append(NamedPolicy(spec))
    return tuple(policies)


def default_policies(run: Path) -> tuple[str, ...]:
    return (*compared_policies(), *sorted(str(path) for path in run.glob(f"*{FITTED_SUFFIX}") if is_fitted(path)))


def expanded(policies: Iterable[NamedPolicy], gamma_max: int) -> tuple[NamedPolicy, ...]:
    single = {spec: policy for policy in policies for spec in expand_policy(policy.spec, gamma_max)}
    return tuple(replace(policy, spec=spec) for spec, policy in single.items())


def fitted_on(policies: Sequence[NamedPolicy]) -> set[str]:
    return {key for policy in policies if policy.fitted is not None for key in policy.fitted.trained_on}


def warn_of_other_pairs(policies: Sequence[NamedPolicy], pair: Mapping[str, str | None], on_warning: Warn) -> None:
    """Warn of policies that were fitted on another target or draft than ``pair``, the fingerprints of these."""
    for policy in policies:
        fitted = {} if policy.fitted is None else policy.fitted.provenance
        if PAIR in fitted and fitted[PAIR] != dict(pair):
            on_warning(
                f"{policy.spec} was fitted on another pair ({fitted.get('target')} and "
                f"{fitted.get('draft') or 'no model'}): its chances of acceptance are of that one; fit it on a run of "
                "this pair"
            )


def warn_of_seen(run: Path, design: Design, policies: Sequence[NamedPolicy], on_warning: Warn) -> None:
    """Warn of policies that are evaluated on prompts that they were fitted on."""
    keys = set(prompt_keys(design.trace))
    for policy in policies:
        seen = 0 if policy.fitted is None else len(keys.intersection(policy.fitted.trained_on))
        if seen:
            on_warning(
                f"{policy.spec} was fitted on {seen} of the {len(keys)} prompts that it is evaluated on ({run}, split "
                f"{design.split!r}): what it gains there says little about other prompts"
            )
