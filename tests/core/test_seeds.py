from __future__ import annotations

from draftgauge.core.parts import derive_seed, generator


def test_seeds_are_stable_across_machines_and_versions() -> None:
    assert derive_seed(0, "sampling", 3) == 7647349564685587958
    raw = generator(0, "sampling", 3).bit_generator.random_raw(2)
    assert raw.tolist() == [5213028571123363650, 13689928214223965703]


def test_labels_separate() -> None:
    paths = [(0,), (1,), (0, "a"), (0, "a", 1), (0, "a", "1"), (0, "a1"), (0, "b")]
    assert len({derive_seed(*path) for path in paths}) == len(paths)
