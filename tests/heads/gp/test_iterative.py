"""Other ways to solve a posterior's system than Cholesky in float64, and cached variances: all equal to it."""

from __future__ import annotations

import re

import pytest
import torch
from tests.heads.gp.problems import FORMS, kernel, normal, part
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads import Iteration, Posterior, UnconvergedWarning, condition, variance_cache
from regraft.heads.gp.iterative import Iterative
from regraft.heads.readout import Status
from regraft.linear import Dense, DenseOperator, FeatureDesign, Tag, Tagged

OLD, NEW = torch.arange(60), torch.arange(60, 66)
PSD = (Tag.POSITIVE_SEMIDEFINITE,)


def pair(form: str, method: str, noise: float | Tensor = 0.05, **options: object) -> tuple[Posterior, Posterior]:
    gram, y = kernel(form, 66, 3)[..., :, :], normal(66, 3, seed=1)[OLD]
    old = part(gram, form, OLD, OLD, 3)
    found = condition(old, y, noise, 1.3, method, **options)  # type: ignore[arg-type]
    return condition(old, y, noise, 1.3, "cholesky"), found


def blocks(form: str) -> tuple[Tensor, Tensor, Tensor]:
    gram = kernel(form, 66, 3)
    new = part(gram, form, NEW, NEW, 3)
    return part(gram, form, NEW, OLD, 3), new, new.diagonal(dim1=-2, dim2=-1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["mixed", "cg"])
def test_every_way_is_the_same_posterior(form: str, method: str) -> None:
    noise = 0.05 + normal(60, seed=4).square()
    exact, found = pair(form, method, noise, iteration=Iteration(rank=20, tol=1e-11))
    cross, new, diagonal = blocks(form)
    assert found.status.converged, found.status.message
    assert found.status.residual < 1e-9
    torch.testing.assert_close(found.weights, exact.weights, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.mean(cross), exact.mean(cross), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.variance(cross, diagonal), exact.variance(cross, diagonal), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.covariance(cross, new), exact.covariance(cross, new), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.sample(cross, new, 3), exact.sample(cross, new, 3), rtol=1e-3, atol=1e-3)
    if method == "cg":
        assert found.evidence is None
        assert "nystrom of rank 20" in found.status.message
    else:
        assert found.evidence == pytest.approx(exact.evidence, rel=1e-7)
        assert "float32" in found.status.message


def told_error(found: Posterior) -> float:
    """Of the log determinants' sum, by the status."""
    told = re.search(r"log determinant ± (\S+?)\.? ", found.status.message)
    assert told is not None
    return float(told[1])


@pytest.mark.parametrize("form", FORMS)
def test_the_evidence_of_conjugate_gradients_is_as_near_as_it_says(form: str) -> None:
    exact, found = pair(form, "cg", 0.05 + normal(60, seed=4).square(), iteration=Iteration(rank=20, probes=64))
    error = told_error(found) * (1.5 if form == "shared" else 0.5)  # half of it, for each column
    assert abs(found.evidence - exact.evidence) < 4 * error + 1e-6 * abs(exact.evidence)
    assert error < 0.05 * abs(exact.evidence)


@pytest.mark.parametrize("preconditioner", ["nystrom", "pivoted-cholesky"])
def test_a_preconditioner_saves_products(preconditioner: str) -> None:
    x = torch.linspace(0, 5, 400, dtype=torch.float64)[:, None]
    gram, y = torch.exp(-0.5 * torch.cdist(x, x).square()), torch.sin(3 * x)
    most = [
        condition(gram, y, 1e-4, method="cg", iteration=Iteration(preconditioner, rank)).status  # type: ignore[arg-type]
        for rank in (1, 60)
    ]
    assert most[1].converged
    assert most[1].iterations <= 5
    assert most[1].iterations < most[0].iterations / 10


def test_a_designs_gram_is_conditioned_on_without_writing_it_out() -> None:
    x, new, y = normal(50, 6), normal(5, 6, seed=1), normal(50, 3, seed=2)
    design = FeatureDesign({"a": Dense(x)}, 3)
    found = condition(design.gram(), y, 0.1, method="cg")
    dense = condition(design.gram(), y, 0.1)
    exact = condition(x @ x.T, y, 0.1)
    assert found.form.kind == "shared"
    for each in (found, dense):
        torch.testing.assert_close(each.mean(new @ x.T), exact.mean(new @ x.T), rtol=1e-6, atol=1e-7)
    full = condition(Tagged(design.operator() @ design.operator().T, PSD), y, 0.1, method="cg")
    assert full.form.kind == "full"
    torch.testing.assert_close(full.weights, exact.weights, rtol=1e-5, atol=1e-6)


