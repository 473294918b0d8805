"""What a verdict says: the setting where it is known, else what is missing and the command that would settle it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftgauge.judging.verdict import Verdict, verdict_of


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict("fixed:4", "fixed:4", 1.3, 1.2, 1.4, 20), "Draft with fixed:4: 1.30x plain decoding (95%: 1.20x to"),
        (Verdict("no-draft", "fixed:1", 0.9, 0.8, 0.95, 20), "Do not draft: the fastest policy, fixed:1, reaches 0.90"),
        (Verdict("no-draft", "svip", 1.004, 1.001, 1.01, 20), "svip, is level with not drafting, at 1.00x plain"),
        (
            Verdict("a", "a", 1.3, 1.2, 1.4, 20, fastest="b", top=1.304),
            "level with the fastest, b (1.30x), and simpler",
        ),
        (Verdict("a", "a", 1.3, 1.2, 1.4, 20, fastest="fixed:5", top=1.4), "fixed:5 happens to be faster (1.40x)"),
        (Verdict("no-draft", "", 1.0, 1.0, 1.0, 20), "Do not draft: no policy that drafts was tried."),
        (Verdict("fixed:4", "fixed:4", 1.3, 1.2, 1.4, 7, command="c"), "Not known yet: 7 of at least 8 prompts"),
        (Verdict("no-draft", "fixed:1", 1.0, 0.9, 1.1, 20), "Not known yet: the interval reaches both sides"),
        (
            Verdict("fixed:4", "fixed:4", 1.3, 1.2, 1.4, 7, unit="drafts of a server"),
            "7 of at least 8 drafts of a server are recorded. What would settle it: about 8 drafts of a server.",
        ),
        (Verdict("fixed:4", "fixed:4", 1.3, None, None, 9), "Not known yet: the prompts are turns of one conversation"),
        (Verdict("svip", "svip", 1.3, 1.2, 1.4, 20, "busy", "draftgauge c"), "run `draftgauge c --measure --cost-s"),
        (Verdict("svip", "svip", 1.3, 1.2, 1.4, 20, "busy", "api.py"), "busy. What would settle it: costs measured"),
        (
            Verdict("svip", "svip", 1.3, None, None, 1, "busy", "draftgauge profile --limit 1 --out a"),
            "run `draftgauge profile --limit 8 --out a-8 --measure --cost-seconds 60`, on 8 prompts, with nothing else "
            "on the machine. So far: Draft with svip: 1.30x plain decoding, modelled on 1 prompt.",
        ),
        (Verdict("svip", "svip", 1.3, 1.2, 1.4, 7, "", "api.py"), "recorded. What would settle it: about 8 prompts."),
        (
            Verdict("two-source", "two-source", 1.3, 1.2, 1.4, 20, text_only=True),
            "modelled on 20 prompts. All that it proposes is looked up in the text",
        ),
    ],
)
def test_what_is_said(verdict: Verdict, said: str) -> None:
    assert said in str(verdict)
    assert bool(verdict.unknown) == str(verdict).startswith("Not known yet")


@pytest.mark.parametrize(
    ("asked", "settles"),
    [
        ("profile --limit 20 --out a", "record about 80 prompts: `draftgauge profile --limit 80 --out a-80`."),
        ("profile --per-task=5 --seconds 9", "80 prompts: `draftgauge profile --per-task=20 --seconds 36`."),
        (
            "profile --out 'a b'",
            "`draftgauge profile --out 'a b'-80 --prompts MORE.jsonl`, where MORE.jsonl has as many.",
        ),
        (
            "profile --prompts p.jsonl --out a/",
            "80 prompts: `draftgauge profile --out a-80 --prompts MORE.jsonl`, where",
        ),
    ],
)
def test_what_settles_it_is_a_number_and_another_command(asked: str, settles: str) -> None:
    """Half the interval is twice what is between the figure and plain decoding, so four times the prompts tell."""
    verdict = Verdict("fixed:4", "fixed:4", 1.1, 0.9, 1.3, 20, command=f"draftgauge {asked}")
    assert settles in str(verdict)
    level = replace(verdict, speedup=1.0, low=0.75, high=1.25)  # nothing within 1% is worth telling
    assert "about 12500 prompts" in str(level)
    doubted = replace(verdict, doubt="busy", command=f"draftgauge {asked} --cost-seconds 90")
    assert "--measure --cost-seconds 180`" in str(doubted)


def test_where_drafting_does_not_pay_the_figure_is_of_the_fastest_policy_that_drafts() -> None:
    def row(policy: str, ratio: float) -> dict:
        ends = {"ratio_to_plain_low": ratio - 0.05, "ratio_to_plain_high": ratio + 0.02}
        row = {"policy": policy, "ratio_to_plain": ratio, "recommended": policy == "no-draft", "prompts": 9}
        return row | ends | {"cost_doubt": None}

    found = verdict_of([row("no-draft", 0.99), row("fixed:1", 0.9), row("svip", 0.95), row("hindsight", 1.2)])
    assert (found.setting, found.drafting, found.speedup, found.speculate) == ("no-draft", "svip", 0.95, False)
    assert (found.low, found.high, found.prompts, found.fastest) == (pytest.approx(0.9), pytest.approx(0.97), 9, "")


@pytest.mark.parametrize(("drafted", "text_only"), [(0.0, True), (0.2, False)])
def test_a_rule_that_only_looks_up_is_told_apart(drafted: float, text_only: bool) -> None:
    row = {"policy": "two-source", "recommended": True, "prompts": 9, "cost_doubt": None, "ratio_to_plain": 1.3}
    row |= {"ratio_to_plain_low": 1.2, "ratio_to_plain_high": 1.4, "drafted_per_step": drafted}
    found = verdict_of([row | {"appended_per_step": 1.5}])
    assert (found.text_only, found.low, found.high, found.fastest) == (text_only, 1.2, 1.4, "")
