"""What runs somewhere: a cell, which trains a drafter and measures it; the result is left in a file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftgauge.core.config import to_mapping
from draftgauge.core.files import require_writable
from draftgauge.core.progress import Progress
from draftgauge.core.provenance import timestamp
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.evaluation import EvaluationPlan, evaluate_drafter
from draftgauge.diagnostics.limits import measure_bottlenecks
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import load_drafter, read_description, save_drafter
from draftgauge.models.base import CachedModel
from draftgauge.models.device import torch_threads
from draftgauge.models.loading import load_tokenizer
from draftgauge.models.vocabulary import end_tokens
from draftgauge.studies.kvshot.cells import CURVE_FOLDER, DRAFTER_FOLDER, KEPT, RESULT_NAME, TEXTS_NAME, Cell
from draftgauge.studies.kvshot.held_out import read_texts
from draftgauge.training.reuse.data import load_target
from draftgauge.training.reuse.steps import State
from draftgauge.training.reuse.tracking import read_history
from draftgauge.training.reuse.train import train_drafter

TRAINED = ("steps", "tokens", "seconds", "tokens_per_second", "loss")


@dataclass(frozen=True)
class CellJob:
    """A cell as the executor takes it."""

    cell: Cell

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def after(self) -> str | None:
        return self.cell.after

    def run(self, progress: Progress) -> None:
        """Train, evaluate, and leave the result in the cell's folder.

        An interrupted training resumes from its checkpoint, a finished one is not repeated.
        """
        with torch_threads(self.cell.request.threads):
            self._run(progress)

    def _run(self, progress: Progress) -> None:
        cell, request = self.cell, self.cell.request
        require_writable(cell.folder)

        def report(what: str, done: int, total: int) -> None:
            progress(f"{cell.name}: {what}", done, total)

        out = cell.folder / DRAFTER_FOLDER
        trained, began = train_drafter(request, out, report, watch=self._keep), time.monotonic()
        target = load_target(request)
        tokenizer = load_tokenizer(request.target, request.trust_remote_code)
        net = load_drafter(out, target)
        texts = read_texts(cell.study / TEXTS_NAME)
        plan = EvaluationPlan(
            depths=cell.depths,
            settings=DecodingSettings(cell.evaluation.max_new_tokens, end_tokens=end_tokens(target, tokenizer)),
            live=cell.evaluation.live_prompts,
            tree=cell.evaluation.tree_prompts,
            latency=cell.evaluation.latency_prompts,
        )
        evaluation = evaluate_drafter(net, target, texts, plan, report)
        probed = texts[: cell.evaluation.bottleneck_prompts]
        limits = measure_bottlenecks(net, target.module, probed, cell.depths, read_history(out), report)
        content = {
            "identity": cell.digest(),
            "created": timestamp(),
            "device": str(target.spec.device),
            "settings": cell.settings(),
            "training": {key: getattr(trained, key) for key in TRAINED},
            "seconds": trained.seconds + time.monotonic() - began,
            "evaluation": to_mapping(evaluation),
            "bottlenecks": to_mapping(limits),
            "curve": self._curve(target, texts[: cell.evaluation.curve_prompts], plan),
        }
        KEPT.write(cell.folder / RESULT_NAME, content)
        shutil.rmtree(cell.folder / CURVE_FOLDER, ignore_errors=True)

    def _keep(self, state: State, net: ReuseNet) -> None:
        if self.cell.evaluation.curve_prompts:
            so_far = {"tokens": state.tokens, "seconds": state.seconds}
            save_drafter(self.cell.folder / CURVE_FOLDER / f"{state.step:07d}", net, so_far)

    def _curve(self, target: CachedModel, texts: Sequence[HeldOutText], plan: EvaluationPlan) -> list[dict[str, Any]]:
        """What every checkpoint of the training reached, in order."""
        forced = replace(plan, live=0, tree=0, latency=0)
        points = []
        for folder in sorted((self.cell.folder / CURVE_FOLDER).glob("*")):
            found = to_mapping(evaluate_drafter(load_drafter(folder, target), target, texts, forced))
            counts = {key: found[key] for key in ("positions", "agreed", "accepted")}
            points.append(dict(read_description(folder)["extra"]) | counts)
        return points
