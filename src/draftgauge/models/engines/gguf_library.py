"""libllama through ctypes: finding the library, declaring what is used of it, opening files, reading vocabularies.

The functions are declared here so that any build of libllama will do. It is llama-cpp-python's, xllamacpp's, or one
that chooses its kernels at run time, from files beside it. Parameter structures of llama.cpp change without a version
number. A flag written at a wrong offset aborts the process in some later call. So all declared fields are compared with
the library's defaults, and a library that differs is refused.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import MissingLibraryError, ModelError, warn
from draftgauge.core.verb import BUSY, machine_load
from draftgauge.models.tokenizer import difference

INSTALL = "pip install 'draftgauge[gguf]'"
_ERROR_LEVEL = 4
_VALUE_BYTES = 256
_MOST_UNKNOWN = 4
# llama.cpp's names of instruction sets that matter for speed, by what the processor calls them.
SETS = {"avx2": "AVX2", "avx_vnni": "AVX_VNNI", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI"}
SETS |= {"avx512_bf16": "AVX512_BF16", "amx_int8": "AMX_INT8"}
SETS |= {"asimddp": "DOTPROD", "i8mm": "MATMUL_INT8", "sve": "SVE"}  # of ARM
_OTHER_FEATURES = {"LLAMAFILE", "OPENMP", "REPACK", "ACCELERATE", "KLEIDIAI"}  # said beside them
# Turns that a thread of OpenMP waits actively: longer than between two steps of a pass, shorter than between passes,
# where torch drafts or samples on the same cores. On a busy machine they do not wait actively at all.
_SPINS = "20000"
_Q8_0 = "7"  # of general.file_type
ERRORS = [""]  # llama.cpp's own words, the last at the end
_log_callback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


def _fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


# Fields that a newer library has behind those that are declared: it reads them from here, where it wrote its defaults.
_REST = ("rest", c_uint8 * 256)


class ModelParameters(ctypes.Structure):
    """llama_model_params of llama.h."""

    _fields_ = (
        *_fields(c_void_p, "devices", "tensor_buft_overrides"),
        *_fields(c_int32, "n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu"),
        *_fields(c_void_p, "tensor_split", "progress_callback", "progress_callback_user_data", "kv_overrides"),
        *_fields(c_uint8, "vocab_only", "check_tensors", "use_extra_bufts", "no_host"),
        _REST,
    )


MODEL_DEFAULTS = ModelParameters(n_gpu_layers=-1, split_mode=1, load_mode=-1, lazy_mode=1, use_extra_bufts=1)


@cache
def context_parameters(unknown: int) -> type[ctypes.Structure]:
    """llama_context_params of llama.h, with ``unknown`` fields of 8 bytes before its flags.

    llama.cpp adds fields there: none in llama-cpp-python 0.3.36, moe_cache_size since October 2026.
    """

    class ContextParameters(ctypes.Structure):
        _fields_ = (
            *_fields(c_uint32, "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max"),
            *_fields(c_uint32, "n_outputs_max_per_seq"),
            *_fields(c_int32, "n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type"),
            *_fields(c_int32, "attention_type", "flash_attn_type"),
            *_fields(c_float, "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"),
            *_fields(c_float, "yarn_beta_fast", "yarn_beta_slow"),
            *_fields(c_uint32, "yarn_orig_ctx"),
            *_fields(c_float, "defrag_thold"),
            *_fields(c_void_p, "cb_eval", "cb_eval_user_data"),
            *_fields(c_int32, "type_k", "type_v"),
            *_fields(c_void_p, "abort_callback", "abort_callback_data"),
            *_fields(c_size_t, *(f"unknown_{index}" for index in range(unknown))),
            *_fields(c_uint8, "embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified"),
            _REST,
        )

    return ContextParameters


CONTEXT_DEFAULTS: dict[str, float] = {
    **dict.fromkeys(("n_threads", "n_threads_batch"), 4),
    **dict.fromkeys(("rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type"), -1),
    **dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "defrag_thold"), -1),
    **{"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_outputs_max_per_seq": 1},
    **dict.fromkeys(("type_k", "type_v", "offload_kqv", "no_perf", "op_offload", "swa_full"), 1),
}


class Batch(ctypes.Structure):
    """llama_batch of llama.h."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


