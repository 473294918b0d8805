"""The text of the bundled pair: what every Python installation carries, split by module.

A module is reserved for prompts or used for training as a whole, decided by a hash of its path, so that no
prompt shares a module with the training text, on any machine and in any order of the file system.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from draftgauge.training.reference.tasks.base import percentile

RESERVED_PERCENT = 14
MAX_BYTES = 400_000
# BSD, MIT, PSF and Apache licences.
PACKAGES = ("numpy", "scipy", "scikit-learn", "matplotlib", "networkx", "jinja2", "rich", "torch", "accelerate")
# Generated tables, vendored bundles and grammar-breaking fixtures: text that teaches a language model nothing.
SKIPPED_PARTS = {
    "site-packages",
    "dist-packages",
    "ensurepip",
    "__pycache__",
    "lib2to3",
    "tokenizedata",
    "_sysconfigdata",
}
SKIPPED_PREFIXES = ("encodings/cp", "encodings/iso", "encodings/mac", "encodings/koi", "pydoc_data/", "config-")


@dataclass(frozen=True)
class Module:
    """One standard-library module: dotted name, source text and syntax tree."""

    name: str
    source: str
    tree: ast.Module


def is_reserved(name: str) -> bool:
    """True if the module (by dotted name) is kept out of training and used for prompts only."""
    return percentile(name, "reserve") < RESERVED_PERCENT


def prompt_split(name: str) -> str:
    """The split ("train", "validation", "test" or "sealed") of the *prompts* made from a reserved module."""
    share = percentile(name, "split")
    return "train" if share < 31 else "validation" if share < 54 else "test" if share < 77 else "sealed"


def standard_library(root: Path | None = None) -> Iterator[Module]:
    """Every parseable module of the running Python's standard library, with its ``test`` package, in path order."""
    root = root or Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_PARTS.intersection(relative.parts) or relative.as_posix().startswith(SKIPPED_PREFIXES):
            continue
        if path.stat().st_size > MAX_BYTES:
            continue
        try:
            source = path.read_text(encoding="utf-8").expandtabs(8)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue  # deliberately broken fixtures of the test suite
        if len(source) >= 200:
            parts = [part for part in relative.with_suffix("").parts if part != "__init__"]
            yield Module(".".join(parts) or relative.stem, source, tree)


def language_topics() -> list[str]:
    """The plain-English chapters of the language reference that ``pydoc`` ships."""
    from pydoc_data import topics

    return [text.strip() for _, text in sorted(topics.topics.items())]


def package_documentation(packages: Sequence[str] = PACKAGES) -> Iterator[str]:
    """Every documentation string of the packages that each installation of draftgauge brings, tests left out.

    Args:
        packages: distributions, all of them under licences as free as Python's own.
    """
    for package in packages:
        for path in sorted(str(file.locate()) for file in metadata.files(package) or () if file.suffix == ".py"):
            if not {"tests", "test", "testing", "conftest.py"}.intersection(Path(path).parts):
                yield from _documentation(Path(path))


def _documentation(path: Path) -> Iterator[str]:
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            yield ast.get_docstring(node) or ""
