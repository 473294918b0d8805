"""The text of the bundled pair: what every Python installation carries, split by module.

A module is reserved for prompts or used for training as a whole, decided by a hash of its path, so that no
prompt shares a module with the training text, on any machine and in any order of the file system.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from recipes.reference_pair.modules import Module, collection_paused, documentation_strings, parse, read_module
from recipes.reference_pair.tasks.base import percentile

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


def is_reserved(name: str) -> bool:
    """True if the module (by dotted name) is kept out of training and used for prompts only."""
    return percentile(name, "reserve") < RESERVED_PERCENT


def prompt_split(name: str) -> str:
    """The split ("train", "validation", "test" or "sealed") of the *prompts* made from a reserved module."""
    share = percentile(name, "split")
    return "train" if share < 31 else "validation" if share < 54 else "test" if share < 77 else "sealed"


@cache
@collection_paused()
def standard_library() -> tuple[Module, ...]:
    """Every parseable module of the running Python's standard library, with its ``test`` package, in path order.

    They are read once in a process, which takes some ten seconds.
    """
    root = Path(sysconfig.get_path("stdlib"))
    modules = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_PARTS.intersection(relative.parts) or relative.as_posix().startswith(SKIPPED_PREFIXES):
            continue
        if path.stat().st_size > MAX_BYTES:
            continue
        parts = [part for part in relative.with_suffix("").parts if part != "__init__"]
        try:
            module = read_module(".".join(parts) or relative.stem, path.read_text(encoding="utf-8").expandtabs(8))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue  # deliberately broken fixtures of the test suite
        if len(module.source) >= 200:
            modules.append(module)
    return tuple(modules)


def language_topics() -> list[str]:
    """The plain-English chapters of the language reference that ``pydoc`` ships."""
    from pydoc_data import topics

    return [text.strip() for _, text in sorted(topics.topics.items())]


@collection_paused()
def package_documentation(packages: Sequence[str] = PACKAGES, enough: float = math.inf) -> list[str]:
    """Documentation strings of the packages that each installation of draftgauge brings, tests left out.

    Args:
        packages: distributions, all of them under licences as free as Python's own.
        enough: characters; where there are more, those of as many files, chosen by a hash of their paths.
    """
    files = {
        str(file): Path(str(file.locate()))
        for package in packages
        for file in sorted(metadata.files(package) or (), key=lambda file: str(file.locate()))
        if file.suffix == ".py" and not {"tests", "test", "testing", "conftest.py"}.intersection(file.parts)
    }
    texts: dict[str, list[str]] = {}
    for name in sorted(files, key=percentile):
        if enough <= 0:
            break
        texts[name] = _documentation(files[name])
        enough -= sum(map(len, texts[name]))
    return [text for name in files for text in texts.get(name, ())]


def _documentation(path: Path) -> list[str]:
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return []
    try:
        return list(documentation_strings(parse(path.read_text(encoding="utf-8"))))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []
