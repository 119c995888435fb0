"""Newton steps between the kinks: derivatives against automatic differentiation, and what the steps do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from regraft.data import rendered
from regraft.heads import Response, group_lasso, lasso
from regraft.heads.data_term import DataTerm
from regraft.heads.sparse import inner
from regraft.heads.sparse import newton as newton_module
from regraft.heads.sparse.newton import newton
from regraft.heads.sparse.penalty import PENALTIES

LOSSES = ("softmax", "sigmoid", "squared")
ORDERS = {"l1": 1, "l21": 2}
PATHS = {"l1": lasso, "l21": group_lasso}


def term(loss: str, outputs: int = 3, rows: int = 20) -> DataTerm:
    generator = torch.Generator().manual_seed(3)
    if loss == "softmax":
        targets = torch.eye(outputs, dtype=torch.float64)[torch.arange(rows) % outputs].T
        return DataTerm(loss, targets, torch.rand(1, rows, generator=generator, dtype=torch.float64) + 0.1)
    targets = torch.randn(outputs, rows, generator=generator, dtype=torch.float64)
    targets = targets if loss == "squared" else (targets > 0).double()
    return DataTerm(loss, targets, torch.rand(outputs, rows, generator=generator, dtype=torch.float64) + 0.1)


def smooth(data: DataTerm, logits: torch.Tensor) -> torch.Tensor:
    """f(Z) by torch's own functions."""
    if data.loss == "softmax":
        return -(data.weights * data.targets * torch.log_softmax(logits, 0)).sum()
    if data.loss == "sigmoid":
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, data.targets, reduction="none")
        return (data.weights * losses).sum()
    return 0.5 * (data.weights * (data.targets - logits).square()).sum()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_curvature_is_the_hessian(loss):
    data = term(loss)
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda z: smooth(data, z), logits).reshape(60, 60)
    step = torch.randn(3, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    predictions = data.predict(logits)
    torch.testing.assert_close(data.curvature(predictions, step).reshape(-1), hessian @ step.reshape(-1))
    torch.testing.assert_close(data.curvatures(predictions).expand(3, 20).reshape(-1), hessian.diagonal())
    blocks = hessian.reshape(3, 20, 3, 20)
    for c, d in itertools.product(range(3), repeat=2):
        torch.testing.assert_close(data.between(predictions, c, d), blocks[c, :, d].diagonal())


def held(loss: str, seed: int = 0):
    """A row of ones above eight columns, some coefficients zero."""
    generator = torch.Generator().manual_seed(seed)
    data = term(loss)
    matrix = torch.cat([torch.ones(1, 20), torch.randn(8, 20, generator=generator)]).double()
    state = 0.3 * torch.randn(3, 9, generator=generator, dtype=torch.float64)
    state[:, 5] = 0.0
    state[0, 3] = 0.0
    thresholds = torch.full((9,), 0.02, dtype=torch.float64)
    thresholds[0] = 0.0
    return data, matrix, state, thresholds


def objective(name: str, data: DataTerm, matrix: torch.Tensor, state: torch.Tensor, thresholds: torch.Tensor):
    """F, of torch's own functions."""
    return smooth(data, state @ matrix) + (thresholds * torch.linalg.vector_norm(state, ORDERS[name], 0)).sum()


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_steps_lower_the_objective_and_leave_zeros_alone(loss, name):
    data, matrix, state, thresholds = held(loss)
    penalty = PENALTIES[name]
    values = [float(objective(name, data, matrix, state, thresholds))]
    for _ in range(8):
        before = state
        state, products, begun, reached = newton(data, penalty, matrix, state, thresholds, 0.0, 1)
        assert products >= 1
        assert begun == pytest.approx(values[-1])
        values.append(float(objective(name, data, matrix, state, thresholds)))
        assert reached == pytest.approx(values[-1])
        assert not bool(state[~penalty.smooth(before) & (thresholds > 0)].any())
        assert not bool(penalty.crossed(before, state)[:, 1:].any())
    assert all(after <= before + 1e-14 for before, after in itertools.pairwise(values))
    assert values[0] - values[-1] > 1e-3


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_end_is_the_minimum_over_the_support(loss, name):
    """The gradient of F vanishes there, to what a hundred damped steps leave of it."""
    data, matrix, state, thresholds = held(loss)
    thresholds /= 4  # lest all features vanish
    state, *_ = newton(data, PENALTIES[name], matrix, state, thresholds, 0.0, 100)
    state = state.requires_grad_()
    free = PENALTIES[name].smooth(state.detach()) | (thresholds == 0)
    (gradient,) = torch.autograd.grad(
        objective(name, data, matrix[free.any(0)], state[:, free.any(0)], thresholds[free.any(0)]), state
    )
    assert 1 < int(free.any(0).sum()) < 9
    assert float(gradient[free].abs().max()) < 1e-7


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_system_that_is_written_out_is_the_hessian(loss, name):
    data, matrix, state, thresholds = held(loss)
    free = PENALTIES[name].smooth(state) | (thresholds == 0)
    held_columns = free.any(0)
    part, here, bounds, free = (
        matrix[held_columns],
        state[:, held_columns],
        thresholds[held_columns],
        free[:, held_columns],
    )
    system = newton_module._System(data, PENALTIES[name], part, here, bounds, free, data.predict(here @ part), 1e-3)
    whole = torch.autograd.functional.hessian(lambda u: objective(name, data, part, u, bounds), here)
    expected = whole.reshape(here.numel(), -1)[free.reshape(-1)][:, free.reshape(-1)]
    torch.testing.assert_close(system.written_out(), expected + 1e-3 * torch.eye(len(expected)), atol=1e-9, rtol=1e-9)
    direction = torch.where(free, torch.randn(free.shape, dtype=torch.float64), 0.0)
    torch.testing.assert_close(
        system.product(direction)[free], (expected + 1e-3 * torch.eye(len(expected))) @ direction[free]
    )


@pytest.mark.parametrize("strength", [0.02, 0.1, 0.3])
def test_of_squares_one_step_ends_at_the_minimum_of_a_face(strength):
    """F is its own quadratic model inside the orthant: what crosses zero goes to zero, and the others to their minimum
    with it there."""
    data, matrix, state, thresholds = held("squared")
    thresholds = thresholds * (strength / 0.02)
    found, *_ = newton(data, PENALTIES["l1"], matrix, state, thresholds, 0.0, 1)
    gradient = -data.residual(data.predict(found @ matrix)) @ matrix.T + thresholds * found.sign()
    free = (found != 0) | (thresholds == 0)
    assert float(gradient[free].abs().max()) < 1e-5  # what the damping leaves
    assert not bool((found * state < 0)[:, 1:].any())
    gone = int(((found == 0) & (state != 0)).sum())
    assert gone >= 1
    assert gone < int((state != 0).sum())


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_system_that_is_written_out_ends_where_conjugate_gradients_end(loss, name, monkeypatch):
    data, matrix, state, thresholds = held(loss)
    thresholds /= 4  # lest all features vanish
    direct, *_ = newton(data, PENALTIES[name], matrix, state, thresholds, 0.0, 50)
    monkeypatch.setitem(newton_module._DIRECT, name, 0)
    monkeypatch.setattr(newton_module, "_FORCING", 1e-12)
    iterated, *_ = newton(data, PENALTIES[name], matrix, direct, thresholds, 0.0, 50)
    values = [float(objective(name, data, matrix, each, thresholds)) for each in (direct, iterated)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    torch.testing.assert_close(direct[:, 1:], iterated[:, 1:], atol=1e-4, rtol=0)
    predictions = [
        data.predict(each @ matrix) for each in (direct, iterated)
    ]  # softmax leaves the intercept's level free
    torch.testing.assert_close(*predictions, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ORDERS)
def test_columns_that_are_nearly_alike_are_certified(name):
    """Seven directions in 300 columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 7)) @ rng.normal(size=(7, 300)) + 0.03 * rng.normal(size=(150, 300))
    codes = (x[:, :4] + rng.gumbel(size=(150, 4))).argmax(1)
    response = Response.of("multiclass", list("abcd"), codes)
    largest = lasso(x, response, strengths=[1e9]).strength_max
    path = {"strengths": [largest * 10 ** (-k / 2) for k in range(1, 7)], "tol": 1e-3}
    assert all(fit.status.converged for fit in PATHS[name](x, response, **path))


def pixels(rows: int = 200) -> tuple[np.ndarray, Response]:
    """Pictures of a turned shape, 8 × 8 pixels: under a weak penalty the loss of 16 classes is nearly flat."""
    manifest = rendered("orientation", rows, 0)
    pictures = np.stack([np.asarray(manifest.inputs.read(i))[..., 0] for i in range(rows)]) / 255
    x = pictures.reshape(rows, 8, 8, 8, 8).mean((2, 4)).reshape(rows, 64)
    target = manifest.target
    return x[:, x.std(0) > 0.01], Response.of("multiclass", target.classes, target.values)


def test_a_weak_group_lasso_is_certified_where_proximal_steps_alone_are_not(monkeypatch):
    """Of four hundred columns in seven directions: the same number of products, a gap of 3 % or of less than 0.1 %."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 7)) @ rng.normal(size=(7, 400)) + 0.01 * rng.normal(size=(200, 400))
    response = Response.of("multiclass", list("abcd"), (x[:, :4] + rng.gumbel(size=(200, 4))).argmax(1))
    largest = group_lasso(x, response, strengths=[1e9]).strength_max
    path = {"strengths": [largest * 10 ** (-k / 2) for k in (3, 5, 7)], "tol": 1e-3, "max_iterations": 6000}
    found = group_lasso(x, response, **path)[-1]
    monkeypatch.setitem(inner._PATIENCE, "l21", (10**9, 10**9))
    alone = group_lasso(x, response, **path)[-1]
    assert found.status.converged
    assert alone.relative_gap > 5e-3
    assert found.objective < alone.objective


def test_a_weak_penalty_is_certified_where_proximal_steps_alone_are_not(monkeypatch):
    x, response = pixels()
    largest = lasso(x, response, strengths=[1e9]).strength_max
    path = {"strengths": [largest * 10 ** (-k / 2) for k in range(1, 8)], "tol": 1e-3}
    found = lasso(x, response, **path)[-1]
    monkeypatch.setitem(inner._PATIENCE, "l1", (10**9, 10**9))
    alone = lasso(x, response, **path)[-1]
    assert found.status.converged
    assert found.relative_gap <= 1e-3
    assert alone.relative_gap > 5e-3
    assert found.objective < alone.objective


@pytest.mark.parametrize("name", ORDERS)
def test_both_ways_have_one_solution(name, monkeypatch):
    x, response = pixels(120)
    lasso = PATHS[name]
    largest = lasso(x, response, strengths=[1e9]).strength_max
    path = {"strengths": [0.1 * largest, 0.01 * largest], "tol": 1e-8, "max_iterations": 100_000}
    found = lasso(x, response, **path)[-1]
    monkeypatch.setitem(inner._PATIENCE, name, (10**9, 10**9))
    alone = lasso(x, response, **path)[-1]
    assert found.status.iterations > 400
    assert found.objective == pytest.approx(alone.objective, rel=1e-7)
    np.testing.assert_allclose(
        found.intercept - found.intercept.mean(), alone.intercept - alone.intercept.mean(), atol=1e-2
    )


def test_labels_of_several_columns_too():
    x, _ = pixels(150)
    rng = np.random.default_rng(0)
    labels = (x[:, :4] + 0.2 * rng.normal(size=(150, 4)) > x[:, :4].mean(0)).astype(float)
    response = Response.of("multilabel", list("abcd"), labels)
    largest = lasso(x, response, strengths=[1e9]).strength_max
    found = lasso(x, response, strengths=[0.1 * largest, 0.01 * largest, 1e-3 * largest], tol=1e-6)
    assert all(fit.status.converged for fit in found)