FUNCTIONS: dict[str, tuple[Any, ...]] = {  # name: result, arguments; the default parameters are declared apart
    "llama_backend_init": (None,),
    "llama_print_system_info": (c_char_p,),
    "llama_log_set": (None, _log_callback, c_void_p),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParameters),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_meta_val_str": (c_int32, c_void_p, c_char_p, c_char_p, c_size_t),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_vocab_get_text": (c_char_p, c_void_p, c_int32),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_free": (None, c_void_p),
    "llama_n_ctx": (c_uint32, c_void_p),
    "llama_n_ctx_seq": (c_uint32, c_void_p),
    "llama_n_ubatch": (c_uint32, c_void_p),
    "llama_n_seq_max": (c_uint32, c_void_p),
    "llama_n_threads": (c_int32, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_batch_init": (Batch, c_int32, c_int32, c_int32),
    "llama_batch_free": (None, Batch),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits": (POINTER(c_float), c_void_p),
}


@cache
def libllama() -> Any:
    """libllama, declared and with its log silent: of LLAMA_CPP_LIB_PATH, llama-cpp-python, xllamacpp or the system.

    Of those that are installed a build that chooses its kernels at run time goes first.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        busy = (load := machine_load()) is not None and load["other_cores"] > BUSY * load["cores"]
        os.environ.setdefault(*(("OMP_WAIT_POLICY", "passive") if busy else ("GOMP_SPINCOUNT", _SPINS)))
    reasons = []
    for path in _libraries():
        try:
            library = ctypes.CDLL(str(path))
            declare(library)
        except (OSError, AttributeError, MissingLibraryError) as error:
            reasons.append(f"{path.name}: {error}")
            continue
        library.llama_log_set(_keep_error, None)
        if dispatches(path.parent):
            library.ggml_backend_load_all_from_path(str(path.parent).encode())
        library.llama_backend_init()
        return library
    said = "; ".join(reasons) or "neither xllamacpp nor llama-cpp-python is installed"
    raise MissingLibraryError(f"GGUF files need a libllama that draftgauge knows ({said}): {INSTALL}")


def _libraries() -> list[Path]:
    """Files of libllama that are installed, found without importing the packages that hold them."""
    installed = []
    for package, inside in (("llama_cpp", "lib"), ("xllamacpp", "")):
        found = find_spec(package)
        installed += [Path(place) / inside for place in (found and found.submodule_search_locations) or ()]
    if server := shutil.which("llama-server"):
        beside = Path(server).resolve().parent
        installed += [beside, beside.parent / "lib"]
    chosen = [Path(os.environ["LLAMA_CPP_LIB_PATH"])] if os.environ.get("LLAMA_CPP_LIB_PATH") else []
    folders = chosen + sorted(installed, key=lambda folder: not dispatches(folder))
    names = ("libllama.dylib", "libllama.so", "libllama.v*.so", "xllamacpp*.so")
    return [path for folder in folders for name in names for path in folder.glob(name)]


def dispatches(folder: Path) -> bool:
    """Whether the build in a folder chooses its kernels at run time, from libraries beside it."""
    return any(folder.glob("libggml-cpu-*.so")) or any(folder.glob("libggml-cpu-*.dylib"))


@cache
def instruction_sets() -> tuple[str, ...]:
    """Instruction sets that the loaded library uses, by llama.cpp's names.

    Warns where the processor has more of those that matter.
    """
    said = libllama().llama_print_system_info().decode(errors="replace")
    used = tuple(name for name in re.findall(r"(\w+) = 1", said) if name not in _OTHER_FEATURES)
    if idle := [name for name in processor_sets() if name not in used]:
        warn(
            f"this build of llama.cpp leaves {', '.join(idle)} of the processor unused, which can make GGUF files "
            "slower: LLAMA_CPP_LIB_PATH=FOLDER names a build that chooses its kernels at run time"
        )
    return used


def processor_sets() -> list[str]:
    """Of ``SETS`` those that the processor has; none where the system does not say."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:  # not Linux
        return []
    return [name for flag, name in SETS.items() if flag in words]


