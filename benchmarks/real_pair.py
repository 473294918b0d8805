"""Makes the tables of docs/real-pair.md and docs/speckv.md: Qwen2.5-Coder-1.5B-Instruct with 0.5B-Instruct.

    python benchmarks/real_pair.py judge                              # from the published traces, without a model
    python benchmarks/real_pair.py record MODELS --prompts FOLDER     # hours: answers, traces and costs, resumable
    python benchmarks/real_pair.py live MODELS --prompts FOLDER --minutes 60

MODELS holds the folders qwen2.5-coder-1.5b and qwen2.5-coder-0.5b, and for llama.cpp the same weights as files ending
in .gguf (Q4_K_M) and -q8_0.gguf; FOLDER has code.jsonl, math.jsonl, chat.jsonl and summarization.jsonl. Prompts are
drawn by a seed into training, validation and test ones; rules are fitted, tuned and chosen on training prompts, and
judged on test prompts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, save, show_progress
from numpy.typing import NDArray

from draftgauge.api.bench import bench
from draftgauge.api.fit import FITS
from draftgauge.api.profile import profile
from draftgauge.api.runs import Run
from draftgauge.core.parts import Rendering
from draftgauge.core.prompts import TEST, TRAIN, read_prompts
from draftgauge.judging.evaluate import evaluate_design
from draftgauge.judging.ranking import tune_rivals
from draftgauge.judging.replay import best_fixed_gamma, replay_fixed_all
from draftgauge.judging.speed import Speed
from draftgauge.judging.splits import Design, splits_of
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.tokenizer import encode_with, end_tokens
from draftgauge.policies.fitted import fitted_policy, save_fitted
from draftgauge.policies.spec import make_policy
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, select
from draftgauge.training.reuse.answers import greedy_answers, group_tokens, groups

RUNS = RESULTS / "real" / "runs"
TARGET, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
GGUF = {"Q4_K_M": ".gguf", "Q4_K_M-older": ".gguf", "Q8_0": "-q8_0.gguf"}  # in llama.cpp; on an older CPU
# Of runs that were recorded for their costs, on few prompts: the run whose outcomes stand for theirs.
OUTCOMES = {**dict.fromkeys((*GGUF, "fp32"), "bf16"), "bf16-h200": "bf16", "int8-older": "int8"}
# Outcomes recorded on one machine, paid at costs that were measured later and on another.
COSTS = {"nf4-h200": ("nf4-h100", RUNS.parent / "costs-nf4-h200.json")}
TASKS = ("code", "math", "chat", "summarization")
COUNTS = {TRAIN: 24, "validation": 6, TEST: 12}  # of each task
NEW_TOKENS, GAMMA_MAX, SEED = 96, 12, 20261125
COST_SECONDS = 240
MOST_CHARACTERS = 3600  # of a prompt
FITTED = ("stopping", "two-source", "speckv")
SHIPPED = " (as shipped)"  # the first two of these with the numbers that ship
TUNED = (
    "cumulative-confidence",
    "svip",
    "hf-confidence",
    "lookup",
    "hf-prompt-lookup",
    "lookup-else-stopping",
)
GRAM = 8  # tokens of an n-gram that counts as copied from the prompt
KEPT = (
    *("compression", "policy", "tuned", "task", "prompts", "tokens_per_step", "acceptance_rate", "tokens_per_second"),
    *("ratio_to_plain", "best_fixed_gamma", "gain", "gain_low", "gain_high", "gain_over_rival", "gain_over_rival_low"),
    *("gain_over_rival_high", "best_rival", "recommended", "source_model", "source_text", "distinct_4grams"),
)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("record", "judge", "live"))
    parser.add_argument("models", type=Path, nargs="?", help="folder of the two models")
    parser.add_argument("--prompts", type=Path, help="folder of the four prompt files")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the recorded runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument(
        "--compression",
        default="bf16,int8,nf4,Q4_K_M,Q8_0",
        help="of the target, and of the draft in llama.cpp: those to record, or one to decode live",
    )
    parser.add_argument("--per-task", type=int, help="take so many training and test prompts of each task only")
    parser.add_argument("--skip", type=int, default=0, help="decode others live than the first test prompts of a task")
    parser.add_argument(
        "--baselines", action="store_true", help="decode live beside transformers, not beside other rules"
    )
    parser.add_argument("--cost-seconds", type=float, default=COST_SECONDS, help="for measuring what a step costs")
    parser.add_argument("--measure", action="store_true", help="measure the costs of recorded runs again")
    parser.add_argument("--minutes", type=float, default=60.0, help="of live decoding")
    args = parser.parse_args()
    if args.part == "judge":
        save(args.out, "real-replayed.json", judged(args.runs))
        save(args.out, "real-speckv.json", speckv_rows(args.runs))
    elif args.part == "record":
        for compression in args.compression.split(","):
            record(args, compression)
    else:
        kind = "transformers" if args.baselines else "live"
        rest = "-rest" if args.skip else ""
        save(args.out, f"real-{kind}-{args.compression}{rest}.json", live(args))


def drawn_prompts(folder: Path, out: Path, per_task: int | None = None) -> Path:
    """The prompts of this study as one file, tasks in turn, each with its split; or the first to train and test on."""
    rng, by_task = random.Random(SEED), []
    for task in TASKS:
        lines = [json.loads(line) for line in (folder / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()]
        texts = [(line["question_id"], line["turns"][0]) for line in lines]
        short = [(number, text) for number, text in texts if len(text) < MOST_CHARACTERS]
        splits = itertools.chain.from_iterable([split] * count for split, count in COUNTS.items())
        chosen = zip(rng.sample(short, sum(COUNTS.values())), splits, strict=True)
        drawn = [{"id": f"{task}-{n}", "task": task, "split": split, "prompt": text} for (n, text), split in chosen]
        if per_task is not None:
            drawn = [row for split in (TRAIN, TEST) for row in [r for r in drawn if r["split"] == split][:per_task]]
        by_task.append(drawn)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = itertools.chain.from_iterable(zip(*by_task, strict=True))
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return out


def later_prompts(path: Path, skip: int) -> Path:
    """The prompts without the first test prompts of each task, in a file beside the given one."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    early = {row["id"] for task in TASKS for row in [r for r in rows if (r["task"], r["split"]) == (task, TEST)][:skip]}
    out = path.with_name(f"{path.stem}-after-{skip}.jsonl")
    out.write_text("".join(json.dumps(row) + "\n" for row in rows if row["id"] not in early), encoding="utf-8")
    return out


