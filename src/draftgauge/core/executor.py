"""Where jobs run: one after the other in this process, or on a Ray cluster, by the same function.

A job that fails is reported and the others go on; a job that starts from another one fails with it. On a cluster of
several machines the folder of their results must be one that all of them see.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from draftgauge.core.errors import DraftgaugeError, MissingLibraryError
from draftgauge.core.progress import Progress, silent

EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class Outcome:
    """How a job ended; ``error`` is empty if it went well, else a message and the trace of the failure."""

    job: str
    error: str = ""

    @property
    def message(self) -> str:
        """The last line of the error: what went wrong."""
        return self.error.strip().splitlines()[-1] if self.error else ""


class Job(Protocol):
    """A piece of work that can travel to another process."""

    @property
    def name(self) -> str:
        """Unique among those that run together."""
        ...

    @property
    def after(self) -> str | None:
        """The job whose result this one needs; it stands earlier in the list, unless it was done before."""
        ...

    def run(self, progress: Progress) -> None:
        """Do the work; leaves its results in files."""
        ...


Finished = Callable[[Outcome], None]

_kept: ContextVar[bool] = ContextVar("whether a Ray that is started stays for the next jobs", default=False)


@contextmanager
def shared_ray() -> Iterator[None]:
    """All that is executed inside uses the Ray that its first job on Ray starts: starting one, and the processes of its
    workers, takes seconds. It ends behind the outermost of these blocks.
    """
    if _kept.get() or _ray_runs():
        yield
        return
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)
        if _ray_runs():
            sys.modules["ray"].shutdown()


def _ray_runs() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def execute(
    jobs: Sequence[Job],
    executor: str,
    finished: Finished,
    cpus: int = 1,
    gpus: float = 0,
    progress: Progress = silent,
    retries: int = 0,
) -> list[Outcome]:
    """Run all jobs.

    Args:
        jobs: those that others come after first.
        executor: ``local`` or ``ray``. The running Ray of this process is used, else the cluster that ``RAY_ADDRESS``
            names, else one is started on this machine, for these jobs or those of a :func:`shared_ray`.
        finished: called with each outcome as it comes.
        cpus, gpus: that a job asks Ray for.
        progress: told (what, done, total) by jobs in this process.
        retries: how often a job starts again whose Ray worker died; for jobs that go on where they were.

    Returns:
        The outcomes in the order of the jobs.

    Raises:
        DraftgaugeError: for an unknown executor, or if no machine of the cluster could run a job.
        MissingLibraryError: if Ray is asked for and not installed.
    """
    check_executor(executor)
    if executor == "ray" and jobs:
        return _ray(jobs, finished, cpus, gpus, retries)
    return _local(jobs, finished, progress)


def check_executor(executor: str) -> None:
    """Raise what :func:`execute` would, before any work."""
    if executor not in EXECUTORS:
        raise DraftgaugeError(f"unknown executor {executor!r}: choose one of {', '.join(EXECUTORS)}")
    if executor == "ray":
        _import_ray()


def attempt(job: Job, before: Outcome | None, progress: Progress = silent) -> Outcome:
    """Run one job and catch its failure, whatever it is: the other jobs must go on."""
    if before is not None and before.error:
        return Outcome(job.name, f"not started, because {before.job}, which it starts from, failed: {before.message}")
    try:
        job.run(progress)
    except DraftgaugeError as error:
        return Outcome(job.name, str(error))
    except Exception as error:
        return Outcome(job.name, f"{traceback.format_exc()}\n{type(error).__name__}: {error}")
    return Outcome(job.name)


def _local(jobs: Sequence[Job], finished: Finished, progress: Progress) -> list[Outcome]:
    outcomes: dict[str, Outcome] = {}
    for job in jobs:
        outcomes[job.name] = attempt(job, outcomes.get(job.after or ""), progress)
        finished(outcomes[job.name])
    return list(outcomes.values())


def _ray(jobs: Sequence[Job], finished: Finished, cpus: int, gpus: float, retries: int) -> list[Outcome]:
    ray = _import_ray()
    started_here = not ray.is_initialized()
    if started_here:
        _start(ray)
    try:
        _check_resources(ray.nodes(), cpus, gpus)
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(attempt)
        references: dict[str, Any] = {}
        for job in jobs:  # Ray starts a job once the outcome that it waits for is there
            references[job.name] = remote.remote(job, references.get(job.after or ""))
        names = {reference: name for name, reference in references.items()}
        outcomes: dict[str, Outcome] = {}
        waiting = list(names)
        while waiting:
            (ready,), waiting = ray.wait(waiting, num_returns=1)
            try:
                outcome = ray.get(ready)
            except ray.exceptions.RayError as error:  # the worker died, e.g. for want of memory
                outcome = Outcome(names[ready], _worker_error(error))
            outcomes[names[ready]] = outcome
            finished(outcome)
        return [outcomes[job.name] for job in jobs]
    finally:
        if started_here and not _kept.get():
            ray.shutdown()


def _start(ray: Any) -> None:
    try:
        ray.init(log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises no type of its own where a machine is too busy, or a cluster away
        ray.shutdown()
        reason = " ".join(str(error).split())
        raise DraftgaugeError(
            f"Ray did not start ({reason}): try again, mend RAY_ADDRESS, or choose the executor local"
        ) from error


def _worker_error(error: Exception) -> str:
    """What Ray says of a job that it could not bring to its end, without the colours of a terminal; the gist last."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    reason = text.splitlines()[-1] if text else "no reason given"
    return f"{text}\nits Ray worker failed ({type(error).__name__}): {reason}"


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError(
            "the executor ray needs Ray, which is not installed: pip install 'draftgauge[study]', "
            "or choose the executor local"
        ) from error
    return ray


def _check_resources(nodes: Sequence[Any], cpus: int, gpus: float) -> None:
    """A job that fits no machine would wait forever."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(r.get("CPU", 0) >= cpus and r.get("GPU", 0) >= gpus for r in resources):
        resources_text = "; ".join(f"{r.get('CPU', 0):g} CPUs and {r.get('GPU', 0):g} GPUs" for r in resources)
        raise DraftgaugeError(
            f"a job asks for {cpus} CPUs and {gpus:g} GPUs, but no machine of the cluster has that (they have "
            f"{resources_text})"
        )
