"""Text from files, prompts, models and servers made safe for a terminal; speeds in digits that say something."""

from __future__ import annotations

import re

# Control characters but tab and line ends, and those that turn the direction of text.
_UNSAFE = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "backslashreplace").decode(), text)


def speed(tokens_per_second: float) -> str:
    """Three digits, e.g. ``0.834``, ``3.42``, ``34.1``; whole tokens from 100 on."""
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 99.95 else f"{tokens_per_second:#.3g}"
