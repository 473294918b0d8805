"""A local Ray cluster for tests, and marks of those that take long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

LONG, ENGINES = (  # what `make test` leaves out, as a shorter test of its kind stays
    pytest.mark.skipif(os.environ.get(f"DRAFTGAUGE_{name.upper()}") != "whole", reason=f"takes long: make test-{name}")
    for name in ("faults", "engines")
)


@contextmanager
def ray_cluster(cpus: int) -> Iterator[Any]:
    """A local Ray cluster; the test is skipped without Ray, and where the machine is too busy for its time limit."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    try:
        ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises no type of its own
        ray.shutdown()
        if "timed out during startup" not in str(error):
            raise
        pytest.skip("Ray did not start within the 30 s that it gives itself: the machine is busy")
    try:
        yield ray
    finally:
        ray.shutdown()
