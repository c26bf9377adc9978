"""Streams of random numbers that depend on their names and on nothing else."""

import numpy as np
import pytest
import torch

from simsplit.seeds import Scope, derive_seed, isolate, numpy_rng_for, rng_for

GOLDEN: list[tuple[int, tuple[Scope, ...], int]] = [
    (0, (), 2631537505891389924),
    (7, ("batches", 3, 1), 1121389905971313509),
    (3, ("ü",), 7132654082943541174),
]


@pytest.mark.parametrize(("seed", "scope", "expected"), GOLDEN)
def test_seeds_stay_what_they_are(seed: int, scope: tuple[Scope, ...], expected: int) -> None:
    """A change here changes every result ever reported."""
    assert derive_seed(seed, *scope) == expected


def test_draws_stay_what_they_are() -> None:
    assert torch.randperm(8, generator=rng_for(0, "golden")).tolist() == TORCH_DRAW
    assert numpy_rng_for(0, "golden").integers(0, 100, 4).tolist() == NUMPY_DRAW


TORCH_DRAW = [6, 5, 7, 3, 4, 1, 0, 2]
NUMPY_DRAW = [22, 88, 21, 38]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        (("a", 1), ("a", "1")),
        ((1, 23), (12, 3)),
        (("a",), ("a", "")),
        (("a', 'b",), ("a", "b")),
        (("a", 1, 2), ("a", 2, 1)),
    ],
)
def test_scopes_do_not_run_together(one: tuple[Scope, ...], other: tuple[Scope, ...]) -> None:
    assert derive_seed(0, *one) != derive_seed(0, *other)


def test_the_seed_is_no_part_of_the_scope() -> None:
    assert derive_seed(1, 2) != derive_seed(2, 1)
    assert derive_seed(12) != derive_seed(1, 2)


def test_seeds_fit_torch_and_numpy() -> None:
    seeds = [derive_seed(0, number) for number in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # all 63 bits are used


def test_every_call_starts_the_stream_anew() -> None:
    first, second = rng_for(1, "x"), rng_for(1, "x")
    assert torch.equal(torch.rand(3, generator=first), torch.rand(3, generator=second))
    assert np.array_equal(numpy_rng_for(1, "x").random(3), numpy_rng_for(1, "x").random(3))


def draw(seed: int) -> torch.Tensor:
    with isolate(seed, "layer"):
        return torch.rand(4)


def test_isolated_lends_a_stream_by_name_and_puts_the_global_one_back() -> None:
    before = torch.get_rng_state()
    first = draw(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert torch.equal(draw(0), first)
    assert not torch.equal(draw(1), first)
    assert torch.equal(first, torch.rand(4, generator=rng_for(0, "layer")))


def test_isolated_puts_it_back_after_an_error_too() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="inside"), isolate(0, "layer"):
        raise ValueError(f"inside, {torch.rand(1).shape}")
    assert torch.equal(torch.get_rng_state(), before)


def test_isolated_within_isolated() -> None:
    with isolate(0, "outer"):
        first = torch.rand(1)
        with isolate(0, "inner"):
            torch.rand(5)
        second = torch.rand(1)
    with isolate(0, "outer"):
        assert torch.equal(torch.cat([first, second]), torch.rand(2))
