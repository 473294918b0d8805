"""Greedy answers of a target to many prompts at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from draftgauge.models.device import free_bytes
from draftgauge.models.spec import attention_kernels, cache_argument, cached_numbers
from draftgauge.verification import best_tokens, check_finite

GROUP_TOKENS = 24_576  # prompt and answer tokens held in one group's cache; on a GPU more, as far as memory goes
TOTAL_SHARE = 16  # of a GPU's memory, the part that is one group's cache: the same card gives the same answers again
FREE_SHARE = 8  # of its free memory, the most that a cache may be, else it is halved: leaving and growing copy it
DROP_SHARE = 8  # answered rows leave the group when they are an eighth of it: leaving copies the cache


def groups(lengths: Sequence[int], new_tokens: int, most: int) -> Iterator[list[int]]:
    """Groups of texts of similar length, by index, longest first: as many as have ``most`` tokens, ``new_tokens`` of
    each and padding included."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        count = max(1, most // (lengths[order[start]] + new_tokens))
        yield order[start : start + count]
        start += count


def group_tokens(module: PreTrainedModel) -> int:
    """How many tokens of prompts and answers go together on the module's device."""
    if module.device.type != "cuda":
        return GROUP_TOKENS
    token = cached_numbers(module.config.get_text_config()) * module.dtype.itemsize
    cache = torch.cuda.mem_get_info(module.device)[1] // TOTAL_SHARE
    while cache > (free_bytes(module.device) or 0) // FREE_SHARE:
        cache //= 2
    return max(GROUP_TOKENS, cache // token)


@torch.inference_mode()
def greedy_answers(
    module: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int, end_tokens: Collection[int]
) -> list[list[int]]:
    """The target's greedy answers, end token included where it was reached."""
    rows = [torch.tensor(list(prompt)) for prompt in prompts]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    tokens, mask = padded(rows).to(module.device), padded([torch.ones_like(row) for row in rows]).to(module.device)
    cache = DynamicCache(config=module.config)
    answers: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    head = module.get_output_embeddings()
    for _ in range(new_tokens):
        # Of states that are a slice torch multiplies each row by a copy of the head of its own: 29 GB for 63 prompts.
        with attention_kernels(module.device), head.register_forward_pre_hook(lambda _, of: (of[0].contiguous(),)):
            output = module(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **cache_argument(module, cache),
            )
        chosen = best_tokens(output.logits[:, -1])
        check_finite(read := chosen.tolist(), f"target ({module.dtype})")
        for row, token in zip(live, read, strict=True):
            if not answers[row] or answers[row][-1] not in end_tokens:
                answers[row].append(token)
        going = [n for n, row in enumerate(live) if answers[row][-1] not in end_tokens]
        if not going:
            break
        tokens, positions = chosen[:, None], positions[:, -1:] + 1
        mask = torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
        if (len(live) - len(going)) * DROP_SHARE >= len(live):
            kept = torch.tensor(going, device=module.device)
            cache.batch_select_indices(kept)
            tokens, positions, mask = tokens[kept], positions[kept], mask[kept]
            live = [live[n] for n in going]
    return answers
