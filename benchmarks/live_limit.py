"""Makes docs/results/live-limit.json: which engine, weights and drafting decode most tokens a second on this machine.

draftgauge, llama.cpp's server and OpenVINO GenAI decode the same prompts in turns, with as many threads, each setup in
a process of its own. llama.cpp is the library of xllamacpp in the server and in gguf-fast. Lengths of all sides are
tuned on training prompts. Plain decoding and each side's best decode the test prompts. Answers are kept below --state:
a run that was stopped goes on where it was.

    python benchmarks/live_limit.py MODELS --prompts FOLDER [--minutes 20]
    python benchmarks/live_limit.py MODELS --prompts FOLDER --quality   # no times: KL and agreement of all weights

MODELS holds the folders and files of real_pair.py, the target as -q4_0.gguf if it is to compete, and OpenVINO folders
NAME-int4 and NAME-int8 below ov.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import RESULTS, ROOT, console, save, show_progress
from real_pair import DRAFT, GAMMA_MAX, RUNS, TARGET, TASKS, drawn_prompts

from draftgauge.benching.arms import Arm, ArmRun, BenchPrompt, bench_arms
from draftgauge.core.errors import warn
from draftgauge.core.parts import Rendering, generator
from draftgauge.core.prompts import TEST, TRAIN, in_turn, read_prompts
from draftgauge.core.provenance import environment, read_measurement
from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.tokenizer import encode_with
from draftgauge.pair.quality import compared, log_probabilities
from draftgauge.traces.run import Run

NAME = "live-limit.json"
LONGEST = 400  # tokens of a prompt
POSITIONS, WARM = 32, 16
CONTEXT = 2048  # of the server
SPEC_DEFAULT = "spec-default"  # of llama-server: ngram-mod with its own numbers
TYPES = {SPEC_DEFAULT: "ngram-mod"}
RULES = ("two-source", "lookup:tokens=3", "lookup:tokens=7", "fixed:1", "fixed:3")
ENDED = "the worker ended: "
Answer = Callable[[str, list[int], int], ArmRun]
Key = tuple[str, str, str]  # setup, weights, arm


@dataclass(frozen=True)
class Setup:
    """A process: one engine, its weights, and the arms that it can decode with; the first one is plain."""

    name: str
    kind: str  # draftgauge, llama or genai
    target: str
    draft: str
    weights: str
    arms: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


def setups(models: Path) -> Iterator[Setup]:
    """What can compete. A server decodes with one kind of draft and one length."""
    smaller, arms = str(models / f"{DRAFT}.gguf"), ("plain", *RULES)
    ggufs = [("Q4_K_M", str(models / f"{TARGET}.gguf")), ("Q4_0", str(models / f"{TARGET}-q4_0.gguf"))]
    for weights, file in ggufs:
        yield Setup("draftgauge gguf", "draftgauge", file, smaller, weights, arms, {"engine": "gguf-fast"})
    pair = str(models / TARGET), str(models / DRAFT)
    for held, rules in (("int8-dynamic", RULES), ("int4", RULES[:1])):
        options = {"compression": [held]}
        yield Setup(f"draftgauge {held}", "draftgauge", *pair, held, ("plain", *rules), options)
    for weights in ("int4", "int8"):
        folders = str(models / "ov" / f"{TARGET}-{weights}"), str(models / "ov" / f"{DRAFT}-{weights}")
        yield Setup("draftgauge openvino", "draftgauge", *folders, weights, arms, {"engine": "openvino-fast"})
        drafted = tuple(f"{kind}:{length}" for kind in ("lookup", "draft") for length in (2, 4, 7))
        yield Setup("genai", "genai", *folders, weights, ("plain", *drafted))
    lengths = [("draft-simple", {"draft.n_max": length}) for length in (1, 3, 6)]
    grams: list[tuple[str, dict[str, int]]] = [(SPEC_DEFAULT, {})]
    grams += [("ngram-mod", {"ngram_mod.n_match": 8, "ngram_mod.n_min": 2, "ngram_mod.n_max": m}) for m in (4, 8)]
    for kind in ("ngram_simple", "ngram_map_k"):
        name = kind.replace("_", "-")
        grams += [(name, {}), *((name, {f"{kind}.size_n": 3, f"{kind}.size_m": m}) for m in (3, 7))]
    for weights, file in ggufs:
        yield Setup("llama-server", "llama", file, smaller, weights, ("plain",))
        for kind, numbers in (*lengths, *grams):
            name = " ".join([kind, *(f"{key.split('.')[-1]}={number}" for key, number in numbers.items())])
            yield Setup("llama-server", "llama", file, smaller, weights, (name,), {"type": kind, "numbers": numbers})


def main() -> None:
    """Tune, then let the best of each side take turns until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="?")
    parser.add_argument("--prompts", type=Path, help="folder of the four prompt files")
    parser.add_argument("--per-task", type=int, default=4, help="test prompts of each of four tasks")
    parser.add_argument("--tuned-on", type=int, default=1, help="training prompts of each task")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--minutes", type=float, default=20, help="of test prompts; none begins later")
    parser.add_argument("--only", help="tune setups whose names, weights or arms hold one of these words, with commas")
    parser.add_argument("--quality", action="store_true", help="compare weights in place of speeds")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "live-limit", help="where answers are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(Setup(**json.loads(args.worker)))
    if not args.models or not args.prompts:
        parser.error("name the models' folder, and --prompts FOLDER")
    args.state.mkdir(parents=True, exist_ok=True)
    words = (args.only or "").split(",")
    chosen = [s for s in setups(args.models) if any(word in f"{s.name} {s.weights} {s.arms}" for word in words)]
    parts: dict[str, list[dict[str, Any]]] = {"tuning": [], "test": [], "quality": []}
    if (args.out / NAME).is_file():
        for row in read_measurement(args.out / NAME).rows:
            parts[row["part"]].append(dict(row))
    if args.quality:
        parts["quality"] = quality(args, chosen)
    else:
        parts["tuning"], parts["test"] = contest(args, chosen, parts["tuning"])
    save(args.out, NAME, [row for rows in parts.values() for row in rows])
    for row in parts["quality" if args.quality else "test"]:
        console.print(json.dumps(row), highlight=False)


