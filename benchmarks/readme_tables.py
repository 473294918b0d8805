"""The tables of the README and of pages in docs: rows in, lines of Markdown out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]

STOPPING, BOTH = "stopping", "two-source"
FIXED, RIVAL = "best fixed", "best tuned rival"
EQUAL_PARAMETERS, EQUAL_WIDTH = "equal parameters", "equal width"
PROJECT_ROPE = "project-rope"
END = "<!-- end of figures -->"


def with_table(text: str, name: str, lines: Iterable[str]) -> str:
    """The text with the lines between the two comments that mark a table's place."""
    begin = f"<!-- figures: {name} -->"
    before, mark, rest = text.partition(begin)
    assert mark, f"the README has no place for the table {name!r}"
    return "\n".join([before + begin, *lines, END + rest.partition(END)[2]])


def pair_table(rows: Sequence[Row]) -> Iterator[str]:
    """What the target's greedy answers on test prompts are like, a line for each task."""
    yield "| task | right | distinct 4-grams | `draft` accepted at depth 1 |"
    yield "|---|---:|---:|---:|"
    for row in (row for row in rows if "right" in row):
        yield (
            f"| {row['task']} | {row['right']:.0%} | {row['distinct_4grams']:.2f} | {row['acceptance_depth_1']:.2f} |"
        )


def designs_table(rows: Sequence[Row]) -> Iterator[str]:
    """Agreement by depth and tokens per step of every drafter design of ``study kvshot``, a line each."""
    depths = (0, 3, 6)
    columns = [*(f"agreement at depth {depth}" for depth in depths), "tokens a step, all positions", "live", "seeds"]
    yield f"| design | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for pooled in matching(rows, {"measure": "mat", "layers": 1, "capacity": EQUAL_PARAMETERS}):
        if "distance" in pooled or "task" in pooled:
            continue
        design = {"design": pooled["design"], "capacity": EQUAL_PARAMETERS, "layers": 1}
        agreement = [next(r for r in matching(rows, design | {"depth": d}) if "survival_high" in r) for d in depths]
        live = next(r for r in matching(rows, design | {"measure": "live_mat"}) if "task" not in r)
        shown = [*(f"{row['agreement']:.3f}" for row in agreement), *(_estimate(row) for row in (pooled, live))]
        yield f"| `{pooled['design']}` | {' | '.join(shown)} | {pooled['seeds']} |"


def depths_table(rows: Sequence[Row]) -> Iterator[str]:
    """Tokens per step over all positions of KV drafters of several layers, at equal parameters and at equal width."""
    capacities = (EQUAL_PARAMETERS, EQUAL_WIDTH)
    found = matching(rows, {"measure": "mat", "design": "kv"})
    pooled = [row for row in found if not {"task", "distance"} & row.keys()]
    yield "| layers | at equal parameters | seeds | at equal width | seeds |"
    yield "|---:|---:|---:|---:|---:|"
    for layers in sorted({row["layers"] for row in pooled}):
        cells = []
        for capacity in capacities:
            own = next(matching(pooled, {"layers": layers, "capacity": capacity}), None)
            cells += [_estimate(own), str(own["seeds"])] if own else ["", ""]
        yield f"| {layers} | {' | '.join(cells)} |"


def rows_table(rows: Sequence[Row]) -> Iterator[str]:
    """Every drafter of a study but for remedies: its size, agreement and tokens a step, these also over the control."""
    columns = ("parameters", "agreement at depth 0", "3", "6", "tokens a step", "less `none`, paired", "live", "seeds")
    yield f"| drafter | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    kinds = ("design", "layers", "injection", "init", "capacity")
    rows = [row for row in rows if not {"task", "distance", "remedy"} & row.keys()]
    for pooled in matching(rows, {"measure": "mat"}):
        own = [*matching(rows, {key: pooled[key] for key in kinds})]
        by_measure = {row["measure"]: row for row in own if "measure" in row}
        agreement = {row["depth"]: row["agreement"] for row in own if "survival_high" in row}
        size = next(row["parameters"] for row in own if "parameters" in row)
        over = by_measure.get("mat_minus_none")
        figures = [
            f"{size / 1e6:.1f}M",
            *(f"{agreement[depth]:.3f}" for depth in (0, 3, 6)),
            _estimate(pooled),
            f"{over['estimate']:+.2f} [{over['low']:+.2f}, {over['high']:+.2f}]" if over else "",
            _estimate(by_measure["live_mat"]),
            str(pooled["seeds"]),
        ]
        yield f"| {_drafter(pooled)} | {' | '.join(figures)} |"


