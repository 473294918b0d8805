"""A datastore: earlier outputs in one file of bounded size, kept from one run to the next.

A Parquet file with one row an output, the oldest first. It is written whole or not at all, and by one process at a
time; who reads it meanwhile reads what was there before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from draftgauge.core.artefacts import parse_json
from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import alone, require_writable_file
from draftgauge.traces.shards import DamagedFileError, read_parquet, write_parquet

FORMAT = "draftgauge-datastore"
VERSION = 1
_KEY = b"draftgauge"
_SCHEMA = pa.schema([("prompt", pa.string()), ("tokens", pa.list_(pa.int32()))])


@dataclass(frozen=True)
class StoredOutput:
    """The digest of a prompt and the tokens that answer it."""

    prompt: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class About:
    """What a datastore says of itself: the vocabulary of its token ids, and the most tokens that it holds."""

    vocabulary: str
    capacity: int
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not self.vocabulary:
            raise DraftgaugeError(
                "a datastore belongs to one vocabulary, and that of these tokens is unknown: profile the pair again"
            )
        if self.capacity < 1:
            raise DraftgaugeError(f"the capacity of a datastore must be at least 1 token, not {self.capacity}")


@dataclass(frozen=True)
class Datastore:
    """Outputs, the oldest first, one a prompt."""

    about: About
    outputs: tuple[StoredOutput, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(len(output.tokens) for output in self.outputs)

    def with_outputs(self, outputs: Iterable[StoredOutput]) -> Datastore:
        """With newer outputs, which replace earlier ones to the same prompts. The oldest ones that do not fit are
        forgotten; one that does not fit alone loses its beginning."""
        kept: dict[str, StoredOutput] = {}
        for output in (*self.outputs, *outputs):
            kept.pop(output.prompt, None)
            kept[output.prompt] = replace(output, tokens=output.tokens[-self.about.capacity :])
        newest, room = [], self.about.capacity
        for output in reversed(kept.values()):
            room -= len(output.tokens)
            if room < 0:
                break
            newest.append(output)
        return replace(self, outputs=tuple(reversed(newest)))

    def save(self, path: Path) -> None:
        columns = [[output.prompt for output in self.outputs], [list(output.tokens) for output in self.outputs]]
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA)
        write_parquet(path, table.replace_schema_metadata({_KEY: json.dumps(asdict(self.about))}))

    @classmethod
    def load(cls, path: Path, vocabulary: str) -> Datastore:
        """Read what :meth:`save` wrote, for a reader whose token ids are of a vocabulary."""
        again = "`draftgauge datastore build` makes one"
        try:
            table = read_parquet(path)
            about = from_mapping(About, parse_json((table.schema.metadata or {}).get(_KEY, b""), "it"), "datastore")
        except OSError as error:
            raise DraftgaugeError(f"cannot read the datastore {path} ({error.strerror}); {again}") from error
        except DamagedFileError as error:
            raise DraftgaugeError(f"{path} is no datastore, or {str(error).removeprefix('is ')}: {again}") from error
        except DraftgaugeError as error:
            raise DraftgaugeError(f"{path} is no datastore of this version of draftgauge ({error}): {again}") from error
        nulls = sum(column.null_count for column in table.columns)
        if (about.format, about.version) != (FORMAT, VERSION) or table.schema.names != _SCHEMA.names or nulls:
            raise DraftgaugeError(f"{path} is a datastore of another version of draftgauge: build it again")
        if about.vocabulary != vocabulary:
            raise DraftgaugeError(
                f"the datastore {path} holds tokens of another tokenizer: build one from outputs of this pair"
            )
        rows = zip(*(table[name].to_pylist() for name in _SCHEMA.names), strict=True)
        store = cls(about, tuple(StoredOutput(prompt, tuple(tokens)) for prompt, tokens in rows))
        numbers = [token for output in store.outputs for token in output.tokens]
        if len(numbers) > about.capacity or not all(isinstance(token, int) and token >= 0 for token in numbers):
            raise DraftgaugeError(f"{path} is damaged: build it again")
        return store


def grow(path: Path, about: About, outputs: Iterable[StoredOutput], capacity: int | None = None) -> Datastore:
    """Add outputs to the datastore in a file, which is made if it is not there; other processes wait."""
    require_writable_file(path)
    with alone(path):
        store = Datastore.load(path, about.vocabulary) if path.exists() else Datastore(about)
        about = replace(store.about, capacity=store.about.capacity if capacity is None else capacity)
        store = replace(store, about=about).with_outputs(outputs)
        store.save(path)
    return store


def stored_output(prompt: Sequence[int], output: Sequence[int]) -> StoredOutput:
    return StoredOutput(prompt_digest(prompt), tuple(output))


def prompt_digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(tokens, "<i4").tobytes()).hexdigest()[:32]


def stored_prompts(store: Datastore, prompts: Iterable[Sequence[int]]) -> int:
    digests: set[Any] = {output.prompt for output in store.outputs}
    return sum(prompt_digest(prompt) in digests for prompt in prompts)
