"""A target and what drafts for it, loaded and checked against each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import Prompt
from draftgauge.drafters.base import Drafter
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.prompt_lookup import PromptLookupDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import check_same_vocabulary, end_tokens, fingerprint, load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompt
from draftgauge.models.reference import resolve_source
from draftgauge.verification import Sampling

DRAFTERS = ("language_model", "prompt_lookup")


@dataclass(frozen=True)
class Pair:
    """A loaded target with its tokenizer and, unless prompt lookup drafts, a loaded draft model.

    Attributes:
        target: the model whose output is decoded.
        draft: the draft model; None with prompt lookup.
        tokenizer: of the target.
        end_tokens: ids that end an output.
        sources: what was asked for: ``{"target", "draft"}``, the latter None with prompt lookup.
        compression: of the target.
    """

    target: CachedModel
    draft: CachedModel | None
    tokenizer: PreTrainedTokenizerBase
    end_tokens: frozenset[int]
    sources: dict[str, str | None]
    compression: str

    @property
    def drafter_kind(self) -> str:
        """``language_model`` or ``prompt_lookup``."""
        return "prompt_lookup" if self.draft is None else "language_model"

    def drafter(self, sampling: Sampling | None = None, generator: Generator | None = None) -> Drafter:
        """A new drafter; with a temperature above 0 a draft model samples from its own distribution."""
        if self.draft is None:
            return PromptLookupDrafter(end_tokens=self.end_tokens)
        return LanguageModelDrafter(self.draft, self.end_tokens, sampling, generator, self.target.spec.vocabulary)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, conversations through the chat template."""
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        return encode_prompt(self.tokenizer, messages or prompt.text)

    def fingerprints(self) -> dict[str, str | None]:
        """Which models these are, by hash of configuration and weights."""
        target = fingerprint(resolve_source(str(self.sources["target"]), "target"))
        draft = self.sources["draft"]
        return {"target": target, "draft": None if draft is None else fingerprint(resolve_source(draft, "draft"))}


def draft_compression(compression: str) -> str:
    """How the draft is held beside a target of this compression: in the same half precision, never quantised."""
    return compression if compression in ("fp16", "bf16") else "none"


def load_pair(
    target: str | Path = "reference",
    draft: str | Path | None = "reference",
    compression: str = "none",
    drafter: str = "language_model",
    device: str | torch.device | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
) -> Pair:
    """Load a target, compressed as asked for, and its draft in full precision, and check that they share a vocabulary.

    Args:
        target: a folder, a model id of the hub, or ``reference``.
        draft: likewise; not looked at with prompt lookup.
        compression: of the target: none, fp16, bf16, int8 or nf4. The draft is held in the target's activation dtype.
        drafter: ``language_model`` or ``prompt_lookup``.
        device: of both models; a GPU where there is one.
        engine: ``auto``, ``lean`` or ``modules``.
        trust_remote_code: run Python code that comes with the models.

    Raises:
        DraftgaugeError: for an unknown drafter, engine or compression.
        ModelError: if a model cannot be loaded, or the vocabularies differ.
    """
    if drafter not in DRAFTERS:
        raise DraftgaugeError(f"unknown drafter {drafter!r}: choose one of {', '.join(DRAFTERS)}")
    common: dict[str, Any] = {"device": device, "engine": engine, "trust_remote_code": trust_remote_code}
    tokenizer = load_tokenizer(target, trust_remote_code)
    draft_source = None if drafter == "prompt_lookup" else draft
    draft_model = None
    if draft_source is not None:
        check_same_vocabulary(tokenizer, load_tokenizer(draft_source, trust_remote_code, part="draft"))
        draft_model = load_model(draft_source, draft_compression(compression), part="draft", **common)
    elif drafter == "language_model":
        raise DraftgaugeError("drafter language_model needs a draft model: name one, or choose prompt_lookup")
    target_model = load_model(target, compression, part="target", **common)
    sources = {"target": str(target), "draft": None if draft_source is None else str(draft_source)}
    return Pair(target_model, draft_model, tokenizer, end_tokens(target_model, tokenizer), sources, compression)
