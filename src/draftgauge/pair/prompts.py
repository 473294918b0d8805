"""Which prompts a verb takes, and their token ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import PromptError, TraceError
from draftgauge.core.parts import Rendering
from draftgauge.core.prompts import (
    SPLITS,
    Message,
    Prompt,
    first_in_turn,
    first_per_task,
    read_prompts,
    turns_of,
    unsealed,
)
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import PAIR_FOLDER, TOOLS_FILE
from draftgauge.models.tokenizer import encode_with, end_tokens, keep_ends
from draftgauge.requests import PromptSpec
from draftgauge.traces.run import Run
from draftgauge.traces.trace import check_prompt_tokens

BUNDLED = "reference:"
ALL_SPLITS = "all"
SHOWN = 5  # prompts that a message names
log = logging.getLogger("draftgauge")

EncodedPrompt = tuple[Prompt, list[int]]


@dataclass(frozen=True)
class PromptEncoder:
    """What prompts need of a target: tokenizer, longest sequence, and, for later turns, its greedy ``answer``."""

    tokenizer: PreTrainedTokenizerBase
    context: int
    answer: Callable[[list[int], int], str] | None = None

    def encode(self, prompt: Prompt, rendering: Rendering) -> list[int]:
        return encode_with(self.tokenizer, prompt, rendering)


def encoder_of(model: CachedModel, tokenizer: PreTrainedTokenizerBase, context: int | None = None) -> PromptEncoder:
    def answer(tokens: list[int], max_new_tokens: int) -> str:
        settings = DecodingSettings(max_new_tokens, end_tokens=end_tokens(model, tokenizer))
        return str(tokenizer.decode(plain_decode(model, tokens, settings).tokens, skip_special_tokens=True))

    return PromptEncoder(tokenizer, context or model.spec.context, answer)


def prompt_file(prompts: str | Path | None, split: str = "test") -> Path:
    """The path that a prompts argument names; ``reference:SPLIT``, ``reference:tools``, ``reference:all`` and None are
    bundled prompts."""
    bundled = PAIR_FOLDER / "prompts"
    if prompts is not None and not str(prompts).startswith(BUNDLED):
        return Path(prompts)
    split = split if prompts is None else str(prompts).removeprefix(BUNDLED)
    if split == ALL_SPLITS:
        return bundled
    path = TOOLS_FILE if split == TOOLS_FILE.stem else bundled / f"{split}.jsonl"
    if not path.is_file():
        known = ", ".join((*SPLITS, TOOLS_FILE.stem))
        raise PromptError(f"the bundled pair has no prompts of split {split!r}: choose one of {known}")
    return path


def prompt_name(path: Path) -> str:
    # Bundled prompts are named by their split, so that the name holds on every machine.
    bundled = PAIR_FOLDER / "prompts"
    if path == bundled:
        return f"{BUNDLED}{ALL_SPLITS}"
    return f"{BUNDLED}{path.stem}" if path.parent == bundled or path == TOOLS_FILE else str(path)


def choose_prompts(spec: PromptSpec) -> tuple[Path, list[Prompt]]:
    path = prompt_file(spec.prompts, spec.split or "test")
    prompts = read_prompts(path, None, spec.tasks, spec.split)
    turns = turns_of(prompts if spec.split else unsealed(prompts), spec.turns)
    return path, first_in_turn(first_per_task(turns, spec.per_task), spec.limit)


def encode_prompts(
    model: PromptEncoder, prompts: Sequence[Prompt], path: Path, max_new_tokens: int, spec: PromptSpec
) -> list[EncodedPrompt]:
    """Token ids of prompts; those too long beside ``max_new_tokens`` are refused, cut or left out, as ``spec`` says."""
    longest = model.context - max_new_tokens
    if longest < 1:
        raise PromptError(f"max_new_tokens {max_new_tokens} fill the {model.context} tokens of the models: lower it")
    encoded: list[EncodedPrompt] = []
    for prompt in with_answers(model, prompts, spec.rendering, max_new_tokens, spec.long_prompts == "truncate"):
        try:
            encoded.append((prompt, model.encode(prompt, spec.rendering)))
        except PromptError as error:
            raise PromptError(f"{path}, prompt {prompt.identifier}: {error}") from error
    long = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) > longest]
    if long and spec.long_prompts == "error":
        shown = ", ".join(f"{prompt.identifier} ({len(tokens)} tokens)" for prompt, tokens in long[:SHOWN])
        more = f" and {len(long) - SHOWN} more" if len(long) > SHOWN else ""
        raise PromptError(
            f"{path}: {len(long)} of {len(encoded)} prompts are longer than the {longest} tokens that the models take "
            f"beside max_new_tokens {max_new_tokens} (by id: {shown}{more}): lower max_new_tokens, or choose "
            "--long-prompts truncate (keep their end) or skip"
        )
    if spec.long_prompts == "truncate":
        encoded = keep_ends(encoded, longest)
    encoded = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= longest]
    if not encoded:
        raise PromptError(f"{path}: every prompt is longer than {longest} tokens: choose --long-prompts truncate")
    log.info("the first prompt as the model reads it: %r", model.tokenizer.decode(encoded[0][1]))
    return encoded


def with_answers(
    model: PromptEncoder, prompts: Sequence[Prompt], rendering: Rendering, max_new_tokens: int, truncate: bool
) -> list[Prompt]:
    """The prompts, later turns (see :func:`draftgauge.core.prompts.turns_of`) behind the conversation so far, which
    the target answers greedily.

    A conversation that leaves no room for an answer is not answered any more, unless it may be truncated. Its next turn
    is longer still, and is treated as every prompt that is too long.
    """
    answers: dict[tuple[Message, ...], str] = {}
    joined = []
    for prompt in prompts:
        if prompt.messages or prompt.text:
            joined.append(prompt)
            continue
        messages: tuple[Message, ...] = ()
        for said in prompt.turns:
            if messages and messages not in answers:
                tokens = model.encode(replace(prompt, messages=messages), rendering)
                room = model.context - max_new_tokens
                fits = len(tokens) <= room or truncate
                assert model.answer is not None
                answers[messages] = model.answer(tokens[-room:], max_new_tokens) if fits else ""
            if messages:
                messages += (Message("assistant", answers[messages]),)
            messages += (Message("user", said),)
        joined.append(replace(prompt, messages=messages))
    return joined


def prompts_of(run: Run, spec: PromptSpec | None = None, among: Collection[int] | None = None) -> list[EncodedPrompt]:
    """The prompts of a run with the token ids in its trace: those of ``spec``, with an index in ``among``."""
    spec = spec or PromptSpec()
    check_prompt_tokens(run.trace)
    asked = [
        (Prompt(p.index, p.identifier, p.task, p.split), list(p.prompt_token))
        for p in run.of_tasks(spec.tasks).prompts
        if spec.split in (None, p.split) and (among is None or p.index in among)
    ]
    if not asked:
        raise TraceError(f"{run} holds none of these prompts: ask for others, or record them")
    chosen = first_in_turn(first_per_task([prompt for prompt, _ in asked], spec.per_task), spec.limit)
    places = {prompt.index for prompt in chosen}
    return [(prompt, tokens) for prompt, tokens in asked if prompt.index in places]
