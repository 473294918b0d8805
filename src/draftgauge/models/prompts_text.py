"""From a prompt, plain or a conversation, to token ids."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import PromptError
from draftgauge.core.prompts import Prompt, check_unicode
from draftgauge.core.rendering import Rendering

Message = Mapping[str, str]

PLAIN = Rendering()
_OF_TEMPLATES = ("tools", "documents")  # parameters of apply_chat_template that are the template's own


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Message], rendering: Rendering = PLAIN
) -> list[int]:
    """Token ids of a prompt.

    A conversation goes through the tokenizer's chat template, opened for the assistant's answer; where there is none,
    its contents are joined by blank lines. Plain text is taken as it is, with the special tokens that the tokenizer
    itself adds.

    Args:
        tokenizer: of the target.
        prompt: text, or messages with ``role`` and ``content``.
        rendering: a system message, arguments of the template, whether plain text is a user's message.

    Raises:
        PromptError: if the prompt is empty, not Unicode or answered already, the template refuses it or does not know
            an argument, or a system message is asked for before plain text, or plain text is a user's message and there
            is no template.
    """
    if isinstance(prompt, str) and rendering.chat:
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, str):
        if rendering.system is not None:
            raise PromptError("plain text takes no system message: ask for chat, or write the prompt as messages")
        ids = token_ids(tokenizer, prompt)
    else:
        messages = with_system(prompt, rendering.system)
        if messages[-1]["role"] == "assistant":
            raise PromptError(
                "the conversation ends with the assistant's message: end it with the one that is to be answered"
            )
        if tokenizer.chat_template is not None:
            text = render(tokenizer, messages, rendering.template_args)
            ids = token_ids(tokenizer, text, special=False)
        elif rendering.template_args:
            raise PromptError("the tokenizer has no chat template to give arguments to: leave out chat_template_args")
        elif rendering.chat:
            raise PromptError("the tokenizer has no chat template: leave out chat, and plain text is taken as it is")
        else:
            ids = token_ids(tokenizer, "\n\n".join(message["content"] for message in messages))
    if not ids:
        raise PromptError("the prompt is empty: it gives no token to start from")
    return ids


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = True) -> list[int]:
    """Token ids of a text of any length; whether it is too long for a model, the caller says.

    Args:
        tokenizer: its own warning of long texts is kept off.
        text: what is tokenised.
        special: whether to add the special tokens that the tokenizer itself adds.

    Raises:
        PromptError: if the text is not Unicode: it holds half of a surrogate pair, as bytes read in another encoding
            leave behind.
    """
    check_unicode(text, "the prompt")
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def encode_prompts(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, longest: int
) -> list[tuple[str, list[int]]]:
    """Task and token ids of each prompt; one longer than ``longest`` keeps its end."""
    return [(prompt.task, encode_with(tokenizer, prompt)[-longest:]) for prompt in prompts]


def encode_with(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, rendering: Rendering = PLAIN) -> list[int]:
    """Token ids of a prompt of a file, conversations through the chat template."""
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    return encode_prompt(tokenizer, messages or prompt.text, rendering)


def with_system(messages: Sequence[Message], system: str | None) -> Sequence[Message]:
    """The messages behind a system message, unless they begin with one of their own."""
    if system is None or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    template_args: Mapping[str, Any] = PLAIN.template_args,
) -> str:
    """A conversation as text, ready for the assistant's answer."""
    _check_arguments(tokenizer, template_args)
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(m) for m in messages], add_generation_prompt=True, tokenize=False, **template_args
            )
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise PromptError(f"the tokenizer's chat template refuses these messages: {error}") from error


def _check_arguments(tokenizer: PreTrainedTokenizerBase, template_args: Mapping[str, Any]) -> None:
    """Refuse arguments that the template would silently ignore, and those that are not the template's."""
    reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters) - set(_OF_TEMPLATES)
    template = str(tokenizer.chat_template)
    for name in template_args:
        if name in reserved:
            raise PromptError(f"chat_template_args: {name!r} is set by draftgauge, not an argument of the template")
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise PromptError(f"chat_template_args: the tokenizer's chat template does not read {name!r}")
