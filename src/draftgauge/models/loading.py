"""Load any causal language model of Hugging Face, compressed as asked for, behind the cache contract."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError, is_out_of_memory, warn
from draftgauge.core.parts import UNCOMPRESSED, WEIGHT_ONLY
from draftgauge.models.base import CachedModel
from draftgauge.models.device import (
    COMPRESSIONS,
    activation_dtype,
    auto_class,
    check_quantises,
    choose_device,
    draft_compression,
    label_of,
    method_of,
    on_meta,
    quantization_config,
    release_freed,
)
from draftgauge.models.engines.gguf import GGUF_ENGINES, GgufModel
from draftgauge.models.engines.gguf_library import INSTALL
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.lean_weights import FAMILIES, of_a_family, why_not_lean, why_not_recorded
from draftgauge.models.engines.modules import ModulesModel, holds_states, rollback_cache
from draftgauge.models.engines.openvino import OPENVINO_ENGINES, OpenvinoModel
from draftgauge.models.engines.packing import convert
from draftgauge.models.engines.recurrent import RecurrentModel
from draftgauge.models.engines.static import StaticModel
from draftgauge.models.folder import OF_MTP, check_index, check_types, explained, is_gguf, is_openvino, model_folder
from draftgauge.models.spec import LOADING, no_bars, no_hints, read_configuration
from draftgauge.models.weight_only import quantise

OWN_ENGINES = ("lean", "static", "modules")
ENGINES = ("auto", *OWN_ENGINES, *GGUF_ENGINES, *OPENVINO_ENGINES)
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
RELEASED = 64 << 20  # bytes of weights from which collecting what loading left is worth its time
OF_TOKENIZERS = ("tokeni*", "vocab*", "*.model", "*.tiktoken")


def load_model(
    source: str | Path,
    compression: str = UNCOMPRESSED,
    device: str | torch.device | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
    device_map: str | None = None,
) -> CachedModel:
    """Load a causal language model with an empty cache.

    Args:
        source: a folder, of OpenVINO too, a model id of the hub, a GGUF file, ``reference`` (the bundled pair) or
            ``reference/<part>``.
        compression: one of ``compression.COMPRESSIONS``; a checkpoint that comes quantised is loaded as it is.
        device: where to run; a GPU where there is one, else the CPU.
        engine: ``auto`` for the first that can: static on a GPU, lean elsewhere, modules; of a GGUF file ``gguf``,
            of an OpenVINO folder ``openvino``.
        device_map: spread the layers over all GPUs, as accelerate's ``device_map`` of this name.
    """
    check_engine(engine)
    engines, kind = engines_of(source), made_by_others(source)
    if engine not in ("auto", *engines):
        raise ModelError(
            f"{source} is {kind or 'a model of transformers'}, which {' and '.join(engines)} run, not the engine "
            f"{engine}: GGUF files end in .gguf, and optimum-intel exports OpenVINO folders"
        )
    if kind:
        if compression != UNCOMPRESSED:
            raise ModelError(f"{source} is {kind}, and has its compression: make another instead of {compression}")
        if device is not None and str(device).partition(":")[0] != "cpu":
            raise ModelError(f"{source} is {kind} and runs on the CPU here, not on {device}: leave out --device")
        chosen_engine = engines[0] if engine == "auto" else engine
        if is_gguf(source):
            return GgufModel(Path(source), chosen_engine)
        return OpenvinoModel(Path(source), chosen_engine, trust_remote_code)
    model, dtype = _loaded(source, compression, device, trust_remote_code, device_map)
    size = sum(weight.nbytes for weight in chain(model.parameters(), model.buffers()))
    with clear_memory_errors(f"{source} at compression {compression}", model.device):
        wrapped = wrap(model, engine, owned=True, dtype=dtype)
    if size >= RELEASED:
        release_freed()
    return wrapped


def load_module(
    source: str | Path,
    compression: str = UNCOMPRESSED,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
    device_map: str | None = None,
) -> PreTrainedModel:
    """Load what was not made by others, as transformers' own module; see :func:`load_model`."""
    model, dtype = _loaded(source, compression, device, trust_remote_code, device_map)
    convert(model.parameters(), dtype)
    return model