def prompts_of(args: argparse.Namespace, split: str, per_task: int) -> list[BenchPrompt]:
    """The first prompts of every task that are not long, as they were drawn for real_pair.py; tasks in turn."""
    tokenizer = load_tokenizer(str(args.models / TARGET))
    drawn = [p for p in read_prompts(drawn_prompts(args.prompts, args.state / "prompts.jsonl")) if p.split == split]
    encoded = [BenchPrompt(encode_with(tokenizer, prompt, Rendering()), prompt.task) for prompt in drawn]
    short = [prompt for prompt in encoded if len(prompt.tokens) <= LONGEST]
    return in_turn(p for task in TASKS for p in [p for p in short if p.task == task][:per_task])


class Worker:
    """The process of one setup, started when it is first asked; its answers are kept."""

    def __init__(self, setup: Setup, state: Path) -> None:
        self.setup, self.process = setup, None
        self.file, self.asked = state / "answers.jsonl", dict[str, int]()
        self.log = (state / f"{setup.name} {setup.weights} {setup.arms[0]}.log".replace(" ", "-")).open("a+")
        self.machine = environment()["cpu"]

    def answer(self, arm: str, tokens: int, prompt: list[int]) -> ArmRun:
        """One prompt decoded; how often it was asked for tells a kept answer from the next."""
        digest = hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16]
        key = f"{self.machine}/{self.setup.name}/{self.setup.weights}/{arm}/{tokens}/{digest}"
        self.asked[key] = self.asked.get(key, -1) + 1
        key = f"{key}/{self.asked[key]}"
        for line in self.file.read_text().splitlines() if self.file.is_file() else ():
            if (kept := json.loads(line))["key"] == key:
                return ArmRun(**kept["run"])
        run = self._ask({"arm": arm, "tokens": tokens, "prompt": prompt})
        with self.file.open("a") as out:
            out.write(json.dumps({"key": key, "run": asdict(run)}) + "\n")
        return run

    def _ask(self, asked: dict[str, Any]) -> ArmRun:
        if self.process is None:
            command = [sys.executable, __file__, "--worker", json.dumps(asdict(self.setup))]
            paths = os.environ | {"PYTHONPATH": str(ROOT / "src")}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
            self.process = subprocess.Popen(command, text=True, env=paths, **pipes)
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            return ArmRun(**json.loads(self.process.stdout.readline()))
        except (OSError, ValueError) as error:
            self.process.wait()
            self.log.seek(0)
            lines = self.log.read().strip().splitlines() or [""]
            raise RuntimeError(ENDED + lines[-1]) from error

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()
            self.process = None


