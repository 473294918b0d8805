"""The check of advice on servers: speeds of a cell, and lengths that do not take effect."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from fake_llama_server import step

FAKE = [sys.executable, str(Path(__file__).parents[1] / "fake_llama_server.py")]


@pytest.mark.parametrize("ignored", [False, True])
def test_a_cell_has_the_servers_speeds_and_lengths_must_take_effect(ignored: bool, tmp_path: Path) -> None:
    import served_lengths

    model = tmp_path / "model.gguf"
    model.write_bytes(b"")
    program = shlex.join([*FAKE, *(["--ignores", "3"] if ignored else [])])
    given = argparse.Namespace(engine="llama-server", target=str(model), program=program, max_new_tokens=9)
    given.longest_prompt = 100
    with ExitStack() as running:
        settings = ("plain", "fixed:2", "fixed:4")
        urls = {each: running.enter_context(served_lengths.served(given, str(model), each)) for each in settings}
        if ignored:
            with pytest.raises(DraftgaugeError, match="so it ignored the length"):
                served_lengths.cell_rows(given, urls, [[1, 2], [3, 4, 5]], 1)
            return
        rows = {row["setting"]: row for row in served_lengths.cell_rows(given, urls, [[1, 2], [3, 4, 5]], 1)}
    for length, setting in ((0, "plain"), (2, "fixed:2"), (4, "fixed:4")):
        assert 1 / rows[setting]["tokens_per_second"] == pytest.approx(step(length, 1, 2), rel=1e-3)
        assert (rows[setting]["drafted"], rows[setting]["accepted"]) == (2 * 8 * length, 0)
