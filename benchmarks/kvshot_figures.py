"""The tables of KVShot's designs: predictions, rows, recipes, differences, and what limits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from common import Row, interval, matching

EQUAL_WIDTH = "equal width"


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
            found = f"{row['difference']:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
            cells = [row["prediction"], row["statement"]]
            figures = [found, f"{row['p_value']:.2g}", f"{row['p_seeds']:.2g}", row["verdict"]]
            yield f"| {': '.join(cells)} | {' | '.join(figures)} |"


def rows_table(rows: Sequence[Row]) -> Iterator[str]:
    """Every drafter of a study but for remedies: its size, agreement and tokens a step, these also over the control."""
    columns = (
        "parameters",
        "agreement at depth 1",
        "4",
        "7",
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
            *(f"{agreement[depth]:.3f}" for depth in (1, 4, 7)),
            _estimate(pooled),
            f"{over['estimate']:+.2f} [{over['low']:+.2f}, {over['high']:+.2f}]" if over else "",
            _estimate(by_measure["live_mat"]),
            str(pooled["seeds"]),
        ]
        yield f"| {_drafter(pooled)} | {' | '.join(figures)} |"


RECIPE_NAMES = {"ttt": "token by token", "block": "block-wise", "block-wise-markov": "block-wise, Markov head"}


def recipes_table(rows: Sequence[Row]) -> Iterator[str]:
    """Both recipes of every design after as many answer positions."""
    names = ("seeds", "agreement at depth 1", "4", "7", "tokens a step", "live", "seconds of training", "a draft of 7")
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
            *(f"{agreement[depth]:.3f}" for depth in (1, 4, 7)),
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
    names = ("KL at depth 1 (of uniform attention)", "at depth 7", "effective rank of queries", "keys", "values")
    yield f"| design | trained | {' | '.join(names)} |"
    yield f"|---|---|{'---:|' * len(names)}"
    found = [row for row in rows if "effective_rank" in row]
    for design, remedy in dict.fromkeys((row["design"], row.get("remedy")) for row in found):
        own = {"design": design, "remedy": remedy}
        queries = [row for row in matching(rows, own) if "query_kl" in row]
        layer = min((row["target_layer"] for row in queries), default=None)
        at = {row["depth"]: row for row in queries if row["target_layer"] == layer}
        cells = [f"{at[d]['query_kl']:.2f} ({at[d]['uniform_kl']:.2f})" if at else "" for d in (1, 7)]
        last = [*matching(found, own)][-3:]  # of two attentions the one over the target's keys
        cells += [f"{row['effective_rank']:.0f} of {row['full_rank']:.0f}" for row in last]
        recipe = {None: "ttt", "block-wise": "block"}.get(remedy, remedy)
        yield f"| `{design}` | {RECIPE_NAMES[recipe]} | {' | '.join(cells)} |"


def seeds_differences_table(rows: Sequence[Row]) -> Iterator[str]:
    """What a drafter has over another in tokens a step, by the rows of ``mat_minus_...`` of a study."""
    yield "| drafter | trained | less | tokens a step | p | seeds |"
    yield "|---|---|---|---:|---:|---:|"
    against = {
        "plain": "as it is",
        "random": "random start",
        "entering_without_state": "entering without the newest state",
    }
    for row in rows:
        measure, _, other = row.get("measure", "").partition("_minus_")
        remedy = row.get("remedy")
        if (
            not other
            or not (remedy or other == "random")
            or other == "forced"
            or (other == "control" and "test" in row)
        ):
            continue
        if other == "plain" and remedy.startswith("block"):
            other = "block-wise" if remedy.endswith("markov") else "token by token"
        less = against.get(other, other.replace("ttt_", "token by token, ").replace("_", " "))
        name = {"block": "block-wise"}.get(remedy, RECIPE_NAMES.get(remedy, remedy or ""))
        steps = measure.removeprefix("mat").strip("_").replace("_", " ")
        p_value = "" if row.get("p_value") is None else f"{row['p_value']:.2g}"
        found = f"{row['estimate']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        trained = ", ".join(filter(None, (name, steps)))
        yield f"| {_drafter(row)} | {trained} | {less} | {found} | {p_value} | {row['seeds']} |"


def prompts_differences_table(rows: Sequence[Row]) -> Iterator[str]:
    """What a drafter has over another in tokens a step, with intervals over prompts."""
    yield "| drafter | over | runs | tokens a step |"
    yield "|---|---|---|---:|"
    for row in rows:
        if "difference" in row and "over" in row:
            found = f"{row['estimate']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
            yield f"| {row['difference']} | {row['over']} | {row['runs']} | {found} |"


def confidence_table(rows: Sequence[Row]) -> Iterator[str]:
    """What says better which drafted tokens are accepted, with and without a confidence head."""
    yield "| confidence head | seed | tokens a step | ROC AUC | log loss |"
    yield "|---|---:|---:|---:|---:|"
    for row in rows:
        figures = f"{row['tokens_per_step']:.2f} | {row['roc_auc']:.2f} | {row['log_loss']:.2f}"
        yield f"| {'yes' if row['confidence_head'] else 'no'} | {row['seed']} | {figures} |"


def by_task_table(rows: Sequence[Row]) -> Iterator[str]:
    """What every drafter gains over prompt lookup, by task."""
    tasks = [*dict.fromkeys(row["task"] for row in rows if "task" in row and "rank" in row and row["task"] != "all")]
    yield f"| drafter | {' | '.join(tasks)} |"
    yield f"|---|{'---:|' * len(tasks)}"
    for drafter in dict.fromkeys(row["drafter"] for row in rows if "rank" in row):
        own = {row["task"]: row for row in matching(rows, {"drafter": drafter, "context": None}) if "rank" in row}
        if not drafter.endswith(("lookup", "no-draft")):
            gains = [interval(own[task], "gain_over_lookup") for task in tasks]
            yield f"| `{drafter.rpartition('/')[2]}` | {' | '.join(gains)} |"


def trained_table(rows: Sequence[Row]) -> Iterator[str]:
    """Drafters of a published model from the fastest: their training, acceptance, and speed modelled and live."""
    alone = {row["alone"]: f"{row['ratio_to_plain']:.2f}" for row in rows if "alone" in row}
    trained = {row["trained"]: row for row in rows if "trained" in row}
    training = ["positions", "minutes"] * bool(trained)
    names = ("drafter", *training, "accepted at depth 1, 2, ...", *["alone"] * bool(alone), "setting")
    yield f"| {' | '.join(names)} | tokens a step | the drafter's | x plain | over lookup | live |"
    yield f"|---|{'---:|' * len(training)}---|{'---:|' * bool(alone)}---|{'---:|' * 5}"
    for row in matching(rows, {"task": "all", "context": None}):
        name = row["drafter"].rpartition("/")[2]
        own = trained.get(name)
        rates = [row.get(f"alpha_{depth}") for depth in range(1, 6)]
        depths = [f"{rate:.2f}" for rate in rates if rate is not None]
        live = (
            "{live_ratio_to_plain:.2f}x [{live_ratio_to_plain_low:.2f}, {live_ratio_to_plain_high:.2f}]".format(**row)
            if "live_ratio_to_plain" in row
            else ""
        )
        cells = [
            *((f"{own['tokens']:,}", f"{own['seconds'] / 60:.0f}") if own else [""] * len(training)),
            " ".join(depths),
            *([alone.get(name, "")] if alone else []),
            f"`{row['policy']}`",
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


def _estimate(row: Row) -> str:
    return f"{row['estimate']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
