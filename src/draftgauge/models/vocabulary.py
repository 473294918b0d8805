"""What the two models of a pair must share, and what ends a text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import ModelError

SHOWN = 5


def check_same_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Check that a draft's token ids mean to the target what they mean to the draft.

    Vocabularies are compared entry by entry: equal sizes say nothing.

    Raises:
        ModelError: naming the first ids that differ.
    """
    target_ids, draft_ids = target.get_vocab(), draft.get_vocab()
    if target_ids == draft_ids:
        return
    # An entry differs if the other side lacks the token or gives it another id.
    differing = sorted({index for _, index in target_ids.items() ^ draft_ids.items()})
    target_tokens = {index: token for token, index in target_ids.items()}
    draft_tokens = {index: token for token, index in draft_ids.items()}
    shown = difference(differing, target_tokens, draft_tokens, ("the target", "the draft"))
    raise ModelError(
        f"target and draft have different vocabularies ({len(target_ids)} and {len(draft_ids)} tokens, "
        f"{len(differing)} ids differ: {shown}): choose a draft trained with the target's tokenizer"
    )


def difference(ids: Sequence[int], ours: Mapping[int, str], theirs: Mapping[int, str], owners: tuple[str, str]) -> str:
    """What the first of some token ids mean to either of two owners."""
    meanings = [(index, _show(ours.get(index)), _show(theirs.get(index))) for index in ids[:SHOWN]]
    return "; ".join(f"{index} is {one} to {owners[0]}, {other} to {owners[1]}" for index, one, other in meanings)


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of which token has which id, in hexadecimal: token ids mean the same where it is the same."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def _show(token: str | None) -> str:
    return "nothing" if token is None else repr(token)


def end_tokens(*sources: Any) -> frozenset[int]:
    """Ids that end a text: all that the sources name.

    Args:
        sources: models (ours or transformers'), configurations, generation configurations or tokenizers; of a model,
            both its configurations count.
    """
    end_ids: set[int] = set()
    for source in sources:
        model = getattr(source, "module", source)
        for holder in (source, model, getattr(model, "config", None), getattr(model, "generation_config", None)):
            ids = getattr(holder, "eos_token_id", None)
            end_ids.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(end_ids)
