"""What all tests share: no network."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a test that needs the network is wrong
