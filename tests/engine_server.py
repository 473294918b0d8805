"""An HTTP server that answers as vLLM's or llama.cpp's does: pages in their formats, figures as a test wants them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Pages = dict[str, tuple[int, str] | Callable[[Any], Any]]  # fixed, or made of the body that is posted


def vllm_metrics(drafts: int, drafted: int, accepted: int, positions: Sequence[int], model: str = "target") -> str:
    """vLLM 0.32's page, as far as it speaks of speculation, and one metric that does not."""
    labels = f'engine="0",model_name="{model}"'
    counters = {"num_drafts": drafts, "num_draft_tokens": drafted, "num_accepted_tokens": accepted}
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} 0.0",
    ]
    for name, value in counters.items():
        whole = f"vllm:spec_decode_{name}"
        lines += [f"# HELP {whole}_total Number of spec decoding tokens.", f"# TYPE {whole}_total counter"]
        lines += [f"{whole}_total{{{labels}}} {float(value)}", f"# TYPE {whole}_created gauge"]
        lines.append(f"{whole}_created{{{labels}}} 1.7637e+09")
    lines.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter")
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{at}"}} {float(count)}'
        for at, count in enumerate(positions)
    ]
    return "\n".join(lines) + "\n"


def llama_metrics(drafts: int, drafted: int, accepted: int, positions: Sequence[int] = ()) -> str:
    """llama.cpp's page, as ``server_task_result_metrics::to_metrics`` writes it."""
    counters = {"tokens_predicted_total": drafts + accepted, "spec_decode_num_draft_tokens_total": drafted}
    counters |= {"spec_decode_num_accepted_tokens_total": accepted, "spec_decode_num_drafts_total": drafts}
    lines: list[str] = []
    for name, value in counters.items():
        lines += [f"# HELP llamacpp:{name} Speculative", f"# TYPE llamacpp:{name} counter", f"llamacpp:{name} {value}"]
    lines += [
        f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}} {count}'
        for at, count in enumerate(positions)
    ]
    return "\n".join(lines) + "\n"


def sglang_metrics(drafts: int, drafted: int, accepted: int, _: Sequence[int] = ()) -> str:
    """SGLang's page, which shows means."""
    means = {"generation_tokens_total": drafts + accepted, "spec_accept_length": (drafts + accepted) / drafts}
    means["spec_accept_rate"] = accepted / drafted
    return "".join(f'sglang:{name}{{model_name="target"}} {value}\n' for name, value in means.items())


def vllm_answer(milliseconds: float = 80.0, tokens: Sequence[int] = range(1, 9), **counters: Any) -> dict[str, Any]:
    """What vLLM answers to ``/v1/completions`` with token ids and metrics: ``counters`` are of its drafts."""
    metrics: dict[str, Any] = {"time_to_first_token_ms": 20.0, "generation_time_ms": milliseconds}
    metrics |= {"speculative_decoding": counters} if counters else {}
    choice = {"index": 0, "text": "abcdefgh", "token_ids": list(tokens), "finish_reason": "length"}
    usage = {"prompt_tokens": 11, "completion_tokens": len(tokens), "total_tokens": 11 + len(tokens)}
    return {"object": "text_completion", "choices": [choice], "usage": usage, "metrics": metrics}


def llama_answer(
    milliseconds: float, tokens: Sequence[int] = range(1, 9), drafted: int = 0, accepted: int = 0
) -> dict[str, Any]:
    """What llama.cpp's server answers to ``/completion`` with ``return_tokens``."""
    timings: dict[str, Any] = {"cache_n": 0, "prompt_n": 9, "prompt_ms": 20.0}
    timings |= {"predicted_n": len(tokens), "predicted_ms": milliseconds}
    timings |= {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
    return {"index": 0, "content": "abcdefgh", "tokens": list(tokens), "timings": timings}


def models_page(*names: str, **said: int) -> str:
    """``/v1/models`` of both."""
    return json.dumps({"object": "list", "data": [{"id": name, "object": "model"} | said for name in names]})


def error_page(message: str, code: int) -> str:
    """How both refuse."""
    return json.dumps({"error": {"code": code, "message": message, "type": "not_supported_error"}})


@contextmanager
def serving(pages: Pages, port: int = 0) -> Iterator[str]:
    """Serve pages by path on this machine, got or posted to; yields the address. Other paths are answered 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.answer(self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self) -> None:
            self.answer(b"null")

        def answer(self, body: bytes) -> None:
            page = pages.get(self.path, (404, error_page("File Not Found", 404)))
            status, text = page if isinstance(page, tuple) else (200, page(json.loads(body)))
            content = (text if isinstance(text, str) else json.dumps(text)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that does with every connection what ``answer`` says; its address, and what it was sent."""
    asked: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65536))
                    answer(connection)
            except (BrokenPipeError, ConnectionResetError):
                continue
            except OSError:  # closed: the test is over
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
