"""Requests of the verbs that record, replay, run and report speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.config import option
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import (
    CHAT,
    UNCOMPRESSED,
    ChatSpec,
    Compression,
    CostSpec,
    DeviceSpec,
    DraftSpec,
    ExecutorSpec,
    JudgedSpec,
    LoadSpec,
    OutputSpec,
    PairSpec,
    PromptSpec,
    SamplingSpec,
    SeedSpec,
    StartSpec,
    TokenizerSpec,
    at_least_one,
    check_each_once,
    positive,
)

DATASTORE_TOKENS = 1 << 17  # most tokens that a new datastore holds
PLAIN = "plain"  # in place of a policy: decode without speculation
EARLIER = "earlier outputs ('datastore build') to look tokens up in, not of these prompts."
NAMED = "a policy, e.g. no-draft, fixed (every length), fixed:4, hf-heuristic, or a fitted file; may be repeated."


def policies_option(help: str) -> Any:
    return option((), short="-p", name="--policy", repeated=True, help=help)


def _check_batches(batches: tuple[int, ...]) -> None:
    if any(batch < 1 for batch in batches) or len(set(batches)) < len(batches):
        raise DraftgaugeError(f"batches must be numbers of requests, at least 1 and each once, not {list(batches)}")


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """Record, for every position of the target's output, what would be drafted from there, and measure what a step
    costs.
    """

    out: Path = option(help="folder for the trace; run again with the same folder to resume.")
    seconds: float | None = option(None, help="start no further prompt of a compression after this time.")
    pair: PairSpec = PairSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    sampling: SamplingSpec = SamplingSpec()
    randomness: SeedSpec = SeedSpec()
    costs: CostSpec = CostSpec()
    batches: tuple[int, ...] = option((), help="also measure batches of these sizes, e.g. 1,2,4,8, for 'replay'.")
    outputs: Path | None = option(None, help="record a serving engine's answers, in the form of OpenAI's batch output.")
    plan: bool = option(False, help="print the memory and disk that recording takes, and record nothing.")
    where: ExecutorSpec = ExecutorSpec()

    def __post_init__(self) -> None:
        _check_batches(self.batches)
        positive(self, "seconds")
        if self.seconds is not None and self.where.in_parts:
            raise DraftgaugeError("workers record all of their prompts: leave out --seconds")
        if self.outputs is not None and (self.sampling.temperature > 0 or self.sampling.checkpoint_sampling):
            raise DraftgaugeError("answers are recorded against greedy decoding: leave out the temperature")


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """Compare drafters of a target: each is recorded over the same outputs, measured here, and ranked by speed at its
    best length or rule.
    """

    drafters: tuple[str, ...] = option(
        positional=True,
        help="draft models, EAGLE-3, DFlash or DSpark checkpoints, folders of trained drafters, 'mtp' (the target's "
        "own heads), 'lookup', or engines' lookup: 'suffix', 'ngram-mod', 'vllm-ngram'.",
    )
    target: str | None = option(None, help="target model: an id or a folder; the bundled 'reference' if left out.")
    out: Path = option(Path("rank"), help="folder for a run of each drafter; run again with the same folder to resume.")
    compression: Compression = option(
        UNCOMPRESSED, help="of the target: uncompressed, fp32, fp16, bf16, int8, int8-weight, int8-dynamic, nf4, int4."
    )
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    randomness: SeedSpec = SeedSpec()
    costs: CostSpec = CostSpec()
    costs_of: tuple[str, ...] = option(
        (), repeated=True, name="--costs", help="DRAFTER=FILE: what a step costs in an engine, of every drafter."
    )
    costs_engine: str = option("draftgauge", help="the engine that the files of --costs are of, e.g. vllm.")
    live: int | None = option(
        None, help="also decode this many of the prompts with each drafter at its best setting and plainly, by turns."
    )
    setups: tuple[str, ...] = option(
        (), name="--setup", help="rank with each of these and compare them: compressions, gguf:FILE, openvino:FOLDER."
    )
    seconds: float | None = option(None, help="start no further drafter or setup after this time.")
    machine: DeviceSpec = DeviceSpec()
    loading: LoadSpec = LoadSpec()

    def __post_init__(self) -> None:
        check_each_once("drafter", self.drafters)
        at_least_one(self, "live")
        positive(self, "seconds")
        if self.setups:
            check_each_once("setup", self.setups)
            if self.costs_of or self.compression != UNCOMPRESSED:
                raise DraftgaugeError("each setup has its own costs and compression: leave out --costs, --compression")


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Put recorded runs of the same prompts side by side in tokens a second, with quality and memory, and say which to
    deploy.
    """

    folders: tuple[Path, ...] = option(positional=True, help="recorded runs, or folders of runs.")
    bench: tuple[Path, ...] = option(
        (), repeated=True, help="JSON of 'draftgauge bench' on one of them, for live figures; RUN/bench.json is read."
    )
    judged: JudgedSpec = JudgedSpec()

    def __post_init__(self) -> None:
        check_each_once("run", self.folders)


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """Find out why a drafter is hardly accepted or no faster: of a recorded run, of a pair, or from a running engine's
    counters.
    """

    folder: Path | None = option(None, positional=True, help="a recorded run; else name the pair, or --url.")
    url: str | None = option(None, help="a running engine, or a file with the text of its /metrics.")
    against: str | None = option(None, help="a server of the same model without drafting, to compare answers with.")
    samples: int = option(100, help="short answers that --against samples for a prompt in each server.")
    server: str | None = option(None, help="the engine of --url or --costs, e.g. vllm or llama-server.")
    costs_file: Path | None = option(None, name="--costs", help="JSON of what a step costs in the engine.")
    pair: PairSpec = PairSpec()
    prompts: PromptSpec = PromptSpec(per_task=4)
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec(gamma_max=8)
    sampling: SamplingSpec = SamplingSpec()
    randomness: SeedSpec = SeedSpec()
    costs: CostSpec = CostSpec()
    out: Path | None = option(None, help="folder for the run of a pair; it is not kept if left out.")

    def __post_init__(self) -> None:
        if len(self.pair.compression) > 1:
            raise DraftgaugeError("a pair is looked at in one compression of the target: name one")
        at_least_one(self, "samples")
        if self.against is not None and self.url is None:
            raise DraftgaugeError("--against is compared with a server that drafts: name that with --url")


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """Fit a policy on the training prompts of a trace, and show its gain on the validation prompts."""

    folder: Path = option(positional=True, help="a recorded run, or a folder of runs.")
    policy: str = option("stopping", short="-p", help="'stopping', 'two-source' or 'speckv'.")
    out: Path = option(help="file to write, ending in .json; give it to --policy of replay and bench.")
    split: str = option("train", help="learn from the train prompts, which leaves others to judge on, or from all.")
    tasks: tuple[str, ...] = option((), help="learn from these tasks only, separated by commas.")
    costs: Path | None = option(None, help="JSON of what a step costs in an engine; the run's own if left out.")
    engine: str = option("draftgauge", short="-e", help="the engine that --costs are of, e.g. vllm.")
    randomness: SeedSpec = SeedSpec()


