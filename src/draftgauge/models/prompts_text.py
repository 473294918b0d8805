"""From a prompt, plain or a conversation, to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import PromptError
from draftgauge.core.prompts import Prompt

Message = Mapping[str, str]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Message], chat: bool = False) -> list[int]:
    """Token ids of a prompt.

    A conversation goes through the tokenizer's chat template, opened for the assistant's answer; where there is none,
    its contents are joined by blank lines. Plain text is taken as it is, with the special tokens that the tokenizer
    itself adds.

    Args:
        tokenizer: of the target.
        prompt: text, or messages with ``role`` and ``content``.
        chat: treat plain text as a user's message.

    Raises:
        PromptError: if the prompt is empty, or the template refuses it.
    """
    if isinstance(prompt, str) and chat:
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    elif tokenizer.chat_template is None:
        ids = tokenizer("\n\n".join(message["content"] for message in prompt))["input_ids"]
    else:
        ids = tokenizer(render(tokenizer, prompt), add_special_tokens=False)["input_ids"]
    if not ids:
        raise PromptError("the prompt is empty: it gives no token to start from")
    return list(ids)


def encode_prompts(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, longest: int
) -> list[tuple[str, list[int]]]:
    """Task and token ids of each prompt; one longer than ``longest`` keeps its end."""
    return [(prompt.task, encode_with(tokenizer, prompt)[-longest:]) for prompt in prompts]


def encode_with(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Token ids of a prompt of a file, conversations through the chat template."""
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    return encode_prompt(tokenizer, messages or prompt.text)


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    """A conversation as text, ready for the assistant's answer."""
    try:
        return str(
            tokenizer.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True, tokenize=False)
        )
    except TemplateError as error:
        raise PromptError(f"the tokenizer's chat template refuses these messages: {error}") from error