def _drafter(row: Row) -> str:
    """A drafter of the study, in words."""
    parts = [f"`{row['design']}`"]
    if row["design"] == "kv" and row["injection"] != PROJECT_ROPE:
        parts.append(row["injection"])
    if row["layers"] > 1:
        parts.append(f"{row['layers']} layers")
    if row["capacity"] == EQUAL_WIDTH:
        parts.append("equal width")
    if row["init"] == "warm":
        parts.append("warm start")
    return ", ".join(parts)


def norms_table(rows: Sequence[Row]) -> Iterator[str]:
    """Validation KL of a design as it stands and with one choice changed, with the least and most of its seeds."""
    yield "| changed | KL, nats | difference, least to most of the seeds |"
    yield "|---|---:|---:|"
    for row in rows:
        if "difference" not in row:
            yield f"| nothing | {row['validation_kl']:.2f} | |"
        elif row["least"] != row["most"]:  # a choice that is the default of the design changes nothing
            seeds = f"{row['difference']:+.3f} ({row['least']:+.3f} to {row['most']:+.3f})"
            yield f"| {row['ablation']} | {row['validation_kl']:.2f} | {seeds} |"


def remedies_table(rows: Sequence[Row]) -> Iterator[str]:
    """What every remedy adds to the tokens per step of the drafter that it was tried on."""
    yield "| drafter | remedy | tokens a step without it | with it | gained | seeds |"
    yield "|---|---|---:|---:|---:|---:|"
    pooled = [row for row in matching(rows, {"measure": "mat"}) if not {"task", "distance"} & row.keys()]
    for gained in matching(rows, {"measure": "mat_minus_plain"}):
        drafter = {key: gained[key] for key in ("design", "layers", "injection", "init", "capacity")}
        both = {row.get("remedy"): row["estimate"] for row in matching(pooled, drafter)}
        gain = f"{gained['estimate']:+.3f} [{gained['low']:+.3f}, {gained['high']:+.3f}]"
        name = f"`{gained['design']}`" + (", warm start" if gained["init"] == "warm" else "")
        figures = f"{both[None]:.2f} | {both[gained['remedy']]:.2f} | {gain} | {gained['seeds']}"
        yield f"| {name} | {gained['remedy']} | {figures} |"


def starts_table(rows: Sequence[Row]) -> Iterator[str]:
    """Validation KL of a few designs with another start of their attention or another optimiser."""
    names = list(dict.fromkeys(row["ablation"] for row in rows))
    yield f"| design | {' | '.join(names)} | seeds |"
    yield f"|---|{'---:|' * (len(names) + 1)}"
    for design in dict.fromkeys(row["design"] for row in rows):
        own = {row["ablation"]: row for row in matching(rows, {"design": design})}
        shown = (f"{own[name]['validation_kl']:.2f}" if name in own else "" for name in names)
        yield f"| `{design}` | {' | '.join(shown)} | {min(row['seeds'] for row in own.values())} |"


