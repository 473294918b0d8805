"""Greedy answers of a target, and the file of them that every drafter trained on them shares.

One JSON object a line. The first says from which target, prompts and settings the others come. Each of those holds the
tokens of one conversation and how many of them are its prompt. While answers are being made the file carries another
name, and an interrupted making goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from draftgauge.core.artefacts import parse_json, read_json_lines
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text, explained, require_writable_file
from draftgauge.core.progress import Progress, silent
from draftgauge.models.device import free_bytes
from draftgauge.models.spec import attention_kernels, cache_argument, cached_numbers
from draftgauge.verification import best_tokens, check_finite

GROUP_TOKENS = 24_576  # prompt and answer tokens held in one group's cache; on a GPU more, as far as memory goes
TOTAL_SHARE = 16  # of a GPU's memory, the part that is one group's cache: the same card gives the same answers again
FREE_SHARE = 8  # of its free memory, the most that a cache may be, else it is halved: leaving and growing copy it
DROP_SHARE = 8  # answered rows leave the group when they are an eighth of it: leaving copies the cache


def groups(lengths: Sequence[int], new_tokens: int, most: int) -> Iterator[list[int]]:
    """Groups of texts of similar length, by index, longest first: as many as have ``most`` tokens, ``new_tokens`` of
    each and padding included."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        count = max(1, most // (lengths[order[start]] + new_tokens))
        yield order[start : start + count]
        start += count


