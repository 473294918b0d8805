"""Tokens to text, one at a time: what a token adds depends on those before it, and a character may span tokens."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

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
        """The text that a token adds; empty for special tokens and while a character is incomplete."""
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
