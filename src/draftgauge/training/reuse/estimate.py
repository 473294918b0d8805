"""What a run will take, before anything starts: parameters, memory, time and disk, for targets of any size.

Only configurations are read; models are laid out on ``meta``. Memory and disk follow from shapes. The time is rough:
the number of multiplications over the speed that the device reaches at multiplying matrices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse.building import count_parameters
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.models.device import activation_dtype, choose_device, on_meta, torch_threads, weight_bytes
from draftgauge.training.optimise import arithmetic
from draftgauge.training.reuse.answers import Conversation
from draftgauge.training.reuse.data import DataOrder, collate, existing_answers, is_reference, question_count, usable
from draftgauge.training.reuse.features import MANIFEST, check_disk, token_bytes
from draftgauge.training.reuse.loss import CHUNK_ELEMENTS
from draftgauge.training.reuse.prepare import cached_layers, check, drafter_config, known_fingerprint, target_config
from draftgauge.training.reuse.request import MUON, TrainingSpec
from draftgauge.training.world import world_here

GENERATED_LENGTHS = (222, 110)  # mean tokens of a generated question and of the bundled target's answer to it
JSON_BYTES = 6  # of a token in a file of answers
FLOAT_BYTES = 4  # weights, gradients and moments are float32
# Speed of whole steps over the probed one. Measured on two cores of an AMD EPYC, for the bundled target and one of 135M
# parameters and 49,152 tokens: 0.36 to 0.38 in bfloat16, 0.54 to 0.57 in float32.
EFFICIENCY = {("cpu", True): 0.37, ("cpu", False): 0.55}
EFFICIENCY_ELSEWHERE = 0.35
PADDED_TOKENS, PADDED_ROWS = 1.15, 1.7  # positions and anchors computed for each that is needed; the bundled questions
STEPS_LOOKED_AT = 64
DRAFTER_LOGITS = 4  # copies of a chunk of them, in float32: logits, probabilities, gradient and a temporary
PROBE_SECONDS = 0.3


@dataclass(frozen=True)
class Estimate:
    """Figures of a run; memory in GiB of each device, disk in GB. ``memory`` and ``disk`` are the sums of their parts.

    Attributes:
        parameters: trained ones of the drafter.
        devices: processes that share every step.
        tokens_a_step: positions that the target reads.
        anchors_a_step: positions from which all K depths are trained.
        lengths: where these two come from: "answers" or "assumed".
        seconds_a_step, hours: of training, features online or not; what devices lose by waiting is left out.
        gflops: measured speed of a multiplication of matrices, in 1e9 operations a second.
    """

    target_parameters: int
    parameters: int
    device: str
    devices: int
    conversations: int
    tokens_a_step: int
    anchors_a_step: int
    lengths: str
    memory_target: float
    memory_drafter: float
    memory_activations: float
    memory: float
    seconds_a_step: float
    hours: float
    gflops: float
    disk_answers: float
    disk_features: float
    disk_checkpoints: float
    disk: float


@dataclass(frozen=True)
class Sizes:
    """How much a run reads.

    Attributes:
        conversations, total: of all answers, and tokens of all together.
        tokens, rows, anchors: of a step on average: positions that the target reads, anchors that are computed, anchors
            that train.
        longest_tokens, longest_rows: of the longest step.
    """

    conversations: int
    total: int
    tokens: int
    rows: int
    anchors: int
    longest_tokens: int
    longest_rows: int


def estimate(request: TrainingSpec, out: Path | None = None) -> Estimate:
    """Estimate a run; nothing is written. Of the target only ``config.json`` must be there.

    With ``out``, the folder of the run, everything is checked that a run checks first.
    """
    identity = known_fingerprint(request.target)
    job = None if out is None else check(request, out, identity)
    path = request.answers if job is None else job.answers
    answers = existing_answers(request, path, identity) if path is not None and identity is not None else None
    estimated = estimate_for(request, target_config(request), None if answers is None else answers.conversations)
    if job is not None and request.cache is not None and not (request.cache / MANIFEST).exists():
        check_disk(request.cache, round(estimated.disk_features * 1e9))
    return estimated


def estimate_for(
    request: TrainingSpec, config: PreTrainedConfig, answers: Sequence[Conversation] | None = None
) -> Estimate:
    """:func:`estimate` for a target's configuration, and the answers where there are some already."""
    drafter = drafter_config(request, config)
    device = choose_device(request.device)
    target = on_meta(config, request.trust_remote_code)
    sizes = _sizes(request, min(request.length, drafter.context), answers)
    head = drafter.hidden_size * drafter.logits
    trained = count_parameters(drafter, target)
    frozen = head if request.frozen_head else 0
    body = sum(p.numel() for p in target.parameters())
    if target.get_input_embeddings().weight is not target.get_output_embeddings().weight:
        body -= target.get_input_embeddings().weight.numel()
    memory = _memory(request, drafter, target, trained, device, sizes)
    dtype = arithmetic(request.precision, device)
    gflops = probe(device, dtype, request.threads or torch.get_num_threads())
    efficiency = EFFICIENCY.get((device.type, dtype is not None), EFFICIENCY_ELSEWHERE)
    work, devices = operations(request, drafter, trained, body, sizes), world_here().size
    seconds = work / (gflops * 1e9 * efficiency * devices)
    disk_answers = JSON_BYTES * sizes.total / 1e9
    of_token = token_bytes(config, cached_layers(config, request)) if request.cache is not None else 0
    disk_features = sizes.total * of_token / 1e9
    # While a new checkpoint is written the old one stays; and the drafter itself.
    disk_checkpoints = (3 * FLOAT_BYTES * trained + 2 * _moments(request, drafter, trained)) / 1e9
    return Estimate(
        target_parameters=target.num_parameters(),
        parameters=trained - frozen,
        device=str(device),
        devices=devices,
        conversations=sizes.conversations,
        tokens_a_step=sizes.tokens,
        anchors_a_step=sizes.anchors,
        lengths="assumed" if answers is None else "answers",
        memory_target=memory[0],
        memory_drafter=memory[1],
        memory_activations=memory[2],
        memory=sum(memory),
        seconds_a_step=seconds,
        hours=seconds * request.steps / 3600,
        gflops=gflops,
        disk_answers=disk_answers,
        disk_features=disk_features,
        disk_checkpoints=disk_checkpoints,
        disk=disk_answers + disk_features + disk_checkpoints,
    )


