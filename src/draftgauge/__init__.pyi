# Written by tools/make_stub.py from the requests: run it after a change to one of them.
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

from draftgauge.api.runs import Run as Run
from draftgauge.core.errors import DraftgaugeError as DraftgaugeError
from draftgauge.core.table import Rows as Rows
from draftgauge.decoding.settings import Generation as Generation
from draftgauge.integrations.transformers import Speculative as Speculative
from draftgauge.integrations.transformers import speculative as speculative
from draftgauge.pair.loading import Pair as Pair
from draftgauge.policies.base import Policy as Policy
from draftgauge.policies.base import Signal as Signal
from draftgauge.policies.base import Step as Step
from draftgauge.policies.spec import make_policy as make_policy
from draftgauge.reporting import plot as plot
from draftgauge.traces.costs import CostCurve as CostCurve
from draftgauge.traces.run import read_trace as read_trace
from draftgauge.traces.trace import Trace as Trace

_Text: TypeAlias = str | PathLike[str]
_Prompts: TypeAlias = Sequence[str | Mapping[str, Any]]

__version__: str

def advise(
    folder: _Text | None = None, engine: _Text = 'draftgauge', costs: _Text | None = None, url: _Text | None = None,
    requests: _Text | None = None, policies: _Text | Sequence[_Text] = (), *, tasks: _Text | Sequence[_Text] = (),
    split: _Text | None = None, batch: int | None = None, settings: _Text | None = None,
    export_acceptance: _Text | None = None,
) -> Rows:
    """Say whether to speculate in an engine, and with which length or rule."""

