"""Paths of penalties: every strength at the optimum that Newton finds alone, for a fraction of the products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.heads.problems import DenseDesign

from regraft.errors import SolverError
from regraft.heads import ConvexProblem, minimise
from regraft.heads.convex import subspacepath as module
from regraft.heads.convex.newton import newton
from regraft.heads.convex.path import Path
from regraft.heads.convex.rowpath import RowPath
from regraft.heads.convex.subspacepath import SubspacePath
from regraft.linear import Blocks, Dense, FeatureDesign

LOSSES = ("softmax", "sigmoid", "squared")
N, MORE, D, C, R = 40, 9, 6, 3, 70
STRENGTHS = (30.0, 3.0, 0.3, 0.03, 3e-3)
KINDS = (SubspacePath, RowPath)
STILL, DEVIATIONS = 0.02, {"w2": 0.4, "w3": 1.5}


class Case:
    """Features beside two shared blocks over N rows, and over MORE rows that are only predicted."""

    def __init__(self, loss: str, *, dtype: torch.dtype = torch.float64, features: bool = True, **fields) -> None:
        g = torch.Generator().manual_seed(0)
        x = (torch.randn(N + MORE, D, generator=g) + 1).to(dtype)
        # spectra that fall, as those of Jacobians do
        shared = (torch.randn(N + MORE, C, R, generator=g) * 0.93 ** torch.arange(R)).to(dtype)
        codes = torch.randint(C, (N,), generator=g)
        codes[:C] = torch.arange(C)
        self.targets = torch.nn.functional.one_hot(codes, C).double()
        if loss == "squared":
            self.targets = self.targets + 0.3 * torch.randn(N, C, generator=g).double()
        self.loss, self.features = loss, features
        self.weights = fields.pop("weights", torch.ones(N, 1, dtype=torch.float64))
        self.targets = fields.pop("targets", self.targets)
        self.x = [FeatureDesign({"x": Dense(part)}, C) for part in (x[:N], x[N:])]
        self.whole = DenseDesign(shared[..., : R // 2], "w2") | DenseDesign(shared[..., R // 2 :], "w3")
        self.steep = self.whole.take(list(range(N)))
        centred = x[:N].double() - x[:N].double().mean(0)
        self.head = ConvexProblem(
            self.x[0], loss, self.targets, self.weights, {"x": STILL}, moments={"x": centred.T @ centred / N}
        )
        self.start = newton(self.head, gap=1e-12)

    def path(self, kind: type[Path] = SubspacePath, **fields) -> Path:
        given = {"rest": self.x[1], "features": self.features, **fields}
        return kind(self.head, self.start, self.steep, self.whole, DEVIATIONS, **given)

    def problem(self, strength: float) -> ConvexProblem:
        penalties = {name: strength / value**2 for name, value in DEVIATIONS.items()}
        if not self.features:
            return ConvexProblem(self.steep, self.loss, self.targets, self.weights, penalties)
        design = self.x[0] | self.steep
        return ConvexProblem(design, self.loss, self.targets, self.weights, {"x": STILL, **penalties})


def check(case: Case, found, path: Path, gap: float) -> None:
    """The objective, its certificate, and the logits, against Newton on the whole problem."""
    problem, w = case.problem(found.strength), path.coefficients(found)
    best = newton(problem, gap=1e-11).objective
    assert found.status.converged
    assert found.gap <= gap * found.objective
    assert -1e-10 <= found.objective - best <= found.gap + 1e-10
    there = problem.at(w)
    assert there.objective == pytest.approx(found.objective, rel=1e-9)
    assert there.gap == pytest.approx(found.gap, rel=1e-4, abs=1e-10)
    wide = case.whole.apply(Blocks({name: w[name] for name in DEVIATIONS}))
    if case.features:
        wide = wide + torch.cat([part.apply(Blocks({"x": w["x"]})) for part in case.x])
    torch.testing.assert_close(found.logits, wide + found.intercept, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("features", [True, False], ids=["full", "gradient"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("gap", [1e-2, 1e-7])
def test_every_strength_is_at_its_optimum(loss, gap, features, kind) -> None:
    case = Case(loss, features=features)
    path = case.path(kind)
    for strength in STRENGTHS:
        check(case, path.solve(strength, gap), path, gap)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("strength", [1e-6, 1e-9])
def test_a_weak_penalty_that_comes_first_is_at_its_optimum(strength, loss) -> None:
    """The residuals of the features alone give it logits of thousands, where the Hessian of classes is zero."""
    case = Case(loss)
    found = case.path(RowPath).solve(strength, 1e-6)
    assert found.status.converged
    assert found.status.iterations < 25
    assert found.objective == pytest.approx(newton(case.problem(strength), gap=1e-4).objective, rel=2e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [(2, 0, 4, 1, 3), (4, 3, 2, 1, 0)], ids=["mixed", "upwards"])
def test_strengths_may_come_in_any_order_and_again(order, kind) -> None:
    case = Case("softmax")
    path = case.path(kind)
    for index in (*order, order[0]):
        check(case, path.solve(STRENGTHS[index], 1e-6), path, 1e-6)


def test_a_strength_that_leaves_nothing_to_learn_gives_the_head_itself_for_one_adjoint() -> None:
    case = Case("softmax")
    path = case.path()
    found = path.solve(1e7, 1e-2)
    assert found.products == 1
    w = path.coefficients(found)
    torch.testing.assert_close(w["x"], case.start.coefficients["x"], rtol=1e-14, atol=0)
    assert all(not bool(w[name].any()) for name in DEVIATIONS)
    assert path.solve(1e8, 1e-2).products == 0  # the adjoint is known


@pytest.mark.parametrize("features", [True, False], ids=["full", "gradient"])
def test_of_few_rows_it_does_so_once_the_kernel_is_known(features) -> None:
    case = Case("softmax", features=features)
    path, other = case.path(RowPath), case.path()
    for strength in (1e7, 1e8):
        found, same = path.solve(strength, 1e-2), other.solve(strength, 1e-2)
        assert (found.status.iterations, found.products) == (0, 0)
        assert found.gap == pytest.approx(same.gap, rel=1e-6, abs=1e-12)
        assert found.objective == pytest.approx(same.objective, rel=1e-12)
        torch.testing.assert_close(found.logits, same.logits)
        w = path.coefficients(found)
        assert all(not bool(w[name].any()) for name in DEVIATIONS)
        if features:
            torch.testing.assert_close(w["x"], case.start.coefficients["x"], rtol=1e-14, atol=0)


def test_the_kernel_of_few_rows_is_computed_once() -> None:
    case = Case("softmax")
    path = case.path(RowPath)
    for strength in STRENGTHS:
        path.solve(strength, 1e-3)
    assert path.trace.products == C


def test_products_are_shared_by_the_strengths() -> None:
    """Fewer than half of what solving each from the last one's solution takes."""
    case = Case("softmax")
    path, start, alone = case.path(), None, 0
    for strength in STRENGTHS:
        fit = minimise(case.problem(strength), "lbfgs", start=start, gap=1e-3)
        alone, start = alone + fit.products, fit.coefficients
    together = sum(path.solve(strength, 1e-3).products for strength in STRENGTHS)
    assert together == path.trace.products
    assert together < 0.5 * alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_weights_missing_labels_and_an_output_that_never_varies(loss, kind) -> None:
    g = torch.Generator().manual_seed(4)
    weights = torch.rand(N, C if loss == "sigmoid" else 1, generator=g).double()
    weights[5] = 0
    targets = torch.zeros(N, C, dtype=torch.float64)
    targets[torch.arange(N), torch.arange(N) % 2] = 1.0  # the last output is zero in all rows
    case = Case(loss, weights=weights, targets=targets)
    path = case.path(kind)
    for strength in STRENGTHS:
        found = path.solve(strength, 1e-4)
        best = newton(case.problem(strength), gap=1e-8)
        assert found.status.converged
        assert -1e-7 <= found.objective - best.objective <= found.gap + best.gap


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_reaches_the_gaps_that_are_asked_of_it(kind) -> None:
    case = Case("softmax", dtype=torch.float32)
    path = case.path(kind)
    for strength in STRENGTHS:
        found = path.solve(strength, 1e-4)
        there = case.problem(strength).at(path.coefficients(found))
        assert found.status.converged
        assert there.relative_gap <= 2e-4
        assert there.objective == pytest.approx(found.objective, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_need_be_predicted_along(kind) -> None:
    case = Case("squared")
    path = kind(case.head, case.start, case.steep, case.steep, DEVIATIONS)
    found = path.solve(0.1, 1e-6)
    assert tuple(found.logits.shape) == (N, C)
    other = case.path(kind).solve(0.1, 1e-6)
    torch.testing.assert_close(found.logits, other.logits[:N], rtol=1e-8, atol=1e-8)


def test_a_path_that_stops_early_says_so(monkeypatch) -> None:
    case = Case("softmax")
    with monkeypatch.context() as patched:
        patched.setattr(module, "_ROUNDS", 2)
        few = case.path().solve(STRENGTHS[-1], 1e-8)
    assert not few.status.converged
    assert "stopped at a relative gap of" in few.status.message
    assert few.gap > 1e-8 * few.objective
    monkeypatch.setattr(module, "_HELD_BYTES", 8 * C * (N + MORE) * 4)
    full = case.path().solve(STRENGTHS[-1], 1e-8)
    assert not full.status.converged
    best = newton(case.problem(STRENGTHS[-1]), gap=1e-10).objective
    assert 0 <= full.objective - best <= full.gap


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_path_cannot_do_is_refused_in_a_sentence(kind) -> None:
    case = Case("softmax")
    with pytest.raises(SolverError, match="above zero"):
        case.path(kind).solve(0.0, 1e-3)
    with pytest.raises(SolverError, match="tolerance of the gap"):
        case.path(kind).solve(1.0, 0.0)
    with pytest.raises(SolverError, match="rows of a path"):
        case.path(kind, rest=None)
    rows = torch.full((N, C, 4), np.nan, dtype=torch.float64)
    bad = DenseDesign(rows, "w2")
    with pytest.raises(SolverError, match="NaN"):
        kind(case.head, case.start, bad, bad, {"w2": 1.0}).solve(1.0, 1e-3)
