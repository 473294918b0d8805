"""Adaptive rules and lookup of engines, by their formulas, and by their own code where it is there."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
import torch
from scipy.special import expit

from draftgauge.policies.base import Signal, Step
from draftgauge.policies.batch import BudgetedBatch, make_batch_policy
from draftgauge.policies.engine_lookup import NgramMod, _first
from draftgauge.policies.ngrams import StoredTexts
from draftgauge.policies.sglang_adaptive import TIERS, BatchTiers, StepTier, TierRule
from draftgauge.policies.spec import make_policy
from draftgauge.policies.vllm import OnlineAcceptance
from draftgauge.serving.dspark_tables import RateTable, StepTable
from linear_costs import LinearCosts

GAMMA, LEAST = 4, 0.4  # tokens, and the estimated probability of a path of suffixes
RNG = np.random.default_rng(0)


def signals(rng: np.random.Generator, count: int = GAMMA) -> list[Signal]:
    return [Signal(depth, float(rng.beta(2, 1)), 0.0, 0.1, 5) for depth in range(1, count + 1)]


def test_vllm_s_estimator_takes_the_newton_step_of_the_whole_system() -> None:
    """Against the dense system of all coefficients, which vLLM solves as an arrowhead."""
    rng, estimator = np.random.default_rng(1), OnlineAcceptance(GAMMA)
    for round_ in range(3):
        weight, biases = estimator.weight, estimator.biases.copy()
        information, gradient = 1e-3 * np.eye(GAMMA + 1), np.zeros(GAMMA + 1)
        counts = np.zeros(GAMMA)
        for _ in range(OnlineAcceptance.REFIT):
            for _ in range(3):
                drafted = signals(rng, int(rng.integers(0, GAMMA + 1)))
                accepted = int(rng.integers(0, len(drafted) + 1))
                for at, signal in enumerate(drafted[: accepted + 1]):
                    row = np.zeros(GAMMA + 1)
                    row[0], row[at + 1] = np.log(signal.confidence / (1 - signal.confidence)), 1.0
                    chance = expit(row @ np.append(weight, biases))
                    information += chance * (1 - chance) * np.outer(row, row)
                    gradient += ((at < accepted) - chance) * row
                    counts[at] += 1
                estimator.add(drafted, accepted)
            estimator.step()
        moved = np.linalg.solve(information, gradient)[0] * counts.sum() / (counts.sum() + 50)
        moved = moved if weight + moved >= 0 else 0.0
        # The intercepts are solved for the damped step of the weight.
        levels = (gradient[1:] - information[0, 1:] * moved) / np.diag(information)[1:] * counts / (counts + 50)
        assert estimator.weight == pytest.approx(weight + moved), round_
        assert estimator.biases == pytest.approx(biases + levels)
    first = OnlineAcceptance(GAMMA).chances([Signal(1, 1.0, 0, 0), Signal(2, 0.5, 0, 0)])
    assert first == pytest.approx(expit([0.5 * 40 - 0.2, -0.2]), abs=1e-12)


def test_vllm_s_budget_is_the_best_of_all_by_the_chances_of_the_draft_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        table = np.cumsum(rng.random(64)) + 3

        def seconds(requests: int, tokens: Any, context: int, table: Any = table) -> Any:
            return table[tokens]

        batch, chances = BudgetedBatch(GAMMA, seconds), OnlineAcceptance(GAMMA).chances
        before = {slot: signals(rng) for slot in range(3)}
        now = {slot: signals(rng, int(rng.integers(0, GAMMA + 1))) for slot in range(3)}
        certain = max(range(13), key=lambda b: (3 + b) / table[3 + b])
        assert sum(batch.admit(before, 9).values()) == certain
        known = -np.sort([-c for slot, of in before.items() for c in np.cumprod(chances(of))[: len(now[slot])]])
        best = max(range(len(known) + 1), key=lambda b: (3 + sum(known[:b])) / table[3 + b])
        admitted = batch.admit(now, 9)
        assert sum(admitted.values()) == best
        left = [np.cumprod(chances(now[s]))[n] for s, n in admitted.items() if n < len(now[s])]
        kept = [np.cumprod(chances(now[s]))[n - 1] for s, n in admitted.items() if n]
        assert not left or not kept or max(left) <= min(kept)
        for slot in range(3):
            batch.observe(slot, Step(admitted[slot], 0, 1, now[slot][: admitted[slot]]))
        batch.begin(0, [])
        assert 0 not in batch._before
    monkeypatch.setattr(OnlineAcceptance, "REFIT", 2)
    batch, alone = BudgetedBatch(GAMMA, seconds), OnlineAcceptance(GAMMA)
    for _ in range(2):  # what was verified of all requests is a step
        for slot, count in batch.admit(before, 9).items():
            batch.observe(slot, Step(count, min(slot, count), 1, before[slot]))
            alone.add(before[slot][:count], min(slot, count))
        alone.step()
    assert batch._acceptance.weight == alone.weight != 0.5


def test_sglang_s_tiers_leave_drafting_out_and_try_it_again() -> None:
    tier, lengths = StepTier((0, 1, 3), 3, TierRule(down=0.0)), list[int]()
    for accepted in (0,) * 30 + (1,) * 25:
        before, average = tier.length, tier._average
        tier.update([min(accepted, tier.length)] * 8)
        assert before or tier._average == average  # what was seen stays
        lengths.append(tier.length)
    assert lengths[13] == 3  # ten to warm up, then every five
    assert lengths[14:35] == [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5 + [3]
    assert BatchTiers(7).tier(7).candidates == (1, 3, 5, 7)
    assert BatchTiers(7, tiers={4: ((2,), TierRule()), 9: ((1,), TierRule())}).tier(1).length == 2
    rule = TierRule(1.0, 0, 1, down=-9.0, up=0.6, ceiling=1.5)
    cases = ((0, (0, 3), 0, (3, 2.0)), (7, (1, 3, 7), 2, (3, 2.0)), (1, (1, 3), 1, (1, 1.0)))  # as if begun at 3
    for start, candidates, accepted, then in cases:
        tier = StepTier(candidates, start, rule)
        tier.update([accepted])
        assert (tier.length, tier._average) == then
    assert [BatchTiers(7).tier(size).length for size in (1, 8, 32, 64, 500)] == [3, 3, 1, 0, 0]
    batch = make_batch_policy("sglang-tiers", 64, GAMMA, None)
    assert batch.first(dict.fromkeys(range(64), 4)) == []
    assert batch.first({0: 4, 1: 0}) == [0]
    assert batch.onward({0: Signal(1, 0.5, 0, 0), 1: Signal(3, 0.5, 0, 0)}) == [0]
    assert make_policy("sglang-adaptive:candidates=0,2,start=2", GAMMA).limit() == 2


@contextmanager
def of_engine(variable: str, path: str, **known: Any) -> Iterator[ModuleType]:
    """A file of an engine's package, run without the rest of it but for modules that are ``known``."""
    folder = Path(os.environ.get(variable, ""))
    if not (variable in os.environ and (folder / path).is_file()):
        pytest.skip(f"needs a folder with the engine's package, named by {variable}")
    spec = importlib.util.spec_from_file_location("engine_rule", folder / path)
    assert spec is not None
    assert spec.loader is not None
    module, package = importlib.util.module_from_spec(spec), path.split("/")[0]
    text = (folder / path).read_text()
    names = {line.split()[1] for line in text.splitlines() if line.strip().startswith(f"from {package}")}
    names |= {f"{package}.envs"} | {package}
    parts = {".".join(name.split(".")[:n]) for name in names for n in range(1, name.count(".") + 2)}
    with patch.dict(sys.modules, {name: MagicMock() for name in parts} | known):
        spec.loader.exec_module(module)
        yield module


