"""Prompt files, in the forms that people have them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

from draftgauge.core.artefacts import parse_json, parse_json_lines, read_text
from draftgauge.core.errors import PromptError
from draftgauge.core.files import atomic_write_bytes, atomic_write_text, cache_folder

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
FORMS = ("prompt", "turns", "messages", "conversations", "body")
ID_KEYS = ("id", "question_id", "custom_id", "task_id")  # "task_id": HumanEval, also in speculator_benchmarks
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant"}
_MESSAGE_KEYS = ("role", "from", "content", "value")
SEALED = "sealed"  # of prompts kept for a last judgement: beside others they are read if asked for by this name


@dataclass(frozen=True)
class Message:
    """One message of a conversation. ``role`` is "system", "user", "assistant" or another that the chat template knows;
    ``more`` holds the template's other keys, such as ``tool_calls``."""

    role: str
    content: str
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Prompt:
    """One prompt: either ``text``, or ``messages`` for the model's chat template.

    ``index`` is its position in its file, whatever is filtered. ``task`` falls back on ``category`` and the file's
    name; ``split`` is "train", "validation", "test" or "". ``turns`` is all that the user says, if given, ``reference``
    an answer to compare with. ``template_args`` goes to the chat template, such as ``tools``.
    """

    index: int
    identifier: str
    task: str
    split: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    reference: str | None = None
    turns: tuple[str, ...] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict, hash=False)


def read_prompts(
    path: Path, limit: int | None = None, tasks: Collection[str] | None = None, split: str | None = None
) -> list[Prompt]:
    """Read a prompt file: JSON Lines, or a JSON array of such objects.

    Spec-Bench, SPEED-Bench, speculator_benchmarks, MT-bench, HumanEval, ShareGPT and OpenAI's batch files are such
    files. Each line is an object with one of these, and optionally ``task`` or ``category``, ``id``, ``question_id``,
    ``custom_id`` or ``task_id``, ``split`` ("train", "validation", "test") and ``reference``:

    - ``prompt``: text,
    - ``turns``: a list of texts as in MT-bench, whose first is the text,
    - ``messages``: a list of ``{"role", "content"}``, a content being text or parts ``{"type": "text", "text"}``,
    - ``conversations``: the same, or ``{"from", "value"}`` as in ShareGPT,
    - ``body``: a line of OpenAI's batch input, which holds a ``prompt`` or ``messages``.

    A conversation that ends with an answer is the prompt of that answer, which becomes the reference if there is none.
    Messages of the user alone are turns. ``tools`` and ``chat_template_kwargs``, and ``tool_calls`` and other keys of
    messages, go to the chat template.

    Args:
        path: the file, or a folder: its ``*.jsonl`` files one after the other, in the order of their names.
        limit: take the first ones only, of the tasks and the split asked for.

    Raises:
        PromptError: if the file is missing, empty, or an entry is not as above (file and line are named), or nothing is
            left.
    """
    prompts: list[Prompt] = []
    for file in _files(path):
        for where, entry in _entries(file):
            prompts.append(_parse(entry, len(prompts), file.stem, where))
    if not prompts:
        raise PromptError(f'{path} holds no prompts; write one JSON object a line, e.g. {{"prompt": "..."}}')
    if len(found := {prompt.task for prompt in prompts}) > 1 and "all" in found:
        raise PromptError(f"{path} has a task 'all', as the figures over every task are called: rename that task")
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


def kept_pipe(path: str | None) -> str | None:
    """A prompts argument; what a pipe holds, which can be read once, as a file in the cache, named by its content."""
    if path is None or not (Path(path).is_fifo() or Path(path).is_char_device()):
        return path
    content = Path(path).read_bytes()
    kept = cache_folder() / "prompts" / hashlib.sha256(content).hexdigest()[:16] / "prompts.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(kept, content)
    return str(kept)


def write_prompts(prompts: Sequence[str | dict[str, Any]], folder: Path) -> Path:
    """Texts, or dicts with the keys of a prompt file, as a file in ``folder`` that is named by its content."""
    if not prompts or not all(isinstance(prompt, str | dict) for prompt in prompts):
        raise PromptError("prompts must be texts or dicts with the keys of a prompt file, and at least one")
    entries = [{"prompt": prompt, "task": "prompts"} if isinstance(prompt, str) else prompt for prompt in prompts]
    try:
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    except TypeError as error:
        raise PromptError(f"prompts must be texts or dicts with the keys of a prompt file: {error}") from error
    path = folder / f"{hashlib.sha256(lines.encode()).hexdigest()[:16]}.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, lines)
    return path


