"""Cost curves, manifests and datastores in files: as they were written, or refused."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import draftgauge as package
from draftgauge.core.config import to_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.parts import Rendering
from draftgauge.core.signals import SignalName
from draftgauge.traces.costs import CostCurve, Measurement
from draftgauge.traces.datastore import (
    About,
    Datastore,
    StoredOutput,
    grow,
    prompt_digest,
    stored_output,
    stored_prompts,
)
from draftgauge.traces.engine_costs import EngineCosts, read_costs
from draftgauge.traces.run import MANIFEST, Manifest, Run
from draftgauge.traces.trace import distinct_share, gram_counts
from synthetic import synthetic_manifest

CURVE = CostCurve(
    contexts=(100, 300),
    verify=((4.25, 5.25, 6.25), (8.25, 9.25, 10.25)),
    draft=((0.0, 1.0, 2.0), (0.0, 2.0, 4.0)),
    plain=(4.0, 8.0),
    compression="uncompressed",
    device="cpu",
    dtype="float32",
)


def test_step_seconds_interpolates_and_clamps() -> None:
    seconds = CURVE.step_seconds(np.asarray([0, 1, 2, 2, 2]), np.asarray([100, 200, 300, 5, 9999]))
    np.testing.assert_allclose(seconds, [4.25, (6.25 + 11.25) / 2, 14.25, 8.25, 14.25])
    assert CURVE.step_seconds(np.arange(3)[:, None], np.asarray([100, 300])).shape == (3, 2)
    one = replace(CURVE, contexts=(100,), **{name: getattr(CURVE, name)[:1] for name in ("verify", "draft", "plain")})
    np.testing.assert_allclose(one.step_seconds(1, np.asarray([1, 500])), [6.25, 6.25])
    assert repr(one).startswith("CostCurve(contexts=(100,), gamma_max=2, compression=")


def test_a_step_is_drafting_and_verifying() -> None:
    assert float(CURVE.verify_seconds(2, 100)) == 5.25
    assert float(CURVE.draft_seconds(2, 200)) == 3.0
    assert float(CURVE.step_seconds(1, 100, appended=1)) == 1.0 + 6.25
    assert float(CURVE.step_seconds(2, 100, appended=-1)) == 2.0 + 5.25


@pytest.mark.parametrize("gamma", [3, -1])
def test_unmeasured_draft_lengths_are_refused(gamma: int) -> None:
    with pytest.raises(TraceError, match=rf"measured for gamma 0\.\.2, asked for {gamma}"):
        CURVE.step_seconds(np.asarray([0, gamma]), 100)


def test_a_policy_that_looks_at_drafted_tokens_waits_for_each() -> None:
    curve = replace(CURVE, signals=0.5)
    blind = float(curve.step_seconds(2, 100))
    for reads, added in ((), 0.0), ({SignalName.TARGET_ENTROPY}, 0.0), ({SignalName.TEXT}, 1.0), (SignalName, 1.0):
        assert float(curve.step_seconds(2, 100, frozenset(reads))) == blind + added, reads


def test_what_a_busy_machine_measures_is_doubted() -> None:
    sure = replace(CURVE, measured=Measurement(9.0, (20, 20, 20), 0.15))
    assert sure.doubt() == CURVE.doubt() == ""  # of which nothing is said, nothing is known
    vague = replace(CURVE, measured=Measurement(9.0, (3, 3, 3), 0.26))
    assert "within 26% only" in vague.doubt()
    assert "plain decoding was measured at 0.48 times verifying one token" in replace(sure, plain=(4.0, 4.0)).doubt()
    assert "plain decoding was measured at 1.65 times verifying one token" in replace(sure, plain=(7.0, 8.0)).doubt()


def test_cost_ratio_is_drafting_one_token_over_verifying_one() -> None:
    assert CURVE.cost_ratio() == pytest.approx(2.0 / 8.25)
    block = replace(CURVE, draft=((0.0, 1.0, 1.0), (0.0, 3.0, 3.0)))  # one pass drafts all of it
    assert block.cost_ratio() == pytest.approx(3.0 / 8.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": ()}, "contexts must be increasing lengths, at least one"),
        ({"contexts": (300, 100)}, r"contexts must be increasing lengths, at least one, not \[300, 100\]"),
        ({"verify": CURVE.verify[:1]}, r"verify must have 2 rows \(contexts\) of 3 columns"),
        ({"draft": ((0.0,), (0.0,))}, r"draft must have the columns 0..gamma_max"),
        ({"draft": ()}, r"draft must have the columns 0..gamma_max"),
        ({"plain": (1.0,)}, r"plain must have 2 values \(contexts\), not 1"),
        ({"plain": (1.0, 0.0)}, "plain must be seconds greater than 0"),
        ({"verify": ((3.0, -4.0, 5.0), (7.0, 8.0, 9.0))}, "verify must be seconds greater than 0"),
        ({"draft": ((0.0, 1.0, 2.0), (0.0, 0.0, 4.0))}, "draft must be seconds greater than 0"),
        ({"signals": -1.0}, "signals must be seconds, 0 or more, not -1.0"),
        ({"catch_up": (0.5, 1.0)}, r"catch_up must be seconds, 0 or more, the first of them 0, not \[0.5, 1.0\]"),
        ({"catch_up": (0.0, -1.0)}, "catch_up must be seconds, 0 or more"),
    ],
)
def test_a_curve_that_cannot_have_been_measured_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "costs.json"
    replace(CURVE, **changes).save(path)
    with pytest.raises(
        TraceError, match=rf"costs\.json is not a cost curve: {message}.*run `draftgauge profile` again"
    ):
        CostCurve.load(path)


@pytest.mark.parametrize(("name", "other"), [("compression", "nf4"), ("pair", "a+b")])
def test_costs_of_something_else_than_the_trace_are_refused(tmp_path: Path, name: str, other: str) -> None:
    manifest = synthetic_manifest(1, gamma_max=2, max_new_tokens=8)
    manifest.save(tmp_path)
    own = replace(CURVE, engine="lean", pair=manifest.pair)
    for curve in (CURVE, own):
        curve.save(tmp_path / "costs.json")
        assert Run(tmp_path).costs == replace(curve, engine="lean"), "of the trace's engine, where it does not say"
    replace(own, **{name: other}).save(tmp_path / "costs.json")
    with pytest.raises(TraceError, match=f"costs.json is of {name} {re.escape(other)}, the trace of {name}"):
        _ = Run(tmp_path).costs


@pytest.mark.parametrize(("plain", "first"), [(10.0, 0.01), (0.02, 0.01), (0.0001, 0.01), (0.01, 0.03)])
def test_costs_of_an_engine_that_contradict_each_other_are_refused(tmp_path: Path, plain: float, first: float) -> None:
    """Plain decoding in other units, or slower than a step that also verifies: else any speed-up comes out."""
    path, good = tmp_path / "c.json", EngineCosts("vllm", (1,), (0.011,), ((0.01, 0.012),), ((0.0, 0.001),))
    good.save(path)
    assert read_costs(path, "vllm")[1].plain == (0.01,)
    replace(good, plain=(plain,), verify=((first, 0.012),)).save(path)
    with pytest.raises(TraceError, match="which contradict each other: give all in seconds"):
        read_costs(path, "vllm")


BASE = synthetic_manifest(24, 16, 256)


def test_round_trip(tmp_path: Path) -> None:
    for manifest in (BASE, replace(BASE, draft=None, drafter="prompt_lookup:ngram=3", complete=True)):
        manifest.save(tmp_path)
        assert Manifest.load(tmp_path) == manifest
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"gamma_max": 16', '"gamma_max": 17'))
    with pytest.raises(TraceError, match=r"manifest\.json is damaged.*not match its checksum.*record the trace again"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"draftgauge": "9", "command": "another", "created": "later", "environment": {}, "complete": True},
        {"device": "cuda", "seed": 5},
        {"prompts": replace(BASE.prompts, path="elsewhere", count=3, tasks=("code",))},
        {"target": replace(BASE.target, source="elsewhere", engine="modules")},
    ],
)
def test_how_and_where_it_was_recorded_does_not_change_the_fingerprint(changes: dict[str, Any]) -> None:
    other = replace(BASE, **changes)
    assert other.fingerprint() == BASE.fingerprint()
    other.refuse_other(BASE, "it is")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": replace(BASE.target, fingerprint="x")}, "target.fingerprint: 'x', not 'tttttttt'"),
        ({"target": replace(BASE.target, compression="int8")}, "target.compression: 'int8', not 'uncompressed'"),
        ({"target": replace(BASE.target, dtype="bfloat16")}, "target.dtype: 'bfloat16', not 'float32'"),
        (
            {"draft": replace(BASE.draft, fingerprint="x") if BASE.draft else None},
            "draft.fingerprint: 'x', not 'dddddddd'",
        ),
        ({"drafter": "prompt_lookup"}, "drafter: 'prompt_lookup', not 'language_model'"),
        ({"rule": "first of 2"}, "rule: 'first of 2', not None"),
        ({"gamma_max": 8}, "gamma_max: 8, not 16"),
        ({"max_new_tokens": 8}, "max_new_tokens: 8, not 256"),
        ({"rendering": Rendering(turns=2)}, "turns: 2, not 1"),
        ({"prompts": replace(BASE.prompts, sha256="b")}, f"prompts.sha256: 'b', not '{'a' * 64}'"),
    ],
)
def test_what_changes_rows_changes_the_fingerprint(changes: dict[str, Any], named: str) -> None:
    other = replace(BASE, **changes)
    assert other.fingerprint() != BASE.fingerprint()
    with pytest.raises(TraceError, match=re.escape(f"it is of another run ({named}); choose another folder")):
        other.refuse_other(BASE, "it is")


@pytest.mark.parametrize(
    "changes", [{"gamma_max": 0}, {"max_new_tokens": 2**31}, {"temperature": -1.0}, {"top_p": 0.0}]
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    MANIFEST.write(tmp_path / "manifest.json", to_mapping(BASE) | changes)
    with pytest.raises(TraceError, match=r"of a trace|was not drawn"):
        Manifest.load(tmp_path)


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


def test_grams_are_counted_by_hand() -> None:
    assert gram_counts([1, 2, 3, 4, 1, 2, 3, 4]) == (4, 5)
    assert gram_counts([1, 2, 3]) == (0, 0)
    assert distinct_share([[1, 2, 3, 4, 1, 2, 3, 4], [7] * 6]) == 5 / 8
    assert distinct_share([[1, 2]]) == 1.0
