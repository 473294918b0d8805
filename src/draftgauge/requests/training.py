"""Requests of the verbs that train and compare drafters, and of the papers' studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from draftgauge.core.config import option
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import (
    DeviceSpec,
    OutputSpec,
    PromptSpec,
    TargetLoadSpec,
    TeacherSpec,
    WorkersSpec,
    at_least_one,
    check_each_once,
    current_compression,
)
from draftgauge.training.reuse.request import TrainingSpec


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Train a drafter on the target's own answers, unrolled over several draft steps as it will be used."""

    out: Path | None = option(None, help="folder of the run; run again with the same folder to resume.")
    plan: bool = option(False, help="print parameters, memory, time and disk, and train nothing.")
    training: TrainingSpec = TrainingSpec(dflash=True)


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """Write a trained drafter as serving engines load it."""

    drafter: Path = option(positional=True, help="folder of a drafter that 'draftgauge train' wrote.")
    out: Path = option(help="folder of the checkpoint.")
    format: Literal["eagle3", "dflash", "mtp"] | None = option(
        None,
        help="'eagle3' for drafters that go token by token, 'dflash' for block-wise ones, both of the design 'hidden'; "
        "'mtp' for heads of Qwen3.5's kind; as the drafter is if left out.",
    )


@dataclass(frozen=True, kw_only=True)
class LearnedSpec:
    """What a trained drafter is measured with."""

    target: str | None = option(None, help="target of the drafter; the one that its folder names if left out.")
    compression: Annotated[str | None, current_compression] = option(
        None, help="as of --compression in profile; as it was in training if left out."
    )
    depths: int | None = option(None, help="tokens in a draft; as many as it was trained for if left out.")

    def __post_init__(self) -> None:
        at_least_one(self, "depths")


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """Measure a trained drafter: speed, acceptance by depth, tokens a step (MAT; teacher-forced, live, with trees),
    retention (acceptance at the last depth over the first)."""

    drafter: Path = option(positional=True, help="folder of a drafter that 'draftgauge train' wrote.")
    learned: LearnedSpec = LearnedSpec()
    prompts: PromptSpec = PromptSpec(long_prompts="truncate")
    output: OutputSpec = OutputSpec()
    machine: DeviceSpec = DeviceSpec()
    loading: TargetLoadSpec = TargetLoadSpec()


@dataclass(frozen=True, kw_only=True)
class DiagnoseRequest:
    """Show what limits trained drafters: query distance from the target's, which weights the loss reaches, how many
    directions projections use, how open the gate is."""

    runs: tuple[Path, ...] = option(positional=True, help="folders that 'draftgauge train' wrote; seeds are pooled.")
    learned: LearnedSpec = LearnedSpec()
    prompts: PromptSpec = PromptSpec(prompts="reference:validation", per_task=4, long_prompts="truncate")
    output: OutputSpec = OutputSpec(max_new_tokens=96)
    machine: DeviceSpec = DeviceSpec()
    loading: TargetLoadSpec = TargetLoadSpec()

    def __post_init__(self) -> None:
        check_each_once("run", self.runs)


@dataclass(frozen=True, kw_only=True)
class StudyKvshotRequest:
    """Train and compare drafters that reuse hidden states, the KV cache, both or neither; a report is written to the
    folder.
    """

    out: Path = option(help="folder of the study; run again with the same folder to resume.")
    plan: bool = option(False, help="print the trainings and hours of the study, and run nothing.")
    so_far: bool = option(False, help="rows and report of what is finished; train nothing.")
    decay: tuple[str, ...] = option(
        (), help="train nothing, and record acceptance by depth of these drafters, separated by commas, on one target."
    )
    decay_prompts: int = option(16, help="prompts that --decay records at most, the first of every task in turn.")
    preset: str = option(
        "smoke",
        help="'smoke', 'quick', 'depth' (and deeper KV drafters), 'width' (at equal width), 'remedies', 'block' (token "
        "by token beside block-wise), 'short-block' (on a laptop) or 'full'.",
    )
    seeds: int | None = option(None, help="most seeds of a row, at least 2; all of the preset's if left out.")
    teacher: TeacherSpec = TeacherSpec()
    held_out: str | None = option(None, help="prompts to measure on; the bundled test prompts if left out.")
    workers: WorkersSpec = WorkersSpec()
    machine: DeviceSpec = DeviceSpec()

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 2:
            raise DraftgaugeError(f"seeds must be at least 2, to show how much they differ, not {self.seeds}")
        if self.plan and self.so_far:
            raise DraftgaugeError("choose --plan (what is left to do) or --so-far (what is done), not both")
        if self.decay:
            check_each_once("drafter", self.decay)
            if self.plan or self.so_far:
                raise DraftgaugeError("--decay records drafters that are trained: leave out --plan and --so-far")
        at_least_one(self, "decay_prompts")


@dataclass(frozen=True, kw_only=True)
class StudySpeckvRequest:
    """SpecKV (arXiv 2605.02888): its tables, computed from its author's records, and what else those records say."""

    steps: Path = option(help="the published table of steps, phase2_step_results.csv.")
    experiments: Path = option(help="the published table of experiments, phase2_experiment_results.csv.")
    out: Path | None = option(None, help="a folder that receives report.html.")
