"""The gguf engine: a GGUF file of any architecture and quantisation, run by llama.cpp in this process.

In the engine ``gguf`` keys and values are float32 and attention is computed plainly. Logits agree with transformers' up
to the rounding of differently ordered sums. The engine ``gguf-fast`` has llama.cpp's own defaults (float16 keys and
values, flash attention) and repacks weights. It is faster on long texts, and off by some thousandths.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftgauge.core.errors import MissingLibraryError, ModelError
from draftgauge.models.base import ModelSpec
from draftgauge.models.engines.gguf_library import (
    ERRORS,
    INSTALL,
    Batch,
    can_repack,
    end_tokens_of,
    instruction_sets,
    libllama,
    metadata,
    open_model,
)
from draftgauge.models.spec import check_context, check_starts

EXACT, FAST = GGUF_ENGINES = ("gguf", "gguf-fast")
LONGEST = 8192  # tokens of context at most: all cells are allocated at once, whatever the file was trained for
BRANCHES = 64  # that grow together, each a sequence of its own; libllama takes 256 at most, the main one included
BRANCH_CELLS = BRANCHES * 64  # cells for them beside the context's
BATCH = 512  # tokens a pass
_F32, _F16 = 0, 1  # of ggml's types
_NO_FLASH, _AUTO_FLASH = 0, -1
_NO_ROOM = 1  # of llama_decode's answers

Ints = NDArray[np.int32]


class GgufModel:
    """:class:`~draftgauge.models.base.CachedModel` over libllama, on the CPU.

    The main text is sequence 0 of a unified cache; a branch is a sequence that shares the cells of its prefix.
    """

    module: Any = None  # there is no transformers model behind it

    def __init__(self, path: Path, engine: str = EXACT) -> None:
        """Load a GGUF file for the engine "gguf" or "gguf-fast"."""
        repack = engine == FAST and can_repack(path)
        self._model = open_model(path, repack=repack)
        self._llama = libllama()
        self.eos_token_id = end_tokens_of(self._model)
        vocabulary = self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(self._model))
        takes = self._llama.llama_model_n_ctx_train(self._model)
        context, reason = min(takes, LONGEST), ""
        if takes > LONGEST:
            reason = f"draftgauge gives GGUF files {LONGEST} of the {takes} that they take, all of it allocated at once"
        family = metadata(self._model, "general.architecture")
        device = torch.device("cpu")
        kernels = f"{', '.join(instruction_sets())}; weights {'repacked' if repack else 'as in the file'}"
        spec = ModelSpec(vocabulary, context, device, torch.float32, family, engine, "", reason, BRANCHES)
        self.spec = replace(spec, kernels=kernels)
        self._context = self._open_context(path)
        self._memory = self._llama.llama_get_memory(self._context)
        self._batch = _Batch()
        self._places = np.arange(context, dtype=np.int32)
        self._length = 0
        self._branches: _Branches | None = None

    @property
    def length(self) -> int:
        return self._length

    def reset(self) -> None:
        self._branches = None
        self._llama.llama_memory_clear(self._memory, False)
        self._length = 0

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self._length, (length, self._length)
        self._close_branches()
        if length == self._length:
            return
        if not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise ModelError(
                f"the cache of a {self.spec.family} model cannot be rolled back, which speculation needs: choose one "
                "with attention in every layer"
            )
        self._length = length

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens ``[k]`` and return float32 logits ``[k, vocabulary]``, or of the last token only."""
        check_context(self.spec, self._length + len(tokens))
        self._close_branches()
        ids, rows = tokens.numpy(), []
        for begin in range(0, len(ids), BATCH):
            chunk = ids[begin : begin + BATCH]
            last = begin + len(chunk) == len(ids)
            asked = int(last) if last_only else len(chunk)
            self._batch.fill(chunk, self._places[self._length : self._length + len(chunk)], 0, asked)
            self._decode()
            self._length += len(chunk)
            if asked:
                rows.append(self._logits(asked))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def branches(self, starts: Tensor) -> _Branches:
        check_starts(int(starts.min()), int(starts.max()), self._length)
        assert len(starts) <= self.spec.branches, (len(starts), self.spec.branches)
        self._close_branches()
        self._branches = _Branches(self, starts.numpy().astype(np.int32))
        return self._branches

    def _close_branches(self) -> None:
        if self._branches is not None:
            self._branches.keep(torch.empty(0, dtype=torch.int64))
            self._branches = None

    def _open_context(self, path: Path) -> Any:
        exact = self.spec.engine == EXACT
        parameters = self._llama.llama_context_default_params()
        parameters.n_ctx = self.spec.context + BRANCH_CELLS
        parameters.n_batch = parameters.n_ubatch = BATCH
        parameters.n_seq_max = BRANCHES + 1
        parameters.n_threads = parameters.n_threads_batch = torch.get_num_threads()
        parameters.type_k = parameters.type_v = _F32 if exact else _F16
        parameters.flash_attn_type = _NO_FLASH if exact else _AUTO_FLASH
        parameters.kv_unified = True
        parameters.offload_kqv = parameters.op_offload = False
        parameters.no_perf = True
        context = self._llama.llama_init_from_model(self._model, parameters)
        if not context:
            raise ModelError(f"cannot run {path}: {ERRORS[-1] or 'libllama does not say why'}")
        # That libllama understood the parameters: without a unified cache, copying a sequence would abort the process.
        cells, llama = self._llama.llama_n_ctx(context), self._llama
        got = (llama.llama_n_ubatch(context), llama.llama_n_seq_max(context), llama.llama_n_threads(context))
        wanted = (BATCH, BRANCHES + 1, parameters.n_threads)
        if got != wanted or cells < parameters.n_ctx or llama.llama_n_ctx_seq(context) != cells:
            self._llama.llama_free(context)
            raise MissingLibraryError(f"this libllama takes its parameters otherwise than draftgauge: {INSTALL}")
        return context

    def _decode(self) -> None:
        answer = self._llama.llama_decode(self._context, self._batch.batch)
        if answer == _NO_ROOM:
            raise ModelError("the cache has no room for so many branches: ask for shorter drafts (--gamma-max)")
        if answer:
            raise ModelError(f"llama.cpp cannot decode ({answer}): {ERRORS[-1] or 'it does not say why'}")

    def _logits(self, rows: int) -> Tensor:
        """A copy of the logits ``[rows, vocabulary]`` of the last pass: the next one overwrites them."""
        pointer = self._llama.llama_get_logits(self._context)
        return torch.from_numpy(np.ctypeslib.as_array(pointer, (rows, self.spec.vocabulary)).copy())

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._llama.llama_free(self._context)
        if getattr(self, "_model", None):
            self._llama.llama_model_free(self._model)