@dataclass(frozen=True, kw_only=True)
class DatastoreBuildRequest:
    """Put outputs of a recorded run into a datastore, for --datastore of replay, bench and generate."""

    folder: Path = option(positional=True, help="a recorded run, or a folder of runs.")
    out: Path = option(help="the datastore's file; outputs are added, and replace earlier ones to the same prompts.")
    split: str = option("train", help="the prompts whose outputs are kept: train, validation, test or all.")
    tasks: tuple[str, ...] = option((), help="keep outputs of these tasks only, separated by commas.")
    capacity: int | None = option(None, help="the most tokens to keep, newest outputs first; 131072 if left out.")

    def __post_init__(self) -> None:
        at_least_one(self, "capacity")


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """Evaluate policies exactly on a trace with its measured cost curve; no model is loaded."""

    folder: Path = option(positional=True, help="a recorded run, or a folder of runs.")
    policies: tuple[str, ...] = policies_option(NAMED)
    judged: JudgedSpec = JudgedSpec()
    tune: bool = option(False, help="also evaluate policies with parameters tuned on the training prompts.")
    batches: tuple[int, ...] = option((), help="find the best length at these batch sizes, e.g. 1,2,4,8.")
    datastore: Path | None = option(None, help=EARLIER)

    def __post_init__(self) -> None:
        _check_batches(self.batches)
        if self.batches and self.datastore is not None:
            raise DraftgaugeError("in batches no policy looks tokens up in the text: leave out --datastore")
        if self.batches and self.tune:
            raise DraftgaugeError("in batches every policy keeps its own parameters: leave out --tune")


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """Decode live with every policy, beside plain decoding and transformers, in one process, interleaved prompt by
    prompt.
    """

    folder: Path | None = option(None, positional=True, help="a recorded run, or a folder of runs; else name the pair.")
    policies: tuple[str, ...] = policies_option(NAMED)
    pair: PairSpec = PairSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    costs: CostSpec = CostSpec()
    over: str | None = option(None, help="the policy to state gains over; the best fixed length if left out.")
    baselines: bool = option(
        True, help="also run transformers' generate() or OpenVINO GenAI, with hf- rules' values too."
    )
    rounds: int | None = option(None, help="how often every policy decodes every prompt; 3 in 3 minutes if left out.")
    seconds: float | None = option(None, help="start no further prompt after this time.")
    at_least: float | None = option(None, help="exit with 1 where the advised setting is below this many x plain.")
    datastore: Path | None = option(None, help=EARLIER)
    randomness: SeedSpec = SeedSpec()

    def __post_init__(self) -> None:
        at_least_one(self, "rounds")
        positive(self, "seconds", "at_least")


