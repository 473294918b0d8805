from __future__ import annotations

import numpy as np

from draftgauge.core.seeds import derive_seed, generator


def test_seeds_are_stable_across_machines_and_versions() -> None:
    assert derive_seed(0, "sampling", 3) == 7647349564685587958
    raw = generator(0, "sampling", 3).bit_generator.random_raw(2)
    assert raw.tolist() == [5213028571123363650, 13689928214223965703]


def test_labels_separate() -> None:
    paths = [(0,), (1,), (0, "a"), (0, "a", 1), (0, "a", "1"), (0, "a1"), (0, "b")]
    assert len({derive_seed(*path) for path in paths}) == len(paths)


def test_fits_a_signed_64_bit_integer() -> None:
    seeds = [derive_seed(n) for n in range(200)]
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


def test_same_labels_same_numbers() -> None:
    np.testing.assert_array_equal(generator(5, "x").random(10), generator(5, "x").random(10))
