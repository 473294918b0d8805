"""Drafters that read their target, live: output as without them, and drafts as the unroll of training has them."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.base import Draft, Drafting
from draftgauge.drafters.dense import draft_everywhere, draft_position_by_position
from draftgauge.drafters.reuse import drafting
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import INJECTIONS, NORMS, reuse_config
from draftgauge.drafters.reuse.drafting import Chain
from draftgauge.drafters.reuse.live import ReuseDrafter, new_drafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.models.taps import Features, attach_taps, batch_features
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.spec import make_policy
from draftgauge.verification import Sampling
from linear_costs import LinearCosts
from lossless import assert_sampling_keeps_the_law
from reuse_nets import DESIGNS, unroll
from tiny import tiny_model, tokens

SMALL_VOCABULARY = 8  # so small that drafts of a random network are accepted in part
VARIANTS = [(design, 1, "project-rope") for design in DESIGNS]
VARIANTS += [("kv", 1, injection) for injection in INJECTIONS[:2]]
VARIANTS += [("kv", 3, "project-rope"), ("control", 2, "project-rope")]
BLOCK = 6  # tokens that a block-wise drafter proposes at once
BLOCKWISE = [(f"block-{name}", n, "project-rope") for name, n in (("hidden", 1), ("hybrid", 1), ("control", 2))]
BLOCKWISE += [("block-kv", 2, "concat"), ("block-markov-hybrid", 1, "project-rope")]
VARIANTS += BLOCKWISE
ENGINES = [("lean", "qwen3"), ("modules", "qwen3"), ("lean", "llama3-rope"), ("lean", "qwen2")]
ENGINES += [("static", "qwen3"), ("lean", "qwen3_moe"), ("modules", "gemma2"), ("modules", "gemma3")]
PAIRS = [(variant, ("lean", "qwen3")) for variant in VARIANTS]
PAIRS += [(("hybrid", 1, "project-rope"), engine) for engine in ENGINES[1:]]  # reads all that there is
PAIRS += [(BLOCKWISE[1], (engine, "qwen3")) for engine in ("static", "modules")]


@functools.cache
def target_module(family: str, vocabulary: int = SMALL_VOCABULARY) -> PreTrainedModel:
    return tiny_model(family, num_hidden_layers=4, vocab_size=vocabulary)


def build_net(
    module: PreTrainedModel, variant: tuple[str, int, str], draft_tokens: list[int] | None = None
) -> ReuseNet:
    name, layers, injection = variant
    design = name.split("-")[-1]
    block = {"block": BLOCK} if name.startswith("block") else {}
    if "markov" in name:
        block |= {"markov_rank": 4, "confidence_head": True}
    kept = len(draft_tokens or ())
    config = reuse_config(
        module.config, design, layers=layers, injection=injection, intermediate_size=96, draft_vocabulary=kept, **block
    )
    net = new_net(config, module, seed=3, draft_tokens=torch.tensor(draft_tokens) if draft_tokens else None)
    if isinstance(net, BlockNet) and net.markov is not None:
        with torch.no_grad():  # it starts at zero, which would change no token
            net.markov[1].weight.normal_(generator=torch.Generator().manual_seed(4))
    return net


def build_drafter(target: CachedModel, net: ReuseNet, **options: Any) -> ReuseDrafter:
    return new_drafter(
        net, target, attach_taps(target, net.config.tap_plan), Drafting(**{"end_tokens": frozenset()} | options)
    )


@pytest.mark.parametrize(("variant", "engine"), PAIRS)
def test_greedy_output_is_the_plain_one(variant: tuple[str, int, str], engine: tuple[str, str]) -> None:
    """Also where the text adds to drafts."""
    target = wrap(target_module(engine[1]), engine[0])
    prompt, settings = tokens(6, vocabulary=SMALL_VOCABULARY).tolist() * 3, DecodingSettings(12)
    plain = plain_decode(target, prompt, settings).tokens
    looking_up, appended = "lookup-else-stopping:least=1,tokens=4", 0
    for policy in ("fixed:6", "fixed:3", looking_up):
        draft_tokens = [1, 3, 4, 7] if policy == "fixed:3" else None
        drafter = build_drafter(target, build_net(target.module, variant, draft_tokens))
        output = speculative_decode(target, drafter, make_policy(policy, 6, LinearCosts()), prompt, settings)
        assert output.tokens == plain
        assert policy == looking_up or sum(step.drafted for step in output.steps) > 0
        appended += sum(step.appended for step in output.steps)
    assert appended > 0


@pytest.mark.parametrize(("variant", "engine"), PAIRS)
def test_live_drafts_are_those_that_training_unrolls(variant: tuple[str, int, str], engine: tuple[str, str]) -> None:
    target, depths, length = wrap(target_module(engine[1]), engine[0]), 5, 20
    net = build_net(target.module, variant)
    drafter = build_drafter(target, net)
    prompt = tokens(7, vocabulary=SMALL_VOCABULARY).tolist()
    output = plain_decode(target, prompt, DecodingSettings(length - 7)).tokens
    drafts = draft_position_by_position(drafter, prompt, output, depths)  # after the target has taken in the whole text
    text = prompt + output
    # A row for each position: the text up to it, what was drafted there, and padding.
    rows = [text[: 7 + position] + drafts.tokens[position].tolist() + [0, 0] for position in range(len(output))]
    batch = torch.tensor([row + [0] * (length + depths + 2 - len(row)) for row in rows])
    with torch.no_grad():
        logits = unroll(net, batch, batch_features(target.module, batch, net.config.tap_plan), depths)
    anchors = torch.arange(len(output)) + 7 - 2
    unrolled = torch.stack([depth[torch.arange(len(output)), anchors] for depth in logits], 1)  # [positions, depths, V]
    if not net.config.confidence_head:
        torch.testing.assert_close(unrolled.softmax(-1).amax(-1), torch.tensor(drafts.shown[0]), rtol=1e-3, atol=1e-3)
    assert unrolled.argmax(-1).tolist() == drafts.tokens.tolist()


class Helped:
    """A drafter helped by one that knows the output: each token is set right with chance 0.7, so drafts of every length
    are accepted in part. Its own drafts are noted with their positions in the output."""

    def __init__(self, drafter: ReuseDrafter, output: list[int]) -> None:
        self._drafter, self._output = drafter, output
        self._random = random.Random(0)
        self.drafts: list[tuple[int, list[int]]] = []

    def prefill(self, context: list[int]) -> None:
        self._position = 0
        self._drafter.prefill(context)

    def propose(self, limit: int, keep_drafting, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        own = self._drafter.propose(limit, keep_drafting, reads).tokens
        self.drafts.append((self._position, own))
        right = self._output[self._position : self._position + limit]
        return Draft([known if self._random.random() < 0.7 else token for known, token in zip(right, own, strict=True)])

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._position += len(tokens)
        self._drafter.commit(accepted, tokens)


@pytest.mark.parametrize(
    ("design", "engine"),
    [*((design, "lean") for design in (*DESIGNS, *(name for name, *_ in BLOCKWISE))), ("hybrid", "modules")],
)
def test_after_any_acceptance_drafts_are_those_of_the_position(design: str, engine: str) -> None:
    target = wrap(target_module("qwen3"), engine)
    net = build_net(target.module, (design, 1, "project-rope"))
    drafter = build_drafter(target, net)
    prompt, settings = tokens(9, vocabulary=SMALL_VOCABULARY).tolist(), DecodingSettings(28)
    output = plain_decode(target, prompt, settings).tokens
    everywhere = draft_position_by_position(drafter, prompt, output, 6)
    together = draft_everywhere(drafter, prompt, output, 6, SMALL_VOCABULARY)
    assert together.tokens.tolist() == everywhere.tokens.tolist()
    np.testing.assert_allclose(together.shown, everywhere.shown, rtol=1e-3, atol=1e-4)
    alone = draft_everywhere(drafter, prompt[:1], output[:1], 6, SMALL_VOCABULARY)
    assert (alone.tokens == -1).all()  # nothing to draft from
    helped, accepted = Helped(drafter, output), set()
    for gamma in (0, 2, 6):
        result = speculative_decode(target, helped, FixedLength(gamma), prompt, settings)
        assert result.tokens == output
        accepted |= {step.accepted for step in result.steps}
    assert {0, 6} < accepted  # and some of the lengths between
    for position, drafted in helped.drafts:
        assert everywhere.tokens[position, : len(drafted)].tolist() == drafted


@pytest.mark.parametrize(
    ("design", "draft_tokens", "sampling", "vocabulary", "gamma"),
    [
        ("hidden", None, Sampling(1.0), 2, 2),
        ("kv", None, Sampling(0.7), 2, 3),
        ("hybrid", None, Sampling(1.0, top_k=2), 3, 1),
        ("hybrid", [0, 2], Sampling(1.3), 3, 2),
        ("block-kv", None, Sampling(0.7), 2, 3),
        ("block-hidden", [0, 2], Sampling(1.3), 3, 2),
        ("block-markov-hybrid", None, Sampling(1.0), 2, 3),  # a slot's distribution depends on the token drawn before
    ],
)
def test_sampled_output_has_the_targets_law(monkeypatch, design, draft_tokens, sampling, vocabulary, gamma) -> None:
    module = target_module("qwen3", vocabulary)
    target, net = wrap(module), build_net(module, (design, 1, "project-rope"), draft_tokens)

    def make(how: Drafting) -> ReuseDrafter:
        return new_drafter(net, target, attach_taps(target, net.config.tap_plan), how)

    assert_sampling_keeps_the_law(monkeypatch, target, module, make, [1, 0, 1], sampling, gamma)


@pytest.mark.parametrize("design", ["hybrid", "block-hybrid"])
def test_signals_limits_and_ends_of_drafts(design: str) -> None:
    target = wrap(tiny_model(num_hidden_layers=4, vocab_size=SMALL_VOCABULARY, max_position_embeddings=24))
    net = build_net(target.module, (design, 1, "project-rope"))
    drafter = build_drafter(target, net)
    prompt = tokens(20, vocabulary=SMALL_VOCABULARY).tolist()
    target.forward(torch.tensor(prompt[:-1]))
    drafter.prefill(prompt)
    free = drafter.propose(4, None)
    assert len(free.tokens) == 4
    assert not free.signals
    assert drafter.propose(4, None).tokens == free.tokens  # asked again, nothing has changed
    shown = drafter.propose(4, lambda signal: signal.depth < 3)
    assert shown.tokens == free.tokens[:3]
    assert [signal.depth for signal in shown.signals] == [1, 2, 3]
    assert all(0 < signal.confidence <= 1 and signal.entropy > 0 for signal in shown.signals)
    assert len(drafter.propose(9, None).tokens) == 5  # the last drafted token stands where the context ends
    ending = build_drafter(target, net, end_tokens=frozenset({free.tokens[1]}))
    target.forward(torch.tensor(prompt[:-1]))
    ending.prefill(prompt)
    assert ending.propose(4, None).tokens == free.tokens[: free.tokens.index(free.tokens[1]) + 1]


def test_a_text_of_one_token_has_no_anchor_and_a_target_behind_its_drafter_is_a_mistake() -> None:
    target = wrap(target_module("qwen3"))
    drafter = build_drafter(target, build_net(target.module, ("hidden", 1, "project-rope")))
    output = speculative_decode(target, drafter, FixedLength(3), [5], DecodingSettings(12))
    assert output.steps[0].drafted == 0
    assert output.steps[1].drafted == 3
    assert output.tokens == plain_decode(target, [5], DecodingSettings(12)).tokens
    target.reset()
    with pytest.raises(AssertionError, match="not processed the committed text"):
        drafter.prefill([1, 2, 3])


LENGTH, DEPTHS = 18, 4
ANCHORS = LENGTH - 1 - DEPTHS
LAYERS = {"kv": (1, 2, 3, 4), "control": (1, 3)}
UNROLLED = [
    (design, layers, injection)
    for design in DESIGNS
    for layers in LAYERS.get(design, (1,))
    for injection in (INJECTIONS if design in ("kv", "hybrid", "cross") else ("project-rope",))
]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


@functools.cache
def target(family: str) -> PreTrainedModel:
    options = {"rope_parameters": YARN} if family == "yarn" else {}
    return tiny_model("llama" if family == "yarn" else family, num_hidden_layers=4, **options)


@functools.cache
def texts() -> Tensor:
    return torch.stack([tokens(LENGTH, 1), tokens(LENGTH, 2)])


@functools.cache
def features(family: str) -> Features:
    plan = reuse_config(target(family).config, "hybrid")
    return batch_features(target(family), texts(), plan.tap_plan)


def make(
    design: str,
    layers: int = 1,
    injection: str = "project-rope",
    family: str = "qwen3",
    draft_tokens: Tensor | None = None,
    **norms: bool,
) -> ReuseNet:
    shape = {"layers": layers, "injection": injection, "intermediate_size": 48}
    kept = 0 if draft_tokens is None else len(draft_tokens)
    config = reuse_config(target(family).config, design, draft_vocabulary=kept, **shape, **norms)
    net = new_net(config, target(family), 3, draft_tokens)
    with torch.no_grad():  # norms and biases start at one and zero: too kind a test
        for index, parameter in enumerate(p for p in net.parameters() if p.ndim == 1):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    return net


def take_in(net: ReuseNet, cache: AnchorCache, row: int, end: int, seen: Features) -> tuple[Tensor, Chain]:
    """Anchors up to ``end`` (not among them) of one of the texts."""
    begin, following = cache.length, texts()[row, cache.length + 1 : end + 1]
    kv = [part[row, :, :, begin:end] if net.traits.reads_kv else None for part in (seen.keys, seen.values)]
    return drafting.take_in(
        net, cache, following, seen.hidden[row, begin:end] if net.traits.reads_hidden else None, *kv
    )


def assert_drafting_is_the_unroll(net: ReuseNet, family: str) -> None:
    unrolled = unroll(net, texts(), features(family), DEPTHS)
    assert [tuple(logits.shape) for logits in unrolled] == [(2, ANCHORS, net.config.logits)] * DEPTHS
    for row in range(2):
        cache = drafting.begin(net)
        for end in (1, 2, 5, ANCHORS):  # one anchor, the next, several at once
            logits, chain = take_in(net, cache, row, end, features(family))
            for depth in range(DEPTHS):
                torch.testing.assert_close(logits[0], unrolled[depth][row, end - 1], atol=1e-4, rtol=1e-4)
                if depth + 1 < DEPTHS:
                    logits, chain = drafting.step(net, cache, chain, texts()[row, end + 1 + depth, None])
                    assert (cache.length, chain.depth, len(chain.stream[0])) == (end, depth + 2, 1)


@pytest.mark.parametrize(("design", "layers", "injection"), UNROLLED)
def test_drafting_is_the_unroll(design: str, layers: int, injection: str) -> None:
    assert_drafting_is_the_unroll(make(design, layers, injection), "qwen3")


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("norms", [(), *((name,) for name in NORMS)], ids=" ".join)
def test_drafting_is_the_unroll_whatever_is_normalised(design: str, norms: tuple[str, ...]) -> None:
    net = make(design, **{name: name in norms for name in NORMS})
    assert_drafting_is_the_unroll(net, "qwen3")
    assert len(net.tap_norms) == (len(net.config.hidden_layers) if "norm_before_fc" in norms else 0)


@pytest.mark.parametrize("family", ["qwen2", "llama3-rope", "mistral", "gemma", "gemma3", "yarn"])
@pytest.mark.parametrize(("design", "injection"), [("hybrid", "project-rope"), ("kv", "concat")])
def test_drafting_is_the_unroll_for_every_family(family: str, design: str, injection: str) -> None:
    assert_drafting_is_the_unroll(make(design, 1, injection, family), family)


def test_an_older_chain_stays_right_while_the_text_grows() -> None:
    net, token = make("hybrid"), torch.tensor([7])
    cache = drafting.begin(net)
    _, early = take_in(net, cache, 0, 5, features("qwen3"))
    expected, _ = drafting.step(net, cache, early, token)
    take_in(net, cache, 0, ANCHORS, features("qwen3"))
    torch.testing.assert_close(drafting.step(net, cache, early, token)[0], expected, atol=0, rtol=0)


@pytest.mark.parametrize("design", DESIGNS)
def test_an_anchor_sees_no_features_after_it_and_no_tokens_after_its_input(design: str) -> None:
    net = make(design)
    seen, anchor, depth = features("qwen3"), 6, 2
    changed = Features(seen.hidden.clone(), seen.keys.clone(), seen.values.clone(), seen.logits)
    changed.hidden[:, anchor + 1 :] += 1
    changed.keys[..., anchor + 1 :, :] += 1
    changed.values[..., anchor + 1 :, :] += 1
    later = texts().clone()
    later[:, anchor + 2 + depth :] = 5
    before, after = unroll(net, texts(), seen, DEPTHS)[depth], unroll(net, later, changed, DEPTHS)[depth]
    torch.testing.assert_close(before[:, : anchor + 1], after[:, : anchor + 1])
    assert not torch.allclose(before[:, anchor + 1 :], after[:, anchor + 1 :])


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_reads_what_it_says(design: str) -> None:
    net, seen = make(design), features("qwen3")
    before = unroll(net, texts(), seen, DEPTHS)

    def changes(other: Features) -> list[bool]:
        return [
            not torch.allclose(old, new) for old, new in zip(before, unroll(net, texts(), other, DEPTHS), strict=True)
        ]

    other_hidden = Features(seen.hidden + 1, seen.keys, seen.values, seen.logits)
    other_kv = Features(seen.hidden, seen.keys.flip(-2), seen.values.flip(-2), seen.logits)
    assert changes(other_hidden) == [design in ("hidden", "hybrid", "cross")] * DEPTHS
    assert changes(other_kv) == [design in ("kv", "hybrid", "cross")] * DEPTHS


@pytest.mark.parametrize(("design", "layers", "injection"), UNROLLED)
def test_every_weight_learns_and_the_embedding_does_not(design: str, layers: int, injection: str) -> None:
    net = make(design, layers, injection)
    sum(logits.log_softmax(-1)[..., 3].mean() for logits in unroll(net, texts(), features("qwen3"), DEPTHS)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
    assert net.embedding.data_ptr() == target("qwen3").get_input_embeddings().weight.data_ptr()
    assert not any("embedding" in name or "rotary" in name for name in net.state_dict())
    assert target("qwen3").get_input_embeddings().weight.grad is None


def test_a_draft_vocabulary_keeps_the_rows_of_its_tokens() -> None:
    kept = torch.tensor([2, 3, 50, 95])
    small, whole = make("hidden", draft_tokens=kept), make("hidden")
    assert small.d2t.tolist() == kept.tolist()
    assert [int(small.t2d[token]) for token in (2, 3, 4, 50, 95)] == [0, 1, -1, 2, 3]
    for few, many in zip(
        unroll(small, texts(), features("qwen3"), 2), unroll(whole, texts(), features("qwen3"), 2), strict=True
    ):
        torch.testing.assert_close(few, many[..., kept])
    assert_drafting_is_the_unroll(small, "qwen3")


def test_texts_that_are_too_short() -> None:
    net = make("control")
    assert len(unroll(net, texts()[:, : DEPTHS + 2], features("qwen3").until(DEPTHS + 2), DEPTHS)) == DEPTHS
    with pytest.raises(ModelError, match="at least 6"):
        unroll(net, texts()[:, : DEPTHS + 1], features("qwen3").until(DEPTHS + 1), DEPTHS)
