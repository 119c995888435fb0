"""The Chebyshev surrogate: exact for polynomials, honest about its error, refused where the loss has kinks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regraft.diagnose import Objective
from regraft.diagnose.landscape import evaluate, plane, random_directions, surrogate, surrogate_plane
from regraft.errors import DataError
from regraft.network import ArrayPreprocess, from_module


def _smooth(loss: str = "softmax") -> Objective:
    torch.manual_seed(0)
    if loss == "squared":
        module: nn.Module = nn.Linear(4, 3)
    else:
        module = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    generator = torch.Generator().manual_seed(1)
    x, codes = torch.randn(30, 4, generator=generator), torch.randint(0, 3, (30,), generator=generator)
    targets = codes if loss == "softmax" else torch.randn(30, 3, generator=generator)
    network = from_module(module, preprocess=ArrayPreprocess((4,)))
    return Objective(network, x, targets, loss=loss, dtype=torch.float64)  # type: ignore[arg-type]


def _rough() -> Objective:
    """Few units with kinks all over the span."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(1)
    x, codes = 4 * torch.randn(5, 2, generator=generator), torch.randint(0, 3, (5,), generator=generator)
    network = from_module(module, preprocess=ArrayPreprocess((2,)))
    return Objective(network, x, codes, dtype=torch.float64)


def test_polynomials_are_exact() -> None:
    found = _smooth("squared")
    directions = random_directions(found, seed=1)
    made = surrogate(found, directions, span=(2.0, 0.5), sizes=(3,))
    assert made.size == 3
    assert made.relative < 1e-12
    exact = plane(found, directions, span=(2.0, 0.5), points=(7, 6))
    approximate = surrogate_plane(found, directions, span=(2.0, 0.5), points=(7, 6), sizes=(3,))
    torch.testing.assert_close(approximate.losses, exact.losses, rtol=1e-11, atol=1e-12)
    assert (approximate.alphas, approximate.betas) == (exact.alphas, exact.betas)
    assert not approximate.exact
    assert "approximate" in approximate.notes[0]
    assert approximate.points == 9 + 12


def test_the_error_on_points_held_out_holds_on_fresh_points() -> None:
    found = _smooth()
    directions = random_directions(found, seed=2)
    made = surrogate(found, directions, span=0.5, held_out=30)
    assert made.reached
    fresh = torch.rand(400, 2, generator=torch.Generator().manual_seed(77), dtype=torch.float64) - 0.5
    gaps = (made.at(fresh) - evaluate(found, directions.vectors, fresh).losses).abs()
    # A fresh point exceeds the largest of 30 with probability 1/31: 13 of 400 expected; a corner may be worse than all.
    assert int((gaps > made.error).sum()) < 60
    assert float(gaps.max()) < 5 * made.error
    assert float(gaps.max()) < 1e-3 * made.range


def test_it_grows_until_the_tolerance_is_kept() -> None:
    found = _smooth()
    directions = random_directions(found, seed=2)
    made = surrogate(found, directions, span=0.5, sizes=(2, 4, 6, 8), tolerance=1e-4)
    sizes, errors = zip(*made.attempts)
    assert sizes == (2, 4, 6, 8)[: len(sizes)]
    assert len(sizes) > 1
    assert all(error > 1e-4 for error in errors[:-1])
    assert errors[-1] <= 1e-4
    assert list(errors) == sorted(errors, reverse=True)
    assert made.evaluations == 12 + sum(n * n for n in sizes)
    again = [surrogate(found, directions, span=0.5) for _ in range(2)]
    assert torch.equal(again[0].coefficients, again[1].coefficients)
    assert again[0].attempts == again[1].attempts


def test_a_rough_span_is_refused_and_computed_exactly() -> None:
    found = _rough()
    directions = random_directions(found, seed=2)
    made = surrogate(found, directions, span=2.0)
    assert not made.reached
    assert made.relative > 1e-3
    assert len(made.attempts) == 2
    fallen = surrogate_plane(found, directions, span=2.0, points=9)
    exact = plane(found, directions, span=2.0, points=9)
    assert fallen.exact
    assert torch.equal(fallen.losses, exact.losses)
    assert fallen.notes[0].startswith("exact, for the surrogate's error is over")
    assert fallen.points == 81 + 12 + 36 + 64


def test_outside_of_the_span_it_says_nothing() -> None:
    found = _smooth()
    made = surrogate(found, random_directions(found, seed=2), span=(0.5, 0.2), sizes=(4,))
    assert made.at(torch.tensor([[0.5, -0.2]])).shape == (1,)
    with pytest.raises(DataError, match="coordinates of a surrogate"):
        made.at(torch.tensor([[0.5, 0.3]]))


@pytest.mark.parametrize(
    "options", [{"sizes": ()}, {"sizes": (8, 6)}, {"sizes": (1,)}, {"held_out": 0}, {"tolerance": 0.0}]
)
def test_numbers_that_make_no_sense(options: dict[str, object]) -> None:
    found = _smooth()
    with pytest.raises(DataError, match="Chebyshev surrogate"):
        surrogate(found, random_directions(found), **options)  # type: ignore[arg-type]


def test_points_held_out_are_by_the_seed_and_in_the_range() -> None:
    found = _smooth()
    directions = random_directions(found, seed=2)
    one, two, many = (
        surrogate(found, directions, sizes=(2,), tolerance=10.0, seed=seed, held_out=held_out)
        for seed, held_out in ((0, 12), (1, 12), (0, 200))
    )
    assert one.error != two.error
    nodes = one.at(torch.tensor([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)]).double() * 0.5**0.5)
    assert many.range > float(nodes.max() - nodes.min()) + 1e-6  # corners are farther out than nodes
