"""A target and what drafts for it, loaded and checked against each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator
from transformers import PreTrainedTokenizerBase

from draftgauge.core.prompts import Prompt
from draftgauge.drafters.base import Drafter
from draftgauge.drafters.source import DraftSource, LoadOptions, choose_drafter, drafter_kind
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import end_tokens, fingerprint, load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompt
from draftgauge.models.reference import resolve_source
from draftgauge.models.taps import Taps, attach_taps
from draftgauge.verification import Sampling


@dataclass(frozen=True)
class Pair:
    """A loaded target with its tokenizer, and what drafts for it.

    Attributes:
        target: the model whose output is decoded.
        draft_source: what drafts, of a registered kind.
        tokenizer: of the target.
        end_tokens: ids that end an output.
        sources: what was asked for: ``{"target", "draft"}``, the latter None for a kind that takes no source.
        compression: of the target.
        taps: of the target, as ``draft_source`` needs them.
    """

    target: CachedModel
    draft_source: DraftSource
    tokenizer: PreTrainedTokenizerBase
    end_tokens: frozenset[int]
    sources: dict[str, str | None]
    compression: str
    taps: Taps | None = None

    @property
    def draft(self) -> CachedModel | None:
        """The draft model; None where something else drafts."""
        return self.draft_source.model

    @property
    def context(self) -> int:
        """Longest sequence that the target and what drafts for it take."""
        limit = self.draft_source.context
        return self.target.spec.context if limit is None else min(self.target.spec.context, limit)

    def drafter(
        self,
        sampling: Sampling | None = None,
        generator: Generator | None = None,
        end_tokens: frozenset[int] | None = None,
    ) -> Drafter:
        """A new drafter; with a temperature above 0 one that has a model samples from its own distribution.

        Args:
            sampling: how it drafts, greedily if None.
            generator: on the target's device, needed for sampled drafts.
            end_tokens: its drafts end with any of these; the pair's if None.
        """
        ends = self.end_tokens if end_tokens is None else end_tokens
        return self.draft_source.drafter(self.target, self.taps, ends, sampling, generator)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, conversations through the chat template."""
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        return encode_prompt(self.tokenizer, messages or prompt.text)

    def fingerprints(self) -> dict[str, str | None]:
        """Which models these are, by hash of configuration and weights."""
        target = fingerprint(resolve_source(str(self.sources["target"]), "target"))
        return {"target": target, "draft": self.draft_source.fingerprint()}


def load_pair(
    target: str | Path = "reference",
    draft: str | Path | None = "reference",
    compression: str = "none",
    drafter: str | Path = "language_model",
    device: str | torch.device | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
) -> Pair:
    """Load a target, compressed as asked for, and what drafts for it, and check that they belong together.

    Args:
        target: a folder, a model id of the hub, or ``reference``.
        draft: likewise the draft model; or what another kind of drafter takes.
        compression: of the target: none, fp16, bf16, int8 or nf4. The draft is held in the target's activation dtype.
        drafter: a kind of drafter by name, or the folder of a trained drafter; see
            :func:`~draftgauge.drafters.source.choose_drafter`.
        device: of both models; a GPU where there is one.
        engine: ``auto``, ``lean`` or ``modules``.
        trust_remote_code: run Python code that comes with the models.

    Raises:
        DraftgaugeError: for an unknown drafter, engine or compression.
        ModelError: if a model cannot be loaded, the vocabularies differ, or the drafter was trained for another target.
    """
    name, source = choose_drafter(drafter, draft)
    kind, options = drafter_kind(name), LoadOptions(compression, device, engine, trust_remote_code)
    tokenizer = load_tokenizer(target, trust_remote_code)
    kind.check(source, tokenizer, options)
    model = load_model(target, compression, device, trust_remote_code, engine, part="target")
    drafts = kind.load(source, model, options)
    taps = None if drafts.tap_plan is None else attach_taps(model, drafts.tap_plan)
    sources = {"target": str(target), "draft": None if source is None else str(source)}
    return Pair(model, drafts, tokenizer, end_tokens(model, tokenizer), sources, compression, taps)
