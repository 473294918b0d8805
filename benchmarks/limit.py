"""Makes docs/results/limit.json: how near plain decoding comes to this machine's limit, beside other engines.

Each setup runs in a process of its own; they take turns, five each, and a setup's figure is the median. Every turn is
saved, so a run that was stopped goes on where it was. Setups that cannot run here are kept with the reason.

    python benchmarks/limit.py --model FOLDER --gguf FILE... [--openvino FOLDER...] [--before REVISION]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import RESULTS, ROOT, console

from draftgauge.core.provenance import environment, read_measurement, write_measurement
from draftgauge.models.device import cpu_has_bfloat16, free_bytes

NAME = "limit.json"
BEFORE = "c8bda376"  # the revision whose engine held larger models unpacked
CONTEXT, DECODED, PASSES, VERIFIED, TURNS = 256, 16, 6, 4, 5
HELD = 6  # times the weights: what all setups hold together, about; twice that in float32
READ = 1 << 30  # bytes that the memory's speed is read from
BF16 = "the processor does not multiply bfloat16"


class Setup(NamedTuple):
    """What is measured: an engine of draftgauge, or of others."""

    name: str
    kind: str  # ours, transformers or memory
    source: str = ""
    compression: str = "uncompressed"
    engine: str = "auto"
    reason: str = ""  # why it is left out


class Ratio(NamedTuple):
    """A figure of one setup over that of another, and what it is to reach; setups by the beginning of their names."""

    figure: str
    over: str
    least: float | None = None
    most: float | None = None


FULL = "draftgauge, full"  # bf16 where the processor has it, else fp32
RATIOS = (
    Ratio(FULL, f"draftgauge at {BEFORE}", 2.2),
    Ratio(FULL, "llama.cpp, bf16", 1.2),
    Ratio(FULL, "openvino, fp16", 1.5),
    Ratio(FULL, "transformers", 1.8),
    Ratio(FULL, "memory", 0.8),
    Ratio("draftgauge, int4", "llama.cpp, q4_k_m", 1.0),
    Ratio("draftgauge, int4", "four tokens", most=1.6),
    Ratio(FULL, "weights", most=1.15),
)


def main() -> None:
    """Let the setups of one model take turns until each has had five, or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the model")
    parser.add_argument("--gguf", action="append", default=[], metavar="NAME=FILE", help="such as q4_k_m=m.gguf")
    parser.add_argument("--openvino", action="append", default=[], metavar="NAME=FOLDER", help="such as fp16=folder")
    parser.add_argument("--before", default=BEFORE, help="revision to compare with; '' for none")
    parser.add_argument("--minutes", type=float, default=8, help="no turn begins later")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(Setup(*json.loads(args.worker)))
    if not args.model:
        parser.error("name the model's folder: --model FOLDER")
    until = time.monotonic() + 60 * args.minutes
    model, kept = Path(args.model).name, _kept(args.out / NAME)
    own = [row for row in kept if row["model"] == model and "turn" in row]
    others = [row for row in kept if row["model"] != model]
    full = "bf16" if cpu_has_bfloat16() else "fp32"
    weights, read = (each * (1 if full == "bf16" else 2) for each in bytes_of(args.model))
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            Worker(setup, [row for row in own if row["setup"] == setup.name], Path(folder), args.before)
            for setup in setups(args.model, args.gguf, args.openvino, args.before)
        ]
        # Of models that do not fit side by side each is loaded anew at its turn.
        held = HELD * weights * (1 if cpu_has_bfloat16() else 2)
        alone = held > (free_bytes(torch.device("cpu")) or 0)
        args.out.mkdir(parents=True, exist_ok=True)
        for turn, worker in product(range(TURNS), workers):
            if len(worker.turns) <= turn and not worker.reason and time.monotonic() < until:
                worker.measure()
                if alone:
                    worker.close()
            turns = [{"model": model, **each} for worker in workers for each in worker.turns]
            rows = [{"model": model, **worker.row()} for worker in workers]
            measured = [*others, *turns, *rows, *ratios(model, rows, (weights, read), full)]
            write_measurement(args.out / NAME, shlex.join(_short(word) for word in sys.argv), measured)
        for worker in workers:
            worker.close()
    for row in read_measurement(args.out / NAME).rows:
        if row["model"] == model and "turn" not in row:
            console.print(json.dumps(row), highlight=False)


