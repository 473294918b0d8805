"""How a spec reads: the docstring's sentences, the prompt around the function, and sentences that explain an answer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from random import Random
from typing import Any

from recipes.reference_pair.tasks.code.maps import IDENTITY
from recipes.reference_pair.tasks.code.parts import Wording
from recipes.reference_pair.tasks.code.spec import TYPES, Spec, fill, quoted

WIDTH = 84
LEADS = ("Return", "Compute and return", "Find", "Give", "Work out")
PIPES = ("Take {np}", "Go through {np}", "Look at {np}", "Start with {np}")
ENDS = {
    "skip_first": ("Skip the first {noun} of {p}.", "Leave out the first {noun} of {p}."),
    "skip_last": ("Skip the last {noun} of {p}.", "Leave out the last {noun} of {p}."),
    "every_second": (
        "Use only every second {noun} of {p}, starting with the first.",
        "Look only at every other {noun} of {p}, from the first on.",
    ),
    "backwards": ("Go through {p} from back to front.", "Work backwards, from the last {noun} of {p} to the first."),
    "distinct": ("A repeated {noun} counts only once.", "Use every {noun} only the first time that it comes."),
    "limit": ("Use only the first {l} of them.", "Stop after the first {l} of them."),
    "stop": ("Stop at {stop} and leave out the rest.", "Whatever comes from {stop} on is left out."),
}
DEFAULTS = ("If there are none, return {z}.", "Return {z} if there are none.", "Without any, the result is {z}.")
REQUESTS = {
    "code": (
        "Write the function.",
        "Complete the code:",
        "Implement this:",
        "Fill in the body.",
        "Finish this function:",
        "Please write this function in Python.",
        "Here is a signature with its docstring. Write the code.",
        "What goes into this function?",
        "I need the code for this:",
        "Make these examples pass:",
    ),
    "comments": (
        "Write the function with comments.",
        "Implement this and comment the steps:",
        "Complete the code and say in comments what it does:",
        "Please add the body, with a comment at each step.",
    ),
    "after": (
        "Write the function and explain it in one sentence.",
        "Implement this, then say how it works:",
        "Complete the code and explain it:",
        "How would you write this? Add a sentence about it.",
    ),
    "before": (
        "Explain in a sentence how to do this, then write it:",
        "First say how you do it, then write the function.",
        "Describe your solution, then give the code:",
    ),
}
FORMS = ("code", "comments", "after", "before")
FORM_WEIGHTS = (55, 15, 18, 12)


class Wordings:
    """The choices of wording of one prompt, and the phrases made with them."""

    def __init__(self, rng: Random, spec: Spec) -> None:
        self.spec = spec
        self.choices: list[int] = []
        self._rng = rng
        ticks = self._pick((False, True))
        marks = {"p": spec.params[0], "q": spec.params[1] if spec.source.key == "pairs" else ""}
        self.constants = spec.texts
        if ticks:
            marks = {key: f"`{value}`" for key, value in marks.items()}
            if spec.argument:
                self.constants = {**self.constants, spec.argument: f"`{spec.params[-1]}`"}
        self.place = fill(self._pick(spec.source.places), marks)
        self.p = marks["p"]
        self.condition: Wording | None = self._pick(spec.filter.wordings) if spec.filter else None
        self.near = self._pick((False, True))
        self.all = self._elements(None)
        self.chosen = self._elements(self.condition)

    def _pick(self, options: Sequence[Any]) -> Any:
        index = self._rng.randrange(len(options))
        self.choices.append(index)
        return options[index]

    def _elements(self, condition: Wording | None) -> str:
        """The elements that meet a condition, as a noun phrase that starts with "the"."""
        nouns, key = self.spec.source.noun + "s", self.spec.source.key
        if condition is None:
            text = f"the {nouns} {self.place}"
        elif key in ("keys", "names"):
            text = f"the {nouns} {self.place} whose {'value' if key == 'keys' else 'number'} {condition.singular}"
        elif condition.before:
            text = f"the {condition.before} {nouns} {self.place}"
        elif self.near and condition.after and key in ("ints", "words", "values"):
            text = f"the {nouns} {condition.after} {self.place}"
        else:
            text = f"the {nouns} {self.place} that {condition.plural}"
        return fill("the indexes of " + text if key == "indexes" else text, self.constants)

    def values(self) -> dict[str, str]:
        """What the wordings of reductions and twists may name."""
        condition = self.condition
        chosen = self.chosen
        mapped = fill(self._pick(self.spec.map.of), {"np": chosen})
        stop = self.spec.stop
        return {
            **self.constants,
            "np": fill(mapped, self.constants),
            "bare": chosen.removeprefix("the "),
            "np0": self.all,
            "np0_filtered": chosen,
            "its": fill(self.spec.map.its, self.constants),
            "noun": self.spec.source.noun,
            "nouns": self.spec.source.noun + "s",
            "place": self.place,
            "p": self.p,
            "stop": stop[2] if stop else "",
            "singular": fill(condition.singular, self.constants) if condition else "",
            "plural": fill(condition.plural, self.constants) if condition else "",
        }

    def order(self) -> str:
        """The last step as an order."""
        return fill(self._pick(self.spec.reduce.do), self.constants)

    def map_order(self) -> str:
        """The map as an order, empty where nothing is mapped."""
        return fill(self._pick(self.spec.map.do), self.constants)

    def summary(self) -> str:
        """The first sentence of the docstring."""
        values = self.values()
        if self.spec.twist in ("unchanged", "zero"):
            return self._branch(values)
        if not self.spec.reduce.do or self._pick((True, True, False)):
            of = self._pick(self.spec.reduce.of)
            lead = "Return" if of.startswith(("True", "whether", "how")) else self._pick(LEADS)
            return f"{lead} {fill(of, values)}."
        start = fill(self._pick(PIPES), {"np": self.chosen})
        middle = f", {self.map_order()}" if self.spec.map is not IDENTITY else ""
        return f"{start}{middle} and {self.order()}."

    def _branch(self, values: dict[str, str]) -> str:
        other = {
            "unchanged": ("leave the others as they are", "keep the others unchanged"),
            "zero": ("replace the others by 0", "put 0 for the others"),
        }
        rest = self._pick(other[self.spec.twist])
        text = f"Replace every {{noun}} {{place}} that {{singular}} by {{its}}, {rest} and {self.order()}."
        return fill(text, values)

    def docstring(self) -> str:
        """All sentences, which determine the function."""
        sentences = [self.summary()]
        values = self.values()
        twist = "stop" if self.spec.stop else self.spec.twist
        if twist in ENDS:
            sentences.append(fill(self._pick(ENDS[twist]), values))
        if self.spec.reduce.defaults:
            sentences.append(fill(self._pick(DEFAULTS), values))
        return " ".join(sentences)


def signature(spec: Spec, hints: bool) -> str:
    """The def line, with or without annotations."""
    kinds = [spec.source.annotation] * (len(spec.params) - bool(spec.argument)) + ["int"] * bool(spec.argument)
    if not hints:
        return f"def {spec.name}({', '.join(spec.params)}):"
    params = ", ".join(f"{name}: {kind}" for name, kind in zip(spec.params, kinds, strict=True))
    given = "int" if spec.source.given == "pair" else TYPES[spec.source.given]
    result = TYPES[spec.map.result] if spec.map.result else given
    text = fill(spec.reduce.result, {"t": result, "o_t": given})
    if spec.reduce.defaults and spec.constants["z"] is None:
        text += " | None"
    return f"def {spec.name}({params}) -> {text}:"


def literal(value: Any) -> str:
    """A value as a doctest writes it, strings in the quotes of ``repr``."""
    return repr(value)


def stub(spec: Spec, head: str, doc: str, cases: Sequence[tuple[tuple[Any, ...], Any]]) -> str:
    """The def line with its docstring and examples."""
    lines = textwrap.wrap(f'"""{doc}', WIDTH)
    for args, result in cases:
        lines.append(f">>> {spec.name}({', '.join(quoted(a) if isinstance(a, str) else literal(a) for a in args)})")
        if result is not None:
            lines.append(literal(result))
    return "\n".join([head, *("    " + line for line in lines), '    """'])


def prompt(rng: Random, form: str, text: str) -> tuple[str, str, bool]:
    """The message, the choices behind it, and whether its code is fenced."""
    request = rng.randrange(len(REQUESTS[form]))
    words = REQUESTS[form][request]
    last, fenced, gap = rng.random() < 0.3, rng.random() < 0.3, rng.choice(("\n\n", "\n"))
    if last and words.endswith(":"):
        words = words[:-1] + "."
    code = f"```python\n{text}\n```" if fenced else text
    message = f"{code}{gap}{words}" if last else f"{words}{gap}{code}"
    return message, f"{form}{request}{'l' if last else 'f'}{'`' if fenced else '-'}{len(gap)}", fenced