def group_tokens(module: PreTrainedModel) -> int:
    """How many tokens of prompts and answers go together on the module's device."""
    if module.device.type != "cuda":
        return GROUP_TOKENS
    token = cached_numbers(module.config.get_text_config()) * module.dtype.itemsize
    cache = torch.cuda.mem_get_info(module.device)[1] // TOTAL_SHARE
    while cache > (free_bytes(module.device) or 0) // FREE_SHARE:
        cache //= 2
    return max(GROUP_TOKENS, cache // token)


@torch.inference_mode()
def greedy_answers(
    module: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int, end_tokens: Collection[int]
) -> list[list[int]]:
    """The target's greedy answers, end token included where it was reached."""
    rows = [torch.tensor(list(prompt)) for prompt in prompts]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    tokens, mask = padded(rows).to(module.device), padded([torch.ones_like(row) for row in rows]).to(module.device)
    cache = DynamicCache(config=module.config)
    answers: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    head = module.get_output_embeddings()
    for _ in range(new_tokens):
        # Of states that are a slice torch multiplies each row by a copy of the head of its own: 29 GB for 63 prompts.
        with attention_kernels(module.device), head.register_forward_pre_hook(lambda _, of: (of[0].contiguous(),)):
            output = module(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **cache_argument(module, cache),
            )
        chosen = best_tokens(output.logits[:, -1])
        check_finite(read := chosen.tolist(), f"target ({module.dtype})")
        for row, token in zip(live, read, strict=True):
            if not answers[row] or answers[row][-1] not in end_tokens:
                answers[row].append(token)
        going = [n for n, row in enumerate(live) if answers[row][-1] not in end_tokens]
        if not going:
            break
        tokens, positions = chosen[:, None], positions[:, -1:] + 1
        mask = torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
        if (len(live) - len(going)) * DROP_SHARE >= len(live):
            kept = torch.tensor(going, device=module.device)
            cache.batch_select_indices(kept)
            tokens, positions, mask = tokens[kept], positions[kept], mask[kept]
            live = [live[n] for n in going]
    return answers


SCHEMA = 1
PARTIAL = ".partial"


@dataclass(frozen=True)
class Conversation:
    """A prompt and the target's greedy answer.

    Attributes:
        tokens: ``[length]`` int32, prompt then answer, with the end token where it was reached.
        prompt: how many tokens are the prompt.
    """

    tokens: NDArray[np.int32]
    prompt: int


@dataclass(frozen=True)
class Answers:
    """Conversations and where they come from.

    Attributes:
        conversations: in the order of the prompts.
        description: the first line of the file: target fingerprint, hash of the prompts, longest answer.
        sha256: of prompts and answers, so that a cache made from others is told apart.
    """

    conversations: tuple[Conversation, ...]
    description: Mapping[str, Any]
    sha256: str


def describe(fingerprint: str, prompts: Sequence[Sequence[int]], new_tokens: int, source: str) -> dict[str, Any]:
    """The first line of a file of answers."""
    digest = hashlib.sha256(json.dumps([list(p) for p in prompts]).encode()).hexdigest()
    return {
        "schema": SCHEMA,
        "target_fingerprint": fingerprint,
        "source": source,
        "new_tokens": new_tokens,
        "prompts": len(prompts),
        "prompts_sha256": digest,
    }


def make_answers(
    path: Path,
    description: Mapping[str, Any],
    module: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    end_tokens: Collection[int],
    progress: Progress = silent,
) -> Answers:
    """Have the target answer the prompts, greedily, and keep the answers in a file.

    Whole groups that an interrupted call left are kept: together with others a prompt might be answered otherwise, as
    sums are rounded otherwise.
    """
    partial = path.with_name(path.name + PARTIAL)
    require_writable_file(path)
    done = _resume(partial, description)
    with explained(partial), partial.open("a", encoding="utf-8") as file:
        if not file.tell():
            file.write(json.dumps(description) + "\n")
        progress("answers", len(done), len(prompts))
        for group in groups(list(map(len, prompts)), description["new_tokens"], group_tokens(module)):
            if done.keys() >= set(group):
                continue
            group_answers = greedy_answers(module, [prompts[i] for i in group], description["new_tokens"], end_tokens)
            for index, answer in zip(group, group_answers, strict=True):
                done[index] = {"index": index, "prompt": len(prompts[index]), "tokens": [*prompts[index], *answer]}
                file.write(json.dumps(done[index]) + "\n")
            file.flush()
            progress("answers", len(done), len(prompts))
    conversations = [_conversation(done[index]) for index in range(len(prompts))]
    rows = ({**description, "sha256": _digest(conversations)}, *(done[index] for index in range(len(prompts))))
    atomic_write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    answers = read_answers(path)
    partial.unlink()
    return answers


def read_answers(path: Path) -> Answers:
    """Read a file of answers."""
    remedy = "remove it, or name another"
    rows = [row for _, row in read_json_lines(path, "file of answers", remedy, max_bytes=None)]
    description = rows[0] if rows and isinstance(rows[0], dict) else {}
    if description.get("schema") != SCHEMA or len(rows) - 1 != description.get("prompts"):
        raise DraftgaugeError(f"{path} is not a whole file of answers of schema {SCHEMA}: {remedy}")
    try:
        conversations = tuple(map(_conversation, rows[1:]))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DraftgaugeError(f"{path} is not a file of answers: {remedy}") from error
    digest = _digest(conversations)
    if digest != description.get("sha256"):
        raise DraftgaugeError(f"{path} is damaged or was edited, it does not match its checksum: {remedy}")
    return Answers(conversations, description, digest)


def _conversation(row: Mapping[str, Any]) -> Conversation:
    return Conversation(np.array(row["tokens"], np.int32), int(row["prompt"]))


def _digest(conversations: Sequence[Conversation]) -> str:
    digest = hashlib.sha256()
    for conversation in conversations:
        digest.update(f"{conversation.prompt}\0{len(conversation.tokens)}\0".encode())
        digest.update(conversation.tokens.tobytes())
    return digest.hexdigest()


def check_description(path: Path, description: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ``DraftgaugeError`` if the first line of a file of answers is not as wanted."""
    off = [key for key, value in wanted.items() if description.get(key) != value]
    if off:
        differences = "; ".join(
            f"{key.replace('_', ' ')} is {description.get(key)!s:.40}, not {wanted[key]!s:.40}" for key in off
        )
        raise DraftgaugeError(
            f"{path} holds other answers than are asked for: {differences}. Name another file to have them made"
        )


def _resume(partial: Path, description: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The rows that an interrupted call left, by prompt; the line it was killed in is cut off."""
    if not partial.exists():
        return {}
    content = partial.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    remedy = "remove it, and the answers are made anew"
    lines = [parse_json(line, str(partial), remedy) for line in whole.splitlines()]
    if lines and lines[0] != description:
        raise DraftgaugeError(
            f"{partial} was begun for another target, other prompts or settings: remove it, or name another file"
        )
    with partial.open("rb+") as file:
        file.truncate(len(whole))
    return {row["index"]: row for row in lines[1:]}
