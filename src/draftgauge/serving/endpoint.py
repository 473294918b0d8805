"""Asking a running server over HTTP, with errors that say what to do."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from draftgauge.core.errors import DraftgaugeError

SECONDS = 10.0
COMPLETION_SECONDS = 600.0


class ServerError(DraftgaugeError):
    """A server that does not answer, refuses, or answers what cannot be read."""


def fetch_text(url: str, path: str, seconds: float = SECONDS) -> str:
    """The text at a path of a server.

    Args:
        url: of the server, ``http://host:port``, with or without a path in front.
        path: below it, beginning with a slash.
        seconds: to wait for it.

    Raises:
        ServerError: if there is no such text.
    """
    return _ask(url, path, None, seconds)


def fetch_json(url: str, path: str, body: Any = None, seconds: float = SECONDS) -> Any:
    """JSON at a path of a server: got, or posted for where there is a ``body``.

    Raises:
        ServerError: if there is no such answer, or it is not JSON.
    """
    text = _ask(url, path, body, seconds)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServerError(f"{_joined(url, path)} answers what is not JSON: {text[:80]!r}") from error


def _ask(url: str, path: str, body: Any, seconds: float) -> str:
    whole = _joined(url, path)
    content = None if body is None else json.dumps(body).encode()
    asked = Request(whole, content, {"Content-Type": "application/json"} if content else {})
    try:
        with urlopen(asked, timeout=seconds) as answer:
            text: str = answer.read().decode("utf-8", "replace")
            return text
    except HTTPError as error:
        raise ServerError(f"{whole} answers {error.code}: {_reason(error)}") from error
    except (URLError, TimeoutError, http.client.HTTPException, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(f"no server answers at {whole} ({reason}): start it, or check the address") from error


def _joined(url: str, path: str) -> str:
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise DraftgaugeError(f"--url is the address of a server, as http://127.0.0.1:8000, not {url!r}")
    return url.rstrip("/") + path


def _reason(error: HTTPError) -> str:
    """What the server says of its refusal: OpenAI's and llama.cpp's servers answer ``{"error": {"message": ...}}``."""
    text = error.read().decode("utf-8", "replace")
    try:
        document = json.loads(text)
        said = document.get("error", document)
        return str(said.get("message", said) if isinstance(said, dict) else said)
    except (ValueError, AttributeError):
        return text.strip()[:200] or str(error.reason)
