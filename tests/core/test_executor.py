"""Executors: failures stay with their cell, what depends on them is not started, and both kinds do the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import study_jobs
from draftgauge.core import executor
from draftgauge.core.errors import DraftgaugeError, MissingLibraryError
from draftgauge.core.executor import Outcome, execute
from launching import ray_cluster
from study_jobs import FileJob


def jobs(folder: Path) -> list[FileJob]:
    return [
        FileJob("first", folder),
        FileJob("user-error", folder, fails="user"),
        FileJob("bug", folder, fails="bug"),
        FileJob("second", folder, after="first"),
        FileJob("orphan", folder, after="bug"),
        FileJob("done-before", folder, after="first"),
    ]


def check(outcomes: list[Outcome], told: list[Outcome], folder: Path) -> None:
    assert [outcome.job for outcome in outcomes] == [job.name for job in jobs(folder)]
    assert sorted(outcome.job for outcome in told) == sorted(outcome.job for outcome in outcomes)
    errors = {outcome.job: outcome.message for outcome in outcomes if outcome.error}
    assert errors["user-error"] == "something the user can put right"
    assert errors["bug"] == "KeyError: 'a bug'"
    assert "bug" in errors["orphan"]
    assert "not started" in errors["orphan"]
    assert sorted(errors) == ["bug", "orphan", "user-error"]
    assert sorted(path.name for path in folder.iterdir()) == ["done-before", "first", "second"]


def test_local(tmp_path: Path) -> None:
    told: list[Outcome] = []
    seen: list[str] = []
    outcomes = execute(jobs(tmp_path), "local", told.append, progress=lambda what, done, total: seen.append(what))
    check(outcomes, told, tmp_path)
    assert seen == ["first", "second", "done-before"]
    assert "Traceback" in next(o for o in outcomes if o.job == "bug").error


def test_a_ray_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(**options: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    stopped: list[bool] = []
    ray = SimpleNamespace(is_initialized=lambda: False, init=busy, shutdown=lambda: stopped.append(True))
    monkeypatch.setattr(executor, "_import_ray", lambda: ray)
    with pytest.raises(
        DraftgaugeError, match=r"Ray did not start \(The current node timed out during startup\.\): try"
    ):
        execute(jobs(tmp_path), "ray", lambda outcome: None)
    assert stopped


def test_a_stop_is_no_failure(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(jobs(tmp_path), "local", lambda outcome: None, progress=stop)


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingLibraryError, match=r"draftgauge\[study\]"):
        execute(jobs(tmp_path), "ray", lambda outcome: None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A local Ray cluster of two CPUs."""
    with ray_cluster(cpus=2) as ray:
        ray.cloudpickle.register_pickle_by_value(study_jobs)  # the workers do not see the tests' folder
        yield ray


@pytest.mark.slow
def test_ray(cluster: object, tmp_path: Path) -> None:
    told: list[Outcome] = []
    check(execute(jobs(tmp_path), "ray", told.append), told, tmp_path)


@pytest.mark.slow
def test_a_worker_that_dies_is_named_and_the_others_go_on(cluster: object, tmp_path: Path) -> None:
    work = [
        FileJob("dies", tmp_path, fails="death"),
        FileJob("lives", tmp_path),
        FileJob("orphan", tmp_path, after="dies"),
    ]
    dies, lives, orphan = execute(work, "ray", lambda outcome: None)
    assert "worker" in dies.message
    assert not lives.error
    assert orphan.error
    assert [path.name for path in tmp_path.iterdir()] == ["lives"]


@pytest.mark.slow
def test_a_job_that_fits_no_machine_is_refused(cluster: object, tmp_path: Path) -> None:
    with pytest.raises(DraftgaugeError, match="asks for 64 CPUs and 0 GPUs"):
        execute(jobs(tmp_path), "ray", lambda outcome: None, cpus=64)
