"""The ways of decoding that a live bench compares, run against each other prompt by prompt.

Ours, and as outside baselines transformers' own ``generate()`` and OpenVINO GenAI's pipelines: plain, prompt lookup,
and a draft model. All are timed alike: decoding, prefill apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from draftgauge.core.errors import warn
from draftgauge.core.prompts import in_turn
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.base import Drafter
from draftgauge.models.base import skeleton_of
from draftgauge.models.device import seconds
from draftgauge.models.engines.openvino import EXACT, FLOAT32, OpenvinoModel
from draftgauge.models.spec import no_hints
from draftgauge.pair.loading import Pair
from draftgauge.pair.prompts import log
from draftgauge.policies.base import Policy
from draftgauge.policies.spec import PolicySpec
from draftgauge.requests import PLAIN

GENERATE = "transformers-generate"
ASSISTED = "transformers-assisted"
ASSISTED_CONSTANT = "transformers-assisted-constant"
PROMPT_LOOKUP = "transformers-prompt-lookup"  # 10 tokens, n-grams of up to 2, as transformers has it
DEFAULT_CONSTANT = 5
_OF_ASSISTANTS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
OUTLIER, REPEATED = 1.25, 0.2  # rounds so far apart are repeated, of at most this share of the prompts
ROUNDS, ENOUGH = 3, 180.0  # where none are asked for: at most, and the seconds after which no further one begins


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt ready to decode; ``conversation`` is the one that it is a turn of, one of its own if None."""

    tokens: list[int]
    task: str
    conversation: int | None = None


@dataclass(frozen=True)
class ArmRun:
    """One prompt decoded once: committed tokens, target passes (0 if unknown), decoding seconds of ``timed`` tokens,
    accepted tokens that were drafted and looked up. ``drafted`` is of servers."""

    tokens: list[int]
    steps: int
    timed: int
    seconds: float
    prefill_seconds: float
    accepted_draft: int = 0
    accepted_text: int = 0
    drafted: int = 0


@dataclass
class Arm:
    """One way of decoding, with all its runs by prompt and round.

    An ``outside`` arm is another library's: if it fails, its error is kept in ``failed`` and the others continue.
    ``restart`` makes it forget what it has learned of earlier prompts. ``near_ties`` are of
    :func:`~draftgauge.benching.bench_rows.note_near_ties`.
    """

    name: str
    decode: Callable[[list[int]], ArmRun]
    runs: list[list[ArmRun]] = field(default_factory=list)
    outside: bool = False
    failed: str = ""
    restart: Callable[[], None] = lambda: None
    near_ties: set[int] | None = None

    def run(self, prompt: list[int]) -> list[ArmRun]:
        """One run; empty if an outside arm fails or has failed before."""
        if self.failed:
            return []
        try:
            return [self.decode(prompt)]
        except Exception as error:
            if not self.outside:
                raise
            self.failed = f"{type(error).__name__}: {error}"
            return []


def own_arm(
    pair: Pair,
    settings: DecodingSettings,
    name: str = PLAIN,
    policy: Policy | None = None,
    drafter: Drafter | None = None,
) -> Arm:
    """Decode with the pair's engine under a policy, or plainly: the baseline of every comparison. Arms may share a
    drafter, which on a GPU then records its passes once.
    """
    drafter, learning = drafter or (None if policy is None else pair.drafter()), deepcopy(policy)

    def restart() -> None:
        nonlocal learning
        learning = deepcopy(policy)

    def decode(prompt: list[int]) -> ArmRun:
        if learning is None or drafter is None:
            g = plain_decode(pair.target, prompt, settings)
        else:
            g = speculative_decode(pair.target, drafter, learning, prompt, settings)
        text = sum(step.accepted_text for step in g.steps)
        draft = sum(step.accepted for step in g.steps) - text
        return ArmRun(g.tokens, len(g.steps), len(g.tokens), g.decode_seconds, g.prefill_seconds, draft, text)

    return Arm(name, decode, restart=restart)


def bench_arms(
    arms: Sequence[Arm],
    prompts: Sequence[BenchPrompt],
    rounds: int | None,
    rng: np.random.Generator,
    progress: Callable[[int, int], None],
    seconds: float | None = None,
) -> list[BenchPrompt]:
    """Decode every prompt with every arm, ``rounds`` times; if None thrice, or until a round ends after three minutes.
    Fills the arms' runs and returns their prompts in order: all, unless ``seconds`` were over in the first round.

    The order of the arms is drawn anew for every prompt and round. Else caches that one leaves warm would always help
    the same next one. All arms decode the first prompt once beforehand, uncounted, to estimate the time; each round
    begins as if they had decoded nothing. With ``seconds`` prompts of all tasks take turns, and none but the first is
    begun after that time.
    """
    begun, prompts = time.monotonic(), list(prompts if seconds is None else in_turn(prompts))
    visits = [(number, prompt) for _ in range(rounds or ROUNDS) for number, prompt in enumerate(prompts)]
    for index in rng.permutation(len(arms)):
        progress(0, len(visits))
        arms[index].run(prompts[0].tokens)
    for arm in arms:
        arm.runs = [[] for _ in prompts]
    once = (time.monotonic() - begun) * len(prompts)
    log.info("%d ways of decoding, %d prompts: about %.0f s a round", len(arms), len(prompts), once)
    for done, (number, prompt) in enumerate(visits):
        limit = seconds if seconds is not None else ENOUGH if rounds is None and number == 0 else None
        if done and limit is not None and time.monotonic() > begun + limit:
            whole = done // len(prompts)  # the last round is dropped where it was not finished
            if not whole:
                return prompts[:done]
            for arm in arms:
                arm.runs = [runs[:whole] for runs in arm.runs]
            break
        for index in rng.permutation(len(arms)):
            if number == 0:
                arms[index].restart()
            arms[index].runs[number] += arms[index].run(prompt.tokens)
        progress(done + 1, len(visits))
    if rounds is None and len(visits) > len(prompts):
        _repeat_outliers(arms, prompts, rng, begun + (seconds or ENOUGH) * (1 + REPEATED))
    return prompts