def record(args: argparse.Namespace, compression: str) -> None:
    """The target's answers, in batches; then what is drafted from every position of them, and what a step costs."""
    name = f"prompts-{args.per_task}.jsonl" if args.per_task else "prompts.jsonl"
    prompts = drawn_prompts(args.prompts, args.runs / name, args.per_task)
    recorded: dict[str, Any] = {"limit": len(TASKS)}  # of runs whose outcomes are another's
    if compression not in OUTCOMES:
        answers = args.runs / f"{compression}.answers.jsonl"
        answer(args.models / TARGET, compression, prompts, answers)
        recorded = {"outputs": answers}
    profile(
        **pair_of(args.models, compression),
        **recorded,
        prompts=prompts,
        max_new_tokens=NEW_TOKENS,
        gamma_max=GAMMA_MAX,
        cost_seconds=args.cost_seconds,
        measure=args.measure,
        out=args.runs / compression,
        progress=show_progress,
    )


def pair_of(models: Path, compression: str) -> dict[str, Any]:
    """How ``profile`` and ``bench`` load the pair."""
    if compression in GGUF:
        files = {"target": f"{TARGET}{GGUF[compression]}", "drafter": f"{DRAFT}{GGUF[compression]}"}
        return {name: str(models / file) for name, file in files.items()} | {"engine": "gguf-fast"}
    return {"target": str(models / TARGET), "drafter": str(models / DRAFT), "compression": (compression,)}


def recorded_runs(folder: Path) -> dict[str, tuple[Trace, CostCurve]]:
    """Outcomes and costs by compression and machine; see ``OUTCOMES``."""
    runs = {run.name: run.read() for run in Run.find(folder)}
    runs |= {name: (runs.pop(run)[0], CostCurve.load(path)) for name, (run, path) in COSTS.items() if run in runs}
    stand = {name: other for name, other in OUTCOMES.items() if other in runs}
    return {name: (runs[stand.get(name, name)][0], costs) for name, (_, costs) in runs.items()}


