"""Where jobs run: one after the other in this process, or on a Ray cluster, by the same function.

A job that fails is reported and the others go on; a job that starts from another one fails with it. On a cluster of
several machines the folder of their results must be one that all of them see.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
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
        return self.error.strip().splitlines()[-1] if self.error else ""


class Job(Protocol):
    """A piece of work that can travel to another process and leaves its results in files. ``after`` names the job whose
    result this one needs: earlier in the list, or done before.
    """

    @property
    def name(self) -> str: ...

    @property
    def after(self) -> str | None: ...

    def run(self, progress: Progress) -> None: ...


Finished = Callable[[Outcome], None]


def execute(
    jobs: Sequence[Job],
    executor: str,
    finished: Finished,
    cpus: int = 1,
    gpus: float = 0,
    progress: Progress = silent,
    retries: int = 0,
) -> list[Outcome]:
    """Run all jobs, those that others come after first; the outcomes in their order.

    ``executor`` is ``local`` or ``ray``: this process's running Ray, else the cluster that ``RAY_ADDRESS`` names, else
    one started here, which ends with this process. ``finished`` is called with each outcome as it comes. Jobs ask Ray
    for ``cpus`` and ``gpus``, and start again ``retries`` times if their worker dies.
    """
    check_executor(executor)
    if executor == "ray" and jobs:
        return _on_ray(jobs, finished, cpus, gpus, retries)
    outcomes: dict[str, Outcome] = {}
    for job in jobs:
        outcomes[job.name] = attempt(job, outcomes.get(job.after or ""), progress)
        finished(outcomes[job.name])
    return list(outcomes.values())


def check_executor(executor: str) -> None:
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


def _on_ray(jobs: Sequence[Job], finished: Finished, cpus: int, gpus: float, retries: int) -> list[Outcome]:
    ray = _import_ray()
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray raises no type of its own where a machine is too busy, or a cluster away
            ray.shutdown()
            raise DraftgaugeError(
                f"Ray did not start ({' '.join(str(error).split())}): try again, correct RAY_ADDRESS, or choose the "
                "executor local"
            ) from error
    _check_resources([node["Resources"] for node in ray.nodes() if node["Alive"]], cpus, gpus)
    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(attempt)
    references: dict[str, Any] = {}
    for job in jobs:  # Ray starts a job once the outcome that it waits for is there
        references[job.name] = remote.remote(job, references.get(job.after or ""))
    names = {reference: name for name, reference in references.items()}
    outcomes: dict[str, Outcome] = {}
    waiting = list(names)
    try:
        while waiting:
            (ready,), waiting = ray.wait(waiting, num_returns=1)
            try:
                outcome = ray.get(ready)
            except ray.exceptions.RayError as error:  # the worker died, e.g. for want of memory
                text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip() or "no reason given"
                reason = f"its Ray worker failed ({type(error).__name__}): {text.splitlines()[-1]}"
                outcome = Outcome(names[ready], f"{text}\n{reason}")
            outcomes[names[ready]] = outcome
            finished(outcome)
    except BaseException:  # Ctrl-C: no job goes on behind the back of who stopped it
        for reference in waiting:
            ray.cancel(reference, force=True)
        raise
    return [outcomes[job.name] for job in jobs]


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError(
            "the executor ray needs Ray, which is not installed: pip install 'draftgauge[study]', "
            "or choose the executor local"
        ) from error
    return ray


def _check_resources(machines: Sequence[Any], cpus: int, gpus: float) -> None:
    # Ray would let a job that fits no machine wait forever.
    if not any(machine.get("CPU", 0) >= cpus and machine.get("GPU", 0) >= gpus for machine in machines):
        listed = "; ".join(f"{machine.get('CPU', 0):g} CPUs and {machine.get('GPU', 0):g} GPUs" for machine in machines)
        raise DraftgaugeError(
            f"a job asks for {cpus} CPUs and {gpus:g} GPUs, but no machine of the cluster has that (they have {listed})"
        )
