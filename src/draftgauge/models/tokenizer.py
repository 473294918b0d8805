"""A target's tokenizer: prompts to token ids, what ends a text, tokens to text, and what a pair must share.

All verbs go through ``encode_prompt``; ``answers_warning`` checks what came out.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import ModelError, PromptError, warn
from draftgauge.core.parts import Rendering
from draftgauge.core.prompts import Prompt, check_unicode
from draftgauge.models.folder import reference_path
from draftgauge.traces.trace import distinct_share

SHOWN = 5


def check_same_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Refuse a draft whose token ids mean something else to the target, compared entry by entry."""
    target_ids, draft_ids = target.get_vocab(), draft.get_vocab()
    if target_ids == draft_ids:
        return
    # An entry differs if the other side lacks the token or gives it another id.
    differing = sorted({index for _, index in target_ids.items() ^ draft_ids.items()})
    target_tokens = {index: token for token, index in target_ids.items()}
    draft_tokens = {index: token for token, index in draft_ids.items()}
    shown = difference(differing, target_tokens, draft_tokens, ("the target", "the draft"))
    unnamed = (
        " (the bundled one: name yours with --drafter)" if draft.name_or_path == str(reference_path("draft")) else ""
    )
    raise ModelError(
        f"target and draft{unnamed} have different vocabularies ({len(target_ids)} and {len(draft_ids)} tokens, "
        f"{len(differing)} ids differ: {shown}): choose a draft trained with the target's tokenizer"
    )


def difference(ids: Sequence[int], ours: Mapping[int, str], theirs: Mapping[int, str], owners: tuple[str, str]) -> str:
    meanings = [(index, _show(ours.get(index)), _show(theirs.get(index))) for index in ids[:SHOWN]]
    return "; ".join(f"{index} is {one} to {owners[0]}, {other} to {owners[1]}" for index, one, other in meanings)


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def _show(token: str | None) -> str:
    return "nothing" if token is None else repr(token)


def end_tokens(*sources: Any) -> frozenset[int]:
    """Ids that end a text: all that models (in both their configurations), configurations or tokenizers name."""
    end_ids: set[int] = set()
    for source in sources:
        model = getattr(source, "skeleton", None) or getattr(source, "module", source)
        for holder in (source, model, getattr(model, "config", None), getattr(model, "generation_config", None)):
            ids = getattr(holder, "eos_token_id", None)
            listed = [] if ids is None else ids if isinstance(ids, list | tuple | set | frozenset) else [ids]
            if not all(isinstance(token, int) for token in listed):
                raise ModelError(f"eos_token_id must be a token id or a list, not {ids!r}: mend the model's files")
            end_ids.update(listed)
    return frozenset(end_ids)


_INCOMPLETE = "\ufffd"
_CONTEXT = 4  # tokens before a piece: enough for a tokenizer to place its leading space


class IncrementalDecoder:
    """Decodes a growing output piece by piece; the pieces joined are the decoded output, special tokens left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder  # end-of-turn tokens are special here, and often among no named ones
        self._special = frozenset(tokenizer.all_special_ids) | {token for token, each in added.items() if each.special}
        self._before: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        if token in self._special:
            return self.finish()
        self._pending.append(token)
        piece = self._piece()
        return "" if piece.endswith(_INCOMPLETE) else self._flush(piece)

    def finish(self) -> str:
        return self._flush(self._piece()) if self._pending else ""

    def _piece(self) -> str:
        before = self._decode(self._before)
        return self._decode(self._before + self._pending)[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)) if tokens else ""

    def _flush(self, piece: str) -> str:
        self._before = (self._before + self._pending)[-_CONTEXT:]
        self._pending = []
        return piece


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
