"""The exact group lasso and lasso: a multinomial model of few features, with a certificate of optimality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from regraft.errors import DataError, SolverError
from regraft.heads.response import Response, require_learnable
from regraft.heads.sparse.columns import as_features
from regraft.heads.sparse.fit import GroupLassoFit, GroupLassoPath, Loss
from regraft.heads.sparse.penalty import PENALTIES, PenaltyName
from regraft.heads.sparse.problem import SparseProblem
from regraft.heads.weights import row_weights, sample_weights
from regraft.linear import FeatureDesign

__all__ = ["GroupLassoFit", "GroupLassoPath", "check_loss", "group_lasso", "lasso"]

_LENGTH = 20
_RATIO = 0.01


def group_lasso(
    design: FeatureDesign | Tensor | np.ndarray,
    response: Response,
    *,
    strengths: int | Sequence[float] | None = None,
    tol: float = 1e-4,
    max_iterations: int = 10_000,
    loss: Loss | None = None,
    sample_weight: Any = None,
    start: GroupLassoFit | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GroupLassoPath:
    """Minimise over W (d, C) and b (C,), for every λ of a path,

        Σ_i ω_i ℓ(y_i, Wᵀx_i + b) + λ Σ_j ‖W_j‖₂,

    whose groups are the rows of W: a feature serves all outputs or none. ω_i = 1/n without weights, b is free, and
    no feature is centred or scaled. ℓ is the softmax cross-entropy, the sigmoid one summed over outputs, or
    ½‖y − f‖². Above λ_max = max_j ‖Σ_i x_ij ω_i (y_i − v̄)‖₂, v̄ the mean response, W is zero. Where rounding of the
    features explains all of λ_max, as in rows that are alike, λ_max counts as zero: no feature follows the labels.

    Each λ starts from the solution before it. Features join a working set in the order of ‖Σ_i x_ij ω_i (y_i − v_i)‖,
    first those that the strong rule (Tibshirani et al. 2012) lets through, then those that violate optimality; on
    the set run accelerated proximal steps and, where these creep, Newton steps between the kinks of the norm. Every
    certificate reads all features once, in chunks of rows, so memory is that of the working set (k columns of n float64
    numbers, and their copies), and of a Newton system that is written out.

    Args:
        design: features of N rows: a FeatureDesign, or an (N, d) array.
        response: their labels. Rows without a label are left out; missing entries of a label column too.
        strengths: λ values above zero, solved and returned in falling order; or the length of a geometric path from
            λ_max to λ_max / 100 (20 by default).
        tol: the duality gap to reach, relative to the objective.
        max_iterations: for each λ, in products with the held features and their transpose.
        loss: by default the one of the labels: softmax, sigmoid (multilabel) or squared (regression). ``squared``
            takes one-hot classes, and labels as ±1.
        sample_weight: (N,) weights, zero or more; ω is their share (in each label column over its own rows).
        start: a fit of the same features and outputs to start the strongest penalty from.
        progress: called with (solved, total) after every λ.

    Returns:
        The path. A fit that ran out of iterations says so in its status, and its gap still holds. An output whose
        label is the same in all rows gets no coefficients: a class that no row shows an intercept that rules it out, a
        label column of n rows ± log(n + 1), the log odds of Laplace's rule of succession.

    Raises:
        SolverError: NaN features, one class, strengths or tolerances that are not above zero, or no strengths and
            labels that no feature follows, so that a path has no beginning.
        DataError: the loss does not fit the labels.
    """
    return _path(
        "l21", design, response, strengths, tol, max_iterations, loss, sample_weight, start=start, progress=progress
    )


def lasso(
    design: FeatureDesign | Tensor | np.ndarray,
    response: Response,
    *,
    strengths: int | Sequence[float] | None = None,
    tol: float = 1e-4,
    max_iterations: int = 10_000,
    loss: Loss | None = None,
    sample_weight: Any = None,
    start: GroupLassoFit | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GroupLassoPath:
    """Minimise over W (d, C) and b (C,), for every λ of a path,

        Σ_i ω_i ℓ(y_i, Wᵀx_i + b) + λ Σ_jc |W_jc|,

    in which each output chooses features of its own. λ_max = max_jc |Σ_i x_ij ω_i (y_ic − v̄_c)|; the solver and
    everything else are those of :func:`group_lasso`. Softmax is over-parametrised: W_j and W_j + t fit alike, and the
    penalty picks the t at which the median of W_j is zero, so solutions are unique up to ties.

    Args:
        design, response, strengths, tol, max_iterations, loss, sample_weight, start, progress: as in
            :func:`group_lasso`.

    Returns:
        The path; ``values`` of a fit hold every feature of which some output has a coefficient that is not zero.

    Raises:
        SolverError, DataError: as in :func:`group_lasso`.
    """
    return _path(
        "l1", design, response, strengths, tol, max_iterations, loss, sample_weight, start=start, progress=progress
    )


def _path(
    penalty: PenaltyName,
    design: FeatureDesign | Tensor | np.ndarray,
    response: Response,
    strengths: int | Sequence[float] | None,
    tol: float,
    max_iterations: int,
    loss: Loss | None,
    sample_weight: Any,
    *,
    start: GroupLassoFit | None,
    progress: Callable[[int, int], None] | None,
) -> GroupLassoPath:
    require_learnable(response)
    chosen = check_loss(loss, response)
    _positive("the tolerance", tol)
    whole = isinstance(max_iterations, Real) and np.isfinite(max_iterations) and int(max_iterations) == max_iterations
    if isinstance(max_iterations, bool) or not whole or max_iterations < 1:
        raise SolverError(f"max_iterations is {max_iterations!r}", expected="a whole number, at least 1")
    weights = row_weights(response, None, sample_weights(response, sample_weight))
    problem = SparseProblem(as_features(design, response), response, chosen, weights, PENALTIES[penalty], tol)
    state = problem.null
    largest = float(state.norms.max())
    grid = _grid(strengths, largest)
    if start is not None:
        state = problem.restart(start)
    fits = []
    for strength in grid:
        if strength >= largest:
            fits.append(problem.empty(strength))
        else:
            fit, state = problem.solve(strength, state, tol, max_iterations)
            fits.append(fit)
        if progress is not None:
            progress(len(fits), len(grid))
    return GroupLassoPath(tuple(fits), largest)


def check_loss(loss: Loss | None, response: Response) -> Loss:
    """The loss, by default the one of the labels.

    Raises:
        DataError: it is unknown, or does not fit the labels.
    """
    links: dict[str, Loss] = {"softmax": "softmax", "sigmoid": "sigmoid", "identity": "squared"}
    chosen = links[response.link] if loss is None else loss
    fits = {
        "softmax": response.codes is not None,
        "sigmoid": response.kind != "regression",
        "squared": True,
    }
    if chosen not in fits:
        raise DataError(f"the loss is {chosen!r}", expected=", ".join(fits))
    if not fits[chosen]:
        raise DataError(f"the {chosen} loss does not fit {response.kind} labels", do="leave the loss to the labels")
    return chosen


def _positive(what: str, value: float) -> None:
    if not np.isfinite(value) or value <= 0:
        raise SolverError(f"{what} is {value}", expected="a number above zero")


def _grid(strengths: int | Sequence[float] | None, largest: float) -> list[float]:
    if strengths is None or isinstance(strengths, int | np.integer):
        count = _LENGTH if strengths is None else int(strengths)
        if count < 1:
            raise SolverError(f"the path has {count} strengths", expected="at least one")
        if largest <= 0:
            raise SolverError(
                "no feature follows the labels, so the path has no beginning",
                do="give strengths, or features and labels that vary",
            )
        return [largest * _RATIO ** (step / max(1, count - 1)) for step in range(count)]
    if isinstance(strengths, Real):
        raise SolverError(
            "strengths are several", expected="a sequence of numbers, or a whole number: the length of a path",
            got=repr(strengths), do=f"give [{strengths!r}]",
        )  # fmt: skip
    found = sorted((float(value) for value in strengths), reverse=True)
    if not found:
        raise SolverError("there are no strengths", expected="at least one number above zero")
    for value in found:
        _positive("a strength", value)
    return found