def setups(model: str, gguf: list[str], openvino: list[str], before: str) -> Iterator[Setup]:
    """What can be tried of a model, in the order of the table."""
    full, lacking = ("bf16", "") if cpu_has_bfloat16() else ("fp32", BF16)
    yield Setup("memory", "memory")
    if before:
        yield Setup(f"draftgauge at {before}, {full}", "ours", model, full)
    yield Setup("draftgauge, bf16", "ours", model, "bf16", reason=lacking)
    if lacking:
        yield Setup("draftgauge, fp32", "ours", model, "fp32")
    yield Setup("draftgauge, int8-weight", "ours", model, "int8-weight")
    yield Setup("draftgauge, int8-dynamic", "ours", model, "int8-dynamic")
    yield Setup("draftgauge, int4", "ours", model, "int4")
    yield Setup(f"transformers generate, {full}", "transformers", model, full)
    for named in gguf:
        name, _, file = named.rpartition("=")
        yield Setup(f"llama.cpp, {name or Path(file).stem}", "ours", file, engine="gguf-fast")
    if not gguf:
        yield Setup("llama.cpp", "ours", reason="no GGUF file was given")
    for named in openvino:
        name, _, file = named.rpartition("=")
        yield Setup(f"openvino, {name or Path(file).name}", "ours", file)
    if not openvino:
        yield Setup("openvino", "ours", reason="no model of OpenVINO was given")


class Worker:
    """The process of one setup; it starts at its first turn, and waits in between."""

    def __init__(self, setup: Setup, known: list[dict[str, Any]], folder: Path, before: str) -> None:
        self.setup, self.folder, self.before = setup, folder, before
        self.reason, self.turns = setup.reason, [{k: v for k, v in row.items() if k != "model"} for row in known]
        self.process: subprocess.Popen[str] | None = None

    def measure(self) -> None:
        """One turn; a setup that fails is left out with what it said last."""
        if self.process is None:
            command = [sys.executable, __file__, "--worker", json.dumps(self.setup)]
            self.log = (self.folder / f"{abs(hash(self.setup))}.txt").open("w+")
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
            self.process = subprocess.Popen(command, text=True, env=os.environ | self._paths(), **pipes)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("turn\n")
            self.process.stdin.flush()
            turn = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            self.process.wait()
            self.log.seek(0)
            self.reason = " ".join(map(_short, (self.log.read().strip().splitlines() or ["it ended"])[-1].split()))
            return
        self.turns.append({"setup": self.setup.name, "turn": len(self.turns)} | turn)
        console.print(f"{self.setup.name}: {turn}", highlight=False)

    def row(self) -> dict[str, Any]:
        """Medians of the turns."""
        names = [name for name in (self.turns or [{}])[0] if name not in ("setup", "turn")]
        medians = {name: statistics.median(turn[name] for turn in self.turns) for name in names}
        return {"setup": self.setup.name, "turns": len(self.turns), "reason": self.reason, **medians}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.communicate()
            self.process = None
            self.log.close()

    def _paths(self) -> dict[str, str]:
        """Which draftgauge the process imports: this one, or that of the revision before."""
        if not self.before or self.before not in self.setup.name:
            return {"PYTHONPATH": str(ROOT / "src")}
        packed = subprocess.run(["git", "-C", ROOT, "archive", self.before, "src"], capture_output=True, check=False)
        subprocess.run(["tar", "-x", "-C", self.folder], input=packed.stdout, check=False)
        return {"PYTHONPATH": str(self.folder / "src")}


