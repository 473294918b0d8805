"""Where things are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "DRAFTGAUGE_CACHE"


def cache_folder() -> Path:
    """``$DRAFTGAUGE_CACHE``, else ``draftgauge`` in the user's cache folder (``$XDG_CACHE_HOME``, else
    ``~/.cache``).
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftgauge"