@overload
def bench(
    folder: _Text | None = None, policies: _Text | Sequence[_Text] = (), *, target: _Text | None = None,
    drafter: _Text | None = None, compression: _Text | Sequence[_Text] = ('uncompressed',),
    device: _Text | None = None, trust_remote_code: bool = False, tokenizer: _Text | None = None,
    engine: _Text = 'auto', device_map: _Text | None = None, draft_device: _Text | None = None,
    allow_pickle: bool = False, prompts: _Prompts | _Text | None = None, limit: int | None = None,
    per_task: int | None = None, tasks: _Text | Sequence[_Text] = (), split: _Text | None = None,
    long_prompts: _Text = 'error', chat: bool | None = None, turns: int = 1,
    chat_template_args: Mapping[str, Any] | _Text = '', system: _Text | None = None, max_new_tokens: int = 128,
    gamma_max: int = 16, cost_seconds: float = 15.0, measure: bool = False, over: _Text | None = None,
    baselines: bool = True, rounds: int | None = None, seconds: float | None = None, at_least: float | None = None,
    datastore: _Text | None = None, seed: int = 0, objects: Mapping[str, Policy] | None = None,
    progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Bench policies live: on the pair and the prompts of recorded runs, or on a pair of which nothing has been
    recorded. ``bench(pair, policies=("stopping",))`` decodes with a pair that is loaded already."""

@overload
def bench(
    pair: Pair, folder: _Text | None = None, policies: _Text | Sequence[_Text] = (), *,
    prompts: _Prompts | _Text | None = None, limit: int | None = None, per_task: int | None = None,
    tasks: _Text | Sequence[_Text] = (), split: _Text | None = None, long_prompts: _Text = 'error',
    chat: bool | None = None, turns: int = 1, chat_template_args: Mapping[str, Any] | _Text = '',
    system: _Text | None = None, max_new_tokens: int = 128, gamma_max: int = 16, cost_seconds: float = 15.0,
    measure: bool = False, over: _Text | None = None, baselines: bool = True, rounds: int | None = None,
    seconds: float | None = None, at_least: float | None = None, datastore: _Text | None = None, seed: int = 0,
    objects: Mapping[str, Policy] | None = None, progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Bench policies live: on the pair and the prompts of recorded runs, or on a pair of which nothing has been
    recorded. ``bench(pair, policies=("stopping",))`` decodes with a pair that is loaded already."""

def bench_servers(
    servers: _Text | Sequence[_Text], engine: _Text = 'vllm', target: _Text | None = None, *,
    drafter: _Text | None = None, kind: _Text | None = None, program: _Text | None = None,
    prompts: _Prompts | _Text | None = None, limit: int | None = None, per_task: int | None = None,
    tasks: _Text | Sequence[_Text] = (), split: _Text | None = None, long_prompts: _Text = 'error',
    chat: bool | None = None, turns: int = 1, chat_template_args: Mapping[str, Any] | _Text = '',
    system: _Text | None = None, max_new_tokens: int = 128, trust_remote_code: bool = False,
    tokenizer: _Text | None = None, over: _Text | None = None, rounds: int | None = None, seconds: float | None = None,
    at_least: float | None = None, costs_out: _Text | None = None, seed: int = 0,
    progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Bench running servers; those named without an address are started for it, and stopped."""

def build_datastore(
    folder: _Text, out: _Text, split: _Text = 'train', tasks: _Text | Sequence[_Text] = (), capacity: int | None = None,
) -> Rows:
    """Add the outputs of recorded runs to a datastore; the file is made if it is not there."""

def compare(
    folders: _Text | Sequence[_Text], bench: _Text | Sequence[_Text] = (), *, tasks: _Text | Sequence[_Text] = (),
    split: _Text | None = None,
) -> Rows:
    """Put runs side by side in tokens a second: plain decoding, the best rule replayed, and live where it was benched."""

def costs(
    engine: _Text = 'vllm', start: bool = False, target: _Text | None = None, *, drafter: _Text | None = None,
    kind: _Text | None = None, program: _Text | None = None, cases: _Text | None = None,
    lengths: _Text | Sequence[int] = (1, 2, 4, 8), batches: _Text | Sequence[int] = (1, 4, 16),
    contexts: _Text | Sequence[int] = (), target_alone: _Text | None = None, with_drafter: _Text | None = None,
    served: float | None = None, dspark_table: _Text | None = None, from_costs: _Text | None = None,
    out: _Text | None = None, progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Measure a step in servers started here. For ``vllm bench forward``: write its cases, or read its two results."""

def demo(
    out: _Text = ..., seconds: float = 105.0, *, target: _Text | None = None, drafter: _Text | None = None,
    compression: _Text | Sequence[_Text] = ('uncompressed', 'int8', 'nf4'), device: _Text | None = None,
    trust_remote_code: bool = False, tokenizer: _Text | None = None, engine: _Text = 'auto',
    device_map: _Text | None = None, draft_device: _Text | None = None, allow_pickle: bool = False,
    prompts: _Prompts | _Text | None = None, limit: int | None = None, per_task: int | None = 6,
    tasks: _Text | Sequence[_Text] = (), split: _Text | None = None, long_prompts: _Text = 'error',
    chat: bool | None = None, turns: int = 1, chat_template_args: Mapping[str, Any] | _Text = '',
    system: _Text | None = None, max_new_tokens: int = 96, gamma_max: int = 8, cost_seconds: float = 15.0,
    measure: bool = False, rounds: int = 1, progress: Callable[[str, int, int], None] = ...,
    on_text: Callable[[str, str], None] | None = None, on_rows: Callable[[str, Sequence[dict[str, Any]]], None] = ...,
) -> Rows:
    """Record, replay and bench a pair within ``seconds`` and write the report."""

def diagnose(
    runs: _Text | Sequence[_Text], *, target: _Text | None = None, compression: _Text | None = None,
    depths: int | None = None, prompts: _Prompts | _Text | None = 'reference:validation', limit: int | None = None,
    per_task: int | None = 4, tasks: _Text | Sequence[_Text] = (), split: _Text | None = None,
    long_prompts: _Text = 'truncate', chat: bool | None = None, turns: int = 1,
    chat_template_args: Mapping[str, Any] | _Text = '', system: _Text | None = None, max_new_tokens: int = 96,
    device: _Text | None = None, trust_remote_code: bool = False, tokenizer: _Text | None = None,
    engine: _Text = 'auto', progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Measure what limits drafters on texts that their target decodes."""

def doctor(
    folder: _Text | None = None, url: _Text | None = None, against: _Text | None = None, samples: int = 100,
    server: _Text | None = None, costs_file: _Text | None = None, *, target: _Text | None = None,
    drafter: _Text | None = None, compression: _Text | Sequence[_Text] = ('uncompressed',),
    device: _Text | None = None, trust_remote_code: bool = False, tokenizer: _Text | None = None,
    engine: _Text = 'auto', device_map: _Text | None = None, draft_device: _Text | None = None,
    allow_pickle: bool = False, prompts: _Prompts | _Text | None = None, limit: int | None = None,
    per_task: int | None = 4, tasks: _Text | Sequence[_Text] = (), split: _Text | None = None,
    long_prompts: _Text = 'error', chat: bool | None = None, turns: int = 1,
    chat_template_args: Mapping[str, Any] | _Text = '', system: _Text | None = None, max_new_tokens: int = 128,
    gamma_max: int = 8, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
    checkpoint_sampling: bool = False, seed: int = 0, cost_seconds: float = 15.0, measure: bool = False,
    out: _Text | None = None, progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Look for the usual reasons why a drafter is hardly accepted or speculation is no faster."""

def evaluate(
    drafter: _Text, *, target: _Text | None = None, compression: _Text | None = None, depths: int | None = None,
    prompts: _Prompts | _Text | None = None, limit: int | None = None, per_task: int | None = None,
    tasks: _Text | Sequence[_Text] = (), split: _Text | None = None, long_prompts: _Text = 'truncate',
    chat: bool | None = None, turns: int = 1, chat_template_args: Mapping[str, Any] | _Text = '',
    system: _Text | None = None, max_new_tokens: int = 128, device: _Text | None = None,
    trust_remote_code: bool = False, tokenizer: _Text | None = None, engine: _Text = 'auto',
    progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Measure a trained drafter on texts that its target decodes."""

def export(
    drafter: _Text, out: _Text, format: Literal['eagle3', 'dflash', 'mtp'] | None = None,
) -> Rows:
    """Write a trained drafter as serving engines load it."""

def fit(
    folder: _Text, policy: _Text = 'stopping', *, out: _Text, split: _Text = 'train',
    tasks: _Text | Sequence[_Text] = (), costs: _Text | None = None, engine: _Text = 'draftgauge', seed: int = 0,
) -> Rows:
    """Fit a policy on the training prompts of recorded runs and write it to a file that ``--policy`` takes."""

@overload
def generate(
    prompt: _Text | Sequence[int], policy: _Text = 'two-source', *, target: _Text | None = None,
    drafter: _Text | None = None, compression: _Text | Sequence[_Text] = ('uncompressed',),
    device: _Text | None = None, trust_remote_code: bool = False, tokenizer: _Text | None = None,
    engine: _Text = 'auto', device_map: _Text | None = None, draft_device: _Text | None = None,
    allow_pickle: bool = False, max_new_tokens: int = 128, gamma_max: int = 16, temperature: float = 0.0,
    top_k: int = 0, top_p: float = 1.0, checkpoint_sampling: bool = False, seed: int = 0, cost_seconds: float = 15.0,
    measure: bool = False, stop: _Text | Sequence[_Text] = (), chat: bool | None = None,
    datastore: _Text | None = None, chat_template_args: Mapping[str, Any] | _Text = '', system: _Text | None = None,
    objects: Mapping[str, Policy] | None = None, on_text: Callable[[str, str], None] | None = None,
    progress: Callable[[str, int, int], None] = ...,
) -> Generation:
    """Decode one prompt: ``.text``, ``.tokens``, and ``.steps``, how they came about."""

@overload
def generate(
    pair: Pair, prompt: _Text | Sequence[int], policy: _Text = 'two-source', *, max_new_tokens: int = 128,
    gamma_max: int = 16, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
    checkpoint_sampling: bool = False, seed: int = 0, cost_seconds: float = 15.0, measure: bool = False,
    stop: _Text | Sequence[_Text] = (), chat: bool | None = None, datastore: _Text | None = None,
    chat_template_args: Mapping[str, Any] | _Text = '', system: _Text | None = None,
    objects: Mapping[str, Policy] | None = None, on_text: Callable[[str, str], None] | None = None,
    progress: Callable[[str, int, int], None] = ...,
) -> Generation:
    """Decode one prompt: ``.text``, ``.tokens``, and ``.steps``, how they came about."""

def load_pair(
    target: _Text | None = None, drafter: _Text | None = None,
    compression: _Text | Sequence[_Text] = ('uncompressed',), *, device: _Text | None = None,
    trust_remote_code: bool = False, tokenizer: _Text | None = None, engine: _Text = 'auto',
    device_map: _Text | None = None, draft_device: _Text | None = None, allow_pickle: bool = False,
) -> Pair:
    """Load a target, at a single compression, and what drafts for it, and check that they belong together."""

@overload
def profile(
    out: _Text, seconds: float | None = None, *, target: _Text | None = None, drafter: _Text | None = None,
    compression: _Text | Sequence[_Text] = ('uncompressed',), device: _Text | None = None,
    trust_remote_code: bool = False, tokenizer: _Text | None = None, engine: _Text = 'auto',
    device_map: _Text | None = None, draft_device: _Text | None = None, allow_pickle: bool = False,
    prompts: _Prompts | _Text | None = None, limit: int | None = None, per_task: int | None = None,
    tasks: _Text | Sequence[_Text] = (), split: _Text | None = None, long_prompts: _Text = 'error',
    chat: bool | None = None, turns: int = 1, chat_template_args: Mapping[str, Any] | _Text = '',
    system: _Text | None = None, max_new_tokens: int = 128, gamma_max: int = 16, temperature: float = 0.0,
    top_k: int = 0, top_p: float = 1.0, checkpoint_sampling: bool = False, seed: int = 0, cost_seconds: float = 15.0,
    measure: bool = False, batches: _Text | Sequence[int] = (), outputs: _Text | None = None, plan: bool = False,
    executor: _Text = 'local', cpus: int = 1, gpus: float = 0, shards: int = 1,
    progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Record traces and cost curves of a pair, one run for each compression of the target."""

@overload
def profile(
    pair: Pair, out: _Text, seconds: float | None = None, *, prompts: _Prompts | _Text | None = None,
    limit: int | None = None, per_task: int | None = None, tasks: _Text | Sequence[_Text] = (),
    split: _Text | None = None, long_prompts: _Text = 'error', chat: bool | None = None, turns: int = 1,
    chat_template_args: Mapping[str, Any] | _Text = '', system: _Text | None = None, max_new_tokens: int = 128,
    gamma_max: int = 16, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
    checkpoint_sampling: bool = False, seed: int = 0, cost_seconds: float = 15.0, measure: bool = False,
    batches: _Text | Sequence[int] = (), outputs: _Text | None = None, plan: bool = False, executor: _Text = 'local',
    cpus: int = 1, gpus: float = 0, shards: int = 1, progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Record traces and cost curves of a pair, one run for each compression of the target."""

def rank(
    drafters: _Text | Sequence[_Text], target: _Text | None = None, out: _Text = ...,
    compression: _Text = 'uncompressed', *, prompts: _Prompts | _Text | None = None, limit: int | None = None,
    per_task: int | None = None, tasks: _Text | Sequence[_Text] = (), split: _Text | None = None,
    long_prompts: _Text = 'error', chat: bool | None = None, turns: int = 1,
    chat_template_args: Mapping[str, Any] | _Text = '', system: _Text | None = None, max_new_tokens: int = 128,
    gamma_max: int = 16, seed: int = 0, cost_seconds: float = 15.0, measure: bool = False,
    costs_of: _Text | Sequence[_Text] = (), costs_engine: _Text = 'draftgauge', live: int | None = None,
    setups: _Text | Sequence[_Text] = (), seconds: float | None = None, device: _Text | None = None,
    trust_remote_code: bool = False, tokenizer: _Text | None = None, engine: _Text = 'auto',
    device_map: _Text | None = None, draft_device: _Text | None = None, allow_pickle: bool = False,
    progress: Callable[[str, int, int], None] = ...,
) -> Rows:
    """Record every drafter over the same outputs of a target, and rank them by speed at the best setting of each."""

def replay(
    folder: _Text, policies: _Text | Sequence[_Text] = (), *, tasks: _Text | Sequence[_Text] = (),
    split: _Text | None = None, tune: bool = False, batches: _Text | Sequence[int] = (),
    datastore: _Text | None = None, objects: Mapping[str, Policy] | None = None,
) -> Rows:
    """Replay policies on recorded runs, beside plain decoding, the best fixed length and the hindsight optimum."""

def report(
    folder: _Text, out: _Text | None = None, bench: _Text | Sequence[_Text] = (), ranked: _Text | None = None,
    policies: _Text | Sequence[_Text] = (), split: _Text | None = None,
) -> Path:
    """Write one self-contained HTML file about the runs at a place, and return its path."""

def train(
    out: _Text | None = None, plan: bool = False, *, chat_template_args: Mapping[str, Any] | _Text = '',
    system: _Text | None = None, target: _Text = 'reference', prompts: _Prompts | _Text | None = None,
    device: _Text | None = None, seed: int = 0, trust_remote_code: bool = False, recipe: _Text = 'ttt',
    reuse: _Text = 'hybrid', layers: int = 1,
    taps: _Text | Sequence[int] | Literal['eagle3', 'specforge'] | None = None, draft_vocabulary: int = 0,
    llama_cpp: bool = False, depths: int = 7, anchors: int | None = None, dflash: bool = True, markov_rank: int = 0,
    length: int = 1024, questions: int | None = 3000, new_tokens: int = 160, answers: _Text | None = None,
    cache: _Text | None = None, steps: int = 1500, batch: int = 8, accumulation: int = 1,
    learning_rate: float | None = None, compression: _Text = 'uncompressed', checkpoint_every: int = 100,
    log_every: int = 10, track: _Text | None = None, progress: Callable[[str, int, int], None] = ...,
    report: Callable[[Mapping[str, float]], None] | None = None,
) -> Rows:
    """Train a drafter into a folder; the same call goes on where an interrupted one stopped."""