def answer(target: Path, compression: str, path: Path, out: Path) -> None:
    """Greedy answers to prompts of similar length together, as OpenAI's batch output; goes on where it was."""
    done = (
        {json.loads(line)["custom_id"] for line in out.read_text(encoding="utf-8").splitlines()}
        if out.exists()
        else set()
    )
    prompts = [prompt for prompt in read_prompts(path) if prompt.identifier not in done]
    if not prompts:
        return
    model, tokenizer = load_model(target, compression, engine="modules"), load_tokenizer(target)
    assert model.module is not None
    ends = end_tokens(model, tokenizer)
    encoded = [encode_with(tokenizer, prompt, Rendering()) for prompt in prompts]
    for group in groups([len(tokens) for tokens in encoded], NEW_TOKENS, group_tokens(model.module)):
        answers = greedy_answers(model.module, [encoded[n] for n in group], NEW_TOKENS, ends)
        with out.open("a", encoding="utf-8") as file:
            for number, tokens in zip(group, answers, strict=True):
                choice = {
                    "message": {"content": tokenizer.decode(tokens, skip_special_tokens=True)},
                    "token_ids": tokens,
                    "finish_reason": "stop" if tokens[-1] in ends else "length",
                }
                body = {"status_code": 200, "body": {"choices": [choice]}}
                file.write(json.dumps({"custom_id": prompts[number].identifier, "response": body}) + "\n")


