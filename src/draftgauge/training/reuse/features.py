"""What the target shows of a batch: computed inside the step, or once for all and kept on disk.

On disk are, for every token, the tapped hidden states, keys and values, and the input of the target's head. The logits
are computed from it again: on disk they would take a hundred times as much.
"""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.core.artefacts import Artefact
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import alone, nearest_existing, remove_temporaries, replacing, require_writable
from draftgauge.core.parts import UNCOMPRESSED, current_compression
from draftgauge.core.progress import Progress, silent
from draftgauge.models.spec import head_dim, key_heads
from draftgauge.models.taps import Features, TapPlan, batch_features, nowhere
from draftgauge.training.reuse.answers import Answers, Conversation, groups
from draftgauge.training.reuse.data import Batch

MANIFEST = "features.json"
CACHE = Artefact("draftgauge-features", 1, "description of cached features", "remove its folder, or choose another")
SHARD_CONVERSATIONS = 64
PASS_TOKENS = 8192  # of one pass of the target while a cache is made
DTYPE = torch.bfloat16
OPEN_SHARDS = 64  # files of a cache that are open at once, those read last
SPARE = 0.05  # share of the free disk that is left alone


class FeatureSource(Protocol):
    """Gives the features of a batch, on its device."""

    def __call__(self, batch: Batch) -> Features:
        """Features of all positions of the batch, and the logits ``[n, V]`` of those where it is taught."""

    def prefetch(self, batch: Batch) -> None: ...


class OnlineFeatures:
    """Features from a pass of the target over every batch, shared by all depths."""

    def __init__(self, module: PreTrainedModel, plan: TapPlan) -> None:
        self.module, self.plan = module, plan

    def __call__(self, batch: Batch) -> Features:
        return batch_features(self.module, batch.tokens, self.plan, batch.taught())

    def prefetch(self, batch: Batch) -> None:
        """Nothing is read."""


def token_bytes(config: PreTrainedConfig, plan: TapPlan) -> int:
    text = config.get_text_config()
    states = text.hidden_size * (1 + len(plan.hidden_layers))
    cached = sum(2 * key_heads(text, layer) * head_dim(text, layer) for layer in plan.kv_layers)
    return (states + cached) * DTYPE.itemsize


def check_disk(folder: Path, needed: int) -> None:
    """Raise ``DraftgaugeError`` if the disk of a folder, which need not exist yet, has too few bytes to spare."""
    existing = nearest_existing(folder)
    free = shutil.disk_usage(existing).free * (1 - SPARE)
    if needed > free:
        raise DraftgaugeError(
            f"the features take {needed / 1e9:,.1f} GB and {existing} has {free / 1e9:,.1f} GB to spare: choose "
            "another cache folder, fewer questions or a smaller length, or compute features online"
        )


def cache_identity(
    answers: Answers, conversations: Sequence[Conversation], length: int, plan: TapPlan, dtype: torch.dtype | None
) -> dict[str, Any]:
    """What a cache's features are of, computed in autocast to ``dtype``. A cache serves every run with the same answers
    whose layers it holds."""
    return {
        "target_fingerprint": answers.description["target_fingerprint"],
        "answers_sha256": answers.sha256,
        "length": length,
        "hidden_layers": plan.hidden_layers,
        "kv_layers": plan.kv_layers,
        "conversations": len(conversations),
        "arithmetic": str(dtype or "the target's own").removeprefix("torch."),
        "compression": answers.description.get("compression", UNCOMPRESSED),
    }


