"""What a code spec makes of its elements in the end: a total, a list, the first, a dict of counts and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Reduce:
    """One way to reduce the mapped elements, in words, in code and in meaning.

    Attributes:
        takes: types of mapped values it can reduce ("int", "word", "char").
        result: its annotation; ``{t}`` is the type of the values.
        of: wordings as a noun, with ``{np}`` (or ``{bare}``, the same without "the").
        do: wordings as an order after the others.
        init, step, final: lines of a loop, with ``{a}`` the accumulator and ``{v}`` the mapped value.
        exprs: expressions of a generator ``{gen}``.
        lists: expressions of a list ``{a}`` of the mapped values.
        run: the meaning, of the objects, their mapped values and the constants.
        maps: whether a map must ("must"), may ("may") or must not ("none") come before.
        defaults: what is returned for no elements, where the docstring must say it.
        predicate: whether the condition is part of the question, not of the choice of elements.
    """

    key: str
    takes: tuple[str, ...]
    result: str
    of: tuple[str, ...]
    do: tuple[str, ...]
    run: Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], Any]
    names: tuple[str, ...]
    init: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    final: tuple[str, ...] = ("return {a}",)
    exprs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    maps: str = "may"
    defaults: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    ordered: bool = True
    small: bool = False
    predicate: bool = False
    weight: int = 4


ANY = ("int", "word", "char")
TEXT = ("word", "char")


def _running(values: Sequence[int]) -> list[int]:
    return [sum(values[: i + 1]) for i in range(len(values))]


def _counts(values: Sequence[Any]) -> dict[Any, int]:
    return {value: list(values).count(value) for value in values}


def _groups(objects: Sequence[Any], values: Sequence[Any]) -> dict[Any, list[Any]]:
    return {value: [o for o, v in zip(objects, values, strict=True) if v == value] for value in values}


REDUCES = (
    Reduce(
        "sum", ("int",), "int", ("the sum of {np}", "the total of {np}"),
        ("add them up", "return their sum", "return the total"), lambda o, v, c: sum(v),
        ("total", "result", "running"), ("{a} = 0",), ("{a} += {v}",), exprs=("sum({gen})",), lists=("sum({a})",),
        ordered=False, weight=9,
    ),
    Reduce(
        "product", ("int",), "int", ("the product of {np}",), ("multiply them all", "return their product"),
        lambda o, v, c: _product(v), ("product", "result", "total"), ("{a} = 1",), ("{a} *= {v}",),
        ordered=False, small=True,
    ),
    Reduce(
        "count", ANY, "int", ("the number of {bare}", "how many {bare} there are"),
        ("count them", "return how many there are"), lambda o, v, c: len(v), ("count", "total", "found"),
        ("{a} = 0",), ("{a} += 1",), exprs=("sum(1 for {gen_of})", "len([{gen}])"), lists=("len({a})",), maps="none",
        ordered=False, weight=8,
    ),
    Reduce(
        "max", ("int",), "int", ("the largest of {np}", "the maximum of {np}"),
        ("return the largest", "find the maximum"), lambda o, v, c: max(v, default=c["z"]),
        ("best", "largest", "highest"), ("{a} = None",), ("if {a} is None or {v} > {a}:", "    {a} = {v}"),
        ("return {z} if {a} is None else {a}",), ("max(({gen}), default={z})", "max([{gen}], default={z})"),
        ("max({a}, default={z})", "max({a}) if {a} else {z}"), defaults=("None", "0", "-1"), ordered=False, weight=6,
    ),
    Reduce(
        "min", ("int",), "int", ("the smallest of {np}", "the minimum of {np}"),
        ("return the smallest", "find the minimum"), lambda o, v, c: min(v, default=c["z"]),
        ("best", "smallest", "lowest"), ("{a} = None",), ("if {a} is None or {v} < {a}:", "    {a} = {v}"),
        ("return {z} if {a} is None else {a}",), ("min(({gen}), default={z})", "min([{gen}], default={z})"),
        ("min({a}, default={z})", "min({a}) if {a} else {z}"), defaults=("None", "0", "-1"), ordered=False, weight=6,
    ),
    Reduce(
        "average", ("int",), "float", ("the average of {np}", "the mean of {np}"),
        ("return their average", "take the mean"), lambda o, v, c: sum(v) / len(v) if v else 0,
        ("chosen", "kept", "picked"), lists=("sum({a}) / len({a}) if {a} else {z}",), defaults=("0",), ordered=False,
    ),
    Reduce(
        "spread", ("int",), "int", ("the difference between the largest and the smallest of {np}",),
        ("return the largest minus the smallest",), lambda o, v, c: max(v) - min(v) if v else 0,
        ("chosen", "kept", "picked"), lists=("max({a}) - min({a}) if {a} else {z}",), defaults=("0",), ordered=False,
        weight=3,
    ),
    Reduce(
        "list", ANY, "list[{t}]", ("a list of {np}", "the list of {np}"),
        ("return them as a list", "collect them in a list"), lambda o, v, c: list(v),
        ("result", "found", "collected"), ("{a} = []",), ("{a}.append({v})",), exprs=("[{gen}]",), weight=12,
    ),
    Reduce(
        "reversed", ANY, "list[{t}]", ("a list of {np}, last one first",), ("return them as a list, last one first",),
        lambda o, v, c: list(v)[::-1], ("result", "backwards", "found"), ("{a} = []",), ("{a}.insert(0, {v})",),
        exprs=("[{gen}][::-1]",), lists=("{a}[::-1]", "list(reversed({a}))"), weight=3,
    ),
    Reduce(
        "sorted", ANY, "list[{t}]", ("a sorted list of {np}", "{np} as a list in ascending order"),
        ("sort them in ascending order", "return them as a sorted list"), lambda o, v, c: sorted(v),
        ("result", "chosen", "ordered"), ("{a} = []",), ("{a}.append({v})",), ("return sorted({a})",),
        ("sorted({gen})",), ("sorted({a})",), ordered=False,
    ),
    Reduce(
        "descending", ANY, "list[{t}]", ("{np} as a list in descending order",), ("sort them in descending order",),
        lambda o, v, c: sorted(v, reverse=True), ("result", "chosen", "ordered"), ("{a} = []",),
        ("{a}.append({v})",), ("return sorted({a}, reverse=True)",), ("sorted([{gen}], reverse=True)",),
        ("sorted({a}, reverse=True)",), ordered=False, weight=3,
    ),
    Reduce(
        "top", ("int",), "list[int]", ("a list of the {n} largest of {np}, largest first",),
        ("return a list of the {n} largest, largest first",), lambda o, v, c: sorted(v, reverse=True)[: c["n"]],
        ("ranked", "ordered", "descending"), exprs=("sorted([{gen}], reverse=True)[:{n}]",),
        lists=("sorted({a}, reverse=True)[:{n}]",), constants={"n": "few"}, ordered=False, weight=3,
    ),
    Reduce(
        "any", ANY, "bool",
        ("whether any of {np0} {singular}", "True if at least one of {np0} {singular}, otherwise False"), (),
        lambda o, v, c: bool(v), ("found", "seen", "result"), step=("return True",), final=("return False",),
        exprs=("any({keep} for {for_of})",), maps="none", ordered=False, predicate=True,
    ),
    Reduce(
        "all", ANY, "bool",
        ("whether all of {np0} {plural}", "True if every one of {np0} {singular}, otherwise False"), (),
        lambda o, v, c: not v, ("result", "ok", "good"), step=("return False",), final=("return True",),
        exprs=("all({keep} for {for_of})",), maps="none", ordered=False, predicate=True,
    ),
    Reduce(
        "none", ANY, "bool", ("whether none of {np0} {singular}",), (),
        lambda o, v, c: not v, ("result", "ok", "good"), step=("return False",), final=("return True",),
        exprs=("not any({keep} for {for_of})",), maps="none", ordered=False, predicate=True, weight=2,
    ),
    Reduce(
        "first", ANY, "{t}", ("the first of {np}",), ("return the first one", "return the first of them"),
        lambda o, v, c: v[0] if v else c["z"], ("found", "chosen", "matches"), (), ("return {v}",), ("return {z}",),
        ("next(({gen}), {z})",), ("{a}[0] if {a} else {z}",), defaults=("None", "0", "-1"), weight=6,
    ),
    Reduce(
        "last", ANY, "{t}", ("the last of {np}",), ("return the last one", "return the last of them"),
        lambda o, v, c: v[-1] if v else c["z"], ("last", "found", "latest"), ("{a} = {z}",), ("{a} = {v}",),
        lists=("{a}[-1] if {a} else {z}",), defaults=("None", "0", "-1"), weight=5,
    ),
    Reduce(
        "unique", ANY, "list[{t}]", ("a list of {np}, each different result only once",),
        ("return a list of the different results, in order",), lambda o, v, c: list(dict.fromkeys(v)),
        ("unique", "result", "distinct"), ("{a} = []",), ("if {v} not in {a}:", "    {a}.append({v})"),
        exprs=("list(dict.fromkeys({gen}))",), lists=("list(dict.fromkeys({a}))",),
    ),
    Reduce(
        "variety", ANY, "int", ("how many different results {np} give",), ("count the different results",),
        lambda o, v, c: len(set(v)), ("distinct", "different", "results"), ("{a} = set()",), ("{a}.add({v})",),
        ("return len({a})",), ("len({{gen}})", "len(set({gen}))"), ("len(set({a}))",), ordered=False, maps="must",
        weight=3,
    ),
    Reduce(
        "counts", ANY, "dict[{t}, int]", ("a dict that counts how often each of {np} occurs",),
        ("count in a dict how often each occurs",), lambda o, v, c: _counts(v), ("counts", "tally", "frequency"),
        ("{a} = {}",), ("{a}[{v}] = {a}.get({v}, 0) + 1",), weight=6,
    ),
    Reduce(
        "mapping", ANY, "dict[{o_t}, {t}]",
        ("a dict from each of {np0_filtered} to {its}", "a dict that maps each of {np0_filtered} to {its}"), (),
        lambda o, v, c: dict(zip(o, v, strict=True)), ("result", "mapping", "table"), ("{a} = {}",),
        ("{a}[{x}] = {v}",), exprs=("{{x}: {gen}}",), maps="must", weight=5,
    ),
    Reduce(
        "groups", ANY, "dict[{t}, list[{o_t}]]", ("a dict of lists that groups {np0_filtered} by {its}",), (),
        lambda o, v, c: _groups(o, v), ("groups", "result", "buckets"), ("{a} = {}",),
        ("{a}.setdefault({v}, []).append({x})",), maps="must", weight=4,
    ),
    Reduce(
        "running", ("int",), "list[int]", ("a list of the running totals of {np}",),
        ("return a list of their running totals",), lambda o, v, c: _running(v), ("result", "sums", "totals"),
        ("{a} = []", "running = 0"), ("running += {v}", "{a}.append(running)"),
    ),
    Reduce(
        "steps", ("int",), "list[int]", ("a list of the differences of {np}, each minus the one before it",),
        ("return a list of the differences, each minus the one before it",),
        lambda o, v, c: [b - a for a, b in pairwise(v)], ("chosen", "kept", "picked"),
        lists=("[after - before for before, after in zip({a}, {a}[1:])]",), weight=3,
    ),
    Reduce(
        "both", ("int",), "tuple[int, int]", ("a tuple with the sum and the number of {np}",),
        ("return a tuple of their sum and their number",), lambda o, v, c: (sum(v), len(v)),
        ("total", "result", "added"), ("{a} = 0", "count = 0"), ("{a} += {v}", "count += 1"), ("return {a}, count",),
        lists=("sum({a}), len({a})",), ordered=False, weight=3,
    ),
    Reduce(
        "join", TEXT, "str", ("one string of {np}, joined with {s}", "{np} as one string, separated by {s}"),
        ("join them with {s}", "return one string of them, separated by {s}"), lambda o, v, c: c["s"].join(v),
        ("parts", "pieces", "found"), ("{a} = []",), ("{a}.append({v})",), ("return {s}.join({a})",),
        ("{s}.join({gen})",), ("{s}.join({a})",), constants={"s": "separator"}, weight=8,
    ),
    Reduce(
        "concat", TEXT, "str", ("one string made of {np}", "the string that {np} make together"),
        ("put them together in one string", "join them without a separator"), lambda o, v, c: "".join(v),
        ("result", "text", "built"), ('{a} = ""',), ("{a} += {v}",), exprs=('"".join({gen})',),
        lists=('"".join({a})',), weight=7,
    ),
    Reduce(
        "longest", ("word",), "str", ("the longest of {np}, the first one if several are equally long",),
        ("return the longest, the first one if several are equally long",),
        lambda o, v, c: max(v, key=len, default=""), ("longest", "best", "result"), ('{a} = ""',),
        ("if len({v}) > len({a}):", "    {a} = {v}"), exprs=('max(({gen}), key=len, default={z})',),
        lists=("max({a}, key=len, default={z})", "max({a}, key=len) if {a} else {z}"), defaults=('""',), weight=6,
    ),
    Reduce(
        "shortest", ("word",), "str", ("the shortest of {np}, the first one if several are equally short",),
        ("return the shortest, the first one if several are equally short",),
        lambda o, v, c: min(v, key=len, default=""), ("shortest", "best", "result"), ("{a} = None",),
        ("if {a} is None or len({v}) < len({a}):", "    {a} = {v}"), ("return {z} if {a} is None else {a}",),
        ('min(({gen}), key=len, default={z})',),
        ("min({a}, key=len, default={z})", "min({a}, key=len) if {a} else {z}"), defaults=('""',), weight=4,
    ),
    Reduce(
        "letters", ("word",), "int", ("the total length of {np}",),
        ("add up their lengths", "return their total length"), lambda o, v, c: sum(len(x) for x in v),
        ("total", "result", "length"), ("{a} = 0",), ("{a} += len({v})",),
        lists=("sum(map(len, {a}))", 'len("".join({a}))'), ordered=False,
    ),
    Reduce(
        "streak", ANY, "int", ("the length of the longest run of neighbouring {nouns} {place} that {plural}",), (),
        lambda o, v, c: c["streak"], ("longest", "best", "record"), ("{a} = 0", "current = 0"),
        ("current = current + 1 if {keep} else 0", "{a} = max({a}, current)"), maps="none", predicate=True, weight=3,
    ),
    Reduce(
        "partition", ANY, "tuple[list[{t}], list[{t}]]",
        ("a tuple of two lists, one of {np} and one of all the others",), (), lambda o, v, c: (list(v), c["others"]),
        ("chosen", "kept", "matching"), ("{a} = []", "others = []"),
        ("if {keep}:", "    {a}.append({v})", "else:", "    others.append({v})"), ("return {a}, others",),
        maps="none", predicate=True, weight=4,
    ),
)  # fmt: skip


def _product(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result
