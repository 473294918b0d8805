"""The openvino engine: logits of transformers, a state that rolls back, lossless speculation; and its refusals."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import invoke, refusal, rows_of, succeeds
from draftgauge.benching.arms import genai_arms
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.dense import draft_densely
from draftgauge.models.engines import openvino as engine
from draftgauge.models.engines.openvino import OpenvinoModel
from draftgauge.models.folder import fingerprint, weight_bytes_of
from draftgauge.models.loading import load_model, load_module, wrap
from draftgauge.models.taps import TapPlan, attach_taps
from draftgauge.pair.loading import Pair, load_pair
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.spec import make_policy
from draftgauge.verification import Sampling
from linear_costs import LinearCosts
from markov import Enumerator, assert_same_law
from openvino_folders import MODEL, WEIGHTS, need_openvino, stored_folder, twin
from tiny import save_tiny, tokens

NEAR = 1e-4
PROMPTS = [tokens(20, seed=seed).tolist() * 2 for seed in range(3)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_openvino()
    folder = tmp_path_factory.mktemp("openvino")
    return {"target": stored_folder(folder / "target"), "draft": stored_folder(folder / "draft", noise=0.15)}


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> OpenvinoModel:
    loaded = load_model(folders["target"])
    assert isinstance(loaded, OpenvinoModel)
    return loaded


@pytest.fixture(scope="module")
def pair(folders: dict[str, Path]) -> Pair:
    return load_pair(folders["target"], folders["draft"])


def test_the_logits_are_those_of_transformers(model: OpenvinoModel) -> None:
    text, lean = tokens(60), wrap(twin())
    model.reset()
    assert (model.forward(text) - lean.forward(text)).abs().max() < NEAR
    assert (model.spec.engine, model.spec.vocabulary, model.spec.context) == ("openvino", 96, 96)
    with pytest.raises(ModelError, match="exceeds the 96"):
        model.forward(tokens(40))


@pytest.mark.parametrize("most_dead", [0, 5, 1000])
def test_a_rolled_back_state_is_one_that_never_went_on(
    model: OpenvinoModel, monkeypatch: pytest.MonkeyPatch, most_dead: int
) -> None:
    """Whether slots are copied away at once, now and then, or stay hidden; over passes of one token and several."""
    monkeypatch.setattr(engine, "MOST_DEAD", most_dead)
    monkeypatch.setattr(engine, "BATCH", 16)
    text, other = tokens(50), tokens(50, seed=1)
    model.reset()
    whole = model.forward(text)
    model.reset()
    rows, generator = [model.forward(text[:7])], np.random.default_rng(0)
    while model.length < len(text):
        model.forward(other[: generator.integers(1, 6)], last_only=True)
        model.truncate(sum(map(len, rows)))
        rows.append(model.forward(text[model.length : model.length + int(generator.integers(1, 20))]))
    assert (torch.cat(rows) - whole).abs().max() < NEAR
    slots = model._request.query_state()[0].state.shape[2]
    assert slots == len(model._live) <= 50 + most_dead + 20
    model.truncate(49)
    assert (model.forward(text[49:], last_only=True) - whole[-1:]).abs().max() < NEAR


def test_branches_are_continuations_of_their_prefixes(model: OpenvinoModel) -> None:
    text = tokens(40)
    model.reset()
    model.forward(text[:10])
    model.forward(tokens(6, seed=3))
    model.truncate(10)  # so that dead slots lie between
    model.forward(text[10:])
    for _ in range(30):  # sessions before it leave nothing behind
        model.branches(torch.arange(25, 41)).step(tokens(16))
    starts, words = torch.arange(5, 41, 5), [tokens(8, seed=seed) for seed in range(3)]
    session, kept = model.branches(starts), torch.tensor([6, 2])
    first, second = session.step(words[0]), session.step(words[1])
    session.keep(kept)
    third = session.step(words[2][kept])
    after = model.forward(words[0][:1])  # the text goes on, and the branches are gone
    with pytest.raises(AssertionError, match="branches ended"):
        session.step(words[2][kept])
    for row, start in enumerate(starts.tolist()):
        model.reset()
        model.forward(text[:start])
        expected = model.forward(torch.stack([word[row] for word in words]))
        assert (first[row] - expected[0]).abs().max() < NEAR
        assert (second[row] - expected[1]).abs().max() < NEAR
        if row in kept:
            assert (third[kept.tolist().index(row)] - expected[2]).abs().max() < NEAR
    model.reset()
    model.forward(text)
    assert (after - model.forward(words[0][:1])).abs().max() < NEAR


def test_dense_drafts_are_those_of_the_lean_engine(model: OpenvinoModel) -> None:
    output = tokens(40, seed=5).tolist()
    here, there = (draft_densely(each, PROMPTS[0], output, 4) for each in (model, wrap(twin())))
    assert (here.tokens == there.tokens).all()
    np.testing.assert_allclose(here.shown, there.shown, atol=1e-3)


@pytest.mark.parametrize("policy", ["fixed:4", "stopping", "two-source", "no-draft"])
def test_greedy_speculation_is_lossless(pair: Pair, policy: str) -> None:
    settings, accepted = DecodingSettings(40, end_tokens=pair.end_tokens), 0
    for prompt in PROMPTS:
        result = speculative_decode(
            pair.target, pair.drafter(), make_policy(policy, 8, LinearCosts(gamma_max=8)), prompt, settings
        )
        assert result.tokens == plain_decode(pair.target, prompt, settings).tokens
        accepted += sum(step.accepted for step in result.steps)
    assert (accepted > 10) == (policy != "no-draft")


def test_pipelines_of_genai_end_where_plain_decoding_does(pair: Pair) -> None:
    arms = genai_arms(pair, 24, 3)
    assert [arm.name for arm in arms] == ["genai-generate", "genai-prompt-lookup:3", "genai-assisted:3"]
    plain = plain_decode(pair.target, PROMPTS[0], DecodingSettings(24)).tokens
    ends = frozenset({plain[9]})
    for arm in genai_arms(replace(pair, end_tokens=ends), 24, 3):
        (run,) = arm.run(PROMPTS[0])
        assert run.tokens == plain[: plain.index(plain[9]) + 1], arm.failed
        assert run.timed < len(run.tokens)
        assert run.seconds > 0


def test_sampled_speculation_has_the_targets_law(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    sampling, unused = Sampling(1.5, top_k=2), torch.Generator()
    settings = DecodingSettings(3, sampling)
    assert pair.draft is not None
    drafter = LanguageModelDrafter(pair.draft, sampling=sampling, generator=unused)

    def speculation() -> tuple[int, ...]:
        return tuple(speculative_decode(pair.target, drafter, FixedLength(2), [5, 9], settings, unused).tokens)

    def plain() -> tuple[int, ...]:
        return tuple(plain_decode(pair.target, [5, 9], settings, unused).tokens)

    expected = Enumerator(monkeypatch).law(plain)
    assert len(expected) == 8
    assert_same_law(Enumerator(monkeypatch).law(speculation), expected)


def test_the_fast_engine_is_near_the_exact_one(folders: dict[str, Path], model: OpenvinoModel) -> None:
    fast = load_model(folders["target"], engine="openvino-fast")
    model.reset()
    assert fast.spec.engine == "openvino-fast"
    assert (fast.forward(tokens(30)) - model.forward(tokens(30))).abs().max() < 0.5


def test_drafters_that_read_the_target_are_refused(model: OpenvinoModel) -> None:
    with pytest.raises(ModelError, match="OpenVINO target shows no hidden states"):
        attach_taps(model, TapPlan(hidden_layers=(0,), kv_layers=()))


def test_the_verbs_take_openvino_folders(folders: dict[str, Path], tmp_path: Path) -> None:
    """What replay says of a fixed length is what the live loop then does."""
    run, prompts = tmp_path / "run", tmp_path / "prompts.jsonl"
    lines = [{"prompt": text, "id": text, "split": "test"} for text in ("hello", "once more")]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    models = ["--target", folders["target"], "--drafter", folders["draft"]]
    small = ["--max-new-tokens", "24", "--gamma-max", "4"]
    succeeds("profile", "--out", run, "--prompts", prompts, *models, *small, "--cost-seconds", "0.3")
    manifest = json.loads((run / "manifest.json").read_text())
    assert {manifest[role]["engine"] for role in ("target", "draft")} == {"openvino"}
    of = ["--policy", "fixed:2", "--split", "test"]
    succeeds("replay", run, *of, "--json", tmp_path / "replay.json")
    succeeds("bench", run, *of, "--json", tmp_path / "bench.json", "--rounds", "1")
    replayed, live = (rows_of(tmp_path / f"{name}.json") for name in ("replay", "bench"))
    steps = [
        {row["policy"]: row["tokens_per_step"] for row in rows if row["task"] == "all"} for rows in (replayed, live)
    ]
    assert steps[0]["fixed:2"] > 1
    beside = {row["policy"]: row["mismatches"] for row in live if row["policy"].startswith("genai")}
    assert beside == dict.fromkeys(("genai-generate", "genai-prompt-lookup:5", "genai-assisted:5"), 0)
    assert steps[0]["fixed:2"] == pytest.approx(steps[1]["fixed:2"])
    succeeds("advise", run, "--json", tmp_path / "advice.json")
    (advised,) = [row for row in rows_of(tmp_path / "advice.json") if row["recommended"]]
    assert shlex.quote(str(folders["target"])) in advised["flags"]
    succeeds("generate", "hello", *models, "--max-new-tokens", "8", "--policy", "fixed:2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stored_folder(tmp_path / "exported")


def lacks(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def of_images(folder: Path) -> None:
    (folder / MODEL).rename(folder / "openvino_language_model.xml")


def sliding(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16, "use_sliding_window": True}
    (folder / "config.json").write_text(json.dumps(config))


def of_another(**inputs: Any) -> Callable[[Path], None]:
    """Write another graph: each input with its shape, and of ``state`` a variable."""

    def write(folder: Path) -> None:
        openvino = need_openvino()
        from openvino import opset15 as ops
        from openvino.op.util import Variable, VariableInfo

        state = inputs.get("state")
        shapes = {name: shape for name, shape in inputs.items() if name != "state"}
        nodes = [ops.parameter(shape, np.float32, name=name) for name, shape in shapes.items()]
        for node, name in zip(nodes, shapes, strict=True):
            node.output(0).set_names({name})
        sinks, results = [], [ops.result(nodes[0], name="logits")]
        if state is not None:
            info = VariableInfo()
            info.data_shape, info.data_type, info.variable_id = openvino.PartialShape(state), openvino.Type.f32, "conv"
            read = ops.read_value(ops.constant(np.zeros([1, 4], np.float32)), Variable(info))
            sinks = [ops.assign(read, Variable(info))]
        openvino.save_model(openvino.Model(results, sinks, nodes, "other"), folder / MODEL, compress_to_fp16=False)

    return write


def damaged(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"too short")


PLANE, FIXED = [-1, -1], [-1, 4]
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no graph": (lacks(MODEL), f"lacks {MODEL}: copy the rest"),
    "no weights": (lacks(WEIGHTS), f"lacks {WEIGHTS}: copy the rest"),
    "no configuration": (lacks("config.json"), "lacks config.json"),
    "no tokenizer": (lambda folder: [path.unlink() for path in folder.glob("tokeni*")] and None, "holds no tokenizer"),
    "images": (of_images, "its parts for images"),
    "a window": (sliding, "attends to windows of 16 tokens"),
    "damaged": (damaged, "cannot run"),
    "no state": (of_another(input_ids=PLANE, attention_mask=PLANE, position_ids=PLANE), "model without state"),
    "a recurrent state": (
        of_another(input_ids=PLANE, attention_mask=PLANE, position_ids=PLANE, beam_idx=[-1], state=FIXED),
        "cannot be rolled back",
    ),
    "no positions": (of_another(input_ids=PLANE, attention_mask=PLANE, beam_idx=[-1], state=FIXED), "position_ids"),
    "positions of images": (
        of_another(input_ids=PLANE, attention_mask=PLANE, position_ids=[3, -1, -1], beam_idx=[-1], state=FIXED),
        "position_ids of several dimensions",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_folders_that_cannot_be_run(folder: Path, case: str) -> None:
    spoil, message = CASES[case]
    if case not in ("no graph", "no weights", "no configuration", "no tokenizer", "images"):
        need_openvino()
    spoil(folder)
    result = invoke("generate", "x", "--target", folder, "--drafter", "prompt_lookup")
    assert result.exit_code == 2, result.output
    assert message in result.message
    assert result.stderr.count("\n") == 1


def test_without_openvino_it_is_said_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    message = refusal("generate", "x", "--target", folder, "--drafter", "prompt_lookup")
    assert message.endswith("pip install 'draftgauge[openvino]'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "int8"}, "has its compression"),
        ({"device": "cuda"}, "runs on the CPU"),
        ({"engine": "lean"}, "openvino and openvino-fast run"),
        ({"engine": "gguf"}, "openvino and openvino-fast run"),
    ],
)
def test_options_that_do_not_fit(folder: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(folder, **options)


def test_other_models_are_not_openvinos(folder: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other")
    with pytest.raises(ModelError, match="is a model of transformers"):
        load_model(other, engine="openvino")
    shutil.copy(folder / MODEL, other)  # beside weights of transformers, which are taken
    assert load_model(other).spec.engine == "lean"
    message = refusal("profile", "--plan", "--target", folder, "--drafter", "prompt_lookup", "--out", tmp_path / "run")
    assert "is an OpenVINO folder: leave out --plan" in message


def test_a_folder_is_known_by_its_content(folder: Path, tmp_path: Path) -> None:
    assert fingerprint(folder) == fingerprint(stored_folder(tmp_path / "copy"))
    assert fingerprint(folder) != fingerprint(stored_folder(tmp_path / "other", noise=0.1))
    assert weight_bytes_of(folder) == (folder / WEIGHTS).stat().st_size
    lacks(WEIGHTS)(folder)
    with pytest.raises(DraftgaugeError, match="lacks"):
        fingerprint(folder)


def test_what_reads_a_target_wants_the_model_itself(folder: Path) -> None:
    with pytest.raises(ModelError, match="give what it was exported from"):
        load_module(folder)
