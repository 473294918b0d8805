"""The parts of ``engines.py`` that run servers: llama.cpp's and vLLM's."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from engine_parts import LONGEST, Bench, lengths_with, measured, tagged

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from draftgauge.api.advise import advise
from draftgauge.api.bench_servers import costs_of_arms, seconds_a_step, server_arm
from draftgauge.benching.arms import Arm, bench_arms
from draftgauge.benching.bench_rows import ASKED, Reference
from draftgauge.models.folder import reference_path
from draftgauge.pair.loading import load_pair
from draftgauge.policies.spec import PolicySpec
from draftgauge.requests import PairSpec
from draftgauge.serving.client import complete
from draftgauge.serving.engines import p_min_of
from draftgauge.traces.engine_costs import load_engine_costs
from engine_processes import llama_server, vllm_server
from engine_steps import live_steps

LLAMA, TIMED = ("fixed:1", "fixed:2", "fixed:3", "fixed:4"), ("fixed:1", "fixed:4")
P_MINS = ("p-min:0.4,4", "p-min:0.8,8")
VLLM_LENGTHS, VLLM_OWN_LENGTHS = (1, 2), (1, 2, 3, 4)
COUNTED = ("--per-request-spec-decode-metrics", "summary")  # refused without speculation
AT_ONCE = 2  # servers of vLLM, beside the two that always run
PROBED_TOKENS = 1024  # of output at least: the probe takes a step of each length in turn, and needs several of each
STOPPING = "stopping"
Rows = list[dict[str, Any]]


def llama_rows(bench: Bench) -> Rows:
    """Settings of llama.cpp's server, with costs from some of its lengths on training prompts."""
    costs = bench.place / "llama-costs.json"
    with ExitStack() as servers:

        def started(*options: str, model: str = "target") -> str:
            return servers.enter_context(llama_server(bench.gguf(model), *options))

        urls = {"plain": started()}
        urls |= {setting: started(*llama_options(bench, setting)) for setting in TIMED}
        timed = [timed_arm(name, "llama-server", url, bench) for name, url in urls.items()]
        alone = timed_arm("draft", "llama-server", started(model="draft"), bench)
        costs_of_arms("llama-server", timed, alone).save(costs)
        advice = advise(folder=bench.recorded("lean-run"), engine="llama-server", costs=costs)
        advised = next(row["policy"] for row in advice if row["recommended"])
        for setting in (*LLAMA, *P_MINS, advised):
            if setting not in urls:
                urls[setting] = started(*llama_options(bench, setting))
        arms = [server_arm(name, "llama-server", url, bench.max_new_tokens) for name, url in urls.items()]
        return tagged(measured(arms, bench, "llama-server"), "llama-server", advice)


def vllm_rows(bench: Bench) -> Rows:
    """Settings of vLLM, its own draft model and draftgauge's proposer, with costs measured there.

    The server without speculation and the one under ``stopping`` run beside all others; ``gain`` is over the latter.
    """
    draft, costs = str(reference_path("draft")), bench.place / "vllm-costs.json"
    probe = ours("vllm_costs.CostProbe", drafter=draft, costs_out=str(costs))
    with together({"plain": (), "probe": probe}) as urls:
        plain = seconds_a_step(timed_arm("plain", "vllm", urls["plain"], bench))
        once = len(bench.training) * bench.max_new_tokens
        timed_arm("probe", "vllm", urls["probe"], bench, rounds=math.ceil(PROBED_TOKENS / once))
    probed = load_engine_costs(costs, "vllm")
    assert probed is not None
    replace(probed, plain=(sorted(plain)[len(plain) // 2], *probed.plain[1:])).save(costs)
    advice = advise(folder=bench.recorded("lean-run"), engine="vllm", costs=costs, policies=(STOPPING,))
    policy = {"drafter": draft, "costs": str(costs)}
    always = {"plain": (), STOPPING: ours("vllm.Proposer", policy=STOPPING, **policy)}
    others = {f"draft_model:{length}": own(draft, length) for length in VLLM_OWN_LENGTHS}
    for setting in lengths_with(VLLM_LENGTHS, advice):
        others[setting] = ours("vllm.Proposer", policy=setting, **policy)
    rows: Rows = []
    left = iter(others.items())
    with together(always) as kept:
        while some := dict(islice(left, AT_ONCE)):
            with together(some) as more:
                arms = [server_arm(name, "vllm", url, bench.max_new_tokens) for name, url in (kept | more).items()]
                group = measured(arms, bench, "vllm", Reference(STOPPING, ASKED))
            rows += [row for row in group if not rows or row["policy"] not in kept]
        counts = counts_of(kept[STOPPING], costs, bench)
    rows = [row | counts if row["policy"] == STOPPING else row for row in rows]
    return tagged(rows, "vllm", advice)


def counts_of(url: str, costs: Path, bench: Bench) -> dict[str, int]:
    """Tokens that the proposer drafted and vLLM accepted for the held-out prompts under ``stopping``, and how many
    draftgauge's own loop drafts and accepts on the way to the same outputs.
    """
    pair = load_pair(PairSpec(target="reference"))
    counts = Counter[str]()
    for prompt in bench.prompts:
        answer = complete("vllm", url, prompt.tokens, bench.max_new_tokens)
        steps = live_steps(pair, STOPPING, costs, prompt.tokens, answer.tokens)
        counts += Counter(drafted=answer.drafted, accepted=answer.accepted)
        counts += Counter(drafted_here=sum(d for d, _ in steps), accepted_here=sum(a for _, a in steps))
    return {name: counts[name] for name in ("drafted", "accepted", "drafted_here", "accepted_here")}


def llama_options(bench: Bench, setting: str) -> list[str]:
    """llama.cpp's options for ``fixed:N`` or ``p-min:P,N``, in float32 as its target."""
    length = PolicySpec.of(setting).length
    p_min, longest = p_min_of(setting) if length is None else (0.0, length)
    words = ["--spec-type", "draft-simple", "--spec-draft-model", str(bench.gguf("draft"))]
    words += ["--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32"]
    return [*words, "--spec-draft-n-max", str(longest), "--spec-draft-p-min", str(p_min)]


def own(draft: str, length: int) -> tuple[str, ...]:
    """vLLM's options for its own code of a draft model."""
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": length}
    return *COUNTED, "--speculative-config", json.dumps(config)


def ours(model: str, **options: Any) -> tuple[str, ...]:
    """vLLM's options for one of draftgauge's proposers."""
    name = f"draftgauge.integrations.{model}"
    config = {"method": "custom_class", "model": name, "num_speculative_tokens": LONGEST}
    told = ("--additional-config", json.dumps({"draftgauge": options}))
    return *COUNTED, "--speculative-config", json.dumps(config), *told


@contextmanager
def together(servers: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Servers of vLLM by name, started at once; yields their addresses."""
    target = reference_path("target")
    with ExitStack() as running:

        def start(options: Sequence[str]) -> str:
            return running.enter_context(vllm_server(target, "--enable-per-request-metrics", *options))

        with ThreadPoolExecutor() as pool:
            urls = list(pool.map(start, servers.values()))
        yield dict(zip(servers, urls, strict=True))


def timed_arm(name: str, engine: str, url: str, bench: Bench, rounds: int = 1) -> Arm:
    """A server that has decoded the training prompts."""
    arm = server_arm(name, engine, url, bench.max_new_tokens)
    bench_arms([arm], bench.training, rounds, np.random.default_rng(0), lambda done, total: None)
    return arm
