"""How conversations become text: a system message, arguments of the chat template, how many turns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftgauge.core.artefacts import parse_json
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import Message, Prompt


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


def turns_of(prompts: Iterable[Prompt], turns: int) -> list[Prompt]:
    """Each user turn as a prompt of its own, up to ``turns`` of a prompt; what is no list of turns stays as it is.

    A later turn has its user's messages in ``turns`` and no ``messages`` yet: the answers between them are still to
    come. Its index is ``turns`` times that of its line, plus its place there, so that no filter changes it.
    """
    if turns == 1:
        return list(prompts)
    expanded: list[Prompt] = []
    for prompt in prompts:
        said = prompt.turns or ("",)
        first = replace(prompt, index=prompt.index * turns)
        if prompt.turns:
            first = replace(first, text="", messages=(Message("user", said[0]),), turns=said[:1])
        expanded.append(first)
        expanded += [
            replace(
                first,
                index=first.index + turn,
                identifier=f"{prompt.identifier}/{turn + 1}",
                messages=(),
                turns=said[: turn + 1],
                reference=None,
            )
            for turn in range(1, min(turns, len(said)))
        ]
    return expanded
