"""The columns of a design as a sparse problem needs them: all of them once in a while, some of them in memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.response import Response
from regraft.heads.sparse.penalty import Penalty
from regraft.linear import Dense, FeatureDesign, Kept

__all__ = ["Columns", "as_features"]

_CHUNK_BYTES = 64 * 2**20
"""How much of a layer is read at once for a certificate."""
_TILE_BYTES = 4 * 2**20
"""How much of a chunk is held in float64 at once, so that it stays in cache."""


class Columns:
    """Columns of the rows of a design that have labels, counted through the layers in order.

    Args:
        design: features of N rows.
        rows: (N,) bool, the rows to look at.
        penalty: whose dual norm is taken.
        exact: multiply float32 features in float64; else in float32, at twice the speed or more.
        whole: read the other rows too and give them a weight of zero, which is faster than to leave them out of
            a matrix in memory; they must be finite.
    """

    def __init__(
        self, design: FeatureDesign, rows: Tensor, penalty: Penalty, exact: bool = True, whole: bool = False
    ) -> None:
        self.penalty, self.exact = penalty, exact
        self.index = rows.nonzero().squeeze(1) if whole and not bool(rows.all()) else None
        found = design if whole or bool(rows.all()) else design.take(rows)
        if not isinstance(found, FeatureDesign):
            raise SolverError(f"rows of a {type(design).__name__} are a {type(found).__name__}")
        self.design, self.width = found, found.width

    def gather(self, columns: Tensor) -> Tensor:
        """(k, n) float64 columns of X, for rising indices."""
        design, found, begin = self.design, [], 0
        for name, matrix in design.matrices.items():
            width = design.widths[name]
            inside = columns[(columns >= begin) & (columns < begin + width)] - begin
            if len(inside):
                kept = Kept(matrix, inside).rows(slice(0, design.n_rows))
                found.append(kept.to("cpu", torch.float64).T)
            begin += width
        columns = torch.cat(found)
        return (columns if self.index is None else columns[:, self.index]).contiguous()

    @property
    def rounding(self) -> float:
        """By how much of Σ_i |θ_i x_ij| a sum Σ_i θ_i x_ij may be off: every number by eps of the features' dtype, and
        n products added up in their own by about √n eps (Higham and Mary 2019)."""
        eps = torch.finfo(self.design.dtype).eps
        return eps + self.design.n_rows**0.5 * torch.finfo(self._dtype).eps

    @property
    def _dtype(self) -> torch.dtype:
        """Of the products."""
        return torch.float32 if not self.exact and self.design.dtype == torch.float32 else torch.float64

    def norms(self, theta: Tensor, *, absolute: bool = False) -> Tensor:
        """‖Θ X_j‖ of all features in the penalty's dual norm, (d,) float64, one pass; of |X_j| where ``absolute``."""
        design = self.design
        dtype = self._dtype
        if self.index is not None:
            theta = theta.new_zeros(len(theta), design.n_rows).index_copy_(1, self.index, theta)
        theta = theta.to(design.device, dtype)
        found = []
        for name, matrix in design.matrices.items():
            width = design.widths[name]
            total = torch.zeros(theta.shape[0], width, dtype=dtype, device=theta.device)
            step = max(1, _CHUNK_BYTES // max(1, width * design.dtype.itemsize))
            for start in range(0, design.n_rows, step):
                part = slice(start, min(start + step, design.n_rows))
                chunk = matrix.rows(part).to(design.device)
                _add_product(total, theta[:, part], chunk.abs() if absolute else chunk)
            found.append(self.penalty.duals(total).to("cpu", torch.float64))
        norms = torch.cat(found)
        if not bool(torch.isfinite(norms).all()):
            column = int((~torch.isfinite(norms)).nonzero()[0])
            raise SolverError(
                f"feature {column} holds NaN or infinity",
                expected="finite numbers",
                do="look at the inputs of that layer, or leave it out",
            )
        return norms


def _add_product(total: Tensor, left: Tensor, chunk: Tensor) -> None:
    """total += left @ chunk in the dtype of both; a chunk of fewer bits is widened tile by tile, in cache."""
    if chunk.dtype == total.dtype:
        total.addmm_(left, chunk)
        return
    height, width = chunk.shape
    across = max(256, _TILE_BYTES // (8 * max(1, height)))
    tile = torch.empty(height * across, dtype=torch.float64, device=chunk.device)
    for start in range(0, width, across):
        piece = chunk[:, start : start + across]
        wide = tile[: piece.numel()].view(piece.shape).copy_(piece)
        total[:, start : start + across].addmm_(left, wide)


def as_features(design: FeatureDesign | Tensor | np.ndarray, response: Response) -> FeatureDesign:
    """The features as a design, checked against the number of labels.

    Raises:
        SolverError: no features, what is no real number, or another number of rows.
    """
    if not isinstance(design, FeatureDesign):
        if not isinstance(design, Tensor | np.ndarray) or design.ndim != 2:
            raise SolverError(f"features are a {type(design).__name__}", expected="a FeatureDesign or an (N, d) array")
        design = FeatureDesign({"features": Dense(_numbers(design))}, response.n_outputs)
    if design.n_rows != len(response):
        raise SolverError(f"the features have {design.n_rows} rows", expected=f"{len(response)}, as the labels")
    if design.width == 0:
        raise SolverError("there are no features", expected="at least one column")
    return design


def _numbers(features: Tensor | np.ndarray) -> Tensor:
    """(N, d) of a floating dtype that torch has."""
    if isinstance(features, np.ndarray):
        if features.dtype.kind not in "buif":
            raise SolverError(f"the features are of type {features.dtype}", expected="real numbers")
        single = features.dtype.kind == "f" and features.dtype.itemsize <= 4
        # torch takes no array that is read backwards or of foreign byte order
        return torch.from_numpy(np.ascontiguousarray(features, np.float32 if single else np.float64))
    if features.is_complex():
        raise SolverError(f"the features are of type {features.dtype}", expected="real numbers")
    return features.detach() if features.is_floating_point() else features.double()
