"""Load any causal language model of Hugging Face, compressed as asked for, behind the cache contract."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError, is_out_of_memory
from draftgauge.models.base import CachedModel
from draftgauge.models.compression import (
    COMPRESSIONS,
    activation_dtype,
    check_quantises,
    label_of,
    method_of,
    quantization_config,
)
from draftgauge.models.device import choose_device
from draftgauge.models.fingerprint import fingerprint
from draftgauge.models.gguf import EXACT, GGUF_ENGINES, GgufModel
from draftgauge.models.gguf_library import INSTALL, is_gguf
from draftgauge.models.lean import LeanModel
from draftgauge.models.lean_families import of_a_family, why_not_lean, why_not_recorded
from draftgauge.models.modules_model import ModulesModel
from draftgauge.models.quiet import no_bars
from draftgauge.models.reference import resolve_source
from draftgauge.models.static_model import StaticModel
from draftgauge.models.vocabulary import check_same_vocabulary, end_tokens

__all__ = [
    "ENGINES",
    "attention_of",
    "check_same_vocabulary",
    "end_tokens",
    "fingerprint",
    "load_model",
    "load_tokenizer",
    "wrap",
]

ENGINES = ("auto", "lean", "static", "modules", *GGUF_ENGINES)
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
SMALL_BYTES = 1 << 28
OF_TOKENIZERS = ("tokeni*", "vocab*", "*.model", "*.tiktoken")
OF_MODELS = ("config.json", "tokenizer_config.json", "tokenizer.json")
"""Files of which a folder of a model or a tokenizer has one."""


def load_model(
    source: str | Path,
    compression: str = "none",
    device: str | torch.device | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
    part: str = "target",
    device_map: str | None = None,
) -> CachedModel:
    """Load a causal language model with an empty cache.

    Args:
        source: a folder, a model id of the hub, ``reference`` (the bundled pair) or ``reference/<part>``.
        compression: one of ``compression.COMPRESSIONS``; a checkpoint that comes quantised is loaded as it is.
        device: where to run; a GPU where there is one, else the CPU.
        engine: ``lean`` for our own functions, ``static`` for the same with fixed shapes (CUDA graphs), ``modules`` for
            transformers' modules, ``auto`` for the first that can: static on a GPU, lean elsewhere, modules; of a GGUF
            file ``gguf`` (what ``auto`` is there) or ``gguf-fast``.
        trust_remote_code: run Python code that comes with the model. Off unless asked for.
        part: of the bundled pair, if ``source`` is ``reference``.
        device_map: spread the layers over all GPUs, as accelerate's ``device_map`` of this name; they then run as
            transformers' modules.

    Raises:
        DraftgaugeError: for an unknown compression, engine or device.
        MissingLibraryError: if the compression needs a library that is not installed.
        ModelError: if the model cannot be found, read or run, does not fit into memory, or has no safetensors weights.
    """
    _check_engine(engine)
    if is_gguf(source):
        return _load_gguf(Path(source), compression, device, engine)
    if engine in GGUF_ENGINES:
        raise ModelError(
            f"the engine {engine} runs GGUF files, and {source} is not one: give a file that ends in .gguf"
        )
    chosen = choose_device(device)
    check_device_map(device_map, device)
    path = resolve_source(source, part)
    label = label_of(compression, quantisation_method(path), source)
    quantisation = quantization_config(label, chosen)
    config = _from_pretrained(AutoConfig, path, trust_remote_code=trust_remote_code)
    if quantisation is not None:
        check_quantises(config, label, chosen, trust_remote_code)
    stays = quantisation is not None or label not in COMPRESSIONS  # quantised weights are made where they stay
    with _bars_only_where_they_tell(path), clear_memory_errors(f"{source} at compression {label}", chosen):
        model, report = _from_pretrained(
            AutoModelForCausalLM,
            path,
            config=config,
            dtype=activation_dtype(label, chosen),
            quantization_config=quantisation,
            attn_implementation=attention_of(config),
            device_map=device_map or ({"": chosen} if stays else None),
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
        if report["missing_keys"]:
            names = ", ".join(sorted(report["missing_keys"])[:3])
            raise ModelError(
                f"{source} holds no weights for {names}: it is not the checkpoint of a {type(model).__name__}"
            )
        return wrap(model if stays or device_map else model.to(chosen), engine)


def attention_of(config: PreTrainedConfig) -> str | None:
    """Which attention transformers runs; None where that is its own choice.

    Gemma 2 bounds its scores. Before 5.21 transformers runs PyTorch's kernels there, which leave that out.
    """
    return "eager" if config.model_type == "gemma2" else None


def quantisation_method(source: str | Path) -> str | None:
    """By which method a checkpoint comes quantised, see :func:`~draftgauge.models.compression.method_of`."""
    if is_gguf(source):
        return None
    config, _ = _from_pretrained(PreTrainedConfig, source, "get_config_dict")
    return method_of(config)


def check_device_map(device_map: str | None, device: str | torch.device | None) -> None:
    """Raise ``DraftgaugeError`` for a map that is unknown or contradicts a device."""
    if device_map is None:
        return
    if device_map not in DEVICE_MAPS:
        raise DraftgaugeError(f"unknown device_map {device_map!r}: choose one of {', '.join(DEVICE_MAPS)}")
    if device is not None:
        raise DraftgaugeError(f"device_map {device_map} spreads a model over all GPUs: leave out device {device}")


@contextmanager
def clear_memory_errors(what: str, device: torch.device) -> Iterator[None]:
    """Say what did not fit where memory runs out."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ModelError(
            f"{what} does not fit into the memory of {device}: choose a stronger compression, a smaller model or "
            "another device, or spread it over several GPUs (device_map auto)"
        ) from error


