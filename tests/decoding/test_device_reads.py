"""What a step asks of a GPU, on fake ones: how often the host waits, how much it launches, and that devices fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers import PreTrainedModel

from draftgauge.core.signals import DISTRIBUTION, NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.decoding.batched import BatchPlan, batched_decode
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Drafter, Drafting, record_passes
from draftgauge.drafters.mtp.live import MtpDrafter, build_mtp
from draftgauge.drafters.mtp.net import Head, MtpNet
from draftgauge.drafters.reuse import live
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.live import new_drafter
from draftgauge.models.base import CachedModel
from draftgauge.models.engines import static
from draftgauge.models.engines.static import StaticRows
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.taps import TapPlan, attach_taps
from draftgauge.policies.base import PolicyBase
from draftgauge.policies.batch import PerRequest
from draftgauge.policies.fixed import FixedLength
from draftgauge.verification import Sampling
from fake_cuda import FakeCuda, fake_cuda, on_gpu
from mtp_heads import save_with_heads
from tiny import tiny_model

GAMMA = 2
STEPS = 11  # of an output, at least
PROMPT = list(range(1, 21))
GREEDY, SAMPLED = Sampling(), Sampling(0.8, top_k=20)


class Looking(PolicyBase):
    """Drafts so many tokens and reads what it is told to."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads

    def limit(self) -> int:
        return GAMMA


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with fake_cuda(monkeypatch) as fake:
        yield fake


def model(engine: str = "auto", layers: int = 2, device: str = "cuda:0") -> CachedModel:
    return wrap(on_gpu(real_model(layers), device, torch.bfloat16), engine)


def real_model(layers: int, family: str = "qwen3") -> PreTrainedModel:
    with unset_fake_temporarily():
        return tiny_model(family, num_hidden_layers=layers)


def per_step(
    fake: FakeCuda, target: CachedModel, drafter: Drafter | None, policy=None, sampling=GREEDY
) -> tuple[float, ...]:
    """Launches, reads and uploads that wait, of one step: the mean over those in the middle of an output.

    What is read from a fake GPU is ones, so greedily nearly all that is drafted is accepted, and one token sampled.
    """
    committed_at_once = 1 if drafter is None else GAMMA + 1 if sampling.greedy else 2
    settings, generator = DecodingSettings(STEPS * committed_at_once, sampling), torch.Generator()
    seen: list[tuple[int, int, int, int]] = []

    def committed(*_: object) -> None:
        counts = fake.counts
        seen.append((counts.launches.total(), counts.reads.total(), counts.uploads["waits"], counts.captures))

    with fake.counting():
        if drafter is None:
            plain_decode(target, PROMPT, settings, generator, committed)
        else:
            speculative_decode(target, drafter, policy, PROMPT, settings, generator, committed)
    first, last = 6, len(seen) - 4  # graphs are captured before, and drafts get shorter at the end
    *counts, captures = (
        (after - before) / (last - first) for before, after in zip(seen[first], seen[last], strict=True)
    )
    assert captures == 0
    return tuple(counts)


def drafter_on(target_engine: str, device: str = "cuda:0", sampling: Sampling | None = None) -> LanguageModelDrafter:
    return LanguageModelDrafter(model(target_engine, 1, device), sampling=sampling, generator=torch.Generator())


@pytest.mark.parametrize(("engine", "sampling"), [("static", GREEDY), ("static", SAMPLED), ("lean", GREEDY)])
def test_one_read_a_step_where_no_policy_looks(gpu: FakeCuda, engine: str, sampling: Sampling) -> None:
    drafter = drafter_on(engine, sampling=sampling)
    launches, reads, waits = per_step(gpu, model(engine), drafter, FixedLength(GAMMA), sampling)
    assert (reads, waits) == (1, 0)
    if engine == "static" and sampling.greedy:
        assert launches <= 22


@pytest.mark.parametrize("reads", [DISTRIBUTION, OF_DRAFTED_TOKENS, frozenset({SignalName.TEXT})], ids=sorted)
def test_one_read_a_drafted_token_where_a_policy_looks(gpu: FakeCuda, reads: Reads) -> None:
    _, waited, waits = per_step(gpu, model(), drafter_on("auto"), Looking(reads))
    assert (waited, waits) == (GAMMA + 1, 0)


