"""From prompts to token ids. All verbs go through ``encode_prompt``; ``answers_warning`` checks what came out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import PromptError, warn
from draftgauge.core.prompts import Prompt, check_unicode
from draftgauge.core.rendering import Rendering
from draftgauge.traces.repetition import distinct_share

Message = Mapping[str, Any]

PLAIN = Rendering()
_TEMPLATE_PARAMETERS = ("tools", "documents")  # of apply_chat_template: what is left is not the template's own
_REPEATING = 0.3  # share of distinct 4-grams below which an answer repeats itself
_USUAL = ("system", "user", "assistant")  # roles that templates write as they are given
_SHORT = 16  # tokens: too few to say that an answer repeats itself


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Message], rendering: Rendering = PLAIN
) -> list[int]:
    """Token ids of a prompt.

    Text is a user's message where the tokenizer has a chat template. Without one, or with ``rendering.chat`` False, it
    is taken as it is, with the tokenizer's own special tokens. A conversation goes through the chat template, opened
    for the assistant's answer; without a template its contents are joined by blank lines.

    Args:
        prompt: text, or messages with ``role``, ``content`` and what else the template reads, such as ``tool_calls``.
    """
    has_template = tokenizer.chat_template is not None
    if isinstance(prompt, str):
        check_unicode(prompt, "the prompt")
        if rendering.chat and not has_template:
            raise PromptError("the tokenizer has no chat template: leave out chat, and text is taken as it is")
        if has_template if rendering.chat is None else rendering.chat:
            prompt = [{"role": "user", "content": prompt}]
        elif rendering.system is not None:
            raise PromptError("plain text takes no system message: use the chat template, or write messages")
        elif rendering.template_args.get("tools"):
            raise PromptError("plain text takes no tools: use the chat template of a target that has one")
    if isinstance(prompt, str):
        ids = token_ids(tokenizer, prompt)
    else:
        if rendering.system is not None and prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": rendering.system}, *prompt]
        ids = _conversation_ids(tokenizer, prompt, rendering)
    if not ids:
        raise PromptError("the prompt is empty: it gives no token to start from")
    return ids


def _conversation_ids(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], rendering: Rendering
) -> list[int]:
    if messages[-1]["role"] == "assistant":
        raise PromptError(
            "the conversation ends with the assistant's message: end it with the one that is to be answered"
        )
    if tokenizer.chat_template is not None:
        return token_ids(tokenizer, render(tokenizer, messages, rendering.template_args), special=False)
    if rendering.template_args or any(message.get("tool_calls") for message in messages):
        raise PromptError(
            "the tokenizer has no chat template to give arguments to: leave out chat_template_args and tools"
        )
    return token_ids(tokenizer, "\n\n".join(message["content"] for message in messages))


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = True) -> list[int]:
    check_unicode(text, "the prompt")
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def keep_ends(prompts: Sequence[tuple[Any, list[int]]], longest: int) -> list[tuple[Any, list[int]]]:
    """The last ``longest`` tokens of each, with a warning where that leaves some out."""
    if long := sum(len(tokens) > longest for _, tokens in prompts):
        warn(
            f"{long} of {len(prompts)} prompts are longer than the {longest} tokens that there is room for: "
            "their beginning is left out, with what a chat template puts there",
        )
    return [(prompt, tokens[-longest:]) for prompt, tokens in prompts]


def encode_with(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, rendering: Rendering = PLAIN) -> list[int]:
    messages = [{**message.more, "role": message.role, "content": message.content} for message in prompt.messages]
    if prompt.template_args:
        rendering = replace(rendering, template_args={**rendering.template_args, **prompt.template_args})
    return encode_prompt(tokenizer, messages or prompt.text, rendering)


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    template_args: Mapping[str, Any] = PLAIN.template_args,
) -> str:
    """A conversation as text, ready for the assistant's answer; no message, tool or call may be left out."""
    template = _check_arguments(tokenizer, template_args)
    text = _apply_template(tokenizer, messages, template_args)
    # At the end of each message, as templates trim contents and cut the thinking off their beginnings.
    tools = {"tools": template_args["tools"]} if template_args.get("tools") else {}
    marked, expected = [], [("toolmark", len(tools.get("tools", ())), "tools")]
    for number, message in enumerate(messages, start=1):
        calls = {"tool_calls": message["tool_calls"]} if message.get("tool_calls") else {}
        mark, said = f"message{number}mark", bool(message["content"].strip())
        expected.append((mark, said, f"message {number}, of the role {message['role']!r}"))
        expected.append((f"call{number}mark", len(calls.get("tool_calls", ())), f"tool_calls of message {number}"))
        marked.append({**message, "content": message["content"] + mark, **_named(calls, f"call{number}mark")})
    seen = _apply_template(tokenizer, marked, {**template_args, **_named(tools, "toolmark")})
    if lost := [what for mark, count, what in expected if seen.count(mark) < count]:
        raise PromptError(
            f"the tokenizer's chat template leaves out {lost[0]}: leave it out, or give it a form and a role that the "
            "template knows"
        )
    for number, role in enumerate((str(message["role"]) for message in messages), start=1):
        if role not in _USUAL and not re.search(rf"['\"]{re.escape(role)}['\"]", template):
            raise PromptError(
                f"the tokenizer's chat template does not know the role {role!r} of message {number}: give it one that "
                "the template knows (of tools: assistant with tool_calls, and tool)"
            )
    return text


