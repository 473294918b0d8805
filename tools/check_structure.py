"""Checks of the package's structure that no linter makes; part of ``make lint``. Prints what is wrong and exits with 1.

- No file imports another that, by way of others or not, imports it. Imports inside functions do not count: they happen
  later.
- No function takes more than seven parameters. Records (dataclasses and named tuples) may have as many fields as they
  need, and so may functions that do nothing but check, name values and make one. Of a policy's factory those are not
  counted that the registry supplies.
- Every policy and every kind of drafter is registered once, in a file of its package, and nothing registers itself
  elsewhere.
- Sizes stay within ``LIMITS``. Lines by package are printed.

With ``--trace VERB`` it prints the files that a request of this verb enters instead.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "draftgauge"
MOST_PARAMETERS = 7
HOMES = {"register_policy": "policies", "register_drafter": "drafters"}
CHECKS = ("check", "validate")  # what functions and methods are called that refuse what cannot be
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LINES, WORDS, KILOBYTES = "lines", "words", "kB"
# What is counted, in what, the most of it. Code counts by folder, whether or not a line is blank or a comment.
LIMITS = (
    ("src/draftgauge/**/*.py", LINES, 42_077),
    ("tests/**/*.py", LINES, 29_210),
    ("benchmarks/**/*.py", LINES, 3_080),
    ("README.md", LINES, 130),
    ("README.md", WORDS, 800),
    ("ARCHITECTURE.md", LINES, 120),
    ("docs/*.md", WORDS, 15_000),
    ("docs/results/**/*", KILOBYTES, 4_600),
)
LONGEST_FILE = 400  # lines of a Python file


def main(source: Path) -> int:
    """Check the package below ``source``; returns the exit code."""
    files = {module_name(path, source): path for path in sorted((source / PACKAGE).rglob("*.py"))}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
    problems = [*circles(trees), *long_signatures(trees), *registrations(trees), *sizes(source.parent)]
    for name, (code, tests) in lines_by_package(source).items():
        print(f"{name:<16}{code:>8,}{tests:>8,}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def lines_by_package(source: Path) -> dict[str, tuple[int, int]]:
    """Lines of Python in each package of ours, and in its tests."""
    package, tests = source / PACKAGE, source.parent / "tests"
    names = sorted(path.name for path in package.iterdir() if any(path.glob("**/*.py")))
    counted = {name: (lines(package / name), lines(tests / name)) for name in names}
    return {**counted, "all": (lines(package), lines(tests))}


def lines(folder: Path) -> int:
    return sum(measure(path, LINES) for path in folder.glob("**/*.py"))


def measure(path: Path, unit: str) -> int:
    if unit == KILOBYTES:
        return path.stat().st_size // 1000 + 1
    text = path.read_text(encoding="utf-8")
    return len(text.split()) if unit == WORDS else len(text.splitlines())


def sizes(root: Path) -> Iterator[str]:
    """What has grown over its limit."""
    for pattern, unit, most in LIMITS:
        size = sum(measure(path, unit) for path in root.glob(pattern) if path.is_file())
        if size > most:
            yield f"{pattern}: {size:,} {unit}, more than {most:,}"
    for folder in ("src", "tests", "benchmarks", "tools"):
        for path in sorted((root / folder).rglob("*.py")):
            if (length := measure(path, LINES)) > LONGEST_FILE:
                yield f"{path.relative_to(root)}: {length} lines, more than {LONGEST_FILE}"


def module_name(path: Path, source: Path) -> str:
    """``draftgauge.core.files`` of ``src/draftgauge/core/files.py``; a package's own name of its ``__init__.py``."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Groups of files that import each other."""
    imports = {name: set(imported(tree, trees)) - {name} for name, tree in trees.items()}
    for group in connected(imports):
        if len(group) > 1:
            yield f"import circle: {', '.join(sorted(group))}"


