"""The H-score: how much of the features' variance, each direction weighed alike, lies between the classes."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Estimate, Resamples, estimated
from regraft.diagnose.transfer.labels import Labels
from regraft.errors import DataError

__all__ = ["h_score", "shrinkage", "shrunk_h_score"]

_STEP = 1e-4  # of the ridge, for its derivative


def h_score(
    decomposition: Decomposition, labels: Labels, resamples: Resamples, distinct: int | None = None
) -> Estimate:
    """H = tr(cov(f)⁺ cov(E[f|y])), Bao et al. (2019), "An information-theoretic approach to transferability"; ⁺ is the
    pseudo-inverse.

    Larger is better; between 0 and min(C − 1, rank). It does not change under any invertible linear map of the
    features. As the number of features nears that of rows it nears C − 1 whatever the labels are, and with D ≥ N − 1
    features in general position it *is* C − 1: use :func:`shrunk_h_score` there. N there counts the ``distinct`` rows
    (all, if ``None``), equal ones of a group as one. O(N r C).

    Raises:
        DataError: labels that are numbers, or features of rank N − 1.
    """
    began = time.process_time()
    most = labels.outputs - 1
    labels.classes("the H-score")
    distinct = labels.rows if distinct is None else distinct
    if len(decomposition.s) >= distinct - 1:
        raise DataError(
            "the H-score",
            expected=f"features of a rank below {distinct - 1}",
            got=f"rank {len(decomposition.s)} on {distinct}{' distinct' * (distinct < labels.rows)} rows, where it is "
            f"{most} whatever the labels are",
            do="take h-score-shrunk",
        )
    value, influence = _between(decomposition, labels, 0.0)
    meaning = f"Variance between classes over variance, summed over directions: from 0 to {most}."
    return estimated("h-score", value, influence, resamples, meaning, began, decomposition.seconds, (0.0, most))


def shrunk_h_score(decomposition: Decomposition, labels: Labels, resamples: Resamples) -> Estimate:
    """H_α = (1 − α) tr(Σ_α⁻¹ cov(E[f|y])) with Σ_α = (1 − α) cov(f) + α σ I and σ = tr cov(f) / D.

    Ibrahim, Ponomareva & Mazumder (2022), "Newer is not always better"; α is that of Ledoit & Wolf (2004), see
    :func:`shrinkage`. Larger is better; between 0 and C − 1. It does not change when the features are moved, rotated
    or all multiplied by one number. What a row does to α is part of the interval. O(N r C + N D²).

    Raises:
        DataError: labels that are numbers, or α = 1.
    """
    began = time.process_time()
    labels.classes("the H-score")
    alpha, sigma = shrinkage(decomposition)
    if alpha >= 1:
        raise DataError(
            "the shrunk H-score",
            expected="features whose covariance is no multiple of the identity but for chance",
            got=f"{labels.rows} rows, by which it is shrunk wholly (α = 1): the score is 0 whatever the labels are",
            do="bring more rows, or take loo-accuracy",
        )
    ridge = labels.rows * alpha * sigma / (1 - alpha)
    value, influence = _between(decomposition, labels, ridge)
    if ridge > 0:
        steps = [_between(decomposition, labels, ridge * (1 + step))[0] for step in (-_STEP, _STEP)]
        influence = influence + (steps[1] - steps[0]) / (2 * _STEP) * _of_ridge(decomposition, alpha)
    meaning = (
        f"Variance between classes over variance, summed over directions, covariances shrunk by {alpha:.2g}: from 0 to "
        f"{labels.outputs - 1}."
    )
    within = (0.0, labels.outputs - 1.0)
    return estimated("h-score-shrunk", value, influence, resamples, meaning, began, decomposition.seconds, within)


def shrinkage(decomposition: Decomposition) -> tuple[float, float]:
    """(α, σ) of Ledoit & Wolf (2004, "A well-conditioned estimator for large-dimensional covariance matrices").

    With S = cov(f), rows x_i about their mean and σ = tr S / D:
    α = min(1, b²/d²), d² = ‖S − σI‖²_F, b² = (1/N²) Σ_i ‖x_i x_iᵀ − S‖²_F; 0 of a single feature, where S is σI.
    """
    width = decomposition.width
    if width == 1:
        return 0.0, float(decomposition.centred.square().mean())  # S is σI, whatever α is
    found = _Moments(decomposition)
    return (min(1.0, found.near / found.far) if found.far > 1e-12 * found.square else 1.0), found.sigma


class _Moments:
    """Of the rows divided by √σ, so that fourth powers stay in range: S, ‖S‖²_F, ‖x_i‖², and b² and d² of α."""

    def __init__(self, decomposition: Decomposition) -> None:
        rows, width = decomposition.centred, decomposition.width
        n = len(rows)
        self.sigma = float(rows.square().sum()) / n / width
        self.rows = rows / self.sigma**0.5
        self.inner = self.rows.T @ self.rows / n
        self.square = float(self.inner.square().sum())
        self.sizes = self.rows.square().sum(1)
        self.fourth = float(self.sizes.square().sum()) / n
        self.far, self.near = self.square - width, (self.fourth - self.square) / n


def _of_ridge(decomposition: Decomposition, alpha: float) -> Tensor:
    """What each row adds to log λ of the ridge λ = N α σ / (1 − α), to first order.

    A row x_i moves σ by (‖x_i‖²/D − σ)/N, ‖S‖²_F by 2(x_iᵀSx_i − ‖S‖²_F)/N, and the mean m of ‖x‖⁴, which is in
    b² = (m − ‖S‖²_F)/N, by (‖x_i‖⁴ − m − 4 x_iᵀ v)/N with v the mean of ‖x‖²x, for the rows' own mean moves too.
    """
    found, width, n = _Moments(decomposition), decomposition.width, len(decomposition.centred)
    rows, sizes, far = found.rows, found.sizes, found.far
    of_sigma = sizes / width - 1
    of_square = 2 * ((rows @ found.inner * rows).sum(1) - found.square)
    of_fourth = sizes.square() - found.fourth - 4 * rows @ (sizes @ rows / n)
    of_alpha = (of_fourth - of_square) / n / far - found.near / far**2 * (of_square - 2 * width * of_sigma)
    return (of_alpha / (alpha * (1 - alpha)) + of_sigma) / n


def _between(decomposition: Decomposition, labels: Labels, ridge: float) -> tuple[float, Tensor]:
    """tr(A⁻¹ S_b) and what it owes to each row; A = S + λI, S the scatter, S_b = Σ_c n_c d_c d_cᵀ, d_c = μ_c − μ.

    With G_ic = (x_i − μ)ᵀ A⁻¹ d_c, which are fitted values of class indicators, and g_c = d_cᵀ A⁻¹ d_c, the mean of
    G_ic over class c, the value is Σ_c n_c g_c. Without row i of class c, S loses γ x̃x̃ᵀ, x̃ = x_i − μ, γ = N/(N − 1),
    and the scatter within classes γ_c (x̃ − d_c)(x̃ − d_c)ᵀ, γ_c = n_c/(n_c − 1): with ℓ = x̃ᵀA⁻¹x̃ what is left follows
    from the formula of Sherman and Morrison,

        H − γℓ + γ_c(ℓ − 2G_ic + g_c) + γ/(1 − γℓ) (Σ_k n_k G_ik² − γℓ² + γ_c(ℓ − G_ic)²).
    """
    codes, counts, rows = labels.classes("the H-score"), labels.counts, labels.rows
    indicators = labels.values / counts
    fitted = indicators - indicators.mean(0) - decomposition.residuals(ridge, indicators)
    inner = (labels.values * fitted).sum(0) / counts
    value = float(counts @ inner)
    own, size = fitted.gather(1, codes[:, None])[:, 0], counts[codes]
    all_rows, of_class = rows / (rows - 1), torch.where(size > 1, size / (size - 1), 0.0)
    leverage = 1 - 1 / rows - decomposition.residual_diagonal(ridge)
    left = 1 - all_rows * leverage
    inside = fitted.square() @ counts - all_rows * leverage.square() + of_class * (leverage - own).square()
    # a row that alone fills a direction: without it neither scatter has one there, and 0/0 stands for 0
    turned = torch.where(left > 1e-9, all_rows * inside / left, 0.0)
    change = of_class * (leverage - 2 * own + inner[codes]) - all_rows * leverage + turned
    return value, -change * (rows - 1) / rows