def _load_gguf(path: Path, compression: str, device: str | torch.device | None, engine: str) -> CachedModel:
    if compression != "none":
        raise ModelError(f"{path} is quantised already: give another file instead of compression {compression}")
    if device is not None and torch.device(device).type != "cpu":
        raise ModelError(f"GGUF files run on the CPU here, not on {device}: leave out --device")
    if engine not in ("auto", *GGUF_ENGINES):
        raise ModelError(f"{path} is a GGUF file, which {' and '.join(GGUF_ENGINES)} run, not the engine {engine}")
    return GgufModel(path, EXACT if engine == "auto" else engine)


def wrap(model: PreTrainedModel, engine: str = "auto") -> CachedModel:
    """Put a loaded transformers model behind the cache contract.

    Raises:
        ModelError: if ``engine`` is ``lean`` or ``static`` and the model is not of their families.
    """
    _check_engine(engine)
    if engine == "auto":
        engine = _choose_engine(model)
    engines: dict[str, type[LeanModel] | type[ModulesModel]] = {"static": StaticModel, "lean": LeanModel}
    return engines.get(engine, ModulesModel)(model)


def _choose_engine(model: PreTrainedModel) -> str:
    """Fixed shapes on a GPU, the lean engine elsewhere; transformers' modules where neither is known to be right."""
    reason = why_not_lean(model)
    if reason is None:
        return "static" if model.device.type == "cuda" and why_not_recorded(model) is None else "lean"
    if of_a_family(model):
        warnings.warn(f"transformers' modules run this {model.config.model_type} model: {reason}", stacklevel=4)
    return "modules"


def load_tokenizer(
    source: str | Path, trust_remote_code: bool = False, part: str = "target"
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; that of a GGUF file from the file itself.

    Raises:
        ModelError: if there is none.
        MissingLibraryError: for a GGUF file, if what reads its tokenizer is not installed.
    """
    if is_gguf(source):
        return _gguf_tokenizer(Path(source))
    path = resolve_source(source, part)
    if _lacks_tokenizer(Path(path)):  # transformers makes an empty one for some families
        own = " (or --tokenizer FOLDER)" if part == "target" else ""
        raise ModelError(
            f"{source} holds no tokenizer: copy tokenizer.json and tokenizer_config.json of its family there{own}"
        )
    tokenizer: PreTrainedTokenizerBase = _from_pretrained(AutoTokenizer, path, trust_remote_code=trust_remote_code)
    return tokenizer


def _lacks_tokenizer(folder: Path) -> bool:
    """Whether a model's folder is without any tokenizer's file."""
    return (folder / "config.json").is_file() and not any(list(folder.glob(name)) for name in OF_TOKENIZERS)


def _gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    if not path.is_file():
        raise ModelError(f"there is no file {path}: give a GGUF file")
    if importlib.util.find_spec("gguf") is None:
        raise MissingLibraryError(
            f"the tokenizer in {path} is read by the package gguf: {INSTALL}, or give --tokenizer FOLDER"
        )
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ModelError(
            f"transformers cannot read the tokenizer in {path} ({_advice(error)}): give --tokenizer FOLDER of the "
            "model that it was converted from"
        ) from error
    return tokenizer


def _bars_only_where_they_tell(source: str | Path) -> AbstractContextManager[None]:
    """Transformers' progress bars off in a file or pipe, and for a small model on disk, which takes no time to load."""
    small = (
        Path(source).is_dir() and sum(file.stat().st_size for file in Path(source).glob("*.safetensors")) < SMALL_BYTES
    )
    return no_bars() if small or not sys.stderr.isatty() else nullcontext()


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise DraftgaugeError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")


def _from_pretrained(auto: Any, source: str | Path, how: str = "from_pretrained", **options: Any) -> Any:
    """``auto.from_pretrained``, or another of its functions, whose failures say what to do."""
    looks_local = isinstance(source, Path) or source.startswith((".", "/")) or source.count("/") > 1
    if looks_local and not Path(source).is_dir():
        raise ModelError(
            f"there is no model folder {source}: give the folder that save_pretrained wrote, or a model id of the hub"
        )
    if Path(source).is_dir() and not any((Path(source) / name).is_file() for name in OF_MODELS):
        raise ModelError(f"{source} is not a model folder, it has no config.json{_instead(Path(source))}")
    try:
        return getattr(auto, how)(str(source), **options)
    except ImportError as error:
        raise MissingLibraryError(f"cannot load {source}: {' '.join(str(error).split())}") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"cannot load {source}: {_advice(error)}") from error


def _instead(folder: Path) -> str:
    """What a folder that is no model's is, where it can be told."""
    if (folder / "drafter.json").is_file():
        return "; it is a trained drafter: give it as --drafter"
    if (folder / "manifest.json").is_file():
        return "; it is a recorded run"
    return ""


def _advice(error: Exception) -> str:
    """First lines of a loading error, with what to do where transformers does not say it."""
    text = " ".join(str(error).split())
    if "connect to 'https" in text:
        return "there is no such folder here, and the model hub cannot be reached: check the name, or the connection"
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
