"""A target and what drafts for it, loaded and checked against each other."""

from __future__ import annotations

import hashlib
import json
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
from draftgauge.drafters.reuse import ReuseNet, is_drafter, load_drafter, read_description
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import check_same_vocabulary, end_tokens, fingerprint, load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompt
from draftgauge.models.reference import resolve_source
from draftgauge.models.taps import TapPlan, Taps, attach_taps
from draftgauge.verification import Sampling

DRAFTERS = ("language_model", "prompt_lookup", "reuse")


@dataclass(frozen=True)
class Reuse:
    """A trained drafter that reads its target, and the taps it reads it by."""

    net: ReuseNet
    taps: Taps


@dataclass(frozen=True)
class Pair:
    """A loaded target with its tokenizer and what drafts for it: a draft model, a trained drafter that reads the target, or the text.

    Attributes:
        target: the model whose output is decoded.
        draft: the draft model; None where something else drafts.
        tokenizer: of the target.
        end_tokens: ids that end an output.
        sources: what was asked for: ``{"target", "draft"}``; the latter is the folder of a trained drafter, None with prompt lookup.
        compression: of the target.
        reuse: the trained drafter, None where something else drafts.
    """

    target: CachedModel
    draft: CachedModel | None
    tokenizer: PreTrainedTokenizerBase
    end_tokens: frozenset[int]
    sources: dict[str, str | None]
    compression: str
    reuse: Reuse | None = None

    @property
    def drafter_kind(self) -> str:
        """One of ``DRAFTERS``."""
        if self.reuse is not None:
            return "reuse"
        return "prompt_lookup" if self.draft is None else "language_model"

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
        if self.reuse is not None:
            return ReuseDrafter(self.reuse.net, self.target, self.reuse.taps, ends, sampling, generator)
        if self.draft is None:
            return PromptLookupDrafter(end_tokens=ends)
        return LanguageModelDrafter(self.draft, ends, sampling, generator, self.target.spec.vocabulary)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, conversations through the chat template."""
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        return encode_prompt(self.tokenizer, messages or prompt.text)

    def fingerprints(self) -> dict[str, str | None]:
        """Which models these are, by hash of configuration and weights."""
        target = fingerprint(resolve_source(str(self.sources["target"]), "target"))
        draft = self.sources["draft"]
        if draft is None:
            return {"target": target, "draft": None}
        drafter = (
            fingerprint(resolve_source(draft, "draft")) if self.reuse is None else _drafter_fingerprint(Path(draft))
        )
        return {"target": target, "draft": drafter}


def choose_drafter(drafter: str | Path, draft: str | Path | None) -> tuple[str, str | Path | None]:
    """What is to draft: one of ``DRAFTERS``, and the model or folder it takes.

    Args:
        drafter: one of ``DRAFTERS``, or the folder of a trained drafter, which stands for ``reuse`` with that folder.
        draft: the draft model, or with ``reuse`` the folder; not looked at with prompt lookup.

    Raises:
        DraftgaugeError: for a drafter that is neither, or one that lacks what it takes.
    """
    if drafter == "prompt_lookup":
        return "prompt_lookup", None
    if drafter == "language_model":
        if draft is None:
            raise DraftgaugeError("drafter language_model needs a draft model: name one, or choose prompt_lookup")
        return "language_model", draft
    folder = draft if drafter == "reuse" else drafter
    if folder is None or not is_drafter(folder):
        raise DraftgaugeError(
            f"unknown drafter {str(drafter)!r}: choose language_model, prompt_lookup, or give the folder of a trained drafter "
            f"(as `draftgauge train` writes it{'' if folder is None else f'; {folder} is none'})"
        )
    return "reuse", folder


def draft_compression(compression: str) -> str:
    """How the draft is held beside a target of this compression: in the same half precision, never quantised."""
    return compression if compression in ("fp16", "bf16") else "none"


def load_pair(
    target: str | Path = "reference",
    draft: str | Path | None = "reference",
    compression: str = "none",
    drafter: str | Path = "language_model",
    device: str | torch.device | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
) -> Pair:
    """Load a target, compressed as asked for, and its draft in full precision, and check that they belong together.

    Args:
        target: a folder, a model id of the hub, or ``reference``.
        draft: likewise; looked at for a draft model only.
        compression: of the target: none, fp16, bf16, int8 or nf4. The draft is held in the target's activation dtype.
        drafter: ``language_model``, ``prompt_lookup``, or the folder of a trained drafter.
        device: of both models; a GPU where there is one.
        engine: ``auto``, ``lean`` or ``modules``.
        trust_remote_code: run Python code that comes with the models.

    Raises:
        DraftgaugeError: for an unknown drafter, engine or compression.
        ModelError: if a model cannot be loaded, the vocabularies differ, or the drafter was trained for another target.
    """
    kind, source = choose_drafter(drafter, draft)
    common: dict[str, Any] = {"device": device, "engine": engine, "trust_remote_code": trust_remote_code}
    tokenizer = load_tokenizer(target, trust_remote_code)
    draft_model = None
    if kind == "language_model":
        assert source is not None
        check_same_vocabulary(tokenizer, load_tokenizer(source, trust_remote_code, part="draft"))
        draft_model = load_model(source, draft_compression(compression), part="draft", **common)
    target_model = load_model(target, compression, part="target", **common)
    reuse = _load_reuse(str(source), target_model) if kind == "reuse" else None
    sources = {"target": str(target), "draft": None if source is None else str(source)}
    return Pair(target_model, draft_model, tokenizer, end_tokens(target_model, tokenizer), sources, compression, reuse)


def _load_reuse(folder: str, target: CachedModel) -> Reuse:
    """A trained drafter, attached to its target."""
    net = load_drafter(folder, target)
    return Reuse(net, attach_taps(target, TapPlan(net.config.hidden_layers, net.config.kv_layers)))


def _drafter_fingerprint(folder: Path) -> str:
    """SHA-256 over a trained drafter's configuration and weights, wherever it and its target lie."""
    description = read_description(folder)
    config = {name: value for name, value in description["config"].items() if name != "target_source"}
    return hashlib.sha256(json.dumps([config, description["weights_sha256"]], sort_keys=True).encode()).hexdigest()
