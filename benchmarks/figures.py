"""Puts published rows into the tables of the README and of docs, by the names in ``TABLES``.

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. With ``--check`` nothing is written,
and a table that differs is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from common import RESULTS, ROOT, console

from draftgauge.core.provenance import read_measurement

EQUAL_WIDTH = "equal width"
PLACE = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
Row = Mapping[str, Any]


def main() -> int:
    """Write the tables of all pages, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    different = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        written = with_tables(text)
        if written != text:
            different.append(page)
            if not args.check:
                page.write_text(written, encoding="utf-8")
    for page in different:
        console.print(f"{'differs' if args.check else 'written'}: {page.relative_to(ROOT)}", highlight=False)
    return 1 if args.check and different else 0


def with_tables(text: str) -> str:
    """A page with its tables computed from the published rows."""

    def table(place: re.Match[str]) -> str:
        name, lines = TABLES[place[2]]
        return "\n".join([place[1].rstrip("\n"), *lines(read_measurement(RESULTS / name).rows), place[3]])

    return PLACE.sub(table, text)


def interval(row: Row, key: str = "gain") -> str:
    """A gain with its 95% interval."""
    return f"{row[key]:+.1%} [{100 * row[f'{key}_low']:.1f}, {100 * row[f'{key}_high']:.1f}]"


REAL_RULES = ("cumulative-confidence", "stopping", "lookup-else-stopping", "two-source")
RUN_NAMES = {
    "bf16": "torch, bfloat16",
    "int8": "torch, LLM.int8",
    "int8-older": "torch, LLM.int8, on an older CPU",
    "nf4": "torch, nf4",
    "bf16-h200": "torch, bfloat16, on an H200",
    "nf4-h200": "torch, nf4, on an H200",
    "Q4_K_M": "llama.cpp, Q4_K_M",
    "Q4_K_M-older": "llama.cpp, Q4_K_M, on an older CPU",
    "Q8_0": "llama.cpp, Q8_0",
}


