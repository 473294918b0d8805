"""Servers started and ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving.endpoint import ServerError, fetch_text
from launching import launched

SERVER = """
import argparse, http.server
parser = argparse.ArgumentParser()
parser.add_argument("--host"); parser.add_argument("--port", type=int)
given = parser.parse_args()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"fine")
    def log_message(self, *_): pass
http.server.HTTPServer((given.host, given.port), Handler).serve_forever()
"""


def test_a_server_answers_while_it_is_wanted() -> None:
    with launched([sys.executable, "-c", SERVER], seconds=60) as url:
        assert fetch_text(url, "/health") == "fine"
    with pytest.raises(ServerError):
        fetch_text(url, "/health")


PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import sys; " + sys.argv[1], *sys.argv[2:]]).wait()
"""


def test_what_a_server_started_ends_with_it() -> None:
    """The one that answers here is a child of the process that is told to end."""
    child = f"exec({SERVER!r})"
    with launched([sys.executable, "-c", PARENT, child], seconds=60) as url:
        assert fetch_text(url, "/health") == "fine"
    with pytest.raises(ServerError):
        fetch_text(url, "/health")


def test_servers_that_do_not_start() -> None:
    broken = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    with pytest.raises(DraftgaugeError, match="ended with code 3: no such model"), launched(broken, seconds=60):
        pass
    with pytest.raises(DraftgaugeError, match="cannot start no-such-program"), launched(["no-such-program"]):
        pass
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(DraftgaugeError, match="does not answer"), launched(silent, seconds=1):
        pass


def test_a_server_s_threads_wait_as_it_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # as reading a GGUF file in this process does
    seen = tmp_path / "seen"
    program = f"import os, sys; open({str(seen)!r}, 'w').write(os.environ.get('OMP_WAIT_POLICY', 'unset')); sys.exit(3)"
    with pytest.raises(DraftgaugeError), launched([sys.executable, "-c", program]):
        pass
    assert seen.read_text() == "unset"
