"""Cost curves without a machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draftgauge.traces.costs import CostCurve


def build(verify: np.ndarray, draft: np.ndarray, plain: np.ndarray, contexts: tuple[int, ...]) -> CostCurve:
    """Tables ``[C, G + 1]``."""
    v, d = (tuple(tuple(row) for row in table.tolist()) for table in (verify, draft))
    return CostCurve(contexts, v, d, tuple(plain.tolist()), "uncompressed", "cpu", "float32")


def linear_costs(gamma_max: int, t_draft: float = 0.002) -> CostCurve:
    """Verifying costs 10 ms, 0.5 ms a token more, drafting ``t_draft`` a token; 10% more at a context of 500."""
    gamma = np.arange(gamma_max + 1)
    scale = np.array([[1.0], [1.1]])
    return build(scale * (0.01 + 0.0005 * gamma), scale * t_draft * gamma, 0.0095 * scale[:, 0], (0, 500))


def random_costs(seed: int, gamma_max: int) -> CostCurve:
    """Costs without any order: a longer draft may be cheaper than a shorter one, catching up may too."""
    rng = np.random.default_rng(seed)
    verify, draft = rng.uniform(0.1, 1.0, (2, 3, gamma_max + 1))
    draft[:, 0] = 0.0
    costs = build(verify, draft, rng.uniform(0.1, 1.0, 3), (1, 150, 300))
    catch_up = (0.0, *rng.uniform(0.0, 0.5, int(rng.integers(0, 4))).tolist())
    costs = replace(costs, catch_up=catch_up, keeps_drafted=bool(rng.integers(2)))
    return replace(costs, rollback=tuple(rng.uniform(0.0, 0.5, int(rng.integers(0, 3))).tolist()))
