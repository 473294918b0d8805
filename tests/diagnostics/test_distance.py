"""Needed context against its definition, and counts by it against the counts as a whole."""

from __future__ import annotations

import numpy as np
import torch

from draftgauge.diagnostics.alpha import accepted_lengths, agreement, depth_counts, labelled_depths
from draftgauge.diagnostics.distance import counts_by_distance, distance_names, needed_context
from reuse_nets import net_for, target, texts

WINDOWS = (2, 5)


def test_needed_context_is_the_first_window_that_gives_the_token() -> None:
    model = target()
    held_out = texts(model)
    found = needed_context(model.module, held_out, WINDOWS, batch_tokens=32)
    for text, classes in zip(held_out, found, strict=True):
        for place, needed in enumerate(classes.tolist()):
            end = len(text.prompt) + place
            expected = len(WINDOWS)
            for index, window in enumerate(WINDOWS):
                context = torch.tensor([text.tokens[max(0, end - window) : end]])
                if int(model.module(context).logits[0, -1].argmax()) == text.output[place]:
                    expected = index
                    break
            assert needed == expected
    assert len(np.unique(np.concatenate(found))) > 1


def test_counts_of_all_distances_add_up() -> None:
    model = target()
    net, held_out = net_for(model, "kv"), texts(model)
    classes = needed_context(model.module, held_out, WINDOWS)
    found = map(accepted_lengths, agreement(net, model.module, held_out, 4))
    for text, lengths, needs in zip(held_out, found, classes, strict=True):
        known = labelled_depths(text, 4)
        by_distance = counts_by_distance(lengths, known, needs, len(WINDOWS) + 1, 4)
        for part, whole in zip(by_distance, depth_counts(lengths, known, 4), strict=True):
            assert part.sum(0).tolist() == whole.tolist()


def test_a_draft_counts_where_its_token_belongs() -> None:
    # one draft from position 1, two tokens accepted: the tokens at 1 and 2 are of class 0, the rejected one at 3 of
    # class 1
    accepted, known = np.array([0, 2, 0, 0]), np.array([0, 3, 0, 0])
    reached, right = counts_by_distance(accepted, known, np.array([1, 0, 0, 1]), 2, 3)
    assert reached.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert right.tolist() == [[1, 1, 0], [0, 0, 0]]


def test_names() -> None:
    assert distance_names((4, 16)) == ["1-4", "5-16", ">16"]
