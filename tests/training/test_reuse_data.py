"""Answers, batches and features kept on disk: those of the target, of this run, and of nothing but seed and step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.spec import cached_numbers
from draftgauge.models.taps import Features, TapPlan, batch_features
from draftgauge.training.reuse import answers as answers_file
from draftgauge.training.reuse import features as module
from draftgauge.training.reuse.answers import (
    Answers,
    Conversation,
    describe,
    greedy_answers,
    make_answers,
    read_answers,
)
from draftgauge.training.reuse.data import DataOrder, answers_of, collate, load_target, prompt_tokens, source_of, usable
from draftgauge.training.reuse.features import CachedFeatures, OnlineFeatures, cache_identity, make_cache
from draftgauge.training.reuse.request import TrainingSpec
from small_trainings import small_training
from tiny import save_tiny, tiny_model, tiny_tokenizer, tokens

END = frozenset({0})


def prompts(count: int = 9) -> list[list[int]]:
    return [tokens(3 + 5 * n % 17, n).tolist() for n in range(count)]


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2", "gemma3", "mistral-sliding"])
def test_answers_are_those_of_plain_decoding(family: str) -> None:
    model, whole = tiny_model(family, num_hidden_layers=2), []
    model.get_output_embeddings().register_forward_hook(lambda _, given, __: whole.append(given[0].is_contiguous()))
    found = greedy_answers(model, prompts(), 12, END | {7, 11})
    assert whole == [True] * len(whole), "of a slice, bfloat16 on a CPU copies the head for every row"
    target = wrap(model, "modules")
    for prompt, answer in zip(prompts(), found, strict=True):
        assert answer == plain_decode(target, prompt, DecodingSettings(12, end_tokens=END | {7, 11})).tokens
    assert len({len(answer) for answer in found}) > 1, "some answers should end early"


def test_an_interrupted_making_of_answers_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    made = describe("target", prompts(), 6, "test")
    monkeypatch.setattr(answers_file, "groups", lambda *_: [[0, 1], [2, 3], [4, 5], [6, 7], [8]])
    whole = make_answers(tmp_path / "whole.jsonl", made, model, prompts(), END)
    calls = 0

    def failing(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return greedy_answers(*arguments)  # type: ignore[arg-type]

    path = tmp_path / "broken.jsonl"
    monkeypatch.setattr(answers_file, "greedy_answers", failing)
    with pytest.raises(KeyboardInterrupt):
        make_answers(path, made, model, prompts(), END)
    partial = path.with_name(path.name + answers_file.PARTIAL)
    assert not path.exists()
    partial.write_text(partial.read_text()[:-9])  # a kill cut off the last line
    resumed = make_answers(path, made, model, prompts(), END)
    assert calls == 3 + 4  # 9 prompts in groups of 2, one of which was whole
    assert resumed.sha256 == whole.sha256
    assert path.read_text() == (tmp_path / "whole.jsonl").read_text()
    assert not partial.exists()


@pytest.fixture
def request_(tmp_path: Path) -> TrainingSpec:
    return small_training(tmp_path, [f"Number {n} please" for n in range(5)], new_tokens=6)


def prepared(request: TrainingSpec) -> Answers:
    return answers_of(request, request.answers, load_target(request))


def test_a_file_of_answers_is_made_once_and_shared(request_: TrainingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared(request_)
    monkeypatch.setattr("draftgauge.training.reuse.data.make_answers", lambda *_: pytest.fail("made again"))
    again = prepared(replace(request_, reuse="kv", seed=5))
    assert again.sha256 == first.sha256
    conversation = again.conversations[2]
    assert conversation.tokens.dtype == np.int32
    assert 0 < conversation.prompt < len(conversation.tokens) <= conversation.prompt + 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"questions": 3}, "source is"),
        ({"new_tokens": 7}, "new tokens is 6, not 7"),
        ({"compression": "fp16"}, "compression is uncompressed, not fp16"),
    ],
)
def test_other_answers_than_asked_for_are_refused(request_: TrainingSpec, change: dict[str, Any], words: str) -> None:
    prepared(request_)
    with pytest.raises(DraftgaugeError, match=words):
        prepared(replace(request_, **change))  # type: ignore[arg-type]


def test_plain_text_is_a_users_message(request_: TrainingSpec) -> None:
    tokenizer = tiny_tokenizer(chat=True)

    def first(**changes: Any) -> str:
        return str(tokenizer.decode(prompt_tokens(replace(request_, **changes), tokenizer, 99)[0]))

    assert first() == "<user>Number 0 please<assistant>"
    assert first(system="Count") == "<system>Count<user>Number 0 please<assistant>"
    assert source_of(request_) != source_of(replace(request_, system="Count"))


def test_test_prompts_are_not_learned_from(request_: TrainingSpec) -> None:
    whole = source_of(request_)
    splits = ("test", "train", "sealed", "validation")
    lines = [json.dumps({"prompt": split, "split": split}) + "\n" for split in splits]
    request_.prompts.write_text("".join(lines))
    tokenizer = tiny_tokenizer()
    assert [tokenizer.decode(tokens) for tokens in prompt_tokens(request_, tokenizer, 99)] == ["train"]
    assert source_of(request_).endswith("first 3000, split train")
    assert whole.endswith("first 3000")


def test_prompts_that_leave_no_room_are_told(request_: TrainingSpec) -> None:
    tokenizer = tiny_tokenizer()

    def found(*lengths: int, longest: int = 30, **changes: Any) -> int:
        request_.prompts.write_text("".join(json.dumps({"prompt": "a" * length}) + "\n" for length in lengths))
        return len(prompt_tokens(replace(request_, **changes), tokenizer, longest))

    with pytest.warns(UserWarning, match="1 of 3 prompts are left out: they are longer than the 30 tokens"):
        assert found(5, 31, 30) == 2
    with pytest.warns(UserWarning, match=r"the first 3000 of the 3001 training prompts in .* --questions none"):
        assert found(*[3] * 3001) == 3000
    assert found(*[3] * 3001, questions=None) == 3001
    with pytest.raises(DraftgaugeError, match="every prompt is longer than the 30 tokens"):
        found(31)
    with pytest.raises(DraftgaugeError, match="no answer would begin within the first 12 tokens"):
        found(12, 20, length=12)
    with pytest.raises(DraftgaugeError, match="new_tokens 6 leave no room for a prompt"):
        found(5, longest=-2)


def test_prompts_whose_answers_begin_too_late_are_not_answered(request_: TrainingSpec, tmp_path: Path) -> None:
    request_.prompts.write_text("".join(json.dumps({"prompt": "a" * length}) + "\n" for length in (9, 40, 39, 50)))
    target, path = load_target(request_), tmp_path / "own.jsonl"
    own = replace(request_, answers=None, length=40)
    whole = answers_of(replace(request_, length=40), request_.answers, target)
    assert len(whole.conversations) == 4, "a file that is named is for runs of any length"
    begun = path.with_name(path.name + answers_file.PARTIAL)
    begun.write_text(json.dumps({key: value for key, value in whole.description.items() if key != "sha256"}) + "\n")
    with pytest.raises(DraftgaugeError, match="begun for another target, other prompts or settings"):
        answers_of(own, path, target)
    begun.unlink()
    made = answers_of(own, path, target)
    assert ([c.prompt for c in made.conversations], made.description["left_out"]) == ([9, 39], 2)
    assert answers_of(own, path, target).sha256 == made.sha256
    assert answers_of(own, request_.answers, target).sha256 == whole.sha256, "as they were made before"
    with pytest.raises(DraftgaugeError, match="length is 40, not 64"):
        answers_of(replace(own, length=64), path, target)


def test_a_prompt_that_cannot_be_encoded_is_named(request_: TrainingSpec) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('a tool') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    lines = [{"id": f"p{n}", "messages": [{"role": role, "content": "hi"}]} for n, role in enumerate(["user", "tool"])]
    request_.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DraftgaugeError, match=r"prompts\.jsonl, prompt p1: .* a tool"):
        prompt_tokens(request_, tokenizer, 30)


def test_answers_of_another_target_are_refused(request_: TrainingSpec, tmp_path: Path) -> None:
    prepared(request_)
    other = save_tiny(tmp_path / "other", seed=1)
    with pytest.raises(DraftgaugeError, match="target fingerprint is"):
        answers_of(replace(request_, target=str(other)), request_.answers, load_model(other))


@pytest.mark.parametrize("content", ["", "[]\n", '{"schema": 1, "prompts": 2}\n', "no json"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DraftgaugeError, match=r"file of answers|not JSON"):
        read_answers(tmp_path / "a.jsonl")


def test_a_changed_token_is_refused_and_so_is_a_damaged_line_of_an_interrupted_making(request_: TrainingSpec) -> None:
    prepared(request_)
    path = request_.answers
    lines = path.read_text().splitlines()
    row = json.loads(lines[1])
    row["tokens"][-1] += 1
    path.write_text("\n".join([lines[0], json.dumps(row), *lines[2:]]) + "\n")
    with pytest.raises(DraftgaugeError, match="does not match its checksum"):
        prepared(request_)
    path.unlink()
    path.with_name(path.name + answers_file.PARTIAL).write_text("\n".join([lines[0], lines[1][:9], lines[2]]) + "\n")
    with pytest.raises(DraftgaugeError, match="not JSON"):
        prepared(request_)


def conversations(count: int = 61) -> list[Conversation]:
    rng = np.random.default_rng(0)
    sizes = zip(rng.integers(2, 60, count), rng.integers(1, 40, count), strict=True)
    return [Conversation(rng.integers(1, 90, p + a).astype(np.int32), int(p)) for p, a in sizes]


def test_the_order_follows_from_the_seed_and_covers_everything() -> None:
    found = conversations()
    order = DataOrder(found, 4, seed=3)
    assert order.epoch_steps == 15
    seen = np.concatenate([order.step(step) for step in range(15)])
    assert len(set(seen.tolist())) == 60
    again = DataOrder(found, 4, seed=3)
    assert all(np.array_equal(order.step(step), again.step(step)) for step in (31, 2, 16))
    assert not np.array_equal(order.step(0), order.step(15))
    assert not np.array_equal(order.step(0), DataOrder(found, 4, seed=4).step(0))


def test_a_batch_trains_exactly_the_answers() -> None:
    found = conversations(5)
    batch = collate(found, range(5), depths=3)
    width = batch.tokens.shape[1]
    assert width == batch.first + batch.anchors + 3 + 1
    for row, conversation in enumerate(found):
        length = len(conversation.tokens)
        assert batch.tokens[row, :length].tolist() == conversation.tokens.tolist()
        for depth in range(3):
            predicted = batch.first + batch.trained(depth)[row].nonzero()[:, 0] + 2 + depth
            assert predicted.tolist() == list(range(conversation.prompt + depth, length))


def test_conversations_are_cut_and_those_without_an_answer_left_out() -> None:
    found = [Conversation(np.arange(1, 31, dtype=np.int32), prompt) for prompt in (1, 5, 20, 30)]
    kept = usable(found, 20, 3)
    assert [(c.prompt, len(c.tokens)) for c in kept] == [(5, 20)]
    with pytest.raises(DraftgaugeError, match="raise length"):
        usable(found, 5, 1)
    with pytest.raises(DraftgaugeError, match="more than the longest conversation"):
        usable(found, 20, 19)


@pytest.mark.parametrize(("free", "cache"), [(15, 1 << 30), (8, 1 << 30), (7, 1 << 29), (0, 0)])
def test_answers_go_together_as_a_gpus_memory_allows(monkeypatch: pytest.MonkeyPatch, free: int, cache: int) -> None:
    """Of 16 GiB, whatever is free of them while that leaves room."""
    model = tiny_model()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free << 30, 16 << 30))
    monkeypatch.setattr(answers_file, "free_bytes", lambda device: free << 30)
    gpu = SimpleNamespace(device=torch.device("cuda"), config=model.config, dtype=torch.bfloat16)
    assert answers_file.group_tokens(gpu) == max(answers_file.GROUP_TOKENS, cache // (2 * cached_numbers(model.config)))


HELD = TapPlan((0, 2), (1, 2))


def uneven(count: int = 7) -> list[Conversation]:
    return [Conversation(tokens(6 + 3 * n % 11, n).numpy().astype(np.int32), 3) for n in range(count)]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_CONVERSATIONS", 3)
    monkeypatch.setattr(module, "PASS_TOKENS", 24)


def identity(**changes: object) -> dict[str, Any]:
    answers = Answers((), {"target_fingerprint": "target"}, "answers")
    return cache_identity(answers, uneven(), 64, HELD, None) | changes


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
@pytest.mark.parametrize("plan", [HELD, TapPlan((2,), ()), TapPlan((), (2, 1)), TapPlan()])
def test_cached_features_are_the_online_ones(tmp_path: Path, plan: TapPlan, family: str) -> None:
    target = tiny_model(family, num_hidden_layers=4)
    make_cache(tmp_path / "cache", target, uneven(), identity())
    batch = collate(uneven(), (6, 0, 3, 4), depths=3)
    cached, online = CachedFeatures(tmp_path / "cache", target, plan)(batch), OnlineFeatures(target, plan)(batch)
    assert len(cached.logits) == len(online.logits) == sum((batch.length - batch.prompt).tolist())
    _assert_alike("logits", cached.logits, online.logits)
    for row, length in enumerate(batch.length.tolist()):
        found, wanted = (_parts(features, row, length) for features in (cached, online))
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            _assert_alike(name, found[name], value)


def _assert_alike(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found, wanted, atol=0.02 * scale, rtol=0, msg=lambda text: f"{name}: {text}")


def _parts(features: Features, row: int, length: int) -> dict[str, torch.Tensor]:
    along = {"hidden": 0, "keys": 2, "values": 2}
    return {
        name: part[row].narrow(dim, 0, length)
        for name, dim in along.items()
        if (part := getattr(features, name)) is not None
    }


@pytest.mark.parametrize("plan", [HELD, TapPlan()])
def test_logits_of_some_positions_are_those_of_all(plan: TapPlan) -> None:
    for family in ("qwen3", "gemma2"):  # gemma2 caps its logits behind the head
        target = tiny_model(family, num_hidden_layers=4)
        batch = collate(uneven(), (6, 0, 3, 4), depths=3)
        some, all_ = OnlineFeatures(target, plan)(batch), batch_features(target, batch.tokens, plan)
        torch.testing.assert_close(some.logits, all_.logits[batch.taught()], atol=1e-5, rtol=1e-5)
        assert some.logits.shape[0] < all_.logits[..., 0].numel() / 2


def test_an_interrupted_cache_goes_on(tmp_path: Path) -> None:
    target = tiny_model(num_hidden_layers=4)
    folder = tmp_path / "cache"

    def killed(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_cache(folder, target, uneven(), identity(), killed)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert len(before) == 2
    (folder / ".features-00002.safetensors.draftgauge-tmp").write_bytes(b"half")
    make_cache(folder, target, uneven(), identity())
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {name: after[name] for name in before} == before
    assert sorted(after) == [*(f"features-0000{shard}.safetensors" for shard in range(3)), "features.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answers_sha256": "others"}, "other answers sha256"),
        ({"target_fingerprint": "another"}, "other target fingerprint"),
        ({"length": 32}, "other length"),
        ({"arithmetic": "bfloat16"}, "other arithmetic"),
        ({"hidden_layers": (1,)}, "other hidden layers"),
        ({"kv_layers": (0, 1)}, "other kv layers"),
        ({"compression": "int8"}, "other compression"),
    ],
)
def test_the_cache_of_another_run_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    target = tiny_model(num_hidden_layers=4)
    make_cache(tmp_path, target, uneven(), identity())
    with pytest.raises(DraftgaugeError, match=words):
        make_cache(tmp_path, target, uneven(), identity(**change))


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for place in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(DraftgaugeError, match="no cache of features"):
            make_cache(place, tiny_model(num_hidden_layers=4), uneven(), identity())


def test_a_cache_by_the_former_name_of_no_compression_is_taken(tmp_path: Path) -> None:
    make_cache(tmp_path, tiny_model(num_hidden_layers=4), uneven(), identity(compression="none"))
    assert module.check_cache_folder(tmp_path, identity())
