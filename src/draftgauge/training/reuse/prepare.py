"""Everything about a run that can be checked before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from draftgauge.core.artefacts import Artefact
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.files import require_writable
from draftgauge.core.parts import current_compression
from draftgauge.core.provenance import command_line, environment, timestamp
from draftgauge.drafters.reuse.building import check_warm_start
from draftgauge.drafters.reuse.config import NORMS, ReuseConfig, reuse_config
from draftgauge.drafters.reuse.persistence import read_config
from draftgauge.models.device import check_compression, check_devices, choose_device, numbered
from draftgauge.models.folder import fingerprint, model_folder
from draftgauge.models.loading import load_tokenizer
from draftgauge.models.spec import read_configuration
from draftgauge.models.taps import TapPlan, tap_plan
from draftgauge.training.reuse.data import existing_answers, source_of
from draftgauge.training.reuse.features import check_cache_folder
from draftgauge.training.reuse.request import MTP, TrainingSpec
from draftgauge.training.reuse.tracking import CHECKPOINTS, check_tracker
from draftgauge.training.world import World, world_here

RUN_NAME = "run.json"
RUN = Artefact("draftgauge-training", 1, "description of a training run", "choose another folder")


@dataclass(frozen=True)
class Job:
    """A checked request.

    Attributes:
        cached: layers that a cache of features holds, so that it serves every design.
        length: longest conversation, within the target's context.
    """

    request: TrainingSpec
    out: Path
    config: ReuseConfig
    cached: TapPlan
    device: torch.device
    length: int
    world: World

    @property
    def answers(self) -> Path:
        return self.request.answers or self.out / "answers.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.out / CHECKPOINTS


def target_config(request: TrainingSpec) -> PreTrainedConfig:
    return read_configuration(request.target, request.trust_remote_code)


def drafter_config(request: TrainingSpec, config: PreTrainedConfig, target_fingerprint: str = "") -> ReuseConfig:
    """The drafter's configuration."""
    mask_token = None
    if request.as_dflash:  # without weights, in a plan, there need not be a tokenizer
        mask_token = spare_token(request, config.get_text_config().vocab_size) if target_fingerprint else 0
    lacking = {"norm_before_fc", "norm_output"} if request.llama_cpp else set()
    norms: dict[str, Any] = {name: getattr(request, name) and name not in lacking for name in NORMS}
    return reuse_config(
        config,
        **network_of(request),
        intermediate_size=request.intermediate_size,
        target_fingerprint=target_fingerprint,
        target_source=request.target,
        confidence_head=request.confidence_head,
        mask_token=mask_token,
        **norms,
    )


def network_of(request: TrainingSpec) -> dict[str, Any]:
    """Arguments of :func:`reuse_config` that say what network is trained, but for its width."""
    names = ("layers", "injection", "taps", "draft_vocabulary", "block", "markov_rank")
    return {"design": request.reuse} | {name: getattr(request, name) for name in names}


def spare_token(request: TrainingSpec, vocabulary: int) -> int:
    """A token for DFlash's masks: a row that the tokenizer leaves, or a special one that begins and ends no text."""
    tokenizer = load_tokenizer(request.target, request.trust_remote_code)
    spare = set(range(vocabulary)) - set(tokenizer.get_vocab().values())
    if not spare:
        special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        spare = special - {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    if not spare:
        raise DraftgaugeError(
            f"the tokenizer of {request.target} has no token to spare for DFlash's mask: all {vocabulary} stand for "
            "text. Train with --no-dflash, whose mask is learned; such a drafter is not exported"
        )
    return max(spare)


def known_fingerprint(target: str) -> str | None:
    """Which model a target is; None where its weights are not on this machine yet."""
    try:
        return fingerprint(model_folder(target), texts=False)
    except ModelError:
        return None


def check(request: TrainingSpec, out: Path, identity: str | None) -> Job:
    """Check a request and the folders that it names; nothing is written."""
    check_compression(request.compression)
    config = target_config(request)
    drafter = drafter_config(request, config, identity or "")
    length = min(request.length, drafter.context)
    if request.depths + 2 > length:
        raise DraftgaugeError(
            f"{request.depths} draft steps do not fit the {length} tokens that the target takes: lower depths"
        )
    source_of(request)
    check_tracker(request.track)
    if request.warm_start is not None:
        check_warm_start(drafter, read_config(request.warm_start))
    check_out(out, request, identity)
    cached = cached_layers(config, request) if request.cache is not None else TapPlan()
    world = check_world(request)
    device = choose_device(request.device) if world.size == 1 else numbered(request.device, world.local_rank)
    job = Job(request, out, drafter, cached, device, length, world)
    if identity is not None:
        existing_answers(request, job.answers, identity)
    if request.cache is not None:
        wanted = {"length": length, "compression": request.compression}
        check_cache_folder(request.cache, wanted | ({"target_fingerprint": identity} if identity is not None else {}))
    return job


def cached_layers(config: PreTrainedConfig, request: TrainingSpec) -> TapPlan:
    """Layers of every design, or hidden states alone where no layer has keys of the whole text."""
    try:
        plan = tap_plan(config, True, True, request.taps)
    except ModelError:
        plan = tap_plan(config, True, False, request.taps)
    last = config.get_text_config().num_hidden_layers - 1
    wanted = plan.hidden_layers if request.reuse != MTP else tuple(dict.fromkeys((*plan.hidden_layers, last)))
    return replace(plan, hidden_layers=wanted)


def check_world(request: TrainingSpec) -> World:
    """The processes that train together, checked against the devices of this machine and the batch of a request."""
    world = world_here()
    check_devices(request.device, world.local_size)
    size = world.size
    if request.batch % (size * request.accumulation):
        parts = f" of {request.accumulation} parts each" if request.accumulation > 1 else ""
        raise DraftgaugeError(
            f"a batch of {request.batch} conversations cannot be split evenly among {size} devices{parts}: "
            f"ask for a batch that {size * request.accumulation} divides"
        )
    return world


def check_out(out: Path, request: TrainingSpec, identity: str | None) -> None:
    """Check that a folder is new or holds the run that is asked for."""
    path = out / RUN_NAME
    if not path.exists():
        foreign = [child.name for child in out.iterdir() if not child.name.startswith(".")] if out.is_dir() else []
        if foreign:
            raise DraftgaugeError(
                f"{out} holds {', '.join(sorted(foreign)[:3])}, which is no training run: choose an empty folder"
            )
        return
    run = RUN.read(path)
    wanted = {**request.identity(), "target_fingerprint": identity}
    there = run["request"] | {"compression": current_compression(run["request"].get("compression"))}
    there |= {"target_fingerprint": run["target_fingerprint"] if identity is not None else None}
    off = sorted(key for key in wanted.keys() | there.keys() if wanted.get(key) != there.get(key))
    if off:
        shown = ", ".join(f"{key} {there.get(key)} there, {wanted.get(key)} here" for key in off[:4])
        raise DraftgaugeError(f"{out} holds another run ({shown}): choose another folder, or ask for the same")


def open_run(job: Job) -> None:
    """Write the run's description into its folder, before any work."""
    require_writable(job.out)
    path = job.out / RUN_NAME
    if not path.exists():
        description = {
            "request": job.request.identity(),
            "target_fingerprint": job.config.target_fingerprint,
            "command": command_line(),
            "created": timestamp(),
            "environment": environment(),
        }
        RUN.write(path, description)