def declare(library: Any) -> None:
    """Declare the functions of a loaded library, after comparing its structures with those known here."""
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_model_default_params.restype = ModelParameters
    if not has_defaults(library.llama_model_default_params(), MODEL_DEFAULTS):
        raise MissingLibraryError("its llama_model_params are others")
    for unknown in range(_MOST_UNKNOWN):
        kind = context_parameters(unknown)
        library.llama_context_default_params.restype = kind
        if has_defaults(library.llama_context_default_params(), kind(**CONTEXT_DEFAULTS)):
            library.llama_init_from_model.restype, library.llama_init_from_model.argtypes = c_void_p, (c_void_p, kind)
            break
    else:
        raise MissingLibraryError("its llama_context_params are others")
    batch = library.llama_batch_init(1, 0, 1)
    arrays = [bool(getattr(batch, name)) for name in ("token", "pos", "n_seq_id", "seq_id", "logits")]
    if batch.n_tokens or batch.embd or not all(arrays):
        raise MissingLibraryError("its llama_batch is another")
    library.llama_batch_free(batch)


def has_defaults(returned: ctypes.Structure, known: ctypes.Structure) -> bool:
    names = [name for name, *_ in known._fields_ if name != "rest"]
    return all(getattr(returned, name) == getattr(known, name) for name in names)


@_log_callback
def _keep_error(level: int, text: bytes, _: Any) -> None:
    if level == _ERROR_LEVEL:
        ERRORS[:] = [text.decode(errors="replace").strip()]


def open_model(path: Path, *, vocabulary_only: bool = False, repack: bool = False) -> Any:
    """A handle on a GGUF file, to be given to ``llama_model_free``.

    With ``repack`` the weights are put in the order that the kernels read fastest, which changes the order of sums.
    """
    if not path.is_file():
        raise ModelError(f"there is no file {path}: give a GGUF file")
    library = libllama()
    parameters = library.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.vocab_only = vocabulary_only
    parameters.use_extra_bufts = repack
    model = library.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise ModelError(
            f"cannot load {path}: {ERRORS[-1] or 'libllama does not say why'}; a drafter of hidden states (EAGLE, "
            "DFlash, MTP) is given as --drafter FOLDER, the checkpoint that the file was converted from"
        )
    return model


def can_repack(path: Path) -> bool:
    """Whether the library may repack the weights of a file: of q8_0 it crashes with AMX."""
    if "AMX_INT8" not in instruction_sets():
        return True
    model = open_model(path, vocabulary_only=True)
    kind = metadata(model, "general.file_type")
    libllama().llama_model_free(model)
    return kind != _Q8_0


def metadata(model: Any, key: str) -> str:
    value = ctypes.create_string_buffer(_VALUE_BYTES)
    length = libllama().llama_model_meta_val_str(model, key.encode(), value, _VALUE_BYTES)
    return value.value.decode(errors="replace") if length >= 0 else ""


def end_tokens_of(model: Any) -> list[int]:
    library = libllama()
    vocabulary = library.llama_model_get_vocab(model)
    return [i for i in range(library.llama_vocab_n_tokens(vocabulary)) if library.llama_vocab_is_eog(vocabulary, i)]


def check_gguf_vocabulary(tokenizer: PreTrainedTokenizerBase, path: Path, role: str) -> None:
    """Refuse a file whose token ids do not mean what the tokenizer's do; ids that only the file has are padding.

    ``role`` is the file's model in the message, "target" or "draft".
    """
    library, model = libllama(), open_model(path, vocabulary_only=True)
    vocabulary = library.llama_model_get_vocab(model)
    count = library.llama_vocab_n_tokens(vocabulary)
    theirs = {i: library.llama_vocab_get_text(vocabulary, i).decode(errors="replace") for i in range(count)}
    library.llama_model_free(model)
    ours = {index: token for token, index in tokenizer.get_vocab().items()}
    differing = sorted(index for index, token in ours.items() if theirs.get(index) != token)
    if differing:
        raise ModelError(
            f"{path} has another vocabulary than the tokenizer ({len(differing)} ids differ: "
            f"{difference(differing, ours, theirs, ('the tokenizer', f'the {role}'))}): give the file's own tokenizer "
            "with --tokenizer, or a file converted from a model of this one"
        )
