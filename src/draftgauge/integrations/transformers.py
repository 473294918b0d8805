"""Speculation by one argument of transformers' ``generate``::

    model.generate(**inputs, custom_generate=draftgauge.speculative("reference/draft", policy="fixed:4"))

The output is that of ``generate`` without it: the same tokens when greedy in float32, the same distribution when
sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import silent
from draftgauge.core.verb import in_turn
from draftgauge.decoding.settings import Generation, OnCommit, Origin
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.base import Drafter, Drafting, LoadOptions
from draftgauge.integrations.generate_arguments import (
    CriteriaWatch,
    GenerateArguments,
    ProcessedModel,
    read_arguments,
    refuse_dropped_arguments,
)
from draftgauge.meter import MeterPlan
from draftgauge.models.base import CachedModel
from draftgauge.models.device import half_precision, method_of
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.lean_weights import PLAIN_TENSORS, why_not_lean
from draftgauge.models.engines.packing import packs
from draftgauge.models.loading import wrap
from draftgauge.models.tokenizer import vocabulary_digest
from draftgauge.pair.costs import measured
from draftgauge.pair.loading import Drafts, Pair, tokenizer_beside
from draftgauge.policies.base import Policy
from draftgauge.policies.spec import PolicySpec, read_policies, with_objects
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

    @property
    def vocabulary(self) -> str:
        tokenizer = self.pair.known_tokenizer
        return "" if tokenizer is None else vocabulary_digest(tokenizer)

    def measure(self, call: GenerateArguments, gamma_max: int) -> CostCurve:
        """What a step costs around the first prompt of a call."""
        prompt = call.rows[0].prompt
        plan = MeterPlan(
            text=prompt,
            contexts=[len(prompt) + call.settings.max_new_tokens // 2],
            gamma_max=gamma_max,
            seconds=MEASURING_SECONDS,
            context_limit=self.pair.context,
            vocabulary=self.vocabulary,
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


LONGEST = 16


@dataclass(eq=False, repr=False)
class Speculative:
    """A decoding function for ``generate(custom_generate=...)``, known as ``draftgauge.speculative``.

    It keeps what it made of a model from call to call; a model whose weights have changed is wrapped again. Calls that
    share it, or a model, wait for each other.

    Attributes:
        drafter: a causal language model, loaded or by folder or id; the folder of a trained drafter; an EAGLE-3, DFlash
            or DSpark checkpoint; or "lookup".
        policy: how far to draft, as ``--policy`` takes it, or a policy of your own.
        gamma_max: longest draft; 16 if left out, or what the given costs were measured for, if that is less.
        costs: of a step on this machine, for policies that weigh them: a curve, or the file of one in a recorded run.
            They are measured in the first call if None, which takes some seconds; then they are here.
        tokenizer: of the target. By default the one that lies beside the model, if there is one. It tells whether the
            drafter has the same vocabulary, and a fitted policy whether it knows the target's tokens.
        allow_pickle: read a checkpoint's pickled weights, which can run code.
        generations: of the call that ended last, one for each row: steps, drafted and accepted tokens, seconds.

    Raises:
        DraftgaugeError: for a policy or an engine that does not exist, or costs that cannot be read.
    """

    drafter: Drafts
    policy: str | Policy = "two-source"
    _: KW_ONLY
    gamma_max: int | None = None
    costs: CostCurve | str | Path | None = None
    streamer: BaseStreamer | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    engine: str = "auto"
    allow_pickle: bool = False
    generations: list[Generation] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.drafter is None:
            raise DraftgaugeError(
                "name what drafts: a model, its folder or id, the folder of a trained drafter, or 'lookup'"
            )
        if isinstance(self.costs, str | Path):
            self.costs = CostCurve.load(Path(self.costs))
        longest = LONGEST if self.costs is None else min(LONGEST, self.costs.gamma_max)
        self._longest = longest if self.gamma_max is None else self.gamma_max
        self._named: PolicySpec | None = None
        self._live: Policy | None = None
        if isinstance(self.policy, str):
            (self._named,) = read_policies([self.policy])
            if not self._named.weighs_cost or self.costs is not None:
                self._named.make(self._longest, self.costs)  # a mistake shows here, not in the first call
        else:
            (self._live,) = with_objects({}, {type(self.policy).__name__: self.policy}).values()
        self._pair: BoundPair | None = None
        self._given = self.costs, self._live

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> GenerateDecoderOnlyOutput | Tensor:
        """Decode what ``generate`` prepared; what cannot be honoured is refused by name."""
        refuse_dropped_arguments()
        call = read_arguments(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        if self.streamer is not None and len(call.rows) > 1:
            raise DraftgaugeError(f"a streamer follows one row, not a batch of {len(call.rows)}: leave it out")
        models = [model, *([self.drafter] if isinstance(self.drafter, PreTrainedModel) else [])]
        with in_turn(self, *models), _evaluating(*models):
            pair = self._bind(model)
            return self._decode(pair, self._ready_policy(pair, call), call, input_ids)

    def _decode(
        self, pair: BoundPair, policy: Policy, call: GenerateArguments, input_ids: Tensor
    ) -> GenerateDecoderOnlyOutput | Tensor:
        generator = None
        if not call.settings.sampling.greedy:  # seeded from the global generator, so that ``set_seed`` counts
            generator = torch.Generator(pair.target.spec.device).manual_seed(int(torch.randint(2**62, ())))
        if self.streamer is not None:
            self.streamer.put(input_ids.cpu())
        generations: list[Generation] = []
        for row in call.rows:
            target: CachedModel = pair.target
            if call.processors:
                target = ProcessedModel(target, call.processors, row, call.settings.sampling.greedy)
            drafter = pair.drafter(Drafting(call.settings.end_tokens, call.draft_sampling, generator))
            watch = CriteriaWatch(call.criteria, row) if call.criteria else None
            settings = replace(call.settings, stop_when=watch, gamma_max=self._longest)
            on_commit = None if self.streamer is None else _put_each(self.streamer)
            generations.append(speculative_decode(target, drafter, policy, row.prompt, settings, generator, on_commit))
        if self.streamer is not None:
            self.streamer.end()
        self.generations = generations
        sequences = _sequences(input_ids, [result.tokens for result in generations], call.pad_token)
        return GenerateDecoderOnlyOutput(sequences=sequences) if call.returns_dict else sequences

    def _bind(self, model: PreTrainedModel) -> BoundPair:
        """The model and its drafter, made ready; those of the last call if nothing has changed."""
        if self._pair is not None and self._pair.target.module is not model:
            self.costs, self._live = self._given  # what was measured and learned is of another model
        if self._pair is None or not self._pair.holds(model):
            self._pair = None  # its memory is freed before more is taken
            with torch.inference_mode(False):  # a model's weights may move, and are to be trainable where they go
                options = LoadOptions(engine=self.engine, allow_pickle=self.allow_pickle)
                self._pair = BoundPair(model, self.drafter, self.tokenizer, options)
        return self._pair

    def _ready_policy(self, pair: BoundPair, call: GenerateArguments) -> Policy:
        """The policy, the same one from call to call, as some learn; its costs are measured if need be."""
        if self._live is None:
            assert self._named is not None
            if self.costs is None and self._named.weighs_cost:
                self.costs = pair.measure(call, self._longest)
            assert not isinstance(self.costs, str | Path)
            known = "" if self.costs is None else self.costs.vocabulary
            if known and pair.vocabulary not in ("", known):
                raise DraftgaugeError("costs are of a pair with another vocabulary: left out, they are measured here")
            self._live = self._named.make(self._longest, self.costs, method_of(pair.target.module.config.to_dict()))
        return self._live


speculative = Speculative


def _put_each(streamer: BaseStreamer) -> OnCommit:
    """Hand a streamer one token at a time, as ``generate`` does."""

    def put(tokens: list[int], origins: list[Origin]) -> None:
        for token in tokens:
            streamer.put(torch.tensor([token]))

    return put


def _sequences(input_ids: Tensor, outputs: list[list[int]], pad_token: int | None) -> Tensor:
    """``[rows, longest]`` prompts and outputs, the shorter ones padded."""
    longest = max(map(len, outputs))
    assert pad_token is not None or all(len(output) == longest for output in outputs)
    filled = [output + [pad_token or 0] * (longest - len(output)) for output in outputs]
    return torch.cat((input_ids, torch.tensor(filled, dtype=input_ids.dtype, device=input_ids.device)), -1)


@contextmanager
def _evaluating(*models: PreTrainedModel) -> Iterator[None]:
    """Models in evaluation mode, and all of their modules in their former modes afterwards."""
    training = [module for model in models for module in model.modules() if module.training]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
