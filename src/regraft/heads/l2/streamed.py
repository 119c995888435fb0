"""Features that are read on every product: kept in memory where they fit, else row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.heads.held import HELD_BYTES
from regraft.heads.l2.model import LinearModel, check_finite, check_squares
from regraft.linear import Blocks, Dense, FeatureDesign

__all__ = ["Streamed"]

#: Rows whose principal axes make the preconditioner, the more the dearer a product, and the most entries of theirs.
_SAMPLES = (1500, 3000)
_SAMPLE_SHARE = 8
_AXES_ENTRIES = 2**26


class Streamed(LinearModel):
    """Centred features through ``design.apply`` and ``design.adjoint``.

    One pass at the start takes the columns' means and mean squares; after that each
    product is one pass. Centring needs no copy: X_c V = X V − 1 mean(X V), X_cᵀ R = Xᵀ (R − 1 mean(R)).

    Args:
        design: N rows of features; 16-bit ones are to be wrapped in ``Cast``. Those of at most 4 GiB are read once.

    Raises:
        SolverError: NaN or infinities, or squares that leave the range of the features' dtype.
    """

    def __init__(self, design: FeatureDesign) -> None:
        self.widths = design.widths
        if design.n_rows * design.width * design.dtype.itemsize <= HELD_BYTES:
            design = FeatureDesign({"features": Dense(design.dense())}, design.n_outputs, device=design.device)
        self.design, self.rows, self.dtype = design, design.n_rows, design.dtype
        total = torch.zeros(design.width, dtype=torch.float64)
        squares = torch.zeros(design.width, dtype=torch.float64)
        first: Tensor | None = None
        for _, chunk in design.chunks():
            check_finite(chunk)
            # shifted by the first row: mean squares about a far mean would cancel
            first = chunk[0].to(torch.float64) if first is None else first
            moved = chunk.to(torch.float64) - first
            total += moved.sum(0)
            squares += moved.square().sum(0)
        self.spectrum = (squares / self.rows - (total / self.rows).square()).clamp_min(0)
        self.mean = total / self.rows + (0 if first is None else first)
        check_squares(self.scale if bool(self.spectrum.any()) else 0.0, self.dtype)
        self.axes, self.variances = self._principal()

    def _principal(self) -> tuple[Tensor, Tensor]:
        """Principal axes (p, q) and mean squares (q,) of a few evenly spaced rows, for the preconditioner."""
        least, most = _SAMPLES
        wanted = min(most, max(least, self.rows // _SAMPLE_SHARE))
        count = max(2, min(self.rows, wanted, _AXES_ENTRIES // max(1, self.width)))
        index = torch.linspace(0, self.rows - 1, count, dtype=torch.float64).round().long()
        sample = self.design.dense(index).to(torch.float64) - self.mean
        squares, vectors = torch.linalg.eigh(sample @ sample.T)
        kept = max(1, count // 2)
        squares, vectors = squares[-kept:], vectors[:, -kept:]
        sound = squares > 1e-9 * squares[-1].clamp_min(1e-300)
        axes = sample.T @ (vectors[:, sound] / squares[sound].sqrt())
        return axes.to(self.dtype), squares[sound] / count

    def precondition(self, gradient: Tensor, curvature: float, penalty: float) -> Tensor:
        """D g: the inverse curvature along the principal axes; elsewhere that of the least of them.

        A Nyström preconditioner (Frangella, Tropp & Udell, 2023). The diagonal alone needs ten times the
        products on correlated features.
        """
        if len(self.variances) == 0:
            return gradient / (curvature * float(self.spectrum.mean()) + penalty)
        rest = 1 / (curvature * float(self.variances.min()) + penalty)
        along = (1 / (curvature * self.variances + penalty) - rest).to(self.dtype)
        problems, outputs, width = gradient.shape
        flat = gradient.reshape(problems * outputs, width)
        return ((flat @ self.axes * along) @ self.axes.T).add_(flat, alpha=rest).view(problems, outputs, width)

    def _wide(self, outputs: int) -> FeatureDesign:
        return FeatureDesign(self.design.matrices, outputs, device=self.design.device)

    def forward(self, coefficients: Tensor) -> Tensor:
        """V X_cᵀ."""
        problems, outputs, width = coefficients.shape
        design = self._wide(problems * outputs)
        pieces = coefficients.reshape(problems * outputs, width).T.split(list(design.widths.values()))
        logits = design.apply(Blocks({name: piece.contiguous() for name, piece in zip(design.widths, pieces)}))
        return (logits - logits.mean(0)).T.reshape(problems, outputs, self.rows).contiguous()

    def adjoint(self, residuals: Tensor) -> Tensor:
        """R X_c."""
        problems, outputs, rows = residuals.shape
        flat = residuals.reshape(problems * outputs, rows)
        centred = (flat - flat.mean(1, keepdim=True)).T.contiguous()
        found = self._wide(problems * outputs).adjoint(centred)
        return torch.cat(list(found.values())).T.reshape(problems, outputs, self.width).contiguous()

    def blocks(self, coefficients: Tensor) -> Blocks:
        """(p, K) cut into the blocks of the given design."""
        pieces = torch.split(coefficients, list(self.widths.values()))
        return Blocks({name: piece.contiguous() for name, piece in zip(self.widths, pieces)})

    def lift(self, coefficients: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (p, C) as they are, and the intercept for uncentred features."""
        wide = coefficients.to(torch.float64)
        return wide, intercept.to(torch.float64) - self.mean @ wide
