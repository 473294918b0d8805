"""Load any causal language model of Hugging Face, compressed as asked for, behind the cache contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.models.base import CachedModel
from draftgauge.models.compression import activation_dtype, check_compression, check_nf4_widths, quantization_config
from draftgauge.models.device import choose_device
from draftgauge.models.fingerprint import fingerprint
from draftgauge.models.lean import LeanModel
from draftgauge.models.lean_weights import why_not_lean
from draftgauge.models.modules_model import ModulesModel
from draftgauge.models.reference import resolve_source
from draftgauge.models.vocabulary import check_same_vocabulary, end_tokens

__all__ = ["ENGINES", "check_same_vocabulary", "end_tokens", "fingerprint", "load_model", "load_tokenizer", "wrap"]

ENGINES = ("auto", "lean", "modules")
SMALL_BYTES = 1 << 28


def load_model(
    source: str | Path,
    compression: str = "none",
    device: str | torch.device | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
    part: str = "target",
) -> CachedModel:
    """Load a causal language model with an empty cache.

    Args:
        source: a folder, a model id of the hub, ``reference`` (the bundled pair) or ``reference/<part>``.
        compression: one of ``compression.COMPRESSIONS``.
        device: where to run; a GPU where there is one, else the CPU.
        engine: ``lean`` for our own functions, ``modules`` for transformers' modules, ``auto`` for lean where it can.
        trust_remote_code: run Python code that comes with the model. Off unless asked for.
        part: of the bundled pair, if ``source`` is ``reference``.

    Raises:
        DraftgaugeError: for an unknown compression or engine.
        MissingLibraryError: if the compression needs a library that is not installed.
        ModelError: if the model cannot be found, read or run, or has no safetensors weights.
    """
    check_compression(compression)
    _check_engine(engine)
    chosen = choose_device(device)
    quantisation = quantization_config(compression, chosen)
    path = resolve_source(source, part)
    config = _from_pretrained(AutoConfig, path, trust_remote_code=trust_remote_code)
    if compression == "nf4" and chosen.type == "cpu":
        check_nf4_widths(config, trust_remote_code)
    with _bars_only_for_large(path):
        model, report = _from_pretrained(
            AutoModelForCausalLM,
            path,
            config=config,
            dtype=activation_dtype(compression, chosen),
            quantization_config=quantisation,
            device_map={"": chosen} if quantisation is not None else None,  # quantised weights are made where they stay
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    if report["missing_keys"]:
        names = ", ".join(sorted(report["missing_keys"])[:3])
        raise ModelError(f"{source} holds no weights for {names}: it is not the checkpoint of a {type(model).__name__}")
    return wrap(model if quantisation is not None else model.to(chosen), engine)


def wrap(model: PreTrainedModel, engine: str = "auto") -> CachedModel:
    """Put a loaded transformers model behind the cache contract.

    Raises:
        ModelError: if ``engine`` is ``lean`` and the model is not of its families.
    """
    _check_engine(engine)
    lean = engine == "lean" or (engine == "auto" and why_not_lean(model) is None)
    return LeanModel(model) if lean else ModulesModel(model)


def load_tokenizer(
    source: str | Path, trust_remote_code: bool = False, part: str = "target"
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        ModelError: if there is none.
    """
    tokenizer: PreTrainedTokenizerBase = _from_pretrained(
        AutoTokenizer, resolve_source(source, part), trust_remote_code=trust_remote_code
    )
    return tokenizer


@contextmanager
def _bars_only_for_large(source: str | Path) -> Iterator[None]:
    """Keep transformers' progress bars off while a small model on disk is loaded, which takes no time to watch."""
    small = (
        Path(source).is_dir() and sum(file.stat().st_size for file in Path(source).glob("*.safetensors")) < SMALL_BYTES
    )
    if not small or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise DraftgaugeError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")


def _from_pretrained(auto: Any, source: str | Path, **options: Any) -> Any:
    """``auto.from_pretrained`` whose failures say what to do."""
    looks_local = isinstance(source, Path) or source.startswith((".", "/")) or source.count("/") > 1
    if looks_local and not Path(source).is_dir():
        raise ModelError(
            f"there is no model folder {source}: give the folder that save_pretrained wrote, or a model id of the hub"
        )
    try:
        return auto.from_pretrained(str(source), **options)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"cannot load {source}: {_advice(error)}") from error


def _advice(error: Exception) -> str:
    """First lines of a loading error, with what to do where transformers does not say it."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return (
            "it comes with Python code of its own, which runs only where trust_remote_code is asked for; "
            "read that code first"
        )
    if "safetensors" in text:
        return (
            f"only safetensors weights are read, and it has none that can be ({text}); convert it with save_pretrained"
        )
    return text