def test_operators_in_float32_reach_their_own_tolerance() -> None:
    gram, y = kernel("shared", 60, 1, width=10).float(), normal(60, 2)
    found = condition(DenseOperator(gram, PSD), y, 0.1, method="cg")
    assert found.status.converged
    assert found.status.residual <= 1e-4
    exact = condition(gram, y, 0.1)
    torch.testing.assert_close(found.mean(gram), exact.mean(gram), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-3)])
def test_the_tolerance_that_is_not_given_is_that_of_the_dtype(dtype: torch.dtype, tolerance: float) -> None:
    """A poor preconditioner needs many products, the last of which falls below the tolerance but not far."""
    gram = (kernel("shared", 60, 1) + torch.diag(torch.logspace(-3, 2, 60, dtype=torch.float64))).to(dtype)
    found = condition(DenseOperator(gram, PSD), normal(60, 1), 1e-3, method="cg", iteration=Iteration(rank=1))
    assert found.status.converged
    assert tolerance / 1000 < found.status.residual <= tolerance


def test_stopping_early_is_said_and_leaves_variances_too_large_not_too_small() -> None:
    exact, found = pair("shared", "cg", 1e-4, iteration=Iteration(rank=2, maxiter=3))
    cross, _, diagonal = blocks("shared")
    assert not found.status.converged
    assert "raise maxiter" in found.status.message
    with pytest.warns(UnconvergedWarning, match="too large.*raise maxiter"):
        variance = found.variance(cross, diagonal)
    assert bool((variance >= exact.variance(cross, diagonal) - 1e-9).all())


