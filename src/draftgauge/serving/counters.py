"""What an engine counts of its speculation, and what follows from it alone.

vLLM and llama.cpp's server count drafts, drafted and accepted tokens, and accepted ones by position, under the same
names after their prefix. SGLang shows means. All three also answer with the counters of each request. Accepted tokens
leave out the target's own token of each step (the bonus token); an *acceptance length* counts it. Those behind the end
of an answer count too, so steps are not its tokens without the accepted ones.

Of drafts of one length ``K``, the share that accepts position ``j`` is the *survival* ``s(j)``. If steps that begin
elsewhere in the text were alike, drafting ``k <= K`` tokens would commit ``1 + s(1) + .. + s(k)`` tokens a step.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from draftgauge.core.artefacts import read_text
from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving.endpoint import ServerError, fetch_json, fetch_text
from draftgauge.serving.engines import ENGINES
from draftgauge.serving.exchange import MAX_COUNT, MAX_LENGTH, answers_of, count, draft_length

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a name, its labels as they are written, a value, which may be NaN or infinite."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_metrics(text: str) -> list[Sample]:
    """The samples of a page in its order."""
    samples = []
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        try:
            if match is None:
                raise ValueError(line)
            samples.append(Sample(match["name"], float(match["value"]), dict(_LABEL.findall(match["labels"] or ""))))
        except ValueError as error:
            raise DraftgaugeError(f"this is no page of metrics: {line[:80]!r}") from error
    return samples


PREFIXES = {engine.name: engine.metrics for engine in ENGINES.values() if engine.metrics}  # of the metrics of servers
ANSWERS = {name: [each.split() for each in engine.answers] for name, engine in ENGINES.items()}
TENSORRT = "avg_decoded_tokens_per_iter"  # all that TensorRT-LLM's answers say of speculation
ALIKE = 0.95  # drafts are of one length if their mean is this share of the longest: ends of outputs shorten some
NEARLY = 1e-3  # a length that is a whole number but for rounding

_COUNTER = "spec_decode_num_"
_TOTALS = ("drafts", "draft_tokens", "accepted_tokens")
_BY_POSITION = "accepted_tokens_per_pos"
_COUNTED = ("spec_verify_calls_total", "num_requests_total")  # of SGLang


@dataclass(frozen=True)
class SpeculationCounts:
    """Counters of a server since it started."""

    drafts: int  # steps that verified a draft
    drafted: int  # tokens
    accepted: int
    by_position: tuple[int, ...] = ()  # accepted tokens by position of the draft; empty where they are not counted

    @property
    def length(self) -> float:
        return self.drafted / self.drafts

    @property
    def alike(self) -> bool:
        return self.length >= ALIKE * (len(self.by_position) or longest_draft(self.length))

    @property
    def flaw(self) -> str:
        """What cannot be of them, as the rest of a sentence; empty if they can."""
        if self.drafts and self.length > MAX_LENGTH:
            return f"counts {self.drafted} drafted tokens of {self.drafts} drafts"
        for position, (before, here) in enumerate(pairwise((self.drafts, *self.by_position)), 1):
            if here > before:
                return f"counts {here} tokens accepted at position {position} and {before} before it"
        apart = abs(sum(self.by_position) - self.accepted) if self.by_position else 0
        if apart > (1 - ALIKE) * self.accepted:  # a page may be written while it is counted on
            return f"counts {sum(self.by_position)} accepted tokens by position and {self.accepted} in all"
        accepted = f"counts {self.accepted} accepted tokens of {self.drafted} drafted ones"
        return accepted if self.accepted > self.drafted else ""

    def survival(self) -> tuple[float, ...]:
        """The share of drafts accepted up to each position ``1..K``.

        Where positions are not counted, each token is taken to be accepted with the same chance ``a`` after those
        before it. ``a + .. + a ** K`` is then the accepted tokens a draft.
        """
        if not self.alike:
            longest = f" of up to {len(self.by_position)}" if self.by_position else ""
            raise DraftgaugeError(
                f"the server's drafts differ in length ({self.length:.3g} tokens on average{longest}), so its counters "
                "do not say how often a position was reached: serve one fixed length, or give a recorded run"
            )
        if self.by_position:
            return tuple(count / self.drafts for count in self.by_position)
        length = round(self.length)
        chance = constant_chance(self.accepted / self.drafts, length)
        return tuple(chance**depth for depth in range(1, length + 1))


def longest_draft(mean: float) -> int:
    """The length of drafts that are ``mean`` tokens long, some of them cut short by the end of an output."""
    return math.ceil(ALIKE * mean)


def constant_chance(accepted: float, length: int) -> float:
    """The chance ``a`` in 0..1 with ``a + a ** 2 + .. + a ** length`` equal to ``accepted``."""
    depths = np.arange(1, length + 1)
    return float(brentq(lambda chance: (chance**depths).sum() - accepted, 0, 1)) if accepted < length else 1.0


def read_counts(engine: str, place: str) -> SpeculationCounts:
    """The counters of a running server (an address) or in a file: its metrics page, or JSON Lines of its answers."""
    if engine not in PREFIXES:
        raise DraftgaugeError(
            f"counters of {engine} cannot be read: name its --engine, {' or '.join(PREFIXES)}, or record a run"
        )
    saved, started = Path(place).is_file(), f"start it with {ENGINES[engine].started}"
    text = read_text(Path(place), "page of metrics") if saved else fetch_text(place, "/metrics")
    if saved and text.lstrip().startswith("data:"):
        raise DraftgaugeError(f"{place} holds events of streams: ask without stream, and save one answer a line")
    if saved and text.lstrip().startswith(("{", "[")):
        counts: SpeculationCounts | None = _of_answers(engine, Path(place))
    else:
        samples = _latest(parse_metrics(text))
        counts = counts_of(samples, PREFIXES[engine])
        others = [name for name, prefix in PREFIXES.items() if counts_of(samples, prefix) is not None]
    if counts is None:
        what = f"is one of {others[0]}" if others else f"counts no speculation; {started}"
        raise DraftgaugeError(f"the server at {place} {what}")
    if counts.drafts <= 0 or counts.drafted == 0:
        raise DraftgaugeError(
            f"the server at {place} has drafted nothing yet: send it the requests that it is to be judged on, or, if "
            f"it runs without speculation, {started}"
        )
    if counts.flaw:
        raise DraftgaugeError(f"the server at {place} {counts.flaw}, which cannot be")
    return counts


def _of_answers(engine: str, path: Path) -> SpeculationCounts:
    """The counters of all answers of a file together."""
    counted, rounds = list[SpeculationCounts](), False
    for where, answer in answers_of(path):
        try:
            held = next(filter(None, (_below(answer, place.split(".")) for place in ANSWERS[engine][0])))
            counted += [_of_answer(engine, each) for each in held]
            rounds = rounds or "draft_rounds" in held[0]
        except (StopIteration, AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            names = ", ".join(" or ".join(each) for each in ANSWERS[engine] if each)
            what = f"has no counters of {engine} ({names})"
            if f'"{TENSORRT}"' in json.dumps(answer):
                what = f"is of TensorRT-LLM, which says a mean ({TENSORRT}) and counts no drafts"
            ask = "name another engine or version, or ask for them when the server is started"
            raise DraftgaugeError(f"{where} {what}: {ask}") from error
        if flaw := next((each.flaw for each in counted[-len(held) :] if each.flaw), ""):
            raise DraftgaugeError(f"{where} {flaw}, which cannot be")
    drafts, drafted, accepted = (
        [getattr(each, name) for each in counted] for name in ("drafts", "drafted", "accepted")
    )
    if engine == "llama-server" and not rounds:  # of the longest answer the end hides the least
        most = int(np.argmax(drafts))
        length = max(1, longest_draft(drafted[most] / max(1, drafts[most])))
        drafts = [max(steps, math.ceil(tokens / length)) for steps, tokens in zip(drafts, drafted, strict=True)]
    whole = all(each.by_position for each in counted if each.drafted)
    by_position = zip_longest(*(each.by_position for each in counted if whole), fillvalue=0)
    return SpeculationCounts(sum(drafts), sum(drafted), sum(accepted), tuple(map(sum, by_position)))


def _below(value: Any, keys: Sequence[str]) -> list[Any]:
    """What lies below keys, in each of the items of lists."""
    if isinstance(value, list):
        return [found for each in value for found in _below(each, keys)]
    if keys:
        return _below(value.get(keys[0]), keys[1:]) if isinstance(value, dict) else []
    return [] if value is None else [value]


def _of_answer(engine: str, held: dict[str, Any]) -> SpeculationCounts:
    missing: Any = 0 if engine == "llama-server" else None  # which says nothing of drafts where there were none
    values = (next((held[name] for name in names if name in held), missing) for names in ANSWERS[engine][1:])
    steps, drafted, accepted, accepting = values
    if engine == "sglang" and not any(name.startswith("spec_") for name in dict(held)):  # a single token
        steps = drafted = accepted = 0
    if engine == "llama-server" and "draft_rounds" not in held:  # the first token comes with the prompt
        steps = max(count(held["predicted_n"]) - 1 - count(accepted), min(1, count(drafted)))
    counts = SpeculationCounts(count(steps), count(drafted), count(accepted))
    if not accepting:
        return counts
    longest = draft_length(max(len(accepting) - 1, longest_draft(counts.drafted / max(1, counts.drafts))))
    return replace(counts, by_position=tuple(count(sum(accepting[at:])) for at in range(1, longest + 1)))


def _latest(samples: Sequence[Sample]) -> list[Sample]:
    """The last reading of each sample, where a page was saved again and again; counters must not go backwards."""
    latest: dict[tuple[str, str], Sample] = {}
    for sample in samples:
        before = latest.get(key := (sample.name, str(sample.labels)), sample).value
        if sample.value < before and (_COUNTER in sample.name or sample.name.endswith("_total")):
            what = f"{sample.name} goes backwards from {before:g} to {sample.value:g}"
            raise DraftgaugeError(f"{what}: the server started anew between two readings; give one page")
        latest[key] = sample
    return list(latest.values())


def counts_of(samples: Sequence[Sample], prefix: str) -> SpeculationCounts | None:
    """The counters among samples, summed over a server's engines and models; None if there are none."""
    if prefix == PREFIXES["sglang"]:
        return _of_means(samples)
    totals: defaultdict[str, float] = defaultdict(float)
    positions: defaultdict[int, float] = defaultdict(float)
    for sample in samples:
        counter = sample.name.removesuffix("_total").removeprefix(prefix + _COUNTER)
        if counter not in (*_TOTALS, _BY_POSITION) or not sample.name.startswith(prefix):
            continue
        position = sample.labels.get("position", "0")
        if not 0 <= sample.value <= MAX_COUNT or not re.fullmatch("[0-9]{1,3}", position):
            raise DraftgaugeError(f"{sample.name}{dict(sample.labels)} is {sample.value:g}, which is no count")
        if counter == _BY_POSITION:
            positions[int(position)] += sample.value
        else:
            totals[counter] += sample.value
    if len(totals) < len(_TOTALS):
        return None
    by_position = tuple(int(positions[at]) for at in range(max(positions, default=-1) + 1))
    drafts, drafted, accepted = (int(totals[name]) for name in _TOTALS)
    return SpeculationCounts(drafts, drafted, accepted, by_position)


