"""Checks of the prose of pages and docstrings; part of ``make lint``. Prints what is wrong and exits with 1.

- A sentence has at most 25 words and three numbers, in the package's docstrings too. Tables, code, headings and lists
  of links are left out; a piece of code counts as one word.
- A page has at most 900 words, tables and code included, and what ``LONGER`` says.
- Links lead to files that exist, and to headings that they have.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/README.md", "drafters/README.md", "recipes/README.md", "tests/README.md")
MOST_WORDS, MOST_NUMBERS = 25, 3
PAGE_WORDS, LONGER = 900, {"docs/LOG.md": 1_500}
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+).+?\1", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
NOT_PROSE = re.compile(r"^\s*(#|\||<!--|:::|!\[)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+|^\s+(?=\w+(?:, \w+)*: )")
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*']*\s+(?=[A-Z0-9`*\"(\[])")
NUMBER = re.compile(r"[\[(\"+*-]*\d[\d,.:]*(x|%|s|ms|us)?[\])\"*,.;:!?]*")


def main() -> int:
    """Check pages and docstrings; returns the exit code."""
    pages = sorted({page for pattern in PAGES for page in ROOT.glob(pattern) if page.name != "CHANGELOG.md"})
    problems = [f"{page.relative_to(ROOT)}: {said}" for page in pages for said in page_problems(page)]
    problems += [f"{name}: {said}" for name, text in docstrings() for said in long_sentences(text)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def page_problems(page: Path) -> Iterator[str]:
    """What is wrong with a page."""
    text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
    words, most = len(text.split()), LONGER.get(name, PAGE_WORDS)
    if words > most and not name.startswith("docs/results/"):
        yield f"{words:,} words, more than {most:,}"
    yield from long_sentences(text)
    for _, target in LINK.findall(CODE.sub("", FENCE.sub("", text))):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        if "://" in target or linked.suffix == ".html":  # made by `make docs`
            continue
        if not linked.exists():
            yield f"links to {target}, which is not there"
        elif anchor and anchor not in headings(linked.read_text(encoding="utf-8")):
            yield f"links to {target}, a heading that is not there"


def headings(text: str) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in found}


def long_sentences(text: str) -> Iterator[str]:
    """The sentences with too many words or numbers, each with what is too many."""
    for block in blocks(text):
        for sentence in SENTENCE_END.split(block):
            words = [word for word in sentence.split() if any(map(str.isalnum, word))]
            numbers = sum(bool(NUMBER.fullmatch(word)) for word in words)
            if len(words) > MOST_WORDS or numbers > MOST_NUMBERS:
                yield f"{len(words)} words, {numbers} numbers: {sentence}"


def blocks(text: str) -> Iterator[str]:
    """Paragraphs and items of lists, without code and links' addresses; none of which more than half are links."""
    block: list[str] = []
    for line in [*FENCE.sub("\n\n", text).splitlines(), ""]:
        indented = not block and line.startswith("    ")
        if block and (not line.strip() or NOT_PROSE.match(line) or ITEM.match(line)):
            found = CODE.sub("`code`", " ".join(block))
            linked = sum(len(words.split()) for words, _ in LINK.findall(found))
            if 2 * linked <= len(LINK.sub(r"\1", found).split()):
                yield LINK.sub(r"\1", found)
            block = []
        if line.strip() and not NOT_PROSE.match(line) and not indented:
            block.append(ITEM.sub("", line).strip())


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the package, with the file that it stands in."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield str(path.relative_to(ROOT)), ast.get_docstring(node) or ""


if __name__ == "__main__":
    sys.exit(main())
