"""What transformers' ``generate`` hands to a decoding function, checked: everything is honoured, or refused by name.

Rows of a batch are decoded one by one. But logits processors and stopping criteria may depend on the whole batch: on a
prompt's padding, or on a row's number. So they are shown a batch in which every row is this one, and the answer is
taken from this row's place in it.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.base import CachedModel
from draftgauge.verification import Sampling


@dataclass(frozen=True)
class BatchRow:
    """One row."""

    index: int  # in the batch
    batch: int  # number of rows
    padding: list[int]  # ids to the left of the prompt
    prompt: list[int]  # at least one token id
    device: torch.device  # of the ids that processors and criteria see

    def shown(self, text: list[int]) -> Tensor:
        """``[batch, padding and text]`` ids in which every row is this one; the text starts with the prompt."""
        ids = torch.tensor([self.padding + text], device=self.device)
        return ids.expand(self.batch, -1)


class ProcessedModel:
    """A target whose logits of the output pass through logits processors, each row with the text that precedes it.

    After a drafted token that cannot be accepted nothing is processed: plain decoding never sees such a text, and a
    processor may refuse it (``prefix_allowed_tokens_fn``). Those logits are never read.
    """

    def __init__(self, model: CachedModel, processors: LogitsProcessorList, row: BatchRow, greedy: bool) -> None:
        """Wrap a model for one row; ``greedy`` accepts only the most probable token."""
        self.spec, self.module = model.spec, model.module
        self._model = model
        self._processors = processors
        self._row = row
        self._greedy = greedy
        self._text: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and return ``[tokens, V]`` scores, which are what the processors make of the logits."""
        start = self._model.length
        self._text[start:] = tokens.tolist()
        logits = self._model.forward(tokens, last_only)
        if start < len(self._row.prompt) - 1:  # the prompt, whose logits are not read
            return logits
        scores, end = logits.clone(), start + len(logits)
        for position in range(start, end):
            row = scores[position - start]
            shown = logits[position - start].to(self._row.device).repeat(self._row.batch, 1)
            processed = self._processors(self._row.shown(self._text[: position + 1]), shown)
            row.copy_(processed[self._row.index])
            token = self._text[position + 1] if position + 1 < end else None
            if token is not None and not (row.argmax() == token if self._greedy else row[token].isfinite()):
                break
        return scores


class CriteriaWatch:
    """Asks stopping criteria after every token of one row, as ``generate`` does."""

    def __init__(self, criteria: StoppingCriteriaList, row: BatchRow) -> None:
        self._criteria = criteria
        self._row = row
        self._text = list(row.prompt)

    def __call__(self, token: int) -> bool:
        """Take the next token: does any criterion end the output here?"""
        self._text.append(token)
        return bool(self._criteria(self._row.shown(self._text), None)[self._row.index])