def check_cache_folder(folder: Path, wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The manifest of a cache, if it agrees with what is wanted so far as known; None where there is no cache yet."""
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists() and not (folder.is_dir() and all(child.name.startswith(".") for child in folder.iterdir())):
            raise DraftgaugeError(f"{folder} is there and is no cache of features: choose an empty folder")
        return None
    recorded = CACHE.read(path)
    recorded["compression"] = current_compression(recorded.get("compression"))
    layers = ("hidden_layers", "kv_layers")
    off = [key for key in wanted if key not in layers and recorded.get(key) != wanted[key]]
    off += [key for key in layers if not set(wanted.get(key, ())) <= set(recorded.get(key, ()))]
    if off:
        shown = ", ".join(key.replace("_", " ") for key in off)
        raise DraftgaugeError(
            f"{folder} holds the features of another run (other {shown}): choose another cache folder, or remove this "
            "one"
        )
    return dict(recorded)


def make_cache(
    folder: Path,
    module: PreTrainedModel,
    conversations: Sequence[Conversation],
    identity: Mapping[str, Any],
    progress: Progress = silent,
) -> None:
    """Compute and keep features, by one process of several; whole shards of an interrupted call are kept."""
    check_cache_folder(folder, identity)  # before a lock is left beside a folder that is no cache
    require_writable(folder.parent)
    with alone(folder):
        recorded = check_cache_folder(folder, identity)
        held = recorded or identity  # it may hold more layers than wanted, and goes on with those
        plan = TapPlan(tuple(held["hidden_layers"]), tuple(held["kv_layers"]))
        starts = range(0, len(conversations), SHARD_CONVERSATIONS)
        missing = [start for start in starts if not _shard(folder, start).exists()]
        tokens = sum(len(c.tokens) for start in missing for c in conversations[start : start + SHARD_CONVERSATIONS])
        check_disk(folder, tokens * token_bytes(module.config, plan))
        require_writable(folder)
        remove_temporaries(folder)
        if recorded is None:
            CACHE.write(folder / MANIFEST, identity)
        for start in missing:
            progress("features", starts.index(start), len(starts))
            _write_shard(_shard(folder, start), module, conversations[start : start + SHARD_CONVERSATIONS], plan)
        progress("features", len(starts), len(starts))


class CachedFeatures:
    """Features read from a cache, which a run with the same target and answers made.

    They are streamed: a thread reads the batch that was announced while another one is trained on. However large the
    cache is, memory holds no more than these two, and at most ``OPEN_SHARDS`` files are open.

    Args:
        module: the target, whose head makes the logits.
        plan: the layers that are read; the cache may hold more.
    """

    def __init__(self, folder: Path, module: PreTrainedModel, plan: TapPlan) -> None:
        manifest = CACHE.read(folder / MANIFEST)
        self.folder, self.module, self.plan = folder, module, plan
        self._hidden = [manifest["hidden_layers"].index(layer) for layer in plan.hidden_layers]
        self._kv = [manifest["kv_layers"].index(layer) for layer in plan.kv_layers]
        self._pinned = module.device.type == "cuda"
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._reader = ThreadPoolExecutor(1, "features")
        self._announced: dict[tuple[int, ...], Future[dict[str, Tensor]]] = {}

    def prefetch(self, batch: Batch) -> None:
        announced = self._announced.pop(batch.index, None)
        self._announced = {batch.index: announced or self._submit(batch)}

    def __call__(self, batch: Batch) -> Features:
        read = self._announced.pop(batch.index, None) or self._submit(batch)
        parts = {
            name: part.to(self.module.device, self.module.dtype, non_blocking=True)
            for name, part in read.result().items()
        }
        keys, values = (parts[name].permute(0, 2, 3, 1, 4) if name in parts else None for name in ("keys", "values"))
        with torch.no_grad():
            return Features(parts.get("hidden"), keys, values, self._logits(parts["last"]))

    def _submit(self, batch: Batch) -> Future[dict[str, Tensor]]:
        return self._reader.submit(self._load, batch)

    def _load(self, batch: Batch) -> dict[str, Tensor]:
        """What is asked for of the conversations, ``[B, T, ...]``; of the head's inputs, ``[n, H]`` that teach."""
        rows, width = [self._read(index) for index in batch.index], batch.tokens.shape[1]
        slots = {"hidden": self._hidden, "keys": self._kv, "values": self._kv}
        parts = {
            name: torch.stack(
                [
                    F.pad(row[name][:, chosen], (0, 0) * (row[name].ndim - 1) + (0, width - len(row[name])))
                    for row in rows
                ]
            )
            for name, chosen in slots.items()
            if chosen
        }
        spans = zip(rows, batch.prompt.tolist(), batch.length.tolist(), strict=True)
        parts["last"] = torch.cat([row["last"][prompt - 1 : length - 1] for row, prompt, length in spans])
        return {name: part.pin_memory() for name, part in parts.items()} if self._pinned else parts

    def _logits(self, last: Tensor) -> Tensor:
        logits: Tensor = self.module.get_output_embeddings()(last)
        cap = getattr(self.module.config.get_text_config(), "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _read(self, index: int) -> dict[str, Tensor]:
        start = index - index % SHARD_CONVERSATIONS
        if start not in self._open:
            file = safe_open(_shard(self.folder, start), framework="pt")
            self._open[start] = file, json.loads(file.metadata()["offsets"])
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
        self._open.move_to_end(start)
        file, offsets = self._open[start]
        begin, end = offsets[index - start : index - start + 2]
        names = ["last", *["hidden"] * bool(self._hidden), *["keys", "values"] * bool(self._kv)]
        return {name: file.get_slice(name)[begin:end] for name in names}


def _shard(folder: Path, start: int) -> Path:
    return folder / f"features-{start // SHARD_CONVERSATIONS:05d}.safetensors"


def _write_shard(path: Path, module: PreTrainedModel, conversations: Sequence[Conversation], plan: TapPlan) -> None:
    """One shard: tensors ``[tokens, ...]`` of all its conversations one after the other, their offsets beside them."""
    by_conversation: dict[int, dict[str, Tensor]] = {}
    for group in groups([len(c.tokens) for c in conversations], 0, PASS_TOKENS):
        rows = [torch.from_numpy(conversations[i].tokens).long() for i in group]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        features, last = _with_last(module, tokens.to(module.device), plan)
        for row, i in enumerate(group):
            length = len(conversations[i].tokens)
            parts = {"last": last[row, :length]}
            if features.hidden is not None:
                parts["hidden"] = features.hidden[row, :length]
            if features.keys is not None and features.values is not None:
                parts |= {
                    "keys": features.keys[row, :, :, :length].permute(2, 0, 1, 3),
                    "values": features.values[row, :, :, :length].permute(2, 0, 1, 3),
                }
            by_conversation[i] = {name: part.to("cpu", DTYPE) for name, part in parts.items()}
    offsets = [0]
    for conversation in conversations:
        offsets.append(offsets[-1] + len(conversation.tokens))
    order = range(len(conversations))  # each tensor is dropped as soon as it is joined to the others
    tensors = {name: torch.cat([by_conversation[i].pop(name) for i in order]) for name in list(by_conversation[0])}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"offsets": json.dumps(offsets)})


def _with_last(module: PreTrainedModel, tokens: Tensor, plan: TapPlan) -> tuple[Features, Tensor]:
    """Features of a batch, and what the target's head took in, ``[B, T, H]``."""
    seen: list[Tensor] = []
    head = module.get_output_embeddings()
    with head.register_forward_pre_hook(lambda head, inputs: seen.append(inputs[0])):
        features = batch_features(module, tokens, plan, nowhere(tokens))
    return features, seen[0]
