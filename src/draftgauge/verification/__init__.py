"""From logits to committed tokens: the one place where distributions are made, compared and drawn from."""

from draftgauge.verification.acceptance import Verdict, accept, accept_greedy, residual
from draftgauge.verification.sampling import (
    NOT_FINITE,
    Sampling,
    best_tokens,
    check_finite,
    choose,
    draw,
    entropy_bits,
    flip,
    probabilities,
    read_signals,
    signals,
)
