"""The proposer for vLLM, driven as vLLM's runner drives it: by tokens alone, requests coming and going in any order.

What vLLM does around it is written out here: a greedy step of the target over the proposed tokens. The engine itself is
tested in ``tests/engines``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.integrations.vllm import Proposer
from draftgauge.integrations.vllm_costs import CostProbe
from draftgauge.integrations.vllm_guard import check_version, fix_sampling
from draftgauge.models.engines.static import StaticRows
from draftgauge.models.loading import load_model
from draftgauge.policies.spec import make_policy
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.engine_costs import read_costs
from tiny import save_noisy, save_tiny, tiny_tokenizer, tokens

LONGEST, CONTEXT, OUTPUT = 6, 120, 40
VERIFY = (tuple(1 + 0.02 * token for token in range(LONGEST + 1)),)
DRAFT = (tuple(0.1 * token for token in range(LONGEST + 1)),)
COSTS = CostCurve((20,), VERIFY, DRAFT, (1.0,), "uncompressed", "cpu", "float32")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pair")
    return {
        "target": save_tiny(place / "target", seed=0),
        "draft": save_noisy(place / "draft"),
        "other": save_tiny(place / "other", "stablelm", seed=0),
    }


def config(folders: dict[str, Path], **options: Any) -> Any:
    """What vLLM hands to a proposer, as far as it is read."""
    return SimpleNamespace(
        additional_config={"draftgauge": {"drafter": str(folders["draft"]), "device": "cpu"} | options},
        speculative_config=SimpleNamespace(num_speculative_tokens=LONGEST),
        device_config=SimpleNamespace(device=torch.device("cpu")),
        model_config=SimpleNamespace(
            max_model_len=CONTEXT,
            tokenizer=str(folders["target"]),
            dtype=torch.float32,
            hf_config=SimpleNamespace(eos_token_id=0),
            get_vocab_size=lambda: 96,
        ),
    )


class Served:
    """A request as the runner has it."""

    def __init__(self, target: Any, prompt: list[int]) -> None:
        self.target, self.text, self.output = target, list(prompt), list[int]()
        self.counts: list[tuple[int, int]] = []
        self.draft: list[int] = []

    def step(self) -> list[int]:
        """Verify the draft, or read the prompt; the committed tokens."""
        self.target.reset()
        logits = self.target.forward(torch.tensor([*self.text, *self.draft]))
        chosen = logits[len(self.text) - 1 :].argmax(-1).tolist()
        accepted = next((n for n, token in enumerate(self.draft) if token != chosen[n]), len(self.draft))
        committed = [*self.draft[:accepted], chosen[accepted]]
        if self.output:
            self.counts.append((len(self.draft), accepted))
        if 0 in committed:
            committed = committed[: committed.index(0) + 1]
        committed = committed[: OUTPUT - len(self.output)]
        self.text += committed
        self.output += committed
        return committed

    @property
    def finished(self) -> bool:
        return len(self.output) >= OUTPUT or self.output[-1:] == [0]


def serve(
    proposer: Proposer, target: Any, prompts: list[list[int]], together: int, preempted: float = 0.0
) -> list[Served]:
    """Decode prompts, so many at a time, in an order that changes; some steps are a prompt's first half.

    Before a step each request is preempted with a chance: it loses its draft and waits behind the others.
    """
    rng = np.random.default_rng(0)
    waiting = [Served(target, prompt) for prompt in prompts]
    everything, running = list(waiting), list[Served]()
    while waiting or running:
        away = [r for r in running if r.output and rng.random() < preempted]
        running = [r for r in running if r not in away]
        for request in away:
            request.draft = []
        waiting += away
        while waiting and len(running) < together:
            running.append(waiting.pop(0))
        rng.shuffle(running)
        chunked = {id(r) for r in running if not r.output and rng.random() < 0.3}
        sampled = [[] if id(r) in chunked else r.step() for r in running]
        lengths = np.array([len(r.text) for r in running])
        texts = np.zeros((len(running), CONTEXT + LONGEST), np.int32)
        for index, request in enumerate(running):
            texts[index, : len(request.text)] = request.text
        proposals = proposer.propose(sampled, lengths, texts, slot_mappings=None)
        assert len(proposals) == len(running)
        for request, draft, committed in zip(running, proposals, sampled, strict=True):
            assert len(draft) <= LONGEST
            assert committed or not draft
            request.draft = draft
        running = [r for r in running if not r.finished]
    return everything


@pytest.mark.parametrize(
    ("policy", "together"),
    [
        *(("fixed:3", 1), ("fixed:3", 3), ("hf-confidence:threshold=0.3", 3), ("lookup:least=1,tokens=5", 3)),
        *(("two-source", 1), ("two-source", 3), ("lookup-else-stopping:least=1", 3)),
    ],
)
def test_outputs_are_plain_and_counts_are_those_of_live_decoding(
    folders: dict[str, Path], policy: str, together: int, tmp_path: Path
) -> None:
    COSTS.save(tmp_path / "costs.json")
    target, draft = load_model(folders["target"], device="cpu"), load_model(folders["draft"], device="cpu")
    prompts = [tokens(length, seed=length).tolist() for length in (9, 14, 9, 30, 21)]
    prompts[2] = list(prompts[0])  # two requests of one text
    proposer = Proposer(config(folders, policy=policy, costs=str(tmp_path / "costs.json")))
    served = serve(proposer, target, prompts, together)
    settings = DecodingSettings(max_new_tokens=OUTPUT, end_tokens=frozenset({0}))
    looked_up = drafted = 0
    for request, prompt in zip(served, prompts, strict=True):
        assert request.output == plain_decode(target, prompt, settings).tokens
        first = request.output[0]
        live = speculative_decode(
            target,
            LanguageModelDrafter(draft, frozenset({0}), None, None, 96),
            make_policy(policy, LONGEST, COSTS),
            [*prompt, first],
            DecodingSettings(max_new_tokens=OUTPUT + LONGEST, end_tokens=frozenset({0})),
        )
        expected = [(step.proposed, step.accepted) for step in live.steps][: len(request.counts)]
        assert request.counts[:-1] == expected[:-1]  # the last draft may run past what the request asked for
        looked_up += sum(step.appended for step in live.steps)
        drafted += sum(step.drafted for step in live.steps)
    assert sum(accepted for request in served for _, accepted in request.counts) > 5
    assert (looked_up > 0) == (policy.startswith(("lookup", "two-source")))
    assert (drafted > 0) == (not policy.startswith("lookup:"))


def test_preempted_requests_come_back(folders: dict[str, Path]) -> None:
    target = load_model(folders["target"], device="cpu")
    prompts = [tokens(length, seed=length).tolist() for length in (9, 14, 30, 21)]
    settings = DecodingSettings(max_new_tokens=OUTPUT, end_tokens=frozenset({0}))
    proposer = Proposer(config(folders, policy="fixed:3"))
    for request, prompt in zip(serve(proposer, target, prompts, 3, preempted=0.2), prompts, strict=True):
        assert request.output == plain_decode(target, prompt, settings).tokens
        assert any(not drafted for drafted, _ in request.counts)  # it was away, and verified nothing when it was back
        assert any(accepted for _, accepted in request.counts)
    assert len(proposer.requests) <= 3


def test_rows_draft_together(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass of the draft model a depth, over the requests that go on."""
    passes = list[int]()
    step = StaticRows.step

    def counted(of: StaticRows, rows: list[int], *rest: Any) -> torch.Tensor:
        passes.append(len(rows))
        return step(of, rows, *rest)

    proposer = Proposer(config(folders, policy="fixed:3"))
    monkeypatch.setattr(StaticRows, "step", counted)
    texts = np.zeros((5, CONTEXT + LONGEST), np.int32)
    lengths = [20, CONTEXT - 3, 31, CONTEXT - 1, CONTEXT]  # the second has room for two tokens, the last two for none
    for index, length in enumerate(lengths):
        texts[index, :length] = tokens(length, seed=index)
    drafts = proposer.propose([[int(texts[i, n - 1])] for i, n in enumerate(lengths)], lengths, texts)
    assert [len(draft) for draft in drafts] == [3, 2, 3, 0, 0]
    assert passes == [3, 3, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_defaults_of_vllm_do_not_matter(folders: dict[str, Path], dtype: torch.dtype) -> None:
    """vLLM loads, and may call, under a device and a dtype of its own."""
    text = tokens(20, seed=2).tolist()
    texts = np.zeros((1, CONTEXT), np.int32)
    texts[0, :20] = text
    expected = Proposer(config(folders)).propose([[text[-1]]], [20], texts)
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            drafts = Proposer(config(folders)).propose([[text[-1]]], [20], texts)
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert drafts == expected


def test_other_drafters_and_models(folders: dict[str, Path]) -> None:
    target = load_model(folders["target"], device="cpu")
    prompt = tokens(12, seed=1).tolist() * 2
    expected = plain_decode(target, prompt, DecodingSettings(max_new_tokens=OUTPUT, end_tokens=frozenset({0}))).tokens
    for options in ({"drafter": "prompt_lookup"}, {"drafter": str(folders["other"])}):
        served = serve(Proposer(config(folders, **options)), target, [prompt], 1)
        assert served[0].output == expected


@pytest.mark.parametrize("longest", [1, 4, 7, 8, 9, 14])
def test_the_probe_drafts_every_length_in_turn(folders: dict[str, Path], longest: int) -> None:
    served = config(folders, costs_out="unused")
    served.speculative_config.num_speculative_tokens = longest
    probe = CostProbe(served)
    texts = np.zeros((1, CONTEXT), np.int32)
    texts[0, :9] = tokens(9).tolist()
    lengths = [len(probe.propose([[int(texts[0, 8])]], np.array([9]), texts)[0]) for _ in range(longest + 1)]
    assert sorted(lengths) == list(range(longest + 1))


def test_the_probe_measures_every_length(folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    probe = CostProbe(config(folders, costs_out=str(out)))
    target = load_model(folders["target"], device="cpu")
    prompts = [tokens(length, seed=length).tolist() for length in range(5, 20)]
    serve(probe, target, prompts, 1)
    measured = probe.measured()
    assert measured is not None
    assert measured.batches[0] == 1
    assert len(measured.draft[0]) == LONGEST + 1
    assert measured.draft[0][0] == 0 < measured.draft[0][LONGEST]
    assert read_costs(out, "vllm")[1].gamma_max == LONGEST


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polcy": "none"}, "unknown key 'polcy'"),
        ({"policy": "clairvoyant"}, "clairvoyant"),
        ({"policy": "stopping"}, "cost"),
        ({"drafter": None}, "name what drafts"),
        ({"drafter": "nobody"}, "unknown drafter"),
    ],
)
def test_options_that_cannot_be(folders: dict[str, Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(DraftgaugeError, match=message):
        Proposer(config(folders, **options))


def test_a_draft_of_another_vocabulary(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "swapped")
    tiny_tokenizer(swap=(4, 5)).save_pretrained(folder)
    with pytest.raises(ModelError, match="different vocabularies"):
        Proposer(config(folders, drafter=str(folder)))


def test_versions_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.29.1"))
    with pytest.raises(DraftgaugeError, match=r"install vLLM 0\.30 or later"):
        check_version()


@pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM's own function needs an accelerator there, and is right")
def test_a_sampler_that_loses_temperatures_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    def right(x: torch.Tensor, ends: torch.Tensor, count: int, old: int = 0, new: int = 0) -> torch.Tensor:
        parts = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
        values = [new if value == old else value for value in x.tolist()]
        spread = [value for value, times in zip(values, parts, strict=True) for _ in range(times)]
        return torch.tensor(spread, dtype=x.dtype)

    def broken(x: torch.Tensor, ends: torch.Tensor, count: int, old: int = 0, new: int = 0) -> torch.Tensor:
        return torch.full((count,), -1.0) if x.is_floating_point() else right(x, ends, count, old, new)

    sampler = SimpleNamespace(expand_batch_to_tokens=right)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", sampler)
    fix_sampling()
    assert sampler.expand_batch_to_tokens is right

    sampler.expand_batch_to_tokens = broken
    fix_sampling()
    ends = torch.tensor([1, 3, 3], dtype=torch.int32)  # the last request has no tokens
    for x in (torch.tensor([0.7, 0.0, 0.2]), torch.tensor([4, 0, 5])):
        assert torch.equal(sampler.expand_batch_to_tokens(x, ends, 3), right(x, ends, 3))
        assert torch.equal(sampler.expand_batch_to_tokens(x, ends, 3, 0, 1), right(x, ends, 3, 0, 1))