def test_sglang_s_own_code_takes_the_same_lengths() -> None:
    with of_engine("DRAFTGAUGE_SGLANG", "sglang/srt/speculative/adaptive_spec_params.py") as engine:
        rng = np.random.default_rng(3)
        theirs, ours = engine.AdaptiveSpeculativeParams(3), BatchTiers(7)
        for _ in range(2000):
            size = int(rng.choice([1, 4, 8, 20, 32, 64]))
            length = theirs.get_steps_for_batch(size)
            assert ours.tier(size).length == length
            accepted = np.minimum(rng.integers(0, 8, size), length).tolist()
            theirs.on_verify_complete(accepted, size)
            ours.tier(size).update(accepted)
        for _ in range(1000):
            candidates = rng.choice(9, int(rng.integers(1, 5)), replace=False).tolist()
            smoothing, down, up = rng.random(), *(rng.normal(size=2) / 4)
            rule = TierRule(smoothing, 2, 3, down, up, float(rng.choice([0, 1.5])))
            config = {"candidate_steps": candidates, "ema_alpha": rule.smoothing, "warmup_batches": 2}
            config |= {"update_interval": 3, "down_hysteresis": rule.down, "up_hysteresis": rule.up}
            slot = engine.AdaptiveStepSlot(3, config | {"ceiling_coeff": rule.ceiling})
            tier, chance = StepTier(candidates, 3, rule), float(rng.random())
            for _ in range(60):
                accepted = np.minimum(rng.geometric(1 - 0.9 * chance, 3) - 1, tier.length).tolist()
                slot.update(accepted)
                tier.update(accepted)
                assert slot.current_steps == tier.length
        own = {int(n): (*c["candidate_steps"], c["down_hysteresis"]) for n, c in engine.DEFAULT_ADAPTIVE_CONFIG.items()}
        assert own == {size: (*candidates, rule.down) for size, (candidates, rule) in TIERS.items()}


