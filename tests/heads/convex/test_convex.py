"""Convex heads on any design: dense oracles, scikit-learn, closed forms, and the duality gap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimise
from sklearn.linear_model import LogisticRegression, Ridge
from tests.heads.problems import DenseDesign

from regraft.errors import SolverError
from regraft.heads import ConvexProblem, minimise
from regraft.heads.convex.lbfgs import lbfgs
from regraft.heads.convex.minibatch import ADAM, SGD, MiniBatch, minibatch
from regraft.heads.convex.newton import newton
from regraft.heads.convex.problem import Trace
from regraft.heads.convex.rowspace import dual
from regraft.linear import Blocks, Dense, Design, FeatureDesign
from regraft.linear.design import rows_of, take_of

LOSSES = ("softmax", "sigmoid", "squared")
N, D, C, R = 24, 6, 3, 40


def blocks(*, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0, rows: int = N):
    """Features beside a block that all outputs share, as the full gradient model has them."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, D, generator=g, dtype=torch.float64) + 1.0
    shared = scale * torch.randn(rows, C, R, generator=g, dtype=torch.float64)
    return x.to(dtype), shared.to(dtype)


def problem(
    loss: str, *, penalty: float = 0.05, dtype: torch.dtype = torch.float64, scale: float = 1.0, **fields
) -> ConvexProblem:
    x, shared = blocks(dtype=dtype, scale=scale)
    design = FeatureDesign({"x": Dense(x)}, C) | DenseDesign(shared, "w2")
    codes = torch.randint(C, (N,), generator=torch.Generator().manual_seed(1))
    codes[:C] = torch.arange(C)
    targets = torch.nn.functional.one_hot(codes, C).double()
    if loss == "squared":
        targets = targets + 0.3 * torch.randn(N, C, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given = {"weights": torch.ones(N, 1, dtype=torch.float64), "penalties": {"x": penalty, "w2": 2 * penalty}, **fields}
    return ConvexProblem(design, loss, targets, **given)


def oracle(p: ConvexProblem) -> float:
    """The minimum by SciPy on dense float64 numbers, written out from the formula."""
    names = list(p.design.shapes)
    eye = torch.eye(p.design.n_coefficients, dtype=torch.float64)
    wide = {name: t.double() for name, t in p.design.rows(list(range(N))).items()}
    phi = torch.cat([wide[name].reshape(N * C, -1) for name in names], dim=1)
    sizes = [wide[name].reshape(N * C, -1).shape[1] for name in names]
    lam = torch.cat([torch.full((s,), p.penalties[n], dtype=torch.float64) for n, s in zip(names, sizes)])
    shares = p.weights / p.weights.sum(0)

    def value(theta: np.ndarray):
        t = torch.tensor(theta, requires_grad=True)
        w, b = t[: len(eye)], t[len(eye) :]
        f = (phi @ w).view(N, C) + b
        if p.loss == "softmax":
            each = (torch.logsumexp(f, 1) - (p.targets * f).sum(1))[:, None]
        elif p.loss == "sigmoid":
            each = torch.nn.functional.softplus(f) - p.targets * f
        else:
            each = 0.5 * (f - p.targets).square()
        total = (shares * each).sum() + 0.5 * (lam * w.square()).sum()
        total.backward()
        return float(total.detach()), t.grad.numpy()

    start = np.zeros(len(eye) + C)
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-10}
    return float(scipy_minimise(value, start, jac=True, method="L-BFGS-B", options=options).fun)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("way", [newton, lbfgs, dual], ids=lambda f: f.__name__)
