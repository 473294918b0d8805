"""Where models run, the memory that they take there, and how their weights are held.

- ``uncompressed``: the checkpoint's own dtype where the processor has it. On a CPU bfloat16 (in hardware) stays, all
  else is float32; on a GPU float32 becomes bfloat16.
- ``fp32``, ``fp16``, ``bf16``: single or half precision on any device.
- ``int8``: LLM.int8 (Dettmers et al. 2022), linears only; outliers of the activations stay in half precision.
- ``nf4``: 4-bit NormalFloat (Dettmers et al. 2023), linears only.
- ``int4``, ``int8-weight``, ``int8-dynamic``: PyTorch's CPU kernels, the head too (see ``models/weight_only.py``).

Models quantised by bitsandbytes keep embeddings, norms, attention and the output head in the dtype of
``uncompressed``. A checkpoint that comes quantised is loaded as it is and goes by the name of its method (``awq``,
``gptq``, ``fp8``, ``bnb-nf4``).
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import mmap
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Generator, Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError
from draftgauge.core.parts import COMPRESSIONS, INT4, INT8_DYNAMIC, INT8_WEIGHT, UNCOMPRESSED, WEIGHT_ONLY


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device of this name; without one a GPU where there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise DraftgaugeError(f"there is no device {device!r}: name cpu, cuda, cuda:1 or the like") from error
    there = device_count(chosen.type)
    if chosen.type != "cpu" and (chosen.index or 0) >= there:
        raise DraftgaugeError(f"device {chosen} is not there: torch sees {there} of the kind {chosen.type} here")
    return chosen


def device_count(kind: str) -> int:
    if kind == "cpu":
        return os.cpu_count() or 1
    count = getattr(getattr(torch, kind, None), "device_count", None)
    return 0 if count is None else int(count())


def check_devices(device: str | torch.device | None, count: int) -> None:
    """Refuse more devices of the kind that :func:`choose_device` gives than this machine has."""
    chosen = choose_device(device)
    there = device_count(chosen.type)
    if chosen.index is not None and count > 1:
        raise DraftgaugeError(f"{chosen} is one device, and {count} are asked for: name the kind alone, {chosen.type}")
    if count > there:
        unit = "cores" if chosen.type == "cpu" else "devices"
        raise DraftgaugeError(f"{count} devices are asked for, and this machine has {there} {unit} ({chosen.type})")


def numbered(device: str | torch.device | None, number: int) -> torch.device:
    chosen = choose_device(device)
    return chosen if chosen.type == "cpu" or chosen.index is not None else torch.device(chosen.type, number)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Compute with this many threads on the CPU, and afterwards with as many as before; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def private(name: str) -> Any:
    """What PyTorch keeps for itself, by its name under ``torch``; None in a release that lacks it."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device, with what PyTorch has reserved there and does not use; None where it is not known."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    kib = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kib[0]) * 1024 if device.type == "cpu" and kib else None


def release_unused() -> None:
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def seconds(*devices: torch.device) -> float:
    """The time, once the devices have done what they were given; differences of it are seconds."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()


def upload(tokens: Sequence[int], device: torch.device) -> Tensor:
    """Token ids as int64 ``[n]`` on a device, without waiting for what it is doing."""
    if device.type != "cuda":
        return torch.tensor(tokens, dtype=torch.int64, device=device)
    return torch.tensor(tokens, dtype=torch.int64).pin_memory().to(device, non_blocking=True)


def generator_on(generator: Generator | None, device: torch.device) -> Generator | None:
    if generator is None or generator.device.type == device.type == "cpu" or generator.device == device:
        return generator
    seed = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    return Generator(device).manual_seed(int(seed))


WORTH = 1 << 16  # bytes: of smaller tensors the pages stay
DONTNEED = 4  # MADV_DONTNEED of Linux


def forget(weight: Tensor) -> None:
    """Let go of the memory in which a mapped checkpoint was read; what is needed again is read from the file again.

    Only for weights that nothing has written to. Nothing happens to a tensor that is no part of a mapped file.
    """
    if weight.device.type != "cpu" or weight.nbytes < WORTH:
        return
    page = mmap.PAGESIZE
    begin, end = -(-weight.data_ptr() // page) * page, (weight.data_ptr() + weight.nbytes) // page * page
    with suppress(OSError, AttributeError, ValueError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, *_, name = line.split(maxsplit=5)
            first, last = (int(address, 16) for address in place.split("-"))
            if first <= begin and end <= last and name.endswith(".safetensors"):
                ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), DONTNEED)


def release_freed() -> None:
    """Give memory that was freed in pieces back to the system, where the C library can."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