def _repeat_outliers(
    arms: Sequence[Arm], prompts: Sequence[BenchPrompt], rng: np.random.Generator, until: float
) -> None:
    """Decode again, with every arm, the prompts whose rounds differ most, until a moment of the clock."""

    def spread(number: int) -> float:
        times = [[run.seconds for run in arm.runs[number]] for arm in arms]
        return max((max(each) / min(each) for each in times if each and min(each) > 0), default=1.0)

    spreads = {number: spread(number) for number in range(len(prompts))}
    for number in sorted(spreads, key=lambda each: -spreads[each])[: math.ceil(REPEATED * len(prompts))]:
        if spreads[number] < OUTLIER or time.monotonic() > until:
            return
        for index in rng.permutation(len(arms)):
            arms[index].runs[number] += arms[index].run(prompts[number].tokens)


def without_failed(arms: Sequence[Arm]) -> list[Arm]:
    for arm in arms:
        if arm.failed:
            warn(f"{arm.name} fails on this pair and is left out ({arm.failed})")
    return [arm for arm in arms if not arm.failed]


@dataclass
class _Clock(BaseStreamer):
    """A streamer that notes when the first tokens came, and how many; ``generate`` hands it the prompt first."""

    device: torch.device
    puts: int = 0
    first_at: float = 0.0
    first_tokens: int = 0

    def put(self, value: Tensor) -> None:
        self.puts += 1
        if self.puts == 2:
            self.first_at, self.first_tokens = seconds(self.device), value.numel()

    def end(self) -> None:
        """Nothing is buffered."""


class TransformersBaseline:
    """``generate()`` of transformers: plain, with prompt lookup, or assisted, at its defaults or at ``settings``.

    Assisted generation keeps what it adapts in the draft's generation configuration, across prompts as in a server.
    Each baseline has its own, and puts it in place only while it runs.
    """

    def __init__(self, pair: Pair, name: str, settings: Mapping[str, Any]) -> None:
        self.pair = pair
        self.assistant: PreTrainedModel | None = None
        self.settings: GenerationConfig | None = None
        self.options = dict(settings)
        if name.startswith(ASSISTED):
            assert pair.draft is not None
            self.assistant, self.options = pair.draft.module, {}
            own = self.assistant.generation_config
            known = {key: getattr(own, key) for key in _OF_ASSISTANTS if hasattr(own, key)}
            self.settings = GenerationConfig(**{**known, **settings})

    @torch.inference_mode()
    def run(self, prompt: list[int], max_new_tokens: int) -> ArmRun:
        """Decode one prompt greedily. Timed are the tokens after those that came first."""
        target, assistant = self.pair.target.module, self.assistant
        device = self.pair.target.spec.device
        ids = torch.tensor([prompt], device=device)
        clock, ends = _Clock(device), sorted(self.pair.end_tokens)
        targets_own, assistants_own = target.generation_config, assistant and assistant.generation_config
        started = seconds(device)
        try:
            # None of the checkpoint's own settings: penalties in them would make another baseline.
            target.generation_config = GenerationConfig(eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0)
            if assistant is not None:
                assistant.generation_config = self.settings
            with no_hints("generation"):
                output = target.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    streamer=clock,
                    **({} if assistant is None else {"assistant_model": assistant}),
                    **self.options,
                )
            if assistant is not None:
                self.settings = assistant.generation_config  # as it has adapted it
        finally:
            target.generation_config = targets_own
            if assistant is not None:
                assistant.generation_config = assistants_own
        ended = seconds(device)
        first_at = clock.first_at or ended
        tokens = output[0, len(prompt) :].tolist()
        timed = max(len(tokens) - clock.first_tokens, 0)
        # Of an output that is over with its first pass nothing is known: it took no seconds, rather than brought 0.
        return ArmRun(tokens, 0, timed, ended - first_at if timed else 0.0, first_at - started)