def estimates_table(rows: Sequence[Row]) -> Iterator[str]:
    """How well a linear map of the token gives the attention of the target's layers, a column each."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    yield f"| layer | {' | '.join(map(str, layers))} |"
    yield f"|---|{'---:|' * len(layers)}"
    for name, column in (
        ("mean square of the queries explained", "explained"),
        ("total variation to the true attention", "total_variation"),
        ("the same of even attention", "total_variation_uniform"),
    ):
        means = (_mean(row[column] for row in matching(rows, {"layer": layer})) for layer in layers)
        yield f"| {name} | {' | '.join(f'{mean:.2f}' for mean in means)} |"


SOURCES = (STOPPING, "lookup", "hf-prompt-lookup", "gated-lookup", "lookup-else-stopping", BOTH)
PROMPTS_OF = {"sealed": "sealed", "other": "HumanEval, GSM8K, MT-bench, CNN/DM"}
DISTINCT = "over 80% distinct 4-grams"
SUBSETS = (
    *(("all", "live"), ("all", "replay"), (DISTINCT, "live"), (DISTINCT, "replay")),
    ("cut at the first repeated 8-gram", "replay"),
    *((f"{third} acceptance", "replay") for third in ("least", "middle", "most")),
)


def sources_table(rows: Sequence[Row]) -> Iterator[str]:
    """What rules with one and with two sources gain over the best fixed length, live and replayed."""
    columns = [
        "distinct 4-grams",
        "best fixed length over plain",
        *(f"`{name}`" for name in SOURCES),
        f"`{BOTH}` over `{STOPPING}`",
    ]
    columns.append(f"`{BOTH}` over plain")
    yield f"| prompts | | {' | '.join(columns)} |"
    yield f"|---|---|{'---:|' * len(columns)}"
    for prompts, shown in PROMPTS_OF.items():
        for subset, table in SUBSETS:
            key = {"prompts_of": prompts, "subset": subset, "table": table, "task": "all"}
            key |= {"curve": "measured"} if table == "replay" else {}
            own = {row["policy"]: row for row in matching(rows, key)}
            if not own:
                continue
            ours = own[BOTH]
            over = {"gain": ours["gain_over_rival"], "gain_low": ours["gain_over_rival_low"]}
            over["gain_high"] = ours["gain_over_rival_high"]
            assert ours["best_rival"] == STOPPING, ours["best_rival"]
            name = shown if subset == "all" else f"{shown}, {subset}"
            plain = own["plain"]["tokens_per_second"] if table == "live" else None
            times = [f"{own[each]['tokens_per_second'] / plain:.2f}x" if plain else "" for each in ("fixed", BOTH)]
            cells = [
                f"{ours['distinct_4grams']:.2f}",
                times[0],
                *(interval(own[policy]) for policy in SOURCES),
                interval(over),
                times[1],
            ]
            how = "replayed" if table == "replay" else table
            yield f"| {name}, {ours['prompts']} | {how} | {' | '.join(cells)} |"


def curves_table(rows: Sequence[Row]) -> Iterator[str]:
    """What the same rules gain replayed, at the measured cost curve and at imagined ones."""
    names = " | ".join(f"`{name}`" for name in SOURCES)
    yield f"| prompts | distinct 4-grams | cost curve | best fixed length | {names} |"
    yield f"|---|---:|---|---:|{'---:|' * len(SOURCES)}"
    for prompts, shown in PROMPTS_OF.items():
        own = list(matching(rows, {"prompts_of": prompts, "subset": "all", "table": "replay", "task": "all"}))
        for curve in dict.fromkeys(row["curve"] for row in own):
            gains = {row["policy"]: row for row in matching(own, {"curve": curve})}
            length = gains["fixed"]["spec"].partition(":")[2]
            repeated = f"{gains[BOTH]['distinct_4grams']:.2f}"
            cells = [repeated, curve, length, *(interval(gains[name]) for name in SOURCES)]
            yield f"| {shown} | {' | '.join(cells)} |"


def states_table(rows: Sequence[Row]) -> Iterator[str]:
    """What the target's state is worth to a stopping rule, a line for each cost curve, dearest drafts last."""
    kinds = list(dict.fromkeys(row["reads"] for row in rows))
    heads = " | ".join(f"{kind}, over the best fixed length" if n == 0 else kind for n, kind in enumerate(kinds))
    yield f"| cost curve | a drafted token, in verifications | best fixed length | over plain | optimum | {heads} |"
    yield f"|---|---:|---:|---:|---:|{'---:|' * len(kinds)}"
    by_curve: dict[str, list[Row]] = {}
    for row in rows:
        by_curve.setdefault(row["curve"], []).append(row)
    for name, own in sorted(by_curve.items(), key=lambda item: item[1][0]["draft_share"]):
        first, *others = own
        gains = [interval(first)] + [f"{row['gain']:+.1%}, {_over_signals(row)} over signals" for row in others]
        yield (
            f"| {name} | {first['draft_share']:.2f} | {first['best_fixed']} | {first['best_fixed_over_plain']:.2f}x "
            f"| {first['hindsight']:+.1%} | {' | '.join(gains)} |"
        )