@pytest.mark.parametrize(("block", "reads"), [(0, NO_SIGNALS), (0, OF_DRAFTED_TOKENS), (7, NO_SIGNALS)])
def test_what_a_trained_drafter_runs_is_recorded(
    gpu: FakeCuda, block: int, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = real_model(2)
    with unset_fake_temporarily():
        made = new_net(reuse_config(module.config, "hybrid", block=block), module, seed=1)
    net, target = (on_gpu(each, "cuda:0", torch.bfloat16) for each in (made, module))
    target = wrap(target, "static")
    drafter = new_drafter(net, target, attach_taps(target, net.config.tap_plan), Drafting(frozenset()))
    launches, waited, waits = per_step(gpu, target, drafter, Looking(reads))
    assert (waited, waits) == (GAMMA + 1 if reads else 1, 0)
    if reads:
        return
    assert launches <= 37  # four times as many, launched one by one
    monkeypatch.setattr(live, "RECORDED_ANCHORS", GAMMA + 1)
    drafter = new_drafter(net, target, drafter.taps, Drafting(frozenset()))
    record_passes(target, drafter, GAMMA, 60)
    with gpu.counting() as counts:
        speculative_decode(target, drafter, Looking(reads), 2 * PROMPT, DecodingSettings(12))
    assert counts.captures == 0 < counts.launches["graph"]


def test_prompt_lookup_and_plain_decoding_read_once_a_step(gpu: FakeCuda) -> None:
    target = model()
    assert per_step(gpu, target, PromptLookupDrafter(), FixedLength(GAMMA))[1:] == (1, 0)
    launches, reads, waits = per_step(gpu, target, None)
    assert (reads, waits) == (1, 0)
    assert launches <= 8


@pytest.mark.parametrize("reads", [NO_SIGNALS, OF_DRAFTED_TOKENS], ids=["no signals", "signals"])
def test_a_batch_waits_as_often_as_one_request(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch, reads: Reads) -> None:
    monkeypatch.setattr(static, "free_bytes", lambda device: None)
    rows = [StaticRows(model("static", layers), 4, 64) for layers in (2, 1)]
    policy, prompts = PerRequest([Looking(reads) for _ in range(4)]), [PROMPT] * 4
    settings, plan = DecodingSettings(30), BatchPlan(4, GAMMA, drain=False)
    with gpu.counting() as counts:
        run = batched_decode(rows[0], rows[1], policy, prompts, settings, plan)
    drafted = [step.drafted for step in run.outputs[0].steps]
    assert counts.reads.pop("synchronize") == 1  # for the prompts, which are no part of a step
    assert counts.reads.total() == len(drafted) + (sum(drafted) if reads else 0)
    assert counts.captures > 0


@pytest.mark.parametrize(("reads", "sampling"), [(NO_SIGNALS, SAMPLED), (OF_DRAFTED_TOKENS, GREEDY)])
def test_the_draft_may_live_on_another_gpu(gpu: FakeCuda, reads: Reads, sampling: Sampling) -> None:
    drafter = drafter_on("auto", "cuda:1", sampling)
    assert drafter.model.spec.device == torch.device("cuda:1")
    assert drafter.model.spec.engine == "static"
    waited = per_step(gpu, model(), drafter, Looking(reads), sampling)[1]
    assert waited == (GAMMA + 1 if reads else 1)


def test_clocks_wait_for_the_drafts_gpu_too(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(str(device)))
    monkeypatch.setattr(static, "free_bytes", lambda device: None)
    target, drafter = model(), drafter_on("auto", "cuda:1")
    speculative_decode(target, drafter, FixedLength(GAMMA), PROMPT, DecodingSettings(9))
    moments = 3  # begun, prompt taken in, done
    assert (waited.count("cuda:0"), waited.count("cuda:1")) == (moments, moments)
    waited.clear()
    rows = [StaticRows(each, 1, 64) for each in (target, drafter.model)]
    plan = BatchPlan(1, GAMMA, timed=True)
    run = batched_decode(*rows, PerRequest([FixedLength(GAMMA)]), [PROMPT], DecodingSettings(9), plan)
    moments = 1 + 2 * sum(map(len, run.passes))
    assert (waited.count("cuda:0"), waited.count("cuda:1")) == (moments, moments)


def test_a_model_on_a_gpu_is_static_and_graphs_are_captured_when_a_pass_comes_again(gpu: FakeCuda) -> None:
    cached = model()
    assert cached.spec.engine == "static"
    text = torch.ones(3, dtype=torch.int64, device="cuda:0")
    captures = []
    for _ in range(4):
        with gpu.counting() as counts:
            cached.forward(text)
        captures.append((counts.captures, counts.launches["graph"]))
    assert captures == [(0, 0), (1, 1), (0, 1), (0, 1)]
    cached.truncate(0)
    with gpu.counting() as counts:
        cached.forward(torch.ones(100, dtype=torch.int64, device="cuda:0"))  # a prompt
    assert (counts.captures, counts.launches["graph"]) == (0, 0)


@contextmanager
def failing(error: Exception) -> Iterator[None]:
    """A recording that fails, and then cannot be ended."""
    try:
        yield
        raise error
    finally:
        raise RuntimeError("the capture is invalid")


def test_where_no_graph_can_be_recorded_passes_are_launched(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    restored: list[str] = []
    refused = RuntimeError("operation not permitted\nwhen capturing")
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: failing(refused))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: "the stream before")
    monkeypatch.setattr(torch.cuda, "set_stream", restored.append)
    cached, text = model(), torch.ones(3, dtype=torch.int64, device="cuda:0")
    cached.forward(text)
    with pytest.warns(UserWarning, match="none could be recorded: operation not permitted$"):
        cached.forward(text)
    assert restored == ["the stream before"]
    with warnings.catch_warnings(), gpu.counting() as counts:
        warnings.simplefilter("error")
        for count in (3, 2, 2, 2):  # 2 comes anew, and is not tried again
            cached.forward(text[:count])
    assert counts.launches["graph"] == 0 < counts.launches.total()
    assert cached.length == 15
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: failing(torch.OutOfMemoryError("CUDA out of memory")))
    cached = model()
    cached.forward(text)
    with pytest.raises(torch.OutOfMemoryError):
        cached.forward(text)


