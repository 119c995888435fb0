"""Cross-validated logistic heads along a path of penalties: truncated Newton, L-BFGS, and scikit-learn's L-BFGS.

All folds of every penalty, each from where the last one ended, on features at hand: digits, and drawn features whose
mean squares fall as a power. Ours begin with the features' eigenbasis, scikit-learn with the features. ``lbfgs_s``: our
own L-BFGS, which streamed features are solved by. The floor is the products with the features that Newton's method
takes, alone. ``error`` and ``error_lbfgs``: the largest difference of an out-of-fold probability from that at a
gradient of 1e-7 in float64.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from common import Row, interleaved, parser, report
from regraft.heads.l2 import iterative
from regraft.heads.l2.lbfgs import minimise
from regraft.heads.l2.model import Basis
from regraft.heads.losses import LOSSES
from regraft.linear.products import one_blas_thread

FOLDS = 5
STRENGTHS = torch.logspace(0, -5, 12, dtype=torch.float64).tolist()
CASES = {"digits, 60 rows": (60, 0), "digits, 200 rows": (200, 0), "digits, 1,000 rows": (1000, 0)}
CASES["1,000 rows, 10 classes"] = (1000, 10)


def _rows(count: int, classes: int) -> tuple[Tensor, Tensor]:
    """Features (N, d) float64 and codes; of digits, or drawn about a mean for every class."""
    rng = np.random.default_rng(0)
    if not classes:
        images, codes = load_digits(return_X_y=True)
        some = rng.permutation(len(codes))[:count]
        return torch.tensor(images[some] / 16), torch.tensor(codes[some])
    codes = np.arange(count) % classes
    means = rng.normal(size=(classes, 1500))
    features = (rng.normal(size=(count, 1500)) + 0.5 * means[codes]) * np.arange(1, 1501) ** -0.7
    return torch.tensor(features), torch.tensor(codes)


def _basis(x: Tensor) -> Basis:
    """Of the Gram matrix where features are more than rows."""
    return Basis.of_gram(x @ x.T) if x.shape[1] > len(x) else Basis.of_rows(lambda: iter([x]))


@contextmanager
def _by(solver: Callable[..., Any], allowed: int) -> Iterator[None]:
    before = iterative.newton, iterative._SEARCH_ITERATIONS
    iterative.newton, iterative._SEARCH_ITERATIONS = solver, allowed
    try:
        yield
    finally:
        iterative.newton, iterative._SEARCH_ITERATIONS = before


def _measured(name: str, count: int, classes: int, repeats: int) -> Row:
    x, codes = _rows(count, classes)
    folds = torch.tensor(np.random.default_rng(1).permutation(count) % FOLDS)
    basis = _basis(x)
    targets, ones = torch.nn.functional.one_hot(codes).double(), torch.ones(count, 1, dtype=torch.float64)
    low = basis.to(torch.float32)  # which the products read
    products: list[int] = []

    def path(model: Basis, tolerance: float | None = None) -> Tensor:
        solver = iterative.PathSolver(model, LOSSES["softmax"], targets, ones, folds, tolerance)
        return torch.stack([solver.fit(s * basis.scale).out_of_fold for s in STRENGTHS]).softmax(2)

    def counted(problem: Any, penalty: float, **how: Any) -> Any:
        fit = newton(problem, penalty, **how)
        products.append(fit.iterations)
        return fit

    def peer() -> None:
        for fold in range(FOLDS):
            model, train = LogisticRegression(warm_start=True, max_iter=2000), (folds != fold).numpy()
            for strength in STRENGTHS:
                model.C = 1 / (strength * basis.scale * train.sum())
                model.fit(x.numpy()[train], codes.numpy()[train])

    def floor() -> None:
        theta, residuals = torch.randn(FOLDS, targets.shape[1], low.width), torch.randn(FOLDS, targets.shape[1], count)
        for _ in range(sum(products)):
            low.forward(theta)
            low.adjoint(residuals)

    newton = iterative.newton
    with _by(counted, iterative._SEARCH_ITERATIONS):
        found = path(low)
    with _by(newton, 100_000):
        exact = path(basis, 1e-7)

    def other() -> Tensor:
        with _by(minimise, iterative._SEARCH_ITERATIONS):
            return path(_basis(x).to(torch.float32), iterative.STREAMED_TOLERANCE)

    ways = {"ours": lambda: path(_basis(x).to(torch.float32)), "lbfgs": other, "peer": peer, "floor": floor}
    times, results = interleaved(ways, repeats=repeats, clock=time.process_time)
    error = float((found - exact).abs().max())
    more = {"lbfgs_s": times["lbfgs"].median, "error_lbfgs": float((results["lbfgs"] - exact).abs().max())}
    return Row.timed(name, times["ours"], peer=("sklearn", times["peer"]), floor=times["floor"], error=error, more=more)


@one_blas_thread()
def main() -> None:
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    cases = dict(list(CASES.items())[:2]) if arguments.quick else CASES
    rows = [_measured(name, *sizes, repeats=3) for name, sizes in cases.items()]
    columns = ("case", "ours_s", "lbfgs_s", "peer", "peer_s", "ratio", "floor_s", "times_floor", "error", "error_lbfgs")
    report("logistic", rows, arguments.json, columns=columns)


if __name__ == "__main__":
    main()