def transformers_arms(
    pair: Pair, max_new_tokens: int, gamma: int = DEFAULT_CONSTANT, specs: Sequence[str] = ()
) -> list[Arm]:
    """``generate()`` plain, with prompt lookup, assisted at its defaults and at a constant length, if it runs these.
    ``specs`` that are rules of transformers set the values of further arms."""
    if skeleton_of(pair.target) is None:
        return []
    chosen: dict[str, dict[str, Any]] = {GENERATE: {}, PROMPT_LOOKUP: _looked_up(), ASSISTED: {}}
    chosen[f"{ASSISTED_CONSTANT}:{gamma}"] = _assisted(0.0, gamma)
    for spec in specs:
        rule, _, written = spec.partition(":")
        if written and rule in _RULES:
            name, settings = _RULES[rule]
            chosen[f"{name}:{written}"] = settings(**PolicySpec.of(spec).arguments)
    assists = pair.draft is not None and skeleton_of(pair.draft) is not None
    return [
        Arm(name, partial(TransformersBaseline(pair, name, settings).run, max_new_tokens=max_new_tokens), outside=True)
        for name, settings in chosen.items()
        if assists or not name.startswith(ASSISTED)
    ]


def _assisted(
    threshold: float = 0.4, tokens: int = 20, adaptive: bool = False, gamma_max: int | None = None
) -> dict[str, Any]:
    """Where scikit-learn is installed, transformers moves a ``threshold`` above 0 whether or not it is ``adaptive``."""
    return dict(zip(_OF_ASSISTANTS, (min(tokens, gamma_max or tokens), "constant", threshold), strict=True))


def _looked_up(ngram: int = 2, tokens: int = 10, gamma_max: int | None = None) -> dict[str, Any]:
    return {"prompt_lookup_num_tokens": min(tokens, gamma_max or tokens), "max_matching_ngram_size": ngram}


_RULES: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "hf-confidence": (ASSISTED, _assisted),
    "hf-prompt-lookup": (PROMPT_LOOKUP, _looked_up),
}


PLAIN_PIPELINE, LOOKUP_PIPELINE, DRAFT_PIPELINE = "genai-generate", "genai-prompt-lookup", "genai-assisted"
NGRAM = 3  # longest that is looked up, as GenAI's own examples have it


class GenaiBaseline:
    """``LLMPipeline.generate`` over the pair's folders, greedy, in the precision of the pair's engine.

    The pipeline is opened with the first prompt, and holds weights of its own beside the pair's.
    """

    def __init__(self, pair: Pair, kind: str, length: int) -> None:
        self.pair, self.kind = pair, kind
        self.drafting = {} if kind == PLAIN_PIPELINE else {"num_assistant_tokens": length}
        self.drafting |= {"max_ngram_size": NGRAM} if kind == LOOKUP_PIPELINE else {}
        self.pipeline: Any = None

    def open(self) -> Any:
        import openvino_genai as genai

        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        settings |= FLOAT32 if self.pair.target.spec.engine == EXACT else {}
        how: dict[str, Any] = {}
        if self.kind == LOOKUP_PIPELINE:
            how["prompt_lookup"] = True
        if self.kind == DRAFT_PIPELINE:
            how["draft_model"] = genai.draft_model(self.pair.draft_name, "CPU", **settings)
        return genai.LLMPipeline(self.pair.target_name, "CPU", **how, **settings)

    def run(self, prompt: list[int], max_new_tokens: int) -> ArmRun:
        """Decode one prompt. Timed are the tokens after those that came first."""
        import openvino
        import openvino_genai as genai

        class Clock(genai.StreamerBase):  # type: ignore[misc]
            first_at, first_tokens = 0.0, 0

            def write(self, tokens: Any) -> Any:
                if not self.first_tokens:
                    self.first_at, self.first_tokens = time.perf_counter(), np.size(tokens)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                """Nothing is buffered."""

        self.pipeline = self.pipeline or self.open()
        config = genai.GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False)
        if ends := self.pair.end_tokens:
            config.eos_token_id, config.stop_token_ids = min(ends), set(ends)
        config.ignore_eos = not ends
        for name, value in self.drafting.items():
            setattr(config, name, value)
        ids, clock = np.array([prompt], np.int64), Clock()
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        started = time.perf_counter()
        tokens = list(self.pipeline.generate(inputs, config, clock).tokens[0])
        ended = time.perf_counter()
        timed = max(len(tokens) - clock.first_tokens, 0)
        # Of an output that is over with its first pass nothing is known.
        return ArmRun(tokens, 0, timed, ended - clock.first_at if timed else 0.0, clock.first_at - started)


def genai_arms(pair: Pair, max_new_tokens: int, gamma: int) -> list[Arm]:
    """The pipelines that run this pair; none where its target is no OpenVINO folder, or GenAI is not installed."""
    if not isinstance(pair.target, OpenvinoModel) or find_spec("openvino_genai") is None:
        return []
    kinds = [PLAIN_PIPELINE, LOOKUP_PIPELINE, *([DRAFT_PIPELINE] if isinstance(pair.draft, OpenvinoModel) else [])]
    return [
        Arm(
            kind if kind == PLAIN_PIPELINE else f"{kind}:{gamma}",
            partial(GenaiBaseline(pair, kind, gamma).run, max_new_tokens=max_new_tokens),
            outside=True,
        )
        for kind in kinds
    ]
