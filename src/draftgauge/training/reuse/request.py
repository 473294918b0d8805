"""What a training run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, exp, inf, pi
from pathlib import Path
from typing import Any

from draftgauge.core.config import option, to_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import (
    UNCOMPRESSED,
    ChatSpec,
    CodeSpec,
    Compression,
    DeviceSpec,
    SeedSpec,
    TapRule,
    TeacherSpec,
    at_least_one,
)

PRECISIONS = ("auto", "fp32", "bf16")
TRACKERS = ("tensorboard", "wandb", "trackio")
TARGET, SELF, RANDOM = STARTS = ("target", "self", "random")
TTT, BLOCK = RECIPES = ("ttt", "block")
SOFT, HARD, TOTAL_VARIATION = LOSSES = ("soft", "hard", "tv")
MTP = "mtp"
OF_OTHERS = ("taps", "draft_vocabulary", "llama_cpp", "markov_rank", "confidence_head", "intermediate_size")
MUON, ADAMW = OPTIMIZERS = ("muon", "adamw")

FINAL_RATE = 0.05  # of the peak learning rate
WEIGHT_DECAY = 0.01  # of matrices
CLIP = 1.0  # largest norm of the gradient
# Weight of a depth's loss over that of the depth before it: as in EAGLE-3's training, and exp(-k / 4) as in DeepSpec.
STEP_DECAY = {TTT: 0.8, BLOCK: exp(-1 / 4)}
FASTMTP_DECAY = 0.6  # likewise of FastMTP, whose steps are recipe 'block' for an MTP head

COUNTS: tuple[str, ...] = ("layers", "depths", "anchors", "steps", "batch", "accumulation", "new_tokens")
COUNTS += ("checkpoint_every", "log_every", "questions", "threads", "intermediate_size")

# What does not change where a run ends.
INCIDENTAL = frozenset(
    {"device", "answers", "cache", "checkpoint_every", "log_every", "track", "threads", "trust_remote_code"}
)


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(CodeSpec, SeedSpec, DeviceSpec, TeacherSpec, ChatSpec):
    """How to train one drafter.

    Order of data, loss and optimiser follow from it alone, whatever the design.
    """

    recipe: str = option(
        TTT,
        help="'ttt' unrolls drafts token by token from every position; 'block' trains a drafter that proposes --depths "
        "tokens in one pass, from drawn positions (for 'mtp' token by token, weighted as by FastMTP).",
    )
    reuse: str = option(
        "hybrid",
        help="design of the drafter: 'hidden', 'kv', 'hybrid', 'cross', 'control' or 'mtp' (a layer of the target's "
        "own class, as models ship it).",
    )
    layers: int = option(
        1, help="decoder layers of the drafter; more than one for 'kv' and 'control', and with recipe 'block', only."
    )
    taps: tuple[int, ...] | TapRule | None = option(
        None,
        help="decoder layers of the target to read, counted from 0, or a rule: eagle3 (2, L/2, L - 3; the default) or "
        "specforge (1, L/2 - 1, L - 4, whose outputs the code of EAGLE-3 takes too).",
    )
    draft_vocabulary: int = option(
        0,
        help="size of the vocabulary that the drafter proposes from, the most frequent tokens of the answers; 0 for "
        "all.",
    )
    llama_cpp: bool = option(
        False,
        help="leave out the norms that llama.cpp's EAGLE-3 lacks: of each tapped layer, and of the states passed on to "
        "the next depth.",
    )
    depths: int = option(7, short="-k", help="tokens of a draft in training; with recipe 'block' those of a block.")
    anchors: int | None = option(
        None, help="with recipe 'block', most positions of a conversation that a step draws; all if left out."
    )
    dflash: bool = option(
        False,
        help="with recipe 'block', give a 'hidden' drafter the network of DFlash as published, which can be exported.",
    )
    markov_rank: int = option(
        0,
        help="with recipe 'block', rank of a Markov head: a bias of a token by the one drafted before it; 0 for none.",
    )
    length: int = option(1024, help="longest conversation in tokens; longer ones are cut at their end.")
    questions: int | None = option(
        3000, help="most prompts to take from the file, or of the bundled questions; 'none' takes all."
    )
    new_tokens: int = option(160, help="longest answer.")
    answers: Path | None = option(
        None,
        help="file of the answers, made where it is missing; in the run's own folder if left out. Runs that share it "
        "share their data.",
    )
    cache: Path | None = option(
        None,
        help="compute the target's features once and keep them in this folder; if left out, the target runs inside "
        "every step.",
    )
    steps: int = option(1500, help="optimiser steps.")
    batch: int = option(8, help="conversations a step.")
    accumulation: int = option(
        1, help="parts into which the conversations of a step and a device are split, to save memory."
    )
    learning_rate: float | None = option(None, help="peak learning rate; chosen by the target's width if left out.")
    compression: Compression = option(UNCOMPRESSED, help="how the target is compressed.")
    checkpoint_every: int = option(100, help="steps between checkpoints.")
    log_every: int = option(10, help="steps between rows of the log.")
    track: str | None = option(None, help="also log to tensorboard, wandb or trackio.")

    # What follows are no options of `draftgauge train`: the KVShot study sets them.
    injection: str = "project-rope"  # how keys and values of several target layers enter
    intermediate_size: int | None = None  # width of the drafter's MLP; the target's if None
    norm_before_fc: bool = True
    norm_before_residual: bool = True
    norm_output: bool = True
    attention_start: str = TARGET  # see training.reuse.start
    loss: str = SOFT  # see training.reuse.loss
    confidence_head: bool = False  # of a block-wise drafter
    warm_start: Path | None = None  # a trained hidden drafter that a hybrid or cross one starts from
    warmup: float = 0.05  # share of the steps in which the rate rises; then it falls as a cosine
    optimizer: str = MUON  # of the blocks' matrices; all else has AdamW
    gate_start: float = 0.0  # bias of a hybrid drafter's gate; 0 is half open
    kv_gradient: float = 1.0  # factor of the gradients of the keys and values of a drafter's own chain
    precision: str = "auto"  # of the arithmetic; weights and optimiser are float32
    threads: int | None = None  # of torch in every process

    def __post_init__(self) -> None:
        at_least_one(self, *COUNTS)
        for name, choices in (
            ("recipe", RECIPES),
            ("loss", LOSSES),
            ("precision", PRECISIONS),
            ("attention_start", STARTS),
            ("optimizer", OPTIMIZERS),
            ("track", (None, *TRACKERS)),
        ):
            if getattr(self, name) not in choices:
                shown = ", ".join(choice for choice in choices if choice)
                raise DraftgaugeError(f"{name} must be one of {shown}, not {getattr(self, name)!r}")
        if self.depths + 2 > self.length:
            raise DraftgaugeError(
                f"{self.depths} draft steps do not fit a sequence of {self.length} tokens, which has room for "
                f"{max(0, self.length - 2)}: lower depths or raise length"
            )
        for name in ("anchors", "markov_rank", "confidence_head"):
            if getattr(self, name) and self.recipe != BLOCK:
                raise DraftgaugeError(f"{name} is for the recipe {BLOCK}, not for {self.recipe}")
        if self.kv_gradient != 1 and (self.recipe == BLOCK or self.reuse in ("hidden", MTP)):
            raise DraftgaugeError(f"kv_gradient is for the recipe {TTT} and other designs than hidden: leave it out")
        for name in OF_OTHERS if self.reuse == MTP else ():
            if getattr(self, name):
                raise DraftgaugeError(
                    f"{name} is not for an MTP head, which takes its shape from the target: leave it out"
                )
        if self.confidence_head and self.draft_vocabulary:
            raise DraftgaugeError("a confidence head needs the target's whole vocabulary: leave out draft_vocabulary")
        if self.recipe == BLOCK and self.warm_start is not None:
            raise DraftgaugeError("a warm start is for drafters that go token by token: leave it out")
        if self.batch % self.accumulation:
            raise DraftgaugeError(
                f"a batch of {self.batch} conversations cannot be split into {self.accumulation} equal parts"
            )
        if not 0 <= self.warmup < 1:
            raise DraftgaugeError(f"warmup is a share of the steps, at least 0 and below 1, not {self.warmup}")
        for name in ("kv_gradient", "learning_rate"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < inf:
                raise DraftgaugeError(f"{name} must be a number above 0, not {getattr(self, name)}")
        ChatSpec.__post_init__(self)
        TeacherSpec.__post_init__(self)

    def identity(self) -> dict[str, Any]:
        identity = {key: value for key, value in to_mapping(self).items() if key not in INCIDENTAL}
        if not self.as_dflash:
            del identity["dflash"]  # earlier runs know nothing of it
        return identity | {"cached": self.cache is not None}  # cached features are rounded to bfloat16

    @property
    def as_dflash(self) -> bool:
        return self.dflash and self.recipe == BLOCK and self.reuse == "hidden"

    @property
    def block(self) -> int:
        """Tokens of a block; 0 for drafters that go token by token."""
        return self.depths if self.recipe == BLOCK and self.reuse != MTP else 0

    @property
    def decay(self) -> float:
        return FASTMTP_DECAY if self.reuse == MTP and self.recipe == BLOCK else STEP_DECAY[self.recipe]

    @property
    def frozen_head(self) -> bool:
        return self.reuse == MTP or bool(self.block)

    def rate(self, step: int, hidden_size: int) -> float:
        """The learning rate of a step, counted from 0."""
        peak = self.learning_rate or default_rate(hidden_size)
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return peak * (step + 1) / rising
        done = (step - rising) / max(1, self.steps - rising)
        return peak * (FINAL_RATE + (1 - FINAL_RATE) * (1 + cos(pi * done)) / 2)


def default_rate(hidden_size: int) -> float:
    """Peak learning rate for a target of some width: 2e-3 at 256, falling with the width to 1.25e-4 at 4096."""
    return 0.512 / hidden_size
