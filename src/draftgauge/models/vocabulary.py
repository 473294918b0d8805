"""What the two models of a pair must share, what ends a text, and tokens to text, one at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import ModelError
from draftgauge.models.folder import reference_path

SHOWN = 5


def check_same_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Refuse a draft whose token ids mean something else to the target, compared entry by entry."""
    target_ids, draft_ids = target.get_vocab(), draft.get_vocab()
    if target_ids == draft_ids:
        return
    # An entry differs if the other side lacks the token or gives it another id.
    differing = sorted({index for _, index in target_ids.items() ^ draft_ids.items()})
    target_tokens = {index: token for token, index in target_ids.items()}
    draft_tokens = {index: token for token, index in draft_ids.items()}
    shown = difference(differing, target_tokens, draft_tokens, ("the target", "the draft"))
    unnamed = (
        " (the bundled one: name yours with --drafter)" if draft.name_or_path == str(reference_path("draft")) else ""
    )
    raise ModelError(
        f"target and draft{unnamed} have different vocabularies ({len(target_ids)} and {len(draft_ids)} tokens, "
        f"{len(differing)} ids differ: {shown}): choose a draft trained with the target's tokenizer"
    )


def difference(ids: Sequence[int], ours: Mapping[int, str], theirs: Mapping[int, str], owners: tuple[str, str]) -> str:
    meanings = [(index, _show(ours.get(index)), _show(theirs.get(index))) for index in ids[:SHOWN]]
    return "; ".join(f"{index} is {one} to {owners[0]}, {other} to {owners[1]}" for index, one, other in meanings)


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def _show(token: str | None) -> str:
    return "nothing" if token is None else repr(token)


def end_tokens(*sources: Any) -> frozenset[int]:
    """Ids that end a text: all that models (in both their configurations), configurations or tokenizers name."""
    end_ids: set[int] = set()
    for source in sources:
        model = getattr(source, "skeleton", None) or getattr(source, "module", source)
        for holder in (source, model, getattr(model, "config", None), getattr(model, "generation_config", None)):
            ids = getattr(holder, "eos_token_id", None)
            listed = [] if ids is None else ids if isinstance(ids, list | tuple | set | frozenset) else [ids]
            if not all(isinstance(token, int) for token in listed):
                raise ModelError(f"eos_token_id must be a token id or a list, not {ids!r}: mend the model's files")
            end_ids.update(listed)
    return frozenset(end_ids)


_INCOMPLETE = "\ufffd"
_CONTEXT = 4  # tokens before a piece: enough for a tokenizer to place its leading space


class IncrementalDecoder:
    """Decodes a growing output piece by piece; the pieces joined are the decoded output, special tokens left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder  # end-of-turn tokens are special here, and often among no named ones
        self._special = frozenset(tokenizer.all_special_ids) | {token for token, each in added.items() if each.special}
        self._before: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        if token in self._special:
            return self.finish()
        self._pending.append(token)
        piece = self._piece()
        return "" if piece.endswith(_INCOMPLETE) else self._flush(piece)

    def finish(self) -> str:
        return self._flush(self._piece()) if self._pending else ""

    def _piece(self) -> str:
        before = self._decode(self._before)
        return self._decode(self._before + self._pending)[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)) if tokens else ""

    def _flush(self, piece: str) -> str:
        self._before = (self._before + self._pending)[-_CONTEXT:]
        self._pending = []
        return piece
