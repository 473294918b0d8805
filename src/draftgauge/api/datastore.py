"""Datastores of earlier outputs: made of recorded runs, given to policies, grown by what is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import require_writable_file
from draftgauge.core.verb import verb
from draftgauge.judging.splits import split_trace
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.requests import DATASTORE_TOKENS, DatastoreBuildRequest
from draftgauge.traces.datastore import About, Datastore, grow, stored_output, stored_prompts
from draftgauge.traces.run import Run
from draftgauge.traces.trace import check_prompt_tokens


@verb(DatastoreBuildRequest)
def build_datastore(request: DatastoreBuildRequest) -> list[dict[str, Any]]:
    """Add the outputs of recorded runs to a datastore; the file is made if it is not there.

    Returns:
        One row: how many outputs and tokens the datastore holds now, how many tokens it may, how many outputs did not
        fit (``left_out``).

    Raises:
        DraftgaugeError: if a run does not say which vocabulary its tokens are of, or the file is of another one.
        TraceError: if the folder holds no complete trace, or lacks the split or the prompts' tokens.
    """
    vocabularies, outputs = set(), []
    for run in Run.find(request.folder):
        trace, costs = run.read(request.tasks)
        part = split_trace(trace, request.split, least=1)
        check_prompt_tokens(part)
        vocabularies.add(costs.vocabulary)
        outputs += [stored_output(p.prompt_token, o.tolist()) for p, o in zip(part.prompts, part.outputs, strict=True)]
    if len(vocabularies) != 1:
        raise DraftgaugeError(f"the runs in {request.folder} are of several vocabularies: name one of them")
    about = About(vocabularies.pop(), request.capacity or DATASTORE_TOKENS)
    store = grow(request.out, about, outputs, request.capacity)
    kept = {output.prompt for output in store.outputs}
    return [
        {
            "outputs": len(store.outputs),
            "tokens": store.tokens,
            "capacity": store.about.capacity,
            "left_out": len({output.prompt for output in outputs} - kept),
        }
    ]


def read_stored(path: Path, vocabulary: str, judged: Iterable[Sequence[int]]) -> StoredTexts:
    """The texts of a datastore, for policies that are judged on some prompts (their tokens)."""
    store, prompts = Datastore.load(path, vocabulary), list(judged)
    if stored := stored_prompts(store, prompts):
        raise DraftgaugeError(
            f"the datastore {path} holds outputs of {stored} of the {len(prompts)} prompts that policies are judged "
            "on, which would be looked up in their own answers: judge on prompts that it was not built from (--split "
            "test), or build it from others"
        )
    return texts_of(store)


def open_store(path: Path, vocabulary: str) -> Datastore:
    require_writable_file(path)
    return Datastore.load(path, vocabulary) if path.exists() else Datastore(About(vocabulary, DATASTORE_TOKENS))


def texts_of(store: Datastore) -> StoredTexts:
    return StoredTexts([output.tokens for output in store.outputs])
