"""Block-wise training and its loss: who sees what, gradients are those of a loop, prefixes change nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from command_line import refusal, rows_of, succeeds
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import generator
from draftgauge.drafters.reuse.blockwise import BlockNet, block_states
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import DESIGNS as EVERY_DESIGN
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.models.taps import Features, TapPlan, batch_features
from draftgauge.training.reuse import loss as losses
from draftgauge.training.reuse.answers import Conversation
from draftgauge.training.reuse.data import Batch, collate, draw_anchors, trained_positions
from draftgauge.training.reuse.estimate import estimate
from draftgauge.training.reuse.loss import backward_through_depths, teach
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter
from small_trainings import log, small_training
from tiny import tiny_model, tokens

SIZE, VOCABULARY = 4, 24
DESIGNS = ("hidden", "kv", "hybrid", "control")
ANCHORS = torch.tensor([[0, 3, 9, 14], [2, 5, 6, -1]])
TEXTS = torch.stack([tokens(20, 1, VOCABULARY), tokens(20, 2, VOCABULARY)])


def make(design: str, layers: int = 2, **heads: Any) -> tuple[BlockNet, Features]:
    target = tiny_model("qwen3", num_hidden_layers=4, vocab_size=VOCABULARY)
    config = reuse_config(target.config, design, layers=layers, block=SIZE, intermediate_size=48, **heads)
    net = new_net(config, target, 3)
    assert isinstance(net, BlockNet)
    return net, batch_features(target, TEXTS, reuse_config(target.config, "hybrid").tap_plan)


def only(features: Features, row: int) -> Features:
    return Features(*(part[row : row + 1] for part in vars(features).values()))


@pytest.mark.parametrize("design", DESIGNS)
def test_packed_blocks_are_single_blocks(design: str) -> None:
    net, features = make(design)
    packed = block_states(net, TEXTS, features, ANCHORS)
    assert packed.shape == (2, 4, SIZE, net.config.hidden_size)
    for row, place in (ANCHORS >= 0).nonzero().tolist():
        anchor = int(ANCHORS[row, place])
        until = only(features.until(anchor + 1), row)  # nothing after the anchor is there
        alone = block_states(net, TEXTS[row : row + 1, : anchor + 2], until, torch.tensor([[anchor]]))
        torch.testing.assert_close(packed[row, place], alone[0, 0], atol=1e-5, rtol=1e-5)
    everywhere = torch.stack(net.unroll(TEXTS, features, SIZE, 2), 2)
    torch.testing.assert_close(everywhere[0, 3 - 2], packed[0, 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_a_block_sees_the_context_up_to_its_anchor_and_all_of_itself(design: str) -> None:
    net, features = make(design)

    def states(change: int | None = None, token: int | None = None) -> Tensor:
        hidden, keys, values = (part.clone() for part in (features.hidden, features.keys, features.values))
        texts = TEXTS.clone()
        if change is not None:
            hidden[:, change] += 1
            keys[..., change, :] += 1
            values[..., change, :] += 1
        if token is not None:
            texts[:, token] = (texts[:, token] + 1) % VOCABULARY
        return block_states(net, texts, Features(hidden, keys, values, features.logits), ANCHORS)[0]

    before, anchors = states(), ANCHORS[0].tolist()
    for position in (0, 3, 4, 10, 15):
        changed = (states(change=position) - before).abs().amax((1, 2)) > 1e-6
        assert changed.tolist() == [design != "control" and anchor >= position for anchor in anchors]
    # Of the tokens it reads the one after its anchor alone, which all of its slots see.
    moved = (states(token=10) - before).abs().amax(2) > 1e-6
    assert moved.tolist() == [[anchor + 1 == 10] * SIZE for anchor in anchors]


@pytest.mark.parametrize("heads", [{}, {"markov_rank": 4, "confidence_head": True}])
def test_gradients_are_those_of_a_loop_over_blocks_and_slots(heads: dict[str, Any]) -> None:
    net, _ = make("hybrid", 1, **heads)
    target = tiny_model("qwen3", num_hidden_layers=4, vocab_size=VOCABULARY)
    conversations = [
        Conversation(tokens(n, n, VOCABULARY).numpy().astype("int32"), prompt) for n, prompt in ((14, 5), (9, 4))
    ]
    drawn = [draw_anchors(each, 3, generator(0, number)) for number, each in enumerate(conversations)]
    batch = collate(conversations, (0, 1), SIZE, drawn)
    features = batch_features(target, batch.tokens, net.config.tap_plan)
    scales = [0.4, 0.3, 0.2, 0.1]

    total = torch.zeros(())
    for row, anchors in enumerate(drawn):
        one, text = only(features, row), batch.tokens[row : row + 1]
        for anchor in anchors.tolist():
            states = block_states(net, text, one, torch.tensor([[anchor]]))[0, 0]
            for slot in range(min(SIZE, len(conversations[row].tokens) - 2 - anchor)):
                wanted = features.logits[row, anchor + 1 + slot].softmax(-1)
                own = net.logits(states[slot], batch.tokens[row, anchor + 1 + slot]).log_softmax(-1)
                total = total - scales[slot] * (wanted * own).sum()
                if heads:
                    overlap, sure = torch.minimum(wanted, own.exp()).sum().detach(), net.confidence_logits(states[slot])
                    total = total + scales[slot] * torch.nn.functional.binary_cross_entropy_with_logits(sure, overlap)
    total.backward()
    expected = {name: parameter.grad for name, parameter in net.named_parameters()}
    net.zero_grad()
    packed = list(block_states(net, batch.tokens, features, batch.drawn).unbind(2))
    teacher, sure_of = teach(features.logits[batch.taught()], batch), net.confidence_logits if heads else None
    figures = backward_through_depths(packed, net.logits, teacher, batch, scales, "soft", sure_of)
    assert figures.count.tolist() == [trained_positions(drawn, conversations, depth) for depth in range(SIZE)]
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-3, msg=name)


def test_anchors_are_drawn_without_replacement_where_they_have_labels() -> None:
    conversation = Conversation(np.arange(30, dtype=np.int32), 10)
    every = draw_anchors(conversation, None, generator(0))
    assert every.tolist() == list(range(8, 28)) == draw_anchors(conversation, 99, generator(0)).tolist()
    some = draw_anchors(conversation, 7, generator(1)).tolist()
    assert some == sorted(set(some)) == draw_anchors(conversation, 7, generator(1)).tolist()
    assert len(some) == 7
    assert set(some) < set(every.tolist())
    assert some != draw_anchors(conversation, 7, generator(2)).tolist()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainingSpec:
    prompts = [f"Count to {n}: " for n in range(8)]
    design: dict[str, Any] = {"recipe": "block", "reuse": "kv", "depths": 4, "precision": "fp32", "device": "cpu"}
    folder = tmp_path_factory.mktemp("block")
    return small_training(folder, prompts, steps=60, batch=4, learning_rate=5e-3, **design)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reuse": "cross"}, "cross design has no block-wise drafter: choose one of hidden, kv, hybrid, control"),
        ({"depths": 3}, "a block has 4 to 16 tokens, not 3"),
        ({"depths": 17}, "a block has 4 to 16 tokens, not 17"),
        ({"layers": 6}, "at most 5 layers"),
        ({"anchors": 0}, "anchors must be at least 1"),
        ({"recipe": "ttt", "anchors": 8}, "anchors is for the recipe block"),
        ({"recipe": "dflash"}, "recipe must be one of ttt, block"),
        ({"warm_start": Path("/nowhere")}, "a warm start is for drafters that go token by token"),
    ],
)
def test_what_cannot_be_is_refused(base: TrainingSpec, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(DraftgaugeError, match=words):
        train_drafter(replace(base, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_block_drafter_learns_and_goes_through_every_verb(base: TrainingSpec, tmp_path: Path) -> None:
    planned, run = estimate(base), tmp_path / "run"
    result = train_drafter(base, run)
    assert planned.parameters == result.parameters
    first, *_, last = log(run)
    assert last["loss"] < 0.4 * first["loss"]
    common = ["--prompts", str(base.prompts), "--max-new-tokens", "10"]
    succeeds("evaluate", str(run), *common, "--json", str(tmp_path / "rows.json"))
    rows = rows_of(tmp_path / "rows.json")
    assert [row["depth"] for row in rows if "depth" in row] == [1, 2, 3, 4]
    (whole,) = [row for row in rows if "live_mat" in row]
    assert whole["live_mismatched_prompts"] == 0
    assert whole["mat"] > 1.2
    assert "Effective rank" in succeeds("diagnose", str(run), *common, "--json", str(tmp_path / "limits.json")).output
    limits = rows_of(tmp_path / "limits.json")
    assert {row["recipe"] for row in limits} == {"block"}
    assert [row["depth"] for row in limits if "query_kl" in row] == [1, 2, 3, 4] * 3
    for verb, words in (
        (["export", str(run), "--out", str(tmp_path / "out")], "the kv design has no DFlash layout"),
        (["diagnose", str(run), "--depths", "9", *common], "drafts blocks of 4: ask for no more depths"),
        (["evaluate", str(run), "--depths", "9", *common], "has no draft of 9"),
    ):
        assert words in refusal(*verb)


PREFIX_DEPTHS, LENGTH = 3, 19
PREFIXED = [(design, 1, "project-rope") for design in EVERY_DESIGN] + [
    ("kv", 2, "concat"),
    ("control", 3, "project-rope"),
]


@pytest.mark.parametrize("first", [1, 6, LENGTH - 2 - PREFIX_DEPTHS])
@pytest.mark.parametrize(("design", "layers", "injection"), PREFIXED)
def test_leaving_out_prompt_anchors_changes_nothing(design: str, layers: int, injection: str, first: int) -> None:
    target = tiny_model(num_hidden_layers=4)
    config = reuse_config(target.config, design, layers=layers, injection=injection, intermediate_size=32)
    texts = torch.stack([tokens(LENGTH, 1), tokens(LENGTH, 2)])
    features = batch_features(target, texts, TapPlan(config.hidden_layers, config.kv_layers))
    gradients = []
    for begin in (0, first):
        net = new_net(config, target, 3)
        states = [state[:, first - begin :] for state in net.unroll(texts, features, PREFIX_DEPTHS, begin)]
        losses = [(depth + 1) * net.logits(state).log_softmax(-1)[..., 5].sum() for depth, state in enumerate(states)]
        torch.stack(losses).sum().backward()
        found = {name: parameter.grad for name, parameter in net.named_parameters()}
        gradients.append(found | {"states": torch.stack(states).detach()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, whole in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][name], whole, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


WORDS, DEPTHS, WIDTH = 24, 3, 8


@pytest.fixture
def batch() -> Batch:
    conversations = [
        Conversation(tokens(n, n, WORDS).numpy().astype("int32"), prompt) for n, prompt in ((14, 5), (9, 4), (16, 9))
    ]
    return collate(conversations, (0, 1, 2), DEPTHS)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def defined(
    states: list[Tensor], head: nn.Linear, target: Tensor, batch: Batch, d2t: Tensor | None, scales: list[float]
) -> Tensor:
    """Position by position, in the words of the definition."""
    total = torch.zeros(())
    for depth, state in enumerate(states):
        for row in range(len(batch.tokens)):
            for place in range(batch.anchors):
                anchor = batch.first + place
                if not (anchor >= batch.prompt[row] - 2 and anchor + 2 + depth < batch.length[row]):
                    continue
                full = target[row, anchor + 1 + depth]
                own = head(state[row, place])
                kept = full if d2t is None else full[d2t]
                if d2t is not None and int(full.argmax()) not in d2t.tolist():
                    continue
                entropy = -(kept.softmax(-1) * kept.log_softmax(-1)).sum()
                crossed = -(kept.softmax(-1) * own.log_softmax(-1)).sum()
                total = total + scales[depth] * (crossed - entropy)
    return total


@pytest.mark.parametrize("vocabulary", [None, 9])
def test_it_is_the_definition(batch: Batch, vocabulary: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", {"cpu": 5 * WORDS})  # several chunks, the last one not full
    d2t = t2d = None
    if vocabulary is not None:
        kept = torch.randperm(WORDS, generator=torch.Generator().manual_seed(1))[:vocabulary]
        d2t, t2d = kept.sort().values, torch.full((WORDS,), -1)
        t2d[d2t] = torch.arange(len(d2t))
    target = 3 * random(len(batch.tokens), batch.tokens.shape[1], WORDS, seed=2)
    head = nn.Linear(WIDTH, vocabulary or WORDS, bias=False)
    start = [random(3, batch.anchors, WIDTH, seed=10 + depth).requires_grad_() for depth in range(DEPTHS)]
    scales = [0.5, 0.3, 0.2]

    expected = defined(start, head, target, batch, d2t, scales)
    expected.backward()
    wanted = [head.weight.grad.clone()] + [state.grad.clone() for state in start]  # type: ignore[union-attr]
    for leaf in (head.weight, *start):
        leaf.grad = None

    states = [2 * (state / 2) for state in start]  # not leaves: as a network's outputs
    figures = backward_through_depths(
        states, lambda x, _: head(x), teach(target[batch.taught()], batch, t2d, d2t), batch, scales
    )
    assert float((figures.loss * torch.tensor(scales)).sum()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for found, gradient in zip((head.weight.grad, *(state.grad for state in start)), wanted, strict=True):
        torch.testing.assert_close(found, gradient, atol=1e-6, rtol=1e-4)


def test_the_figures_count_what_is_trained(batch: Batch) -> None:
    target = random(len(batch.tokens), batch.tokens.shape[1], WORDS, seed=2)
    one_hot = [
        F.one_hot(target[:, batch.first + 1 + d :][:, : batch.anchors].argmax(-1), WORDS).float() for d in range(DEPTHS)
    ]
    states = [state.requires_grad_() for state in one_hot]
    figures = backward_through_depths(
        states, lambda x, _: 9 * x, teach(target[batch.taught()], batch), batch, [1.0] * DEPTHS
    )
    # Answers have 9, 5 and 7 tokens; every depth loses one of each.
    assert figures.count.tolist() == [21, 18, 15]
    assert figures.agreed.tolist() == figures.count.tolist()


@pytest.mark.parametrize("kind", ["soft", "hard", "tv"])
def test_every_loss_and_its_gradient_by_their_definition(batch: Batch, kind: str) -> None:
    count = int(batch.taught().sum())
    teacher = teach(random(count, WORDS, seed=1), batch)
    own = random(count, WORDS, seed=2).requires_grad_()
    found = losses.token_loss(own.detach().clone(), teacher, kind, overlap=True)
    p, q = teacher.logits.softmax(-1), own.softmax(-1)
    soft, apart = -(p * q.log()).sum(), (p - q).abs().sum()
    hard = F.cross_entropy(own, teacher.token, reduction="sum")
    wanted = {"soft": soft, "hard": hard, "tv": 0.1 * soft + 0.9 * apart}[kind]
    wanted.backward()
    torch.testing.assert_close(found.loss, wanted.detach(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.gradient, own.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.overlap, torch.minimum(p, q.detach()).sum(-1))
