"""What a policy reads of a distribution, by every set of signals that it may declare."""

from itertools import chain, combinations

import pytest
import torch

from draftgauge.core.signals import OF_DRAFTED_TOKENS, SignalName
from draftgauge.verification.sampling import read_signals, signals

IN_ORDER = (SignalName.CONFIDENCE, SignalName.ENTROPY, SignalName.MARGIN)
SETS = [frozenset(names) for names in chain(*(combinations(sorted(OF_DRAFTED_TOKENS), n) for n in range(5)))]


@pytest.mark.parametrize("reads", SETS, ids=lambda reads: "-".join(sorted(reads)) or "none")
def test_only_what_is_read_is_there_and_it_is_right(reads: frozenset[SignalName]):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    tokens = logits.argmax(-1)
    expected = [
        (*(value if name in reads else float("nan") for name, value in zip(IN_ORDER, shown, strict=True)), token)
        for *shown, token in zip(*(column.tolist() for column in signals(logits)), tokens.tolist(), strict=True)
    ]
    rows = read_signals(logits, tokens, reads)
    assert [pytest.approx(row, nan_ok=True, rel=1e-6) for row in expected] == rows