class _Branches:
    """:class:`~draftgauge.models.base.BranchSession` of the gguf engine: branch ``i`` is sequence ``i + 1``."""

    def __init__(self, model: GgufModel, starts: Ints) -> None:
        self._model = model
        self._positions = starts
        self._sequences = np.arange(1, len(starts) + 1, dtype=np.int32)
        for sequence, start in zip(self._sequences.tolist(), starts.tolist(), strict=True):
            model._llama.llama_memory_seq_cp(model._memory, 0, sequence, 0, start)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        model, count = self._model, len(tokens)
        assert model._branches is self, "the branches ended with the model's last forward, truncate or reset"
        check_context(model.spec, int(self._positions.max()) + 1)
        model._batch.fill(tokens.numpy(), self._positions, self._sequences, count)
        model._decode()
        self._positions = self._positions + 1
        return model._logits(count)

    def keep(self, rows: Tensor) -> None:
        kept, model = rows.numpy(), self._model
        for sequence in np.setdiff1d(self._sequences, self._sequences[kept]).tolist():
            model._llama.llama_memory_seq_rm(model._memory, sequence, -1, -1)
        self._sequences, self._positions = self._sequences[kept], self._positions[kept]


class _Batch:
    """A ``llama_batch`` of up to :data:`BATCH` tokens over arrays that stay in place."""

    def __init__(self) -> None:
        self._tokens = np.zeros(BATCH, np.int32)
        self._positions = np.zeros(BATCH, np.int32)
        self._sequences = np.zeros(BATCH, np.int32)
        self._counts = np.ones(BATCH, np.int32)  # of sequences that a token belongs to
        self._asked = np.zeros(BATCH, np.int8)
        ints, address = ctypes.POINTER(ctypes.c_int32), self._sequences.ctypes.data
        self._owners = (ints * BATCH)(*(ctypes.cast(address + 4 * index, ints) for index in range(BATCH)))
        self.batch = Batch(
            0,
            self._tokens.ctypes.data_as(ints),
            None,
            self._positions.ctypes.data_as(ints),
            self._counts.ctypes.data_as(ints),
            ctypes.cast(self._owners, ctypes.POINTER(ints)),
            self._asked.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, tokens: NDArray[np.int64], positions: Ints, sequences: Ints | int, asked: int) -> None:
        """``asked``: of how many of the last tokens logits are asked for."""
        count = len(tokens)
        self.batch.n_tokens = count
        self._tokens[:count], self._positions[:count], self._sequences[:count] = tokens, positions, sequences
        self._asked[:count] = np.arange(count) >= count - asked