def real_table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each engine and compression of the target: all test prompts together."""
    yield from _real_head("target")
    for name in RUN_NAMES:
        own = [row for row in rows if (row["run"], row["design"], row["task"]) == (name, "all tasks", "all")]
        if own:
            yield _real_line(RUN_NAMES[name], own)


def real_tasks_table(rows: Sequence[Row]) -> Iterator[str]:
    """In bfloat16: every task, all of them, and the outputs that copy least of their prompts."""
    yield from _real_designs(rows, lambda design: not design.startswith("without"))


def real_held_out_table(rows: Sequence[Row]) -> Iterator[str]:
    """In bfloat16: each task with rules that were fitted, tuned and chosen on the other three."""
    yield from _real_designs(rows, lambda design: design.startswith("without"))


def _real_designs(rows: Sequence[Row], wanted: Callable[[str], bool]) -> Iterator[str]:
    yield from _real_head("prompts", "8-grams copied from the prompt")
    own = [row for row in rows if row["run"] == "bf16" and wanted(row["design"])]
    for design, task in dict.fromkeys((row["design"], row["task"]) for row in own):
        chosen = [row for row in own if (row["design"], row["task"]) == (design, task)]
        yield _real_line(design if "third" in design else task, chosen, f"{chosen[0]['copied_8grams']:.0%}")


def real_live_table(rows: Sequence[Row], run: str = "bf16") -> Iterator[str]:
    """Decoded live and replayed: speed, the gain over the best fixed length, and what a step gives and takes."""
    replayed = matching(read_measurement(RESULTS / "real-replayed.json").rows, {"run": run, "design": "all tasks"})
    found = {row["policy"]: row for row in matching(replayed, {"task": "all"})}
    yield "| setting | over plain decoding | over the best fixed length | replayed | tokens a step | seconds a step |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in matching(rows, {"task": "all"}):
        name = re.sub(r"^.*\.(.+)\.json$", r"\1", row["policy"])
        both = [row] + [each for policy, each in found.items() if policy == name.replace("plain", "no-draft")]
        over_plain = f"{row['ratio_to_plain']:.2f}x [{row['ratio_to_plain_low']:.2f}, {row['ratio_to_plain_high']:.2f}]"
        steps = [each for each in both if each["tokens_per_step"]]
        tokens = " / ".join(f"{each['tokens_per_step']:.2f}" for each in steps)
        seconds = " / ".join(f"{each['tokens_per_step'] / each['tokens_per_second']:#.3g}" for each in steps)
        gains = [*map(interval, both), ""][:2]
        yield f"| `{name}` | {' | '.join((over_plain, *gains, tokens, seconds))} |"


def _real_head(*first: str) -> Iterator[str]:
    rules = [f"`{rule}`" for rule in REAL_RULES]
    yield f"| {' | '.join([*first, 'best fixed length', 'it over plain', *rules, 'hindsight of both'])} |"
    yield f"|---|{'---:|' * (len(first) + 2 + len(rules))}"


def _real_line(*own: Any) -> str:
    name, rows, *more = own
    rules = {}
    for row in rows:  # a rule with a grid comes twice, as it is and tuned
        rule = row["policy"].partition(":")[0]
        if row["tuned"] or rule not in rules:
            rules[rule] = row
    length = rows[0]["best_fixed_gamma"]
    best = next(row for row in rows if row["policy"] == (f"fixed:{length}" if length else "no-draft"))
    gains = [interval(rules[rule]) for rule in REAL_RULES]
    bound = rules["hindsight-two-sources"]
    cells = [*more, str(length), f"{best['ratio_to_plain']:.2f}x", *gains, f"{bound['gain']:+.1%}"]
    return f"| {name} | {' | '.join(cells)} |"


def best_length_table(rows: Sequence[Row]) -> Iterator[str]:
    """The best fixed length where outcomes are of one compression of the target and costs are of another."""
    found = [row for row in rows if row["question"] == "best length"]
    paid = [name for name in RUN_NAMES if any(row["costs"] == name for row in found)]
    costs = " | ".join(f"costs of {RUN_NAMES[name]}" for name in paid)
    yield f"| drafts accepted as with | prompts | first token accepted | tokens a step of 4 over bfloat16's | {costs} |"
    yield f"|---|---:|---:|---:|{'---:|' * len(paid)}"
    for name in dict.fromkeys(row["outcomes"] for row in found):
        own = [row for row in found if row["outcomes"] == name]
        first = next(row["acceptance_rate"] for row in own if row["gamma"] == 1)
        best = [next(str(row["gamma"]) for row in own if row["costs"] == each and row["best"]) for each in paid]
        over = next(matching(rows, {"question": "over bf16", "outcomes": name}), None)
        cells = [str(own[0]["prompts"]), f"{first:.3f}", interval(over) if over else "", *best]
        yield f"| {RUN_NAMES[name]} | {' | '.join(cells)} |"


def lengths_table(rows: Sequence[Row]) -> Iterator[str]:
    """Every fixed length on the outcomes in bfloat16: tokens a step, and its speed at two targets' costs."""
    names = ("bf16", "nf4")
    yield f"| tokens drafted | tokens a step | {' | '.join(f'tokens/s, {RUN_NAMES[name]}' for name in names)} |"
    yield "|---:|---:|---:|---:|"
    own = [row for row in rows if row["question"] == "best length" and row["outcomes"] == "bf16"]
    for length in sorted({row["gamma"] for row in own}):
        cells = []
        for name in names:
            row = next(matching(own, {"gamma": length, "costs": name}))
            cells.append(f"{'**' * row['best']}{row['tokens_per_second']:.1f}{'**' * row['best']}")
        yield f"| {length} | {row['tokens_per_step']:.2f} | {' | '.join(cells)} |"


def depths_table(rows: Sequence[Row]) -> Iterator[str]:
    """Tokens per step over all positions of KV drafters of several layers, at equal parameters and at equal width."""
    found = matching(rows, {"measure": "mat", "design": "kv", "injection": "project-rope", "remedy": None})
    pooled = [row for row in found if not {"task", "distance"} & row.keys()]
    yield "| layers | at equal parameters | seeds | at equal width | seeds |"
    yield "|---:|---:|---:|---:|---:|"
    for layers in sorted({row["layers"] for row in pooled}):
        cells = []
        for capacity in ("equal parameters", EQUAL_WIDTH):
            own = next(matching(pooled, {"layers": layers, "capacity": capacity}), None)
            cells += [_estimate(own), str(own["seeds"])] if own else ["", ""]
        yield f"| {layers} | {' | '.join(cells)} |"