@pytest.mark.parametrize(("family", "engine"), [("qwen3-sliding", "lean"), ("gemma2", "static"), ("gemma3", "lean")])
def test_devices_and_dtypes_fit_with_branches_and_taps(gpu: FakeCuda, family: str, engine: str) -> None:
    dtype = torch.float32 if engine == "lean" else torch.bfloat16
    cached = wrap(on_gpu(real_model(3, family), "cuda:0", dtype), engine)
    taps = attach_taps(cached, TapPlan((0, 2), (1 if family.startswith("gemma") else 0,)))
    text = torch.ones(300, dtype=torch.int64, device="cuda:0")[:90]
    assert cached.forward(text).dtype == torch.float32
    for count in (1, 1, 5, 5):
        assert cached.forward(text[:count]).shape == (count, 96)
    assert taps.hidden(0, 90).dtype == dtype
    starts = torch.ones(4, dtype=torch.int64, device="cuda:0")
    assert cached.branches(starts).step(starts).shape == (4, 96)


def test_a_recorded_mtp_head_launches_about_as_much_as_a_trained_drafter(gpu: FakeCuda, tmp_path: Path) -> None:
    """Of one layer each and equal widths: the family's own layer is one graph, as ``hidden`` is; 30 and 29 in all."""
    with unset_fake_temporarily():
        save_with_heads(tmp_path, "qwen2", vocab_size=96)
        loaded = load_model(tmp_path, "fp32", "cpu")
        module, mtp = loaded.module, build_mtp(tmp_path, loaded)
        made = new_net(reuse_config(module.config, "hidden"), module, seed=1)
    cuda, dtype = "cuda:0", torch.bfloat16
    target = wrap(on_gpu(module, cuda, dtype), "static")
    names = ("embedding", "hidden", "projection", "decoder", "norm")
    parts = [on_gpu(getattr(mtp.heads[0], name), cuda, dtype) for name in names]
    layout = replace(mtp.layout, longest=None)  # used again, as heads of Qwen3.5 are
    head = MtpNet(layout, mtp.family, [Head(*parts)], module)
    taps = attach_taps(target, TapPlan(layout.taps))
    launched, waited, waits = per_step(gpu, target, MtpDrafter(head, target, taps), FixedLength(GAMMA))
    assert (waited, waits) == (1, 0)
    net = on_gpu(made, cuda, dtype)
    hidden = new_drafter(net, target, attach_taps(target, net.config.tap_plan), Drafting(frozenset()))
    assert launched <= per_step(gpu, target, hidden, FixedLength(GAMMA))[0] + 1
