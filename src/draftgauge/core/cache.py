"""Where things are kept that can be made again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from draftgauge.core.errors import DraftgaugeError

VARIABLE = "DRAFTGAUGE_CACHE"


def cache_folder() -> Path:
    """``$DRAFTGAUGE_CACHE``, else ``draftgauge`` in the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``).
    It lies in the folder for temporary files where a user has no home, as in containers."""
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return Path(named).expanduser()
        except RuntimeError as error:
            raise DraftgaugeError(f"{VARIABLE} is {named!r}, and there is no such user: give a folder") from error
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftgauge"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"draftgauge-{os.getuid()}"
