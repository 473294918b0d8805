"""Parts of what verbs can be asked, such as a pair, prompts, lengths, sampling: each option is defined here once.

With how conversations are put before a model, and the names of how its weights are held;
:mod:`draftgauge.models.device` says what these mean.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from draftgauge.core.artefacts import parse_json
from draftgauge.core.config import option
from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.prompts import kept_pipe

if TYPE_CHECKING:
    import numpy as np

TapRule = Literal["eagle3", "specforge"]
"""How layers of a target to tap are named, see :data:`draftgauge.models.taps.TAP_RULES`."""

UNCOMPRESSED = "uncompressed"
INT8_WEIGHT, INT8_DYNAMIC, INT4 = "int8-weight", "int8-dynamic", "int4"
WEIGHT_ONLY = (INT8_WEIGHT, INT8_DYNAMIC, INT4)  # of PyTorch's own CPU kernels, activations between them in bfloat16
COMPRESSIONS = (UNCOMPRESSED, "fp32", "fp16", "bf16", "int8", INT8_WEIGHT, INT8_DYNAMIC, "nf4", INT4)

COMPRESSED_BEFORE = ("gguf", "openvino")  # how engines are called whose files hold weights as they were made

# 0, 1, 2 for 16 bits a weight or more, 8 and 4, of the names that say it.
LEVELS = {
    **dict.fromkeys((UNCOMPRESSED, "fp32", "fp16", "bf16"), 0),
    **dict.fromkeys(("int8", INT8_WEIGHT, INT8_DYNAMIC, "bnb-int8", "fp8", "fbgemm_fp8", "eetq"), 1),
    **dict.fromkeys(("nf4", INT4, "bnb-nf4", "bnb-fp4", "awq", "mxfp4"), 2),
}


def held_as(compression: str, engine: str) -> str:
    """The compression; empty of a GGUF file or an OpenVINO folder, which are named without one."""
    return "" if engine.startswith(COMPRESSED_BEFORE) else compression


def current_compression(name: Any) -> Any:
    """The name that a compression has now: ``uncompressed`` was ``none``."""
    return UNCOMPRESSED if name == "none" else name


Compression = Annotated[str, current_compression]
"""Type of a field of requests and files whose value :mod:`draftgauge.core.config` reads by its current name."""


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """Where models run."""

    device: str | None = option(None, help="'cpu', 'cuda', 'cuda:1' ...; a GPU if there is one.")


@dataclass(frozen=True, kw_only=True)
class CodeSpec:
    """Whether a checkpoint's own code is run."""

    trust_remote_code: bool = option(False, help="run model code that comes with a checkpoint.")


@dataclass(frozen=True, kw_only=True)
class SeedSpec:
    """Randomness."""

    seed: int = option(0, help="seed of everything random.")

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise DraftgaugeError(f"seed must be a number of 64 bits, not {self.seed}")


