"""What all tests share: no network, and no cost curves in the user's cache."""

from __future__ import annotations

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a test that needs the network is wrong
_CACHE = tempfile.TemporaryDirectory(prefix="draftgauge-tests-")  # removed when the tests end
os.environ["DRAFTGAUGE_CACHE"] = _CACHE.name