def judged(folder: Path) -> list[dict[str, Any]]:
    """Every rule on the test prompts of every run; in bfloat16 also on those that copy least, and by task held out."""
    rows = []
    for run, (trace, costs) in recorded_runs(folder).items():
        splits, share = splits_of(trace), copied_shares(trace)
        tasks = np.array([prompt.task for prompt in trace.prompts])
        train, test = splits == TRAIN, splits == TEST
        label = {"run": run}

        def compare(
            judge: NDArray[np.bool_],
            learn: NDArray[np.bool_],
            design: str,
            trace: Trace = trace,
            costs: CostCurve = costs,
            share: NDArray[np.float64] = share,
            label: Mapping[str, Any] = label,
        ) -> list[dict[str, Any]]:
            compared = evaluate_rules(Design(TEST, select(trace, judge), select(trace, learn)), costs)
            kept = [{key: row[key] for key in KEPT if key in row} for row in compared]
            names = np.array([prompt.task for prompt in trace.prompts])
            if label["run"] in OUTCOMES:  # by task the outcomes are in the rows of that run
                kept = [row for row in kept if row["task"] == "all"]
            whole = design == "all tasks"
            kept = [row for row in kept if SHIPPED not in row["policy"] or (whole and row["task"] == "all")]
            for row in kept:
                own = judge & (np.ones_like(judge) if row["task"] == "all" else names == row["task"])
                row |= {**label, "design": design, "copied_8grams": float(share[own].mean())}
            return kept

        rows += compare(test, train, "all tasks")
        if run != "bf16":
            continue
        order = np.sort(share[test])
        rows += [
            r
            for r in compare(test & (share <= order[len(order) // 3]), train, "third that copies least")
            if r["task"] == "all"
        ]
        for task in TASKS:
            rows += [
                r
                for r in compare(test & (tasks == task), train & (tasks != task), f"without {task}")
                if r["task"] == task
            ]
    return rows


def evaluate_rules(design: Design, costs: CostCurve) -> list[Mapping[str, Any]]:
    """Fitted and tuned rules, beside fixed lengths and the bounds."""
    assert design.train is not None
    fitted = [FITS[name]([design.train], [costs], SEED) for name in FITTED]
    policies = {each.policy: fitted_policy(each, design.trace.gamma_max, costs) for each in fitted}
    policies |= {f"{name}{SHIPPED}": make_policy(name, design.trace.gamma_max, costs) for name in FITTED[:2]}
    return evaluate_design(design, costs, policies, tune_rivals(design.train, costs, TUNED))


def copied_shares(trace: Trace) -> NDArray[np.float64]:
    """``[prompts]`` share of each output's 8-grams that stand in its prompt."""
    outputs = np.split(trace.token, trace.offsets[1:-1])

    def grams(tokens: Sequence[int]) -> list[tuple[int, ...]]:
        return list(zip(*(tokens[start:] for start in range(GRAM)), strict=False))

    shares = []
    for prompt, output in zip(trace.prompts, outputs, strict=True):
        known, own = set(grams(prompt.prompt_token)), grams(output.tolist())
        shares.append(sum(gram in known for gram in own) / max(len(own), 1))
    return np.array(shares)


def speckv_rows(folder: Path) -> list[dict[str, Any]]:
    """SpecKV's questions: fixed lengths at every mix of outcomes and costs, and what its signals say of acceptance."""
    runs = recorded_runs(folder)
    rows: list[dict[str, Any]] = []
    for outcomes, (trace, _) in runs.items():
        if outcomes in OUTCOMES:
            continue
        for paid, (_, costs) in runs.items():
            best = best_fixed_gamma(trace, costs)
            for gamma, fixed in enumerate(replay_fixed_all(trace, costs)):
                rows.append(
                    {
                        "question": "best length",
                        "outcomes": outcomes,
                        "costs": paid,
                        "gamma": gamma,
                        "prompts": len(trace.prompts),
                        "tokens_per_step": float(fixed.committed.sum() / fixed.steps.sum()),
                        "acceptance_rate": float(fixed.accepted.sum() / max(fixed.drafted.sum(), 1)),
                        "tokens_per_second": fixed.tokens_per_second,
                        "best": gamma == best,
                        "cost_ratio": costs.cost_ratio(),
                    }
                )
        rows += correlations(trace, outcomes)
        if outcomes != "bf16":
            rows.append(over_bf16(trace, runs["bf16"][0]) | {"outcomes": outcomes})
    return rows


def over_bf16(trace: Trace, bf16: Trace, gamma: int = 4) -> dict[str, Any]:
    """Tokens a step at a fixed length over those with the target in bfloat16, on the prompts that both have."""
    same = {prompt.identifier for prompt in trace.prompts} & {prompt.identifier for prompt in bf16.prompts}
    fixed = []
    for each in (trace, bf16):
        own = select(each, [prompt.identifier in same for prompt in each.prompts])
        replayed = replay_fixed_all(own)[gamma]
        order = np.argsort([prompt.identifier for prompt in own.prompts])
        fixed.append(Speed(replayed.committed[order], replayed.steps[order]))
    gain = columns("gain", fixed[0].over(fixed[1]).gain)
    return {"question": "over bf16", "gamma": gamma, "prompts": len(same), **gain}


def correlations(trace: Trace, compression: str, gamma: int = 4) -> list[dict[str, Any]]:
    """Pearson correlations over all positions: what a draft of ``gamma`` tokens shows, with the accepted share of it.

    Intervals resample prompts.
    """
    whole = np.flatnonzero(trace.drafted >= gamma)
    accepted = np.minimum(trace.accepted[whole], gamma) / gamma
    owner = np.repeat(np.arange(len(trace.prompts)), np.diff(trace.offsets))[whole]
    shown = {
        "mean confidence": trace.confidence[whole, :gamma].mean(axis=1),
        "mean entropy": trace.entropy[whole, :gamma].mean(axis=1),
        "confidence of the first token": trace.confidence[whole, 0],
    }
    rng, rows = np.random.default_rng(SEED), []
    positions = [np.flatnonzero(owner == number) for number in range(len(trace.prompts))]
    for name, signal in shown.items():
        drawn = []
        for _ in range(500):
            chosen = np.concatenate([positions[n] for n in rng.integers(len(positions), size=len(positions))])
            drawn.append(_correlation(signal[chosen], accepted[chosen]))
        low, high = np.quantile(drawn, (0.025, 0.975))
        rows.append(
            {
                "question": "correlation",
                "outcomes": compression,
                "signal": name,
                "gamma": gamma,
                "correlation": _correlation(signal, accepted),
                "correlation_low": float(low),
                "correlation_high": float(high),
            }
        )
    return rows


def _correlation(signal: NDArray[np.float64], accepted: NDArray[np.float64]) -> float:
    return float(np.corrcoef(signal, accepted)[0, 1])


def live(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The best of every kind, chosen on training prompts, decoding the test prompts interleaved."""
    trace, costs = recorded_runs(args.runs)[args.compression]
    train = select(trace, splits_of(trace) == TRAIN)
    best = best_fixed_gamma(train, costs)

    def tuned(*rules: str) -> str:
        return tune_rivals(train, costs, rules).best

    two_source = args.runs / f"{args.compression}.two-source.json"
    save_fitted(FITS["two-source"]([train], [costs], SEED), two_source)
    fixed = f"fixed:{best or 1}"
    if args.baselines:
        rules = [tuned("hf-confidence"), tuned("hf-prompt-lookup"), str(two_source)]
    else:
        confidence = (name for name in TUNED if "lookup" not in name)
        rules = [tuned(*confidence), tuned("lookup-else-stopping"), str(two_source)]
    prompts = drawn_prompts(args.prompts, args.runs / "prompts.jsonl")
    return bench(
        **pair_of(args.models, args.compression),
        prompts=str(later_prompts(prompts, args.skip)),
        max_new_tokens=NEW_TOKENS,
        gamma_max=GAMMA_MAX,
        policies=(fixed, *rules),
        over=fixed,
        split=TEST,
        per_task=args.per_task,
        rounds=1,
        seconds=60 * args.minutes,
        baselines=args.baselines,
        progress=show_progress,
    )


if __name__ == "__main__":
    main()
