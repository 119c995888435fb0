"""Kernels without a level of their own, against the textbook's posterior with a vague constant."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regraft.graft.posterior.contrasts import Contrasts
from regraft.graft.posterior.fit import Solved
from regraft.heads.gp.levels import Levels


def kernel(rows: int, new: int = 5) -> torch.Tensor:
    """Of rows and new ones, with a common part that is ten times as large as what tells them apart."""
    x = torch.randn(rows + new, 9, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    return (x + 3) @ (x + 3).T


@pytest.mark.parametrize("rows", [2, 3, 17])
def test_contrasts_are_an_orthonormal_basis_of_what_sums_to_zero(rows: int) -> None:
    contrasts = Contrasts(kernel(rows, 0))
    basis = contrasts.back(torch.eye(rows - 1, dtype=torch.float64))
    torch.testing.assert_close(basis.T @ basis, torch.eye(rows - 1, dtype=torch.float64))
    torch.testing.assert_close(basis.sum(0), torch.zeros(rows - 1, dtype=torch.float64))
    torch.testing.assert_close(contrasts.gram, basis.T @ contrasts.kernel @ basis)
    values = torch.randn(rows, 2, dtype=torch.float64)
    torch.testing.assert_close(contrasts.of(values), basis.T @ values)


def textbook(own: Tensor, cross: Tensor, held: Tensor, y: Tensor, scale: float, noise: float) -> tuple[Tensor, Tensor]:
    """Mean and variance (M,) of Rasmussen & Williams (2006), Eqs. 2.41 and 2.42 with the basis function 1 and no prior
    on its coefficient."""
    inverse = torch.linalg.inv(scale * own + noise * torch.eye(len(own), dtype=torch.float64))
    across, ones = scale * cross, torch.ones(len(own), dtype=torch.float64)
    level = (ones @ inverse @ y) / (ones @ inverse @ ones)
    rest = 1 - across @ inverse @ ones
    left = scale * held - ((across @ inverse) * across).sum(1) + rest.square() / (ones @ inverse @ ones)
    return level + across @ inverse @ (y - level), left


def averaged(own: Tensor, cross: Tensor, held: Tensor, y: Tensor, levels: Levels) -> tuple[Tensor, Tensor]:
    """The same of a mixture of scales and noises: its mean, and its variance with the t's heavier tails."""
    each = [textbook(own, cross, held, y, *pair) for pair in zip(levels.scale.tolist(), levels.noise.tolist())]
    means, variances = (torch.stack(part) for part in zip(*each))
    mean = levels.weights @ means
    return mean, levels.widening * (levels.weights @ (variances + (means - mean).square()))


@pytest.mark.parametrize("rows", [2, 5, 30])
@pytest.mark.parametrize("together", [True, False])
def test_the_posterior_is_that_of_a_level_with_a_vague_prior(rows: int, together: bool) -> None:
    whole = kernel(rows)
    own, cross, held = whole[:rows, :rows], whole[rows:, :rows], whole[rows:, rows:].diagonal()
    generator = torch.Generator().manual_seed(1)
    targets = torch.randn(rows, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 30.0]) + 5
    solved = Solved.of(Contrasts(own), targets, "marginal", together)
    assert len(solved.chosen) == (1 if together else 2)
    assert all(len(levels.weights) == 1 if together else len(levels.weights) > 50 for levels in solved.levels)
    mean, variance = solved.mean(cross), solved.variance(cross, held, rows)
    for column, levels in enumerate(solved.levels):
        y = targets[:, column]
        expected, left = averaged(own, cross, held, y, levels)
        torch.testing.assert_close(mean[:, column], expected, rtol=1e-5, atol=1e-5 * float(y.abs().max()))
        rounded = 1e-6 * levels.widening * levels.mean_scale * float(held.max())
        torch.testing.assert_close(variance[:, column], left, rtol=1e-4, atol=rounded)


def test_numbers_chosen_by_rows_left_out_have_the_best_scale_alone() -> None:
    own, targets = kernel(12, 0), torch.randn(12, 2, dtype=torch.float64)
    for by, together in (("loo", False), ("marginal", True)):
        solved = Solved.of(Contrasts(own), targets, by, together)
        for levels, chosen in zip(solved.levels, solved.chosen * 2):
            assert (levels.mean_scale, levels.mean_noise, levels.widening) == (chosen.scale, chosen.noise, 1.0)
    best = Solved.of(Contrasts(own), targets, "marginal", False).best
    assert [levels.mean_noise for levels in best.levels] == [chosen.noise for chosen in best.chosen]


def test_the_marginal_likelihood_does_not_follow_the_order_of_rows_and_contrasts_left_out_do() -> None:
    own, y = kernel(30, 1), torch.randn(30, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    y[0] += 6
    found = {}
    for by in ("marginal", "loo"):
        for order in (torch.arange(30), torch.arange(30).flip(0)):
            solved = Solved.of(Contrasts(own[order][:, order]), y[order], by, together=True)
            found.setdefault(by, []).append((solved.chosen[0].scale, solved.chosen[0].noise))
    assert found["marginal"][0] == pytest.approx(found["marginal"][1], rel=1e-3)
    assert found["loo"][0] != pytest.approx(found["loo"][1], rel=1e-2)


def test_of_pure_noise_the_spread_is_the_unbiased_one() -> None:
    """Restricted likelihood divides by n − 1; the level leaves σ²/n open beside it."""
    targets = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)
    solved = Solved.of(Contrasts(torch.zeros(3, 3, dtype=torch.float64)), targets, "marginal", True)
    assert solved.levels[0].mean_noise == pytest.approx(float(targets.var()))
    cross = torch.zeros(1, 3, dtype=torch.float64)
    assert float(solved.mean(cross)) == pytest.approx(5 / 3)
    assert float(solved.variance(cross, cross[:, 0], 3)) == pytest.approx(float(targets.var()) / 3)


def test_one_row_is_its_own_level() -> None:
    solved = Solved.of(
        Contrasts(torch.ones(1, 1, dtype=torch.float64)), torch.full((1, 1), 2.0).double(), "marginal", True
    )
    cross = torch.ones(1, 1, dtype=torch.float64)
    assert float(solved.mean(cross)) == 2.0
    assert math.isfinite(float(solved.variance(cross, cross[:, 0], 3)))
