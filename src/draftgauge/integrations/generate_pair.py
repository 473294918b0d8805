"""A model as ``generate`` has it, and what drafts for it, loaded and checked against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.drafters.source import DraftSource, LoadOptions, Source, choose_drafter, drafter_kinds
from draftgauge.integrations.generate_arguments import GenerateArguments
from draftgauge.integrations.generate_weights import Weights, is_unchanged
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.base import CachedModel
from draftgauge.models.compression import half_precision
from draftgauge.models.loading import check_same_vocabulary, load_tokenizer, wrap
from draftgauge.models.taps import Taps, attach_taps
from draftgauge.models.vocabulary import vocabulary_digest
from draftgauge.traces.costs import CostCurve

Drafts: TypeAlias = PreTrainedModel | str | Path

MEASURING_SECONDS = 5.0  # at most, for costs that were not asked for


class BoundPair:
    """A target and what drafts for it."""

    def __init__(
        self, target: CachedModel, drafts: DraftSource, taps: Taps | None, tokenizer: PreTrainedTokenizerBase | None
    ) -> None:
        self.target = target
        self.drafts = drafts
        self.taps = taps
        self.tokenizer = tokenizer
        models = [target]
        if isinstance(drafts, LanguageModelSource) and drafts.source is None:  # the caller's, who may train it
            models.append(drafts.model)
        self._weights = [(model, Weights.of(model)) for model in models]

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        drafter: Drafts,
        tokenizer: PreTrainedTokenizerBase | None,
        engine: str,
    ) -> BoundPair:
        """Load the drafter for a model.

        Raises:
            ModelError: if they do not belong together.
        """
        target = wrap(model, engine)
        tokenizer = tokenizer or _tokenizer_beside(model)
        if isinstance(drafter, PreTrainedModel):
            _check_models(model, drafter, tokenizer)
            drafts: DraftSource = LanguageModelSource(None, wrap(drafter, engine))
        else:
            options = LoadOptions(half_precision(target.spec.dtype), target.spec.device, engine)
            kind, source = _kind_of(drafter)
            if tokenizer is not None:
                kind.check(source, tokenizer, options)
            drafts = kind.load(source, target, options)
            if drafts.model is not None and tokenizer is None:
                _check_models(model, drafts.model.module, None)
        taps = None if drafts.tap_plan is None else attach_taps(target, drafts.tap_plan)
        return cls(target, drafts, taps, tokenizer)

    def holds(self, model: PreTrainedModel) -> bool:
        """Whether it is of this model, and neither that nor a draft model of the caller's has changed."""
        return self.target.module is model and all(is_unchanged(*each) for each in self._weights)

    def measure(self, call: GenerateArguments, gamma_max: int) -> CostCurve:
        """What a step costs around the first prompt of a call."""
        context = self.target.spec.context if self.drafts.context is None else self.drafts.context
        prompt, sampling = call.rows[0].prompt, call.settings.sampling
        device = self.target.spec.device
        generator = None if sampling.greedy else torch.Generator(device).manual_seed(0)
        plan = MeterPlan(
            text=prompt,
            contexts=[len(prompt) + call.settings.max_new_tokens // 2],
            gamma_max=gamma_max,
            seconds=MEASURING_SECONDS,
            context_limit=context,
            vocabulary="" if self.tokenizer is None else vocabulary_digest(self.tokenizer),
            sampling=sampling,
        )
        drafter = self.drafts.drafter(self.target, self.taps, frozenset(), call.draft_sampling, generator)
        return measure_costs(self.target, drafter, plan, np.random.default_rng(0), generator)


def _kind_of(drafter: str | Path) -> tuple[type[DraftSource], Source]:
    """The kind of a drafter and what it takes; what is of no other kind is a language model."""
    kinds = drafter_kinds()
    if str(drafter) in kinds or any(kind.recognises(drafter) for kind in kinds.values()):
        name, source = choose_drafter(drafter, None)
        return kinds[name], source
    return LanguageModelSource, drafter


def _tokenizer_beside(model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the folder or repository that a model came from, if there is one."""
    source = model.config.name_or_path
    if not source:
        return None
    try:
        return load_tokenizer(source)
    except (DraftgaugeError, ImportError):
        return None


def _check_models(target: PreTrainedModel, draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Refuse a draft model of another vocabulary: by the tokenizers of both, or the number of logits if one lacks."""
    draft_tokenizer = None if tokenizer is None else _tokenizer_beside(draft)
    if tokenizer is not None and draft_tokenizer is not None:
        check_same_vocabulary(tokenizer, draft_tokenizer)
        return
    ours, theirs = (model.config.get_text_config().vocab_size for model in (target, draft))
    if ours != theirs:
        raise ModelError(
            f"the target has {ours} logits and the draft model {theirs}, and no tokenizers lie beside both of them to "
            "compare: choose a draft model with the target's tokenizer, and load both from folders that hold it"
        )