def _loaded(
    source: str | Path,
    compression: str,
    device: str | torch.device | None,
    trust_remote_code: bool,
    device_map: str | None,
) -> tuple[PreTrainedModel, torch.dtype | None]:
    """A module, and the dtype that its weights are still to be converted to: one after the other takes less memory."""
    if is_openvino(source):
        raise ModelError(f"{source} is an OpenVINO folder, which this cannot read: give what it was exported from")
    chosen = choose_device(device)
    if device_map is not None and device_map not in DEVICE_MAPS:
        raise DraftgaugeError(f"unknown device_map {device_map!r}: choose one of {', '.join(DEVICE_MAPS)}")
    if device_map is not None and device is not None:
        raise DraftgaugeError(f"device_map {device_map} spreads a model over all GPUs: leave out device {device}")
    path = model_folder(source)
    declared = _declared(path)
    method = method_of(declared, source)
    label = label_of(compression, method, source)
    dtype = activation_dtype(label, chosen, _dtype_of(declared))
    quantisation = quantization_config(label, dtype)
    config = read_configuration(path, trust_remote_code)
    check_index(path)
    stays = quantisation is not None or label not in COMPRESSIONS  # quantised weights are made where they stay
    with (
        nullcontext() if sys.stderr.isatty() else no_bars(),
        clear_memory_errors(f"{source} at compression {label}", chosen),
        explained(source),
        no_hints(*LOADING),
    ):
        if quantisation is not None or label in WEIGHT_ONLY:
            check_quantises(config, label, chosen, trust_remote_code)
        widens = dtype == torch.float32 and not stays and config.model_type in FAMILIES
        stored = _only_dtype(path) if widens else None
        if stored and any(made.dtype == stored for made in on_meta(config, trust_remote_code, stored).buffers()):
            stored = None  # what the model computes for itself would be rounded, as Gemma's scale of the embedding
        model, report = auto_class(config, source).from_pretrained(
            str(path),
            config=config,
            dtype=stored or dtype,
            quantization_config=quantisation,
            attn_implementation=attention_of(config),
            device_map=device_map or ({"": chosen} if stays else None),
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
        _check_tensors(report, type(model).__name__, source)
        if method is not None:
            _check_stayed_quantised(model, method, source)
        model = model if stays or device_map else model.to(chosen)
        if label in WEIGHT_ONLY:
            quantise(model, label)
    if stored is None:
        return model, None
    model.config.dtype = dtype
    return model, dtype


def _check_tensors(report: Mapping[str, Any], kind: str, source: str | Path) -> None:
    """Refuse a checkpoint that lacks tensors or has them in other shapes; name those left over, but for MTP heads."""
    extra = sorted(report["unexpected_keys"])
    if report["missing_keys"]:
        drafter = "; it looks like an EAGLE or DFlash drafter, which is given as --drafter" * ("fc.weight" in extra)
        names = ", ".join(sorted(report["missing_keys"])[:3])
        raise ModelError(f"{source} holds no weights for {names}: it is not the checkpoint of a {kind}{drafter}")
    for name, stored, wanted in sorted(report["mismatched_keys"]):
        shapes = f"as {list(stored)}, and its config.json makes it {list(wanted)}"
        raise ModelError(f"{source} holds {name} {shapes}: copy both from one checkpoint")
    heads = tuple({found[0] for found in map(OF_MTP.match, extra) if found})
    if extra := [name for name in extra if not name.startswith(heads)]:
        warn(f"a {kind} does not use {len(extra)} of the tensors of {source}, as {', '.join(extra[:3])}")


def _only_dtype(path: str | Path) -> torch.dtype | None:
    """The half precision that all weights in a folder are stored in; None of any other."""
    found = set()
    for file in Path(path).glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            found |= {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    halves = {"BF16": torch.bfloat16, "F16": torch.float16}
    return halves.get(found.pop()) if len(found) == 1 else None


def made_by_others(source: str | Path) -> str:
    """What a source is that transformers does not run, in words; empty of all others."""
    return "a GGUF file" if is_gguf(source) else "an OpenVINO folder" if is_openvino(source) else ""


def engines_of(source: str | Path) -> tuple[str, ...]:
    """The engines that run a source, the default of files made by others first."""
    return GGUF_ENGINES if is_gguf(source) else OPENVINO_ENGINES if is_openvino(source) else OWN_ENGINES


def _check_stayed_quantised(model: PreTrainedModel, method: str, source: str | Path) -> None:
    """Refuse a checkpoint that transformers turned into plain weights: its runs would be labelled wrongly."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is None or getattr(quantizer.quantization_config, "dequantize", False):
        raise ModelError(
            f"{source} comes quantised by {method}, which transformers does not run here: it would be measured as "
            f"plain {str(model.dtype).removeprefix('torch.')} weights. Install what the method needs, take another "
            "device, or give the unquantised model"
        )
    if any(type(part).__name__ == "Linear4bit" and part.weight.quant_state is None for part in model.modules()):
        raise ModelError(f"{source} says that its weights have 4 bits, and they have not: convert the model again")


def attention_of(config: PreTrainedConfig) -> str | None:
    """Which attention transformers runs; None where that is its own choice.

    Gemma 2 bounds its scores. Before 5.21 transformers runs PyTorch's kernels there, which leave that out.
    """
    return "eager" if config.model_type == "gemma2" else None


def quantisation_method(source: str | Path) -> str | None:
    return None if made_by_others(source) else method_of(_declared(source), source)


def planned_dtype(source: str | Path, compression: str, device: torch.device, role: str = "target") -> torch.dtype:
    held = compression if role == "target" else draft_compression(compression)
    if made_by_others(source):
        return torch.float32
    return activation_dtype(held, device, _dtype_of(_declared(source)))


def _declared(source: str | Path) -> Mapping[str, Any]:
    config, _ = _from_pretrained(PreTrainedConfig, source, "get_config_dict")
    if not isinstance(config, Mapping):
        raise ModelError(f"the config.json of {source} is damaged: it must hold a JSON object; copy the model again")
    check_types(config, f"the config.json of {source}")
    return config


def _dtype_of(declared: Mapping[str, Any]) -> torch.dtype | None:
    text = declared.get("text_config")
    holders = [declared, *([text] if isinstance(text, Mapping) else [])]
    names = [holder.get(key) for holder in holders for key in ("dtype", "torch_dtype")]
    name = next((name for name in names if isinstance(name, str)), "").removeprefix("torch.")
    dtype = getattr(torch, name, None) if name else None
    return dtype if isinstance(dtype, torch.dtype) else None


@contextmanager
def clear_memory_errors(what: str, device: torch.device) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ModelError(
            f"{what} does not fit into the memory of {device}: choose a stronger compression, a smaller model or "
            "another device, or spread it over several GPUs (device_map auto)"
        ) from error


def wrap(
    model: PreTrainedModel, engine: str = "auto", owned: bool = False, dtype: torch.dtype | None = None
) -> CachedModel:
    """A model behind the cache contract.

    ``auto`` takes fixed shapes on a GPU, the lean engine elsewhere, and transformers' modules where neither is known to
    be right. Of an ``owned`` model, which nobody else holds, the lean engine takes the weights over, and converts them
    to ``dtype``.
    """
    check_engine(engine)
    if engine == "auto":
        reason = why_not_lean(model)
        if reason is None:
            engine = "static" if model.device.type == "cuda" and why_not_recorded(model) is None else "lean"
        elif of_a_family(model):
            warn(f"transformers' modules run this {model.config.model_type} model: {reason}")
    if engine in ("lean", "static"):
        return (StaticModel if engine == "static" else LeanModel)(model, owned, dtype)
    convert(model.parameters(), dtype)
    try:
        return (RecurrentModel if any(map(holds_states, rollback_cache(model).layers)) else ModulesModel)(model)
    except (AttributeError, NotImplementedError) as error:  # no count of layers, or no table of tokens
        raise ModelError(
            f"this {model.config.model_type} model is not a decoder that takes in tokens layer by layer "
            f"({' '.join(str(error).split())[:200]}): choose a decoder-only language model"
        ) from error


def engine_at(engine: str, known: str, compression: str, device: torch.device) -> str:
    """The engine that ``auto`` takes for a target at a compression, from the one that it took at another, ``known``."""
    if device.type != "cuda" or engine == "modules" or (known == "int8") == (compression == "int8"):
        return engine
    return "lean" if compression == "int8" else "static"


def load_tokenizer(
    source: str | Path, trust_remote_code: bool = False, role: str = "target"
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; that of a GGUF file from the file itself."""
    if is_gguf(source):
        return _gguf_tokenizer(Path(source))
    path = model_folder(source)
    folder = Path(path)
    if (folder / "config.json").is_file() and not any(list(folder.glob(name)) for name in OF_TOKENIZERS):
        # transformers makes an empty one for some families
        own = " (or --tokenizer FOLDER)" if role == "target" else ""
        raise ModelError(
            f"{source} holds no tokenizer: copy tokenizer.json and tokenizer_config.json of its family there{own}"
        )
    tokenizer: PreTrainedTokenizerBase = _from_pretrained(AutoTokenizer, path, trust_remote_code=trust_remote_code)
    with explained(f"the tokenizer of {source}"):
        tokenizer("a")  # damaged settings show at the first text
    return tokenizer


def _gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    if not path.is_file():
        raise ModelError(f"there is no file {path}: give a GGUF file")
    if importlib.util.find_spec("gguf") is None:
        raise MissingLibraryError(
            f"the tokenizer in {path} is read by the package gguf: {INSTALL}, or give --tokenizer FOLDER"
        )
    try:
        with explained(path):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    except ModelError as error:
        raise ModelError(f"{error}: give --tokenizer FOLDER of the model that the file was converted from") from error
    return tokenizer


def check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise DraftgaugeError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")


def _from_pretrained(auto: Any, source: str | Path, how: str = "from_pretrained", **options: Any) -> Any:
    path = model_folder(source)
    with explained(source):
        return getattr(auto, how)(str(path), **options)
