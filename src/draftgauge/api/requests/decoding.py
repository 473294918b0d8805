"""Requests of the verbs that record, replay, run and report speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftgauge.api.requests.parts import (
    ChatSpec,
    CostSpec,
    DraftSpec,
    ExecutorSpec,
    JudgedSpec,
    OutputSpec,
    PairSpec,
    PromptSpec,
    SamplingSpec,
    SeedSpec,
)
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import at_least_one, positive
from draftgauge.core.settings import setting

DATASTORE_TOKENS = 1 << 17
"""Most tokens that a new datastore holds."""
PLAIN = "plain"
"""In place of a policy: decode without speculation."""


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """Record, for every position of the target's output, what would be drafted from there, and measure what a step
    costs.

    Attributes:
        out: folder for the trace; run again with the same folder to resume.
        seconds: record no further prompt of a compression after this time, tasks by turns; measuring costs comes on
            top. Run again to record more. All prompts if left out.
        batches: also measure what passes of so many requests together cost, e.g. 1,2,4,8;
            for 'draftgauge replay --batches'.
        outputs: record these answers of a serving engine, a file in OpenAI's batch output format whose custom_id are
            the prompts' ids, in place of outputs decoded here.
        plan: say what memory and disk it takes, and record nothing.
        where: who records.
    """

    out: Path
    seconds: float | None = None
    pair: PairSpec = PairSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    sampling: SamplingSpec = SamplingSpec()
    randomness: SeedSpec = SeedSpec()
    costs: CostSpec = CostSpec()
    batches: tuple[int, ...] = ()
    outputs: Path | None = None
    plan: bool = False
    where: ExecutorSpec = ExecutorSpec()

    def __post_init__(self) -> None:
        _check_batches(self.batches)
        positive(self, "seconds")
        if self.seconds is not None and self.where.in_parts:
            raise DraftgaugeError("workers record all of their prompts: leave out --seconds")
        if self.outputs is not None and (self.sampling.temperature > 0 or self.sampling.checkpoint_sampling):
            raise DraftgaugeError("answers are recorded against greedy decoding: leave out the temperature")


def _check_batches(batches: tuple[int, ...]) -> None:
    if any(batch < 1 for batch in batches) or len(set(batches)) < len(batches):
        raise DraftgaugeError(f"batches are numbers of requests, at least 1 and each once, not {list(batches)}")


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """Fit a policy on the training prompts of a trace; what it gains on the validation prompts is shown.

    Attributes:
        folder: a recorded run, or a folder of runs, with training prompts.
        policy: 'stopping', 'two-source', 'specdec++' or 'speckv'.
        out: file to write, ending in .json; give it to --policy of replay and bench.
        tasks: learn from the prompts of these tasks only, separated by commas.
        compression: learn from the runs of these compressions only, separated by commas.
        horizon: of 'stopping' and 'two-source': tokens to look ahead; 1 for the one-step rule.
        online: of 'stopping': go on calibrating while running.
    """

    folder: Path = setting(positional=True)
    policy: str = setting("stopping", short="-p")
    out: Path
    tasks: tuple[str, ...] = ()
    compression: tuple[str, ...] = ()
    horizon: int = 8
    online: bool = False
    randomness: SeedSpec = SeedSpec()

    def __post_init__(self) -> None:
        if self.online and self.policy != "stopping":
            raise DraftgaugeError(
                f"only 'stopping' goes on calibrating while running: leave out --online for {self.policy!r}"
            )


@dataclass(frozen=True, kw_only=True)
class DatastoreBuildRequest:
    """Put outputs of a recorded run into a datastore, for --datastore of replay, bench and generate.

    Attributes:
        folder: a recorded run, or a folder of runs.
        out: the datastore; outputs are added to those that are there, and take the place of those to the same prompts.
        split: the prompts whose outputs are kept: train, validation, test or all.
        tasks: keep outputs of these tasks only, separated by commas.
        with_prompts: keep prompts too.
        capacity: most tokens to keep, the oldest outputs are forgotten; 131072, or as many as before, if left out.
    """

    folder: Path = setting(positional=True)
    out: Path
    split: str = "train"
    tasks: tuple[str, ...] = ()
    with_prompts: bool = False
    capacity: int | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "capacity")


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """Evaluate policies exactly on a trace with its measured cost curve; no model is loaded.

    Attributes:
        folder: a recorded run, or a folder of runs.
        policies: a policy, e.g. none, fixed (every length), fixed:4, hf-heuristic, or a fitted file; may be repeated.
            All simple policies if left out.
        sweep: evaluate at these costs of a drafted token over a verification, e.g. .04,.10,.25.
        tune: evaluate the rules of the field a second time, each with the parameters of its own grid that are fastest
            on the training prompts for this cost curve.
        batches: say which length is best for so many requests at once, e.g. 1,2,4,8; the run must have been profiled
            with them. The policy shared-budget, or shared-budget:FILE of a fitted stopping policy, shares draft tokens
            over the requests.
        datastore: let policies that look tokens up in the text look in these earlier outputs too, of 'draftgauge
            datastore build'; none may be of the prompts judged on.
    """

    folder: Path = setting(positional=True)
    policies: tuple[str, ...] = setting((), short="-p", option="--policy", repeated=True)
    judged: JudgedSpec = JudgedSpec()
    sweep: tuple[float, ...] = ()
    tune: bool = False
    batches: tuple[int, ...] = ()
    datastore: Path | None = None

    def __post_init__(self) -> None:
        _check_batches(self.batches)
        if self.batches and self.datastore is not None:
            raise DraftgaugeError("no policy of batches looks tokens up in a text: leave out --datastore")
        if self.batches and (self.sweep or self.tune):
            raise DraftgaugeError("batches are replayed at the costs measured for them: leave out --sweep and --tune")


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """Decode live with every policy, beside plain decoding and transformers, in one process, interleaved prompt by
    prompt.

    Attributes:
        folder: a recorded run (its manifest names the pair, the prompts and the lengths), or a folder of runs; else
            name the pair.
        policies: a policy, e.g. none, fixed (every length), fixed:4, hf-heuristic, or a fitted file; may be repeated. A
            sensible choice if left out.
        over: the policy that gains are stated over, e.g. fixed:4, or plain. If left out: of a recorded run its best
            fixed length, else the fastest fixed length among the policies, which favours the fixed length.
        baselines: also run transformers' generate(), plain and assisted.
        rounds: how often every prompt is decoded by every policy.
        seconds: decode no further prompt after this time; as many rounds as asked for if left out.
        urls: in place of a pair, a running server with its setting, e.g. fixed:4=http://127.0.0.1:8001; repeated, one
            of them plain.
        server_engine: of these servers: vllm or llama-server.
        advice: JSON of 'draftgauge advise' for that engine, to say how far it was off.
        costs_out: write what a step costs in these servers, for 'draftgauge advise --costs'; of drafting too where one
            of them is draft=URL, the draft model by itself.
        datastore: let policies that look tokens up in the text look in these earlier outputs too, of 'draftgauge
            datastore build'; none may be of the prompts decoded, and none is added.
    """

    folder: Path | None = setting(None, positional=True)
    policies: tuple[str, ...] = setting((), short="-p", option="--policy", repeated=True)
    pair: PairSpec = PairSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    costs: CostSpec = CostSpec()
    over: str | None = None
    baselines: bool = True
    rounds: int = 3
    seconds: float | None = None
    urls: tuple[str, ...] = setting((), option="--url", repeated=True)
    server_engine: str = "vllm"
    advice: Path | None = None
    costs_out: Path | None = None
    datastore: Path | None = None
    randomness: SeedSpec = SeedSpec()

    def __post_init__(self) -> None:
        at_least_one(self, "rounds")
        positive(self, "seconds")
        if self.urls and self.datastore is not None:
            raise DraftgaugeError("servers look tokens up by their own settings: leave out --datastore")
        if not self.urls and (self.advice is not None or self.costs_out is not None):
            raise DraftgaugeError("--advice and --costs-out are of running servers: name these with --url")


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Decode a prompt with speculation and stream the text.

    Attributes:
        prompt: the prompt; '-' reads it from standard input.
        policy: how far to draft, e.g. fixed:4; 'plain' decodes without speculation.
        stop: end the output after this text; may be repeated.
        chat: use the chat template or take the prompt as it is; the template where there is one if left out.
        datastore: let a policy that looks tokens up in the text look in these earlier outputs too, and add this one;
            the file is made if it is not there.
        conversation: how a conversation is put before the target.
    """

    prompt: str | tuple[int, ...] = setting(positional=True)
    policy: str = setting("fixed:4", short="-p")
    pair: PairSpec = PairSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    sampling: SamplingSpec = SamplingSpec()
    randomness: SeedSpec = SeedSpec()
    costs: CostSpec = CostSpec()
    stop: tuple[str, ...] = setting((), repeated=True)
    chat: bool | None = setting(None, negative="--raw")
    datastore: Path | None = None
    conversation: ChatSpec = ChatSpec()


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """Draw acceptance, speed against gamma, costs and token timelines; the file works offline.

    Attributes:
        folder: a recorded run, or a folder of runs.
        out: the file to write; report.html in the folder if left out.
        bench: JSON of 'draftgauge bench', to show live figures; may be repeated.
        policies: a policy to judge on test prompts, by name or fitted file; may be repeated. Fitted ones that lie in
            the folder are added.
        title: heading of the report.
    """

    folder: Path = setting(positional=True)
    out: Path | None = None
    bench: tuple[Path, ...] = setting((), repeated=True)
    policies: tuple[str, ...] = setting((), short="-p", option="--policy", repeated=True)
    title: str = "How far to draft"


