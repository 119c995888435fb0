"""The fits behind the search: in the eigenbasis, or streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.held import wide_enough
from regraft.heads.l2.iterative import PathSolver, refit, tolerance_of
from regraft.heads.l2.model import Basis
from regraft.heads.l2.problem import Fit
from regraft.heads.l2.ridge import ridge_fit, ridge_path
from regraft.heads.l2.streamed import Streamed
from regraft.heads.losses import LOSSES, Loss
from regraft.heads.readout import Status
from regraft.heads.response import Response
from regraft.heads.weights import moments
from regraft.linear import Blocks, Cast, Design, FeatureDesign, Moved
from regraft.linear.products import one_torch_thread

__all__ = ["EIGEN_LIMIT", "Eigen", "Fitter", "Found", "fitter", "ridge_targets", "streams"]

#: Largest min(N, d) that is factorised: 6,000³ costs about a minute on one core.
EIGEN_LIMIT = 6000
#: Most entries of the rotated rows (N × d) that are held: 1 GiB in float64.
ROTATED_LIMIT = 2**27
#: Multiplications up to which a Gram of float32 features is accumulated in float64.
_EXACT_GRAM = 4e10
_MIDDLE = 16  # rows whose mean is taken for the middle of all

Found = tuple[Blocks, Tensor, Status]


class Fitter(ABC):
    """Fits of one design and response at any form and strength."""

    @abstractmethod
    def out_of_fold(self, form: str, strengths: Sequence[float]) -> tuple[Tensor, list[Tensor | None]]:
        """Logits (M, N, C) of the fits without each row's fold, and where refits may begin."""

    @abstractmethod
    def refit(self, form: str, strength: float, start: Tensor | None) -> Found:
        """Coefficients, intercept and status of the fit on all rows."""


def streams(rows: int, width: int) -> bool:
    """Whether features of this shape are too many for an eigendecomposition."""
    return min(rows, width) > EIGEN_LIMIT or (width <= rows and rows * width > ROTATED_LIMIT)


def fitter(design: Design, response: Response, weights: Tensor, folds: Tensor) -> Fitter:
    """The fitter for a design's shape.

    Raises:
        SolverError: no design of features, or features that are not finite.
    """
    if not isinstance(design, FeatureDesign):
        raise SolverError(
            f"there is no solver for a {type(design).__name__}", expected="a FeatureDesign (features by layer)"
        )
    if design.width == 0:
        raise SolverError("the design has no column", do="choose at least one layer")
    design = wide_enough(design)
    rows, width = design.n_rows, design.width
    if streams(rows, width):
        return _Streaming(design, response, weights, folds)
    if rows >= width:
        basis = Basis.of_rows(lambda: (chunk.cpu() for _, chunk in design.chunks()))
        return Eigen(design, basis, response, weights, folds)
    exact = design.dtype == torch.float64 or 2.0 * rows * rows * width <= _EXACT_GRAM
    if exact or design.known is not None:
        precision = torch.float64 if design.known is None else design.known.dtype
        return Eigen(design, Basis.of_gram(design.kernel(precision).cpu(), precision), response, weights, folds)
    origin = _middle(design)
    moved = {name: Moved(matrix, origin[name]) for name, matrix in design.matrices.items()}
    gram = FeatureDesign(moved, design.n_outputs, device=design.device).kernel(torch.float32)
    return Eigen(design, Basis.of_gram(gram.cpu(), torch.float32), response, weights, folds, origin)


def _middle(design: FeatureDesign) -> Blocks:
    """The mean of some rows by layer, (d_l,) each in the features' dtype: near x̄, without a pass over all rows.

    A Gram in float32 is of rows less this: its rounding is of the size of its entries, which a common offset of ten
    standard deviations makes a hundred times as large as what is left when it is centred.
    """
    some = torch.linspace(0, design.n_rows - 1, min(design.n_rows, _MIDDLE)).long()
    parts = design.dense(some).mean(0, dtype=torch.float64).to(design.dtype).split(list(design.widths.values()))
    return Blocks(dict(zip(design.widths, parts)))


def ridge_targets(response: Response) -> Tensor:
    """One-hot classes as they are; labels as ±1, so that a sigmoid's ½ lies between them."""
    return 2 * response.values - 1 if response.kind == "multilabel" else response.values


def _loss(response: Response) -> Loss:
    return LOSSES["sigmoid" if response.kind == "multilabel" else "softmax"]


def _iterated(fit: Fit, tolerance: float) -> Status:
    residual = float(fit.residual.max())
    if residual <= tolerance:
        message = f"converged after {fit.iterations} iterations"
        return Status(True, fit.iterations, residual, message)
    message = (
        f"stopped after {fit.iterations} iterations at a relative gradient of {residual:.1e} "
        f"(tolerance {tolerance:.0e}): use a stronger penalty, or scale the features' rows to unit length"
    )
    return Status(False, fit.iterations, residual, message)


