"""Makes docs/results/confidence-head.json: does a confidence head know better than the drafter's own probability which
drafted tokens are accepted?

    python benchmarks/confidence_head.py --work confidence

A block-wise ``hidden`` drafter with a Markov head, trained for the bundled target as those of ``study kvshot --preset
short-block``, with and without a confidence head, two seeds, and recorded on 96 test prompts. Half an hour on two
cores; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, save, show_progress
from sklearn.metrics import log_loss, roc_auc_score

from draftgauge.api.profile import profile
from draftgauge.core.prompts import TEST
from draftgauge.judging.fitting import judged_tokens
from draftgauge.models.folder import REFERENCE
from draftgauge.studies.kvshot.presets import make_study
from draftgauge.traces.run import read_trace
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter

DRAFTER: dict[str, Any] = {"recipe": "block", "reuse": "hidden", "markov_rank": 64, "dflash": False}
SEEDS, DEPTHS = (0, 1), 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for answers, drafters and runs")
    work: Path = parser.parse_args().work
    shared = make_study("short-block", TrainingSpec(target=REFERENCE)).request
    shared = replace(shared, **DRAFTER, answers=work / "answers.jsonl", cache=work / "features")
    rows = []
    for seed in SEEDS:
        for head in (False, True):
            out = work / f"{'head' if head else 'probability'}-{seed}"
            trained = train_drafter(replace(shared, seed=seed, confidence_head=head), out / "drafter", show_progress)
            profile(
                drafter=str(out / "drafter"),
                out=out / "run",
                split=TEST,
                per_task=24,
                max_new_tokens=64,
                gamma_max=DEPTHS,
                cost_seconds=5,
                progress=show_progress,
            )
            rows.append({"confidence_head": head, "seed": seed, "train_tokens": trained.tokens} | judged(out / "run"))
    save(RESULTS, "confidence-head.json", rows)


def judged(run: Path) -> dict[str, Any]:
    """How well the confidence in a drafted token says whether it is accepted, where those before it were."""
    trace = read_trace(run)
    of = judged_tokens(trace)
    accepted = (np.arange(1, trace.gamma_max + 1) <= trace.accepted[:, None])[of]
    confidence = trace.confidence[of].astype(np.float64)
    return {
        "prompts": len(trace.prompts),
        "judged_tokens": int(of.sum()),
        "accepted": float(accepted.mean()),
        "mean_confidence": float(confidence.mean()),
        "roc_auc": float(roc_auc_score(accepted, confidence)),
        "log_loss": float(log_loss(accepted, np.clip(confidence, 1e-4, 1 - 1e-4))),
        "tokens_per_step": float(1 + trace.accepted.mean()),  # over all positions, drafts of seven
    }


if __name__ == "__main__":
    main()