@pytest.mark.parametrize("penalty", [0.3, 1e-3])
def test_solvers_reach_the_optimum_and_bound_their_distance_to_it(loss, way, penalty) -> None:
    p = problem(loss, penalty=penalty)
    fit = way(p, gap=1e-7)
    best = oracle(p)
    assert fit.status.converged
    assert fit.relative_gap <= 1e-7
    assert fit.objective - best <= fit.gap + 1e-9
    assert fit.objective >= best - 1e-9
    assert p.at(fit.coefficients).objective == pytest.approx(fit.objective, rel=1e-12)
    torch.testing.assert_close(fit.logits, p.design.apply(fit.coefficients) + fit.intercept)


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_and_missing_labels_are_part_of_the_problem(loss) -> None:
    g = torch.Generator().manual_seed(5)
    weights = torch.rand(N, 1 if loss == "softmax" else C, generator=g).double()
    weights[3] = 0
    p = problem(loss, weights=weights)
    best = oracle(p)
    for way in (newton, lbfgs, dual):
        fit = way(p, gap=1e-8)
        assert fit.objective == pytest.approx(best, abs=1e-7 * best + 1e-9)
        assert 0 <= fit.gap <= 1e-8 * fit.objective


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_is_a_bound_anywhere_and_half_the_squared_gradient(loss) -> None:
    p = problem(loss)
    best = newton(p, gap=1e-10).objective
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        w = Blocks({name: torch.randn(s, generator=g).double() for name, s in p.design.shapes.items()})
        fit = p.at(w)
        assert fit.objective - fit.gap <= best + 1e-10
        trace = Trace()
        u = p.standardised(w)
        point = p.point(u, p.plain(u, trace), trace)
        assert fit.gap == pytest.approx(0.5 * float(point.gradient.square().sum()), rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_and_hessian_are_derivatives_of_the_objective_without_the_intercept(loss) -> None:
    p, trace = problem(loss), Trace()
    g = torch.Generator().manual_seed(3)
    u = torch.randn(p.design.n_coefficients, generator=g).double()
    v = torch.randn(p.design.n_coefficients, generator=g).double()

    def at(step: float):
        return p.point(u + step * v, p.plain(u + step * v, trace), trace)

    h = 1e-5
    middle, up, down = at(0.0), at(h), at(-h)
    assert float(middle.gradient @ v) == pytest.approx((up.objective - down.objective) / (2 * h), rel=1e-6)
    curve = p.eliminated(middle.predictions)
    product = v + p.backward(curve.product(p.forward(v, trace)), trace)
    torch.testing.assert_close(product, (up.gradient - down.gradient) / (2 * h), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("penalty", [0.1, 1e-3])
def test_plain_features_agree_with_scikit_learn(penalty) -> None:
    x = blocks(rows=60)[0]
    codes = torch.randint(C, (60,), generator=torch.Generator().manual_seed(4))
    p = ConvexProblem(
        FeatureDesign({"x": Dense(x)}, C),
        "softmax",
        torch.nn.functional.one_hot(codes, C).double(),
        torch.ones(60, 1).double(),
        {"x": penalty},
    )
    fit = newton(p, gap=1e-12, gradient=1e-12)
    model = LogisticRegression(C=1 / (60 * penalty), tol=1e-12, max_iter=10_000).fit(x.numpy(), codes.numpy())
    expected = model.decision_function(x.numpy())
    found = (fit.logits - fit.logits.mean(1, keepdim=True)).numpy()
    np.testing.assert_allclose(found, expected - expected.mean(1, keepdims=True), atol=2e-5)


def test_squares_have_the_closed_form_of_ridge() -> None:
    p = problem("squared", penalty=0.2)
    both = torch.cat([each.reshape(N * C, -1) for each in p.design.rows(list(range(N))).values()], dim=1)
    # one intercept an output, by its indicator; the penalty of scikit-learn is over the sum, 2 × our mean's
    scale = torch.cat([torch.full((D * C,), 0.2), torch.full((R,), 0.4)]).double().rsqrt()
    indicator = torch.eye(C).double().repeat(N, 1)
    centred = both * scale - indicator @ (indicator.T @ (both * scale)) / N
    target = (p.targets - p.targets.mean(0)).reshape(-1)
    model = Ridge(alpha=float(N), fit_intercept=False, solver="cholesky").fit(centred.numpy(), target.numpy())
    best = torch.tensor(model.coef_) * scale
    for gap in (1e-2, 1e-6, 1e-10):
        fit = newton(p, gap=gap, gradient=1e-13)
        missed = (fit.coefficients.flatten() - best) / scale
        assert float(missed.norm()) <= (2 * fit.gap) ** 0.5 + 1e-9  # strong convexity: ½ ‖u − u*‖² ≤ F − F*
    torch.testing.assert_close(fit.coefficients.flatten(), best, rtol=1e-4, atol=1e-5)


def test_moments_change_no_solution_and_save_products_on_features() -> None:
    g = torch.Generator().manual_seed(8)
    x = torch.randn(200, 30, generator=g).double() * (1 + torch.arange(30)) ** -0.5 * 3 + 1
    targets = torch.nn.functional.one_hot(torch.randint(C, (200,), generator=g), C).double()
    centred = x - x.mean(0)
    given = (FeatureDesign({"x": Dense(x)}, C), "softmax", targets, torch.ones(200, 1).double(), {"x": 1e-4})
    plain = ConvexProblem(*given)
    helped = ConvexProblem(*given, moments={"x": centred.T @ centred / 200})
    slow, fast = newton(plain, gap=1e-8), newton(helped, gap=1e-8)
    assert fast.objective == pytest.approx(slow.objective, rel=2e-8)
    assert fast.products < slow.products / 2
    assert lbfgs(helped, gap=1e-7).objective == pytest.approx(slow.objective, rel=2e-7)


def test_starting_at_the_solution_takes_no_step() -> None:
    p = problem("softmax")
    first = newton(p, gap=1e-9)
    again = newton(p, start=first.coefficients, gap=1e-8)
    assert again.status.iterations == 0
    assert again.objective == pytest.approx(first.objective)
    assert newton(p, start=first.coefficients, gap=1e-12).products < first.products


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_a_start_beside_zero_that_is_the_optimum_comes_back_to_it(solver) -> None:
    p = problem("squared")
    alike = ConvexProblem(p.design, "squared", torch.full((N, C), 2.0).double(), p.weights, p.penalties)
    found = minimise(alike, solver, start=minimise(p, solver).coefficients)
    assert found.status.converged
    assert float(found.coefficients.norm()) < 1e-5
    torch.testing.assert_close(found.intercept, torch.full((C,), 2.0).double(), atol=1e-5, rtol=0)


def test_float32_designs_reach_a_gap_that_float64_confirms() -> None:
    fit = newton(problem("softmax", penalty=1e-2, dtype=torch.float32), gap=1e-6)
    exact = problem("softmax", penalty=1e-2)
    assert fit.status.converged
    assert exact.at(fit.coefficients.to(torch.float64)).gap <= 1e-5 * fit.objective


@pytest.mark.parametrize("loss", LOSSES)
def test_saturated_starts_are_left(loss) -> None:
    """Logits far out have no curvature: the line search and the intercept must still find their way back."""
    g = torch.Generator().manual_seed(7)
    p = problem(loss, penalty=1e-2, scale=5.0)
    far = Blocks({name: 50 * torch.randn(s, generator=g).double() for name, s in p.design.shapes.items()})
    fit = newton(p, start=far, gap=1e-6, max_iterations=200)
    assert fit.status.converged
    assert fit.objective == pytest.approx(newton(p, gap=1e-6).objective, rel=2e-6)


def test_a_label_that_never_occurs_leaves_a_finite_fit_with_a_true_gap() -> None:
    p = problem("softmax")
    targets = p.targets.clone()
    targets[:, 0] += targets[:, 2]
    targets[:, 2] = 0
    lone = ConvexProblem(p.design, "softmax", targets, p.weights, p.penalties)
    fit = newton(lone, gap=1e-6)
    assert fit.status.converged
    assert bool(torch.isfinite(fit.intercept).all())
    assert oracle(lone) >= fit.objective - fit.gap - 1e-9


def test_limits_end_a_solve_with_a_status_and_a_gap_that_holds() -> None:
    p = problem("softmax", penalty=1e-4)
    best = newton(p, gap=1e-9).objective
    for way in (newton, lbfgs):
        seen: list[tuple[float, ...]] = []
        fit = way(p, gap=1e-9, max_iterations=1, progress=lambda *args, seen=seen: seen.append(args))
        assert not fit.status.converged
        assert "allow more iterations" in fit.status.message
        assert best < fit.objective <= best + fit.gap
        assert [seen[0][0], seen[-1][2]] == [0, fit.objective]


# ------------------------------------------------------------------------------------ the paper's schedules


@pytest.mark.parametrize(("schedule", "optimiser"), [(ADAM, "adam"), (SGD, "sgd")])
def test_a_schedule_takes_the_steps_that_torch_takes_on_the_written_out_loss(schedule, optimiser) -> None:
    p = problem("softmax", penalty=1e-2)
    deviations = {"w2": 0.5}
    small = MiniBatch(optimiser, schedule.lr, schedule.momentum, 8, 7, 3, schedule.clip)
    found = minibatch(p, small, deviations=deviations, seed=3)
    x, shared = blocks()
    v1 = torch.zeros(D, C).double().requires_grad_()
    v2 = torch.zeros(R).double().requires_grad_()
    start = p.at(Blocks({"x": v1.detach(), "w2": v2.detach()}))
    b = start.intercept.clone().requires_grad_()
    betas = (0.5, 0.999)
    params = [v1, v2, b]
    tool = torch.optim.Adam(params, 1e-3, betas) if optimiser == "adam" else torch.optim.SGD(params, 0.1, 0.9)
    g, step = torch.Generator().manual_seed(3), 0
    while step < 7:
        order = torch.randperm(N, generator=g)
        for rows in order.split(8):
            if step == 7:
                break
            for group in tool.param_groups:
                group["lr"] = small.lr * 0.5 ** (step // 3)
            tool.zero_grad()
            logits = x[rows] @ v1 + shared[rows] @ (0.5 * v2) + b
            loss = torch.nn.functional.cross_entropy(logits, p.targets[rows].argmax(1))
            (loss + 0.5 * 1e-2 * v1.square().sum() + 0.5 * 2e-2 * (0.5 * v2).square().sum()).backward()
            if small.clip is not None:
                torch.nn.utils.clip_grad_norm_(params, small.clip)
            tool.step()
            step += 1
    torch.testing.assert_close(found.coefficients["x"], v1.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.coefficients["w2"], 0.5 * v2.detach(), rtol=1e-9, atol=1e-12)
    assert found.status.iterations == 7


class Counting(Design):
    """A design that counts the rows that its products go over."""

    def __init__(self, inner: Design, counts: list[int]) -> None:
        super().__init__(inner.shapes, inner.n_rows, inner.n_outputs, inner.dtype)
        self.inner, self.counts = inner, counts

    def _apply(self, coefficients):
        self.counts.append(self.n_rows)
        return self.inner.apply(coefficients)

    def _adjoint(self, outputs):
        self.counts.append(self.n_rows)
        return self.inner.adjoint(outputs)


@take_of.register
def _(design: Counting, index: torch.Tensor) -> Design:
    return Counting(design.inner.take(index), design.counts)


@rows_of.register
def _(design: Counting, index: torch.Tensor) -> Blocks:
    design.counts.append(len(index))
    return design.inner.rows(index)


@pytest.mark.parametrize("way", ["newton", "lbfgs", "dual", "minibatch"])
def test_products_are_those_that_were_made(way) -> None:
    p = problem("softmax")
    counts: list[int] = []
    counted = ConvexProblem(Counting(p.design, counts), "softmax", p.targets, p.weights, p.penalties)
    if way == "minibatch":
        found = minibatch(counted, MiniBatch(batch=5, steps=48), every=20)
    else:
        found = minimise(counted, way)
    assert found.products == sum(counts) / N


def test_the_published_schedules_are_as_published() -> None:
    assert (ADAM.optimiser, ADAM.lr, ADAM.momentum, ADAM.batch, ADAM.steps, ADAM.halve_every) == (
        "adam", 1e-3, 0.5, 64, 80_000, 20_000,
    )  # fmt: skip
    assert (SGD.optimiser, SGD.lr, SGD.momentum, SGD.batch, SGD.clip) == ("sgd", 0.1, 0.9, 128, 10.0)


def test_a_schedule_nears_the_optimum_and_stops_where_it_is_told() -> None:
    p = problem("softmax", penalty=0.05)
    best = newton(p, gap=1e-9).objective
    fit = minibatch(p, ADAM, max_iterations=3000, objective=best + 1e-2, every=100)
    assert best <= fit.objective <= best + 1e-2
    assert fit.status.iterations < 3000
    assert minimise(p, "adam", iterations=5).status.iterations == 5


# ------------------------------------------------------------------------------------ what is refused


def test_auto_takes_the_dual_where_rows_are_few_and_newton_elsewhere() -> None:
    p = problem("softmax")
    long = DenseDesign(torch.cat([blocks()[1], blocks(seed=1)[1]], dim=2))
    few = ConvexProblem(long, "softmax", p.targets, p.weights, {"rows": 0.1})
    assert "after 0 iterations" in minimise(few, gap=1e-6).status.message  # Newton on the design had nothing left to do
    for most in (0, 1, 2):
        status = minimise(few, gap=1e-12, iterations=most).status
        assert (status.iterations, status.converged) == (most, False)
    wide = ConvexProblem(
        FeatureDesign({"x": Dense(blocks()[0])}, C), "softmax", problem("softmax").targets, torch.ones(N, 1).double(),
        {"x": 0.1},
    )  # fmt: skip
    assert minimise(wide, gap=1e-6).status.iterations > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"penalties": {"x": 1.0}}, "penalty of block 'w2'"),
        ({"penalties": {"x": 1.0, "w2": 0.0}}, "above zero"),
        ({"weights": torch.ones(N, C).double()}, "weights"),
        ({"weights": torch.zeros(N, 1).double()}, "weights"),
    ],
)
def test_problems_that_make_no_sense_are_refused_in_a_sentence(change, words) -> None:
    with pytest.raises(SolverError, match=words):
        problem("softmax", **change)


def test_unknown_losses_solvers_tolerances_and_nan_are_refused() -> None:
    with pytest.raises(SolverError, match="loss 'hinge' is unknown"):
        problem("hinge")
    with pytest.raises(SolverError, match="solver 'magic' is unknown"):
        minimise(problem("softmax"), "magic")
    with pytest.raises(SolverError, match="tolerance of the gap"):
        newton(problem("softmax"), gap=0.0)
    p = problem("softmax")
    bad = blocks()[1].clone()
    bad[0, 0, 0] = torch.nan
    broken = ConvexProblem(DenseDesign(bad), "softmax", p.targets, p.weights, {"rows": 1.0})
    for way in (newton, lbfgs, dual):
        with pytest.raises(SolverError, match="NaN"):
            way(broken)
