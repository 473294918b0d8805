"""Answers of a serving engine as outputs of a target: as token ids, and where they are not the target's choice.

They are read in OpenAI's batch output format, one JSON object a line.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from draftgauge.core.artefacts import parse_json, read_json_lines
from draftgauge.core.errors import DraftgaugeError, PromptError
from draftgauge.core.files import append_lines
from draftgauge.decoding.recorder import Answer
from draftgauge.models.tokenizer import token_ids
from draftgauge.pair.prompts import EncodedPrompt

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


DIFFERENCES_NAME = "differences.jsonl"
MOST_DIFFERING = 0.5  # of an output's positions: more means another model, another tokenizer, or a high temperature
MOST_LEFT_OUT = 0.5  # of the answers: more means that the file is not what it is taken for
CUT_CHARACTER = "\ufffd"  # what a tokenizer decodes from some of a character's bytes; engines hold them back


class UsableAnswers(NamedTuple):
    """Prompts with their answers, by the prompt's index, and why others cannot be used, by the prompt's id."""

    prompts: list[EncodedPrompt]
    answers: dict[int, Answer]
    left_out: dict[str, str]


def answered_prompts(
    path: Path, encoded: Sequence[EncodedPrompt]
) -> tuple[list[EncodedPrompt], dict[int, ServedAnswer]]:
    """The prompts that have an answer, matched by the prompt's id, and the answers by the prompt's index."""
    answers = read_outputs(path)
    names = Counter(prompt.identifier for prompt, _ in encoded)
    if twice := [name for name in names if names[name] > 1 and name in answers]:
        raise PromptError(f"{path} answers {_some(twice)}, and several prompts have that id: give every prompt its own")
    kept = [(prompt, tokens) for prompt, tokens in encoded if prompt.identifier in answers]
    if not kept:
        raise PromptError(
            f"{path} answers none of the prompts: its custom_id are {_some(answers)}, and the prompts' ids "
            f"{_some(prompt.identifier for prompt, _ in encoded)}"
        )
    return kept, {prompt.index: answers[prompt.identifier] for prompt, _ in kept}


def usable_answers(
    path: Path,
    encoded: Sequence[EncodedPrompt],
    tokenizer: PreTrainedTokenizerBase,
    end_tokens: frozenset[int],
    limit: int,
) -> UsableAnswers:
    """The answers of :func:`answered_prompts` as token ids, without those that cannot be used; at most half of them."""
    answered, served = answered_prompts(path, encoded)
    usable, left_out = UsableAnswers([], {}, {}), {}
    for prompt, tokens in answered:
        try:
            usable.answers[prompt.index] = answer_tokens(served[prompt.index], tokenizer, end_tokens, limit)
        except PromptError as error:
            left_out[prompt.identifier] = str(error)
        else:
            usable.prompts.append((prompt, tokens))
    if len(left_out) > MOST_LEFT_OUT * len(answered):
        raise PromptError(f"{path}: {said_left_out(left_out, len(answered))}")
    return usable._replace(left_out=left_out)


def said_left_out(left_out: Mapping[str, str], answers: int) -> str:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for identifier, reason in left_out.items():  # what follows the colon concerns one answer only
        groups[reason.partition(":")[0]].append(identifier)
    reasons = [f"{len(ids)} ({_some(ids)}): it {left_out[ids[0]]}" for ids in groups.values()]
    return f"{len(left_out)} of {answers} answers cannot be used; of " + "; of ".join(reasons)


def answer_tokens(
    served: ServedAnswer, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int], limit: int
) -> Answer:
    """Token ids of an answer, with its end token, cut at the limit."""
    if served.flaw:
        raise PromptError(served.flaw)
    tokens = list(served.token_ids)
    if strange := [token for token in tokens if not 0 <= token < len(tokenizer)]:
        raise PromptError(
            f"is written with another tokenizer: it holds the token {max(strange)}, and the target's tokenizer has "
            f"{len(tokenizer)}"
        )
    if not tokens:
        tokens = token_ids(tokenizer, served.text, special=False)
    decoded = tokenizer.decode(tokens, skip_special_tokens=True)
    whole, text = (each.rstrip(CUT_CHARACTER).strip() for each in (decoded, served.text))
    if not (text in whole if served.parted else whole == text):
        raise PromptError("is written with another tokenizer: the target's gives another text for its tokens")
    ends = next((position for position, token in enumerate(tokens) if token in end_tokens), None)
    if ends is not None:
        tokens = tokens[: ends + 1]
    elif served.finish == "stop" and end_tokens:
        own = tokenizer.eos_token_id
        tokens.append(own if own in end_tokens else min(end_tokens))
    if not tokens:
        raise PromptError("is empty")
    cut = tokens[:limit]
    return Answer(cut, "stop" if cut[-1] in end_tokens else "length")


def note_differences(folder: Path, index: int, differs: Sequence[int], length: int) -> None:
    """Append the positions of a prompt's output that are not the target's choice; its last line counts."""
    if len(differs) > MOST_DIFFERING * length:
        raise DraftgaugeError(
            f"prompt {index}: {len(differs)} of {length} tokens are not the target's choice: the answers are of "
            "another model, tokenizer or chat template, or were sampled; give answers decoded at temperature 0"
        )
    append_lines(folder / DIFFERENCES_NAME, json.dumps({"prompt": index, "tokens": length, "differs": list(differs)}))


def read_differences(folder: Path) -> dict[int, tuple[int, ...]]:
    """What :func:`note_differences` wrote, by prompt; empty where the target decoded the outputs itself."""
    path = folder / DIFFERENCES_NAME
    if not path.exists():
        return {}
    differences: dict[int, tuple[int, ...]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = parse_json(line, str(path))
            differences[int(entry["prompt"])] = tuple(map(int, entry["differs"]))
        except (KeyError, TypeError, ValueError):  # the last line, if a kill cut it: its prompt is recorded again
            continue
    return differences


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (" ..." if len(listed) > 3 else "")
