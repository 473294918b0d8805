"""From logits to committed tokens: the one place where distributions are made, compared and drawn from."""

from draftgauge.verification.acceptance import Verdict, accept, accept_greedy, residual
from draftgauge.verification.sampling import Sampling, choose, draw, flip, probabilities
from draftgauge.verification.signals import confidences, entropy_bits, signals

__all__ = [
    "Sampling",
    "Verdict",
    "accept",
    "accept_greedy",
    "choose",
    "confidences",
    "draw",
    "entropy_bits",
    "flip",
    "probabilities",
    "residual",
    "signals",
]