@dataclass(frozen=True, kw_only=True)
class BenchServersRequest:
    """Ask servers, each at a setting of its own, prompt by prompt, and compare their speeds."""

    servers: tuple[str, ...] = option(
        positional=True, help="servers as SETTING=URL, one of them plain; as SETTING alone they are started for it."
    )
    engine: str = option("vllm", short="-e", help="what they run: vllm or llama-server.")
    target: str | None = option(None, help="the model that they serve, for its tokenizer; 'reference' if left out.")
    start_with: StartSpec = StartSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    loading: TokenizerSpec = TokenizerSpec()
    over: str | None = option(None, help="the setting to state gains over; the fastest fixed length if left out.")
    rounds: int | None = option(None, help="how often every server decodes every prompt; 3 in 3 minutes if left out.")
    seconds: float | None = option(None, help="start no further prompt after this time.")
    at_least: float | None = option(None, help="exit with 1 where the advised setting is below this many x plain.")
    costs_out: Path | None = option(None, help="write what a step costs; draft=URL serves the draft model by itself.")
    randomness: SeedSpec = SeedSpec()

    def __post_init__(self) -> None:
        at_least_one(self, "rounds")
        positive(self, "seconds", "at_least")
        if self.prompts.turns > 1:
            raise DraftgaugeError("servers are asked single turns only: leave out --turns, or bench the pair itself")


