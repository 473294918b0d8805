"""Run every benchmark and write its JSON. Without a GPU, say that the GPU shapes are left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from common import console

SCRIPTS = (
    "pair_speed.py",
    "trace_cost.py",
    "replay_speed.py",
    "choosing_length.py",
    "sampled_live.py",
)


def main() -> int:
    """Run the scripts one after the other, each in its own process; non-zero if one failed."""
    here = Path(__file__).parent
    scripts = [*SCRIPTS, "gpu.py"] if torch.cuda.is_available() else list(SCRIPTS)
    if not torch.cuda.is_available():
        console.print("no GPU here: gpu.py is left out")
    failed = []
    for script in scripts:
        console.rule(script)
        if subprocess.run([sys.executable, str(here / script), *sys.argv[1:]], check=False).returncode:
            failed.append(script)
    if failed:
        console.print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