def predictions_table(rows: Sequence[Row]) -> Iterator[str]:
    """The paper's predictions that a study tested."""
    yield "| prediction | difference | p, corrected | p by seeds alone | verdict |"
    yield "|---|---:|---:|---:|---|"
    for row in rows:
        if row.get("p_value") is not None and "prediction" in row:
            found = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
            cells = [row["prediction"], row["statement"]]
            figures = [found, f"{row['p_value']:.2g}", f"{row['p_seeds']:.2g}", row["verdict"]]
            yield f"| {': '.join(cells)} | {' | '.join(figures)} |"


def rows_table(rows: Sequence[Row]) -> Iterator[str]:
    """Every drafter of a study but for remedies: its size, agreement and tokens a step, these also over the control."""
    columns = (
        "parameters",
        "agreement at depth 0",
        "3",
        "6",
        "tokens a step",
        "less `control`",
        "live",
        "seeds",
    )
    yield f"| drafter | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    kinds = ("design", "layers", "injection", "init", "capacity")
    rows = [row for row in rows if not {"task", "distance", "remedy"} & row.keys()]
    for pooled in matching(rows, {"measure": "mat"}):
        own = [*matching(rows, {key: pooled[key] for key in kinds})]
        by_measure = {row["measure"]: row for row in own if "measure" in row}
        agreement = {row["depth"]: row["agreement"] for row in own if "survival_high" in row}
        size = next(row["parameters"] for row in own if "parameters" in row)
        over = by_measure.get("mat_minus_control")
        figures = [
            f"{size / 1e6:.1f}M",
            *(f"{agreement[depth]:.3f}" for depth in (0, 3, 6)),
            _estimate(pooled),
            f"{over['estimate']:+.2f} [{over['low']:+.2f}, {over['high']:+.2f}]" if over else "",
            _estimate(by_measure["live_mat"]),
            str(pooled["seeds"]),
        ]
        yield f"| {_drafter(pooled)} | {' | '.join(figures)} |"


RECIPE_NAMES = {"ttt": "token by token", "block": "block-wise", "block-wise-markov": "block-wise, Markov head"}


def recipes_table(rows: Sequence[Row]) -> Iterator[str]:
    """Both recipes of every design after as many answer positions."""
    names = ("seeds", "agreement at depth 0", "3", "6", "tokens a step", "live", "seconds of training", "a draft of 7")
    yield f"| design | trained | {' | '.join(names)} |"
    yield f"|---|---|{'---:|' * len(names)}"
    runs = [row for row in rows if "recipe" in row]
    for design, recipe, run in ordered((row["design"], row["recipe"], row.get("run")) for row in runs):
        this = {"design": design, "run": run}
        seconds = [row["seconds_draft"] for row in matching(runs, this | {"recipe": recipe})]
        remedy = {"ttt": None, "block": "block-wise"}.get(recipe, recipe)
        own = [row for row in matching(rows, this | {"remedy": remedy}) if "capacity" in row]
        agreement = {row["depth"]: row["agreement"] for row in own if "survival_high" in row}
        by_measure = {row["measure"]: row for row in own if "measure" in row and "task" not in row}
        trained = [row["train_seconds"] for row in matching(rows, this | {"curve": recipe})]
        trained = trained or [row["train_seconds"] for row in own if "train_seconds" in row]
        cells = [
            *(f"{agreement[depth]:.3f}" for depth in (0, 3, 6)),
            *(_estimate(by_measure[each]) if each in by_measure else "" for each in ("mat", "live_mat")),
            f"{trained[-1]:.0f}",
            "" if None in seconds else f"{1e3 * min(seconds):.1f} ms",
        ]
        yield f"| `{design}` | {RECIPE_NAMES[recipe]} | {run or len(seconds)} | {' | '.join(cells)} |"