@dataclass(frozen=True, kw_only=True)
class CostsRequest:
    """Say what a step costs in an engine: from servers started here, vLLM's 'bench forward', or SGLang's tables."""

    engine: str = option("vllm", short="-e", help="vllm, whose 0.33 has 'bench forward', llama-server or sglang.")
    start: bool = option(False, help="start the engine's server here at every length, measure its steps, and stop it.")
    target: str | None = option(None, help="the model that a server that is started serves.")
    start_with: StartSpec = StartSpec()
    cases: Path | None = option(None, help="write the cases to measure to this JSON file, and say how to run them.")
    lengths: tuple[int, ...] = option((1, 2, 4, 8), help="draft lengths of the cases, beside 0.")
    batches: tuple[int, ...] = option((1, 4, 16), help="requests at once.")
    contexts: tuple[int, ...] = option(
        (), help="tokens of text of each request; 256,2048,8192 if left out, with --start 256."
    )
    target_alone: Path | None = option(None, help="result of the cases with --exclude-drafter.")
    with_drafter: Path | None = option(None, help="result of the same cases with the drafter.")
    served: float | None = option(
        None, help="seconds of a served step without drafts, at the smallest batch and context, to calibrate by."
    )
    dspark_table: Path | None = option(None, help="SGLang's table of DSpark steps, to make costs of with --served.")
    from_costs: Path | None = option(None, help="costs of SGLang, to write to --out as its table of DSpark steps.")
    out: Path | None = option(None, help="the file of costs to write, for --costs of advise.")

    def __post_init__(self) -> None:
        _check_batches(self.batches)
        positive(self, "served")
        tables = [path for path in (self.dspark_table, self.from_costs) if path is not None]
        whole = self.cases is None and self.out not in (None, *tables) and (self.from_costs or self.served)
        if not self.start and ((len(tables) == 1) != (self.engine == "sglang") or (tables and not whole)):
            raise DraftgaugeError("--engine sglang wants a new --out and --dspark-table with --served, or --from-costs")
        if not self.batches:
            raise DraftgaugeError("--batches must name a number of requests, e.g. 1,4,16")
        if any(length < 1 for length in (*self.lengths, *self.contexts)) or not self.lengths:
            raise DraftgaugeError("--lengths and --contexts are numbers of tokens, at least one of 1 or more")
        for name in ("lengths", "contexts"):  # two equal contexts make no law
            if len(set(asked := getattr(self, name))) < len(asked):
                raise DraftgaugeError(f"--{name} names a number twice: name each once, not {','.join(map(str, asked))}")
        if self.start and self.out is None:
            raise DraftgaugeError("name the file of costs to write with --out")


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Decode a prompt with speculation and stream the text."""

    prompt: str | tuple[int, ...] = option(positional=True, help="the prompt; '-' reads it from standard input.")
    policy: str = option(
        "two-source",
        short="-p",
        help="how far to draft; 'two-source' first measures a new pair's step costs; 'plain' decodes without drafts.",
    )
    pair: PairSpec = PairSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    sampling: SamplingSpec = SamplingSpec()
    randomness: SeedSpec = SeedSpec()
    costs: CostSpec = CostSpec()
    stop: tuple[str, ...] = option((), repeated=True, help="end the output after this text; may be repeated.")
    chat: bool | None = option(None, negative="--raw", help=CHAT)
    datastore: Path | None = option(None, help="earlier outputs to look tokens up in; this one is added.")
    conversation: ChatSpec = ChatSpec()


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """Write one HTML file, which works offline: acceptance, speed by draft length, costs, gains by task."""

    folder: Path = option(positional=True, help="a recorded run, or a folder of runs.")
    out: Path | None = option(None, help="the file to write; report.html in the folder if left out.")
    bench: tuple[Path, ...] = option((), repeated=True, help="JSON of 'draftgauge bench', to show live figures.")
    ranked: Path | None = option(None, name="--rank", help="JSON of 'draftgauge rank', to show drafters side by side.")
    policies: tuple[str, ...] = policies_option("a policy to judge beside the usual ones; may be repeated.")
    split: str | None = option(None, help="judge on train, validation, test or all; on test if there are enough.")


@dataclass(frozen=True, kw_only=True)
class AdviseRequest:
    """Say whether to speculate in an engine, and with which length, rule and flags, from a recorded run or a running
    server's counts."""

    folder: Path | None = option(None, positional=True, help="a recorded run; or else --url or --requests.")
    engine: str = option(
        "draftgauge", short="-e", help="one of draftgauge, transformers, gguf, llama-server, vllm and sglang."
    )
    costs: Path | None = option(None, help="JSON of what a step costs in the engine; the run's own if left out.")
    url: str | None = option(None, help="a running server of the engine, e.g. http://127.0.0.1:8000.")
    requests: Path | None = option(
        None, help="answers of vLLM with metrics of every step, or results of aiperf or guidellm with them."
    )
    policies: tuple[str, ...] = policies_option("a policy to try beside the fixed lengths; may be repeated.")
    judged: JudgedSpec = JudgedSpec()
    batch: int | None = option(None, help="also say whether adaptive verification pays at this many requests at once.")
    settings: Path | None = option(None, help="also write the engine's own settings to this file.")
    export_acceptance: Path | None = option(
        None, help="also write acceptance by position and task, as planners and synthetic runs of engines take it."
    )

    def __post_init__(self) -> None:
        at_least_one(self, "batch")


@dataclass(frozen=True, kw_only=True)
class DemoRequest:
    """Profile, replay, bench and report the bundled pair within a given time; at more compressions while it lasts."""

    out: Path = option(Path("demo"), help="folder for the runs and the report.")
    seconds: float = option(105.0, help="time that it may take; prompts and rounds end with it.")
    pair: PairSpec = PairSpec(compression=(UNCOMPRESSED, "int8", "nf4"))
    prompts: PromptSpec = PromptSpec(per_task=6)
    output: OutputSpec = OutputSpec(max_new_tokens=96)
    drafts: DraftSpec = DraftSpec(gamma_max=8)
    costs: CostSpec = CostSpec()
    rounds: int = option(1, help="rounds of the live bench at most.")

    def __post_init__(self) -> None:
        at_least_one(self, "rounds", "seconds")
