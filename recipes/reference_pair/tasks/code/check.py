"""Scores answers by running them: many in one subprocess, each in a fork of its own with limits of time and memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# Of processor time; the wall-clock limit is longer, so that a busy machine fails no right answer.
SECONDS = 2
WALL_SECONDS = 10
STARTUP_SECONDS = 60
FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
START = re.compile(r"(def |async def |@\w|import \w|from [\w.]+ import )")
TOP_LEVEL = re.compile(r"(def |async def |class |@|import \w|from [\w.]+ import |[)\]}])")

RUNNER = r"""
import ast, builtins, json, os, resource, select, signal, sys, time

MODULES = {"math", "itertools", "functools", "collections", "operator", "re", "string", "statistics", "typing",
           "bisect", "heapq", "collections.abc", "__future__"}
FORBIDDEN = ("open", "eval", "exec", "compile", "input", "breakpoint", "exit", "quit", "help")


def load(name, *rest, **more):
    if name not in MODULES:
        raise ImportError(name)
    return __import__(name, *rest, **more)


def same(got, wanted):
    if isinstance(got, bool) != isinstance(wanted, bool):
        return False
    if isinstance(wanted, float) and isinstance(got, (int, float)):
        return abs(got - wanted) <= 1e-9 * max(1.0, abs(wanted))
    return got == wanted


def passes(code, name, cases):
    allowed = {key: value for key, value in vars(builtins).items() if key not in FORBIDDEN}
    allowed["__import__"] = load
    space = {"__builtins__": allowed, "__name__": "answer"}
    exec(compile(code, "answer", "exec"), space)
    for arguments, wanted in cases:
        if not same(space[name](*ast.literal_eval(arguments)), ast.literal_eval(wanted)):
            return False
    return True


def child(item, pipe, seconds):
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    try:
        if passes(*item):
            os.write(pipe, b"1")
    except BaseException:
        pass
    os._exit(0)


def judge(item, seconds, wall):
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        child(item, writable, seconds)
    os.close(writable)
    ready, _, _ = select.select([readable], [], [], wall)
    passed = bool(ready) and os.read(readable, 1) == b"1"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(readable)
    return passed


job = json.load(sys.stdin)
print(json.dumps([judge(item, job["seconds"], job["wall"]) for item in job["items"]]))
"""


def extract(answer: str) -> str:
    """The code of an answer: its first fence with a function, else everything from the first ``def`` that is code."""
    fences = [block for block in FENCE.findall(answer) if "def " in block]
    lines = (fences[0] if fences else answer).splitlines()
    start = next((i for i, line in enumerate(lines) if START.match(line)), len(lines))
    kept: list[str] = []
    for line in lines[start:]:
        if line.strip() and not line.startswith((" ", "\t")) and not TOP_LEVEL.match(line):
            break
        kept.append(line)
    code = "\n".join(kept)
    return code if "def " in code else ""


def score_many(pairs: Sequence[tuple[Mapping[str, Any], str]]) -> list[float]:
    """Scores of many answers, 1.0 where the function returns what it must in every case."""
    codes = [extract(answer) for _, answer in pairs]
    items = [[code, check["name"], check["cases"]] for code, (check, _) in zip(codes, pairs, strict=True) if code]
    passed = iter(_run(items) if items else [])
    return [float(next(passed)) if code else 0.0 for code in codes]


def score(check: Mapping[str, Any], answer: str) -> float:
    """The score of one answer; for many, :func:`score_many` is faster."""
    return score_many([(check, answer)])[0]


def _run(items: list[list[Any]]) -> list[bool]:
    """Whether each item passes; raises where no Python can be started at all."""
    job = json.dumps({"seconds": SECONDS, "wall": WALL_SECONDS, "items": items})
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUNNER],
        input=job,
        capture_output=True,
        text=True,
        timeout=STARTUP_SECONDS + WALL_SECONDS * len(items),
        check=True,
    )
    return [bool(one) for one in json.loads(done.stdout)]
