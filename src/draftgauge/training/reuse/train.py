"""Training one drafter, from what is asked for to the folder that holds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draftgauge.core.errors import warn
from draftgauge.core.files import only_writer, require_writable
from draftgauge.core.progress import Progress, silent
from draftgauge.drafters.reuse.building import frequent_tokens, new_net, start_norm, warm_start
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import load_drafter, save_drafter, target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.device import keep_freed_memory, torch_threads
from draftgauge.training.reuse.answers import Answers, Conversation
from draftgauge.training.reuse.data import answers_of, load_target, token_counts, usable
from draftgauge.training.reuse.features import CachedFeatures, FeatureSource, OnlineFeatures, cache_identity, make_cache
from draftgauge.training.reuse.prepare import Job, check, known_fingerprint, open_run
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.start import start_attention
from draftgauge.training.reuse.steps import Report, Training, Watch, arithmetic, autocast
from draftgauge.training.reuse.tracking import TrainResult, finished, gates_of
from draftgauge.training.world import joined


def train_drafter(
    request: TrainingSpec,
    out: Path,
    progress: Progress = silent,
    report: Report = lambda row: None,
    watch: Watch = lambda state, net: None,
) -> TrainResult:
    """Train a drafter and leave it in ``out``, beside ``run.json``, ``log.jsonl`` and checkpoints.

    The same call goes on where an interrupted one stopped; a finished run is not repeated. Under torchrun every process
    makes this call, with a folder that all of them see; the first one writes and reports. ``report`` is told the
    figures of every ``log_every`` steps; ``watch`` sees the network before every checkpoint.
    """
    job = check(request, out, known_fingerprint(request.target))
    before = finished(out)
    if before is not None:
        return before
    with joined(job.world, job.device), torch_threads(request.threads), keep_freed_memory(job.device):
        if not job.world.leads:
            return _train(job, silent, lambda row: None, watch)
        require_writable(job.out)
        with only_writer(job.out):
            return _train(job, progress, report, watch)


def _train(job: Job, progress: Progress, report: Report, watch: Watch) -> TrainResult:
    """The work of this process, alone or among others."""
    request, out, world = job.request, job.out, job.world
    world.wait()  # all have seen the folder as it was
    target = load_target(replace(request, device=str(job.device)))
    with world.lead_first():
        job = check(request, out, target_fingerprint(target.module))
        open_run(job)
        answers = answers_of(request, job.answers, target, progress)
        conversations = usable(answers.conversations, job.length, request.depths)
        asked = len(answers.conversations) + answers.description.get("left_out", 0)
        if len(conversations) < asked and world.leads:
            warn(
                f"{asked - len(conversations)} of {asked} answers are not trained on: they begin after the first "
                f"{job.length} tokens of their conversation (length), or behind a prompt of one token",
            )
        features = _features(job, target, answers, conversations, progress)
    training = Training(job, _start(job, target, answers, conversations), features, conversations, answers.sha256)
    result = training.run(progress, report, watch)
    if world.leads:
        described = {"request": request.identity(), "answers_sha256": answers.sha256, "result": result.to_json()}
        save_drafter(out, training.net, described)
    world.wait()
    return result


def _start(job: Job, target: CachedModel, answers: Answers, conversations: list[Conversation]) -> ReuseNet:
    """The drafter before its first step."""
    request = job.request
    tokens: Tensor | None = None
    if request.draft_vocabulary:
        tokens = frequent_tokens(token_counts(answers, job.config.vocabulary), request.draft_vocabulary)
    net = new_net(job.config, target.module, request.seed, tokens)
    start_norm(net, target.module)
    texts = [torch.from_numpy(each.tokens.astype(np.int64)) for each in conversations]
    start_attention(net, target.module, request.attention_start, texts)
    with torch.no_grad():
        for gate in gates_of(net):
            gate.bias.fill_(request.gate_start)
    if request.warm_start is not None:
        warm_start(net, load_drafter(request.warm_start, target, torch.float32))
    if request.block:  # the head stays the target's
        net.head.requires_grad_(False)
    return net


def _features(
    job: Job, target: CachedModel, answers: Answers, conversations: list[Conversation], progress: Progress
) -> FeatureSource:
    if job.request.cache is None:
        return OnlineFeatures(target.module, job.config.tap_plan)
    dtype = arithmetic(job.request.precision, job.device)
    identity = cache_identity(answers, conversations, job.length, job.cached, dtype)
    with autocast(job):
        make_cache(job.request.cache, target.module, conversations, identity, progress)
    return CachedFeatures(job.request.cache, target.module, job.config.tap_plan)


def fill_cache(request: TrainingSpec, out: Path, target: CachedModel, answers: Answers, progress: Progress) -> None:
    if request.cache is not None:
        job = check(request, out, target_fingerprint(target.module))
        _features(job, target, answers, usable(answers.conversations, job.length, request.depths), progress)
