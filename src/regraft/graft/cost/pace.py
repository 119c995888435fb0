"""How fast this machine solves heads: the rate of each kind of product, and what a fit takes that is no arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from regraft.heads import Response, group_lasso, solve
from regraft.linear import Dense, FeatureDesign

__all__ = ["eigen", "head", "lasso", "path", "product"]

_SIDE, _ROWS, _WIDTH = 512, 128, 256


def product() -> float:
    """Operations a second of a product of two square matrices in float32."""
    square = torch.randn(_SIDE, _SIDE, generator=_generator())
    return 2 * _SIDE**3 / _second(lambda: square @ square)


def eigen() -> float:
    """The same of an eigendecomposition, 10 n³ of them in float64."""
    square = torch.randn(_SIDE, _SIDE, generator=_generator(), dtype=torch.float64)
    gram = square @ square.T
    return 10 * _SIDE**3 / _second(lambda: torch.linalg.eigh(gram))


def path(outputs: int) -> float:
    """The same of a square matrix with one of so many columns in float64."""
    square = torch.randn(_SIDE, _SIDE, generator=_generator(), dtype=torch.float64)
    thin = square[:, :1].repeat(1, outputs)
    return 2 * _SIDE**2 * outputs / _second(lambda: square @ thin)


def head(outputs: int, folds: int, *, numbers: bool) -> float:
    """Seconds of choosing a head for a few rows, where hardly any are arithmetic: steps of solvers, of which a head on
    more rows and more outputs takes about as many."""
    design, response = _few(outputs, numbers)
    forms = ("ridge",) if numbers else ("ridge", "logistic")
    metric, parts = "r2" if numbers else "accuracy", np.arange(_ROWS) // design.n_outputs % folds
    return _second(lambda: solve(design, response, forms=forms, folds=parts, metric=metric, calibrate=False))


def lasso(outputs: int, fits: int, *, numbers: bool) -> float:
    """The same of a path of the group lasso with so many penalties."""
    design, response = _few(outputs, numbers)
    return _second(lambda: group_lasso(design, response, strengths=tuple(10.0 ** -(k + 1) for k in range(fits))))


def _few(outputs: int, numbers: bool) -> tuple[FeatureDesign, Response]:
    """Rows that can be told apart, as real ones can: weak penalties then take many steps. Of many outputs so few that
    each class has two rows."""
    drawn = torch.randn(_ROWS, _WIDTH, generator=_generator())
    outputs = min(outputs, _ROWS // 2)
    if numbers:
        values = drawn[:, :outputs].double().numpy()
        return FeatureDesign({"": Dense(drawn)}, outputs), Response.of("regression", _names(outputs), values)
    names = _names(max(outputs, 2))
    codes = torch.arange(_ROWS) % len(names)
    drawn += torch.randn(len(names), _WIDTH, generator=_generator())[codes]
    return FeatureDesign({"": Dense(drawn)}, len(names)), Response.of("multiclass", names, codes.numpy())


def _names(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _second(call: Callable[[], object]) -> float:
    """Seconds of the second of two calls."""
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