@dataclass(frozen=True, kw_only=True)
class AdviseRequest:
    """Say whether to speculate in an engine, with which length or rule and which flags, from a recorded run or from
    what a running server counts.

    Attributes:
        folder: a recorded run; may be left out with --url or --requests.
        engine: 'draftgauge', 'transformers', 'gguf', 'llama-server', 'vllm' or 'sglang'.
        costs: JSON of what a step costs in the engine; those of the run, where draftgauge's loop decodes, if left out.
        url: a running server of the engine, e.g. http://127.0.0.1:8000.
        model: the model that the server must serve, or else it is refused.
        requests: JSON Lines of vLLM's answers with metrics of every step, in place of a recorded run.
        policies: a policy to try beside the fixed lengths, by name or fitted file; may be repeated. Those that are
            compared by default, and the fitted ones in the folder, if left out.
        settings: also write the engine's own settings to this file: vLLM's speculative configuration, SGLang's
            candidate steps, llama.cpp's options.
    """

    folder: Path | None = setting(None, positional=True)
    engine: str = setting("draftgauge", short="-e")
    costs: Path | None = None
    url: str | None = None
    model: str | None = None
    requests: Path | None = None
    policies: tuple[str, ...] = setting((), short="-p", option="--policy", repeated=True)
    judged: JudgedSpec = JudgedSpec()
    settings: Path | None = None


@dataclass(frozen=True, kw_only=True)
class DemoRequest:
    """Profile, replay, bench and report the bundled pair at several compressions, within a given time.

    Attributes:
        out: folder for the runs and the report.
        seconds: time that it may take; prompts, rounds and lengths are chosen to fit.
        rounds: rounds of the live bench at most.
    """

    out: Path = Path("demo")
    seconds: float = 120.0
    pair: PairSpec = PairSpec(compression=("none", "int8", "nf4"))
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    drafts: DraftSpec = DraftSpec()
    costs: CostSpec = CostSpec()
    rounds: int = 3

    def __post_init__(self) -> None:
        at_least_one(self, "rounds", "seconds")
