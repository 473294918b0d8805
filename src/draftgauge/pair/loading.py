"""A target and what drafts for it, loaded and checked against each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Generator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftgauge.core.config import given_settings, settings_of
from draftgauge.core.errors import DraftgaugeError, ModelError, TraceError
from draftgauge.core.parts import Rendering
from draftgauge.core.prompts import Prompt
from draftgauge.core.verb import verb
from draftgauge.drafters.base import Drafter, Drafting, DraftSource, LoadOptions, choose_drafter, drafter_kind
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.models.base import CachedModel, skeleton_of
from draftgauge.models.device import choose_device, label_of, restart_peak
from draftgauge.models.engines.gguf_library import check_gguf_vocabulary
from draftgauge.models.folder import REFERENCE, fingerprint, is_gguf, model_folder, was_sampled
from draftgauge.models.loading import load_model, load_tokenizer, quantisation_method, wrap
from draftgauge.models.spec import own_sampling
from draftgauge.models.taps import Taps, attach_taps
from draftgauge.models.tokenizer import PLAIN, check_same_vocabulary, encode_with, end_tokens
from draftgauge.pair.prompts import PromptEncoder, encoder_of
from draftgauge.requests import PairSpec, SamplingSpec
from draftgauge.traces.run import Manifest
from draftgauge.verification import Sampling

Drafts: TypeAlias = PreTrainedModel | str | Path


@dataclass(frozen=True)
class Pair:
    """A loaded target with its tokenizer, and what drafts for it.

    Attributes:
        known_tokenizer: the target's; None where a model that was given loaded has none beside it.
        target_name, draft_name: what was asked for; the latter None for a kind that takes no source.
        spec: how it was loaded.
    """

    target: CachedModel
    draft_source: DraftSource
    known_tokenizer: PreTrainedTokenizerBase | None
    end_tokens: frozenset[int]
    target_name: str
    draft_name: str | None
    compression: str
    taps: Taps | None = None
    spec: PairSpec = field(default_factory=PairSpec)

    def __repr__(self) -> str:
        held = f"compression={self.compression!r}, engine={self.target.spec.engine!r}"
        return f"Pair(target={self.target_name!r}, drafter={self.draft_name!r}, {held})"

    @classmethod
    def from_pretrained(cls, target: str | Path | None = None, drafter: str | Path | None = None, **how: Any) -> Pair:
        """Load a target and what drafts for it, by id, folder or name: :func:`load_pair` with these settings."""
        return load_pair(target=target, drafter=drafter, **how)

    @classmethod
    def of(
        cls,
        load: Callable[[], CachedModel],
        drafter: Drafts | None,
        tokenizer: PreTrainedTokenizerBase | None,
        options: LoadOptions,
        name: str = "",
    ) -> Pair:
        """A target, loaded once its drafter is known to fit it by its files, and what drafts for it.

        ``drafter`` is a loaded model, or as ``--drafter`` has it. Without a tokenizer numbers of logits are compared.
        """
        target: Any  # None in vLLM, which hands none over
        if isinstance(drafter, PreTrainedModel):
            kind, source, target = LanguageModelSource.name, None, load()
            _check_models(None if target is None else skeleton_of(target), drafter, tokenizer)
            drafts: DraftSource = LanguageModelSource(None, wrap(drafter, options.engine))
        elif drafter is not None and not isinstance(drafter, str | Path):
            raise DraftgaugeError(
                f"what drafts is a model of transformers or where it lies, not a {type(drafter).__name__}: of peft's "
                "models give what merge_and_unload() returns"
            )
        else:
            kind, source = choose_drafter(drafter)
            if tokenizer is not None:
                drafter_kind(kind).check(source, tokenizer, options)
            target = load()
            drafts = drafter_kind(kind).load(source, target, options)
            if tokenizer is None and drafts.model is not None and target is not None:
                if (beside := skeleton_of(drafts.model)) is None:
                    raise DraftgaugeError(f"{drafter} is not of transformers: give the target's tokenizer to compare")
                _check_models(skeleton_of(target), beside, None)
        taps = None if drafts.tap_plan is None else attach_taps(target, drafts.tap_plan)
        asked = None if source is None else REFERENCE if drafter in (None, kind) else str(drafter)
        ends = end_tokens(target, tokenizer)
        return cls(target, drafts, tokenizer, ends, name, asked, options.compression, taps)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        if self.known_tokenizer is None:
            raise DraftgaugeError(f"no tokenizer lies beside the model {self.target_name}: give the target's")
        return self.known_tokenizer

    @property
    def draft(self) -> CachedModel | None:
        return self.draft_source.model

    @property
    def models(self) -> list[object]:
        """What decodes one request at a time, as it has one cache."""
        both = [each for each in (self.target, self.draft) if each is not None]
        return [skeleton_of(each) or each for each in both]

    @property
    def context(self) -> int:
        limit = self.draft_source.context
        return self.target.spec.context if limit is None else min(self.target.spec.context, limit)

    def longest(self, gamma_max: int) -> int:
        """Tokens of a draft at most, where ``gamma_max`` is asked for."""
        return min(gamma_max, self.draft_source.longest or gamma_max)

    def drafter(
        self,
        sampling: Sampling | None = None,
        generator: Generator | None = None,
        end_tokens: frozenset[int] | None = None,
    ) -> Drafter:
        ends = self.end_tokens if end_tokens is None else end_tokens
        return self.draft_source.drafter(self.target, self.taps, Drafting(ends, sampling, generator))

    def generator(self, sampling: Sampling, seed: int) -> Generator | None:
        return None if sampling.greedy else Generator(self.target.spec.device).manual_seed(seed)

    def encode(self, prompt: Prompt, rendering: Rendering = PLAIN) -> list[int]:
        return encode_with(self.tokenizer, prompt, rendering)

    @property
    def encoder(self) -> PromptEncoder:
        return encoder_of(self.target, self.tokenizer, self.context)

    def fingerprints(self) -> dict[str, str | None]:
        return {"target": fingerprint(self.target_name), "draft": self.draft_source.fingerprint()}


@verb(PairSpec)
def load_pair(spec: PairSpec) -> Pair:
    """Load a target, at a single compression, and what drafts for it, and check that they belong together.

    Raises:
        DraftgaugeError: for an unknown drafter, engine or compression, or several compressions.
        ModelError: if a model cannot be loaded, the vocabularies differ, or the drafter was trained for another target.
    """
    if len(spec.compression) > 1:
        raise DraftgaugeError(f"a pair is loaded at one compression, not at {', '.join(spec.compression)}: name one")
    (compression,) = labelled(spec).compression
    loading, engine, trusted = spec.loading, spec.loading.engine, spec.loading.trust_remote_code
    target = target_of(spec)
    options = LoadOptions(compression, loading.draft_device, engine, trusted, loading.allow_pickle, target)
    tokenizer = load_tokenizer(loading.tokenizer or target, trusted)
    if is_gguf(target):
        check_gguf_vocabulary(tokenizer, Path(target), "target")
    restart_peak(choose_device(spec.machine.device))

    def load() -> CachedModel:
        return load_model(target, compression, spec.machine.device, engine, trusted, loading.device_map)

    return replace(Pair.of(load, spec.drafter, tokenizer, options, target), spec=spec)


def load_pair_of(manifest: Manifest, spec: PairSpec | None = None) -> Pair:
    """Load the models that a trace was recorded with, or its target with the drafter that ``spec`` names."""
    spec = spec or PairSpec()
    recorded = {entry.engine for entry in (manifest.target, manifest.draft) if entry is not None}
    kept = [{"gguf-fast"}, {"openvino-fast"}, {"modules"}]
    asked = recorded.pop() if recorded in kept else "auto"  # else each model had its own
    engine = asked if spec.loading.engine == "auto" else spec.loading.engine
    pair = load_pair(
        replace(
            spec,
            target=manifest.target.source,
            compression=(manifest.target.compression,),
            drafter=spec.drafter or manifest.drafts_with,
            loading=replace(spec.loading, tokenizer=spec.loading.tokenizer or manifest.tokenizer, engine=engine),
        )
    )
    fingerprints = pair.fingerprints()
    for role, entry in (("target", manifest.target), ("draft", manifest.draft if spec.drafter is None else None)):
        if entry is None or fingerprints[role] == entry.fingerprint:
            continue
        if not was_sampled(entry.fingerprint, entry.source):
            raise TraceError(
                f"the {role} at {entry.source} is not the model that this trace was recorded with: profile it into a "
                "new folder"
            )
    return pair


def labelled(spec: PairSpec) -> PairSpec:
    target = target_of(spec)
    method = quantisation_method(target)
    return replace(spec, compression=tuple(label_of(name, method, target) for name in spec.compression))


def sampling_of(asked: SamplingSpec, target: str) -> Sampling:
    return own_sampling(target) if asked.checkpoint_sampling else Sampling(asked.temperature, asked.top_k, asked.top_p)


def target_of(spec: PairSpec) -> str:
    if spec.target:
        return spec.target
    name, source = choose_drafter(spec.drafter)
    target = drafter_kind(name).trained_for(source)
    if target is None and source is not None and not str(source).startswith(REFERENCE):
        model_folder(source)  # what is no model at all is told first
        raise DraftgaugeError(f"nothing says which target {source} drafts for: name it with --target")
    return target or REFERENCE


def refuse_beside_pair(request: Any, *others: str) -> None:
    named = {entry.name for entry in settings_of(PairSpec)}.union(others) & given_settings(request)
    if at_odds := [entry.name for entry in settings_of(type(request)) if entry.name in named]:
        raise DraftgaugeError(f"the given pair is loaded already: leave out {', '.join(at_odds)}, or the pair")


def tokenizer_beside(model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the folder or repository that a model came from, if there is one."""
    with suppress(DraftgaugeError, ImportError):
        return load_tokenizer(model.config.name_or_path) if model.config.name_or_path else None
    return None


def _check_models(
    target: PreTrainedModel | None, draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Refuse a draft model of another vocabulary: by the tokenizers of both, or the number of logits if one lacks."""
    draft_tokenizer = None if tokenizer is None else tokenizer_beside(draft)
    if tokenizer is not None and draft_tokenizer is not None:
        check_same_vocabulary(tokenizer, draft_tokenizer)
        return
    assert target is not None, "a target without a tokenizer is a model of transformers"
    ours, theirs = (model.config.get_text_config().vocab_size for model in (target, draft))
    if ours != theirs:
        raise ModelError(
            f"the target has {ours} logits and the draft model {theirs}, and no tokenizers lie beside both of them to "
            "compare: choose a draft model with the target's tokenizer, and load both from folders that hold it"
        )
