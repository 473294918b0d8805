"""Recorded runs with what is judged on them: policies, designs and verdicts. No model is loaded, and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.table import Rows
from draftgauge.judging.fitting import FITTED, replay_fitted
from draftgauge.judging.replay import Replay
from draftgauge.judging.splits import Design, design_of, fitted_on, warn_of_other_pairs, warn_of_seen
from draftgauge.policies.fitted import FITTED_SUFFIX, is_fitted, load_fitted
from draftgauge.policies.spec import PolicySpec, compared_policies
from draftgauge.policies.two_source import TWO_SOURCE
from draftgauge.traces import run as recorded
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace


class Run(recorded.Run):
    """A recorded run by its folder: ``Run.load("runs/x")``. What it holds is read when first asked for, and kept.

    Attributes:
        folder: where it lies.
        manifest: how it was recorded.
        trace: the dense trace, see :class:`~draftgauge.traces.trace.Trace`.
        costs: the cost curve, see :class:`~draftgauge.traces.costs.CostCurve`.
        prompts: that were recorded.
    """

    def replay(self, **settings: Any) -> Rows:
        """Rows of :func:`draftgauge.replay` on this run, with its settings as keywords."""
        from draftgauge.api.replay import replay

        return replay(folder=self.folder, **settings)

    @property
    def verdict(self) -> str:
        """Whether to draft and with what, in words, as ``replay`` without settings says."""
        return str(next(row["verdict"] for row in self.replay() if row.get("verdict")))

    def usual_policies(self, fitting: bool = True) -> tuple[str, ...]:
        """Those compared, and what lies fitted in the folder; if ``fitting`` only for drafts as long as the run's."""
        files = [path for path in sorted(self.folder.glob(f"*{FITTED_SUFFIX}")) if is_fitted(path)]
        longest = self.manifest.gamma_max
        kept = (str(path) for path in files if not fitting or load_fitted(path).gamma_max == longest)
        return (*compared_policies(), *kept)

    def design(self, policies: Sequence[PolicySpec], trace: Trace, split: str | None) -> Design:
        """The prompts of ``trace`` to judge policies on; warns of those fitted on another pair or on these prompts."""
        design = design_of(trace, split, fitted_on(policies))
        warn_of_other_pairs(policies, self.fingerprints)
        warn_of_seen(self.folder, design, policies)
        return design


def fitted_here(policies: Sequence[PolicySpec], design: Design, costs: CostCurve) -> dict[str, Replay]:
    """``two-source`` as it would do once it is fitted to the pair; nothing where a file is, or where it cannot be."""
    with suppress(DraftgaugeError):
        if not any(policy.name == TWO_SOURCE and policy.of_file for policy in policies):
            return {FITTED: replay_fitted(design, costs)}
    return {}