@pytest.mark.parametrize("method", ["mixed", "cg"])
def test_what_rests_on_a_solve_that_stopped_early_warns_though_the_mean_converged(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor has no status to say it in. Targets of zero take no product, new rows do."""
    monkeypatch.setattr("regraft.heads.gp.iterative._REFINEMENTS", 0)
    gram = kernel("shared", 60, 1)
    found = condition(gram, torch.zeros(60), 1e-4, method=method, iteration=Iteration(rank=2))  # type: ignore[arg-type]
    found.system.maxiter = 0  # type: ignore[attr-defined]
    assert found.status.converged
    for call, said in (
        (lambda: found.variance(gram, gram.diagonal()), "The variances are too large. Not converged"),
        (lambda: found.covariance(gram, gram), "The covariances are too large. Not converged"),
        (lambda: found.sample(gram, gram, 1), "The draws vary too much. Not converged"),
        (lambda: variance_cache(found, 5), "told too small. Not converged"),
    ):
        with pytest.warns(UnconvergedWarning, match=said) as warned:
            call()
        assert len(warned) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["cholesky", "mixed", "cg"])
def test_solves_that_converge_warn_of_nothing(method: str) -> None:
    gram = kernel("shared", 60, 1)
    found = condition(gram, normal(60, 1), 1e-2, method=method)  # type: ignore[arg-type]
    found.variance(gram, gram.diagonal())
    found.covariance(gram, gram)
    found.sample(gram, gram, 1)
    variance_cache(found, 5)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("rows", "width"), [(400, 20), (600, 60)])
def test_variances_of_kernels_in_float32_are_those_of_float64_and_none_is_too_small(
    rows: int, width: int, seed: int
) -> None:
    """Features behind a ReLU: at a noise of 1e-3 of the prior a variance is 5e-5 of it, and single precision leaves
    conjugate gradients a residual that is not orthogonal to what they found, and that says much where the noise is all
    that A has. It knows the prior to 6e-8, which is a thousandth of such a variance."""
    x = torch.randn(rows + 30, width, generator=torch.Generator().manual_seed(seed)).relu()
    wide = x.double()
    old, new = wide[:rows], wide[rows:]
    noise = 1e-3 * float(wide.square().sum(1).mean())
    y = old @ normal(width, 1) + 0.1 * normal(rows, 1, seed=1)
    found = condition(FeatureDesign({"x": Dense(x[:rows])}, 1).gram(), y, noise, method="cg")
    exact = condition(old @ old.T, y, noise)
    assert found.status.converged
    cross, prior = new @ old.T, new @ new.T
    ratios = found.variance(cross, prior.diagonal()) / exact.variance(cross, prior.diagonal())
    assert 1 - 2e-3 < float(ratios.min()) <= float(ratios.max()) < 1 + 5e-3
    assert float(ratios.median()) == pytest.approx(1, abs=1e-3)
    covariance, known = found.covariance(cross, prior), exact.covariance(cross, prior)
    values = torch.linalg.eigvalsh(covariance)
    assert float(values[0]) > -1e-3 * float(values[-1])
    assert float((covariance - known).norm()) < 1e-2 * float(known.norm())
    assert float(torch.linalg.eigvalsh(covariance - known)[0]) > -1e-3 * float(values[-1])


def test_what_is_explained_is_from_below_however_poor_the_solution() -> None:
    """2 cᵀx − xᵀAx ≤ cᵀA⁻¹c for any x, also in the order of matrices."""
    exact, found = pair("shared", "cg", 1e-2, iteration=Iteration(rank=2))
    cross, new, diagonal = blocks("shared")
    spoiled = found.system
    assert isinstance(spoiled, Iterative)
    solve = spoiled.solve

    def off(right: Tensor) -> tuple[Tensor, Status]:
        solution, status = solve(right)
        return solution + 1e-2 * float(solution.abs().mean()) * normal(*solution.shape, seed=7), status

    spoiled.solve = off  # type: ignore[method-assign]
    assert bool((found.variance(cross, diagonal) >= exact.variance(cross, diagonal)).all())
    apart = found.covariance(cross, new) - exact.covariance(cross, new)
    assert float(torch.linalg.eigvalsh(apart)[0]) > -1e-12


def test_mixed_falls_back_to_float64_where_float32_cannot_factorise() -> None:
    x = torch.linspace(0, 1, 80, dtype=torch.float64)[:, None]
    gram = torch.exp(-0.5 * torch.cdist(x, x).square())
    found = condition(gram, torch.sin(x), 1e-9, method="mixed")
    assert "float64" in found.status.message
    assert "float32" not in found.status.message
    assert found.evidence == pytest.approx(condition(gram, torch.sin(x), 1e-9).evidence, rel=1e-9)


def test_mixed_is_refined_where_float32_has_lost_its_digits() -> None:
    x, noise = normal(400, 3), 5e-6
    gram, y = torch.exp(-0.125 * torch.cdist(x, x).square()), normal(400, 1)
    exact = condition(gram, y, noise)
    found = condition(gram, y, noise, method="mixed")
    lower = torch.linalg.cholesky((gram + noise * torch.eye(400, dtype=torch.float64)).float())
    alone = torch.cholesky_solve(y.float(), lower)
    lost = float((alone.double() - exact.weights).abs().max())
    assert float((found.weights - exact.weights).abs().max()) < 1e-5 * lost
    missed = float((exact.system.log_determinant - 2 * lower.diagonal().double().log().sum()).abs())
    assert abs(found.evidence - exact.evidence) < 4 * told_error(found) / 2 < missed / 2  # half: log det A / 2


@pytest.mark.parametrize(("noise", "refinements"), [(1e-1, 8), (1e-3, 8), (3e-5, 8), (3e-5, 0)])
def test_variances_of_mixed_precision_are_exact_however_poor_the_factor(
    noise: float, refinements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regraft.heads.gp.iterative._REFINEMENTS", refinements)  # none: the way out, a full solve
    x, new = normal(300, 2), 1.5 * normal(40, 2, seed=1)
    width = torch.tensor([0.5, 2.0], dtype=torch.float64)
    gram = torch.stack([torch.exp(-w * torch.cdist(x, x).square()) for w in width])
    cross = torch.stack([torch.exp(-w * torch.cdist(new, x).square()) for w in width])
    exact, found = (condition(gram, normal(300, 2), noise, method=m) for m in ("cholesky", "mixed"))  # type: ignore[arg-type]
    assert "float32" in found.status.message
    expected = exact.variance(cross, torch.ones(2, 40))
    torch.testing.assert_close(found.variance(cross, torch.ones(2, 40)), expected, rtol=1e-4, atol=1e-7)


def test_large_kernels_in_float32_take_mixed_and_float64_ones_do_not() -> None:
    phi = normal(4200, 5)
    gram = phi @ phi.T
    y = phi @ normal(5, 1, seed=1)
    found = condition(gram.float(), y, 0.1)
    assert "float32" in found.status.message
    torch.testing.assert_close(found.mean(gram.float()[:9]), condition(gram, y, 0.1).mean(gram[:9]), rtol=0, atol=1e-4)
    with pytest.raises(SolverError, match="cholesky"):
        found.without([0])
    with pytest.raises(SolverError, match="cholesky"):
        found.extend(gram[:1], gram[:1, :1], y[:1])


def test_what_cannot_be_used_is_refused() -> None:
    gram = torch.eye(4, dtype=torch.float64)
    for call in (
        lambda: condition(gram, torch.ones(4), 0.1, method="lu"),  # type: ignore[arg-type]
        lambda: Iteration("jacobi"),  # type: ignore[arg-type]
        lambda: condition(DenseOperator(gram), torch.ones(4), 0.1, method="cg"),
        lambda: condition(gram * float("nan"), torch.ones(4), 0.1, method="cg"),
        lambda: condition(DenseOperator(gram * float("nan"), PSD), torch.ones(4), 0.1, method="cg"),
        lambda: condition(DenseOperator(gram, PSD), torch.ones(3), 0.1),
    ):
        with pytest.raises(SolverError):
            call()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tol": 0.0}, r"tol .* expected above 0 and below 1; got 0.0"),
        ({"tol": 2.0}, r"tol .* above 0 and below 1"),
        ({"tol": float("nan")}, r"tol .* above 0 and below 1"),
        ({"maxiter": -1}, r"maxiter .* whole number, at least 1; got -1"),
        ({"rank": 2.5}, r"rank .* whole number, at least 1; got 2.5"),
        ({"rank": 0}, r"rank .* at least 1; got 0"),
        ({"probes": -3}, r"probes .* whole number, at least 0; got -3"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float], said: str) -> None:
    """A tol of zero was the default, one of two called weights of zero converged."""
    with pytest.raises(SolverError, match=said):
        Iteration(**wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- cached variances


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["cholesky", "mixed", "cg"])
def test_a_cache_of_full_rank_is_exact(form: str, method: str) -> None:
    exact, found = pair(form, method, 0.05 + normal(60, seed=4).square(), iteration=Iteration(tol=1e-11))
    cross, _, diagonal = blocks(form)
    cache = variance_cache(found, 180)
    torch.testing.assert_close(cache.variance(cross, diagonal), exact.variance(cross, diagonal), rtol=1e-6, atol=1e-8)
    assert cache.worst < 1e-8


def test_a_cache_is_never_too_sure_and_tells_its_error() -> None:
    x = normal(200, 2)
    gram = torch.exp(-0.5 * torch.cdist(x, x).square())
    found = condition(gram, normal(200, 1), 0.01 + 0.1 * normal(200, seed=2).square(), 2.0)
    exact = found.variance(gram, torch.ones(200))
    before = 1.0
    for rank in (5, 20, 60):
        cache = variance_cache(found, rank, seed=1)
        assert tuple(cache.roots.shape) == (200, rank)
        excess = cache.variance(gram, torch.ones(200)) - exact
        assert float(excess.min()) > -1e-9
        assert cache.worst <= float(excess.max()) / 2.0 + 1e-9
        assert cache.excess == pytest.approx(float(excess.mean()) / 2.0, rel=0.3)
        assert cache.excess < before
        before = cache.excess
    assert before < 1e-3
    for wrong in (0, 3.5):
        with pytest.raises(SolverError, match=r"rank of a cache.*whole number, at least 1"):
            variance_cache(found, wrong)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::regraft.heads.UnconvergedWarning")
@pytest.mark.parametrize(("rows", "rank"), [(200, 40), (200, 200), (1000, 128)])
def test_rounding_of_products_in_float32_makes_no_cached_variance_too_small(rows: int, rank: int) -> None:
    """At the least noise, 1e-6, the kernel in units of it has eigenvalues of 1e8: products know one as 1 ± 10."""
    x, new = torch.linspace(-3, 3, rows)[:, None], torch.linspace(-6, 6, 61)[:, None]
    gram, cross = (torch.exp(-0.5 * torch.cdist(each, x).square()) for each in (x, new))
    found = condition(gram, torch.sin(2 * x), 0.0, method="cg")
    exact = condition(gram.double(), torch.sin(2 * x), float(found.noise[0, 0])).variance(cross, torch.ones(61))
    cached = variance_cache(found, rank).variance(cross, torch.ones(61))
    assert float((cached - exact).min()) > -1e-7
    assert float((cached - exact).max()) < 0.1


def test_a_cache_tells_its_error_at_rows_of_the_posterior_alone() -> None:
    x, new = torch.linspace(-3, 3, 100).double()[:, None], torch.linspace(-5, 5, 201).double()[:, None]
    gram, cross = (torch.exp(-0.5 * torch.cdist(each, x).square()) for each in (x, new))
    found = condition(gram, torch.sin(x), 1e-4)
    cache = variance_cache(found, 8)
    excess = [cache.variance(k, torch.ones(len(k))) - found.variance(k, torch.ones(len(k))) for k in (gram, cross)]
    assert float(excess[0].max()) == pytest.approx(cache.worst, rel=1e-6)
    assert float(excess[1].max()) > 10 * cache.worst


def test_a_cache_serves_new_rows_from_parameter_space() -> None:
    """s k* R = s Φ* (Φᵀ R): old rows are not needed."""
    phi, new = normal(40, 7), normal(5, 7, seed=1)
    found = condition(phi @ phi.T, normal(40, 1), 0.3, 1.5)
    cache = variance_cache(found, 7)
    columns = phi.T @ cache.roots
    variance = 1.5 * new.square().sum(1) - (1.5 * new @ columns).square().sum(1)
    torch.testing.assert_close(variance, found.variance(new @ phi.T, new.square().sum(1))[:, 0], rtol=1e-7, atol=1e-9)
