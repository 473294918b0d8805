"""What is timed within the time given: lengths and contexts, and the steps of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from draftgauge.meter.steps import BACKLOGS, Asked, Sample

PLAIN_STEPS, FEW_PLAIN_STEPS = 8, 3  # in a row, the first of them not counted; where there is time, and where not
LEAST_ROUNDS = 6  # samples of every length and context: rather fewer lengths than fewer samples
NEAR = 9  # lengths up to here, and the ends of rows in fours beyond, are verified even where drafting them takes long
IDLE_RUNS = (1, 3, BACKLOGS - 1)  # steps that draft nothing, by turns; the next draft has more tokens to prefill
LOOKED_AT = (2, 4)  # draft lengths that are timed with a policy that looks at each token


@dataclass
class Bench:
    """The measurements at one context length, for which decoding starts at ``start`` tokens."""

    context: int
    start: int
    samples: list[Sample] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    prefill_seconds: float = 0.0  # of the first run; later ones begin with what is held


class Schedule(NamedTuple):
    """What is measured, the seconds until every length has been timed once, and what is said of what is left out.

    Lengths that are ``verified`` and not ``drafted`` are filled up behind one drafted token.
    """

    benches: list[Bench]
    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    plain_steps: int
    seconds: float
    note: str = ""


def scheduled(benches: list[Bench], longest: int, seconds: float, spent: float, overlaps: bool) -> Schedule:
    """As many lengths up to the ``longest``, and contexts, as the time that is left of ``seconds`` allows.

    What they take is read off the steps so far of the shortest context.
    """
    samples = benches[0].samples
    verify = by_length(samples, lambda sample: sample.verify)
    drafting = by_length(samples, lambda sample: sample.draft, "drafted")
    shortest, last, draft = (float(np.median(of)) for of in (verify[0], verify[longest], drafting[longest]))
    prefill = benches[0].prefill_seconds / benches[0].start
    every = tuple(range(longest + 1))
    doubling = tuple(length for length in every if length & (length - 1) == 0 or length == longest)
    fewest = tuple(sorted({0, 1, longest}))
    # Rows in fours are full behind three drafted tokens, and begin anew behind four.
    near = tuple(n for n in every if n <= NEAR or n % 4 in (0, 3) or n == longest)
    nearer, nearest = (
        tuple(n for n in near if n in few or n == longest) for few in (range(NEAR + 1), (*range(5), 7, 8))
    )
    # A draft that runs under the launches of the verification is no draft of one token that is filled up.
    wide = (doubling, doubling if overlaps else near)
    narrow = [(fewest, verified) for verified in ((near, nearer, nearest, fewest) if not overlaps else (fewest,))]
    ends, one = [benches[0], benches[-1]] if len(benches) > 1 else benches, benches[:1]
    choices = [(benches, (every, every)), (benches, wide), (ends, wide), (one, wide)]
    for some, (drafted, verified) in choices + [(one, lengths) for lengths in narrow]:
        plain_steps = PLAIN_STEPS if drafted == every else FEW_PLAIN_STEPS
        schedule = Schedule(some, drafted, verified, plain_steps, 0.0)
        rounds = [[Asked(1, 1), *one_round(schedule, number, np.random.default_rng(0), overlaps)] for number in (1, 2)]
        steps = sum(
            shortest + ((last - shortest) * asked.gamma + draft * asked.drafted) / longest
            for pieces in rounds
            for asked in pieces
        ) / len(rounds)
        # The longest context is taken in anew at every second round, a single one only with another text.
        again = prefill * some[-1].start / (2 if len(some) > 1 else LEAST_ROUNDS)
        each = again + len(some) * (steps + shortest * plain_steps)
        if spent + LEAST_ROUNDS * each <= seconds:
            break
    if (some, drafted) == (benches, every):
        return schedule._replace(seconds=spent + each)
    named, where = ", ".join(map(str, drafted)), ", ".join(str(bench.context) for bench in some)
    besides = ", ".join(str(length) for length in verified if length not in drafted)
    note = (
        f"a step takes {shortest:.2g} to {last + draft:.2g} s, so within {seconds:g} s drafts of {named} tokens "
        f"were timed at contexts of {where} tokens{besides and f', verifying {besides} besides'}, and costs between "
        f"them are interpolated"
        f"{'' if spent + each <= seconds else f'; that alone takes about {spent + each:.2g} s'}"
    )
    return schedule._replace(seconds=spent + each, note=note)


def one_round(schedule: Schedule, number: int, rng: np.random.Generator, overlaps: bool = False) -> list[Asked]:
    """Every length once in random order, some with a policy that looks on, and a run of steps that draft nothing.

    Where drafting takes most of the time, the long drafts are left out of every second round.
    """
    drafted = schedule.drafted
    looked_at = {min(length, drafted[-1]) for length in (LOOKED_AT if len(drafted) > 3 else LOOKED_AT[:1])}
    looked_at |= {drafted[-1]} if overlaps else set()
    if schedule.verified != drafted and number % 2:
        drafted, looked_at = drafted[:2], set()
    pieces = [[Asked(length, length if length in drafted else 1)] for length in schedule.verified[1:]]
    pieces += [[Asked(length, length, looks=True)] for length in sorted(looked_at)]
    # Steps are taken from the end, so the draft that follows the run comes first.
    pieces.append([Asked(1, 1), *[Asked(0, 0)] * IDLE_RUNS[number % len(IDLE_RUNS)]])
    return [asked for index in rng.permutation(len(pieces)) for asked in pieces[index]]


def by_length(
    samples: Sequence[Sample], value: Callable[[Sample], float], length: str = "gamma"
) -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for sample in samples:
        if not sample.looks:
            values.setdefault(getattr(sample, length), []).append(value(sample))
    return values
