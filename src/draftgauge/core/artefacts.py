"""JSON in and out: the one reader of JSON and JSON Lines, and the one format of the JSON that draftgauge writes."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text

MAX_BYTES = 2**30
MAX_DEPTH = 100

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_HEAD = ("format", "version", "sha256")
# Lists of numbers and strings: one line each; no string in JSON holds a line break.
_LISTS = re.compile(r'\[\n(?:\s*(?:"(?:[^"\\\n]|\\.)*"|[-+\d.eE]+),?\n)+\s*\]')
_BREAKS = re.compile(r"\n\s*")


@dataclass(frozen=True)
class Artefact:
    """A kind of JSON file that draftgauge writes and reads again; it begins with its format, its version and a digest
    over all content.

    ``what`` names it in words, ``remedy`` says what to do where none can be read, ``error`` is raised. ``published``:
    files without format, version and digest are read too.
    """

    format: str
    version: int
    what: str
    remedy: str
    published: bool = False
    error: type[DraftgaugeError] = DraftgaugeError

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        head = {"format": self.format, "version": self.version}
        rest = {name: value for name, value in content.items() if name not in _HEAD}
        document = head | {"sha256": _digest(head | rest)} | rest
        text = json.dumps(document, indent=1, allow_nan=False)
        atomic_write_text(path, _LISTS.sub(lambda match: _BREAKS.sub(" ", match[0]), text) + "\n")

    def read(self, path: Path) -> dict[str, Any]:
        """The content of a file, checked against its digest, without ``format``, ``version`` and ``sha256``.

        Raises:
            DraftgaugeError: (or ``error``) if the file is missing, damaged, of another kind or version, or was written
                without a digest.
        """
        document = read_json(path, self.what, self.remedy, error=self.error)
        if isinstance(document, dict) and self.published and not set(_HEAD) & set(document):
            return document
        if not isinstance(document, dict) or document.get("format") != self.format:
            self._refuse(path, f"is not a {self.what} (its format is not {self.format!r})")
        version, digest = document.get("version"), document.pop("sha256", None)
        if version != self.version or isinstance(version, bool):
            self._refuse(path, f"is a {self.what} of version {version!r}, this draftgauge reads {self.version}")
        if digest is None:
            self._refuse(path, f"is a {self.what} without a checksum (key 'sha256'), so damage would go unseen")
        try:
            intact = digest == _digest(document)
        except (ValueError, RecursionError):  # a number that is not finite
            intact = False
        if not intact:
            self._refuse(path, f"is damaged or was edited: its content does not match its checksum ({self.what})")
        return {name: value for name, value in document.items() if name not in _HEAD}

    def is_one(self, path: Path) -> bool:
        try:
            document = read_json(path, self.what)
        except DraftgaugeError:
            return False
        return isinstance(document, dict) and document.get("format") == self.format

    def _refuse(self, path: Path, problem: str) -> NoReturn:
        raise self.error(f"{path} {problem}: {self.remedy}")


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(path: Path, what: str = "file", remedy: str = "", error: type[DraftgaugeError] = DraftgaugeError) -> Any:
    return parse_json(read_text(path, what, remedy, error), str(path), remedy, error)


def read_json_lines(
    path: Path,
    what: str = "file",
    remedy: str = "",
    error: type[DraftgaugeError] = DraftgaugeError,
    max_bytes: int | None = MAX_BYTES,
) -> Iterator[tuple[str, Any]]:
    return parse_json_lines(read_text(path, what, remedy, error, max_bytes), path, error)


def parse_json_lines(
    text: str, path: Path, error: type[DraftgaugeError] = DraftgaugeError
) -> Iterator[tuple[str, Any]]:
    # Not str.splitlines: it also splits at U+2028 and others, which JSON allows inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, parse_json(line, where, error=error)


def parse_json(text: str | bytes, where: str, remedy: str = "", error: type[DraftgaugeError] = DraftgaugeError) -> Any:
    """The value of a JSON text.

    Raises:
        DraftgaugeError: (or ``error``) naming ``where``: for no JSON, a key twice in an object, numbers too long to
            read, or over 100 levels.
    """
    try:
        text = _decoded(text) if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=_object)
        if text.count("[") + text.count("{") <= MAX_DEPTH or _depth(value) <= MAX_DEPTH:
            return value
        problem = f"nested more than {MAX_DEPTH} levels deep"
    except RecursionError:
        problem = f"nested more than {MAX_DEPTH} levels deep"
    except json.JSONDecodeError as cause:
        place = f"line {cause.lineno}, column {cause.colno}" if cause.lineno > 1 else f"column {cause.colno}"
        problem = f"{cause.msg} at {place}"
    except ValueError as cause:  # not UTF-8, a number of thousands of digits, a key given twice
        problem = str(cause)
    raise error(_joined(f"{where}: not JSON ({problem})", remedy))


def read_text(
    path: Path,
    what: str = "file",
    remedy: str = "",
    error: type[DraftgaugeError] = DraftgaugeError,
    max_bytes: int | None = MAX_BYTES,
) -> str:
    """The text of a file in UTF-8, or in UTF-16 with its byte order mark; marks are left out."""
    content = b""
    try:
        with path.open("rb") as file:
            content = file.read(-1 if max_bytes is None else max_bytes + 1)
        if max_bytes is None or len(content) <= max_bytes:
            return _decoded(content)
        problem = f"{path} is larger than {max_bytes / 2**20:.0f} MiB, the most for a {what}"
    except FileNotFoundError:
        problem = f"there is no {what} {path}"
    except UnicodeDecodeError as cause:
        line = content.count(b"\n", 0, cause.start) + 1
        problem = f"{path}, line {line}: not UTF-8 ({cause.reason} at byte {cause.start})"
    except (OSError, ValueError) as cause:  # ValueError: a NUL in the name
        problem = f"cannot read the {what} {path}: {getattr(cause, 'strerror', cause)}"
    raise error(_joined(problem, remedy))


def _decoded(content: bytes) -> str:
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding)
    return content.decode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _depth(value: Any) -> int:
    """How deep lists and objects nest."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_depth, children), default=0)


def _joined(problem: str, remedy: str) -> str:
    return f"{problem}; {remedy}" if remedy else problem