def imported(tree: ast.Module, modules: dict[str, ast.Module]) -> Iterator[str]:
    """The package's modules that are imported when a file is."""
    for node in executed(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module if node.module in modules else ""


def executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import: not those in functions, nor those for type checkers alone."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from executed(node.orelse)
            continue
        if isinstance(node, FunctionNode):
            continue
        yield node
        for name in ("body", "orelse", "finalbody"):
            yield from executed(getattr(node, name, []))


def connected(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """Strongly connected components: nodes that reach each other."""
    reach = {name: reachable(name, graph) for name in graph}
    seen: set[str] = set()
    for name in graph:
        if name not in seen:
            group = {other for other in reach[name] if name in reach.get(other, ())} | {name}
            seen |= group
            yield group


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """All nodes that a path of one edge or more leads to."""
    found: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name and name not in found:
            found.add(name)
            todo += graph.get(name, ())
    return found


def long_signatures(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Functions with too many parameters."""
    records = plain_records(trees.values())
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, FunctionNode) or makes_record(node, records):
                continue
            if (count := parameters(node)) > MOST_PARAMETERS:
                yield f"{module}:{node.lineno}: {node.name} takes {count} parameters, more than {MOST_PARAMETERS}"


def plain_records(trees: Iterable[ast.Module]) -> set[str]:
    """Names of the package's dataclasses and named tuples."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        node.name
        for node in classes
        if any(called(decorator) == "dataclass" for decorator in node.decorator_list)
        or any(called(base) == "NamedTuple" for base in node.bases)
    }


def makes_record(node: FunctionNode, records: set[str]) -> bool:
    """Whether a function does nothing but make one of the records that it is annotated with: it checks, gives names to
    values, and returns the record.
    """
    wanted = ast.unparse(node.returns) if node.returns is not None else ""

    def makes(value: ast.expr | None) -> bool:
        return isinstance(value, ast.Call) and ast.unparse(value.func) == wanted

    *before, last = node.body
    if wanted not in records or not isinstance(last, ast.Return) or not all(map(prepares, before)):
        return False
    named = {ast.unparse(entry.targets[0]) for entry in before if isinstance(entry, ast.Assign) and makes(entry.value)}
    return makes(last.value) or (last.value is not None and ast.unparse(last.value) in named)


def prepares(entry: ast.stmt) -> bool:
    """Whether a statement is a docstring, gives a value a name, or refuses what cannot be."""
    if isinstance(entry, ast.If):
        return not entry.orelse and all(isinstance(inner, ast.Raise) for inner in entry.body)
    if isinstance(entry, ast.Expr) and isinstance(entry.value, ast.Call):
        return called(entry.value).strip("_").startswith(CHECKS)
    return isinstance(entry, ast.Assign) or (isinstance(entry, ast.Expr) and isinstance(entry.value, ast.Constant))


def parameters(node: FunctionNode) -> int:
    """How many a caller gives."""
    positional = [*node.args.posonlyargs, *node.args.args]
    own = positional[1:] if positional and positional[0].arg in ("self", "cls") else positional
    supplied = any(called(decorator) == "register_policy" for decorator in node.decorator_list)
    return len(own) + (0 if supplied else len(node.args.kwonlyargs))


def registrations(trees: dict[str, ast.Module]) -> Iterator[str]:
    """What is registered twice or in the wrong package, and kinds of drafter that are not registered."""
    where: dict[tuple[str, str], list[str]] = {}
    for module, tree in trees.items():
        texts = constants(tree)
        for node in ast.walk(tree):
            if not isinstance(node, FunctionNode | ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                kind = called(decorator)
                if kind in HOMES:
                    where.setdefault((kind, registered_name(node, decorator, texts)), []).append(module)
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if "DraftSource" in bases and not any(called(d) == "register_drafter" for d in node.decorator_list):
                yield f"{module}:{node.lineno}: {node.name} is a kind of drafter that is not registered"
    for (kind, name), modules in where.items():
        if len(modules) > 1:
            yield f"{kind} of {name!r} in {len(modules)} places: {', '.join(modules)}"
        for module in modules:
            if not module.startswith(f"{PACKAGE}.{HOMES[kind]}."):
                yield f"{module}: {kind} of {name!r} belongs into {HOMES[kind]}/"
    for kind, home in HOMES.items():
        if not any(found == kind for found, _ in where):
            yield f"nothing in {home}/ is registered with {kind}: has it another name now?"


def called(decorator: ast.expr) -> str:
    """The last name of a decorator, base or function, called or not."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target).rpartition(".")[2]


def registered_name(node: FunctionNode | ast.ClassDef, decorator: ast.expr, texts: dict[str, str]) -> str:
    """The first argument of the decorator, else the class's own ``name``."""
    if isinstance(decorator, ast.Call) and decorator.args:
        return text_of(decorator.args[0], texts)
    own = constants(node)
    return own.get("name", node.name)


def constants(tree: ast.Module | FunctionNode | ast.ClassDef) -> dict[str, str]:
    """Names that a file or class gives to texts."""
    found: dict[str, str] = {}
    for entry in tree.body:
        target = entry.targets[0] if isinstance(entry, ast.Assign) else getattr(entry, "target", None)
        value = getattr(entry, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def text_of(node: ast.expr, texts: dict[str, str]) -> str:
    """A text that is written out or named."""
    written = ast.unparse(node)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else texts.get(written, written)


if __name__ == "__main__":
    SOURCE = Path(__file__).parents[1] / "src"
    if sys.argv[1:2] == ["--trace"]:
        from trace_request import trace

        sys.exit(trace(sys.argv[2], SOURCE))
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE))
