"""The n-gram index finds what a search of the whole text finds."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.drafters.prompt_lookup import PromptLookupDrafter
from draftgauge.policies.lookup import TextLookup
from draftgauge.policies.ngrams import LEAST, LONGEST


def search(text: list[int], limit: int) -> list[int]:
    """The definition: the tokens after the first earlier occurrence of the longest n-gram that ends the text."""
    for n in range(LONGEST, LEAST - 1, -1):
        for end in range(n, len(text)):
            if text[end - n : end] == text[len(text) - n :]:
                return text[end : end + limit]
    return []


@settings(max_examples=100, deadline=None)
@given(
    chunks=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8),
    limit=st.integers(0, 6),
)
def test_drafter_and_policy_find_what_a_search_finds(chunks, limit):
    drafter, policy = PromptLookupDrafter(), TextLookup(LEAST, 6)
    drafter.prefill(chunks[0])
    policy.read(chunks[0])
    text = list(chunks[0])
    for chunk in chunks[1:]:
        assert drafter.propose(limit, None).tokens == policy.extend(limit) == search(text, limit)
        drafter.commit(0, chunk)
        policy.observe(SimpleNamespace(tokens=chunk))
        text += chunk
    assert drafter.propose(limit, None).tokens == search(text, limit)


def test_as_transformers_looks_up():
    import torch
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    text = torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    theirs = PromptLookupCandidateGenerator(num_output_tokens=5, max_matching_ngram_size=3, max_length=99, vocab_size=4)
    for length in range(2, len(text)):
        candidates, _ = theirs.get_candidates(torch.tensor([text[:length]]))
        drafter = PromptLookupDrafter(least=1, longest=3)
        drafter.prefill(text[:length])
        assert drafter.propose(5, None).tokens == candidates[0, length:].tolist()


def test_a_new_prompt_forgets_the_old_one_and_a_draft_ends_with_an_end_token():
    drafter = PromptLookupDrafter()
    drafter.prefill([1, 2, 3, 4, 1, 2])
    assert drafter.propose(2, None).tokens == [3, 4]
    drafter.prefill([1, 2])
    assert drafter.propose(2, None).tokens == []
    drafter = PromptLookupDrafter(end_tokens=frozenset({3}))
    drafter.prefill([1, 2, 3, 1])
    drafter.commit(0, [2])
    assert drafter.propose(5, None).tokens == [3]
