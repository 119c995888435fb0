"""TransRate: what the classes save when the features are coded at a given distortion."""

from __future__ import annotations

import time

import torch
from scipy.linalg import svd
from torch import Tensor

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Estimate, Resamples, estimated
from regraft.diagnose.transfer.labels import Labels
from regraft.errors import DataError
from regraft.linear.products import one_blas_thread

__all__ = ["transrate"]


@one_blas_thread()
def transrate(
    decomposition: Decomposition,
    labels: Labels,
    resamples: Resamples,
    *,
    distortion: float = 1e-4,
    scaled: bool = True,
) -> Estimate:
    """TrR = R(Z, ε) − Σ_c (n_c/N) R(Z_c, ε), R(Z, ε) = ½ log det(I + ZᵀZ / (n ε)); Huang et al. (2022).

    Z are the N rows about their common mean, Z_c those of class c (about the same mean), n the rows of the argument.
    Larger is better; any number, above 0 but for classes that fill different spaces. The listing in the paper averages
    over classes with weights 1/C, which is the same where classes are balanced. It depends on the features' scale;
    here (``scaled``) they are first divided by the root of their total variance tr(ZᵀZ)/N, so that ε is the share of
    it that the code may lose. O(Σ_c n_c r min(n_c, r)).

    Args:
        decomposition: of the features.
        labels: classes.
        resamples: of the rows.
        distortion: ε, above 0.
        scaled: whether the features are scaled.

    Raises:
        DataError: labels that are numbers, or ε not above 0.
    """
    began = time.process_time()
    codes = labels.classes("TransRate")
    if not distortion > 0:
        raise DataError("the distortion of TransRate", expected="a number above 0", got=f"{distortion}")
    z, rows, counts = decomposition.centred, decomposition.rows, labels.counts
    norms = z.square().sum(1)
    total = float(norms.sum())
    level = distortion * (total / rows if scaled else 1.0)
    # ∂ log ε'/∂w_i of ε' = ε tr(ZᵀZ)/Σw
    of_level = norms / total - 1 / rows if scaled else torch.zeros(rows, dtype=torch.float64)

    ridge = rows * level
    whole = 0.5 * decomposition.log_determinant(ridge)
    leverage = 1 - 1 / rows - decomposition.residual_diagonal(ridge)
    # without a row the determinant of the scatter falls by log(1 − leverage); mean and level move to first order
    influence = 0.5 * (-torch.log1p(-leverage) - float(leverage.sum()) * (1 / rows + of_level))
    value = whole
    for c, count in enumerate(counts.tolist()):
        own = codes == c
        share = count / rows
        rate, inside, towards, dimension = _class_rate(z[own], count * level)
        value -= share * rate
        member = own.to(torch.float64)
        by_scatter = -2 * share * (z @ towards) / (count * level)
        by_scatter[own] += inside
        by_level = -dimension * (member / count + of_level)
        influence -= (member / rows - count / rows**2) * rate + 0.5 * share * (by_scatter + by_level)
    meaning = f"Nats a row that the classes save in coding the features with {distortion:.0e} of their variance lost"
    return estimated("transrate", value, influence, resamples, f"{meaning}.", began, decomposition.seconds)


def _class_rate(z: Tensor, ridge: float) -> tuple[float, Tensor, Tensor, float]:
    """Of one class's rows Z ``(n, r)``, A = I + ZᵀZ/ρ:

    ½ log det A; −log(1 − x_iᵀA⁻¹x_i/ρ) of its rows, ``(n,)``; A⁻¹ times its mean, ``(r,)``; tr(I − A⁻¹).
    """
    u, s, vt = (torch.from_numpy(part) for part in svd(z.numpy(), full_matrices=False, check_finite=False))
    kept = s.square() / (s.square() + ridge)
    ones = torch.ones(len(z), dtype=torch.float64)
    towards = ((s * (1 - kept)) * (u.T @ ones)) @ vt / len(z)
    return 0.5 * float((s.square() / ridge).log1p().sum()), -torch.log1p(-u.square() @ kept), towards, float(kept.sum())