def ordered(found: Iterable[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """Each once, designs together, recipes in the order of their names."""
    once = list(dict.fromkeys(found))
    designs, recipes = list(dict.fromkeys(each[0] for each in once)), list(RECIPE_NAMES)
    return sorted(once, key=lambda each: (designs.index(each[0]), recipes.index(each[1]), str(each[2])))


def curve_table(rows: Sequence[Row]) -> Iterator[str]:
    """Tokens a step of every design at every checkpoint, and of both recipes after equal seconds of training."""
    found = [row for row in rows if "curve" in row]
    first = [*matching(found, {key: found[0].get(key) for key in ("design", "curve", "run")})]
    shown = " | ".join(f"{row['tokens_seen']:,.0f}" for row in first)
    equal = [row for row in rows if "equal_seconds" in row]
    yield f"| design | trained | {shown} positions |{' after equal seconds |' if equal else ''}"
    yield f"|---|---|{'---:|' * (len(first) + bool(equal))}"
    for design, recipe, run in ordered((row["design"], row["curve"], row.get("run")) for row in found):
        this = {"design": design, "curve": recipe, "run": run}
        own = [f"{row['tokens_per_step']:.2f}" for row in matching(found, this)]
        at = [f"{row[recipe]:.2f}" for row in matching(equal, {"design": design}) if recipe in row]
        name = RECIPE_NAMES[recipe] + (f", {run}" if run else "")
        yield f"| `{design}` | {name} | {' | '.join([*own, ', '.join(at)] if equal else own)} |"


def gradients_table(rows: Sequence[Row]) -> Iterator[str]:
    """Gradients of a drafter's own keys and values over those of its queries."""
    found = [row for row in rows if "trained" in row]
    yield "| design | trained | seeds | keys over queries | values over queries |"
    yield "|---|---|---:|---:|---:|"
    for design, recipe in dict.fromkeys((row["design"], row["by"]) for row in found):
        own = [row for row in found if (row["design"], row["by"]) == (design, recipe)]
        sizes = [[row["over_queries"] for row in own if row["trained"] == kind] for kind in ("keys", "values")]
        cells = [f"{min(each):.2f} to {max(each):.2f}" if len(each) > 1 else f"{each[0]:.2f}" for each in sizes]
        yield f"| `{design}` | {RECIPE_NAMES[recipe]} | {len(sizes[0])} | {' | '.join(cells)} |"


def limits_table(rows: Sequence[Row]) -> Iterator[str]:
    """How far a drafter's attention is from the target's at the first and the last depth, in the first layer that it
    reads, and how many directions its projections use."""
    names = ("KL at depth 0 (of uniform attention)", "at depth 6", "effective rank of queries", "keys", "values")
    yield f"| design | trained | {' | '.join(names)} |"
    yield f"|---|---|{'---:|' * len(names)}"
    found = [row for row in rows if "effective_rank" in row]
    for design, remedy in dict.fromkeys((row["design"], row.get("remedy")) for row in found):
        own = {"design": design, "remedy": remedy}
        queries = [row for row in matching(rows, own) if "query_kl" in row]
        layer = min((row["target_layer"] for row in queries), default=None)
        at = {row["depth"]: row for row in queries if row["target_layer"] == layer}
        cells = [f"{at[d]['query_kl']:.2f} ({at[d]['uniform_kl']:.2f})" if at else "" for d in (0, 6)]
        last = [*matching(found, own)][-3:]  # of two attentions the one over the target's keys
        cells += [f"{row['effective_rank']:.0f} of {row['full_rank']:.0f}" for row in last]
        recipe = {None: "ttt", "block-wise": "block"}.get(remedy, remedy)
        yield f"| `{design}` | {RECIPE_NAMES[recipe]} | {' | '.join(cells)} |"


def trained_table(rows: Sequence[Row]) -> Iterator[str]:
    """Drafters of a published model from the fastest: their training, acceptance, and speed modelled and live."""
    alone = {row["alone"]: f"{row['ratio_to_plain']:.2f}" for row in rows if "alone" in row}
    names = ("drafter", "positions", "minutes", "accepted at depth 1, 2, ...", *["alone"] * bool(alone), "setting")
    yield f"| {' | '.join(names)} | tokens a step | the drafter's | x plain | over lookup | live |"
    yield f"|---|---:|---:|---|{'---:|' * bool(alone)}---|{'---:|' * 5}"
    trained = {row["trained"]: row for row in rows if "trained" in row}
    for row in matching(rows, {"task": "all", "context": None}):
        name = row["drafter"].rpartition("/")[2]
        own = trained.get(name)
        rates = [row.get(f"alpha_{depth}") for depth in range(1, 6)]
        depths = [f"{rate:.2f}" for rate in rates if rate is not None]
        live = (
            "{live_ratio:.2f}x [{live_ratio_low:.2f}, {live_ratio_high:.2f}]".format(**row)
            if "live_ratio" in row
            else ""
        )
        cells = [
            *((f"{own['tokens']:,}", f"{own['seconds'] / 60:.0f}") if own else ("", "")),
            " ".join(depths),
            *([alone.get(name, "")] if alone else []),
            f"`{row['setting']}`",
            f"{row['tokens_per_step']:.2f}",
            f"{row['source_model']:.2f}" if depths else "",
            f"{row['ratio_to_plain']:.2f}",
            "" if name in ("lookup", "no-draft") else interval(row, "gain_over_lookup"),
            live,
        ]
        yield f"| `{name}` | {' | '.join(cells)} |"


def _drafter(row: Row) -> str:
    """A drafter of the study, in words."""
    parts = [f"`{row['design']}`"]
    if row["design"] == "kv" and row["injection"] != "project-rope":
        parts.append(row["injection"])
    if row["layers"] > 1:
        parts.append(f"{row['layers']} layers")
    if row["capacity"] == EQUAL_WIDTH:
        parts.append("equal width")
    if row["init"] == "warm":
        parts.append("warm start")
    return ", ".join(parts)


def matching(rows: Iterable[Row], key: Row) -> Iterator[Row]:
    """The rows that have these values."""
    return (row for row in rows if all(row.get(name) == value for name, value in key.items()))


def _estimate(row: Row) -> str:
    return f"{row['estimate']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], Iterator[str]]]] = {
    "best length": ("real-speckv.json", best_length_table),
    "lengths": ("real-speckv.json", lengths_table),
    "real pair": ("real-replayed.json", real_table),
    "real held out": ("real-replayed.json", real_held_out_table),
    "real live": ("real-live-bf16.json", real_live_table),
    "real transformers": ("real-transformers-bf16.json", real_live_table),
    "real live H200": ("real-live-bf16-h200.json", partial(real_live_table, run="bf16-h200")),
    "real live nf4 H200": ("real-live-nf4-h200.json", partial(real_live_table, run="nf4-h200")),
    "real live nf4": ("real-live-nf4.json", partial(real_live_table, run="nf4")),
    "real live int8": ("real-live-int8.json", partial(real_live_table, run="int8")),
    "real live Q4_K_M": ("real-live-Q4_K_M.json", partial(real_live_table, run="Q4_K_M")),
    "real tasks": ("real-replayed.json", real_tasks_table),
    "depths": ("kvshot-full.json", depths_table),
    "predictions": ("kvshot-full.json", predictions_table),
    "predictions at equal width": ("kvshot-width.json", predictions_table),
    "rows": ("kvshot-full.json", rows_table),
    "recipes": ("kvshot-block.json", recipes_table),
    "gradients": ("kvshot-block.json", gradients_table),
    "limits": ("kvshot-block.json", limits_table),
    "learning curve": ("kvshot-block.json", curve_table),
    "trained": ("trained-smollm2.json", trained_table),
    "trained on a GPU": ("rank-h200.json", trained_table),
    "trained, on a CPU": ("rank-qwen-trained.json", trained_table),
    "recipes on SmolLM2": ("kvshot-smollm2.json", recipes_table),
    "learning curve on SmolLM2": ("kvshot-smollm2.json", curve_table),
    "widths": ("kvshot-width.json", rows_table),
}

if __name__ == "__main__":
    sys.exit(main())