# Of glibc's mallopt: trimmed from, padding, blocks with memory of their own from which size and how many; while a
# training runs and afterwards, as glibc adapts them where large blocks come and go. They cannot be read.
_OPTIONS = {-1: (2**31 - 1, 2**26), -2: (2**28, 2**17), -3: (2**25, 2**25), -4: (0, 2**16)}


def restart_peak(device: torch.device) -> None:
    """Have :func:`peak_memory_gib` count from here on, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_gib(device: torch.device) -> float:
    """Most memory in use so far, of the GPU or else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit / 2**30


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """Have glibc, where it is, keep large blocks while a CPU trains (8,400 tokens/s, not 6,000)."""
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None) if device.type == "cpu" else None
    options = {} if mallopt is None else _OPTIONS
    for option, (kept, _) in options.items():
        mallopt(option, kept)
    try:
        yield
    finally:
        for option, (_, usual) in options.items():
            mallopt(option, usual)


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
QUANTISED = ("int8", "nf4")

# What bitsandbytes' packed 4-bit format on CPUs takes: blocks of 64 along the input, rows packed by 32.
NF4_INPUT, NF4_OUTPUT = 64, 32

EXPERTS_NDIM = 3  # transformers stacks the matrices of a layer's experts: [experts, out, in]
MOST = 0.5  # of the weights: where more are in experts, a quantised model would be none


def half_precision(dtype: torch.dtype) -> str:
    return next((name for name in ("fp16", "bf16") if DTYPES[name] == dtype), UNCOMPRESSED)


def check_compression(name: str) -> None:
    if name not in COMPRESSIONS:
        raise DraftgaugeError(f"unknown compression {name!r}: choose one of {', '.join(COMPRESSIONS)}")


def method_of(config: Mapping[str, Any], source: object = "the checkpoint") -> str | None:
    """By which method the weights of a checkpoint come quantised, from its ``config.json``; None if they do not."""
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if not quantisation:
        return None
    if not isinstance(quantisation, Mapping):
        raise ModelError(f"the quantization_config of {source} is damaged: it must be an object, not {quantisation!r}")
    named = quantisation.get("quant_method") or "unknown"
    method = str(getattr(named, "value", named))  # of a loaded model an enumeration's
    if method.startswith("bitsandbytes"):
        return (
            "bnb-int8" if quantisation.get("load_in_8bit") else f"bnb-{quantisation.get('bnb_4bit_quant_type', 'fp4')}"
        )
    return method


def label_of(compression: str, method: str | None, source: object) -> str:
    """The name of a checkpoint's compression, asked for as ``compression``; ``method`` is of :func:`method_of`."""
    if compression == method:
        return compression
    check_compression(compression)
    if method is None or compression == UNCOMPRESSED:
        return method or compression
    raise DraftgaugeError(
        f"{source} comes quantised by {method} and is loaded as it is: ask for compression {UNCOMPRESSED}, not "
        f"{compression}"
    )


def activation_dtype(compression: str, device: torch.device, own: torch.dtype | None = None) -> torch.dtype:
    if compression in DTYPES:
        return DTYPES[compression]
    if compression in WEIGHT_ONLY:
        if device.type != "cpu":
            raise DraftgaugeError(f"compression {compression} runs on the CPU, not on {device}: use nf4 or int8 there")
        return torch.bfloat16
    if device.type != "cpu":
        return own if own in (torch.bfloat16, torch.float16) else torch.bfloat16
    return torch.bfloat16 if own == torch.bfloat16 and cpu_has_bfloat16() else torch.float32


