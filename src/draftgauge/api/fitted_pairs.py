"""Whether a fitted policy runs on the pair that it was fitted on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from draftgauge.policies.batches import SHARED_BUDGET
from draftgauge.policies.fitted import FITTED_SUFFIX, load_fitted
from draftgauge.traces.manifest import Manifest

PAIR = "pair"
"""Key of a fitted policy's provenance: fingerprints of target and draft."""

Fingerprints = Mapping[str, str | None]


def fitted_files(specs: Iterable[str]) -> dict[str, Path]:
    """The files among specs of policies, by spec."""
    return {spec: Path(spec.removeprefix(f"{SHARED_BUDGET}:")) for spec in specs if spec.endswith(FITTED_SUFFIX)}


def fingerprints_of(manifest: Manifest) -> dict[str, str | None]:
    """Which models a run was recorded with; as :meth:`draftgauge.api.pair.Pair.fingerprints` of a loaded pair."""
    draft = None if manifest.draft is None else manifest.draft.fingerprint
    return {"target": manifest.target.fingerprint, "draft": draft}


def warn_of_other_pairs(specs: Iterable[str], pair: Fingerprints, on_warning: Callable[[str], None]) -> None:
    """Warn of fitted policies whose chances are those of another target or draft.

    Args:
        specs: of policies; those that are no files, and files that do not say which pair they are of, are passed over.
        pair: on which they run.
        on_warning: told of each.
    """
    for spec, file in fitted_files(specs).items():
        fitted = load_fitted(file).provenance
        theirs = fitted.get(PAIR)
        if theirs is not None and theirs != dict(pair):
            on_warning(
                f"{spec} was fitted on another pair ({fitted.get('target')} and {fitted.get('draft') or 'no model'}): "
                "its chances of acceptance are of that one; fit it on a run of this pair"
            )
