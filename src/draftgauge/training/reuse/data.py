"""From a request to its answers: read or generate prompts, let the target answer, keep a file that other runs share."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import DraftgaugeError, PromptError, warn
from draftgauge.core.files import require_writable_file
from draftgauge.core.parts import UNCOMPRESSED
from draftgauge.core.process import alone
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import TRAIN, Message, Prompt, for_training, prompts_sha256, read_prompts
from draftgauge.core.rendering import Rendering
from draftgauge.drafters.reuse.persistence import target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import REFERENCE, bundled_questions
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.spec import check_tokens
from draftgauge.models.tokenizer import encode_with, end_tokens
from draftgauge.training.reuse.answers import Answers, check_description, describe, make_answers, read_answers
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
