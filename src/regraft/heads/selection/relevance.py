"""Scores of features: the row norms of ridge coefficients, for all folds and penalties in one pass.

W = Xᵀ A with A the dual weights of a ridge head (:mod:`regraft.heads.l2.dual`), so s_i = ‖x_iᵀ A‖₂ for the
i-th column x_i. For more rows than a Gram is worth, W itself is solved for, streaming the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.held import wide_enough
from regraft.heads.l2.dual import dual_ridge, gram_scale
from regraft.heads.l2.lbfgs import minimise
from regraft.heads.l2.problem import Problem
from regraft.heads.l2.streamed import Streamed
from regraft.heads.losses import LOSSES
from regraft.heads.response import Response, require_learnable
from regraft.heads.selection.fold_tasks import FoldTask, fold_tasks
from regraft.heads.selection.kept import by_name
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.tall_scores import single_pattern, tall_scores
from regraft.heads.solve import check_folds, check_sizes, check_strengths, check_training
from regraft.heads.weights import ClassWeight, row_weights, sample_weights
from regraft.linear import FeatureDesign
from regraft.linear.products import one_blas_thread

__all__ = [
    "GRAM_ROWS",
    "FoldTask",
    "check_features",
    "fold_tasks",
    "panel_scores",
    "relevance",
    "row_scores",
    "streamed_scores",
]

#: Above this many rows scores are solved for by streaming, not through an N × N Gram.
GRAM_ROWS = 4000
_TOLERANCE = 1e-5
_ITERATIONS = 500
#: Bytes of coefficients and their L-BFGS memory that are held at once.
_STATE_BYTES = 2**31


@one_blas_thread()
def relevance(
    design: FeatureDesign,
    response: Response,
    folds: Any | None,
    strength: float,
    *,
    class_weight: ClassWeight = None,
) -> dict[str, Tensor]:
    """s_i = ‖W_i‖₂ of the ridge coefficients W that minimise

        (1/Σs) Σ_j s_j ½‖y_j − Wᵀx_j − b‖² + (λ/2)‖W‖²,   λ = strength · t,   t = (1/N) Σ_j ‖x_j − x̄‖²,

    b free, y one-hot (±1 for multilabel, in units of its spread for regression). This stands for the group-lasso
    score of Head2Toe (Evci et al. 2022, Eq. 3), which ranks no better and costs 10,000 times as much.

    Up to 65,536 features and 4,000 rows in the features' own precision; more features in float32, from a Gram
    of 65,536 sampled columns; more rows by :func:`regraft.heads.selection.tall_scores.tall_scores`, exact up to 2,048
    features and from a sample of at most 8,192 above (where outputs have weights of their own: by L-BFGS streaming the
    design).

    Args:
        design: features by layer, normally with rows of unit norm in each.
        response: N labels.
        folds: (N,) fold of each row, -1 for rows that no fold leaves out; or None.
        strength: above zero.
        class_weight: as in :func:`regraft.heads.solve`, counted without the fold left out.

    Returns:
        Block → scores: (d_l,) of all rows where ``folds`` is None, else (K, d_l), the k-th without the k-th fold's
        rows or labels (only t, a label-free number, is taken over all rows).

    Raises:
        SolverError: NaN features, one class, folds or strengths that do not fit.
    """
    require_learnable(response)
    check_features(design, response)
    strength = check_strengths([strength])[0]
    fold_of = None if folds is None else check_folds(folds, len(response))
    if fold_of is not None:
        check_training(fold_of, row_weights(response, class_weight, sample_weights(response, None)))
    tasks = fold_tasks(response, fold_of, class_weight)
    if design.n_rows <= GRAM_ROWS:
        found = panel_scores(Panel(design), tasks, [strength])[:, 0]
    else:
        found = row_scores(design, tasks, [strength])[:, 0]
    return by_name(found if folds is not None else found[0], design.widths)


def check_features(design: FeatureDesign, response: Response, metric: str | None = None) -> None:
    """Refuse designs that are none of features or do not fit the labels, and an unknown metric."""
    if not isinstance(design, FeatureDesign):
        raise SolverError(f"features cannot be chosen from a {type(design).__name__}", expected="a FeatureDesign")
    check_sizes(design, response, metric)


def panel_scores(panel: Panel, tasks: Sequence[FoldTask], strengths: Sequence[float]) -> Tensor:
    """(tasks, strengths, width) scores from one Gram and one pass over the columns."""
    gram = panel.gram().to(torch.float64)
    scale = gram_scale(gram)
    penalties = [strength * scale for strength in strengths]
    duals = [a for task in tasks for a, _ in dual_ridge(gram, task.targets, task.weights, penalties)]
    return panel.norms(torch.stack(duals)).view(len(tasks), len(strengths), panel.width)


def row_scores(design: FeatureDesign, tasks: Sequence[FoldTask], strengths: Sequence[float]) -> Tensor:
    """(tasks, strengths, width) scores for many rows: in two passes, or streamed where outputs differ in weights."""
    return (tall_scores if single_pattern(tasks) else streamed_scores)(design, tasks, strengths)


def streamed_scores(design: FeatureDesign, tasks: Sequence[FoldTask], strengths: Sequence[float]) -> Tensor:
    """(tasks, strengths, width) scores by L-BFGS on the coefficients, strongest penalty first as given."""
    design = wide_enough(design)
    model, loss = Streamed(design), LOSSES["squared"]
    outputs = design.n_outputs
    out = torch.zeros(len(tasks), len(strengths), design.width, dtype=design.dtype)
    # theta, gradient, two scaled copies, ten pairs
    step = max(1, _STATE_BYTES // (26 * (design.width + 1) * outputs * design.dtype.itemsize))
    for begin in range(0, len(tasks), step):
        group = tasks[begin : begin + step]
        shares = torch.cat([(t.weights / t.weights.sum(0).clamp_min(1e-300)).expand(-1, outputs).T for t in group])
        targets = torch.cat([t.targets.T for t in group])
        mean = (shares * targets).sum(1, keepdim=True)
        problem = Problem(model, loss, (targets - mean).to(model.dtype)[:, None], shares.to(model.dtype))
        theta = problem.start()
        reference = problem.gradient(theta, problem.logits(theta), 0.0)
        for index, strength in enumerate(strengths):
            fit = minimise(
                problem,
                strength * model.scale,
                start=theta,
                reference=reference,
                tolerance=_TOLERANCE,
                max_iterations=_ITERATIONS,
            )
            theta = fit.theta
            rows = theta[:, 0, :-1].view(len(group), outputs, design.width)
            out[begin : begin + len(group), index] = torch.linalg.vector_norm(rows, dim=1)
    return out
