"""Puts published rows into the tables of the README and of docs, by the names in ``TABLES``.

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. With ``--check`` nothing is written,
and a table that differs is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from common import RESULTS, ROOT, Row, console, interval, matching
from kvshot_figures import (
    by_task_table,
    confidence_table,
    curve_table,
    depths_table,
    gradients_table,
    limits_table,
    predictions_table,
    prompts_differences_table,
    recipes_table,
    rows_table,
    seeds_differences_table,
    trained_table,
)

from draftgauge.core.provenance import read_measurement

PLACE = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def main() -> int:
    """Write the tables of all pages, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    different = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
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


REAL_RULES = ("cumulative-confidence", "stopping", "lookup-else-stopping", "two-source")
RUN_NAMES = {
    "bf16": "torch, bfloat16",
    "fp32": "torch, float32, AVX2 alone",
    "int8": "torch, LLM.int8",
    "int8-older": "torch, LLM.int8, on an older CPU",
    "nf4": "torch, nf4",
    "bf16-h200": "torch, bfloat16, on an H200",
    "nf4-h200": "torch, nf4, on an H200",
    "int8-h200": "torch, LLM.int8, on an H200",
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


def shipped_table(rows: Sequence[Row]) -> Iterator[str]:
    """Rules fitted and as they ship over plain decoding, and ``two-source`` over the best simpler rule, paired."""
    names = ("`two-source`, fitted", "as shipped", "`stopping`, fitted", "as shipped")
    yield f"| target | `two-source` over the best simpler rule | which | {' | '.join(names)} |"
    yield f"|---|---:|---|{'---:|' * len(names)}"
    for run in RUN_NAMES:
        own = {row["policy"]: row for row in matching(rows, {"run": run, "design": "all tasks", "task": "all"})}
        if own:
            rules = ("two-source", "two-source (as shipped)", "stopping", "stopping (as shipped)")
            speeds = " | ".join(f"{own[rule]['ratio_to_plain']:.2f}x" for rule in rules)
            best = own["two-source"]
            over = interval(best, "gain_over_rival")
            yield f"| {RUN_NAMES[run]} | {over} | `{best['best_rival']}` | {speeds} |"


LIVE = ("bf16", "fp32", "int8", "nf4", "Q4_K_M", "bf16-h200", "nf4-h200")


def headline_table(_: Sequence[Row]) -> Iterator[str]:
    """Tokens a second live on every engine: plain, with the best fixed length and ``two-source``; and the ratio."""
    yield "| target | prompts | plain | best fixed length | `two-source` | `two-source` over plain |"
    yield "|---|---:|---:|---:|---:|---:|"
    for run in LIVE:
        rows = read_measurement(RESULTS / f"real-live-{run}.json").rows
        own = {re.sub(r"^.*\.(.+)\.json$", r"\1", row["policy"]): row for row in matching(rows, {"task": "all"})}
        name = next(name for name in own if name.startswith("fixed"))
        plain, fixed, two = (f"{own[policy]['tokens_per_second']:.1f}" for policy in ("plain", name, "two-source"))
        ratio, low, high = (own["two-source"][f"ratio_to_plain{end}"] for end in ("", "_low", "_high"))
        fixed = f"{fixed} ({name.removeprefix('fixed:')})"
        over = f"{ratio:.2f}x [{low:.2f}, {high:.2f}]"
        yield f"| {RUN_NAMES[run]} | {own['plain']['prompts']} | {plain} | {fixed} | {two} | {over} |"


def limit_table(rows: Sequence[Row], model: str = "qwen2.5-coder-1.5b") -> Iterator[str]:
    """Plain decoding by setup: tokens a second, what four tokens cost, memory, and why a setup is left out."""
    yield "| setup | tokens/s | four tokens over one | GiB |"
    yield "|---|---:|---:|---:|"
    for row in matching(rows, {"model": model}):
        if "setup" not in row or "turn" in row or row["setup"] == "memory":
            continue
        if "one_ms" not in row:
            yield f"| {row['setup']} | {row['reason']} | | |"
            continue
        four = f"{row['four_ms'] / row['one_ms']:.2f}" if "four_ms" in row else ""
        memory = f"{row['resident_bytes'] / 2**30:.1f}"
        yield f"| {row['setup']} | {row['tokens_per_second']:.1f} | {four} | {memory} |"


def limit_ratios_table(rows: Sequence[Row]) -> Iterator[str]:
    """What plain decoding is to reach, and what it does."""
    yield "| model | figure | over | at least | at most | measured |"
    yield "|---|---|---|---:|---:|---:|"
    for row in rows:
        if "figure" in row:
            bounds = [f"{row[name]:.2f}" if row[name] else "" for name in ("least", "most")]
            ratio = "not run here" if row["ratio"] is None else f"{row['ratio']:.2f}"
            yield f"| {row['model']} | {row['figure']} | {row['over']} | {' | '.join(bounds)} | {ratio} |"


def contest_table(rows: Sequence[Row]) -> Iterator[str]:
    """Live decoding by engine, weights and drafting, fastest first; the weights' divergence from the checkpoint's."""
    yield "| engine | weights | drafting | tokens/s | tokens a pass | over the best rival | KL, nats |"
    yield "|---|---|---|---:|---:|---:|---:|"
    engines = {"llama-server": "gguf", "genai": "openvino"}
    quality = {(row["engine"], row["weights"]): row["kl"] for row in matching(rows, {"part": "quality"})}
    for row in sorted(matching(rows, {"part": "test"}), key=lambda row: -row["tokens_per_second"]):
        engine = engines.get(row["setup"], "gguf" if "gguf" in row["setup"] else row["setup"].split()[-1])
        kl = quality.get((engine if engine in engines.values() else "torch", row["weights"]))
        speed = "{tokens_per_second:.1f} [{tokens_per_second_low:.1f}, {tokens_per_second_high:.1f}]".format(**row)
        over = "{over_best_rival:.2f} [{over_best_rival_low:.2f}, {over_best_rival_high:.2f}]".format(**row)
        steps = f"{row['tokens_per_step']:.1f}" if row["tokens_per_step"] else ""
        drafting, kl = f"`{row['arm']}`", "" if kl is None else f"{kl:.3f}"
        yield f"| {row['setup']} | {row['weights']} | {drafting} | {speed} | {steps} | {over} | {kl} |"


def served_table(rows: Sequence[Row]) -> Iterator[str]:
    """What ``advise`` names for a server beside the best length of all, by pair, prompts and requests at once."""
    yield "| target | drafter | prompts | requests | advised | tokens/s | best of all | tokens/s | advised over best |"
    yield "|---|---|---|---:|---|---:|---|---:|---:|"
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        names = (row[name].removesuffix(".gguf") for name in ("target", "drafter"))
        cells.setdefault((*names, row["prompts"], row["at_once"]), []).append(row)
    for cell, own in cells.items():
        named, best = next(row for row in own if row["advised"]), next(row for row in own if row["of_best"] == 1)
        shown = [f"`{row['setting']}` | {row['tokens_per_second']:.1f}" for row in (named, best)]
        yield f"| {' | '.join(map(str, cell))} | {' | '.join(shown)} | {named['of_best']:.2f} |"


def batches_table(rows: Sequence[Row]) -> Iterator[str]:
    """By requests at once: the best fixed length live and in replay, and ``stopping`` over it."""
    yield "| requests | best fixed length, live | and in replay, at the live speed of | `stopping` |"
    yield "|---:|---:|---:|---:|"
    for batch in dict.fromkeys(row["batch"] for row in rows if "policy" in row):
        own = [*matching(rows, {"batch": batch})]
        live, replayed = (next(matching(own, {key: True})) for key in ("best_live", "best_replayed"))
        stopping = next(row for row in own if row["policy"].startswith("stopping"))
        share = [
            "{share_of_best_live:.2f} [{share_of_best_live_low:.2f}, {share_of_best_live_high:.2f}]".format(**row)
            for row in (replayed, stopping)
        ]
        same = live is replayed
        in_replay = replayed["policy"][6:] + ("" if same else f": {share[0]}")
        yield f"| {batch} | {live['policy'][6:]} | {in_replay} | {share[1]} |"


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], Iterator[str]]]] = {
    "best length": ("real-speckv.json", best_length_table),
    "lengths": ("real-speckv.json", lengths_table),
    "real headline": ("real-live-bf16.json", headline_table),
    "limit": ("limit.json", limit_table),
    "limit 0.5B": ("limit.json", partial(limit_table, model="qwen2.5-coder-0.5b")),
    "limit ratios": ("limit.json", limit_ratios_table),
    "contest": ("live-limit.json", contest_table),
    "served": ("serving-llama-server.json", served_table),
    "served vLLM": ("serving-vllm.json", served_table),
    "batches": ("batch.json", batches_table),
    "real pair": ("real-replayed.json", real_table),
    "real held out": ("real-replayed.json", real_held_out_table),
    "real live": ("real-live-bf16.json", real_live_table),
    "real transformers": ("real-transformers-bf16.json", real_live_table),
    "real live H200": ("real-live-bf16-h200.json", partial(real_live_table, run="bf16-h200")),
    "real shipped": ("real-replayed.json", shipped_table),
    "real live int8 H200": ("real-live-int8-h200.json", partial(real_live_table, run="int8-h200")),
    "real live nf4 H200": ("real-live-nf4-h200.json", partial(real_live_table, run="nf4-h200")),
    "real live nf4": ("real-live-nf4.json", partial(real_live_table, run="nf4")),
    "real live fp32": ("real-live-fp32.json", partial(real_live_table, run="fp32")),
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
    "remedies": ("kvshot-full.json", seeds_differences_table),
    "differences": ("kvshot-block.json", seeds_differences_table),
    "differences on SmolLM2": ("kvshot-smollm2.json", prompts_differences_table),
    "confidence head": ("confidence-head.json", confidence_table),
    "real pair ranked": ("rank-qwen.json", trained_table),
    "real pair by task": ("rank-qwen.json", by_task_table),
    "by task on SmolLM2": ("trained-smollm2.json", by_task_table),
    "by task on a GPU": ("rank-h200.json", by_task_table),
    "by task on a CPU": ("rank-qwen-trained.json", by_task_table),
}

if __name__ == "__main__":
    sys.exit(main())
