"""Small problems that the solver tests share."""

from __future__ import annotations

import numpy as np
import torch

from regraft.heads import Response
from regraft.linear import Blocks, Dense, Design, FeatureDesign
from regraft.linear.design import take_of


def features(n: int, d: int, classes: int = 3, seed: int = 0, shift: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows around class centres, columns of falling variance, far from the origin; every class occurs."""
    rng = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(classes), rng.integers(classes, size=n - classes)])
    centres = rng.normal(size=(classes, d))
    x = (rng.normal(size=(n, d)) + 0.7 * centres[codes]) * (1 + np.arange(d)) ** -0.5 + shift
    return x, codes


def design_of(x: np.ndarray, outputs: int, cuts: int = 1, dtype: torch.dtype = torch.float64) -> FeatureDesign:
    """Columns cut into ``cuts`` blocks."""
    parts = np.array_split(x, cuts, axis=1)
    return FeatureDesign({f"layer{i}": Dense(torch.tensor(p, dtype=dtype)) for i, p in enumerate(parts)}, outputs)


def classes_of(codes: np.ndarray, count: int | None = None) -> Response:
    count = count or int(codes.max()) + 1
    return Response.of("multiclass", [f"c{i}" for i in range(count)], codes)


def scale_of(x: np.ndarray) -> float:
    """t: the mean squared norm about the mean."""
    return float(((x - x.mean(0)) ** 2).sum(1).mean())


def flat(coefficients: dict) -> np.ndarray:
    return torch.cat(list(coefficients.values())).double().numpy()


class DenseDesign(Design):
    """One block of coefficients that all outputs share, as a tensor (N, C, r)."""

    def __init__(self, matrix: torch.Tensor, name: str = "rows") -> None:
        super().__init__({name: (matrix.shape[2],)}, *matrix.shape[:2], matrix.dtype)
        self.matrix, self.name = matrix, name

    def _apply(self, coefficients: Blocks) -> torch.Tensor:
        return self.matrix @ coefficients[self.name]

    def _adjoint(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {self.name: torch.einsum("ncr,nc->r", self.matrix, outputs)}


@take_of.register
def _(design: DenseDesign, index: torch.Tensor) -> DenseDesign:
    return DenseDesign(design.matrix[index], design.name)
