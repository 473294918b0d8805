"""Makes docs/results/serving-ENGINE.json: what ``advise`` names for a server, beside every length tried on it.

    python benchmarks/served_lengths.py --target TARGET.gguf --draft DRAFT.gguf --tokenizer FOLDER --prompts F...

The advice is from a run on other prompts and from ``draftgauge costs --start``. Then servers of every length run side
by side, in an order drawn anew for every prompt. Runs, costs and cells (target, drafter, prompts, requests) are kept;
--work is of one target.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, matching, save

from draftgauge.api.advise import advise
from draftgauge.api.engine_costs import costs
from draftgauge.api.profile import profile
from draftgauge.core.prompts import read_prompts
from draftgauge.core.provenance import read_measurement
from draftgauge.models.loading import load_tokenizer
from draftgauge.models.tokenizer import encode_with
from draftgauge.pair.started_costs import check_length, deployment_to_start
from draftgauge.requests import StartSpec
from draftgauge.serving.client import Completion, How, complete
from draftgauge.serving.engines import PLAIN, engine_of, setting_length
from draftgauge.serving.launching import started

AT_ONCE, CONTEXT = (1, 4), 128  # the last of texts that costs are measured at
Rows = list[dict[str, Any]]


def main() -> None:
    """Measure the cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "draft", "tokenizer"):
        parser.add_argument(f"--{name}", required=True)
    for name, count in (("recorded", 6), ("swept", 4), ("longest-prompt", 112), ("max-new-tokens", 32)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6], help="beside plain decoding")
    parser.add_argument("--engine", default="llama-server")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="a file for each kind of request")
    parser.add_argument("--program", help="what starts a server, as draftgauge costs takes it")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "served", help="runs and costs are kept here")
    given = parser.parse_args()
    name, swept = f"serving-{given.engine}.json", chosen(given)
    rows = list(read_measurement(given.out / name).rows) if (given.out / name).is_file() else []
    for drafter in dict.fromkeys((given.draft, "lookup")):
        names = {"target": Path(given.target).name, "drafter": Path(drafter).name}
        done = {(row["prompts"], row["at_once"]) for row in matching(rows, names)}
        cells = [(task, n) for task in swept for n in AT_ONCE if (task, n) not in done]
        named = {cell: advised(given, drafter, *cell) for cell in cells}
        settings = sorted({PLAIN, *(f"fixed:{length}" for length in given.lengths), *named.values()}) if cells else []
        with ExitStack() as running:
            urls = {setting: running.enter_context(served(given, drafter, setting)) for setting in settings}
            for task, n in cells:
                new = cell_rows(given, urls, swept[task], n)
                best = max(row["tokens_per_second"] for row in new)
                for row in new:
                    row |= {"engine": given.engine, **names, "prompts": task, "at_once": n}
                    row |= {"advised": row["setting"] == named[task, n], "of_best": row["tokens_per_second"] / best}
                rows += new
                save(given.out, name, rows)


def chosen(given: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Prompts to sweep by file, as tokens; those to record are written to ``--work``."""
    tokenizer, swept, lines = load_tokenizer(given.tokenizer), {}, []
    for path in given.prompts:
        every, longest = read_prompts(path), given.longest_prompt
        short = [(prompt, ids) for prompt in every if len(ids := encode_with(tokenizer, prompt)) <= longest]
        if len(short) < given.recorded + given.swept:
            raise SystemExit(f"{path} has only {len(short)} prompts of up to {given.longest_prompt} tokens")
        swept[path.stem] = [ids for _, ids in short[given.recorded :][: given.swept]]
        for prompt, _ in short[: given.recorded]:
            said = {"prompt": prompt.text} if prompt.text else {"messages": [vars(each) for each in prompt.messages]}
            lines.append(json.dumps(said | {"task": path.stem}))
    given.work.mkdir(parents=True, exist_ok=True)
    (given.work / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return swept


def advised(given: argparse.Namespace, drafter: str, task: str, at_once: int) -> str:
    """The setting that ``advise`` names; the run and the costs are made where they are missing."""
    name = Path(drafter).name
    run, priced = given.work / f"run-{name}", given.work / f"{given.engine}-{name}.json"
    pair: dict[str, Any] = {"target": given.target, "drafter": drafter}
    sizes = {"gamma_max": max(given.lengths), "max_new_tokens": given.max_new_tokens, "cost_seconds": 1.0}
    profile(out=run, prompts=str(given.work / "prompts.jsonl"), tokenizer=given.tokenizer, **pair, **sizes)
    if not priced.is_file():
        measured = {"lengths": (1, 2, 4, 6), "batches": AT_ONCE, "contexts": (CONTEXT,), "program": given.program}
        costs(engine=given.engine, start=True, out=priced, **pair, **measured)
    rows = advise(folder=run, engine=given.engine, costs=priced, tasks=(task,), split="all")
    best = next(row for row in rows if row["recommended"])
    length = json.loads(best["by_batch"])[str(at_once)]
    return best["policy"] if at_once == 1 else f"fixed:{length}" if length else PLAIN


def served(given: argparse.Namespace, drafter: str, setting: str) -> Any:
    serves = deployment_to_start(given.engine, given.target, StartSpec(drafter=drafter))
    room = given.longest_prompt + 64 + given.max_new_tokens
    return started(engine_of(given.engine), setting, serves, max(AT_ONCE), room, given.program)


def cell_rows(given: argparse.Namespace, urls: Mapping[str, str], prompts: Sequence[list[int]], at_once: int) -> Rows:
    """One row a setting, in which prompts do not count; a server whose drafts are not of its length is refused."""
    rng, groups = np.random.default_rng(0), [prompts[at : at + at_once] for at in range(0, len(prompts), at_once)]
    for tokens in (1, given.max_new_tokens):  # the first visit fills the servers' caches of prompts
        answers = {setting: list[list[Completion]]() for setting in urls}
        for group in groups:
            for setting in rng.permutation(sorted(urls)):
                ask = partial(complete, given.engine, urls[setting], max_new_tokens=tokens, how=How(kept=True))
                with ThreadPoolExecutor(at_once) as pool:
                    answers[setting].append(list(pool.map(ask, group)))
    rows = []
    for setting, runs in answers.items():
        if length := setting_length(setting):
            check_length(given.engine, urls[setting], length)
        seconds = sum(np.mean([answer.decode_seconds for answer in group]) for group in runs)
        counted = {name: sum(getattr(a, name) for of in runs for a in of) for name in ("timed", "drafted", "accepted")}
        rows.append({"setting": setting, "tokens_per_second": counted["timed"] / seconds} | counted)
    return rows


if __name__ == "__main__":
    main()
