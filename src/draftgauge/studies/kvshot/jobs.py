"""What runs somewhere: a cell, which trains a drafter and measures it; the result is left in a file."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from draftgauge.core.files import require_writable
from draftgauge.core.progress import Progress
from draftgauge.core.provenance import timestamp
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.evaluation import EvaluationPlan, evaluate_drafter
from draftgauge.diagnostics.limits import measure_bottlenecks
from draftgauge.drafters.reuse import load_drafter
from draftgauge.models.loading import end_tokens, load_tokenizer
from draftgauge.studies.kvshot.cells import DRAFTER_FOLDER, KEPT, RESULT_NAME, TEXTS_NAME, Cell
from draftgauge.studies.kvshot.held_out import read_texts
from draftgauge.training.reuse.data import load_target
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
        cell, request, began = self.cell, self.cell.request, time.monotonic()
        require_writable(cell.folder)
        if request.threads is not None:
            torch.set_num_threads(request.threads)

        def report(what: str, done: int, total: int) -> None:
            progress(f"{cell.name}: {what}", done, total)

        out = cell.folder / DRAFTER_FOLDER
        trained = train_drafter(request, out, report)
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
            "seconds": time.monotonic() - began,
            "evaluation": evaluation.to_json(),
            "bottlenecks": limits.to_json(),
        }
        KEPT.write(cell.folder / RESULT_NAME, content)