class HasTask(Protocol):
    @property
    def task(self) -> str: ...


OfTask = TypeVar("OfTask", bound=HasTask)  # a prompt, or what became of one


def in_turn(prompts: Iterable[OfTask]) -> list[OfTask]:
    by_task: dict[str, list[OfTask]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    turns = chain.from_iterable(zip_longest(*by_task.values()))
    return [prompt for prompt in turns if prompt is not None]


def first_per_task(prompts: Iterable[Prompt], count: int | None) -> list[Prompt]:
    """The first ``count`` prompts of every task in every split, in the file's order; all of them if None."""
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for prompt in prompts:
        seen[prompt.task, prompt.split] += 1
        if count is None or seen[prompt.task, prompt.split] <= count:
            kept.append(prompt)
    return kept


def first_in_turn(prompts: Sequence[OfTask], limit: int | None) -> list[OfTask]:
    """At most ``limit`` prompts, of every task as many, in the order given."""
    chosen = set(map(id, in_turn(prompts)[:limit]))
    return [prompt for prompt in prompts if id(prompt) in chosen]


def for_training(prompts: Sequence[Prompt]) -> list[Prompt]:
    return [prompt for prompt in prompts if prompt.split == TRAIN] or unsealed(prompts)


def for_judging(prompts: Sequence[Prompt]) -> list[Prompt]:
    if {TRAIN, TEST} <= {prompt.split for prompt in prompts}:
        return [prompt for prompt in prompts if prompt.split == TEST]
    return unsealed(prompts)


def unsealed(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those that are not kept for a last judgement; all of them if no others are there."""
    return [prompt for prompt in prompts if prompt.split != SEALED] or list(prompts)


def learned_from(trained: Path | None, judged: Path, places: Collection[int]) -> bool:
    if trained is None or not (trained.exists() and judged.exists() and trained.samefile(judged)):
        return False
    return any(prompt.index in places for prompt in for_training(read_prompts(judged)))


def prompts_sha256(path: Path) -> str:
    try:
        return hashlib.sha256(b"".join(file.read_bytes() for file in _files(path))).hexdigest()
    except OSError as error:
        raise PromptError(f"cannot read the prompt file {path}: {error.strerror}") from error


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise PromptError(f"the folder {path} holds no *.jsonl file; give JSON Lines, one prompt a line")
    return files


def _entries(file: Path) -> Iterator[tuple[str, Any]]:
    text = read_text(file, "prompt file", "give a JSON Lines file, one prompt a line", PromptError)
    if text.lstrip().startswith("["):
        entries = parse_json(text, str(file), error=PromptError)
        return ((f"{file}, entry {number}", entry) for number, entry in enumerate(entries, start=1))
    return parse_json_lines(text, file, PromptError)


def _parse(entry: Any, index: int, stem: str, where: str) -> Prompt:
    if not isinstance(entry, dict):
        raise PromptError(f"{where}: must be a JSON object, not {_kind(entry)}")
    check_unicode(json.dumps(entry, ensure_ascii=False), where)
    body = entry["body"] if isinstance(entry.get("body"), dict) else entry
    template_args = _template_args(body, where)
    said, messages, reference = _content(entry, where)
    identifier = next((entry[key] for key in ID_KEYS if entry.get(key) is not None), index)
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise PromptError(f"{where}: the id must be text or an integer, not {_kind(identifier)}")
    split = _optional_text(entry, "split", where) or ""
    if split not in {"", *SPLITS, SEALED}:
        raise PromptError(f"{where}: split must be {', '.join(SPLITS)} or {SEALED}, or be left out, not {split!r}")
    return Prompt(
        index=index,
        identifier=str(identifier),
        task=_optional_text(entry, "task", where) or _optional_text(entry, "category", where) or stem,
        split=split,
        text=said[0] if said else "",
        messages=messages,
        reference=_reference(entry, where) or reference,
        turns=said if messages == () and body.get("prompt") is None else (),
        template_args=template_args,
    )


def _template_args(entry: dict[str, Any], where: str) -> dict[str, Any]:
    args, tools = entry.get("chat_template_kwargs") or {}, entry.get("tools") or []
    if entry.get("functions"):
        raise PromptError(f"{where}: functions are the old form of tools: write them as tools")
    if isinstance(tools, str):  # as tables hold them
        tools = parse_json(tools, f"{where}: tools", error=PromptError)
    if not isinstance(args, dict) or not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise PromptError(f"{where}: tools must be a list of objects, and chat_template_kwargs an object")
    return {**args, "tools": tools} if tools else args


def _content(entry: dict[str, Any], where: str) -> tuple[tuple[str, ...], tuple[Message, ...], str | None]:
    """What the user says, or a conversation with the answer that ends it."""
    named = [form for form in FORMS if form in entry]
    given = [form for form in named if entry[form] is not None] or named  # tables with gaps are written with nulls
    if len(given) != 1:
        given_as = f"has {' and '.join(given)}" if given else f"has only {_listed(entry)}"
        raise PromptError(f"{where}: needs exactly one of {', '.join(FORMS[:-1])} and {FORMS[-1]}; it {given_as}")
    (form,), value = given, entry[given[0]]
    if form == "body":
        if not isinstance(value, dict) or ("messages" in value) == ("prompt" in value):
            raise PromptError(f"{where}: body must be a request of a batch: an object with a prompt or messages")
        form = "messages" if "messages" in value else "prompt"
        value = value[form]
    if form == "prompt":
        return (_text(value, "prompt", where),), (), None
    if form == "turns":
        if not isinstance(value, list) or not value:
            raise PromptError(f"{where}: turns must be a list of texts with at least one, not {_kind(value)}")
        return tuple(_text(turn, "turns", where) for turn in value), (), None
    messages = _messages(value, form, where)
    asked = list(messages)
    while asked and asked[-1].role == "assistant":
        asked.pop()
    if not asked:
        raise PromptError(f"{where}: {form} must hold a message that is to be answered, not only the assistant's")
    if len(messages) > 1 and all(message.role == "user" and not message.more for message in messages):
        return tuple(_text(message.content, form, where) for message in messages), (), None
    for number, (one, other) in enumerate(pairwise(messages), start=1):
        if one.role == other.role == "user":
            raise PromptError(
                f"{where}: messages {number} and {number + 1} are both the user's: join them, put the answer between "
                "them, or give the user's turns alone"
            )
    return (), tuple(asked), (messages[len(asked)].content if len(asked) < len(messages) else None) or None


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PromptError(f"{where}: {key} must hold text, not {_kind(value)}")
    return value


def _messages(entries: Any, form: str, where: str) -> list[Message]:
    if not isinstance(entries, list) or not entries:
        raise PromptError(f"{where}: {form} must be a list with at least one message, not {_kind(entries)}")
    messages = []
    for number, entry in enumerate(entries, start=1):
        said: dict[str, Any] = entry if isinstance(entry, dict) else {}
        role, content = said.get("role", said.get("from")), said.get("content", said.get("value"))
        more = {key: value for key, value in said.items() if value and key not in _MESSAGE_KEYS}
        if "function_call" in more:
            raise PromptError(f"{where}: message {number} has a function_call: write it as tool_calls")
        if "tool_calls" in more:
            more["tool_calls"] = _calls(more["tool_calls"], f"{where}: message {number}")
            content = content or ""  # OpenAI writes null
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
            raise PromptError(f"{where}: message {number} has parts that are no text: only parts of type text are read")
        texts: list[Any] = [part.get("text") for part in parts]
        if not isinstance(role, str) or not all(isinstance(text, str) for text in texts):
            raise PromptError(f"{where}: message {number} must be an object with the texts role and content")
        messages.append(Message(SHAREGPT_ROLES.get(role, role), "".join(texts), more))
    return messages


def _calls(calls: Any, where: str) -> list[Any]:
    """Calls of tools, their arguments as objects, as chat templates want them; OpenAI writes these as text."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise PromptError(f"{where}: tool_calls must be a list of objects, not {_kind(calls)}")
    for inner in (call.get("function", call) for call in calls):
        if isinstance(inner, dict) and isinstance(inner.get("arguments"), str):
            inner["arguments"] = parse_json(inner["arguments"] or "{}", f"{where}: arguments", error=PromptError)
    return calls


def check_unicode(text: str, where: str) -> None:
    """Refuse text that UTF-8 cannot hold, naming ``where`` it came from and the first such character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{where}: not UTF-8 ({error.object[error.start]!r} is a byte of another encoding, or half of a pair)"
        ) from error


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


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text" if value.strip() else "empty text"
    names = {dict: "an object", list: "a list" if value else "an empty list", type(None): "null"}
    return names.get(type(value), repr(value))


def _listed(names: Any) -> str:
    return ", ".join(dict.fromkeys(names)) or "nothing"


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
