"""A model as ``generate`` has it, and what drafts for it, loaded and checked against each other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.drafters.base import Drafter
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.drafters.source import Drafting, DraftSource, LoadOptions, choose_drafter, drafter_kind
from draftgauge.integrations.generate_arguments import GenerateArguments
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.base import CachedModel
from draftgauge.models.compression import half_precision
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.lean_families import PLAIN_TENSORS, why_not_lean
from draftgauge.models.engines.lean_ops import packs
from draftgauge.models.loading import load_tokenizer, wrap
from draftgauge.models.taps import Taps, attach_taps
from draftgauge.models.vocabulary import check_same_vocabulary, vocabulary_digest
from draftgauge.traces.costs import CostCurve

Drafts: TypeAlias = PreTrainedModel | str | Path

MEASURING_SECONDS = 5.0  # at most, for costs that were not asked for
SAMPLED = 64  # elements of each weight, at least


class BoundPair:
    """A target and what drafts for it."""

    def __init__(
        self, model: PreTrainedModel, drafter: Drafts, tokenizer: PreTrainedTokenizerBase | None, options: LoadOptions
    ) -> None:
        """Load the drafter for a model, or raise :class:`ModelError` if they do not belong together."""
        self.target = wrap(model, options.engine)
        self.tokenizer = tokenizer = tokenizer or _tokenizer_beside(model)
        watched = [self.target]
        if isinstance(drafter, PreTrainedModel):
            _check_models(model, drafter, tokenizer)
            self.drafts: DraftSource = LanguageModelSource(None, wrap(drafter, options.engine))
            assert self.drafts.model is not None
            watched.append(self.drafts.model)  # the caller may train it
        elif not isinstance(drafter, str | Path):
            raise DraftgaugeError(
                f"what drafts is a model of transformers or where it lies, not a {type(drafter).__name__}: of peft's "
                "models give what merge_and_unload() returns"
            )
        else:
            options = replace(options, compression=half_precision(self.target.spec.dtype))
            name, source = choose_drafter(drafter)
            kind = drafter_kind(name)
            if tokenizer is not None:
                kind.check(source, tokenizer, options)
            self.drafts = kind.load(source, self.target, options)
            if self.drafts.model is not None and tokenizer is None:
                if self.drafts.model.module is None:
                    raise DraftgaugeError(f"{drafter} is a GGUF file: give the target's tokenizer, to compare them by")
                _check_models(model, self.drafts.model.module, None)
        plan = self.drafts.tap_plan
        self.taps: Taps | None = None if plan is None else attach_taps(self.target, plan)
        self._last: tuple[Drafting, Drafter] | None = None
        self._weights = [(each, _weights(each)) for each in watched]

    def drafter(self, drafting: Drafting) -> Drafter:
        """The last one, with what it has recorded on a GPU, where it is to draft alike."""
        if self._last is None or self._last[0] != drafting:
            self._last = None  # its memory is freed before more is taken
            self._last = drafting, self.drafts.drafter(self.target, self.taps, drafting)
        return self._last[1]

    def holds(self, model: PreTrainedModel) -> bool:
        """Whether it is of this model, and neither that nor a draft model of the caller's has changed."""
        return self.target.module is model and all(
            _weights(each) == before and not (isinstance(each, LeanModel) and why_not_lean(each.module))
            for each, before in self._weights
        )

    def measure(self, call: GenerateArguments, gamma_max: int) -> CostCurve:
        """What a step costs around the first prompt of a call."""
        context = self.target.spec.context if self.drafts.context is None else self.drafts.context
        prompt, sampling = call.rows[0].prompt, call.settings.sampling
        generator = None if sampling.greedy else torch.Generator(self.target.spec.device).manual_seed(0)
        vocabulary = "" if self.tokenizer is None else vocabulary_digest(self.tokenizer)
        contexts = [len(prompt) + call.settings.max_new_tokens // 2]
        plan = MeterPlan(
            prompt, contexts, gamma_max, MEASURING_SECONDS, context, vocabulary=vocabulary, sampling=sampling
        )
        drafting = Drafting(frozenset(), call.draft_sampling, generator)
        drafter = self.drafts.drafter(self.target, self.taps, drafting)
        return measure_costs(self.target, drafter, plan, np.random.default_rng(0), generator)


@torch.inference_mode()
def _weights(model: CachedModel) -> tuple[tuple[int, int] | float, ...]:
    """What tells that a model's weights are still those that an engine has taken over. PyTorch counts writes to a
    tensor, but neither those through ``.data`` nor those of fused optimisers. So where an engine holds copies of
    weights, or tables made of buffers and numbers, these are looked at: of tensors the norm, and the sum of some
    elements. A tensor of a subclass is never copied: which one it is suffices."""
    module, lean = model.module, isinstance(model, LeanModel)
    tensors = [*module.parameters(), *(module.buffers() if lean else ())]
    plain = [each for each in tensors if type(each) in PLAIN_TENSORS]
    written = tuple((each.data_ptr(), 0 if each.is_inference() else each._version) for each in plain)
    written += tuple((id(each), 0) for each in tensors if type(each) not in PLAIN_TENSORS)
    if not lean:
        return written
    numbers = [value for part in module.modules() for value in vars(part).values() if type(value) is float]
    packed = packs(module)
    figures: list[Tensor] = []
    for weight in plain:
        if weight.is_floating_point() and (packed or weight.ndim < 2):
            values = weight.detach().flatten()
            some = values[:: max(1, len(values) // SAMPLED)].float().sum()
            figures += [torch.linalg.vector_norm(values).float(), some]
    return (*written, *numbers, *(torch.stack(figures).nan_to_num().tolist() if figures else ()))


def _tokenizer_beside(model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the folder or repository that a model came from, if there is one."""
    with suppress(DraftgaugeError, ImportError):
        return load_tokenizer(model.config.name_or_path) if model.config.name_or_path else None
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
