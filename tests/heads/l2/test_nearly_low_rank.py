"""Features that hardly vary in most directions, with fewer rows than features: the head is still the fit.

What the dual weights say of the shared directions cancels, so that their rounding must not reach the coefficients.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from regraft.heads import Response, solve
from regraft.linear import Dense, FeatureDesign, UnitRows

ROWS, NEW = 60, 40


def layers(seed: int, outputs: int = 1) -> tuple[FeatureDesign, FeatureDesign, np.ndarray]:
    """(training rows, new rows, targets) of a small network of two inputs: rows of unit norm by layer, float32.

    The last layer has one unit, which unit norm makes a constant.
    """
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(ROWS + NEW, 2))
    first = np.maximum(inputs @ rng.normal(size=(2, 64)) * 0.3 + 1, 0)
    second = np.maximum(first @ rng.normal(size=(64, 32)) * 0.02 + 0.5, 0)
    last = -1 - np.abs(second @ rng.normal(size=(32, 1)))
    parts = {"first": first, "second": second, "last": last}
    blocks = {name: torch.tensor(part, dtype=torch.float32) for name, part in parts.items()}

    def design(part: slice) -> FeatureDesign:
        return FeatureDesign({name: UnitRows(Dense(block[part])) for name, block in blocks.items()}, outputs)

    targets = 20 * (np.sin(inputs[:, 0]) + inputs[:, 1] ** 2) + rng.normal(size=len(inputs))
    return design(slice(0, ROWS)), design(slice(ROWS, None)), targets


def centred(design: FeatureDesign, new: FeatureDesign) -> tuple[np.ndarray, np.ndarray, float]:
    """Both in the training rows' principal axes, float64, and the unit of the penalty."""
    x, held = design.dense().double().numpy(), new.dense().double().numpy()
    mean = x.mean(0)
    _, sizes, axes = np.linalg.svd(x - mean, full_matrices=False)
    return (x - mean) @ axes.T, (held - mean) @ axes.T, float((sizes**2).sum() / len(x))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("strength", [1e-8, 1e-6, 1e-4, 1e-3])
def test_ridge_predicts_what_the_fit_does(seed, strength):
    design, new, targets = layers(seed)
    response = Response.of("regression", ["y"], targets[:ROWS])
    folds = np.arange(ROWS) % 5
    found = solve(design, response, forms=("ridge",), strengths=(strength,), folds=folds, metric="r2").readout
    z, held, unit = centred(design, new)
    mean = targets[:ROWS].mean()
    v = np.linalg.solve(z.T @ z + ROWS * strength * unit * np.eye(z.shape[1]), z.T @ (targets[:ROWS] - mean))
    spread = targets.std()
    for rows, own in ((design, z), (new, held)):
        predicted = found.logits(rows).double().numpy()[:, 0]
        np.testing.assert_allclose(predicted, mean + own @ v, atol=0.005 * spread)
    assert abs(float(found.coefficients["last"])) < 1e-3 * float(found.coefficients["first"].abs().max())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("strength", [1e-6, 1e-4])
def test_logistic_predicts_what_the_fit_does(seed, strength):
    design, new, targets = layers(seed, 3)
    codes = np.digitize(targets, np.quantile(targets[:ROWS], [0.3, 0.7]))
    response = Response.of("multiclass", ["low", "middle", "high"], codes[:ROWS])
    found = solve(
        design, response, forms=("logistic",), strengths=(strength,), folds=np.arange(ROWS) % 5, metric="accuracy",
        calibrate=False,
    ).readout  # fmt: skip
    z, held, unit = centred(design, new)
    oracle = LogisticRegression(C=1 / (ROWS * strength * unit), tol=1e-10, max_iter=10_000, solver="newton-cg")
    oracle.fit(z, codes[:ROWS])
    for rows, own in ((design, z), (new, held)):
        np.testing.assert_allclose(
            torch.softmax(found.logits(rows).double(), 1).numpy(), oracle.predict_proba(own), atol=0.01
        )
