"""What a cell does, wherever it runs: train a drafter, measure it, leave the result in a file."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

import torch

from draftgauge.core.files import atomic_write_text, require_writable
from draftgauge.core.progress import Progress
from draftgauge.core.provenance import timestamp
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.distance import distance_names
from draftgauge.diagnostics.evaluation import EvaluationPlan, evaluate_drafter
from draftgauge.diagnostics.limits import measure_bottlenecks
from draftgauge.drafters.reuse import load_drafter
from draftgauge.models.loading import end_tokens, load_tokenizer
from draftgauge.studies.kvshot.cells import DRAFTER_FOLDER, RESULT_NAME, TEXTS_NAME, Cell
from draftgauge.studies.kvshot.held_out import read_texts
from draftgauge.training.reuse.data import load_target
from draftgauge.training.reuse.tracking import read_history
from draftgauge.training.reuse.train import train_drafter

SETTINGS_NAME = "settings.json"


@dataclass(frozen=True)
class CellJob:
    """A cell as the executor takes it."""

    cell: Cell

    @property
    def name(self) -> str:
        """Of the cell."""
        return self.cell.name

    @property
    def after(self) -> str | None:
        """The cell that this one starts from."""
        return self.cell.after

    def run(self, progress: Progress) -> None:
        """Train, evaluate, and leave the result in the cell's folder.

        A training that was interrupted goes on from its checkpoint, a finished one is not repeated.
        """
        cell, began = self.cell, time.monotonic()
        require_writable(cell.folder)
        atomic_write_text(cell.folder / SETTINGS_NAME, json.dumps(cell.settings(), indent=1) + "\n")
        if cell.request.threads is not None:
            torch.set_num_threads(cell.request.threads)

        def report(what: str, done: int, total: int) -> None:
            progress(f"{cell.name}: {what}", done, total)

        request = cell.request
        trained = train_drafter(request, cell.folder / DRAFTER_FOLDER, report)
        target = load_target(request)
        tokenizer = load_tokenizer(request.target, request.trust_remote_code)
        net = load_drafter(cell.folder / DRAFTER_FOLDER, target)
        texts, classes = read_texts(cell.study / TEXTS_NAME)
        plan = EvaluationPlan(
            depths=cell.depths,
            settings=DecodingSettings(cell.evaluation.max_new_tokens, end_tokens=end_tokens(target, tokenizer)),
            live=cell.evaluation.live_prompts,
            tree=cell.evaluation.tree_prompts,
            latency=cell.evaluation.latency_prompts,
        )
        evaluation = evaluate_drafter(net, target, texts, classes, plan, report)
        limits = measure_bottlenecks(
            net,
            target.module,
            texts[: cell.evaluation.bottleneck_prompts],
            cell.depths,
            read_history(cell.folder / DRAFTER_FOLDER),
            report,
        )
        training = {
            key: value
            for key, value in asdict(trained).items()
            if key in ("steps", "tokens", "seconds", "tokens_per_second", "loss")
        }
        document = {
            "cell": cell.name,
            "digest": cell.digest(),
            "created": timestamp(),
            "device": str(target.spec.device),
            "settings": cell.settings(),
            "training": training,
            "seconds": time.monotonic() - began,
            "distances": distance_names(),
            "evaluation": evaluation.to_json(),
            "bottlenecks": limits.to_json(),
        }
        atomic_write_text(cell.folder / RESULT_NAME, json.dumps(document) + "\n")