def test_vllm_s_own_code_takes_the_same_budgets() -> None:
    with of_engine("DRAFTGAUGE_VLLM", "vllm/v1/worker/gpu/spec_decode/adaptive_verification.py") as engine:
        rng = np.random.default_rng(4)
        for _ in range(1000):
            requests = int(rng.integers(1, 6))
            chances = rng.random((requests, GAMMA)).astype(np.float32)
            lengths = rng.integers(0, GAMMA + 1, requests)
            table = np.cumsum(rng.random(64)) + 3 * rng.random()
            manager = MagicMock(num_speculative_steps=GAMMA, num_bonus_tokens=1, _max_total_logits=10**6, _stale_idx=0)
            manager._stale_confidences = [MagicMock(np=chances)]
            manager.cost_tables = (np.zeros(8), table)
            names = [str(slot) for slot in range(requests)]
            manager.req_states.req_id_to_index = {name: at for at, name in enumerate(names)}
            manager.req_states.num_computed_tokens_np, manager.req_states.prefill_len.np = np.ones((2, requests))
            scheduled = {name: 1 + int(n) for name, n in zip(names, lengths, strict=True)}
            drafts = {name: [0] * int(n) for name, n in zip(names, lengths, strict=True)}
            total = engine.AdaptiveVerificationManager.get_num_tokens(manager, scheduled, drafts)
            batch = BudgetedBatch(GAMMA, lambda _, tokens, __, table=table: table[tokens])
            batch._before = dict(enumerate(chances.astype(np.float64)))
            ours = batch.admit({at: signals(rng, int(n)) for at, n in enumerate(lengths)}, 9)
            assert sum(ours.values()) + requests == total


def test_vllm_s_own_code_learns_the_same_chances() -> None:
    if (triton := sys.modules.get("triton")) is None or "TRITON_INTERPRET" not in os.environ:
        pytest.skip("needs Triton's interpreter, imported before torch: TRITON_INTERPRET=1 pytest -p triton")
    path, ours = "vllm/v1/worker/gpu/spec_decode/acceptance_estimator.py", OnlineAcceptance(GAMMA)
    kernels = {"vllm.triton_utils": SimpleNamespace(triton=triton, tl=triton.language)}
    with of_engine("DRAFTGAUGE_VLLM", path, **kernels) as engine:
        rng, requests = np.random.default_rng(5), 8
        theirs = engine.OnlineAcceptanceEstimator(requests, GAMMA, torch.device("cpu"))
        for _ in range(2 * OnlineAcceptance.REFIT + 1):  # 1,608 drafts
            drafts, lengths = [signals(rng) for _ in range(requests)], rng.integers(0, GAMMA + 1, requests)
            theirs.features[:] = torch.from_numpy(np.array([ours.features(draft) for draft in drafts]))
            theirs.predictions[:] = torch.sigmoid(theirs.slope * theirs.features + theirs.intercepts)
            chances = np.array([ours.chances(draft) for draft in drafts])
            assert np.abs(theirs.predictions.numpy() - chances).max() < 1e-5
            accepted = np.minimum(np.cumprod(rng.random(chances.shape) < chances**2, axis=1).sum(axis=1), lengths)
            counted = (torch.from_numpy(of).int() for of in (np.arange(requests), accepted + 1, lengths - accepted))
            theirs.step(*counted)
            for draft, length, kept in zip(drafts, lengths, accepted, strict=True):
                ours.add(draft[:length], int(kept))
            ours.step()
        assert ours.weight != OnlineAcceptance(GAMMA).weight


