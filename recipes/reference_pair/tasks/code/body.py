"""Bodies that do what a spec says: loops, comprehensions, two steps; which one and with what names is a free choice."""

from __future__ import annotations

from random import Random

from recipes.reference_pair.tasks.code.maps import IDENTITY
from recipes.reference_pair.tasks.code.spec import SLICES, Spec, fill

INDENT = "    "
KEPT = ("kept", "chosen", "selected", "matches", "picked")
LABELS = {"keys": ("key", "name", "k"), "names": ("name", "label", "who"), "indexes": ("i", "index", "position")}


class Writer:
    """Writes one body of a spec; every free choice is drawn from ``rng``."""

    def __init__(self, rng: Random, spec: Spec) -> None:
        self.rng, self.spec = rng, spec
        self.taken = {*spec.params, spec.name}
        source = spec.source
        subject = self.free(*self._loop_names()).split()
        self.x, self.y = subject[0], subject[-1]
        self.o = self.free(*LABELS[source.key]) if source.key in LABELS else self.x
        self.target = f"{self.o}, {self.x}" if source.key in LABELS else ", ".join(subject)
        self.object = f"({self.x}, {self.y})" if source.tested == "pair" else self.o
        self.a = self.free(*spec.reduce.names)
        self.texts = spec.texts
        self.iterable = self._iterable()
        self.keep = self._code(rng.choice(spec.filter.keep), self.x) if spec.filter else ""
        self.drop = self._code(rng.choice(spec.filter.drop), self.x) if spec.filter else ""
        self.mapped = self._code(rng.choice(spec.map.code), self.o) if spec.map is not IDENTITY else self.object
        self.kind = ""

    def _loop_names(self) -> tuple[str, ...]:
        names = self.spec.source.variables
        param = self.spec.params[0]
        if self.spec.source.key in ("ints", "words", "values") and param.endswith("s") and len(param) > 3:
            return (*names, param[:-1], param[:-1])
        return names

    def free(self, *options: str) -> str:
        """A name that is not taken yet, and now is."""
        usable = [o for o in options if not self.taken & set(o.split())] or [o + "_" for o in options]
        name = self.rng.choice(usable)
        self.taken.update(name.split())
        return name

    def _code(self, text: str, x: str) -> str:
        return fill(text, {**self.texts, "x": x, "y": self.y})

    def _iterable(self) -> str:
        params = dict(zip("pq", self.spec.params, strict=False))
        text = fill(self.rng.choice(self.spec.source.iterable), params)
        cut = next((code for name, code, _ in SLICES if name == self.spec.twist), "")
        return text + cut if cut != "[::-1]" or self.rng.random() < 0.5 else f"reversed({text})"

    def write(self) -> list[str]:
        """Lines of the body, not indented; sets ``kind`` to the shape that they have."""
        shapes = self._shapes()
        self.kind = self.rng.choice(shapes)
        once = self.spec.twist == "distinct"
        if once and (self.kind != "loop" or self.rng.random() < 0.5):
            self.iterable = f"dict.fromkeys({self.iterable})"
            once = False
        if self.spec.twist in ("unchanged", "zero"):
            return self._branch_loop() if self.kind == "loop" else self._comprehension()
        if self.spec.twist == "limit":
            return self._limited()
        if self.kind == "loop":
            return self._loop(once)
        if self.kind == "two":
            return self._two_steps()
        return self._comprehension()

    def _shapes(self) -> list[str]:
        reduce = self.spec.reduce
        shapes = ["loop"] * 5 if reduce.step else []
        if self.spec.stop is not None:
            return shapes or ["two"]
        if self.spec.twist == "limit":
            return shapes + ["list"] * 3 if reduce.lists or reduce.key == "list" else ["loop"]
        shapes += ["generator"] * 2 if reduce.exprs else []
        shapes += ["list"] * 2 if reduce.lists else []
        if self.spec.twist in ("unchanged", "zero"):
            return shapes
        if (
            self.keep
            and reduce.step
            and self.mapped != self.object
            and not reduce.predicate
            and "{x}" not in "".join(reduce.step)
        ):
            shapes.append("two")
        return shapes

    def generator(self, value: str | None = None) -> str:
        """The clause of a comprehension, without brackets."""
        value = self.mapped if value is None else value
        if self.spec.twist in ("unchanged", "zero"):
            other = self.object if self.spec.twist == "unchanged" else "0"
            return f"{value} if {self.keep} else {other} for {self.target} in {self.iterable}"
        kept = f" if {self.keep}" if self.keep else ""
        return f"{value} for {self.target} in {self.iterable}{kept}"

    def _values(self, **more: str) -> dict[str, str]:
        clause = self.generator()
        return {
            **self.texts,
            "a": self.a,
            "v": self.mapped,
            "x": self.object,
            "keep": self.keep,
            "gen": clause,
            "gen_of": clause.partition(" for ")[2],
            "for_of": f"{self.target} in {self.iterable}",
            **more,
        }

    def _comprehension(self) -> list[str]:
        reduce, values = self.spec.reduce, self._values()
        if self.kind == "generator":
            line = fill(self.rng.choice(reduce.exprs), values)
            if line.startswith("[") and line.endswith("]") and "[::" not in line and self.rng.random() < 0.25:
                return [f"{self.a} = {line}", f"return {self.a}"]
            return [f"return {line}"]
        return [f"{self.a} = [{values['gen']}]", "return " + fill(self.rng.choice(reduce.lists), values)]

    def _limited(self) -> list[str]:
        cut = f"[:{self.texts['l']}]"
        kept = self.free(*KEPT)
        lines = [f"{kept} = [{self.generator(self.object)}]{cut}"]
        self.iterable, self.keep, self.target = kept, "", self.object.strip("()")
        if self.spec.map is IDENTITY and self.kind == "list":
            direct = self.spec.reduce.lists or ("{a}",)
            return [*lines, "return " + fill(self.rng.choice(direct), self._values(a=kept))]
        if self.kind == "loop":
            return lines + self._loop(False)
        return lines + ([f"return [{self.generator()}]"] if self.spec.reduce.key == "list" else self._comprehension())

    def _two_steps(self) -> list[str]:
        if self.spec.stop is not None and not self.spec.reduce.step:
            return self._collected()
        kept = self.free(*KEPT)
        lines = [f"{kept} = [{self.generator(self.object)}]"]
        self.iterable, self.keep, self.target = kept, "", self.object.strip("()")
        return lines + self._loop(False)

    def _collected(self) -> list[str]:
        """A loop that collects values until it stops, then the rest from the list."""
        lines = [f"{self.a} = []", *self._over([f"{self.a}.append({self.mapped})"])]
        return [*lines, "return " + fill(self.rng.choice(self.spec.reduce.lists), self._values())]

    def _loop(self, once: bool) -> list[str]:
        reduce, values = self.spec.reduce, self._values()
        step = list(reduce.step)
        before: list[str] = []
        uses = "".join(step).count("{v}")
        simple = self.mapped.isidentifier()
        if not simple and uses and (uses > 1 or self.rng.random() < 0.3):
            name = self.free(*self.spec.map.names)
            before, values["v"] = [f"{name} = {self.mapped}"], name
        lines = [fill(line, values) for line in (*before, *step)]
        body = self._over(lines, once, "all" if reduce.key == "all" else "")
        seen = ["seen = set()"] if once else []
        return [
            *(fill(line, values) for line in reduce.init),
            *seen,
            *body,
            *(fill(line, values) for line in reduce.final),
        ]

    def _over(self, step: list[str], once: bool = False, style: str = "") -> list[str]:
        """The for statement around a step, with its condition nested or as a guard."""
        lines: list[str] = []
        if self.spec.stop is not None:
            lines += [f"if {fill(self.spec.stop[1], {'x': self.x})}:", INDENT + "break"]
        if once:
            lines += [f"if {self.object} in seen:", INDENT + "continue", f"seen.add({self.object})"]
        if not self.keep or self.spec.reduce.key in ("partition", "streak"):
            lines += step
        elif style == "all":
            lines += [f"if {self.drop}:", *(INDENT + line for line in step)]
        elif self.rng.random() < (0.4 if len(step) > 1 else 0.12):
            lines += [f"if {self.drop}:", INDENT + "continue", *step]
        else:
            lines += [f"if {self.keep}:", *(INDENT + line for line in step)]
        return [f"for {self.target} in {self.iterable}:", *(INDENT + line for line in lines)]

    def _branch_loop(self) -> list[str]:
        reduce, values = self.spec.reduce, self._values()
        other = self.object if self.spec.twist == "unchanged" else "0"
        name = self.free("value", "new", "entry", "changed")
        if len(reduce.step) == 1 and self.rng.random() < 0.6:
            first = fill(reduce.step[0], values)
            second = fill(reduce.step[0], {**values, "v": other})
            lines = [f"if {self.keep}:", INDENT + first, "else:", INDENT + second]
        else:
            step = [fill(line, {**values, "v": name}) for line in reduce.step]
            lines = [f"{name} = {self.mapped} if {self.keep} else {other}", *step]
        body = [f"for {self.target} in {self.iterable}:", *(INDENT + line for line in lines)]
        return [*(fill(line, values) for line in reduce.init), *body, *(fill(line, values) for line in reduce.final)]