class Eigen(Fitter):
    """min(N, d) small: one eigendecomposition.

    ``design`` is only read by :meth:`refit`; ``origin`` is the row that was taken off its rows for the basis, by layer.
    """

    def __init__(
        self,
        design: FeatureDesign,
        basis: Basis,
        response: Response,
        weights: Tensor,
        folds: Tensor,
        origin: Blocks | None = None,
    ) -> None:
        self.design, self.response, self.weights, self.folds = design, response, weights, folds
        self.basis = basis.in_unit()
        self.origin = origin
        self.path: PathSolver | None = None

    @cached_property
    def low(self) -> Basis:
        """The basis for the search: fits that are only scored need no more than float32."""
        return self.basis.to(torch.float32)

    @one_torch_thread()
    def out_of_fold(self, form: str, strengths: Sequence[float]) -> tuple[Tensor, list[Tensor | None]]:
        """Closed form for ridge; all folds together for logistic."""
        penalties = [s * self.basis.scale for s in strengths]
        if form == "ridge":
            logits = ridge_path(self.basis, ridge_targets(self.response), self.weights, self.folds, penalties)
            return logits, [None] * len(penalties)
        if self.path is None:
            self.path = PathSolver(self.low, _loss(self.response), self.response.values, self.weights, self.folds)
        cells = [self.path.fit(penalty) for penalty in penalties]
        return torch.stack([cell.out_of_fold for cell in cells]), [cell.centre for cell in cells]

    @one_torch_thread()
    def refit(self, form: str, strength: float, start: Tensor | None) -> Found:
        """In float64."""
        penalty = strength * self.basis.scale
        if form == "ridge":
            v, b, residual = ridge_fit(self.basis, ridge_targets(self.response), self.weights, penalty)
            status = Status(residual < 1e-6, 0, residual, "closed form in the Gram's eigenbasis")
        else:
            models = (self.low, self.basis)
            v, b, fit = refit(models, _loss(self.response), self.response.values, self.weights, penalty, start)
            status = _iterated(fit, tolerance_of(self.basis.dtype))
        lifted, intercept = self.basis.lift(v, b)
        dtype = self.design.dtype
        if self.basis.dual:
            blocks = _adjoint(self.design, lifted)
        else:
            pieces = torch.split(lifted.to(dtype), list(self.design.widths.values()))
            blocks = Blocks({name: piece.contiguous() for name, piece in zip(self.design.widths, pieces)})
        intercept = intercept.to(torch.float64)
        for name, part in ({} if self.origin is None else self.origin).items():
            intercept = intercept - part.to(torch.float64) @ blocks[name].to("cpu", torch.float64)
        return blocks, intercept, status


def _adjoint(design: FeatureDesign, dual: Tensor) -> Blocks:
    """W = Xᵀ A by layer, multiplied in float64 and then rounded to the features' dtype.

    At a weak penalty A is many orders of magnitude larger than W, for what it says of directions that the rows share
    cancels: rounded before the product it would leave coefficients that have nothing to do with the fit.
    """
    dual, found = dual.to(design.device), {}
    for name, matrix in design.matrices.items():
        wide = FeatureDesign({name: Cast(matrix, torch.float64)}, dual.shape[1], device=design.device)
        found[name] = wide.adjoint(dual)[name].to(design.dtype)
    return Blocks(found)


class _Streaming(Fitter):
    """N and d both large: L-BFGS on products with the features, in their own dtype."""

    def __init__(self, design: FeatureDesign, response: Response, weights: Tensor, folds: Tensor) -> None:
        self.model, self.response, self.weights, self.folds = Streamed(design), response, weights, folds
        self.mean, self.spread = moments(ridge_targets(response), weights)
        self.paths: dict[str, PathSolver] = {}

    def _problem(self, form: str) -> tuple[Loss, Tensor]:
        if form == "ridge":  # in units of the targets' spread, so that tolerances mean the same everywhere
            return LOSSES["squared"], (ridge_targets(self.response) - self.mean) / self.spread
        return _loss(self.response), self.response.values

    def out_of_fold(self, form: str, strengths: Sequence[float]) -> tuple[Tensor, list[Tensor | None]]:
        if form not in self.paths:
            self.paths[form] = PathSolver(self.model, *self._problem(form), self.weights, self.folds)
        cells = [self.paths[form].fit(s * self.model.scale) for s in strengths]
        logits = torch.stack([cell.out_of_fold for cell in cells])
        if form == "ridge":
            logits = logits * self.spread + self.mean
            for fold in torch.unique(self.folds[self.folds >= 0]).tolist():
                member = self.folds == fold
                # a column without a label outside the fold: the mean of all would be that of the fold's own labels
                unseen = (self.weights[~member] > 0).any(0).logical_not()
                logits.masked_fill_(member[:, None] & unseen, 0.0)
        return logits, [cell.centre for cell in cells]

    def refit(self, form: str, strength: float, start: Tensor | None) -> Found:
        loss, targets = self._problem(form)
        penalty = strength * self.model.scale
        v, b, fit = refit((self.model,), loss, targets, self.weights, penalty, start)
        v, b = v.to(torch.float64), b.to(torch.float64)
        if form == "ridge":
            v, b = v * self.spread, b * self.spread + self.mean
        lifted, intercept = self.model.lift(v, b)
        dtype = self.model.dtype
        return self.model.blocks(lifted.to(dtype)), intercept.to(torch.float64), _iterated(fit, tolerance_of(dtype))
