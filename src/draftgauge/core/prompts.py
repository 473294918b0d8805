"""Prompt files: JSON Lines, one prompt a line; a folder stands for all of its files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

from draftgauge.core.errors import PromptError

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
SEALED = "sealed"  # of prompts that are judged on where they are asked for by name, and read for nothing else


@dataclass(frozen=True)
class Message:
    """One message of a conversation: ``role`` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True)
class Prompt:
    """One prompt: either ``text`` or ``messages``.

    Attributes:
        index: position in its file, counted from 0 over the prompts (blank lines do not count, filters do not change
            it).
        identifier: ``id`` or ``question_id`` of the line, else the index as text.
        task: ``task`` of the line, else its ``category``, else the file's name without its ending.
        split: "train", "validation", "test" or "" where the line names none.
        text: the prompt as it is; "" where there are messages.
        messages: a conversation for the model's chat template; empty where there is text.
        turns: of a line with ``turns``, all that the user says; ``text`` is the first of them.
        reference: an answer to compare with, the first one if the line has several; None where it has none.
    """

    index: int
    identifier: str
    task: str
    split: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    reference: str | None = None
    turns: tuple[str, ...] = ()


def read_prompts(
    path: Path, limit: int | None = None, tasks: Collection[str] | None = None, split: str | None = None
) -> list[Prompt]:
    """Read a prompt file.

    Each line is an object with ``prompt`` (text), ``turns`` (list of texts as in MT-bench, whose first is the text) or
    ``messages`` (list of ``{"role", "content"}``), and optionally ``task`` or ``category``, ``id`` or
    ``question_id``, ``split`` ("train", "validation" or "test") and ``reference``. Blank lines are skipped.

    Args:
        path: the file, UTF-8, or a folder: its ``*.jsonl`` files one after the other, in the order of their names.
        limit: take the first ones only, after ``tasks`` and ``split``.
        tasks: take these tasks only.
        split: take this split only.

    Raises:
        PromptError: if the file is missing, empty, or a line is not as above (file and line are named), or nothing is
            left.
    """
    prompts = _read_all(path)
    for name in tasks or ():
        if all(prompt.task != name for prompt in prompts):
            raise PromptError(f"{path} has no task {name!r}; it has {_listed(prompt.task for prompt in prompts)}")
    wanted = [p for p in prompts if (not tasks or p.task in tasks) and (split is None or p.split == split)]
    if not wanted:
        raise PromptError(
            f"{path} has no such prompts with split {split!r}; its splits: "
            f"{_listed(p.split or '(none)' for p in prompts)}"
        )
    if limit is not None and limit < 1:
        raise PromptError(f"the limit of prompts is {limit}, must be at least 1")
    return wanted[:limit]


class HasTask(Protocol):
    """A prompt, or what became of one."""

    @property
    def task(self) -> str:
        """Its task."""


OfTask = TypeVar("OfTask", bound=HasTask)


