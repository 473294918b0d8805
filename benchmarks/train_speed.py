"""Training of the ``hidden`` design against the EAGLE-3 of ``speculators``: tokens a second and peak memory.

Both train the same shapes with the same K. ``speculators`` needs an older transformers than draftgauge, so it gets an
environment of its own. That environment shares this one's torch: both libraries run the same kernels. It leaves out the
torchvision and torchaudio that ``speculators`` asks for: they are built for another torch and would break its import.

Every measurement has its own process, and so its own peak memory. The two libraries take turns. A step is the forward
pass from features in memory, the loss, the backward pass and AdamW. ``speculators`` does not train its output head;
draftgauge does, and is measured both ways.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import torch
from common import console, save

from draftgauge.models.reference import reference_path

SPECULATORS = "0.9.0"
LEFT_OUT = ("torch", "torchvision", "torchaudio", "transformers", "hs-connectors")
CASES = ((1, 512), (4, 256), (1, 1024))  # texts, tokens of each
DEPTHS = 7
HERE = Path(__file__).parent

# What each worker is asked for: library, its options.
ARMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("draftgauge", {"head": "trained", "compile": False}),
    ("draftgauge", {"head": "frozen", "compile": False}),
    ("draftgauge", {"head": "frozen", "compile": True}),
    ("speculators", {"head": "frozen", "attention": "sdpa"}),
    ("speculators", {"head": "frozen", "attention": "eager"}),
)


def make_environment(folder: Path) -> Path:
    """The Python of an environment with speculators in it, made where it is missing."""
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    console.print(f"making an environment for speculators in {folder}", highlight=False)
    venv.create(folder, with_pip=True, clear=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Without its requirements, and never in place of what is shared: pip is not to touch this environment.
    apart = [*install, "--no-deps", "--ignore-installed"]
    subprocess.run([*apart, f"speculators=={SPECULATORS}", f"hs-connectors=={SPECULATORS}"], check=True)
    asking = [str(python), "-c", "import importlib.metadata as m; print(*m.requires('speculators'), sep='\\n')"]
    lines = subprocess.run(asking, check=True, capture_output=True, text=True).stdout.splitlines()
    asked = {re.split(r"[<>=!~\[ ;]", line)[0]: line for line in lines if "extra ==" not in line}
    subprocess.run([*apart, asked["transformers"]], check=True)
    subprocess.run([*install, *(line for name, line in asked.items() if name not in LEFT_OUT)], check=True)
    (folder / "ready").write_text(SPECULATORS)
    return python


def run_worker(python: Path, library: str, settings: dict[str, Any]) -> dict[str, Any]:
    """One measurement in a process of its own: ``{"seconds": [...], "peak_memory_gib", ...}``."""
    script = HERE / f"train_speed_{library}.py"
    done = subprocess.run([str(python), str(script), json.dumps(settings)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(python: Path, texts: int, length: int, precision: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of one shape, the arms in turn, ``rounds`` times."""
    seconds: list[list[float]] = [[] for _ in ARMS]
    found: list[dict[str, Any]] = [{} for _ in ARMS]
    for _ in range(args.rounds):
        for place, (library, options) in enumerate(ARMS):
            settings = {
                "target": str(reference_path()),
                "texts": texts,
                "length": length,
                "depths": DEPTHS,
                "precision": precision,
            }
            settings |= options | {"steps": args.steps, "warmup": args.warmup, "threads": args.threads}
            console.print(f"{texts} x {length}, {precision}: {library} {options}", highlight=False)
            found[place] = run_worker(python if library == "speculators" else Path(sys.executable), library, settings)
            seconds[place] += found[place].pop("seconds")
    rows = []
    for (library, options), one, times in zip(ARMS, found, seconds, strict=True):
        median = statistics.median(times)
        row = {
            "library": library,
            "texts": texts,
            "length": length,
            "depths": DEPTHS,
            "precision": precision,
            "head": options["head"],
        }
        row |= {
            "attention": options.get("attention", "own"),
            "compile": options.get("compile", False),
            "seconds_a_step": median,
        }
        rows.append(row | {"tokens_per_second": texts * length / median, "steps": len(times)} | one)
    best = max(row["tokens_per_second"] for row in rows if row["library"] == "speculators")
    return [row | {"ratio_to_best_speculators": row["tokens_per_second"] / best} for row in rows]


def main() -> None:
    """Measure and write ``train-speed.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument(
        "--environment", type=Path, default=Path("build/speculators"), help="folder of speculators' environment"
    )
    parser.add_argument("--rounds", type=int, default=2, help="how often the libraries take turns")
    parser.add_argument("--steps", type=int, default=6, help="measured steps a turn")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cases", type=int, default=len(CASES), help="measure the first so many shapes")
    args, _ = parser.parse_known_args()
    python = make_environment(args.environment.absolute())
    shapes = [(precision, *case) for precision in ("bf16", "fp32") for case in CASES[: args.cases]]
    rows = [row for precision, texts, length in shapes for row in measure(python, texts, length, precision, args)]
    for row in rows:
        console.print(
            f"{row['texts']} x {row['length']:4} {row['precision']} {row['library']:12} head {row['head']:7} attention "
            f"{row['attention']:5} {'compiled' if row['compile'] else '':8} {row['tokens_per_second']:8.0f} tokens/s  "
            f"peak {row['peak_memory_gib']:.2f} GiB  {row['ratio_to_best_speculators']:.2f}x the best of speculators",
            highlight=False,
            soft_wrap=True,
        )
    save(args.out, "train-speed.json", rows)


if __name__ == "__main__":
    main()
