"""Costs and acceptance by the length of texts: the law, and advice up to the length at which drafting stops to pay."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.checkup.checks import Evidence, examine
from draftgauge.judging.acceptance import acceptance_by_context, advice_by_context, lengths_by_context
from draftgauge.judging.replay import replay_fixed_all
from draftgauge.traces.costs import CostCurve, extended, fit_law, laws_of
from draftgauge.traces.engine_costs import EngineCosts
from draftgauge.traces.trace import PromptInfo, PromptRecord, Trace, make_record
from draftgauge.traces.writer import make_trace

GAMMA_MAX = 3


def record(index: int, context: int, chance: float) -> PromptRecord:
    """An output of 60 tokens behind a prompt of ``context``, whose drafted tokens are right with this chance."""
    rng, output = np.random.default_rng(index), list(range(1, 61))
    right = rng.random((60, GAMMA_MAX)) < chance
    drafts = [
        [token if ok else 0 for token, ok in zip(output[at : at + GAMMA_MAX], right[at], strict=False)]
        for at in range(60)
    ]
    return make_record(PromptInfo(index, str(index), "chat", "", context, 60, "stop"), output, drafts, GAMMA_MAX)


def trace_of(*groups: tuple[int, float]) -> Trace:
    return make_trace([record(10 * at + i, *of) for at, of in enumerate(groups) for i in range(10)], 60)


def curve(slope: float, draft_slope: float, contexts: tuple[int, ...], noise: float = 0.0) -> CostCurve:
    rng, k, at = np.random.default_rng(0), np.arange(GAMMA_MAX + 1), np.array(contexts)[:, None]
    verify = (0.02 + 0.001 * k + slope * at) * (1 + noise * rng.normal(size=(len(contexts), GAMMA_MAX + 1)))
    draft = (0.001 + draft_slope * at) * k
    plain = tuple((0.02 + slope * np.array(contexts)).tolist())
    return CostCurve(contexts, tuple(map(tuple, verify)), tuple(map(tuple, draft)), plain, "", "cpu", "")


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_law_predicts_contexts_that_it_was_not_fitted_on(noise: float) -> None:
    known, whole = curve(4e-6, 2e-7, (256, 1024, 4096), noise), curve(4e-6, 2e-7, (2048, 8192))
    verify, _ = laws_of(known)  # type: ignore[misc]
    assert verify.slope == pytest.approx(4e-6, rel=0.1)
    assert verify.error <= 3 * noise + 1e-9
    longer = extended(known)
    assert longer.contexts[:3] == known.contexts
    for tokens in range(1, GAMMA_MAX + 2):
        for context in (2048, 8192):
            expected = whole.verify_seconds(tokens, context)
            assert longer.verify_seconds(tokens, context) == pytest.approx(expected, rel=0.05)
    assert longer.draft_seconds(3, 8192) == pytest.approx(whole.draft_seconds(3, 8192), rel=0.05)
    assert laws_of(curve(4e-6, 0, (256,))) is None
    assert extended(curve(4e-6, 0, (256,))).contexts == (256,)
    batched = fit_law([[256, 1024], [8 * 256, 8 * 1024]], [[0.021, 0.024], [0.028, 0.053]])  # 1 request, 8 requests
    assert batched.seconds([4096])[:, 0] == pytest.approx([0.0365, 0.0362], abs=0.001)


@pytest.mark.parametrize("run", ["bf16", "nf4", "int8"])
def test_measured_costs_follow_the_law(run: str) -> None:
    """Fitted at the shortest and the longest context measured, it predicts verification at the one between, in
    the mean over numbers of tokens: on these CPUs, where a pass of several tokens reads a text once too."""
    measured = CostCurve.load(Path("docs/results/real/runs") / run / "costs.json")
    ends = [0, len(measured.contexts) - 1]
    law = fit_law([measured.contexts[at] for at in ends], np.asarray(measured.verify).T[:, ends])
    between = np.asarray(measured.verify)[1]
    apart = law.seconds(measured.contexts[1]) / between - 1
    assert np.abs(apart).mean() < 0.05


def test_advice_ends_where_drafting_does_not_pay_any_more() -> None:
    texts = trace_of((100, 0.8), (6000, 0.8))
    dear = curve(1e-6, 5e-6, (256, 4096))  # the drafter reads the text for every token: at 4k that takes as long
    said = advice_by_context(texts, dear)
    assert said is not None
    assert re.match(r"draft 3 up to \d+, .* up to 2048 tokens of context, none beyond \(costs", said)
    lengths = lengths_by_context(texts, dear)
    assert [lengths[256], lengths[2048] > 0, lengths[4096], max(lengths)] == [3, True, 0, 8 * 4096]
    assert "within 0%" in said
    assert "recorded up to 6059" in said
    assert advice_by_context(texts, curve(1e-6, 0, (256, 4096))) is None  # the same length everywhere
    assert advice_by_context(texts, curve(1e-6, 5e-6, (256,))) is None  # nothing is known of other lengths
    fading = trace_of((100, 0.9), (6000, 0.02))
    lengths = lengths_by_context(fading, curve(1e-6, 0, (256, 4096)))
    assert lengths[1 << 9] == 3
    assert lengths[1 << 14] == 0
    assert max(lengths) <= 8 * 4096


def test_lengths_by_context_are_those_of_replay() -> None:
    """In one range of contexts, and at costs that hardly grow, the best length is the one that replay finds."""
    hard = [[3] * 30 + [0] * 30] * 10  # right up to depth 3 over half of an output, then never
    drafts = [[[at + 1 + d if d < of[at] else 0 for d in range(GAMMA_MAX)] for at in range(60)] for of in hard]
    records = [
        make_record(PromptInfo(i, str(i), "chat", "", 100, 60, "stop"), list(range(1, 61)), rows, GAMMA_MAX)
        for i, rows in enumerate(drafts)
    ]
    trace, costs = make_trace(records, 60), curve(1e-9, 1e-9, (64, 256))
    costs = replace(costs, draft=tuple(tuple(0.007 * n for n in range(GAMMA_MAX + 1)) for _ in costs.contexts))
    speeds = [run.tokens_per_second for run in replay_fixed_all(trace, costs)]
    assert lengths_by_context(trace, costs)[256] == int(np.argmax(speeds)) == 0


def test_what_fades_with_the_text_is_named() -> None:
    rates = acceptance_by_context(trace_of((100, 0.9), (6000, 0.3)))
    assert list(rates) == ["under 1k", "4k to 16k"]
    assert rates["under 1k"][0] == pytest.approx(0.9, abs=0.05)
    assert rates["4k to 16k"][0] == pytest.approx(0.3, abs=0.05)
    for groups, status in ((((100, 0.9), (6000, 0.3)), "suspect"), (((100, 0.9), (6000, 0.9)), "well")):
        rows = {row["check"]: row for row in examine(Evidence(trace=trace_of(*groups)))}
        assert rows["long-context"]["status"] == status
        assert "4k to 16k" in rows["depth"]["evidence"]
    assert {row["check"]: row for row in examine(Evidence(trace=trace_of((100, 0.9))))}["long-context"][
        "status"
    ] == "unknown"


def test_an_engine_s_costs_may_name_what_texts_cost() -> None:
    costs = EngineCosts("vllm", (1, 4), (0.01, 0.012), ((0.01, 0.011), (0.012, 0.016)), ((0.0, 0.001), (0.0, 0.002)))
    costs = replace(costs, context=256, context_seconds=1e-6, draft_context_seconds=1e-7)
    costs.validate()
    alone, four = costs.curve(1), costs.curve(4)
    assert alone.verify_seconds(2, 256 + 5000) == pytest.approx(0.016)
    assert four.verify_seconds(2, 256 + 5000) == pytest.approx(0.016 + 4 * 0.005)
    assert four.draft_seconds(1, 256 + 5000) == pytest.approx(0.002 + 4 * 0.0005)
    assert costs.of_batches().verify_seconds(4, 8, 256 + 5000) == pytest.approx(0.016 + 4 * 0.005)
    assert alone.verify_seconds(2, 100) == pytest.approx(0.011)