def operations(request: TrainingSpec, drafter: ReuseConfig, trained: int, target: int, sizes: Sizes) -> float:
    """Multiplications and additions of a step: two a weight forwards, four backwards; attention is left out, being
    small beside them.

    The target's head, ``drafter.hidden_size * drafter.vocabulary``, works where the anchors are taught only.
    """
    head, teacher = drafter.hidden_size * drafter.logits, drafter.hidden_size * drafter.vocabulary
    body = target - teacher if request.cache is None else 0
    read = 2.0 * (body * sizes.tokens + teacher * sizes.anchors)
    of_head = (4.0 if request.frozen_head else 6.0) * head * sizes.anchors
    return read + request.depths * (6.0 * (trained - head) * sizes.rows + of_head)


@cache
def probe(device: torch.device, dtype: torch.dtype | None, threads: int) -> float:
    """The speed of a multiplication of matrices on a device, in 1e9 operations a second.

    On a CPU it is one thread's in processor time, times the threads: what other processes take leaves it as it is.
    """
    on_cpu = device.type == "cpu"
    clock, size = (time.thread_time, 512) if on_cpu else (time.perf_counter, 8192)
    a = torch.ones(size, size, dtype=dtype or torch.float32, device=device)
    best, deadline = float("inf"), time.perf_counter() + PROBE_SECONDS
    with torch_threads(1 if on_cpu else None):
        while time.perf_counter() < deadline:
            start = clock()
            (a @ a)[0, 0].item()
            best = min(best, clock() - start)
    return 2 * size**3 / best / 1e9 * (threads if on_cpu else 1)


