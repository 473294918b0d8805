"""The openvino engine: a folder that optimum-intel exported, run by OpenVINO's stateful model in this process.

In the engine ``openvino`` weights, activations, keys and values are computed in float32. The runtime's own choice
(bfloat16 where the processor has it, activations of quantised weights in 8 bits) is the engine ``openvino-fast``.

The runtime keeps keys and values as state, to which every pass appends. The state cannot be cut at its end but by
copying all of it out and in (``query_state``), which takes longer than a pass. So tokens that are rolled back stay as
dead slots that the attention mask hides, and are copied away when there are many. Branches are rows of a batch that
``beam_idx`` makes of the one text, as beam search does.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedConfig

from draftgauge.core.errors import ModelError
from draftgauge.models.base import ModelSpec
from draftgauge.models.folder import OPENVINO_GRAPH, OPENVINO_IMAGES, OPENVINO_WEIGHTS, check_pointers, read_mapping
from draftgauge.models.spec import check_context, check_starts, context_of, read_configuration
from draftgauge.models.tokenizer import end_tokens

EXPORT = "optimum-cli export openvino --model MODEL --task text-generation-with-past FOLDER"
FIRST = "first_row"
INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}


def check_files(folder: Path) -> None:
    """Refuse a folder that is not the whole export of a language model."""
    if (folder / OPENVINO_IMAGES).is_file():
        raise ModelError(
            f"{folder} was exported with its parts for images, and draftgauge runs text alone: export a language model"
        )
    missing = [name for name in (OPENVINO_GRAPH, OPENVINO_WEIGHTS, "config.json") if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} lacks {' and '.join(missing)}: copy the rest of the export, or repeat it ({EXPORT})"
        )
    check_pointers(folder)


def check_graph(model: Any, config: PreTrainedConfig, folder: Path) -> None:
    """Refuse an ``openvino.Model`` that does not take tokens and positions, or whose state cannot be rolled back."""
    inputs = {port.any_name: port.partial_shape.rank.get_length() for port in model.inputs}
    states = {variable.info.variable_id: variable.info.data_shape for variable in model.get_variables()}
    if "beam_idx" not in inputs or not states:
        raise ModelError(f"{folder} is a model without state, which starts anew at every pass: export it with {EXPORT}")
    if set(inputs) != INPUTS or inputs["position_ids"] != 2:
        odd = ", ".join(sorted(INPUTS ^ set(inputs))) or "position_ids of several dimensions"
        raise ModelError(f"{folder} takes other inputs than a language model of text ({odd}): choose another model")
    fixed = [name for name, shape in states.items() if shape.rank.get_length() != 4 or not shape[2].is_dynamic]
    if fixed:
        raise ModelError(
            f"the state of {folder} cannot be rolled back, which speculation needs ({fixed[0]} is no keys or values of "
            "single tokens): choose a model with attention in every layer"
        )
    kinds = getattr(config, "layer_types", None) or ["sliding" if getattr(config, "sliding_window", None) else "full"]
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None) or 0
    if any(not kind.startswith("full") for kind in kinds) and window < config.max_position_embeddings:
        raise ModelError(
            f"{folder} attends to windows of {window or 'some'} tokens, in which OpenVINO counts tokens that were "
            "rolled back: choose a model with full attention in every layer, or the folder it was exported from"
        )


def logits_from_a_row(model: Any) -> bool:
    """Give the graph an input :data:`FIRST`, the row from which logits are computed, and say whether that was possible.

    Of a long prompt only the last row is asked for, and the head is the largest matrix of a small model.
    """
    from openvino import opset15 as ops

    head = model.output("logits").get_node().input_value(0).get_node()
    if head.get_type_name() != "MatMul" or head.input(0).get_partial_shape().rank.get_length() != 3:
        return False
    first = ops.parameter([1], np.int64, name=FIRST)
    first.output(0).set_names({FIRST})
    end, step, rows = (ops.constant([value], np.int64) for value in (2**31 - 1, 1, 1))
    head.input(0).replace_source_output(ops.slice(head.input_value(0), first, end, step, rows).output(0))
    model.add_parameters([first])
    model.validate_nodes_and_infer_types()
    return True


def generation_settings(folder: Path) -> SimpleNamespace:
    path = folder / "generation_config.json"
    return SimpleNamespace(**(read_mapping(path) if path.is_file() else {}))


EXACT, FAST = OPENVINO_ENGINES = ("openvino", "openvino-fast")
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
BRANCHES = 16  # that grow together: the runtime makes room for the whole text in each
BATCH = 512  # tokens a pass, which gives logits of all of them
MOST_DEAD = 256  # slots that hold tokens rolled back, before the state is copied without them

Ints = NDArray[np.int64]


class OpenvinoModel:
    """:class:`~draftgauge.models.base.CachedModel` over an OpenVINO infer request, on the CPU."""

    module: Any = None  # there is no transformers model behind it

    def __init__(self, folder: Path, engine: str = EXACT, trust_remote_code: bool = False) -> None:
        """Load an exported folder for the engine "openvino" or "openvino-fast"."""
        check_files(folder)
        import openvino

        text = read_configuration(folder, trust_remote_code).get_text_config()
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), **(FLOAT32 if engine == EXACT else {})}
        core = openvino.Core()
        try:
            model = core.read_model(folder / OPENVINO_GRAPH)
            check_graph(model, text, folder)
            self._sliced = logits_from_a_row(model)
            self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        except RuntimeError as error:
            said = " ".join(str(error).split())
            raise ModelError(f"OpenVINO {openvino.__version__} cannot run {folder}, export it again: {said}") from error
        self._tensor = openvino.Tensor
        self.eos_token_id = sorted(end_tokens(text, generation_settings(folder)))
        vocabulary = model.output("logits").partial_shape[2]
        size = text.vocab_size if vocabulary.is_dynamic else vocabulary.get_length()
        context, reason = context_of(text)
        device = torch.device("cpu")
        self.spec = ModelSpec(size, context, device, torch.float32, text.model_type, engine, "", reason, BRANCHES)
        self._live = np.zeros(0, np.int64)  # [slots] 1 where a slot of the state holds a token of the text
        self._length = 0
        self._branches: _Branches | None = None

    @property
    def length(self) -> int:
        return self._length

    def reset(self) -> None:
        self._branches = None
        self._request.reset_state()
        self._live, self._length = self._live[:0], 0

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self._length, (length, self._length)
        self._branches = None
        if length == 0:
            self.reset()
        elif length < self._length:
            self._live[np.flatnonzero(self._live)[length:]] = 0
            self._length = length

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens ``[k]`` and return float32 logits ``[k, vocabulary]``, or of the last token only."""
        check_context(self.spec, self._length + len(tokens))
        self._branches = None
        self._drop_dead()
        ids, rows = tokens.numpy(), []
        for begin in range(0, len(ids), BATCH):
            chunk = ids[None, begin : begin + BATCH]
            count = chunk.shape[1]
            self._live = np.append(self._live, np.ones(count, np.int64))
            positions = np.arange(self._length, self._length + count)[None]
            first = count - 1 if last_only else 0
            logits = self._infer(chunk, self._live[None], positions, np.zeros(1, np.int32), first)
            self._length += count
            if not last_only or begin + count == len(ids):
                rows.append(torch.from_numpy(np.array(logits[0, -1:] if last_only else logits[0])))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def branches(self, starts: Tensor) -> _Branches:
        check_starts(int(starts.min()), int(starts.max()), self._length)
        assert len(starts) <= self.spec.branches, (len(starts), self.spec.branches)
        self._drop_dead()
        self._branches = _Branches(self, starts.numpy())
        return self._branches

    def _infer(
        self, ids: Ints, mask: Ints, positions: Ints, rows: NDArray[np.int32], first: int = 0
    ) -> NDArray[np.float32]:
        """Logits ``[batch, k, vocabulary]``, overwritten by the next pass, of the last ``k - first`` tokens if it can.

        ``rows`` are those of the state to go on with.
        """
        ids = np.ascontiguousarray(ids)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "beam_idx": rows}
        if self._sliced:
            inputs[FIRST] = np.array([first], np.int64)
        self._request.infer(inputs, share_inputs=True)
        logits: NDArray[np.float32] = self._request.get_output_tensor(0).data
        return logits

    def _drop_dead(self) -> None:
        """Copy the state without its dead slots, and with one row, where there are many."""
        if len(self._live) - self._length <= MOST_DEAD:
            return
        kept = np.flatnonzero(self._live)
        for state in self._request.query_state():
            state.state = self._tensor(np.ascontiguousarray(state.state.data[:1, :, kept]))
        self._live = np.ones(self._length, np.int64)


class _Branches:
    """:class:`~draftgauge.models.base.BranchSession` of the openvino engine: branch ``i`` is row ``i`` of a batch."""

    def __init__(self, model: OpenvinoModel, starts: Ints) -> None:
        self._model = model
        self._positions = starts[:, None]
        text = np.cumsum(model._live)[None]  # [1, slots]: how many tokens of the text end with this slot
        self._mask = model._live * (text <= starts[:, None])
        self._rows = np.zeros(len(starts), np.int32)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        model, count = self._model, len(tokens)
        assert model._branches is self, "the branches ended with the model's last forward, truncate or reset"
        check_context(model.spec, int(self._positions.max()) + 1)
        self._mask = np.concatenate([self._mask, np.ones((count, 1), np.int64)], axis=1)
        model._live = np.append(model._live, 0)  # to the text itself the slot is dead
        logits = model._infer(tokens.numpy()[:, None], self._mask, self._positions, self._rows)
        self._rows, self._positions = np.arange(count, dtype=np.int32), self._positions + 1
        return torch.from_numpy(np.array(logits[:, 0]))

    def keep(self, rows: Tensor) -> None:
        kept = rows.numpy()
        self._mask, self._positions, self._rows = self._mask[kept], self._positions[kept], self._rows[kept]
