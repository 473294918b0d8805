"""What a training run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from typing import Any

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import ChatSpec, CodeSpec, DeviceSpec, SeedSpec, TeacherSpec, at_least_one
from draftgauge.core.settings import option
from draftgauge.models.tap_rules import TapRule

LOSSES = ("kl", "cross-entropy", "greedy")
FEATURES = ("online", "cached")
PRECISIONS = ("auto", "fp32", "bf16")
UNCOMPRESSED = "none"
TRACKERS = ("tensorboard", "wandb", "trackio")
TARGET, SELF, RANDOM = STARTS = ("target", "self", "random")
MUON, ADAMW = OPTIMIZERS = ("muon", "adamw")

COUNTS = (
    "layers",
    "depths",
    "steps",
    "batch",
    "accumulation",
    "devices",
    "new_tokens",
    "checkpoint_every",
    "log_every",
    "questions",
    "threads",
    "intermediate_size",
)

# What decides where a run ends; everything else only decides how it gets there.
INCIDENTAL = frozenset(
    {
        "device",
        "devices",
        "answers",
        "cache",
        "checkpoint_every",
        "log_every",
        "track",
        "threads",
        "trust_remote_code",
    }
)


@dataclass(frozen=True)
class TrainingSpec(CodeSpec, SeedSpec, DeviceSpec, TeacherSpec, ChatSpec):
    """How to train one drafter.

    Order of data, loss and optimiser follow from it alone, whatever the design.

    Raises:
        DraftgaugeError: for a value out of its range.
    """

    reuse: str = option("hybrid", help="design of the drafter: 'hidden', 'kv', 'hybrid', 'cross' or 'none'.")
    layers: int = option(1, help="decoder layers of the drafter; more than one for 'kv' and 'none' only.")
    injection: str = option(
        "project-rope", help="how keys and values of several target layers enter: concat, project or project-rope."
    )
    taps: tuple[int, ...] | TapRule | None = option(
        None,
        help="decoder layers of the target to read, counted from 0, or a rule: eagle3 (2, L/2, L - 3; the default) or "
        "specforge (1, L/2 - 1, L - 4, whose outputs the code of EAGLE-3 takes too).",
    )
    intermediate_size: int | None = option(
        None, help="width of the drafter's MLP; the target's if left out. The study sets it to match capacities."
    )
    draft_vocabulary: int = option(
        0,
        help="size of the vocabulary that the drafter proposes from, the most frequent tokens of the answers; 0 for "
        "all.",
    )
    norm_before_fc: bool = option(True, help="normalise the hidden states of every tapped layer before they are fused.")
    norm_before_residual: bool = option(
        True, help="normalise the fused states before they become the block's residual."
    )
    norm_output: bool = option(
        True,
        help="pass the drafter's states on to the next depth normalised; without any of the three, the original "
        "EAGLE-3.",
    )
    target_norm: bool = option(
        True, help="start the norm before the drafter's head from the target's final norm; else it starts at one."
    )
    attention_start: str = option(
        TARGET,
        help="how attention starts: 'self' (query heads at their key heads' weights, so that every row attends mostly "
        "to itself), 'target' (at a linear estimate of how a tapped layer of the target attends; over the "
        "drafter's own anchors as 'self') or 'random'.",
    )
    freeze_head: bool = option(
        False, help="leave the drafter's head as it starts, at the target's; speculators does so."
    )
    depths: int = option(7, short="-k", help="drafted tokens that training unrolls from every position.")
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
    features: str = option(
        "online", help="'online' (target forward inside the step) or 'cached' (computed once, to disk)."
    )
    cache: Path | None = option(None, help="folder of the cached features; in the run's own folder if left out.")
    warm_start: Path | None = option(
        None, help="folder of a trained 'hidden' drafter to start a 'hybrid' or 'cross' one from."
    )
    steps: int = option(1500, help="optimiser steps.")
    batch: int = option(8, help="conversations a step.")
    accumulation: int = option(
        1, help="parts into which the conversations of a step and a device are split, to save memory."
    )
    learning_rate: float | None = option(None, help="peak learning rate; chosen by the target's width if left out.")
    warmup: float = option(
        0.05, help="share of the steps in which the rate rises; it falls as a cosine from there to the final rate."
    )
    final_rate: float = option(0.05, help="last learning rate as a share of the peak.")
    optimizer: str = option(
        MUON, help="'muon' for the matrices of the blocks, with AdamW for all else, or 'adamw' for everything."
    )
    weight_decay: float = option(0.01, help="weight decay, of matrices only.")
    clip: float = option(1.0, help="largest norm of the gradient.")
    loss: str = option(
        "kl",
        help="'kl' to the target's distribution; 'cross-entropy' to it (the same gradient, another figure); 'greedy': "
        "cross-entropy to the target's most probable token.",
    )
    step_decay: float = option(
        0.8, help="weight of a depth's loss over that of the depth before it, as in EAGLE-3's training."
    )
    gate_start: float = option(0.0, help="bias that the gate of a 'hybrid' drafter starts from; 0 is half open.")
    gate_hold: float = option(0.0, help="share of the steps, at the start, in which that gate is held open.")
    cross_first: float = option(
        0.0, help="share of the steps, at the start, in which a 'hybrid' drafter's cross branch alone is trained."
    )
    kv_gradient: float = option(
        1.0, help="factor of the gradients of the keys and values that a drafter makes of its own chain."
    )
    precision: str = option(
        "auto",
        help="precision of the arithmetic: auto (bfloat16 where the hardware has it), fp32 or bf16; weights and "
        "optimiser are float32.",
    )
    compile: bool = option(False, help="run the loss of every step through 'torch.compile', where its result agrees.")
    compression: str = option(UNCOMPRESSED, help="how the target is compressed.")
    devices: int = option(
        1,
        help="number of this machine's devices that share every step; leave it out under torchrun, on one machine or "
        "several. A run may be resumed with another number: the order of the data is the same.",
    )
    checkpoint_every: int = option(100, help="steps between checkpoints.")
    log_every: int = option(10, help="steps between rows of the log.")
    track: str | None = option(None, help="also log to tensorboard, wandb or trackio.")
    threads: int | None = option(
        None, help="threads of torch in every process; if left out, the processes divide torch's own number."
    )
    chat: bool = option(False, help="take prompts that are plain text as a user's message, through the chat template.")

    def __post_init__(self) -> None:
        at_least_one(self, *COUNTS)
        for name, choices in (
            ("loss", LOSSES),
            ("features", FEATURES),
            ("precision", PRECISIONS),
            ("attention_start", STARTS),
            ("optimizer", OPTIMIZERS),
            ("track", (None, *TRACKERS)),
        ):
            if getattr(self, name) not in choices:
                shown = ", ".join(choice for choice in choices if choice)
                raise DraftgaugeError(f"{name} must be one of {shown}, not {getattr(self, name)!r}")
        self._check_ranges()
        ChatSpec.__post_init__(self)

    def _check_ranges(self) -> None:
        if self.depths + 2 > self.length:
            raise DraftgaugeError(
                f"{self.depths} draft steps do not fit a sequence of {self.length} tokens, which has room for "
                f"{max(0, self.length - 2)}: lower depths or raise length"
            )
        if self.batch % self.accumulation:
            raise DraftgaugeError(
                f"a batch of {self.batch} conversations cannot be split into {self.accumulation} equal parts"
            )
        for name in ("warmup", "gate_hold", "cross_first"):
            if not 0 <= getattr(self, name) < 1:
                raise DraftgaugeError(
                    f"{name} is a share of the steps, at least 0 and below 1, not {getattr(self, name)}"
                )
        if self.kv_gradient <= 0:
            raise DraftgaugeError(f"kv_gradient must be above 0, not {self.kv_gradient}")
        if self.clip <= 0 or (self.learning_rate is not None and self.learning_rate <= 0):
            raise DraftgaugeError("clip and learning_rate must be above 0")
        if not 0 < self.step_decay <= 1 or not 0 <= self.final_rate <= 1 or self.weight_decay < 0:
            raise DraftgaugeError(
                "step_decay must be above 0 and at most 1, final_rate between 0 and 1, weight_decay at least 0"
            )
        if self.cache is not None and self.features == "online":
            raise DraftgaugeError(
                "a cache folder is given, but features are computed online: ask for cached features too"
            )

    def identity(self) -> dict[str, Any]:
        """Everything that decides where the run ends, ready for JSON."""
        identity = {key: value for key, value in to_mapping(self).items() if key not in INCIDENTAL}
        for name in ("chat", "chat_template_args", "system"):  # earlier runs, which had none, go on
            if not identity[name]:
                del identity[name]
        return identity

    def rate(self, step: int, hidden_size: int) -> float:
        """The learning rate of a step, counted from 0."""
        peak = self.learning_rate or default_rate(hidden_size)
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return peak * (step + 1) / rising
        done = (step - rising) / max(1, self.steps - rising)
        return peak * (self.final_rate + (1 - self.final_rate) * (1 + cos(pi * done)) / 2)


def default_rate(hidden_size: int) -> float:
    """Peak learning rate for a target of some width: 2e-3 at 256, falling with the width to 1.25e-4 at 4096."""
    return 0.512 / hidden_size
