"""Questions answered by the target itself: the text on which its drafts are asked to agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from draftgauge.models.spec import no_bars
from recipes.reference_pair.data import Messages
from recipes.reference_pair.tokenizer import END


@torch.inference_mode()
def answers(
    target: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Messages],
    new_tokens: int = 220,
    batch: int = 96,
) -> list[str]:
    """Questions with the target's greedy answers, rendered by the chat template and closed by the end-of-text token.

    Args:
        target: the trained target.
        tokenizer: of the pair.
        questions: conversations as ``(role, content)``.
        new_tokens: longest answer.
        batch: questions answered together; similar lengths are grouped, which saves padding.
    """
    rendered = [
        tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in q], tokenize=False, add_generation_prompt=True
        )
        for q in questions
    ]
    rendered.sort(key=len)
    texts: list[str] = []
    for start in range(0, len(rendered), batch):
        part = rendered[start : start + batch]
        encoded = tokenizer(part, return_tensors="pt", padding=True, padding_side="left").to(target.device)
        output = target.generate(
            input_ids=encoded.input_ids,
            attention_mask=encoded.attention_mask,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        for prompt, row in zip(part, output[:, encoded.input_ids.shape[1] :].tolist(), strict=True):
            ended = tokenizer.eos_token_id in row
            row = row[: row.index(tokenizer.eos_token_id)] if ended else row
            texts.append(prompt + tokenizer.decode(row, skip_special_tokens=False) + END)
    return texts


def answers_of(folder: Path, questions: Sequence[Messages], device: str, workers: int = 1) -> list[str]:
    """:func:`answers` of a saved target; for a process of its own that shares the cores with other ``workers``."""
    if workers > 1:
        torch.set_num_threads(1)
    with no_bars():
        target = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return answers(target, PreTrainedTokenizerFast.from_pretrained(folder), questions)
