"""A datastore in a file: bounded, whole or not there, of one vocabulary, written by one process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import draftgauge as package
from draftgauge.core.errors import DraftgaugeError
from draftgauge.traces.datastore import (
    About,
    Datastore,
    StoredOutput,
    grow,
    prompt_digest,
    stored_output,
    stored_prompts,
)

ABOUT = About("words", capacity=10)


def output(name: str, *tokens: int) -> StoredOutput:
    return StoredOutput(name, tokens)


def names(store: Datastore) -> list[str]:
    return [each.prompt for each in store.outputs]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "made" / "store.parquet"
    written = grow(path, ABOUT, [output("a", 1, 2, 3), output("b")])
    assert Datastore.load(path, "words") == written
    assert written.outputs == (output("a", 1, 2, 3), output("b"))
    assert written.tokens == 3


def test_the_oldest_outputs_are_forgotten_and_the_latest_one_to_a_prompt_stays(tmp_path: Path) -> None:
    path = tmp_path / "store.parquet"
    grow(path, ABOUT, [output("a", *range(4)), output("b", *range(4))])
    grow(path, ABOUT, [output("a", 9, 9)])  # the later one, in place of the earlier
    assert names(Datastore.load(path, "words")) == ["b", "a"]
    store = grow(path, ABOUT, [output("c", *range(5))])
    assert names(store) == ["a", "c"]
    assert store.tokens == 7
    store = grow(path, ABOUT, [output("d", *range(99))])  # too long alone: its end
    assert store.outputs == (output("d", *range(89, 99)),)
    store = grow(path, ABOUT, [], capacity=4)
    assert store.outputs == (output("d", *range(95, 99)),)
    assert grow(path, ABOUT, [output("e", *range(5))]).outputs == (output("e", 1, 2, 3, 4),)


@pytest.mark.parametrize("count", range(1, 8))
def test_it_never_holds_more_than_it_may(tmp_path: Path, count: int) -> None:
    path = tmp_path / "store.parquet"
    for number in range(20):
        store = grow(path, ABOUT, [output(str(number), *range(count))])
        assert store.tokens <= 10
        assert len(store.outputs) == min(number + 1, 10 // count)


def test_prompts_are_known_again() -> None:
    assert stored_output([1, 2], [3]) == StoredOutput(prompt_digest([1, 2]), (3,))
    store = Datastore(ABOUT).with_outputs([stored_output([1, 2], [3])])
    assert stored_prompts(store, [[1, 2], [2, 1], [1, 2, 3]]) == 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "cannot read the datastore"),
        (lambda path: path.write_bytes(path.read_bytes()[:20] + b"\xff" + path.read_bytes()[21:]), "damaged"),
        (lambda path: pq.write_table(pa.table({"a": [1]}), path), "no datastore"),
    ],
)
def test_what_is_no_datastore_is_refused(tmp_path: Path, spoil, message: str) -> None:
    path = tmp_path / "store.parquet"
    grow(path, ABOUT, [output("a", 1, 2, 3)])
    spoil(path)
    with pytest.raises(DraftgaugeError, match=message):
        Datastore.load(path, "words")


def test_another_vocabulary_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    path = tmp_path / "store.parquet"
    grow(path, ABOUT, [output("a", 1, 2, 3)])
    before = path.read_bytes()
    with pytest.raises(DraftgaugeError, match="another tokenizer"):
        Datastore.load(path, "other words")
    with pytest.raises(DraftgaugeError, match="another tokenizer"):
        grow(path, About("other words", 10), [output("b", 1)])
    with pytest.raises(DraftgaugeError, match="vocabulary"):
        About("", 10)
    with pytest.raises(DraftgaugeError, match="at least 1 token"):
        About("words", 0)
    assert path.read_bytes() == before


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.parquet"
    program = """
import sys
from pathlib import Path
from draftgauge.traces.datastore import About, StoredOutput, grow
for number in range(8):
    grow(Path(sys.argv[1]), About("words", 1000), [StoredOutput(f"{sys.argv[2]}-{number}", (1, 2))])
"""
    source = str(Path(package.__file__).parents[1])
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(writer)], env={"PYTHONPATH": source})
        for writer in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    kept = Datastore.load(path, "words")
    assert sorted(names(kept)) == sorted(f"{writer}-{number}" for writer in range(3) for number in range(8))
