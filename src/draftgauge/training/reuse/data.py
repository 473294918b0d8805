"""From a request to the batches of its steps, by way of a file of answers that other runs share.

Prompts are read or generated, and the target answers. Which conversations a step sees follows from the seed and the
step's number alone: of every design, after every resume.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import DraftgaugeError, PromptError, warn
from draftgauge.core.files import alone, require_writable_file
from draftgauge.core.parts import UNCOMPRESSED, Rendering, generator
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import TRAIN, Message, Prompt, for_training, prompts_sha256, read_prompts
from draftgauge.drafters.reuse.persistence import target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import REFERENCE, bundled_questions
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.spec import check_tokens
from draftgauge.models.tokenizer import encode_with, end_tokens
from draftgauge.training.reuse.answers import (
    Answers,
    Conversation,
    check_description,
    describe,
    make_answers,
    read_answers,
)
from draftgauge.training.reuse.request import TrainingSpec


def source_of(request: TrainingSpec) -> str:
    """Where the prompts come from, in words that tell two sources apart."""
    if request.prompts is not None:
        count = "all" if request.questions is None else f"first {request.questions}"
        everything = read_prompts(request.prompts)
        split = "" if len(for_training(everything)) == len(everything) else f", split {TRAIN}"
        return f"prompt file {prompts_sha256(request.prompts)[:16]}, {count}{split}{_rendered(request)}"
    if not is_reference(request.target):
        raise DraftgaugeError(
            f"questions come with the bundled target only: "
            f"give a prompt file for {request.target} to answer (--prompts FILE)"
        )
    return f"bundled questions, first {question_count(request)}{_rendered(request)}"


def _rendered(request: TrainingSpec) -> str:
    rendering = request.rendering()
    return "" if rendering == Rendering() else f", rendered with {json.dumps(to_mapping(rendering), sort_keys=True)}"


def is_reference(target: str) -> bool:
    return target.split("/")[0] == REFERENCE


def question_count(request: TrainingSpec) -> int:
    if request.prompts is not None:
        return len(for_training(read_prompts(request.prompts))[: request.questions])
    return len(bundled_questions()[: request.questions])


def prompt_tokens(request: TrainingSpec, tokenizer: PreTrainedTokenizerBase, longest: int) -> list[list[int]]:
    """Token ids of the prompts, those left out that are longer than ``longest``."""
    if longest < 1:
        raise PromptError(
            f"new_tokens {request.new_tokens} leave no room for a prompt in what the target takes: lower it"
        )
    encoded = []
    for prompt in _prompts(request):
        try:
            encoded.append(encode_with(tokenizer, prompt, request.rendering()))
        except PromptError as error:
            raise PromptError(f"{request.prompts}, prompt {prompt.identifier}: {error}") from error
    fitting = [tokens for tokens in encoded if len(tokens) <= longest]
    if not fitting:
        raise PromptError(
            f"every prompt is longer than the {longest} tokens that leave room for an answer: give shorter prompts"
        )
    if all(len(tokens) >= request.length for tokens in fitting):
        raise PromptError(
            f"no answer would begin within the first {request.length} tokens of its conversation: raise length, or "
            "give shorter prompts"
        )
    if len(fitting) < len(encoded):
        warn(
            f"{len(encoded) - len(fitting)} of {len(encoded)} prompts are left out: they are longer than the {longest} "
            "tokens that leave room for an answer",
        )
    return fitting


def _prompts(request: TrainingSpec) -> list[Prompt]:
    if request.prompts is None:
        questions = bundled_questions()[: request.questions]
        asked = [tuple(Message(said["role"], said["content"]) for said in each) for each in questions]
        return [Prompt(number, str(number), "", TRAIN, messages=each) for number, each in enumerate(asked)]
    everything = for_training(read_prompts(request.prompts))
    prompts = everything[: request.questions]
    if request.questions == TrainingSpec.questions and len(prompts) < len(everything):
        warn(
            f"the first {len(prompts)} of the {len(everything)} training prompts in {request.prompts} are taken: "
            "--questions none takes all",
        )
    return prompts


def load_target(request: TrainingSpec) -> CachedModel:
    target = load_model(
        request.target, request.compression, request.device, trust_remote_code=request.trust_remote_code
    )
    target.module.requires_grad_(False)
    return target


def existing_answers(request: TrainingSpec, path: Path, fingerprint: str) -> Answers | None:
    """The answers in a file, if it is there."""
    if not path.exists():
        return None
    answers = read_answers(path)
    wanted = {"target_fingerprint": fingerprint, "source": source_of(request), "new_tokens": request.new_tokens}
    enough = max(request.length, answers.description.get("length", 0))  # a shorter length finds all that it uses
    wanted |= {"compression": request.compression, "length": enough}
    check_description(path, {"compression": UNCOMPRESSED, "length": enough} | dict(answers.description), wanted)
    return answers


def answers_of(request: TrainingSpec, path: Path, target: CachedModel, progress: Progress = silent) -> Answers:
    """Read the answers of a request, or have the target give them. Of several processes at once, one makes them."""
    fingerprint = target_fingerprint(target.module)
    require_writable_file(path)
    with alone(path):
        answers = existing_answers(request, path, fingerprint)
        if answers is not None:
            return answers
        source = source_of(request)
        progress("questions", 0, 1)
        tokenizer = load_tokenizer(request.target, request.trust_remote_code)
        fitting = prompts = prompt_tokens(request, tokenizer, target.spec.context - request.new_tokens)
        if request.answers is None:  # a file that is named is shared, also with runs of a greater length
            prompts = [tokens for tokens in fitting if len(tokens) < request.length]
        for tokens in prompts:
            check_tokens(target.spec, tokens)
        progress("questions", 1, 1)
        description = describe(fingerprint, prompts, request.new_tokens, source)
        if request.compression != UNCOMPRESSED:  # the fingerprint is of the files, which say nothing of it
            description["compression"] = request.compression
        if len(prompts) < len(fitting):
            description |= {"length": request.length, "left_out": len(fitting) - len(prompts)}
        return make_answers(path, description, target.module, prompts, end_tokens(target, tokenizer), progress)


def token_counts(answers: Answers, vocabulary: int) -> Tensor:
    """``[vocabulary]`` how often every token stands in an answer, for the choice of a draft vocabulary."""
    tokens = [torch.from_numpy(c.tokens[c.prompt :].astype("int64")) for c in answers.conversations]
    return torch.cat(tokens).bincount(minlength=vocabulary)


Value = TypeVar("Value")

POOL_BATCHES = 16  # batches among whose conversations lengths are matched: little padding, and still a random order
ROUND = 8  # sequences are padded to a multiple of this: fewer shapes, better tiles


@dataclass(frozen=True)
class Batch:
    """Conversations side by side, padded on the right.

    An *anchor* is a position ``t``; depth ``k`` of its chain takes in token ``t + 1 + k`` and predicts token ``t + 2 +
    k``.

    Attributes:
        index: ``[B]`` which conversations these are.
        tokens: ``[B, T]`` int64; padding is token 0 and never looked at by what precedes it.
        prompt: ``[B]`` int64, tokens that are the prompt; on the CPU, as ``length``, so that no device is waited for.
        length: ``[B]`` int64, tokens that are not padding.
        first: the first anchor that any conversation trains on; those before are context only.
        anchors: how many anchors follow from ``first``; ``T`` leaves room for all depths of each.
        drawn: ``[B, A]`` int64 on the CPU, the anchors that are trained from, ascending, and -1 for padding; None
            trains from all.
    """

    index: tuple[int, ...]
    tokens: Tensor
    prompt: Tensor
    length: Tensor
    first: int
    anchors: int
    drawn: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        return replace(self, tokens=self.tokens.to(device, non_blocking=True))

    def trained(self, depth: int) -> Tensor:
        """``[B, anchors]`` bool: where a depth is trained, since anchor and token to predict lie in the answer. The
        first anchor is two before the answer: its input is the last token of the prompt.
        """
        anchor = self.positions()
        return (anchor >= self.prompt[:, None] - 2) & (anchor + 2 + depth < self.length[:, None])

    def positions(self) -> Tensor:
        """``[B, A]`` or ``[1, A]`` int64: the anchors that rows of states belong to."""
        return torch.arange(self.first, self.first + self.anchors)[None] if self.drawn is None else self.drawn

    def taught(self) -> Tensor:
        """``[B, T]`` bool: the positions whose predictions by the target some depth is trained on."""
        position = torch.arange(self.tokens.shape[1])
        return (position >= self.prompt[:, None] - 1) & (position + 1 < self.length[:, None])


def usable(conversations: Sequence[Conversation], length: int, depths: int) -> list[Conversation]:
    """Conversations cut to ``length`` tokens, without those of a prompt under two tokens, or of no answer then."""
    cut = (Conversation(c.tokens[:length], c.prompt) for c in conversations)
    kept = [c for c in cut if c.prompt >= 2 and len(c.tokens) > c.prompt]
    if not kept:
        raise DraftgaugeError(f"no answer begins within the first {length} tokens of its conversation: raise length")
    if all(len(c.tokens) < depths + 2 for c in kept):
        raise DraftgaugeError(
            f"{depths} draft steps are more than the longest conversation of {max(len(c.tokens) for c in kept)} "
            "tokens holds"
        )
    return kept


def collate(
    conversations: Sequence[Conversation],
    index: Sequence[int],
    depths: int,
    drawn: Sequence[NDArray[np.int64]] | None = None,
) -> Batch:
    """Put conversations side by side, with room behind the longest for all depths of its last anchor.

    Args:
        drawn: anchors of each to train from; all if None.
    """
    chosen = [conversations[i] for i in index]
    first = max(0, min(c.prompt for c in chosen) - 2)
    anchors = max(len(c.tokens) for c in chosen) - 2 - first
    anchors += -anchors % ROUND
    tokens = torch.zeros((len(chosen), first + anchors + depths + 1), dtype=torch.int64)
    for row, c in enumerate(chosen):
        tokens[row, : len(c.tokens)] = torch.from_numpy(c.tokens.astype(np.int64))
    prompt, length = (torch.tensor(values) for values in ([c.prompt for c in chosen], [len(c.tokens) for c in chosen]))
    rows = [torch.from_numpy(each) for each in drawn or ()]
    padded = pad_sequence(rows, batch_first=True, padding_value=-1) if rows else None
    return Batch(tuple(index), tokens, prompt, length, first, anchors, padded)


def draw_anchors(conversation: Conversation, most: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    every = np.arange(conversation.prompt - 2, len(conversation.tokens) - 2)
    return every if most is None or len(every) <= most else np.sort(rng.choice(every, most, replace=False))


def trained_positions(anchors: Sequence[NDArray[np.int64]], conversations: Sequence[Conversation], depth: int) -> int:
    return sum(int((a + 2 + depth < len(c.tokens)).sum()) for a, c in zip(anchors, conversations, strict=True))


class Recent(Generic[Value]):
    """The values of the two keys asked for last; ``lru_cache`` of a bound method would make a cycle, freed late."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}

    def get(self, key: int, make: Callable[[int], Value]) -> Value:
        value = self._values.pop(key) if key in self._values else make(key)
        self._values = dict([*self._values.items(), (key, value)][-2:])
        return value


