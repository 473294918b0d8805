"""A server with drafting against one without: the same greedy answers, the same frequencies of sampled tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress
from draftgauge.serving.client import GREEDY, How, complete, prompt_tokens
from draftgauge.serving.counters import served_models

UNDECIDED = 0.1  # nats between two tokens of the target: rounding in bfloat16 turns logits of 20 by as much
LIKELIEST = 5  # tokens whose probabilities are asked for
SAMPLED_PROMPTS = 5
SHORT = 8  # tokens of a sampled answer: engines draft nothing for the last one
POSITIONS = ("first", "second")
PERMUTATIONS = 1000
CERTAIN = 0.995  # of each of the two positions that are tested
HALVED = 0.5  # acceptance that falls below this share of the greedy one

Found = tuple[str, str, str]  # check, status, evidence
Request = Mapping[str, Any]  # ``messages`` with what their template takes, or a ``prompt``
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Servers:
    """Two servers of one engine and one model; ``plain`` does not draft."""

    engine: str
    drafting: str
    plain: str

    def check(self, requests: Sequence[Request]) -> list[list[int]]:
        """Token ids of the requests; refuses servers that differ in model, or of which the wrong one drafts."""
        if self.drafting == self.plain:
            raise DraftgaugeError(f"{self.plain} is named twice: start a second server, without drafting")
        named = [next(iter(served_models(self.engine, url)), "nothing") for url in (self.drafting, self.plain)]
        if len({PurePath(name).name for name in named}) > 1:
            raise DraftgaugeError(
                f"the servers serve {named[0]} and {named[1]}: serve one model in both, under one name "
                "(--served-model-name in vLLM, --alias in llama-server)"
            )
        encoded = [prompt_tokens(self.engine, self.plain, request) for request in requests]
        if prompt_tokens(self.engine, self.drafting, requests[0]) != encoded[0]:
            raise DraftgaugeError("the servers read the first prompt as other tokens: serve one model in both")
        answer = complete(self.engine, self.plain, encoded[0], SHORT)
        if answer.drafted:
            raise DraftgaugeError(f"{self.plain} drafted {answer.drafted} tokens: start it without drafting")
        return encoded


@dataclass(frozen=True)
class Plan:
    """How much is asked: tokens of whole answers, and short answers sampled of each of the first few prompts."""

    max_new_tokens: int
    temperature: float
    samples: int


@dataclass(frozen=True)
class Difference:
    """Where two greedy answers to a prompt part; a token is None behind the end of an answer."""

    prompt: int
    position: int
    drafting: int | None
    plain: int | None
    gap: float  # nats by which the target prefers its own token there; infinite where it was not shown

    @property
    def undecided(self) -> bool:
        return self.gap <= UNDECIDED

    def __str__(self) -> str:
        shown = "no near-tie" if self.gap == np.inf else f"{self.gap:.2g} nats apart"
        drafting, plain = ("the end" if token is None else token for token in (self.drafting, self.plain))
        return f"prompt {self.prompt}, token {self.position}: {drafting} with drafting, {plain} without, {shown}"


def first_difference(
    prompt: int, drafting: Sequence[int], plain: Sequence[int], likeliest: Sequence[Mapping[int, float]]
) -> Difference | None:
    """Where the answers part; ``likeliest`` has the log-probabilities of the server without drafting by position."""
    pairs = enumerate(zip_longest(drafting, plain))
    position = next((at for at, (ours, theirs) in pairs if ours != theirs), None)
    if position is None:
        return None
    ours, theirs = (answer[position] if position < len(answer) else None for answer in (drafting, plain))
    shown, gap = dict(likeliest[position]) if position < len(likeliest) else {}, np.inf
    best = sorted(shown.values(), reverse=True)
    if ours in shown:
        gap = best[0] - shown[ours]
    elif ours is None and len(best) > 1:  # which end token it chose is not known
        gap = best[0] - best[1]
    return Difference(prompt, position + 1, ours, theirs, float(gap))


def compare(servers: Servers, requests: Sequence[Request], plan: Plan, told: Progress) -> Iterator[Found]:
    """Checks of a server that drafts: greedy answers, sampled tokens, what is accepted."""
    prompts = servers.check(requests)
    total, done = 3 * len(prompts) + 2 * plan.samples * min(SAMPLED_PROMPTS, len(prompts)), 0

    def ask(url: str, prompt: list[int], tokens: int, how: How) -> Any:
        nonlocal done
        done += 1
        told("compare servers", done, total)
        return complete(servers.engine, url, prompt, tokens, how)

    length, how = plan.max_new_tokens, How(plan.temperature)
    whole = [ask(servers.drafting, prompt, length, GREEDY) for prompt in prompts]
    plain = [ask(servers.plain, prompt, length, How(likeliest=LIKELIEST)) for prompt in prompts]
    compared = enumerate(zip(whole, plain, strict=True), start=1)
    yield greedy_answers(
        [first_difference(at, ours.tokens, theirs.tokens, theirs.likeliest) for at, (ours, theirs) in compared]
    )
    sampled = [ask(servers.drafting, prompt, length, how) for prompt in prompts]
    short = [
        [[ask(url, prompt, SHORT, how).tokens for _ in range(plan.samples)] for prompt in prompts[:SAMPLED_PROMPTS]]
        for url in (servers.drafting, servers.plain)
    ]
    tokens = np.array([[[(*answer, -1, -1)[:2] for answer in each] for each in of] for of in short], np.int64)
    yield from sampled_tokens(tokens[0], tokens[1])
    rates = [(sum(each.accepted for each in of), sum(each.drafted for each in of)) for of in (whole, sampled)]
    yield acceptance(rates[0], rates[1], plan.temperature)


def greedy_answers(differences: Sequence[Difference | None]) -> Found:
    parted = [each for each in differences if each is not None]
    decided = [each for each in parted if not each.undecided]
    seen = f"{len(parted)} of {len(differences)} greedy answers differ"
    if parted:
        seen += f", {len(parted) - len(decided)} of them first where the target was undecided; {(decided or parted)[0]}"
    return "parity-greedy", "wrong" if decided else "suspect" if parted else "well", seen


def sampled_tokens(drafting: Ids, plain: Ids) -> Iterator[Found]:
    """Whether the tokens ``[prompts, samples, 2]`` of both are of one distribution, by permutation within prompts.

    The statistic is the total variation between the frequencies of both, in the mean over prompts.
    """
    rng, samples = np.random.default_rng(0), drafting.shape[1]
    far, seen = False, []
    for position, name in enumerate(POSITIONS):
        both = np.concatenate([drafting[..., position], plain[..., position]], axis=1)
        apart = np.zeros(1 + PERMUTATIONS)
        for row in both:
            tokens = np.unique(row, return_inverse=True)[1]
            order = rng.permuted(np.tile(np.arange(2 * samples), (1 + PERMUTATIONS, 1)), axis=1)
            order[0] = np.arange(2 * samples)
            one_hot = np.eye(tokens.max() + 1, dtype=np.int32)
            counts = [one_hot[tokens[part]].sum(axis=1) for part in (order[:, :samples], order[:, samples:])]
            apart += np.abs(counts[0] - counts[1]).sum(axis=1) / (2 * samples)
        apart /= len(both)
        bound = float(np.quantile(apart[1:], CERTAIN))
        far = far or apart[0] > bound
        seen.append(f"{name} tokens are {apart[0]:.3f} apart in total variation, of which {bound:.3f} may be noise")
    seen.append(f"{len(drafting)} prompts, {samples} answers of each server")
    yield "parity-sampled", "wrong" if far else "well", "; ".join(seen)


def acceptance(greedy: tuple[int, int], sampled: tuple[int, int], temperature: float) -> Found:
    """Whether sampling costs more acceptance than it must; both are accepted and drafted tokens."""
    if not greedy[1] or not sampled[1]:
        return "sampled-acceptance", "unknown", "the answers of the drafting server count no drafts"
    rates = [accepted / drafted for accepted, drafted in (greedy, sampled)]
    seen = f"{rates[0]:.0%} of {greedy[1]} drafted tokens accepted at temperature 0, {rates[1]:.0%} of {sampled[1]} "
    fell = rates[1] < HALVED * rates[0]
    return "sampled-acceptance", "suspect" if fell else "well", f"{seen}at {temperature:g}"
