"""What a pair is worth: right answers, how much they repeat themselves and their prompt, how large its states are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.models.base import CachedModel, watching
from draftgauge.traces.trace import LENGTH
from recipes.reference_pair.tasks import chat, code, summarization
from recipes.reference_pair.tasks import math as arithmetic

SCORERS = {"math": arithmetic.score, "chat": chat.score, "summarization": summarization.score}


def checks(path: Path) -> dict[str, dict[str, Any]]:
    """What makes an answer right, by the identifier of its prompt, from a prompt file of a pair.

    The text that a summary is of comes with its check, so that plain copying can be told from summarising.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: {**row["check"], "report": row["messages"][-1]["content"]} for row in rows}


def right_shares(tasks: Sequence[str], checked: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> list[float]:
    """How right each answer is: 1 or 0, for a summary the share of the facts that it names.

    Args:
        tasks: of each answer.
        checked: what makes each answer right, see :func:`checks`.
        answers: the texts.
    """
    rows = list(zip(tasks, checked, answers, strict=True))
    programs = iter(code.score_many([(check, answer) for task, check, answer in rows if task == "code"]))
    return [next(programs) if task == "code" else SCORERS[task](check, answer) for task, check, answer in rows]


def copied_grams(tokens: Sequence[int], prompt: Sequence[int]) -> tuple[int, int]:
    """4-grams of an output that stand in its prompt too, and all of them."""
    prompt_grams, grams = (
        list(zip(*(text[start:] for start in range(LENGTH)), strict=False)) for text in (prompt, tokens)
    )
    return sum(gram in prompt_grams for gram in grams), len(grams)


@torch.inference_mode()
def answer_nats(model: CachedModel, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Nats of an answer given its prompt, summed over its tokens."""
    tokens = torch.tensor([*prompt, *answer], device=model.spec.device)
    model.reset()
    logits = model.forward(tokens[:-1])[len(prompt) - 1 :]
    return float(F.cross_entropy(logits, tokens[len(prompt) :], reduction="sum"))


def perplexity(nats: Sequence[float], tokens: Sequence[int]) -> float:
    """Exponential of the mean nats a token."""
    return math.exp(sum(nats) / sum(tokens))


@torch.inference_mode()
def state_rms(model: CachedModel, texts: Sequence[Sequence[int]]) -> list[dict[str, float]]:
    """Size of the residual stream behind the embedding (layer 0) and behind every decoder layer (1, 2, ...).

    Args:
        model: with transformers' modules at hand.
        texts: token ids.

    Returns:
        A row a layer: ``rms`` over all positions, ``largest`` of the positions.
    """
    module, layers = model.module, range(model.module.config.num_hidden_layers)
    squares: dict[int, list[Tensor]] = {layer: [] for layer in range(len(layers) + 1)}
    for text in texts:
        ids = torch.tensor([text], device=module.device)
        squares[0].append(_position_squares(module.get_input_embeddings()(ids)))
        with watching(module, layers, lambda layer, states: squares[layer + 1].append(_position_squares(states))):
            module(input_ids=ids, use_cache=False)
    rows = []
    for layer, parts in squares.items():
        joined = torch.cat(parts)
        rows.append({"layer": layer, "rms": float(joined.mean().sqrt()), "largest": float(joined.max().sqrt())})
    return rows


def _position_squares(states: Tensor) -> Tensor:
    return states[0].float().square().mean(-1)
