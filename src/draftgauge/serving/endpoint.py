"""HTTP requests to a running server: limited in time and size, with errors that say what to do."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from draftgauge.core.artefacts import parse_json
from draftgauge.core.errors import DraftgaugeError

API_KEY = "DRAFTGAUGE_API_KEY"  # environment variable
SECONDS = 10.0
COMPLETION_SECONDS = 600.0
MAX_BYTES = 2**23  # read into at most 0.5 GB; a page of vLLM's metrics has 0.1 MB, 100,000 token ids less than 1 MB


class ServerError(DraftgaugeError):
    """A server that does not answer, refuses, or answers what cannot be read."""


def fetch_text(url: str, path: str, body: Any = None, seconds: float = SECONDS) -> str:
    """The text at a path of a server: got, or posted for where there is a ``body``, which is sent as JSON.

    The key in the environment variable ``DRAFTGAUGE_API_KEY``, if there is one, is sent as a bearer token.

    Args:
        url: of the server, ``http://host:port``; it may have a path, which comes first, and a query, which comes last.
        path: below it, beginning with a slash.
    """
    address = _address(url, path)
    work = _ask(address, body, seconds)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        status, content = asyncio.run(work)
    else:  # in a notebook, which has an event loop of its own
        with ThreadPoolExecutor(1) as thread:
            status, content = thread.submit(asyncio.run, work).result()
    text = content.decode("utf-8", "replace")
    if status >= 400:
        hint = f" (set its key in {API_KEY})" if status in (401, 403) else ""
        raise ServerError(f"{address} answers {status}: {_reason(text)}{hint}")
    if status != 200:
        raise ServerError(f"{address} answers {status}, a redirection or nothing: give the server's own address")
    return text


def fetch_json(url: str, path: str, body: Any = None, seconds: float = SECONDS) -> Any:
    text = fetch_text(url, path, body, seconds)
    return parse_json(text, f"the answer of {_address(url, path)}, {text[:80]!r}", error=ServerError)


async def _ask(address: str, body: Any, seconds: float) -> tuple[int, bytes]:
    import httpx2

    headers = {"Accept-Encoding": "gzip"}
    headers |= {"Authorization": f"Bearer {key}"} if (key := os.environ.get(API_KEY)) else {}
    method = "GET" if body is None else "POST"
    tls = _tls() if address.startswith("https") else False
    try:
        async with (
            asyncio.timeout(seconds),  # httpx's own timeouts are for single reads, so a server that drips never ends
            httpx2.AsyncClient(timeout=None, headers=headers, verify=tls) as client,
            client.stream(method, address, json=body) as answer,
        ):
            content, packed = bytearray(), answer.headers.get("Content-Encoding", "identity") != "identity"
            unpacking = zlib.decompressobj(zlib.MAX_WBITS + 32)
            async for chunk in answer.aiter_raw():
                content += unpacking.decompress(chunk, MAX_BYTES + 1 - len(content)) if packed else chunk
                if len(content) > MAX_BYTES:
                    raise ServerError(f"{address} answers with more than {MAX_BYTES // 2**20} MiB: is it the server?")
            if packed and not unpacking.eof:  # httpx2 hands over what there is of it
                raise ServerError(
                    f"{address} breaks its compressed answer off: ask again, or turn compression off there"
                )
            return answer.status_code, bytes(content)
    except DraftgaugeError:  # a ValueError too
        raise
    except TimeoutError as error:
        raise ServerError(f"{address} has not answered within {seconds:g} s") from error
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise ServerError(f"no server answers at {address} ({error}): start it, or check the address") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, zlib.error) as error:
        said = str(error) or type(error).__name__
        raise ServerError(f"{address} does not answer as HTTP servers do ({said}): check the address") from error


@cache
def _tls() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def _address(url: str, path: str) -> str:
    import httpx2

    try:
        base = httpx2.URL(url)
        if base.scheme not in ("http", "https") or not base.host or not 0 < (base.port or 80) < 65536:
            raise ValueError
        return str(base.copy_with(path=base.path.rstrip("/") + path))
    except (httpx2.InvalidURL, ValueError) as error:
        raise DraftgaugeError(
            f"{url!r} is no address of a server, as http://127.0.0.1:8000, and no file of what one said"
        ) from error


def _reason(text: str) -> str:
    """What the server says of its refusal: OpenAI's and llama.cpp's servers answer ``{"error": {"message": ...}}``."""
    try:
        document = json.loads(text)
        said = document.get("error", document)
        return str(said.get("message", said) if isinstance(said, dict) else said)[:200]
    except (ValueError, AttributeError, RecursionError):
        return text.strip()[:200]
