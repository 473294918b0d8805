"""A model as ``generate`` has it, and what drafts for it, loaded and checked against each other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftgauge.api.costs import measured
from draftgauge.api.pair import Drafts, Pair, tokenizer_beside
from draftgauge.core.progress import silent
from draftgauge.drafters.base import Drafter
from draftgauge.drafters.source import Drafting, LoadOptions
from draftgauge.integrations.generate_arguments import GenerateArguments
from draftgauge.meter import MeterPlan
from draftgauge.models.base import CachedModel
from draftgauge.models.compression import half_precision
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.lean_families import PLAIN_TENSORS, why_not_lean
from draftgauge.models.engines.packing import packs
from draftgauge.models.loading import wrap
from draftgauge.models.vocabulary import vocabulary_digest
from draftgauge.traces.costs import CostCurve

MEASURING_SECONDS = 5.0  # at most, for costs that were not asked for
SAMPLED = 64  # elements of each weight, at least


class BoundPair:
    """A target and what drafts for it."""

    def __init__(
        self, model: PreTrainedModel, drafter: Drafts, tokenizer: PreTrainedTokenizerBase | None, options: LoadOptions
    ) -> None:
        target = wrap(model, options.engine)
        options = replace(options, compression=half_precision(target.spec.dtype))
        tokenizer = tokenizer or tokenizer_beside(model)
        self.pair = Pair.of(lambda: target, drafter, tokenizer, options, model.config.name_or_path)
        self.target = target
        self._last: tuple[Drafting, Drafter] | None = None
        watched = [target]
        if isinstance(drafter, PreTrainedModel):
            assert self.pair.draft is not None
            watched.append(self.pair.draft)  # the caller may train it
        self._weights = [(each, _weights(each)) for each in watched]

    def drafter(self, drafting: Drafting) -> Drafter:
        """The last one, with what it has recorded on a GPU, where it is to draft alike."""
        if self._last is None or self._last[0] != drafting:
            self._last = None  # its memory is freed before more is taken
            self._last = drafting, self.pair.drafter(drafting.sampling, drafting.generator, drafting.end_tokens)
        return self._last[1]

    def holds(self, model: PreTrainedModel) -> bool:
        """Whether it is of this model, and neither that nor a draft model of the caller's has changed."""
        return self.target.module is model and all(
            _weights(each) == before and not (isinstance(each, LeanModel) and why_not_lean(each.module))
            for each, before in self._weights
        )

    def measure(self, call: GenerateArguments, gamma_max: int) -> CostCurve:
        """What a step costs around the first prompt of a call."""
        prompt, tokenizer = call.rows[0].prompt, self.pair.known_tokenizer
        plan = MeterPlan(
            text=prompt,
            contexts=[len(prompt) + call.settings.max_new_tokens // 2],
            gamma_max=gamma_max,
            seconds=MEASURING_SECONDS,
            context_limit=self.pair.context,
            vocabulary="" if tokenizer is None else vocabulary_digest(tokenizer),
            sampling=call.settings.sampling,
        )
        return measured(self.pair, plan, 0, silent)


@torch.inference_mode()
def _weights(model: CachedModel) -> tuple[tuple[int, int] | float, ...]:
    """What tells that a model's weights are still those that an engine has taken over. PyTorch counts writes to a
    tensor, but neither those through ``.data`` nor those of fused optimisers. So where an engine holds copies of
    weights, or tables of buffers and numbers, each tensor's norm and sum of some elements count too. A tensor of a
    subclass is never copied: which one it is suffices."""
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
