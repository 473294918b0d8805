"""What is said of OpenVINO folders that cannot be run, with or without OpenVINO installed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import invoke, refusal
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.models.folder import fingerprint, weight_bytes_of
from draftgauge.models.loading import load_model, load_module
from openvino_folders import MODEL, WEIGHTS, need_openvino, stored_folder
from tiny import save_tiny


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
