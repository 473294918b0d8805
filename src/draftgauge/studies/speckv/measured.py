"""What the records measured: tokens per step and per second at each draft length, with intervals by resampling the 20
prompts. The cost of a step follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics.bootstrap import Comparison
from draftgauge.studies.speckv.records import COMPRESSIONS, GAMMAS, Mask, Records, Rows, of_compression

LONGEST, USUAL = max(GAMMAS), 4


def tokens_per_step_rows(records: Records) -> Rows:
    """Committed tokens over steps, at each compression (and all) and gamma."""
    rows: Rows = []
    for name, mask in of_compression(records.steps.compression):
        for gamma in GAMMAS:
            chosen = mask & (records.steps.gamma == gamma)
            value = _step_speed(records, chosen).interval()
            row = {"finding": "tokens_per_step", "compression": name, "gamma": gamma, "steps": int(chosen.sum())}
            rows.append(row | {"tokens_per_step": value.estimate, "low": value.low, "high": value.high})
    return rows


def speed_rows(records: Records) -> Rows:
    """``tokens_per_second``: mean over prompts at each compression and gamma; ``best`` marks the fastest gamma.
    ``always_8``: percent that drafting 8 tokens gains over the fastest gamma and over 4, negative if it costs."""
    rows: Rows = []
    for c, name in enumerate(COMPRESSIONS):
        best = best_gamma(records, c)
        for gamma in GAMMAS:
            speed = speed_by_prompt(records, c, gamma)
            value = speed.interval()
            row = {"finding": "tokens_per_second", "compression": name, "gamma": gamma, "best": gamma == best}
            rows.append(row | {"tokens_per_second": value.estimate, "low": value.low, "high": value.high})
        always: dict[str, Any] = {"finding": "always_8", "compression": name, "best_gamma": best}
        for label, base in (("against_best", best), ("against_4", USUAL)):
            always |= in_percent(label, speed_gain(records, c, base))
        rows.append(always)
    return rows


def in_percent(label: str, gain: Comparison) -> dict[str, float]:
    return {f"{label}_percent": 100 * gain.estimate, f"{label}_low": 100 * gain.low, f"{label}_high": 100 * gain.high}


def best_gamma(records: Records, compression: int) -> int:
    return max(GAMMAS, key=lambda gamma: speed_by_prompt(records, compression, gamma).estimate)


def speed_by_prompt(records: Records, compression: int, gamma: int) -> Speed:
    """Measured tokens of each prompt in a second."""
    runs = records.runs
    chosen = (runs.compression == compression) & (runs.gamma == gamma)
    if len(np.unique(runs.prompt[chosen])) < records.prompts:
        raise DraftgaugeError(
            f"some prompt has no run of {COMPRESSIONS[compression]} with gamma {gamma}: complete the tables"
        )
    speed = np.empty(records.prompts)
    speed[runs.prompt[chosen]] = runs.tokens_per_second[chosen]
    return Speed(speed, np.ones(records.prompts))


def speed_gain(records: Records, compression: int, base: int) -> Comparison:
    return speed_by_prompt(records, compression, LONGEST).over(speed_by_prompt(records, compression, base)).gain


def step_gain(records: Records, mask: Mask) -> Comparison:
    """Gain in tokens per step of always 8 over always 4, paired by prompt, in the steps of the mask ``[S]``."""
    long, short = (_step_speed(records, mask & (records.steps.gamma == gamma)) for gamma in (LONGEST, USUAL))
    return long.over(short).gain


def _step_speed(records: Records, chosen: Mask) -> Speed:
    """Tokens over steps by prompt."""
    return Speed(records.by_prompt(records.steps.tokens, chosen), records.by_prompt(np.ones(len(chosen)), chosen))


def cost_rows(records: Records) -> Rows:
    """What a step costs by compression: ``seconds = steps x t_verify + drafted tokens x t_draft``, in milliseconds.

    Least squares of relative errors over the 80 runs of each; the last step of a run counts with what it really
    drafted. A constant for reading the prompt comes out between -4 and 19 ms and leaves the residuals as they are, so
    there is none. ``residual_percent`` is the root mean square error of the runs' times, ``worst_residual_percent`` the
    largest.
    """
    rows: Rows = []
    for compression, name in enumerate(COMPRESSIONS):
        chosen = records.runs.compression == compression
        seconds = records.runs.seconds[chosen]
        counts = np.column_stack([records.runs.steps[chosen], records.runs.drafted[chosen]]).astype(np.float64)
        verify, draft = np.linalg.lstsq(counts / seconds[:, None], np.ones(len(seconds)))[0]
        errors = counts @ [verify, draft] - seconds
        rows.append(
            {
                "finding": "cost",
                "compression": name,
                "draft_ms": 1e3 * draft,
                "verify_ms": 1e3 * verify,
                "cost_ratio": draft / verify,
                "residual_percent": 100 * float(np.sqrt(np.mean((errors / seconds) ** 2))),
                "worst_residual_percent": 100 * float(np.abs(errors / seconds).max()),
                "r_squared": float(1 - (errors**2).sum() / ((seconds - seconds.mean()) ** 2).sum()),
            }
        )
    return rows
