from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.artefacts import Artefact, parse_json, read_json, read_json_lines, read_text
from draftgauge.core.errors import DraftgaugeError, TraceError

KIND = Artefact("draftgauge-thing", 3, "thing", "make it again", error=TraceError)
CONTENT = {"numbers": [0.1, 1e-300, -0.0, 2**70], "text": "zwölf [1,  2]", "nested": {"a": [], "b": None}}


def test_what_is_written_is_read_and_lists_of_numbers_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    KIND.write(path, CONTENT)
    assert KIND.read(path) == CONTENT
    assert ' "numbers": [ 0.1, 1e-300, -0.0, 1180591620717411303424 ],\n' in path.read_text(encoding="utf-8")
    assert list(json.loads(path.read_text(encoding="utf-8"))) == ["format", "version", "sha256", *CONTENT]


def _without(key: str) -> Any:
    return lambda document: {name: value for name, value in document.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("text"), "does not match its checksum"),
        (_without("sha256"), "without a checksum"),
        (_without("version"), "of version None, this draftgauge reads 3"),
        (_without("format"), "is not a thing"),
        (lambda document: document | {"more": 1}, "does not match"),
        (lambda document: document | {"version": 4}, "of version 4"),
        (lambda document: document | {"numbers": [math.nan]}, "does not match"),
        (lambda document: [document], "is not a thing"),
        (lambda document: None, "is not a thing"),
    ],
)
def test_what_is_not_as_it_was_written_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "a.json"
    KIND.write(path, CONTENT)
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))))
    with pytest.raises(TraceError, match=rf"a\.json.*{message}.*make it again"):
        KIND.read(path)


def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        KIND.write(tmp_path / "a.json", {"x": math.inf})
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"there is no thing .*a\.json; make it again"):
        KIND.read(tmp_path / "a.json")
    for name in (tmp_path, tmp_path / "a\0b"):
        with pytest.raises(DraftgaugeError, match="cannot read the file"):
            read_json(name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_byte_order_marks_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "ü\u2028"}\r\n\n[1]\n', encoding=encoding)
    assert list(read_json_lines(path)) == [(f"{path}, line 1", {"a": "ü\u2028"}), (f"{path}, line 3", [1])]
    path.write_text('{"a": "ü"}', encoding=encoding)
    assert read_json(path) == {"a": "ü"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 100 levels deep"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "nested more than 100 levels deep"),
        ("[" * 102 + "1" + "]" * 102, "nested more than 100 levels deep"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is given twice"),
        ("1" * 5000, "not JSON .*digits"),
        ('{"a": }', r"not JSON \(Expecting value at column 7\)"),
        ('{\n"a": }', "line 2, column 6"),
        ("", "Expecting value"),
        (b'"\xff"', "codec can't decode"),
    ],
)
def test_what_is_not_json_is_refused_in_words(text: str | bytes, message: str) -> None:
    with pytest.raises(DraftgaugeError, match=rf"the answer: .*{message}.*; ask again"):
        parse_json(text, "the answer", "ask again")


def test_lines_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n{\n")
    with pytest.raises(DraftgaugeError, match=r"a\.jsonl, line 2: not JSON"):
        list(read_json_lines(path))
    path.write_bytes(b'{}\n{"a": "\xff"}\n')
    with pytest.raises(DraftgaugeError, match=r"a\.jsonl, line 2: not UTF-8"):
        list(read_json_lines(path))


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 2**20)
    assert len(read_text(tmp_path / "a", max_bytes=2**20)) == 2**20
    with pytest.raises(DraftgaugeError, match="larger than 1 MiB, the most for a note"):
        read_text(Path("/dev/zero"), "note", max_bytes=2**20)


def test_a_file_of_one_s_own_may_be_of_any_size(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text("[1]\n[2]\n")
    rows = read_json_lines(tmp_path / "long.jsonl", max_bytes=None)
    assert [row for _, row in rows] == [[1], [2]]
    with pytest.raises(DraftgaugeError, match="is larger than"):
        list(read_json_lines(tmp_path / "long.jsonl", max_bytes=4))
