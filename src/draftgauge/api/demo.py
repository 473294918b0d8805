"""The whole path on the bundled pair within a given time: a streamed answer, profile, replay, bench and report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from draftgauge.api.bench import bench
from draftgauge.api.generate import OnText, generate
from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.profile import profile, profile_rows
from draftgauge.api.prompts import choose_prompts
from draftgauge.api.replay import replay
from draftgauge.api.report import REPORT_NAME
from draftgauge.api.requests import (
    PLAIN,
    BenchRequest,
    DemoRequest,
    GenerateRequest,
    OutputSpec,
    PairSpec,
    ProfileRequest,
)
from draftgauge.api.runs import Warn, read_run, select_runs, warn
from draftgauge.api.verb import verb
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text, require_writable
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import in_turn
from draftgauge.core.provenance import command_line, write_measurement
from draftgauge.policies.registry import compared_policies
from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.reporting.page import build_report

PLAN_NAME = "plan.json"
PHASES_NAME = "phases.json"
FIRST_POLICY = "fixed:4"
SUMMARY = ("compression", "task", "best_fixed_gamma", "near_best_from", "near_best_to", "hindsight_gain", "cost_ratio")
REPORT_SECONDS = 8.0  # for the report, at the end
RECORDING = 2.0  # times what plain decoding of a prompt takes: its output, its drafts, replay
RECORD_SHARE = 0.3  # of the time of a compression, at most; recording ends with the prompt at which it is over
COST_SHARE = 0.3  # at most too; what neither takes goes into the live bench
LOADS = 2  # of each compression, behind the one that its speed is estimated with: to record and to bench
LEAST_SECONDS = 1.0  # for a recording, a cost curve and a bench each, where the time is over before
SHORTEST = 32  # output tokens of a prompt, of which fewer say little
PROBE = 24  # output tokens from which the speed at a compression is estimated

OnRows = Callable[[str, Sequence[dict[str, Any]]], None]


@dataclass(frozen=True)
class Plan:
    """What fits into the time: the same prompts for every compression, so that they can be compared.

    Attributes:
        per_task: prompts of each task.
        max_new_tokens: of each output.
        shares: of the remaining time, by compression: as one is slower than another.
        loading: seconds of loading the pair, by compression.
    """

    per_task: int
    max_new_tokens: int
    shares: Mapping[str, float]
    loading: Mapping[str, float]


@verb(DemoRequest)
def demo(
    request: DemoRequest,
    *,
    progress: Progress = silent,
    on_text: OnText | None = None,
    on_rows: OnRows = lambda name, rows: None,
    on_warning: Warn = warn,
) -> list[dict[str, Any]]:
    """Record, replay and bench a pair within ``seconds`` and write the report.

    ``out`` receives ``runs/<compression>/``, ``report.html`` and ``phases.json``, the seconds of each phase. A demo
    that was interrupted goes on where it was, with the prompts that it chose then.

    Every phase ends when its share of the time is over: recording and the bench with the prompt that they are at (one
    prompt is always finished), measuring costs as soon as every length has been timed. The first compression is always
    shown; others that the time does not reach are left out, and are there when the demo is run again with more.

    Args:
        request: what to show, within which time.
        progress: told (what, done, total).
        on_text: told each new piece of the first answer, see :func:`~draftgauge.api.generate.generate`.
        on_rows: told rows as soon as they are measured: ``"first"`` of the first answer, then those of each
            compression, none of one for which there was no time.
        on_warning: told of costs that are not to be trusted; by default a Python warning.

    Returns:
        Rows. A row of a policy has ``compression, task, policy, ratio_to_plain`` (with ``_low`` and ``_high``),
        ``gain, tokens_per_step, modelled_tokens_per_second, live_tokens_per_second, mismatches``; a row that sums up a
        compression has ``compression, task, best_fixed_gamma, near_best_from, near_best_to, hindsight_gain,
        cost_ratio``, one for each task and one for ``all``.
    """
    clock = _Clock(request.seconds)
    runs = request.out / "runs"
    require_writable(request.out)
    first = request.pair.compression[0]
    with clock.phase("load", first):
        pair = load_pair(request.pair.at(first))
    with clock.phase("first answer", first):
        on_rows("first", [_first_answer(request, pair, on_text)])
    with clock.phase("plan"):
        plan = _plan(request, pair, clock)
    del pair
    rows: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    for position, compression in enumerate(request.pair.compression):
        if position > 0 and clock.left() <= LOADS * plan.loading[compression] + LEAST_SECONDS:
            on_rows(compression, [])
            continue
        seconds = clock.left() * plan.shares[compression] / _rest(plan, request.pair.compression[position:])
        end = time.monotonic() + seconds
        with clock.phase("profile", compression):
            profile(_profile_request(request, plan, compression, runs, seconds), progress=progress)
        with clock.phase("bench", compression):
            timed = _bench(request, runs / compression, end - plan.loading.get(compression, 0.0), progress)
        with clock.phase("replay", compression):
            shown = _shown(runs / compression, timed, on_warning)
        live += timed
        rows += shown
        on_rows(compression, shown)
        clock.save(request.out)
    with clock.phase("report"):
        build_report([run for run, _ in select_runs(runs)], request.out / REPORT_NAME, live)
    clock.save(request.out)
    return rows


class _Clock:
    """The time that is left for measuring, and what went into which phase."""

    def __init__(self, seconds: float) -> None:
        self._begun = time.monotonic()
        self._end = self._begun + seconds - REPORT_SECONDS
        self._phases: list[dict[str, Any]] = []

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @contextmanager
    def phase(self, name: str, compression: str | None = None) -> Iterator[None]:
        """Note what happens in the block."""
        begun = time.monotonic()
        yield
        now = time.monotonic()
        self._phases.append(
            {
                "phase": name,
                "compression": compression,
                "seconds": now - begun,
                "ended_after": now - self._begun,
                "left": self.left(),
            }
        )

    def seconds_of(self, name: str) -> float:
        """What a phase took so far."""
        return float(sum(entry["seconds"] for entry in self._phases if entry["phase"] == name))

    def save(self, folder: Path) -> None:
        """Write the phases so far."""
        write_measurement(folder / PHASES_NAME, command_line(), self._phases)


def _first_answer(request: DemoRequest, pair: Pair, on_text: OnText | None) -> dict[str, Any]:
    """One prompt, streamed with speculation, and decoded plainly to compare: tokens a step, and how much faster."""
    _, chosen = choose_prompts(replace(request.prompts, limit=None, per_task=1))
    asked = GenerateRequest(
        prompt=tuple(pair.encode(chosen[0], request.prompts.rendering)), policy=FIRST_POLICY, output=request.output
    )
    _, drafted = generate(asked, pair=pair, on_text=on_text)
    _, plain = generate(replace(asked, policy=PLAIN), pair=pair)
    return {
        "policy": FIRST_POLICY,
        "compression": pair.compression,
        "prompt": chosen[0].identifier,
        "tokens": len(drafted.tokens),
        "tokens_per_step": drafted.tokens_per_step,
        "ratio_to_plain": drafted.tokens_per_second / plain.tokens_per_second,
        "tokens_per_second": drafted.tokens_per_second,
        "same_tokens": drafted.tokens == plain.tokens,
    }


def _plan(request: DemoRequest, pair: Pair, clock: _Clock) -> Plan:
    """Prompts and lengths that fit into the time; those of an interrupted demo in the same folder, if there is one."""
    path = request.out / PLAN_NAME
    if path.exists():
        try:
            plan = from_mapping(Plan, json.loads(path.read_text(encoding="utf-8")), str(path))
        except ValueError as error:
            raise DraftgaugeError(f"{path} is not the plan of a demo ({error}): choose another folder") from error
        if not plan.shares.keys() >= set(request.pair.compression):
            planned = ",".join(plan.shares)
            raise DraftgaugeError(
                f"{path} is the plan of a demo of {planned}: go on with --compression {planned}, or choose another "
                "folder"
            )
        return plan
    _, chosen = choose_prompts(request.prompts)
    by_task = in_turn(chosen)
    tasks = len({prompt.task for prompt in chosen})
    longest = request.output.max_new_tokens
    decoding, loading = {}, {}  # seconds by compression
    for compression in request.pair.compression:
        begun = time.monotonic()
        loaded = pair if compression == pair.compression else load_pair(request.pair.at(compression))
        loading[compression] = time.monotonic() - begun if loaded is not pair else clock.seconds_of("load")
        decoding[compression] = longest * _seconds_a_token(loaded, loaded.encode(by_task[0], request.prompts.rendering))
    shares = _shares(decoding)
    left = max(0.0, clock.left() * (1 - COST_SHARE) - LOADS * sum(loading.values()))
    arms = 3 + len(compared_policies())
    visit = sum(decoding.values())  # all compressions decode a prompt plainly
    fitting = (left - arms * visit) / (visit * (RECORDING + arms))  # prompts; the bench decodes one more, to warm up
    per_task = max(1, min(int(fitting / tasks), ceil(len(chosen) / tasks)))
    length = longest
    if fitting < tasks:
        fits = left / (visit * (tasks * (RECORDING + arms) + arms))
        length = min(longest, max(SHORTEST, int(longest * fits)))
    plan = Plan(per_task, length, shares, loading)
    atomic_write_text(path, json.dumps(to_mapping(plan), indent=1) + "\n")
    return plan


def _shares(costs: dict[str, float]) -> dict[str, float]:
    """Shares of the time: a third in equal parts, as costs are measured for each, the rest as decoding takes."""
    total = sum(costs.values())
    return {name: 1 / 3 / len(costs) + 2 / 3 * seconds / total for name, seconds in costs.items()}


def _rest(plan: Plan, compressions: Sequence[str]) -> float:
    return sum(plan.shares[name] for name in compressions)


def _seconds_a_token(pair: Pair, tokens: list[int]) -> float:
    asked = GenerateRequest(prompt=tuple(tokens), policy=PLAIN, output=OutputSpec(max_new_tokens=PROBE))
    _, result = generate(asked, pair=pair)
    return 1 / max(result.tokens_per_second, 1e-9)


def _profile_request(request: DemoRequest, plan: Plan, compression: str, runs: Path, seconds: float) -> ProfileRequest:
    """The recording of one compression, in the folder that a profile of several would give it."""
    return ProfileRequest(
        out=runs / compression,
        pair=request.pair.at(compression),
        prompts=replace(request.prompts, per_task=request.prompts.per_task or plan.per_task),
        output=OutputSpec(max_new_tokens=plan.max_new_tokens),
        drafts=request.drafts,
        seconds=max(LEAST_SECONDS, RECORD_SHARE * seconds),
        costs=replace(request.costs, cost_seconds=_cost_seconds(request.costs.cost_seconds, seconds)),
    )


def _cost_seconds(asked: float, seconds: float) -> float:
    """Seconds for a cost curve: what was asked for, within its share. None at all asks the meter for more samples."""
    return min(asked, max(LEAST_SECONDS, COST_SHARE * seconds))


def _policies(run: Path) -> tuple[str, ...]:
    """What the demo compares: the best fixed length of a run, nothing, and the policies of comparisons."""
    best = best_fixed_gamma(*read_run(run))
    return tuple(dict.fromkeys(["none", f"fixed:{max(best, 1)}", *compared_policies()]))


def _bench(request: DemoRequest, run: Path, end: float, progress: Progress) -> list[dict[str, Any]]:
    """The live bench of a recorded run, until a moment of ``time.monotonic``."""
    asked = BenchRequest(
        folder=run,
        policies=_policies(run),
        pair=PairSpec(machine=request.pair.machine, loading=request.pair.loading),
        baselines=False,
        rounds=request.rounds,
        seconds=max(LEAST_SECONDS, end - time.monotonic()),
    )
    return bench(asked, progress=progress)


def _shown(run: Path, measured: Sequence[Mapping[str, Any]], on_warning: Warn) -> list[dict[str, Any]]:
    """The demo's rows of a recorded run that was benched."""
    rows = _joined(replay(run, _policies(run), on_warning=on_warning), measured)
    return rows + [{key: row[key] for key in SUMMARY} for row in profile_rows([run])]


def _joined(replayed: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Modelled and live figures of the same policy and task side by side."""
    live = {(row["task"], row["policy"]): row for row in measured}
    rows = []
    for row in replayed:
        timed = live.get((row["task"], row["policy"]))
        if timed is None:
            continue
        rows.append(
            {
                "compression": row["compression"],
                "task": row["task"],
                "policy": row["policy"],
                "ratio_to_plain": timed["ratio_to_plain"],
                "ratio_to_plain_low": timed["ratio_to_plain_low"],
                "ratio_to_plain_high": timed["ratio_to_plain_high"],
                "gain": timed["gain"],
                "gain_low": timed["gain_low"],
                "gain_high": timed["gain_high"],
                "modelled_gain": row["gain"],
                "tokens_per_step": row["tokens_per_step"],
                "live_tokens_per_step": timed["tokens_per_step"],
                "modelled_tokens_per_second": row["tokens_per_second"],
                "live_tokens_per_second": timed["tokens_per_second"],
                "live_low": timed["tokens_per_second_low"],
                "live_high": timed["tokens_per_second_high"],
                "mismatches": timed["mismatches"],
                "prompts": timed["prompts"],
            }
        )
    return rows