def _of_means(samples: Sequence[Sample]) -> SpeculationCounts | None:
    """SGLang's latest means, as if all tokens that it has generated had been decoded like these. ``spec_accept_length``
    is committed tokens a step, ``spec_accept_rate`` accepted ones of those drafted. Of several ranks it is the mean of
    those that are not idle, which show 0. From 0.5.23 on it counts the steps. Their mean is then that of all requests,
    whose first tokens come with their prompts."""
    names = ("sglang:generation_tokens_total", "sglang:spec_accept_length", "sglang:spec_accept_rate")
    shown = [[sample.value for sample in samples if sample.name == name] for name in names]
    generated = sum(shown[0])
    length, rate = (sum(values) / max(1, len(list(filter(None, values)))) for values in shown[1:])
    if not (0 <= generated <= MAX_COUNT and 0 <= length <= MAX_COUNT and 0 <= rate <= 1):
        raise DraftgaugeError(f"{' and '.join(names)} are {generated:g}, {length:g} and {rate:g}, which cannot be")
    if not shown[1]:
        return None
    if length > 1 and rate == 0:
        raise DraftgaugeError(f"{names[1]} is {length:g}, and {names[2]} is not shown or 0, so that drafts are unknown")
    steps = round(generated / max(1.0, length))
    accepted = round(generated) - steps
    drafted = (length - 1) / rate if rate else 0.0  # tokens a step, of one length
    before = length / rate - 1 if rate else 0.0  # up to 0.5.10 the rate counts the bonus token, drafted and accepted
    if abs(drafted - round(drafted)) > NEARLY > abs(before - round(before)):
        drafted = before
    calls, requests = (sum(s.value for s in samples if s.name == f"sglang:{name}") for name in _COUNTED)
    if 0 < calls <= generated - requests <= calls * (drafted + 1):
        steps, accepted = round(calls), round(generated - requests - calls)
    return SpeculationCounts(steps, round(steps * drafted), accepted)