def _over_signals(row: Row) -> str:
    return f"{row['over_signals']:+.1%} [{100 * row['over_signals_low']:.1f}, {100 * row['over_signals_high']:.1f}]"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _estimate(row: Row) -> str:
    return f"{row['estimate']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def choosing_summary(rows: Sequence[Row]) -> Iterator[str]:
    """What the fitted policies gain on all sealed prompts, replayed and live, a line for each compression."""
    gains = " | ".join(f"`{name}` over it, replayed | live" for name in (STOPPING, BOTH))
    yield (
        f"| target | distinct 4-grams | best fixed length, live over plain | {gains} "
        f"| `{BOTH}` over the best tuned rule, replayed |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for own in matching(rows, {"table": "replay", "policy": STOPPING, "tuned": True, "task": "all"}):
        key = {"compression": own["compression"], "task": "all"}
        over = {(row["policy"], row["over"]): row for row in matching(rows, key | {"table": "spread"})}
        sat = list(matching(rows, key | {"table": "live"}))
        fixed = [row["ratio_to_plain"] for row in sat if row["policy"] == row["over"]]
        cells = [f"{own['distinct_4grams']:.2f}"]
        cells.append(f"{median(fixed):.2f}x ({min(fixed):.2f}x to {max(fixed):.2f}x)" if fixed else "")
        for name in (STOPPING, BOTH):
            cells += [interval(over[name, FIXED]), across([row for row in sat if row["policy"] == name])]
        yield f"| {own['compression']} | {' | '.join(cells)} | {interval(over[BOTH, RIVAL])} |"


def choosing_table(rows: Sequence[Row]) -> Iterator[str]:
    """What the fitted policies gain on the sealed prompts, replayed, a line for each compression and task."""
    yield (
        f"| target | task | distinct 4-grams | best fixed | `{STOPPING}` over it | `{BOTH}` over it "
        f"| `{BOTH}` over the best tuned rule | it |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for own in matching(rows, {"table": "replay", "policy": STOPPING, "tuned": True}):
        key = {"compression": own["compression"], "task": own["task"]}
        over = {(row["policy"], row["over"]): row for row in matching(rows, key | {"table": "spread"})}
        repeated = next(matching(rows, key | {"table": "repetition"}))["distinct_4grams"]
        gains = [over[STOPPING, FIXED], over[BOTH, FIXED], over[BOTH, RIVAL]]
        yield (
            f"| {own['compression']} | {own['task']} | {repeated:.2f} | {own['best_fixed_gamma']} "
            f"| {' | '.join(map(interval, gains))} | `{own['best_rival']}` |"
        )


def choosing_live_table(rows: Sequence[Row]) -> Iterator[str]:
    """What they gain live over the best fixed length, and the same prompts replayed; the sittings below."""
    gains = " | ".join(f"`{name}` live | its prompts replayed" for name in (STOPPING, BOTH))
    yield f"| target | task | distinct 4-grams | {gains} |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for own in matching(rows, {"table": "replay", "policy": STOPPING, "tuned": True}):
        key = {"table": "live", "compression": own["compression"], "task": own["task"]}
        sat = [list(matching(rows, key | {"policy": name})) for name in (STOPPING, BOTH)]
        cells = [f"{across(sittings)} | {replayed(sittings)}" for sittings in sat]
        repeated = median([row["distinct_4grams"] for row in sat[-1]]) if sat[-1] else own["distinct_4grams"]
        yield f"| {own['compression']} | {own['task']} | {repeated:.2f} | {' | '.join(cells)} |"
    yield from _sittings(rows)


def across(sittings: Sequence[Row]) -> str:
    """A live gain: of one sitting with its interval over prompts, of several their median and their range."""
    if len(sittings) < 2:
        return "".join(map(interval, sittings))
    gains = [row["gain"] for row in sittings]
    return f"{median(gains):+.1%} ({min(gains):+.1%} to {max(gains):+.1%})"


def replayed(sittings: Sequence[Row]) -> str:
    """What replay says of the prompts of live gains: of several sittings the median."""
    gains = [row["replayed_gain"] for row in sittings if "replayed_gain" in row]
    return f"{median(gains):+.1%}" if gains else ""


def interval(row: Row) -> str:
    """A gain with its 95% interval."""
    return f"{row['gain']:+.1%} [{100 * row['gain_low']:.1f}, {100 * row['gain_high']:.1f}]"


def matching(rows: Sequence[Row], key: Row) -> Iterator[Row]:
    """The rows that have these values."""
    return (row for row in rows if all(row.get(name) == value for name, value in key.items()))


def _sittings(rows: Sequence[Row]) -> Iterator[str]:
    """When the live figures were measured, on how many prompts, and what else the machine did then."""
    by_sitting: dict[str, list[Row]] = {}
    for row in matching(rows, {"table": "live", "policy": STOPPING, "task": "all"}):
        by_sitting.setdefault(row["sitting"], []).append(row)
    if not by_sitting:
        return
    each = [
        f"{sitting} ({'/'.join(str(row['prompts']) for row in measured)} prompts; other processes on "
        f"{max(row['other_cores'] for row in measured):.2f} cores, steal {max(row['steal'] for row in measured):.1%})"
        for sitting, measured in by_sitting.items()
    ]
    yield ""
    yield f"Live: {'; '.join(each)}."
