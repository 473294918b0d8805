"""Makes docs/results/serving-ENGINE.json: what ``advise`` names for a server, beside every length tried on it.

    python benchmarks/served_lengths.py --target TARGET.gguf --draft DRAFT.gguf --tokenizer FOLDER \
        --prompts code.jsonl chat.jsonl math.jsonl

A draft model and prompt lookup, 1 and 4 requests at once. The advice is from a run recorded on other prompts and from
``draftgauge costs --start``, before anything is swept. Then plain decoding, lengths 1 to 6 and what was named run
side by side, one server each, in an order drawn anew for every prompt. A cell is a drafter, a file of prompts and a
number of requests; each is saved when it is done and not measured again, as are runs and costs in ``--work``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, ROOT, console, save

from draftgauge.api.advise import advise
from draftgauge.api.engine_costs import costs
from draftgauge.api.profile import profile
from draftgauge.api.requests import StartSpec
from draftgauge.api.started_costs import deployment_to_start
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import read_prompts
from draftgauge.core.provenance import read_measurement
from draftgauge.models.loading import load_tokenizer
from draftgauge.models.prompts_text import encode_with
from draftgauge.serving.client import Completion, How, complete
from draftgauge.serving.counters import read_counts
from draftgauge.serving.engines import PLAIN, engine_of, setting_length
from draftgauge.serving.launching import started

LENGTHS = range(1, 7)
AT_ONCE = (1, 4)
CONTEXT = 128  # tokens of text that costs are measured at
KEPT = How(kept=True)
Rows = list[dict[str, Any]]


def main() -> None:
    """Measure the cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="llama-server")
    for name in ("target", "draft", "tokenizer"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="a file for each kind of request")
    parser.add_argument("--program", help="what starts a server, as draftgauge costs takes it")
    for name, count in (("recorded", 6), ("swept", 4), ("longest-prompt", 112), ("max-new-tokens", 32), ("rounds", 1)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--cells", type=int, default=99, help="stop after so many")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "served", help="runs and costs are kept here")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    name = f"serving-{given.engine}.json"
    rows = list(read_measurement(given.out / name).rows) if (given.out / name).is_file() else []
    swept, left = chosen(given), given.cells
    for drafter in (given.draft, "lookup"):
        done = {(row["prompts"], row["at_once"]) for row in rows if row["drafter"] == drafter_name(drafter)}
        cells = [(task, n) for task in swept for n in AT_ONCE if (task, n) not in done][:left]
        left -= len(cells)
        if not cells:
            continue
        named = {cell: advised(given, drafter, *cell) for cell in cells}
        settings = sorted({PLAIN, *(f"fixed:{length}" for length in LENGTHS), *named.values()})
        with ExitStack() as running:
            urls = {setting: running.enter_context(served(given, drafter, setting)) for setting in settings}
            for task, n in cells:
                new = cell_rows(given, urls, swept[task], n)
                best = max(row["tokens_per_second"] for row in new)
                for row in new:
                    row |= {"engine": given.engine, "drafter": drafter_name(drafter), "prompts": task, "at_once": n}
                    row |= {"advised": row["setting"] == named[task, n], "of_best": row["tokens_per_second"] / best}
                    if row["advised"]:
                        where = f"{row['drafter']}, {task}, {n} at once"
                        console.print(f"{where}: {row['setting']} is {row['of_best']:.3f} of the best", highlight=False)
                check_lengths(given.engine, urls)
                rows += new
                save(given.out, name, rows)


def drafter_name(drafter: str) -> str:
    return Path(drafter).name


def chosen(given: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Prompts to sweep by file, as tokens; those to record are written to ``--work``."""
    tokenizer, swept, lines = load_tokenizer(given.tokenizer), {}, []
    for path in given.prompts:
        encoded = ((prompt, encode_with(tokenizer, prompt)) for prompt in read_prompts(path))
        short = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= given.longest_prompt]
        if len(short) < given.recorded + given.swept:
            raise SystemExit(f"{path} has only {len(short)} prompts of up to {given.longest_prompt} tokens")
        swept[path.stem] = [tokens for _, tokens in short[given.recorded :][: given.swept]]
        for prompt, _ in short[: given.recorded]:
            said = {"prompt": prompt.text} if prompt.text else {"messages": [vars(each) for each in prompt.messages]}
            lines.append(json.dumps(said | {"task": path.stem}))
    (given.work / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return swept


def advised(given: argparse.Namespace, drafter: str, task: str, at_once: int) -> str:
    """The setting that ``advise`` names; the run and the costs are made where they are missing."""
    name = drafter_name(drafter)
    run, priced = given.work / f"run-{name}", given.work / f"{given.engine}-{name}.json"
    pair = {"target": given.target, "drafter": drafter, "tokenizer": given.tokenizer}
    sizes = {"gamma_max": max(LENGTHS), "max_new_tokens": given.max_new_tokens, "cost_seconds": 1.0}
    profile(out=run, prompts=str(given.work / "prompts.jsonl"), **pair, **sizes)
    if not priced.is_file():
        measured = {"lengths": (1, 2, 4, 6), "batches": AT_ONCE, "contexts": (CONTEXT,), "program": given.program}
        costs(engine=given.engine, start=True, target=given.target, drafter=drafter, out=priced, **measured)
    rows = advise(folder=run, engine=given.engine, costs=priced, tasks=(task,), split="all")
    best = next(row for row in rows if row["recommended"])
    length = json.loads(best["by_batch"])[str(at_once)]
    return best["policy"] if at_once == 1 else f"fixed:{length}" if length else PLAIN


def served(given: argparse.Namespace, drafter: str, setting: str) -> Any:
    deployment = deployment_to_start(given.engine, given.target, StartSpec(drafter=drafter))
    room = given.longest_prompt + given.max_new_tokens + 16
    return started(engine_of(given.engine), setting, deployment, max(AT_ONCE), room, given.program)


def cell_rows(given: argparse.Namespace, urls: Mapping[str, str], prompts: Sequence[list[int]], at_once: int) -> Rows:
    """One row a setting: tokens a second while so many requests decode, prompts apart."""
    rng, answers = np.random.default_rng(0), {setting: list[list[Completion]]() for setting in urls}
    groups = [prompts[first : first + at_once] for first in range(0, len(prompts), at_once)]
    for visit in range(given.rounds + 1):  # the first fills the servers' caches of prompts
        for group in groups:
            for setting in rng.permutation(sorted(urls)):
                with ThreadPoolExecutor(at_once) as pool:
                    tokens = given.max_new_tokens if visit else 1
                    asked = pool.map(lambda p: complete(given.engine, urls[setting], p, tokens, KEPT), group)  # noqa: B023
                    answers[setting] += [list(asked)] if visit else []
    return [
        {
            "setting": setting,
            "tokens_per_second": sum(a.timed for group in runs for a in group)
            / sum(np.mean([a.decode_seconds for a in group]) for group in runs),
            "drafted": sum(a.drafted for group in runs for a in group),
            "accepted": sum(a.accepted for group in runs for a in group),
            "differing": sum(
                a.tokens != b.tokens
                for group, plain in zip(runs, answers[PLAIN], strict=True)
                for a, b in zip(group, plain, strict=True)
            ),
        }
        for setting, runs in answers.items()
    ]


def check_lengths(engine: str, urls: Mapping[str, str]) -> None:
    """Stop where the servers' own counters do not show that their drafts grow with the length they were started with.

    No request sets a length: llama-server ignores one without a word.
    """
    lengths = {length: url for setting, url in urls.items() if (length := setting_length(setting))}
    means = {length: read_counts(engine, url).length for length, url in sorted(lengths.items())}
    if any(mean > length for length, mean in means.items()) or list(means.values()) != sorted(set(means.values())):
        shown = ", ".join(f"{length}: {mean:.2f}" for length, mean in means.items())
        raise DraftgaugeError(f"drafts do not grow with the length that the servers were started with ({shown})")


if __name__ == "__main__":
    main()