class DataOrder:
    """The conversations of every step.

    An epoch shuffles all of them. Pools of consecutive ones are sorted by prompt and then by answer length and cut into
    batches, whose order is shuffled within the pool.
    """

    def __init__(self, conversations: Sequence[Conversation], batch: int, seed: int) -> None:
        self.batch, self.seed = min(batch, len(conversations)), seed
        self._prompt = np.array([c.prompt for c in conversations])
        self._answer = np.array([len(c.tokens) - c.prompt for c in conversations])
        self.epoch_steps = len(conversations) // self.batch
        self._epochs = Recent[NDArray[np.int64]]()

    def step(self, step: int) -> NDArray[np.int64]:
        epoch, number = divmod(step, self.epoch_steps)
        return self._epochs.get(epoch, self._make_epoch)[number]

    def _make_epoch(self, epoch: int) -> NDArray[np.int64]:
        rng = generator(self.seed, "order", epoch)
        whole = self.epoch_steps * self.batch  # a remainder waits for another epoch's shuffle
        order = rng.permutation(len(self._prompt))[:whole]
        size = POOL_BATCHES * self.batch
        return np.concatenate([self._cut(order[start : start + size], rng) for start in range(0, len(order), size)])

    def _cut(self, pool: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """``[batches, batch]`` from one pool: alike in prompt length by quarters, then alike in answer length."""
        by_prompt = pool[np.argsort(self._prompt[pool], kind="stable")]
        quarter = max(self.batch, -(-len(pool) // 4 // self.batch) * self.batch)
        parts = [by_prompt[start : start + quarter] for start in range(0, len(pool), quarter)]
        ordered = np.concatenate([part[np.argsort(self._answer[part], kind="stable")] for part in parts])
        return rng.permutation(ordered.reshape(-1, self.batch))