def _named(value: Any, mark: str) -> Any:
    """Tools or calls with a mark at the end of their names."""
    if isinstance(value, list):
        return [_named(each, mark) for each in value]
    if not isinstance(value, Mapping):
        return value
    name = {"name": value["name"] + mark} if isinstance(value.get("name"), str) else {}
    return {key: _named(each, mark) for key, each in value.items()} | name


def _apply_template(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template_args: Mapping[str, Any]
) -> str:
    conversation = [dict(message) for message in messages]
    try:
        return str(
            tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False, **template_args)
        )
    except Exception as error:  # a template is a program of strangers: it may divide by zero or call itself for ever
        raise PromptError(f"the tokenizer's chat template refuses these messages: {error}") from error


def _check_arguments(tokenizer: PreTrainedTokenizerBase, template_args: Mapping[str, Any]) -> str:
    """The template; refuses arguments that it would silently ignore, and those that are not the template's."""
    reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters) - set(_TEMPLATE_PARAMETERS)
    try:
        template = str(tokenizer.get_chat_template(tools=template_args.get("tools") or None))
    except ValueError as error:
        names = ", ".join(tokenizer.chat_template)
        raise PromptError(
            f"the tokenizer has the chat templates {names} and no default: name one of them default, or give --raw"
        ) from error
    for name in template_args:
        if name in reserved:
            raise PromptError(f"chat_template_args: {name!r} is set by draftgauge, not an argument of the template")
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise PromptError(f"chat_template_args: the tokenizer's chat template does not read {name!r}")
    return template


def answers_warning(answers: Sequence[Sequence[int]], end_tokens: frozenset[int] = frozenset()) -> str | None:
    """What looks wrong with answers, tokens without their ``end_tokens``: empty, or repeating; None if nothing."""
    contents = [[token for token in answer if token not in end_tokens] for answer in answers]
    empty = sum(not content for content in contents)
    repeating = sum(len(content) >= _SHORT and distinct_share([content]) < _REPEATING for content in contents)
    found = [f"{count} {what}" for count, what in ((empty, "are empty"), (repeating, "repeat themselves")) if count]
    if not found:
        return None
    return (
        f"of {len(answers)} answers {' and '.join(found)}: look at the rendered prompt; does the model expect its chat "
        "template, or, as a base model, plain text (--raw)?"
    )