# Settings of generate that change what is decoded or returned in a way that this loop cannot.
UNSUPPORTED = (
    *("num_beams", "num_beam_groups", "penalty_alpha", "dola_layers", "constraints", "force_words_ids"),
    *("guidance_scale", "use_mtp", "use_cache", "cache_implementation", "prefill_chunk_size", "is_assistant"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("prompt_lookup_num_tokens", "assistant_early_exit", "speculation_type"),
)
NEUTRAL = {"penalty_alpha": 0, "guidance_scale": 1, "cache_implementation": "dynamic"}  # beside transformers' defaults
# Settings of assisted generation: the drafter and its policy take their place.
ASSISTED = (
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind"),
)
# Processors that keep a state from call to call, which rejected drafts would spoil.
STATEFUL = (
    *("ClassifierFreeGuidanceLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor"),
    "SynthIDTextWatermarkLogitsProcessor",
)
CACHES = ("cache", "past_key_values")  # what it is called from transformers 5.24 on, and before
# What generate prepares for the model's forward.
DERIVED = ("attention_mask", "cache_params", "cache_position", "logits_to_keep", "position_ids", "use_cache", *CACHES)
INSTEAD = "leave it out, or call generate without custom_generate"


@dataclass(frozen=True)
class GenerateArguments:
    """What all rows of one call of ``generate`` share."""

    rows: list[BatchRow]  # without their padding
    settings: DecodingSettings  # limit, sampling and end tokens
    draft_sampling: Sampling  # of a drafter with a distribution
    processors: LogitsProcessorList  # beside the sampling
    criteria: StoppingCriteriaList  # beside limit and end tokens
    pad_token: int | None  # fills rows that end before others
    returns_dict: bool


def read_arguments(
    model: PreTrainedModel,
    input_ids: Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    model_kwargs: Mapping[str, Any],
) -> GenerateArguments:
    """Check what ``generate`` prepared and take it apart; what cannot be honoured is refused by name."""
    if model.config.is_encoder_decoder:
        raise DraftgaugeError(f"{type(model).__name__} is an encoder-decoder: speculative() is for causal models")
    _check_config(config)
    _check_model_kwargs(model_kwargs)
    _check_prepared(model, input_ids, model_kwargs)
    for processor in processors:
        if type(processor).__name__ in STATEFUL:
            raise DraftgaugeError(
                f"{type(processor).__name__} (of logits_processor, guidance_scale or watermarking_config) keeps a "
                f"state from token to token, which rejected drafts would spoil: {INSTEAD}"
            )
    rows = list(_rows(input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")))
    sampling, others, draft_sampling = Sampling(), processors, Sampling()
    if config.do_sample:
        sampling, others = split_processors(processors)
        top_p = 1.0 if config.top_p is None else config.top_p
        draft_sampling = Sampling(config.temperature or 1.0, config.top_k or 0, top_p)
    limit, ends, further = _split_criteria(criteria)
    if len(rows) > 1 and further and not ends:
        raise DraftgaugeError(
            "stopping_criteria of a batch need an end token beside them, else generate decodes rows past their end: "
            "set eos_token_id"
        )
    settings = DecodingSettings(max(1, limit - input_ids.shape[1]), sampling, frozenset(ends))
    pad = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
    as_dict = bool(config.return_dict_in_generate)
    return GenerateArguments(rows, settings, draft_sampling, others, further, pad, as_dict)


def split_processors(processors: LogitsProcessorList) -> tuple[Sampling, LogitsProcessorList]:
    """The sampling at the end of the processors, and those before it.

    Where others follow temperature, top-k and top-p (min-p, watermarks), all stay processors and the sampling is plain.
    """
    others = LogitsProcessorList(processors)
    top_p = others.pop().top_p if others and _is_plain(others[-1], TopPLogitsWarper) else 1.0
    top_k = others.pop().top_k if others and _is_plain(others[-1], TopKLogitsWarper) else 0
    temperature = others.pop().temperature if others and type(others[-1]) is TemperatureLogitsWarper else 1.0
    if any(isinstance(each, TemperatureLogitsWarper | TopKLogitsWarper | TopPLogitsWarper) for each in others):
        return Sampling(1.0), LogitsProcessorList(processors)
    return Sampling(float(temperature), int(top_k), float(top_p)), others


def refuse_dropped_arguments() -> None:
    """Refuse what ``generate`` was given and does not hand on to a ``custom_generate`` callable as it was given.

    Nothing but its own frame shows these arguments. Where that is not the caller's caller, nothing is checked.
    """
    frame = sys._getframe(2)
    if frame.f_code is not inspect.unwrap(GenerationMixin.generate).__code__:
        return
    instead = {
        "streamer": "give it to draftgauge.speculative(..., streamer=...)",
        "assistant_model": "give it to draftgauge.speculative as the drafter",
        "synced_gpus": INSTEAD,
    }
    for name, advice in instead.items():
        if frame.f_locals.get(name) not in (None, False):
            raise DraftgaugeError(f"generate does not hand {name} on to custom_generate: {advice}")
    if any(frame.f_locals["kwargs"].get(name) is not None for name in CACHES):
        raise DraftgaugeError(
            f"draftgauge.speculative has a cache of its own and cannot fill past_key_values: {INSTEAD}"
        )


def _is_plain(processor: Any, kind: Any) -> bool:
    """Whether a warper does what :class:`Sampling` does."""
    keeps_one = getattr(processor, "min_tokens_to_keep", 1) == 1
    return type(processor) is kind and processor.filter_value == -math.inf and keeps_one


def _check_config(config: GenerationConfig) -> None:
    neutral = GenerationConfig._get_default_generation_params() | NEUTRAL
    for name in (*UNSUPPORTED, *ASSISTED):
        value = getattr(config, name, None)
        if value in (None, neutral.get(name)) or (value is False and name != "use_cache"):
            continue
        instead = INSTEAD
        if name in ASSISTED:
            instead = "how far to draft is its policy's to say, e.g. speculative(drafter, policy='fixed:4')"
        raise DraftgaugeError(f"draftgauge.speculative cannot honour {name}={value!r}: {instead}")


def _check_model_kwargs(model_kwargs: Mapping[str, Any]) -> None:
    for name, value in model_kwargs.items():
        if name not in DERIVED and value is not None:
            raise DraftgaugeError(f"draftgauge.speculative cannot honour {name}: {INSTEAD}")
    if model_kwargs.get("use_cache") is False:
        raise DraftgaugeError(f"draftgauge.speculative cannot honour use_cache=False: {INSTEAD}")
    cache = next((model_kwargs[name] for name in CACHES if model_kwargs.get(name) is not None), None)
    if cache is not None and _is_filled(cache):
        raise DraftgaugeError(
            f"draftgauge.speculative keeps a cache of its own and cannot honour past_key_values: {INSTEAD}"
        )


def _check_prepared(model: PreTrainedModel, input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> None:
    """Refuse a model that makes something else of the prompt for its first pass, or fills its cache before it."""
    made = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    _check_model_kwargs({name: made.get(name) for name in CACHES})
    ids, mask, places = made.pop("input_ids", None), made.get("attention_mask"), made.get("position_ids")
    changed = ids is None or not torch.equal(ids.to(input_ids.device), input_ids)
    changed |= isinstance(mask, Tensor) and mask.ndim == input_ids.ndim and mask.shape != input_ids.shape
    changed |= any(isinstance(made[name], Tensor) for name in made.keys() - {*DERIVED, *model_kwargs})
    if not getattr(model.prepare_inputs_for_generation, "__module__", "").startswith("transformers."):  # counts so
        changed |= places is not None and not torch.equal(places, model_kwargs.get("position_ids", places))
    if changed:
        raise DraftgaugeError(
            f"prepare_inputs_for_generation of {type(model).__name__} changes the prompt (prompt tuning does), which "
            "draftgauge.speculative cannot: call generate without custom_generate"
        )


def _is_filled(cache: Any) -> bool:
    """Whether a cache is a user's own, or holds tokens; one without any attention layer cannot say, and is fresh."""
    if getattr(cache, "_is_user_defined", False):
        return True
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:
        return False


def _rows(input_ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Iterator[BatchRow]:
    """The rows without their padding to the left."""
    batch, length = input_ids.shape
    for index, ids in enumerate(input_ids.tolist()):
        kept = [1] * length if mask is None else mask[index].tolist()
        padded = length - sum(kept)
        if padded == length or any(kept[:padded]) or len(kept) != length:
            raise DraftgaugeError(
                f"attention_mask of row {index} is not padding to the left of a prompt of one token or more: "
                "set padding_side='left' in the tokenizer"
            )
        counted = list(range(length - padded))
        if positions is not None and positions[index % len(positions), padded:].tolist() != counted:
            raise DraftgaugeError(f"position_ids of row {index} do not count its tokens from 0: {INSTEAD}")
        yield BatchRow(index, batch, ids[:padded], ids[padded:], input_ids.device)


def _split_criteria(criteria: StoppingCriteriaList) -> tuple[int, set[int], StoppingCriteriaList]:
    """The longest text in tokens, the end tokens, and the other criteria."""
    limits: list[int] = []
    ends: set[int] = set()
    others = StoppingCriteriaList()
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            limits.append(criterion.max_length)
        elif type(criterion) is EosTokenCriteria:
            ends.update(torch.as_tensor(criterion.eos_token_id).view(-1).tolist())
        else:
            others.append(criterion)
    assert limits, "generate always sets a max_length"
    return min(limits), ends, others
