"""Lookup as engines do it: by their own code where it runs here, and by plain readings of their rules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Step
from draftgauge.policies.engine_lookup import NgramMod
from draftgauge.policies.ngrams import StoredTexts
from draftgauge.policies.spec import make_policy


def text_of(seed: int, length: int = 90, vocabulary: int = 4) -> list[int]:
    """Random tokens, and a part of them again: some of it repeats at length."""
    tokens = np.random.default_rng(seed).integers(0, vocabulary, length).tolist()
    return [*tokens, *tokens[10:50], *tokens[:5], *tokens[12:44]]


def following(policy: Any, prompt: list[int], output: list[int]) -> list[list[int]]:
    """What a policy appends after each token of an output that is decoded plainly."""
    policy.reset()
    policy.read(prompt)
    found = []
    for token in output:
        policy.observe(Step(0, 0, 1, tokens=(token,)))
        found.append(list(policy.extend(64)))
    return found


def counted(texts: list[list[int]], depth: int) -> Counter[tuple[int, ...]]:
    """How often each path of up to ``depth`` tokens occurs: what a tree of all suffixes counts."""
    return Counter(
        tuple(text[begin : begin + length])
        for text in texts
        for begin in range(len(text))
        for length in range(1, min(depth, len(text) - begin) + 1)
    )


def path_of(paths: Counter[tuple[int, ...]], tail: list[int], most: int, depth: int) -> tuple[float, list[int]]:
    best: tuple[float, list[int]] = (0.0, [])
    children: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for path in paths:
        children.setdefault(path[:-1], []).append(path)
    for matched in range(1, len(tail)):
        node = tuple(tail[-matched:])
        if node not in paths:
            break
        score, chance, tokens = np.float32(0), np.float32(1), list[int]()
        while len(tokens) < min(most, matched) and node in children and len(node) < depth:
            counts = sorted(paths[child] for child in children[node])
            if counts[-2:].count(counts[-1]) > 1:
                return -1.0, []  # which of equally frequent ones is taken the engine's own code shows
            child = max(children[node], key=paths.__getitem__)
            chance *= np.float32(paths[child]) / np.float32(paths[node])
            if chance < 0.1:
                break
            node = child
            tokens.append(child[-1])
            score += chance
        best = (score, tokens) if score >= best[0] else best
    return best


@pytest.mark.parametrize("seed", range(3))
def test_suffix_is_the_likeliest_path_of_trees_of_all_suffixes(seed: int) -> None:
    depth, text, stored = 8, text_of(seed, vocabulary=3), [text_of(9, 20, 3), text_of(8, 20, 3)]
    prompt, output, policy = text[:60], text[60:], make_policy(f"suffix:depth={depth},tokens=6", 16)
    policy.ask_stored(StoredTexts(stored))  # type: ignore[attr-defined]
    compared = 0
    for count, tokens in enumerate(following(policy, prompt, output), start=1):
        whole = [*prompt, *output[:count]]
        local, other = (
            path_of(counted(texts, depth), whole[-depth:], 6, depth) for texts in ([whole], [*stored, output[:count]])
        )
        if min(local[0], other[0]) >= 0:
            assert tokens == (other[1] if other[0] > local[0] else local[1])
            compared += bool(tokens)
    assert compared > 5


@pytest.mark.parametrize("seed", range(4))
def test_suffix_is_that_of_arctic_inference(seed: int) -> None:
    arctic = pytest.importorskip("arctic_inference.suffix_decoding", reason="arctic-inference is not installed")
    text = text_of(seed, 300, 12)
    prompt, output = text[:200], text[200:]
    cache = arctic.SuffixDecodingCache(max_tree_depth=24, max_cached_requests=10_000)
    cache.start_request("a", prompt)
    for count, tokens in enumerate(following(make_policy("suffix", 24), prompt, output), start=1):
        cache.add_active_response("a", output[count - 1 : count])
        tail = [*prompt, *output[:count]][-24:]
        theirs = cache.speculate("a", tail, max_spec_tokens=24, max_spec_factor=1.0, min_token_prob=0.1)
        assert tokens == theirs.token_ids


@pytest.mark.parametrize(("least", "longest"), [(5, 5), (1, 3)])
def test_vllm_ngram_copies_from_the_first_place_of_the_longest_n_gram(least: int, longest: int) -> None:
    text = text_of(2)
    found = following(make_policy(f"vllm-ngram:least={least},longest={longest}", 16), text[:60], text[60:])
    for count, tokens in enumerate(found, start=61):
        seen, wanted = text[:count], list[int]()
        for length in range(longest, least - 1, -1):
            ends = [end for end in range(length, count) if seen[end - length : end] == seen[-length:]]
            if ends and not wanted:
                wanted = seen[ends[0] : ends[0] + 5]
        assert tokens == wanted
    assert any(found)


def test_ngram_mod_follows_its_table_only_where_it_reaches_far_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    text = list(range(1, 101))
    policy = make_policy("ngram-mod", 16)
    (first, *_, last) = following(policy, [*text, *text[:30]], text[30:50])
    assert first == text[31:47]  # 64 tokens can be followed, and 16 are drafted
    assert last == text[50:66]
    assert following(policy, text, text[:20])[-1] == []  # fewer than 24 tokens stand before
    short = [*text[:30], *range(200, 212)]
    assert following(policy, short, text[:25])[-1] == []  # fewer than 48 can be followed
    assert following(make_policy("ngram-mod:least=8", 16), short, text[:25])[-1] == [*text[25:30], *range(200, 211)]
    policy = make_policy("ngram-mod:ngram=2,least=1,tokens=4", 4)
    assert following(policy, [1, 2, 3, 1, 2, 4, 1], [2])[-1] == [4, 1]  # the newest write wins
    for _ in range(5):
        policy.observe(Step(0, 0, 1, tokens=(9,), appended=4))
    assert policy.extend(4) == ()
    monkeypatch.setattr(NgramMod, "SIZE", 1)  # collisions are not checked
    policy = make_policy("ngram-mod:ngram=2,least=1,tokens=3", 4)
    assert following(policy, [1, 2, 3, 4, 5], [6])[-1] == [5, 5, 5]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vllm-ngram:least=6", "least must be at most longest, 5, not 6"),
        ("suffix:least=2", "least must be 0 to 1"),
        ("suffix:factor=0", "factor must be a number above 0"),
        ("ngram-mod:least=65", "least must be at most tokens, 64, not 65"),
    ],
)
def test_numbers_that_cannot_be_are_refused(spec: str, message: str) -> None:
    with pytest.raises(DraftgaugeError, match=message):
        make_policy(spec, 8)