def work(setup: Setup) -> None:
    """Answer every line of standard input with one turn's figures."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    turn = {"memory": memory_turn, "transformers": transformers_turn, "ours": our_turn}[setup.kind](setup)
    for _ in sys.stdin:
        answers.write(json.dumps(turn()) + "\n")
        answers.flush()


def memory_turn(_: Setup) -> Callable[[], dict[str, float]]:
    """Bytes a second that reading memory reaches."""
    values = torch.ones(READ // 4)
    return lambda: {"bytes_per_second": READ / min(_seconds(values.sum) for _ in range(PASSES))}


def our_turn(setup: Setup) -> Callable[[], dict[str, float]]:
    """A model behind draftgauge's contract."""
    from draftgauge.models.loading import load_model

    start = _resident()
    model = load_model(setup.source, setup.compression, "cpu", setup.engine)
    text = torch.arange(CONTEXT) % 1000 + 100
    model.reset()
    model.forward(text, last_only=True)
    held = _resident() - start

    def turn() -> dict[str, float]:
        token = text[:1]
        begun = time.perf_counter()
        for _ in range(DECODED):
            token = model.forward(token)[-1:].argmax(-1)
        one = (time.perf_counter() - begun) / DECODED
        model.truncate(CONTEXT)
        passes = []
        for _ in range(PASSES):
            passes.append(_seconds(lambda: model.forward(text[:VERIFIED])))
            model.truncate(CONTEXT)
        four = statistics.median(passes)
        return {"tokens_per_second": 1 / one, "one_ms": 1e3 * one, "four_ms": 1e3 * four, "resident_bytes": held}

    return turn


def transformers_turn(setup: Setup) -> Callable[[], dict[str, float]]:
    """``generate`` of transformers, without the time of the prompt."""
    from transformers import AutoModelForCausalLM

    start = _resident()
    dtype = torch.bfloat16 if setup.compression == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(setup.source, dtype=dtype)
    text = (torch.arange(CONTEXT) % 1000 + 100)[None]

    def generate(count: int) -> None:
        model.generate(text, max_new_tokens=count, min_new_tokens=count, do_sample=False)

    generate(2)
    held = _resident() - start

    def turn() -> dict[str, float]:
        whole, prompt = (_seconds(lambda count=count: generate(count)) for count in (DECODED + 1, 1))
        one = (whole - prompt) / DECODED
        return {"tokens_per_second": 1 / one, "one_ms": 1e3 * one, "resident_bytes": held}

    return turn


def ratios(model: str, rows: list[dict[str, Any]], sizes: tuple[float, float], full: str) -> Iterator[dict[str, Any]]:
    """What is to be reached, and what is; ``ratio`` is None where one of both could not run."""

    def measured(beginning: str, name: str) -> float | None:
        return next((row[name] for row in rows if row["setup"].startswith(beginning) and name in row), None)

    weights, read = sizes
    for asked in RATIOS:
        wanted = asked._replace(figure=asked.figure.replace("full", full))
        figure, other = measured(wanted.figure, "tokens_per_second"), measured(wanted.over, "tokens_per_second")
        if wanted.over == "memory":
            speed = measured("memory", "bytes_per_second")
            figure, other = figure and figure * read, speed
        elif wanted.over == "four tokens":
            figure, other = measured(wanted.figure, "four_ms"), measured(wanted.figure, "one_ms")
        elif wanted.over == "weights":
            figure, other = measured(wanted.figure, "resident_bytes"), weights
        ratio = figure / other if figure and other else None
        reached = ratio and (ratio >= wanted.least if wanted.least else ratio <= (wanted.most or 0))
        yield {"model": model, "ratio": ratio, "reached": reached, **wanted._asdict()}


def bytes_of(model: str) -> tuple[float, float]:
    """Bytes of a model's weights in bfloat16, and of those that a token reads: an embedding alone is not."""
    from draftgauge.models.device import on_meta
    from draftgauge.models.spec import read_configuration

    made = on_meta(read_configuration(model, trust_remote_code=False))
    tied = made.config.get_text_config().tie_word_embeddings
    weights = 2.0 * sum(part.numel() for part in made.parameters())
    embedding = 2.0 * made.get_input_embeddings().weight.numel()
    if tied and made.get_output_embeddings().weight is not made.get_input_embeddings().weight:
        weights -= embedding  # both are still there on a meta device
    return weights, weights if tied else weights - embedding


def _kept(path: Path) -> list[dict[str, Any]]:
    """Rows measured before on this machine, at this revision."""
    if not path.is_file():
        return []
    kept, now = read_measurement(path), environment()
    same = all(kept.environment.get(name) == now[name] for name in ("cpu", "cores"))
    # The file itself, once written, makes the checkout differ from its revision.
    before, after = (str(each["revision"]).removesuffix("-dirty") for each in (kept.environment, now))
    return [dict(row) for row in kept.rows] if same and before == after else []


def _short(word: str) -> str:
    """A path without the folders that are this machine's own."""
    named, found, path = word.rpartition("=")
    return named + found + (Path(path).name if path.startswith("/") else path)


def _seconds(act: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