def derive_seed(seed: int, *labels: str | int) -> int:
    key = json.dumps([int(seed), *labels]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    import numpy as np  # not above: the command line starts without it

    return np.random.Generator(np.random.PCG64(derive_seed(seed, *labels)))


@dataclass(frozen=True, kw_only=True)
class TeacherSpec:
    """What drafters learn from."""

    target: str = option("reference", help="target model: an id, a folder, or 'reference' (bundled).")
    prompts: Path | None = option(
        None, help="training prompts, which the target answers; bundled ones for 'reference'."
    )

    def __post_init__(self) -> None:
        if self.prompts is not None:
            object.__setattr__(self, "prompts", Path(kept_pipe(str(self.prompts)) or self.prompts))


@dataclass(frozen=True)
class Rendering:
    """How prompts are put before a model.

    ``template_args`` go to the tokenizer's chat template; ``system`` is a message in front of conversations that have
    none. ``chat``: whether text is a user's message; None: where the tokenizer has a chat template. Of a prompt with
    several user turns, each of the first ``turns`` is a prompt of its own.
    """

    template_args: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    chat: bool | None = None
    turns: int = 1

    @property
    def options(self) -> tuple[str, ...]:
        """Of the command line, for conversations that look the same."""
        words = [] if self.chat is None else ["--chat" if self.chat else "--raw"]
        words += [] if self.system is None else ["--system", self.system]
        words += ["--chat-template-args", json.dumps(dict(self.template_args))] if self.template_args else []
        return tuple(words)


def template_arguments(given: Mapping[str, Any] | str) -> dict[str, Any]:
    """Arguments of a chat template, as a mapping or as a JSON object in text."""
    if isinstance(given, Mapping):
        return dict(given)
    if not given.strip():
        return {}
    example = "it must be a JSON object such as '{\"enable_thinking\": false}'"
    values = parse_json(given, f"chat_template_args {given[:80]!r}", example)
    if not isinstance(values, dict):
        raise DraftgaugeError(f"chat_template_args must be a JSON object of names and values, not {given!r}")
    return values


@dataclass(frozen=True, kw_only=True)
class ChatSpec:
    """How conversations are put before the target."""

    chat_template_args: Mapping[str, Any] | str = option(
        "", help="arguments of the chat template as JSON, e.g. '{\"enable_thinking\": false}'."
    )
    system: str | None = option(None, help="a system message for conversations that have none.")

    def __post_init__(self) -> None:
        template_arguments(self.chat_template_args)

    def rendering(self, chat: bool | None = None, turns: int = 1) -> Rendering:
        return Rendering(template_arguments(self.chat_template_args), self.system, chat, turns)


@dataclass(frozen=True, kw_only=True)
class WorkersSpec:
    """Where jobs run."""

    executor: str = option("local", help="'local' (in this process), or 'ray', on the cluster that RAY_ADDRESS names.")
    cpus: int = option(1, help="CPUs that each job asks Ray for.")
    gpus: float = option(0, help="GPUs that each job asks Ray for; a share such as 0.5 puts two jobs on one.")

    def __post_init__(self) -> None:
        at_least_one(self, "cpus")
        if self.gpus < 0:
            raise DraftgaugeError(f"gpus must be at least 0, not {self.gpus:g}")


def at_least_one(spec: Any, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        if value is not None and not value >= 1:
            raise DraftgaugeError(f"{name} must be at least 1, not {value}")


def positive(spec: Any, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        if value is not None and not value > 0:
            raise DraftgaugeError(f"{name} must be above 0, not {value:g}")


KINDS_WITH_SOURCE = ("language_model", "checkpoint", "reuse")  # that "drafter" named beside "draft"
REFERENCE = "reference"
LONG_PROMPTS = ("error", "truncate", "skip")
CHAT = "put text through the chat template as a user's message, or take it as it is; the template if there is one."


def check_each_once(kind: str, names: Sequence[object]) -> None:
    if not names or "" in names or len(set(names)) < len(names):
        listed = ", ".join(map(str, names)) or "none at all"
        raise DraftgaugeError(f"name at least one {kind}, and each once, not {listed}")


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec(CodeSpec):
    """How a target's tokenizer is loaded."""

    tokenizer: str | None = option(None, help="folder or id of the target's tokenizer, where it has none of its own.")


@dataclass(frozen=True, kw_only=True)
class TargetLoadSpec(TokenizerSpec):
    """How a target is loaded."""

    engine: str = option("auto", help="'lean', 'static', 'modules', 'gguf', 'openvino' (docs/engines.md).")


@dataclass(frozen=True, kw_only=True)
class LoadSpec(TargetLoadSpec):
    """How models are loaded."""

    device_map: str | None = option(None, help="spread the target over all GPUs: 'auto', 'balanced' or 'sequential'.")
    draft_device: str | None = option(None, help="where a draft model runs; with the target if left out.")
    allow_pickle: bool = option(False, help="read a drafter's pickled weights, which can run code.")


def drafter_for(draft: str, drafter: str | None) -> str:
    """What drafts by two settings of former releases: ``drafter``, a kind, and ``draft``, its model or folder."""
    if drafter in (None, *KINDS_WITH_SOURCE):
        return draft
    if draft not in (drafter, REFERENCE):
        raise DraftgaugeError(f"{drafter} drafts without the model {draft}: leave out --draft, or --drafter")
    assert drafter is not None
    return drafter


@dataclass(frozen=True, kw_only=True)
class PairSpec:
    """A target and what drafts for it."""

    target: str | None = option(
        None, help="target model: an id, a folder or 'reference' (bundled); if left out the drafter's, or 'reference'."
    )
    drafter: str | None = option(
        None,
        help="what drafts: a model (an id, a folder or 'reference'), a trained drafter's folder, an EAGLE-3, DFlash or "
        "DSpark checkpoint, 'mtp' (the target's own heads), or 'lookup'; 'reference' if left out.",
    )
    compression: tuple[Compression, ...] = option(
        (UNCOMPRESSED,),
        help="of the target, or several: uncompressed, fp32, fp16, bf16, int8, int8-weight, int8-dynamic, nf4, int4.",
    )
    machine: DeviceSpec = DeviceSpec()
    loading: LoadSpec = LoadSpec()
    draft: str | None = option(None, help="")  # former name of ``drafter`` where a model drafts

    def __post_init__(self) -> None:
        check_each_once("compression", self.compression)
        if self.draft is not None:
            warn("draft is the former name of drafter and will go: pass drafter", DeprecationWarning)
            object.__setattr__(self, "drafter", drafter_for(self.draft, self.drafter))
            object.__setattr__(self, "draft", None)

    def at(self, compression: str) -> PairSpec:
        return replace(self, compression=(compression,))


@dataclass(frozen=True, kw_only=True)
class PromptSpec:
    """Which prompts."""

    prompts: str | None = option(
        None,
        help="JSON Lines with 'prompt', 'turns', 'messages' or 'conversations', or 'reference:SPLIT'; bundled test "
        "prompts if left out.",
    )
    limit: int | None = option(None, help="use at most this many prompts, the first of every task in turn.")
    per_task: int | None = option(None, help="use at most this many prompts of each task and split.")
    tasks: tuple[str, ...] = option((), help="use these tasks only, separated by commas.")
    split: str | None = option(None, help="use the prompts of this split only: train, validation or test.")
    long_prompts: str = option("error", help="prompts longer than the models take: error, truncate or skip.")
    chat: bool | None = option(None, negative="--raw", help=CHAT)
    turns: int = option(1, help="of several turns, use up to this many, each behind the answers to earlier ones.")
    conversation: ChatSpec = ChatSpec()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", kept_pipe(self.prompts))
        at_least_one(self, "limit", "per_task", "turns")
        if self.long_prompts not in LONG_PROMPTS:
            raise DraftgaugeError(f"long_prompts must be one of {', '.join(LONG_PROMPTS)}, not {self.long_prompts!r}")

    @property
    def rendering(self) -> Rendering:
        return self.conversation.rendering(self.chat, self.turns)


@dataclass(frozen=True, kw_only=True)
class JudgedSpec:
    """Which prompts of a recorded run policies are judged on."""

    tasks: tuple[str, ...] = option((), help="judge on these tasks only, separated by commas.")
    split: str | None = option(None, help="judge on train, validation, test or all; on test if there are enough.")


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """How long outputs may be."""

    max_new_tokens: int = option(128, help="output tokens a prompt at most.")

    def __post_init__(self) -> None:
        at_least_one(self, "max_new_tokens")


@dataclass(frozen=True, kw_only=True)
class DraftSpec:
    """How long drafts may be."""

    gamma_max: int = option(16, help="longest draft.")

    def __post_init__(self) -> None:
        at_least_one(self, "gamma_max")


@dataclass(frozen=True, kw_only=True)
class SamplingSpec:
    """How tokens are chosen."""

    temperature: float = option(0.0, help="0 decodes greedily; above 0 output and drafts are sampled.")
    top_k: int = option(0, help="sample from the k most likely tokens; 0 is off.")
    top_p: float = option(1.0, help="sample from the smallest set with this much probability; 1 is off.")
    checkpoint_sampling: bool = option(False, help="sample as the target's own generation_config.json says.")

    def __post_init__(self) -> None:
        if self.checkpoint_sampling and (self.temperature, self.top_k, self.top_p) != (0.0, 0, 1.0):
            raise DraftgaugeError(
                "checkpoint_sampling takes temperature, top_k and top_p from the target: leave out these three, or it"
            )
        if not 0 <= self.temperature < math.inf or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise DraftgaugeError(
                "temperature must be 0 or more, top_k 0 or more and top_p above 0 and at most 1, not "
                f"{self.temperature:g}, {self.top_k} and {self.top_p:g}"
            )
        if self.temperature == 0 and (self.top_k, self.top_p) != (0, 1.0):
            raise DraftgaugeError(
                "top_k and top_p say what to sample from, and at temperature 0 decoding is greedy: give a temperature "
                "too, or leave them out"
            )


@dataclass(frozen=True, kw_only=True)
class ExecutorSpec(WorkersSpec):
    """Where prompts are recorded."""

    shards: int = option(1, help="parts of the prompts, each recorded by a worker of its own.")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "shards")

    @property
    def in_parts(self) -> bool:
        return self.shards > 1 or self.executor != "local"


@dataclass(frozen=True, kw_only=True)
class StartSpec:
    """Servers that are started on this machine, and stopped."""

    drafter: str | None = option(None, help="what drafts in a server that is started: a model, 'lookup' or 'mtp'.")
    kind: str | None = option(
        None, help="the kind of that model: language_model, eagle3, dflash ... (docs/serving.md)."
    )
    program: str | None = option(
        None, help="what starts a server, with options of your own; 'llama-server' or 'vllm serve' if left out."
    )


@dataclass(frozen=True, kw_only=True)
class CostSpec:
    """How a pair's costs are measured."""

    cost_seconds: float = option(15.0, help="seconds for measuring what a step costs, at each compression; 0: once.")
    measure: bool = option(False, help="measure the pair's costs again.")

    def __post_init__(self) -> None:
        if not 0 <= self.cost_seconds < math.inf:
            raise DraftgaugeError(f"cost_seconds must be at least 0 and finite, not {self.cost_seconds:g}")
