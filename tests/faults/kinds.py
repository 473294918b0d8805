"""Every kind of artefact that is written and read again: how one is made, and what reading it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import read_measurement, write_measurement
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import read_config, read_weights, save_drafter
from draftgauge.models.loading import wrap
from draftgauge.policies.fitted import FittedPolicy, load_fitted, save_fitted
from draftgauge.studies.kvshot.cells import Cell
from draftgauge.studies.kvshot.presets import HIDDEN
from draftgauge.studies.kvshot.results import read_result
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.datastore import About, Datastore, stored_output
from draftgauge.traces.run import COSTS_NAME, Manifest, ModelEntry, Run
from draftgauge.traces.writer import TraceWriter
from draftgauge.training.checkpoints import LATEST, load_checkpoint, save_checkpoint
from kvshot_results import cells, study, write_result
from reuse_nets import net_for
from synthetic import synthetic_manifest, synthetic_records
from tiny import tiny_model

PROMPTS, GAMMA, LENGTH = 5, 4, 12
BENCHED = {"policy": "fixed:2", "compression": "uncompressed", "task": "all", "tokens_per_step": 2.5}
BENCHED |= {"ratio_to_plain": 1.5, "tokens_per_second": 300.0, "ratio_to_plain_low": 1.4, "ratio_to_plain_high": 1.6}


@dataclass(frozen=True)
class Kind:
    """A kind of artefact.

    Attributes:
        make: writes it into a folder that exists, with contents that follow from a seed.
        read: what it gives its reader, everything.
        single: whether it is one file, so that the file of another one is just another one.
    """

    make: Callable[[Path, int], None]
    read: Callable[[Path], Any]
    single: bool = False


def seen(value: Any) -> Any:
    """What was read as a value that can be compared, to the last bit."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value):
        return [(field.name, seen(getattr(value, field.name))) for field in fields(value)]
    if isinstance(value, Mapping):
        return sorted((str(name), seen(each)) for name, each in value.items())
    return [seen(each) for each in value] if isinstance(value, list | tuple) else repr(value)


def _manifest(seed: int) -> Manifest:
    target = ModelEntry("target", f"target {seed}", "uncompressed", "qwen3", "lean", "float32")
    return synthetic_manifest(PROMPTS, GAMMA, LENGTH, target=target)


def _costs(seed: int) -> CostCurve:
    verify, draft = ((tuple(part * n + base for n in range(GAMMA + 1)),) for part, base in ((0.001, 0.01), (0.002, 0)))
    pair = _manifest(seed).pair
    return CostCurve((0,), verify, draft, (0.01,), "uncompressed", "cpu", "float32", pair=pair, engine="lean")


def _make_run(folder: Path, seed: int) -> None:
    with TraceWriter(folder, _manifest(seed), shard_prompts=2) as writer:
        for record in synthetic_records(seed, PROMPTS, LENGTH, GAMMA):
            if record.info.index not in writer.done:
                writer.add(record)
    _costs(seed).save(folder / COSTS_NAME)


def _read_run(folder: Path) -> Any:
    run = Run(folder)
    return run.trace, run.costs, run.manifest.prompts


def _make_datastore(folder: Path, seed: int) -> None:
    about = About("words", 1000)
    outputs = [stored_output([seed, number], range(seed, seed + 9)) for number in range(4)]
    Datastore(about).with_outputs(outputs).save(folder / "store.parquet")


def _make_fitted(folder: Path, seed: int) -> None:
    numbers = {"thresholds": [0.1 * seed, 0.25, 0.5], "name": "x"}
    save_fitted(FittedPolicy("stopping", GAMMA, ("confidence",), numbers, {"task": "all"}, ("a/1",)), folder / "p.json")


@cache
def _net(seed: int) -> ReuseNet:
    return net_for(wrap(tiny_model("qwen3", num_hidden_layers=3, vocab_size=6)), "hidden", seed)


def _trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 4)
    with torch.no_grad():
        model.weight.fill_(0.5 + seed)
        model.bias.fill_(0.25)
    return model, torch.optim.AdamW(model.parameters())


def _make_checkpoint(folder: Path, seed: int) -> None:
    model, optimizer = _trained(seed)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    save_checkpoint(folder, model, [optimizer], {"step": seed + 1, "seed": seed})


def _read_checkpoint(folder: Path) -> Any:
    model, optimizer = _trained(7)
    state = load_checkpoint(folder, model, [optimizer])
    if state is None and not (folder / LATEST).exists():
        raise DraftgaugeError("no checkpoint yet")
    assert state is not None, "a checkpoint that cannot be read counts as none"
    return state, dict(model.named_parameters()), optimizer.state_dict()["state"]


def _cell(folder: Path) -> Cell:
    (cell,) = cells(folder, study((HIDDEN,), (0,)))
    return cell


def _read_cell(folder: Path) -> Any:
    result = read_result(_cell(folder))
    if result is None:
        raise DraftgaugeError("no result yet")
    return {field.name: getattr(result, field.name) for field in fields(result) if field.name != "cell"}


KINDS = {
    "recorded run": Kind(_make_run, _read_run),
    "datastore": Kind(_make_datastore, lambda folder: Datastore.load(folder / "store.parquet", "words"), single=True),
    "measurement": Kind(
        lambda folder, seed: write_measurement(folder / "r.json", "bench", [BENCHED | {"mismatches": seed}]),
        lambda folder: read_measurement(folder / "r.json").rows,
        single=True,
    ),
    "fitted policy": Kind(_make_fitted, lambda folder: load_fitted(folder / "p.json"), single=True),
    "drafter": Kind(
        lambda folder, seed: save_drafter(folder, _net(seed), {"request": {"depths": seed}}),
        lambda folder: (read_config(folder), read_weights(folder)),
    ),
    "checkpoint": Kind(_make_checkpoint, _read_checkpoint),
    "study result": Kind(
        lambda folder, seed: write_result(_cell(folder), [0.6 - 0.1 * seed, 0.5]), _read_cell, single=True
    ),
}
