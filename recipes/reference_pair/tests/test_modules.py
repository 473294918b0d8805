"""What is read of Python modules is what their syntax trees hold, in the trees' order."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

from recipes.reference_pair.modules import documentation_strings, parse, read_module, statements

KEPT = (ast.stmt, ast.excepthandler, ast.match_case, ast.Module)
ODD = '''
match 1:
    case 1:
        class Inside:
            """In a case."""
    case _:
        def other(): "In another."
try:
    pass
except ValueError:
    def handler(self, a=lambda: 0):
        """In a handler."""
        with open("x") as file:
            async def nested(cls, *, b=1): """Nested."""
else:
    class Last: "Last."
'''


@pytest.mark.parametrize("name", ["argparse", "dataclasses", "http.client", "odd"])
def test_statements_come_as_in_a_walk_of_the_whole_tree(name: str) -> None:
    source = ODD if name == "odd" else inspect.getsource(importlib.import_module(name))
    tree = parse(source)
    walked = [node for node in ast.walk(tree) if isinstance(node, KEPT)]
    assert [id(node) for node in statements(tree)] == [id(node) for node in walked]
    documented = [node for node in walked if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    texts = [ast.get_docstring(node) for node in [tree, *documented]]
    assert sorted(documentation_strings(tree)) == sorted(text for text in texts if text)


def test_functions_methods_and_classes_of_a_module() -> None:
    module = read_module("m", ODD + 'class Shown:\n    """Kind."""\n    def show(self, x=1):\n        """Shows."""\n')
    assert module.documentation == ("Kind.", "Last.", "Shows.", "In a case.", "In another.", "In a handler.", "Nested.")
    assert module.functions == ("show",)
    assert [(each.name, each.arguments) for each in module.documented] == [
        ("Shown.show", "(x=1)"),
        ("Shown", ""),
        ("Last", ""),
        ("Inside", ""),
    ]
