"""Answers that a serving engine wrote in OpenAI's batch output format, one JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.artefacts import read_json_lines
from draftgauge.core.errors import PromptError

NO_TEXT = "has no text: it was cut while the model was thinking, or calls a tool"
PARTED = (
    "has its reasoning or tool calls beside its text: let the engine write token_ids too, which hold all (vLLM's "
    "return_token_ids)"
)
_BESIDE = ("reasoning_content", "reasoning", "tool_calls", "function_call")


@dataclass(frozen=True)
class ServedAnswer:
    """One answer."""

    text: str  # of the assistant, or the completion
    finish: str  # "stop" or "length", as the engine says
    token_ids: tuple[int, ...] = ()  # where the engine wrote them (vLLM's ``return_token_ids``)
    parted: bool = False  # the engine took the reasoning or calls of tools out of the text
    flaw: str = ""  # why it cannot be used, as the rest of a sentence about it; empty if it can


def read_outputs(path: Path) -> dict[str, ServedAnswer]:
    """Read a file of answers by their ``custom_id``.

    Each line has ``custom_id`` and ``response.body.choices``, of which the first is taken: ``message.content`` or
    ``text``, and ``finish_reason``. Lines of failed requests are left out. Answers without a text, or with reasoning or
    tool calls beside it and no token ids, have a flaw.
    """
    answers: dict[str, ServedAnswer] = {}
    for where, entry in read_json_lines(path, "file of answers", "give the output file of a batch", PromptError):
        identifier = entry.get("custom_id") if isinstance(entry, dict) else None
        if not isinstance(identifier, str):
            raise PromptError(f"{where}: has no custom_id; give the output file of a batch in OpenAI's format")
        if identifier in answers:
            raise PromptError(f"{where}: the custom_id {identifier!r} comes a second time")
        if (answer := _answer(entry, where)) is not None:
            answers[identifier] = answer
    if not answers:
        raise PromptError(f"{path} holds no answer of a request that succeeded")
    return answers


def _answer(entry: Mapping[str, Any], where: str) -> ServedAnswer | None:
    """The answer of a line; None if its request failed."""
    response = entry.get("response")
    if entry.get("error") or not isinstance(response, dict) or response.get("status_code", 200) != 200:
        return None
    try:
        choice = response["body"]["choices"][0]
        message = choice["message"] if "message" in choice else {"content": choice["text"]}
        text, parted = message["content"], any(message.get(key) for key in _BESIDE)
        tokens = choice.get("token_ids") or ()
        if not isinstance(text, str | None) or not all(isinstance(token, int) for token in tokens):
            raise TypeError
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise PromptError(f"{where}: its response has no choice with a text: give the output of completions") from error
    flaw = NO_TEXT if text is None else PARTED if parted and not tokens else ""
    return ServedAnswer(text or "", str(choice.get("finish_reason") or "length"), tuple(tokens), parted, flaw)