def in_turn(prompts: Iterable[OfTask]) -> list[OfTask]:
    """The prompts with their tasks in turn, so that the first few are of every task."""
    by_task: dict[str, list[OfTask]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    turns = chain.from_iterable(zip_longest(*by_task.values()))
    return [prompt for prompt in turns if prompt is not None]


def for_training(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those to learn from: of prompts that name the split "train" these alone, else all."""
    return [prompt for prompt in prompts if prompt.split == TRAIN] or list(prompts)


def for_judging(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those to judge on: of prompts that name "train" and "test" the test ones alone, else all."""
    named = {prompt.split for prompt in prompts}
    return [prompt for prompt in prompts if prompt.split == TEST or not {TRAIN, TEST} <= named]


def learned_from(trained: Path | None, judged: Path, places: Collection[int]) -> bool:
    """Whether a training on one prompt file has learned from what stands at some places of another: of the same."""
    if trained is None or not (trained.exists() and judged.exists() and trained.samefile(judged)):
        return False
    return any(prompt.index in places for prompt in for_training(read_prompts(judged)))


def mixed_prompts(path: Path, per_task: int | None) -> list[Prompt]:
    """The first prompts of each task to judge on, tasks in turn.

    Raises:
        PromptError: if the file cannot be read.
    """
    counts: Counter[str] = Counter()
    first = []
    for prompt in for_judging(read_prompts(path)):
        counts[prompt.task] += 1
        if per_task is None or counts[prompt.task] <= per_task:
            first.append(prompt)
    return in_turn(first)


def prompts_sha256(path: Path) -> str:
    """Hash of what :func:`read_prompts` reads at a path: of the file's content, or of all files of the folder joined.

    Raises:
        PromptError: if there is nothing to read.
    """
    return hashlib.sha256(b"".join(_content_of(file) for file in _files(path))).hexdigest()


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise PromptError(f"the folder {path} holds no *.jsonl file; give JSON Lines, one prompt a line")
    return files


def _content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise PromptError(f"there is no prompt file {path}; give a JSON Lines file, one prompt a line") from error
    except OSError as error:
        raise PromptError(f"cannot read the prompt file {path}: {error.strerror}") from error


def _read_all(path: Path) -> list[Prompt]:
    prompts: list[Prompt] = []
    for file in _files(path):
        # Not str.splitlines: it also splits at U+2028 and others, which JSON allows inside a string.
        for number, line in enumerate(_content_of(file).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
            if line.strip():
                prompts.append(_parse(line, len(prompts), file.stem, f"{file}, line {number}"))
    if not prompts:
        raise PromptError(f'{path} holds no prompts; write one JSON object a line, e.g. {{"prompt": "..."}}')
    return prompts


def _parse(line: bytes, index: int, stem: str, where: str) -> Prompt:
    try:
        entry = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise PromptError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise PromptError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists
        raise PromptError(f"{where}: not JSON that can be read ({error})") from error
    if not isinstance(entry, dict):
        raise PromptError(f"{where}: must be a JSON object, not {_kind(entry)}")
    check_unicode(json.dumps(entry, ensure_ascii=False), where)
    text, messages, turns = _content(entry, where)
    return Prompt(
        index=index,
        identifier=_identifier(entry, index, where),
        task=_optional_text(entry, "task", where) or _optional_text(entry, "category", where) or stem,
        split=_split(entry, where),
        text=text,
        messages=messages,
        reference=_reference(entry, where),
        turns=turns,
    )


def _content(entry: dict[str, Any], where: str) -> tuple[str, tuple[Message, ...], tuple[str, ...]]:
    named = [key for key in ("prompt", "turns", "messages") if key in entry]
    given = [key for key in named if entry[key] is not None] or named  # tables with gaps are written with nulls
    if len(given) != 1:
        given_as = f"has {' and '.join(given)}" if given else f"has only {_listed(entry)}"
        raise PromptError(f"{where}: needs exactly one of prompt, turns and messages; it {given_as}")
    if given == ["messages"]:
        return "", _messages(entry["messages"], where), ()
    if given == ["prompt"]:
        return _text(entry["prompt"], "prompt", where), (), ()
    turns = entry["turns"]
    if not isinstance(turns, list) or not turns:
        raise PromptError(f"{where}: turns must be a list of texts with at least one, not {_kind(turns)}")
    said = tuple(_text(turn, "turns", where) for turn in turns)
    return said[0], (), said


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PromptError(f"{where}: {key} must hold text, not {_kind(value)}")
    return value


def _messages(entries: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(entries, list) or not entries:
        raise PromptError(f"{where}: messages must be a list with at least one message, not {_kind(entries)}")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("role", "content")):
            raise PromptError(f"{where}: message {number} must be an object with the texts role and content")
    return tuple(Message(entry["role"], entry["content"]) for entry in entries)


def check_unicode(text: str, where: str) -> None:
    """Refuse text that UTF-8 cannot hold.

    Raises:
        PromptError: naming ``where`` the text came from, and the first character that stands alone.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{where}: not UTF-8 ({error.object[error.start]!r} is a byte of another encoding, or half of a pair)"
        ) from error


def _identifier(entry: dict[str, Any], index: int, where: str) -> str:
    value = next((entry[key] for key in ("id", "question_id") if entry.get(key) is not None), index)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PromptError(f"{where}: the id must be text or an integer, not {_kind(value)}")
    return str(value)


def _reference(entry: dict[str, Any], where: str) -> str | None:
    value = entry.get("reference")
    first = value[0] if isinstance(value, list) and value else value
    if first is None or first == []:
        return None
    if not isinstance(first, str):
        raise PromptError(f"{where}: reference must be text or a list of texts, not {_kind(value)}")
    return first


def _optional_text(entry: dict[str, Any], key: str, where: str) -> str | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise PromptError(f"{where}: {key} must be text, not {_kind(value)}")
    return value


def _split(entry: dict[str, Any], where: str) -> str:
    split = _optional_text(entry, "split", where) or ""
    if split not in {"", *SPLITS, SEALED}:
        raise PromptError(f"{where}: split must be {', '.join(SPLITS)} or {SEALED}, or be left out, not {split!r}")
    return split


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text" if value.strip() else "empty text"
    return {dict: "an object", list: "a list" if value else "an empty list", type(None): "null"}.get(
        type(value), f"{value!r}"
    )


def _listed(names: Any) -> str:
    return ", ".join(dict.fromkeys(names)) or "nothing"
