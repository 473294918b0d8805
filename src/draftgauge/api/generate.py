"""One output, with or without speculation, streamed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftgauge.api.pair import Pair
from draftgauge.core.errors import PromptError
from draftgauge.core.prompts import Message, Prompt
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.results import Generation, Origin
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.models.detokenize import IncrementalDecoder
from draftgauge.policies.registry import make_policy
from draftgauge.verification import Sampling

OnText = Callable[[str, str], None]
DEFAULT_GAMMA_MAX = 16


def generate(
    pair: Pair,
    prompt: str | list[int],
    policy: str | None = "fixed:4",
    *,
    chat: bool | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: tuple[str, ...] = (),
    seed: int = 0,
    gamma_max: int = DEFAULT_GAMMA_MAX,
    on_text: OnText | None = None,
) -> tuple[str, Generation]:
    """Decode one prompt and return the text and how it came about.

    The output is that of plain decoding: the same tokens when greedy, the same distribution when sampled.

    Args:
        pair: see :func:`draftgauge.api.pair.load_pair`.
        prompt: text, or token ids taken as they are.
        policy: how far to draft; None decodes plainly.
        chat: put the text through the chat template as a user's message; where there is one if None.
        max_new_tokens: limit of the output.
        temperature, top_k, top_p: 0 decodes greedily; 0 and 1.0 switch the latter two off.
        stop: texts that end the output.
        seed: of the sampling.
        gamma_max: the longest draft a policy may ask for.
        on_text: told each new piece of text and how it came: accepted, corrected, bonus or plain.

    Raises:
        DraftgaugeError: for unknown policies, prompts that are empty or too long, settings out of range.
    """
    device = pair.target.spec.device
    sampling = Sampling(temperature, top_k, top_p)
    generator = None if sampling.greedy else torch.Generator(device).manual_seed(seed)
    settings = DecodingSettings(max_new_tokens, sampling, pair.end_tokens, stop)
    tokens = prompt if isinstance(prompt, list) else _encode(pair, prompt, chat)
    stream = TokenStream(pair, on_text) if on_text is not None else None
    detokenize = pair.tokenizer.decode if stop else None
    if policy is None:
        result = plain_decode(pair.target, tokens, settings, generator, stream, detokenize)
    else:
        drafter = pair.drafter(sampling, generator)
        chosen = make_policy(policy, gamma_max)
        result = speculative_decode(pair.target, drafter, chosen, tokens, settings, generator, stream, detokenize)
    if stream is not None:
        stream.finish()
    return pair.tokenizer.decode(result.tokens, skip_special_tokens=True), result


def _encode(pair: Pair, text: str, chat: bool | None) -> list[int]:
    if not text.strip():
        raise PromptError("the prompt is empty: give it some text")
    as_chat = pair.tokenizer.chat_template is not None if chat is None else chat
    if as_chat:
        return pair.encode(Prompt(0, "0", "chat", "", messages=(Message("user", text),)))
    return pair.encode(Prompt(0, "0", "text", "", text=text))


class TokenStream:
    """Hands out committed tokens as text, each piece with how its last token came."""

    def __init__(self, pair: Pair, on_text: OnText) -> None:
        self._pieces = IncrementalDecoder(pair.tokenizer)
        self._on_text = on_text
        self._origin = "plain"

    def __call__(self, tokens: list[int], origins: list[Origin]) -> None:
        for token, self._origin in zip(tokens, origins, strict=True):
            piece = self._pieces.push(token)
            if piece:
                self._on_text(piece, self._origin)

    def finish(self) -> None:
        """Give out what is left of an incomplete character."""
        piece = self._pieces.finish()
        if piece:
            self._on_text(piece, self._origin)