def test_sglang_s_own_tables_give_the_same_seconds() -> None:
    pytest.importorskip("msgspec", reason="SGLang's tables are msgspec's")
    with of_engine("DRAFTGAUGE_SGLANG", "sglang/srt/speculative/dspark_components/dspark_sps.py") as engine:
        rng = np.random.default_rng(6)
        for _ in range(1000):
            parts: dict[str, Any] = {"bias_seconds": float(rng.random())}
            for name, column, most in (("bs", "alpha", 64), ("m", "theta", 512)):
                probes = np.unique(rng.integers(1, most, rng.integers(1, 9))).tolist()
                parts |= {f"{name}_probes": probes, f"{column}_seconds": np.cumsum(rng.random(len(probes))).tolist()}
            theirs, at = engine.SpsAdditiveCostTable(**parts), rng.integers(1, [64, 512], (9, 2)).tolist()
            told = [theirs.step_time(num_reqs=b, budget=m - b) for b, m in at]
            assert [StepTable(**parts).seconds(b, m) for b, m in at] == pytest.approx(told, rel=1e-12)
            older = (probes, parts["theta_seconds"], 512)
            told = [1 / engine.SpsCostTable(*older).lookup(m) for _, m in at]
            assert [RateTable(*older).seconds(b, m) for b, m in at] == pytest.approx(told, rel=1e-12)


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
            if chance < LEAST:
                break
            node = child
            tokens.append(child[-1])
            score += chance
        best = (score, tokens) if score >= best[0] else best
    return best


@pytest.mark.parametrize("seed", range(3))
def test_suffix_is_the_likeliest_path_of_trees_of_all_suffixes(seed: int) -> None:
    depth, text, stored = 8, text_of(seed, vocabulary=3), [text_of(9, 20, 3), text_of(8, 20, 3)]
    prompt, output, policy = text[:60], text[60:], make_policy(f"suffix:depth={depth},tokens=6,least={LEAST}", 16)
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


def test_of_tokens_that_are_equally_frequent_the_one_that_overtook_last_is_first() -> None:
    places = [{5: [1, 4], 6: [2, 3]}, {5: [1, 3], 6: [2, 4]}, {5: [1], 6: [2, 5], 7: [3, 4]}]
    assert [_first(following) for following in places] == [5, 6, 7]
    assert following(make_policy("suffix", 8), [1, 2, 3, 4], [1]) == [[2]]  # where a single token matches, too
    assert following(make_policy("hf-prompt-lookup", 8), [1, 2, 3, 4], [1]) == [[2, 3, 4, 1]]


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
    assert following(make_policy("vllm-ngram:least=1", 16), [1], [1]) == [[1]]


def test_no_more_is_looked_up_than_the_longest_draft_and_nothing_drafted_beside_it() -> None:
    specs = "lookup hf-prompt-lookup lookup-else-stopping vllm-ngram suffix ngram-mod:ngram=2,least=9,tokens=9"
    for policy in [make_policy(spec, 3, LinearCosts()) for spec in specs.split()]:
        policy.read([1, 2, 3, 4] * 9)  # type: ignore[attr-defined]
        assert (policy.limit(), list(policy.extend(99))) == (0, [1, 2, 3])  # type: ignore[attr-defined]


def test_ngram_mod_follows_its_table_only_where_it_reaches_far_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    text = list(range(1, 101))
    policy: Any = make_policy("ngram-mod", 16)
    (first, *_, last) = following(policy, [*text, *text[:30]], text[30:50])
    assert first == text[31:47]  # 64 tokens can be followed, and 16 are drafted
    assert last == text[50:66]
    assert following(policy, text, text[:20])[-1] == []  # fewer than 24 tokens stand before
    short = [*text[:30], *range(200, 212)]
    assert following(policy, short, text[:25])[-1] == []  # fewer than 48 can be followed
    assert following(make_policy("ngram-mod:least=8", 16), short, text[:25])[-1] == [*text[25:30], *range(200, 211)]
    policy = make_policy("ngram-mod:ngram=2,least=2,tokens=4", 4)
    assert following(policy, [1, 2, 3, 1, 2, 4, 1], [2])[-1] == [4, 1]  # the newest write wins
    for accepted, appended in (*[(0, 4)] * 4, (1, 4), *[(0, 4)] * 4, (0, 0), (0, 4)):  # five in a row, where it drafts
        assert policy._table
        policy.observe(Step(0, accepted, 1, tokens=(9,), appended=appended))
    assert not policy._table
    monkeypatch.setattr(NgramMod, "SIZE", 1)  # collisions are not checked
    policy = make_policy("ngram-mod:ngram=2,least=1,tokens=3", 4)
    assert following(policy, [1, 2, 3, 4, 5], [6])[-1] == [5, 5, 5]
