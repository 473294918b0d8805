"""Prompts of several turns: the target answers the earlier ones, greedily, before a later one is put to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from draftgauge.core.prompts import Message, Prompt
from draftgauge.core.rendering import Rendering
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.base import CachedModel


class PromptEncoder(Protocol):
    """What a pair or a target alone can do with prompts."""

    @property
    def context(self) -> int:
        """Longest sequence in tokens."""

    def encode(self, prompt: Prompt, rendering: Rendering) -> list[int]:
        """Token ids of a prompt."""

    def answer(self, tokens: list[int], max_new_tokens: int) -> str:
        """The target's greedy answer."""


def greedy_answer(
    target: CachedModel, tokenizer: PreTrainedTokenizerBase, tokens: list[int], settings: DecodingSettings
) -> str:
    """The text that a target answers, without special tokens."""
    return str(tokenizer.decode(plain_decode(target, tokens, settings).tokens, skip_special_tokens=True))


def with_answers(
    model: PromptEncoder, prompts: Sequence[Prompt], rendering: Rendering, max_new_tokens: int, truncate: bool
) -> list[Prompt]:
    """The prompts, later turns behind the conversation so far; see :func:`draftgauge.core.rendering.turns_of`.

    A conversation that leaves no room for an answer is not answered any more: with its next turn it is longer still,
    and what becomes of long prompts becomes of it.

    Args:
        model: who answers.
        prompts: later turns have ``turns`` and no ``messages``.
        rendering: how they become text.
        max_new_tokens: of each answer.
        truncate: answer the end of a conversation that is too long.
    """
    answers: dict[tuple[Message, ...], str] = {}

    def answer(conversation: tuple[Message, ...], prompt: Prompt) -> str:
        if conversation not in answers:
            tokens = model.encode(replace(prompt, messages=conversation), rendering)
            room = model.context - max_new_tokens
            fits = len(tokens) <= room or truncate
            answers[conversation] = model.answer(tokens[-room:], max_new_tokens) if fits else ""
        return answers[conversation]

    def joined(prompt: Prompt) -> Prompt:
        if prompt.messages or prompt.text:
            return prompt
        messages: tuple[Message, ...] = ()
        for said in prompt.turns:
            if messages:
                messages += (Message("assistant", answer(messages, prompt)),)
            messages += (Message("user", said),)
        return replace(prompt, messages=messages)

    return [joined(prompt) for prompt in prompts]
