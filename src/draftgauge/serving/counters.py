"""What an engine counts of its speculation, and what follows from it alone.

vLLM and llama.cpp's server count drafts, drafted and accepted tokens, and accepted ones by position of the draft, under
the same names after their prefix. SGLang shows means. All three also answer with the counters of each request. Accepted
tokens leave out the target's own token of each step (the bonus token); an *acceptance length* counts it.

Of drafts of one length ``K``, the share that accepts position ``j`` is the *survival* ``s(j)``, so drafting ``k <= K``
tokens would commit ``1 + s(1) + .. + s(k)`` tokens a step, if steps that begin at other places of the text were alike.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from draftgauge.core.artefacts import read_json_lines, read_text
from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving.endpoint import ServerError, fetch_json, fetch_text
from draftgauge.serving.prometheus import Sample, parse_metrics

PREFIXES = {"vllm": "vllm:", "llama-server": "llamacpp:", "sglang": "sglang:"}  # of the metrics of servers
# Where answers have counters, by engine: the object, then the steps, the drafted and the accepted tokens in it.
ANSWERS = {
    "vllm": (("metrics", "speculative_decoding"), "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"),
    # predicted_n: the first token, steps, accepted
    "llama-server": (("timings",), "predicted_n", "draft_n", "draft_n_accepted"),
    "sglang": (("meta_info",), "spec_verify_ct", "spec_draft_token_num", "spec_accept_token_num"),
}
ALIKE = 0.95  # drafts are of one length if their mean is this share of the longest: ends of outputs shorten some
MAX_COUNT = 2.0**53

_COUNTER = "spec_decode_num_"
_TOTALS = ("drafts", "draft_tokens", "accepted_tokens")
_BY_POSITION = "accepted_tokens_per_pos"
_STARTED = {
    "vllm": "start it with --speculative-config",
    "llama-server": "start it with --metrics and --spec-type draft-simple --spec-draft-model DRAFT.gguf",
    "sglang": "start it with --enable-metrics and --speculative-algorithm",
}


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
        longest = len(self.by_position) or math.ceil(self.length - (1 - ALIKE) * self.length)
        return self.length >= ALIKE * longest

    def survival(self) -> tuple[float, ...]:
        """The share of drafts accepted up to each position ``1..K``.

        Where positions are not counted, every token is taken to be accepted with the same chance ``a`` after those
        before it, with ``a + .. + a ** K`` the accepted tokens a draft.
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


def constant_chance(accepted: float, length: int) -> float:
    """The chance ``a`` in 0..1 with ``a + a ** 2 + .. + a ** length`` equal to ``accepted``."""
    depths = np.arange(1, length + 1)
    return float(brentq(lambda chance: (chance**depths).sum() - accepted, 0, 1)) if accepted < length else 1.0


def read_counts(engine: str, place: str) -> SpeculationCounts:
    """The counters of a running server (an address) or in a file: its metrics page, or JSON Lines of its answers."""
    if engine not in PREFIXES:
        raise DraftgaugeError(
            f"counters of {engine} cannot be read: name the server's engine, {' or '.join(PREFIXES)}, or record a run"
        )
    saved = Path(place).is_file()
    text = read_text(Path(place), "page of metrics") if saved else fetch_text(place, "/metrics")
    if saved and text.lstrip().startswith("{"):
        counts: SpeculationCounts | None = _of_answers(engine, Path(place))
    else:
        samples = parse_metrics(text)
        counts = counts_of(samples, PREFIXES[engine])
        others = [name for name, prefix in PREFIXES.items() if counts_of(samples, prefix) is not None]
    if counts is None:
        what = f"is one of {others[0]}" if others else f"counts no speculation; {_STARTED[engine]}"
        raise DraftgaugeError(f"the server at {place} {what}")
    if counts.drafts <= 0 or counts.drafted == 0:
        raise DraftgaugeError(
            f"the server at {place} has drafted nothing yet: send it the requests that it is to be judged on, or, if "
            f"it runs without speculation, {_STARTED[engine]}"
        )
    if max((counts.accepted / counts.drafted, *(count / counts.drafts for count in counts.by_position))) > 1:
        raise DraftgaugeError(f"the server at {place} counts more accepted tokens than drafted ones, which cannot be")
    return counts


def _of_answers(engine: str, path: Path) -> SpeculationCounts:
    """The counters of all answers of a file together."""
    keys, *names = ANSWERS[engine]
    totals = [0, 0, 0]
    for where, answer in read_json_lines(path, "file of answers"):
        try:
            for key in keys:
                answer = answer[key]
            if engine == "llama-server":  # which says nothing of drafts where there were none
                answer = {"draft_n": 0, "draft_n_accepted": 0} | answer
            steps, drafted, accepted = (int(answer[name]) for name in names)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DraftgaugeError(
                f"{where} has no counters of {engine} ({'.'.join(keys)}: {', '.join(names)}): "
                "name another engine, or ask for them when the server is started"
            ) from error
        if engine == "llama-server":  # counts tokens, the first of which comes with the prompt
            steps = max(steps - 1, 0) - accepted
        totals = [total + count for total, count in zip(totals, (steps, drafted, accepted), strict=True)]
    return SpeculationCounts(totals[0], totals[1], totals[2])


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
    """SGLang's latest means, as if all tokens that it has generated had been decoded like these: ``spec_accept_length``
    committed tokens a step, ``spec_accept_rate`` accepted ones of those drafted; of several ranks, the mean of those
    that are not idle, which show 0."""
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
    return SpeculationCounts(steps, round(accepted / rate) if rate else 0, accepted)


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