def contest(
    args: argparse.Namespace, chosen: Sequence[Setup], before: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of tuning, those of setups that are not tuned now as they were ``before``, and of the test."""
    opened = [(s, Worker(s, args.state)) for s in setups(args.models)]
    workers: dict[Key, Worker] = {(s.name, s.weights, arm): worker for s, worker in opened for arm in s.arms}
    now = {key: worker for key, worker in workers.items() if worker.setup in chosen}
    tuning = [row for row in before if _key(row) in workers and _key(row) not in now]
    try:
        tuning += tuned(now, prompts_of(args, TRAIN, args.tuned_on), args.max_new_tokens // 2)
        entered = entrants(tuning)
        for worker in set(workers.values()) - {workers[key] for key in entered}:
            worker.close()
        ask = {key: partial(workers[key].answer, key[2], args.max_new_tokens) for key in entered}
        arms = [Arm(" ".join(key), ask[key], outside=True) for key in entered]
        prompts = prompts_of(args, TEST, args.per_task)
        rng, told = generator(0, "live-limit"), partial(show_progress, "test prompts")
        prompts = bench_arms(arms, prompts, 1, rng, told, 60 * args.minutes)
        for arm in arms:
            arm.runs = arm.runs[: len(prompts)]
    finally:
        for worker in workers.values():
            worker.close()
    for arm in arms:
        if arm.failed:
            warn(f"{arm.name} is left out: {arm.failed}")
    ran = {key: arm for key, arm in zip(entered, arms, strict=True) if not arm.failed}
    return tuning, list(rows_of(ran, prompts))


def tuned(workers: dict[Key, Worker], prompts: Sequence[BenchPrompt], tokens: int) -> Iterator[dict[str, Any]]:
    """Every arm on training prompts; a setup that holds one arm ends before the next begins."""
    for (name, weights, arm), worker in workers.items():
        row = {"part": "tuning", "setup": name, "weights": weights, "arm": arm, "prompts": len(prompts)}
        try:
            runs = [worker.answer(arm, tokens, prompt.tokens) for prompt in prompts]
        except RuntimeError as error:
            yield row | {"tokens_per_second": None, "reason": str(error).replace(str(Path.home()), "~")}
            continue
        if len(worker.setup.arms) == 1:
            worker.close()
        yield row | {"tokens_per_second": sum(run.timed for run in runs) / sum(run.seconds for run in runs)}


def entrants(tuning: Sequence[dict[str, Any]]) -> list[Key]:
    """Plain decoding of each engine's best weights, its best two drafted arms and its default, but for those that are
    less than half as fast as the fastest."""
    entered: list[Key] = []
    ran = sorted((row for row in tuning if row["tokens_per_second"]), key=_speed, reverse=True)
    for name in dict.fromkeys(row["setup"] for row in tuning):
        own = [row for row in ran if row["setup"] == name and _speed(row) > _speed(ran[0]) / 2]
        plain = [row for row in own if row["arm"] == "plain"]
        drafted = [row for row in own if row["arm"] != "plain"]
        kept = [*plain[: 2 if name == "llama-server" else 1], *drafted[: 1 if name == "draftgauge int4" else 2]]
        kept += [row for row in drafted if row["arm"] == SPEC_DEFAULT and row not in kept]
        entered += map(_key, kept)
    return entered


def _key(row: dict[str, Any]) -> Key:
    return row["setup"], row["weights"], row["arm"]


def _speed(row: dict[str, Any]) -> float:
    return float(row["tokens_per_second"])


def rows_of(arms: dict[Key, Arm], prompts: Sequence[BenchPrompt]) -> Iterator[dict[str, Any]]:
    """Speeds, with intervals over prompts, and over the fastest rival; mismatches are to the setup's plain decoding."""
    speeds = {key: _speed_of([runs[0] for runs in arm.runs]) for key, arm in arms.items()}
    rivals = [key for key in arms if key[0] in ("llama-server", "genai")]
    best = max(rivals, key=lambda key: speeds[key].estimate, default=None)
    for key, arm in arms.items():
        runs, plain = [each[0] for each in arm.runs], arms.get((key[0], key[1], "plain"))
        steps, tokens = sum(run.steps for run in runs), sum(len(run.tokens) for run in runs)
        same = None if plain is None else [a[0].tokens == b[0].tokens for a, b in zip_longest(arm.runs, plain.runs)]
        yield {
            "part": "test",
            **dict(zip(("setup", "weights", "arm"), key, strict=True)),
            "prompts": len(prompts),
            "tokens": tokens,
            "tokens_per_step": tokens / steps if steps else None,
            **columns("tokens_per_second", speeds[key].interval()),
            "with_prompt": tokens / sum(run.prefill_seconds + run.seconds for run in runs),
            "mismatched_prompts": None if same is None else same.count(False),
            "best_rival": None if best is None else " ".join(best),
            **(columns("over_best_rival", speeds[key].over(speeds[best])) if best else {}),
        }


def _speed_of(runs: Sequence[ArmRun]) -> Speed:
    return Speed.by(np.arange(len(runs)), [run.timed for run in runs], [run.seconds for run in runs])


def quality(args: argparse.Namespace, chosen: Sequence[Setup]) -> list[dict[str, Any]]:
    """How far each setup's weights are from the checkpoint's, on the beginnings of its published answers."""
    trace = Run(RUNS / "bf16").trace
    picked = in_turn(p for t in TASKS for p in [p for p in trace.prompts if (p.task, p.split) == (t, TEST)][:5])
    outputs = {prompt.index: output for prompt, output in zip(trace.prompts, trace.outputs, strict=True)}
    texts = [(list(map(int, p.prompt_token)), outputs[p.index][:POSITIONS].tolist()) for p in picked]
    exact = load_model(str(args.models / TARGET), "uncompressed", "cpu")
    references = [log_probabilities(exact, text) for text in texts]
    del exact
    rows, engines = [], {"gguf": "gguf-fast", "openvino": "openvino-fast"}
    held = {(s.target, tuple(s.options.get("compression", ["uncompressed"]))): s for s in chosen}
    for (target, (compression,)), setup in held.items():
        kind = "gguf" if target.endswith(".gguf") else "openvino" if "/ov/" in target else "torch"
        if Path(target).exists():
            model = load_model(target, compression, "cpu", engines.get(kind, "auto"))
            figures = compared(references, [log_probabilities(model, text) for text in texts])
            rows.append({"part": "quality", "engine": kind, "weights": setup.weights, "prompts": len(texts), **figures})
            console.print(json.dumps(rows[-1]), highlight=False)
            del model
    return rows


def work(setup: Setup) -> None:
    """Answer every line of standard input with one prompt decoded."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    answer = {"draftgauge": own_answers, "llama": llama_answers, "genai": genai_answers}[setup.kind](setup)
    warm: set[str] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["arm"] not in warm:
            answer(asked["arm"], asked["prompt"][-WARM:], WARM)
            warm.add(asked["arm"])
        run = answer(asked["arm"], asked["prompt"], asked["tokens"])
        answers.write(json.dumps(asdict(run)) + "\n")
        answers.flush()


def own_answers(setup: Setup) -> Answer:
    """draftgauge's loop. Costs that rules weigh are measured first, or are those kept for this pair."""
    from draftgauge.benching.arms import own_arm
    from draftgauge.decoding.settings import DecodingSettings
    from draftgauge.pair.costs import pair_costs
    from draftgauge.pair.loading import load_pair
    from draftgauge.policies.spec import make_policy
    from draftgauge.requests import LoadSpec, PairSpec

    tokenizer = str(Path(setup.target).with_name(TARGET)) if setup.target.endswith(".gguf") else None
    loading = LoadSpec(engine=setup.options.get("engine", "auto"), tokenizer=tokenizer)
    compression = tuple(setup.options.get("compression", ["uncompressed"]))
    pair = load_pair(PairSpec(target=setup.target, drafter=setup.draft, compression=compression, loading=loading))
    costs, drafter, arms = pair_costs(pair, None, GAMMA_MAX), pair.drafter(), dict[tuple[str, int], Arm]()

    def answer(name: str, prompt: list[int], tokens: int) -> ArmRun:
        if (name, tokens) not in arms:
            settings = DecodingSettings(tokens, end_tokens=pair.end_tokens, gamma_max=GAMMA_MAX)
            rule = () if name == "plain" else (name, make_policy(name, GAMMA_MAX, costs), drafter)
            arms[name, tokens] = own_arm(pair, settings, *rule)
        return arms[name, tokens].decode(prompt)

    return answer


def llama_answers(setup: Setup) -> Answer:
    """llama.cpp's server as xllamacpp has it, at its own defaults but for the threads, the context and the drafts."""
    import xllamacpp

    from draftgauge.serving.client import complete

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = setup.target, CONTEXT, 1, 0
    drafts = params.speculative
    for threads in (params.cpuparams, params.cpuparams_batch, drafts.draft.cpuparams, drafts.draft.cpuparams_batch):
        threads.n_threads = torch.get_num_threads()
    if kind := setup.options.get("type"):
        named = f"COMMON_SPECULATIVE_TYPE_{TYPES.get(kind, kind).upper().replace('-', '_')}"
        drafts.types = [getattr(xllamacpp.common_speculative_type, named)]
        if kind.startswith("draft"):
            drafts.draft.mparams.path = setup.draft
        for place, number in setup.options["numbers"].items():
            owner, attribute = place.split(".")
            setattr(getattr(drafts, owner), attribute, number)
    server = xllamacpp.Server(params)

    def answer(name: str, prompt: list[int], tokens: int) -> ArmRun:
        told = complete("llama-server", server.listening_address, prompt, tokens)
        seconds = told.decode_seconds, told.prefill_seconds
        return ArmRun(told.tokens, told.steps or 0, told.timed, *seconds, accepted_draft=told.accepted)

    return answer


def genai_answers(setup: Setup) -> Answer:
    """OpenVINO GenAI's own pipelines; those of one kind share the weights."""
    from draftgauge.benching.arms import DRAFT_PIPELINE, LOOKUP_PIPELINE, PLAIN_PIPELINE, GenaiBaseline
    from draftgauge.models.tokenizer import end_tokens

    tokenizer = load_tokenizer(setup.target)
    target = SimpleNamespace(spec=SimpleNamespace(engine="openvino-fast"), eos_token_id=None, module=None)
    names = {"target_name": setup.target, "draft_name": setup.draft}
    pair: Any = SimpleNamespace(target=target, end_tokens=end_tokens(target, tokenizer), **names)
    kinds, opened = {"plain": PLAIN_PIPELINE, "lookup": LOOKUP_PIPELINE, "draft": DRAFT_PIPELINE}, dict[str, Any]()

    def answer(name: str, prompt: list[int], tokens: int) -> ArmRun:
        kind, _, length = name.partition(":")
        baseline = GenaiBaseline(pair, kinds[kind], int(length or 0))
        baseline.pipeline = opened.get(kind)
        run = baseline.run(prompt, tokens)
        opened[kind] = baseline.pipeline
        return run

    return answer


if __name__ == "__main__":
    main()