def _sizes(request: TrainingSpec, length: int, answers: Sequence[Conversation] | None) -> Sizes:
    most = request.anchors or length
    if answers is not None:
        kept = usable(answers, length, request.depths)
        order = DataOrder(kept, request.batch, request.seed)
        steps = range(min(request.steps, STEPS_LOOKED_AT))
        batches = [collate(kept, order.step(step).tolist(), request.depths) for step in steps]
        sizes = []
        for one in batches:
            drawn = (one.length - one.prompt).clamp(max=most)
            computed = int(drawn.max()) if request.block else one.anchors
            sizes.append((one.tokens.numel(), computed * len(one.index), int(drawn.sum())))
        tokens, rows, anchors = (round(sum(column) / len(sizes)) for column in zip(*sizes, strict=True))
        longest_tokens, longest_rows, _ = max(sizes)
        return Sizes(len(kept), sum(len(c.tokens) for c in kept), tokens, rows, anchors, longest_tokens, longest_rows)
    bundled, count = is_reference(request.target), request.questions
    if bundled or request.prompts is not None:
        count = question_count(request)
    if count is None:
        raise DraftgaugeError("the number of prompts is not known: name their file (--prompts)")
    prompt, answer = GENERATED_LENGTHS if bundled else (length // 2, min(length // 2, request.new_tokens))
    tokens, anchors = min(length, prompt + answer), min(answer, most)
    batch, longest = request.batch, min(length, request.new_tokens, most)
    padded = round(batch * tokens * PADDED_TOKENS), round(batch * anchors * PADDED_ROWS)
    return Sizes(count, count * tokens, *padded, batch * anchors, batch * length, batch * longest)


def _memory(
    request: TrainingSpec,
    drafter: ReuseConfig,
    target: PreTrainedModel,
    trained: int,
    device: torch.device,
    sizes: Sizes,
) -> tuple[float, float, float]:
    """GiB of the target, of the drafter with gradient and optimiser, and of a step's activations at its longest."""
    half = arithmetic(request.precision, device) is not None
    parameters = sum(p.numel() for p in target.parameters())
    parts = request.accumulation * world_here().size
    tokens, rows, number = sizes.longest_tokens / parts, sizes.longest_rows / parts, 2 if half else 4
    width, heads = drafter.hidden_size, drafter.head_dim * (drafter.chain_query_heads + 2 * drafter.chain_kv_heads)
    taps = width * len(drafter.hidden_layers) + 2 * len(drafter.kv_layers) * drafter.kv_heads * drafter.head_dim
    # Kept for the backward pass at every depth: inputs and outputs of norms (float32), of attention, and of the gated
    # MLP.
    kept: float = drafter.layers * (10 * 4 * width + number * (3 * heads + 6 * width + 4 * drafter.intermediate_size))
    if request.block:  # a softmax over the whole text in float32, and its weights
        kept += drafter.layers * drafter.chain_query_heads * sizes.longest_tokens / request.batch * (4 + number)
    logits = rows * drafter.vocabulary * number
    # Of the drafter's own logits only a chunk exists at a time.
    logits += CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS["cuda"]) * FLOAT_BYTES * DRAFTER_LOGITS
    activations = rows * request.depths * kept + tokens * taps * number + logits
    trained_bytes = 2 * FLOAT_BYTES * trained + _moments(request, drafter, trained)
    dtype = activation_dtype(request.compression, device, target.config.get_text_config().dtype)
    return parameters * weight_bytes(request.compression, dtype) / 2**30, trained_bytes / 2**30, activations / 2**30


def _moments(request: TrainingSpec, drafter: ReuseConfig, parameters: int) -> int:
    head = drafter.hidden_size * drafter.logits
    of_blocks = 1 if request.optimizer == MUON else 2
    return FLOAT_BYTES * ((parameters - head) * of_blocks + (0 if request.frozen_head else 2 * head))