@cache
def cpu_has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    names = ["ops.mkldnn._is_mkldnn_bf16_supported"] if torch.backends.mkldnn.is_available() else []
    if platform.machine() in ("x86_64", "AMD64"):
        names = ["cpu._is_avx512_bf16_supported", "cpu._is_amx_tile_supported"]
    return any(supported() for supported in map(private, names) if supported is not None)


def draft_compression(compression: str) -> str:
    """The draft model's: of weights alone as the target's, since it is as slow as what it reads."""
    return compression if compression in DTYPES or compression in WEIGHT_ONLY else UNCOMPRESSED


def lacks_library(compression: str) -> bool:
    return compression in QUANTISED and importlib.util.find_spec("bitsandbytes") is None


def quantization_config(compression: str, dtype: torch.dtype) -> BitsAndBytesConfig | None:
    """What transformers needs to quantise while loading, to compute in a dtype; None where nothing is quantised."""
    if compression not in QUANTISED:
        return None
    if lacks_library(compression):
        raise MissingLibraryError(f"compression {compression} needs bitsandbytes: pip install 'draftgauge[quant]'")
    # LLM.int8 warns at every call that it casts its input to float16, which is how it works.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if compression == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def weight_bytes(compression: str, dtype: torch.dtype) -> float:
    held = {**dict.fromkeys(("int8", INT8_WEIGHT, INT8_DYNAMIC), 1.0), "nf4": 0.55, INT4: 0.625}
    return held.get(compression) or dtype.itemsize


def on_meta(
    config: PreTrainedConfig, trust_remote_code: bool = False, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    as_asked = {} if dtype is None else {"dtype": dtype}
    with torch.device("meta"):
        return auto_class(config).from_config(config, trust_remote_code=trust_remote_code, **as_asked)


def auto_class(config: PreTrainedConfig, source: str | Path = "the model") -> Any:
    """What loads a language model; checkpoints that also see images are loaded whole where they have no other class."""
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return AutoModelForCausalLM  # code of the checkpoint's own
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in auto._model_mapping:
            return auto
    named: Any = getattr(transformers, (config.architectures or [""])[0], None)
    if getattr(named, "config_class", None) is type(config) and issubclass(named, GenerationMixin):
        AutoModelForCausalLM.register(type(config), named, exist_ok=True)  # listed by its whole model alone
        return AutoModelForCausalLM
    raise ModelError(
        f"{source} is of the type {config.model_type}, for which transformers has no language model that writes text: "
        "choose a causal language model, or one that takes images and text"
    )


def check_quantises(
    config: PreTrainedConfig, compression: str, device: torch.device, trust_remote_code: bool = False
) -> None:
    """Refuse before loading what bitsandbytes cannot quantise: experts, and linears that do not pack on a CPU."""
    model = on_meta(config, trust_remote_code)
    sizes = [(weight.numel(), weight.ndim == EXPERTS_NDIM) for weight in model.parameters()]
    share = sum(size for size, of_experts in sizes if of_experts) / sum(size for size, _ in sizes)
    if share > MOST:
        raise ModelError(
            f"{share:.0%} of the weights of this {config.model_type} model are in its experts, not in linear layers: "
            f"{compression} would leave them as they are, so use bf16 or fp16, or a checkpoint that comes quantised"
        )
    head = model.get_output_embeddings()
    for name, module in model.named_modules() if compression == "nf4" and device.type == "cpu" else ():
        if module is head or not isinstance(module, nn.Linear | Conv1D):
            continue
        columns, rows = module.weight.shape if isinstance(module, Conv1D) else module.weight.shape[::-1]
        if columns % NF4_INPUT or rows % NF4_OUTPUT:
            raise ModelError(
                f"nf4 on a CPU needs input widths divisible by {NF4_INPUT} and output widths by {NF4_OUTPUT}, "
                f"but {name} takes {columns} and gives {rows}: use int8, bf16 or {UNCOMPRESSED} for this model"
            )
