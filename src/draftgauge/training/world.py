"""The processes of one training: each takes its part of every step, and gradients are added up before every update.

There is one process a device, as torchrun starts them, on one machine or on several. Each reads ``RANK``,
``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
PATIENCE = timedelta(days=1)  # the others wait while the first process lets the target answer


@dataclass(frozen=True)
class World:
    """Which of how many processes this one is.

    Attributes:
        local_rank: of this process on its machine: the number of its device.
        local_size: number of processes on its machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one device by their sums over all processes, in one all-reduce."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def lead_first(self) -> Iterator[None]:
        """Have the first process do something before all others, which then find it done."""
        if not self.leads:
            self.wait()
        yield
        if self.leads:
            self.wait()


def world_here() -> World:
    """The processes that this one was started among; alone without the variables of torchrun."""
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if len(given) < len(VARIABLES):
        return World()
    try:
        rank, size, local_rank, local_size = map(int, given.values())
    except ValueError as error:
        raise DraftgaugeError(f"{', '.join(VARIABLES)} must be numbers, as torchrun sets them: {error}") from error
    if not 0 <= local_rank <= rank < size or not local_rank < local_size <= size:
        shown = ", ".join(f"{name}={value}" for name, value in given.items())
        raise DraftgaugeError(f"{shown} do not go together: start the processes with torchrun")
    return World(rank, size, local_rank, local_size)


@contextmanager
def joined(world: World, device: torch.device) -> Iterator[None]:
    """Context in which the processes of a world can all-reduce and synchronise: NCCL on GPUs, gloo on CPUs."""
    if world.size == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=world.rank, world_size=world.size, timeout=PATIENCE)
    yield
    dist.destroy_process_group()  # not after an error: then the processes just end
