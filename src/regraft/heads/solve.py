"""From a design and labels to a head: every strength of every form, cross-validated, one chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.drawn import Start, begin, contenders, enough_folds
from regraft.heads.l2.fitters import Fitter, fitter, streams
from regraft.heads.metrics import METRICS, PROPER, defined, higher_is_better
from regraft.heads.readout import Readout, Solution, Status
from regraft.heads.response import Response, require_learnable
from regraft.heads.search import GRID, STEPS, Judge, Trial, candidates, choose, explore
from regraft.heads.weights import ClassWeight, row_weights, sample_weights
from regraft.linear import Design, FeatureDesign, Taken
from regraft.linear.checks import as_tensor
from regraft.linear.products import one_blas_thread

__all__ = [
    "FORMS",
    "check_folds",
    "check_forms",
    "check_sizes",
    "check_strengths",
    "check_training",
    "refit",
    "refitted",
    "search",
    "solve",
    "solve_best",
    "validate",
    "validate_near",
]

FORMS: tuple[str, ...] = ("ridge", "logistic")


def solve(
    design: Design,
    response: Response,
    *,
    forms: Sequence[str] = FORMS,
    strengths: Sequence[float] | None = None,
    folds: Any,
    metric: str,
    class_weight: ClassWeight = None,
    sample_weight: Any = None,
    one_standard_error: bool = False,
    calibrate: bool = True,
) -> Solution:
    """Fit linear heads over a whole path of penalties, choose by cross-validation, refit on all rows.

    The objective of every fit is

        (1/Σs) Σ_i s_i ℓ(y_i, Wᵀx_i + b) + (λ/2) ‖W‖²,   λ = strength · t,   t = (1/N) Σ_i ‖x_i − x̄‖²,

    the intercept b free. ℓ is ½‖y − f‖² for ``ridge`` (on one-hot classes; on ±1 for multilabel), and for
    ``logistic`` the softmax cross-entropy, or, for multilabel, the sigmoid one of each column over its own
    labels (each column's data term is a mean over the labels it has; where these are all alike, they count as the
    chance that the rule of succession gives one more, lest b be infinite). In scikit-learn's terms
    ``Ridge(alpha=λ Σs)`` and ``LogisticRegression(C=1/(λ Σs))``. The scale t makes strengths comparable
    across features. It is one number, taken over all rows without labels, and it moves the grid of every
    cell alike; centring and rotating over all rows change no fit (see :class:`regraft.heads.l2.model.Basis`);
    no feature is standardised. So a held-out row has no say in the fit that predicts it.

    For min(N, d) ≤ 6,000, and N d ≤ 2²⁷ where N ≥ d, everything happens in one eigendecomposition (of N × N or
    d × d, the smaller): ridge paths and their folds are exact, logistic folds are solved together by batched Newton.
    Beyond that, L-BFGS passes over the rows, a product with the features and one with their transpose an iteration.
    Forms and strengths are then looked for on 3,000 drawn rows first, and from there on all rows, of which no more
    folds are held out than have 2,000 rows (:mod:`regraft.heads.drawn`).

    Args:
        design: features of N rows, a :class:`regraft.linear.FeatureDesign`.
        response: their labels. Rows without a label are predicted, but neither fitted nor scored.
        forms: ``ridge`` and ``logistic`` (regression: ridge only; ``logistic`` is then left out).
        strengths: positive numbers; by default ten from 1 to 1e-6, extended past an edge that scores best.
        folds: (N,) fold of each row; rows of -1 are in every training set and never scored.
        metric: what to choose by: a name of :data:`regraft.heads.METRICS`, ``nll``, ``ece`` or ``brier``.
        class_weight: ``"balanced"`` or {class: weight}: factors of s_i, counted once over all rows and the same
            in every fold.
        sample_weight: (N,) factors of s_i, zero or more. Weights act on the fits alone: scores and temperature
            count every row of positive weight once.
        one_standard_error: take the strongest penalty within one standard error of the best.
        calibrate: fit the temperature on the out-of-fold logits of the chosen cell; else it is 1.

    Returns:
        The head refitted on all rows, its status, all candidates, and out-of-fold logits. Equal scores (to 1e-12
        of them) go to the lower negative log-likelihood, then to the stronger penalty.

    Raises:
        SolverError: NaN features, one class, an output without labels, folds or weights that do not fit,
            a design that is none of features.
        DataError: the metric does not fit the kind of labels.
    """
    return solve_best(
        {"": design},
        response,
        forms=forms,
        strengths=strengths,
        folds=folds,
        metric=metric,
        class_weight=class_weight,
        sample_weight=sample_weight,
        one_standard_error=one_standard_error,
        calibrate=calibrate,
    )[""]


@one_blas_thread()
def solve_best(
    designs: Mapping[str, Design],
    response: Response,
    *,
    forms: Sequence[str] = FORMS,
    strengths: Sequence[float] | None = None,
    folds: Any,
    metric: str,
    class_weight: ClassWeight = None,
    sample_weight: Any = None,
    one_standard_error: bool = False,
    calibrate: bool = True,
) -> dict[str, Solution]:
    """:func:`solve` on several designs of the same rows, such as scalings of the same features.

    Returns:
        A solution for each, but for those that a draw of the rows leaves out, where they are too many for an
        eigendecomposition: designs that score more than a standard error below the best one there.

    Raises:
        SolverError, DataError: as :func:`solve`.
    """
    require_learnable(response)
    for design in designs.values():
        check_sizes(design, response, metric)
    wanted = check_forms(forms, response)
    grid = None if strengths is None else check_strengths(strengths)
    fold_of = check_folds(folds, len(response))
    rows = sample_weights(response, sample_weight)
    weights = row_weights(response, class_weight, rows)
    check_training(fold_of, weights)
    cut = _Cut(metric, response, fold_of, rows > 0, weights, wanted)
    starts = {name: cut.start(design) if grid is None else None for name, design in designs.items()}
    found = {}
    for name in contenders(starts, cut.sign):
        design, start = designs[name], starts[name]
        if start is None:
            fit, judge = fitter(design, response, weights, fold_of), cut.judge(fold_of, calibrate)
            found[name] = search(fit, judge, wanted, grid, one_standard_error)
            continue
        # one standard error is that of the folds' spread: all of them choose
        few = fold_of if one_standard_error else enough_folds(fold_of, cut.scores)
        fit, judge = fitter(design, response, weights, few), cut.judge(few, calibrate)
        trials = validate_near(fit, judge, start)
        found[name] = refitted(fit, judge, trials, choose(trials, judge.sign, one_standard_error))
    return found


@dataclass(frozen=True, eq=False)
class _Cut:
    """Labels, folds and weights, of all rows or of a draw."""

    metric: str
    response: Response
    folds: Tensor
    counted: Tensor
    weights: Tensor
    forms: Sequence[str]

    @property
    def sign(self) -> float:
        return 1.0 if higher_is_better(self.metric) else -1.0

    def judge(self, folds: Tensor, calibrate: bool) -> Judge:
        return Judge(self.metric, self.response, folds, self.counted, calibrate)

    def start(self, design: Design) -> Start | None:
        """Where a draw of the rows says to begin, if they are so many that all of them must be passed over."""
        if not (isinstance(design, FeatureDesign) and streams(design.n_rows, design.width)):
            return None

        def drawn(index: Tensor) -> tuple[list[Trial], Judge]:
            held = {name: Taken(matrix, index) for name, matrix in design.matrices.items()}
            few = replace(
                self,
                response=self.response.take(index),
                folds=self.folds[index],
                counted=self.counted[index],
                weights=self.weights[index],
            )
            fit = fitter(FeatureDesign(held, design.n_outputs), few.response, few.weights, few.folds)
            judge = few.judge(few.folds, False)
            return validate(fit, judge, self.forms), judge

        return begin(drawn, len(self.response))

    def scores(self, index: Tensor) -> bool:
        """Whether the metric is defined on some rows: that hangs on no prediction."""
        return defined(self.metric, self.response.take(index[self.counted[index]]))


@one_blas_thread()
def refit(
    design: Design, response: Response, *, form: str, strength: float, class_weight: ClassWeight = None
) -> tuple[Readout, Status]:
    """The head of one form and strength on all rows, as :func:`solve` ends with: for choices made elsewhere.

    Raises:
        SolverError: as :func:`solve`.
    """
    require_learnable(response)
    check_sizes(design, response)
    (form,), (strength,) = check_forms([form], response), check_strengths([strength])
    weights = row_weights(response, class_weight, sample_weights(response, None))
    none = torch.full((len(response),), -1)
    check_training(none, weights)
    coefficients, intercept, status = fitter(design, response, weights, none).refit(form, strength, None)
    return Readout(coefficients, intercept, response.link, form=form, strength=strength), status


def search(
    fit: Fitter,
    judge: Judge,
    forms: Sequence[str],
    strengths: Sequence[float] | None = None,
    one_standard_error: bool = False,
    default: Sequence[float] = GRID,
    steps: int = STEPS,
) -> Solution:
    """Try every strength of every form, choose one by the judge's out-of-fold score, refit on all rows.

    Args:
        fit: the fits without each fold, and the fit on all rows.
        judge: what scores them.
        forms: as :func:`check_forms` returns them.
        strengths: strongest first, or None for the default grid.
        one_standard_error: as in :func:`solve`.
        default: the grid that is extended past an edge which scores best.
        steps: by how many strengths at a time.
    """
    trials = validate(fit, judge, forms, strengths, default, steps)
    return refitted(fit, judge, trials, choose(trials, judge.sign, one_standard_error))


def validate(
    fit: Fitter,
    judge: Judge,
    forms: Sequence[str],
    strengths: Sequence[float] | None = None,
    default: Sequence[float] = GRID,
    steps: int = STEPS,
) -> list[Trial]:
    """The first half of :func:`search`: every strength of every form, judged."""
    trials: list[Trial] = []
    for form in forms:
        each = partial(_run, fit, judge, form)
        trials += explore(each, strengths, judge.sign, default, steps=steps)
    return trials


def validate_near(fit: Fitter, judge: Judge, start: Start) -> list[Trial]:
    """:func:`validate` from where a draw says to begin, and past an edge that scores clearly best: each weaker penalty
    takes up to twice the products of the last one."""
    trials: list[Trial] = []
    for form, some in start.grids.items():
        gain = start.clear(len(judge.kept))
        trials += explore(partial(_run, fit, judge, form), None, judge.sign, some, steps=1, gain=gain)
    return trials


def refitted(fit: Fitter, judge: Judge, trials: Sequence[Trial], chosen: Trial) -> Solution:
    """The other half: the chosen one of the trials, fitted on all rows."""
    coefficients, intercept, status = fit.refit(chosen.form, chosen.strength, chosen.centre)
    link = judge.response.link
    readout = Readout(coefficients, intercept, link, chosen.temperature, form=chosen.form, strength=chosen.strength)
    return Solution(readout, status, candidates(trials, chosen), chosen.out_of_fold)


def _run(fit: Fitter, judge: Judge, form: str, strengths: Sequence[float]) -> list[Trial]:
    logits, centres = fit.out_of_fold(form, strengths)
    return judge.trials(form, strengths, logits, centres)


def check_sizes(design: Design, response: Response, metric: str | None = None) -> None:
    """Refuse a design and labels that do not fit, or an unknown metric."""
    if design.n_rows != len(response):
        raise SolverError(f"the design has {design.n_rows} rows", expected=f"{len(response)}, one for each label")
    if design.n_outputs != response.n_outputs:
        raise SolverError(f"the design has {design.n_outputs} outputs", expected=f"{response.n_outputs}, as the labels")
    if metric is not None and metric not in METRICS + PROPER:
        raise SolverError(f"{metric!r} is no metric", expected=", ".join(METRICS + PROPER))


def check_forms(forms: Sequence[str], response: Response) -> list[str]:
    """The forms to try, each once; those that do not fit the labels left out."""
    unknown = [form for form in forms if form not in FORMS]
    if unknown or not forms:
        raise SolverError("the forms of the head", expected=" and/or ".join(FORMS), got=repr(list(forms)))
    wanted = [form for form in dict.fromkeys(forms) if form == "ridge" or response.kind != "regression"]
    if not wanted:
        raise SolverError("a logistic head does not fit regression", expected="form 'ridge'")
    return wanted


def check_strengths(strengths: Sequence[float]) -> list[float]:
    """Penalties as floats, strongest first, each once."""
    values = [] if isinstance(strengths, Real) else [float(s) for s in strengths]
    if not values or not all(np.isfinite(s) and s > 0 for s in values):
        got = repr(values[:5] or strengths)
        raise SolverError("the strengths of the penalty", expected="a sequence of finite numbers above zero", got=got)
    return sorted(set(values), reverse=True)


def check_folds(folds: Any, rows: int) -> Tensor:
    """Folds as integers, one a row."""
    given = np.asarray(folds)
    if given.dtype.kind in "OUS":
        raise SolverError("the folds are texts", expected=f"{rows} integers", got=repr(given.reshape(-1)[:1].tolist()))
    found = as_tensor(given)
    if tuple(found.shape) != (rows,) or found.is_floating_point() or found.dtype == torch.bool:
        raise SolverError(
            f"the folds have shape {tuple(found.shape)} and type {found.dtype}", expected=f"{rows} integers"
        )
    found = found.to(torch.int64)
    if not bool((found >= 0).any()):
        raise SolverError("no row lies in a fold", expected="fold numbers from 0 on, -1 for rows that always train")
    return found


def check_training(folds: Tensor, weights: Tensor, columns: Sequence[str] = ()) -> None:
    """Refuse a column whose labels all weigh nothing, and a fold without which no weighted row is left; where columns
    are named, also one without which no label of a column is."""
    unseen = (~(weights > 0).any(0)).nonzero()
    if len(unseen):
        raise SolverError(
            f"no row of positive weight has a label in column {int(unseen[0])}",
            expected="at least one in each column",
            do="give such a row a positive weight, or leave the column out",
        )
    for fold in torch.unique(folds[folds >= 0]).tolist():
        if not bool((weights[folds != fold] > 0).any()):
            raise SolverError(
                f"nothing is left to train on without fold {fold}",
                expected="at least two folds with labelled rows",
                do="use more folds or more rows",
            )
        lost = (~(weights[folds != fold] > 0).any(0)).nonzero() if columns else unseen
        if len(lost):
            raise SolverError(
                f"all labels of {columns[int(lost[0])]!r} fall into one fold of those that choose a penalty",
                expected="labels in two folds at least",
                got=f"{int((weights[:, int(lost[0])] > 0).sum())} labels",
                do="label more rows, leave the column out, or use another method",
            )
