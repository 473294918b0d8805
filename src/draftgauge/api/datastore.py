"""Datastores of earlier outputs: made of recorded runs, given to policies, grown by what is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from draftgauge.api.requests import DATASTORE_TOKENS, DatastoreBuildRequest
from draftgauge.api.runs import ALL_SPLITS, read_run, select_runs
from draftgauge.api.verb import verb
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import require_writable_file
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.replaying.rows import check_prompt_tokens
from draftgauge.replaying.splits import split_trace
from draftgauge.traces.datastore import About, Datastore, StoredOutput, grow, stored_output, stored_prompts
from draftgauge.traces.trace import Trace


@verb(DatastoreBuildRequest)
def build_datastore(request: DatastoreBuildRequest) -> list[dict[str, Any]]:
    """Add the outputs of recorded runs to a datastore; the file is made if it is not there.

    Returns:
        One row: how many outputs and tokens the datastore holds now and how many tokens it may, how many outputs of the
        runs there was no room for (``left_out``).

    Raises:
        DraftgaugeError: if a run does not say which vocabulary its tokens are of, or the file is of another one.
        TraceError: if the folder holds no complete trace, or lacks the split or the prompts' tokens.
    """
    vocabularies, outputs = set(), []
    for run, _ in select_runs(request.folder):
        trace, costs = read_run(run, request.tasks)
        part = trace if request.split == ALL_SPLITS else split_trace(trace, request.split, least=1)
        check_prompt_tokens(part)
        vocabularies.add(costs.vocabulary)
        outputs += list(_outputs(part, request.with_prompts))
    if len(vocabularies) != 1:
        raise DraftgaugeError(f"the runs in {request.folder} are of several vocabularies: name one of them")
    about = About(vocabularies.pop(), request.capacity or DATASTORE_TOKENS, request.with_prompts)
    store = grow(request.out, about, outputs, request.capacity)
    kept = {output.prompt for output in store.outputs}
    return [
        {
            "outputs": len(store.outputs),
            "tokens": store.tokens,
            "capacity": store.about.capacity,
            "left_out": len({output.prompt for output in outputs} - kept),
            "with_prompts": store.about.with_prompts,
        }
    ]


def _outputs(trace: Trace, with_prompts: bool) -> Iterable[StoredOutput]:
    """What a trace's prompts were answered with."""
    for row, prompt in enumerate(trace.prompts):
        output = trace.token[trace.offsets[row] : trace.offsets[row + 1]].tolist()
        yield stored_output(prompt.prompt_token, output, with_prompts)


def read_stored(path: Path, vocabulary: str, judged: Iterable[Sequence[int]]) -> StoredTexts:
    """The texts of a datastore, for policies that are judged on some prompts (their tokens).

    Raises:
        DraftgaugeError: if the file is no datastore of this vocabulary, or holds outputs of the prompts themselves.
    """
    store, prompts = Datastore.load(path, vocabulary), list(judged)
    stored = stored_prompts(store, prompts)
    if stored:
        raise DraftgaugeError(
            f"the datastore {path} holds outputs of {stored} of the {len(prompts)} prompts that policies are judged "
            "on, which would be looked up in their own answers: build it from other prompts"
        )
    return _texts(store)


class GrowingStore:
    """The datastore of a request that is answered: what it holds before, and what is added afterwards."""

    def __init__(self, path: Path, vocabulary: str) -> None:
        """Read the file, if it is there.

        Raises:
            DraftgaugeError: if it is no datastore of this vocabulary, or none can be written there.
        """
        require_writable_file(path)
        self.path = path
        self._about = About(vocabulary, DATASTORE_TOKENS)
        store = Datastore.load(path, vocabulary) if path.exists() else Datastore(self._about)
        self._about = store.about
        self.texts = _texts(store)

    def add(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Add an answer to the file, as other processes may have left it meanwhile."""
        stored = stored_output(prompt, output, self._about.with_prompts)
        grow(self.path, self._about, [stored])


def _texts(store: Datastore) -> StoredTexts:
    return StoredTexts([output.tokens for output in store.outputs])