def served_models(engine: str, url: str) -> dict[str, int | None]:
    """Models by name, and the tokens that prompt and answer may have together, where the server says it."""
    document = fetch_json(url, "/v1/models")
    try:
        lengths = {str(entry["id"]): entry.get("max_model_len") for entry in document["data"]}
        return {name: None if length is None else int(length) for name, length in lengths.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"the server at {url} does not list its models as {engine} does") from error


def tokens_per_step(survival: Sequence[float]) -> list[float]:
    """``[K + 1]`` tokens that a step commits if it drafts ``0 .. K`` tokens."""
    return [1 + math.fsum(survival[:length]) for length in range(len(survival) + 1)]


def standard_errors(survival: Sequence[float], drafts: int) -> list[float]:
    """``[K + 1]`` of :func:`tokens_per_step`, from as many drafts, as if these were independent.

    Of ``A`` accepted tokens, at most ``k``, the mean is the sum of ``s(j)`` and the mean square that of
    ``(2 j - 1) s(j)``.
    """
    errors = []
    for length in range(len(survival) + 1):
        mean = math.fsum(survival[:length])
        square = math.fsum((2 * depth - 1) * chance for depth, chance in enumerate(survival[:length], 1))
        errors.append(math.sqrt(max(square - mean * mean, 0.0) / drafts))
    return errors
