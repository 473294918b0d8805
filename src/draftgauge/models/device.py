"""Where models run, and the memory that they take there."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from draftgauge.core.errors import DraftgaugeError


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
