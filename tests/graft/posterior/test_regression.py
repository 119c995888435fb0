"""Error bars of numbers: the weights that are kept against dense posteriors, and what a run says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.graft.gradient.test_gradient import LAST, arrays, network, rows_of
from torch import nn

from regraft.data import Manifest
from regraft.errors import DataError, RecipeError
from regraft.features import Tangent
from regraft.graft import METHODS, adapt, load_artifact, with_gradients
from regraft.graft.gradient.fit import Both, Labels
from regraft.graft.posterior.kernel import Grafted, share
from regraft.graft.posterior.regression import KernelFitter
from regraft.graft.posterior_part import PosteriorPart
from regraft.graft.stages.posterior import Posterior
from regraft.heads import NINETY, Response, Spectrum
from regraft.linear import Dense, FeatureDesign
from regraft.network import ArrayPreprocess, Network, from_module


def problem(rows: int = 24, outputs: int = 2, mode: str = "full") -> tuple[Both, Labels, np.ndarray]:
    """Rows in float64, over features that the tangent itself gives."""
    x, y = arrays(rows, "regression")
    tangent = Tangent(network(), LAST, torch.from_numpy(x), of="embedding", dtype=torch.float64)
    features = FeatureDesign({"embedding": Dense(tangent.outputs)}, outputs)
    response = Response.of("regression", ["a", "b"][:outputs], y[:, :outputs])
    labels = Labels.of(response, torch.ones(rows, 1, dtype=torch.float64))
    return Both(features, tangent if mode == "full" else None, torch.arange(rows), mode), labels, x


def dense_prior(grafted: Grafted, ratio: float) -> torch.Tensor:
    """K from features and Jacobians written out."""
    both, c = grafted.both, grafted.own.outputs
    x = both.features.matrices["embedding"].rows(slice(0, both.features.n_rows))
    x = (x - grafted.centre) / math.sqrt(grafted.unit)
    wide = torch.kron(x @ x.T + 1, torch.eye(c, dtype=torch.float64)) * (1 - share(ratio))
    if both.tangent is None:
        return wide
    rows = both.tangent.through(grafted.head).take(both.rows).rows(both.rows)
    j = torch.cat([(block * grafted.prior[name]).flatten(2) for name, block in rows.items()], dim=2).flatten(0, 1)
    return wide + share(ratio) * (j @ j.T) / grafted.tangent_unit


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_prior_is_that_of_the_linearised_network(outputs: int) -> None:
    both, labels, _ = problem(outputs=outputs)
    grafted = Grafted.of(both, labels, 1e-2, "ntk")
    eye = torch.eye(outputs, dtype=torch.float64)
    torch.testing.assert_close(grafted.own.at(0.0), torch.kron(grafted.own.features, eye))
    for ratio in (0.3, 5.0):
        torch.testing.assert_close(grafted.own.at(ratio), dense_prior(grafted, ratio))
    assert float(grafted.own.tangent.diagonal().mean()) == pytest.approx(1)  # type: ignore[union-attr]


@pytest.mark.parametrize(("outputs", "mode"), [(1, "full"), (2, "full"), (2, "activation")])
def test_weights_and_error_bars_are_the_dense_posterior(outputs: int, mode: str) -> None:
    """With every direction kept: mean and covariance at new rows by plain inverses in function space."""
    both, labels, _ = problem(outputs=outputs, mode=mode)
    whole, new = both, torch.arange(18, 24)
    old = whole.take(torch.arange(18))
    old_labels = labels.take(torch.arange(18))
    ratio = 0.7 if mode == "full" else 0.0
    fitter = KernelFitter(old, old_labels, torch.arange(18) % 3, 1e-2, "ntk", Posterior(), 0)
    fitted = fitter.fitted(ratio)
    grafted = Grafted.of(old, old_labels, 1e-2, "ntk", whole.take(new))
    s, noise = fitted.chosen.scale, fitted.chosen.noise
    inverse = torch.linalg.inv(s * grafted.own.at(ratio) + noise * torch.eye(18 * outputs, dtype=torch.float64))
    cross = s * grafted.cross.at(ratio)
    mean, spread = old_labels.unit
    expected = (cross @ inverse @ old_labels.standard.reshape(-1)).view(6, outputs) * spread + mean
    explained = (cross @ inverse * cross).sum(1)
    variance = (s * grafted.held.at(ratio).diagonal() - explained).view(6, outputs) * spread.square()

    x = whole.features.matrices["embedding"].rows(slice(18, 24)).to(torch.float64)
    found = x @ fitted.features + fitted.intercept
    part = fitted.part
    design = None
    if mode == "full":
        assert whole.tangent is not None
        design = whole.tangent.through(fitted.head * spread[:, None]).take(new)
        found = found + design.apply({name: block.to(torch.float64) for name, block in fitted.parameters.items()})
        design = whole.tangent.through(fitted.head).take(new)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    covariance = part.covariance(x, design)
    own, unit = covariance.diagonal(dim1=1, dim2=2), spread.square()
    torch.testing.assert_close(own, variance, rtol=1e-5, atol=1e-6 * s * float(unit.max()))
    torch.testing.assert_close(part.spread(covariance), (own + noise * unit).sqrt(), rtol=1e-5, atol=1e-5)
    assert part.left_out < 1e-12


def test_scale_and_noise_are_chosen_by_what_the_stage_says() -> None:
    both, labels, _ = problem()
    folds = torch.arange(24) % 3
    gram = Grafted.of(both, labels, 1e-2, "ntk").own.at(0.7)
    chosen = {}
    for by in ("marginal", "loo"):
        fitter = KernelFitter(both, labels, folds, 1e-2, "ntk", Posterior(by=by), 0)
        chosen[by] = fitter.fitted(0.7).chosen
        expected = Spectrum.of(gram).choose(labels.standard, by)
        assert (chosen[by].scale, chosen[by].noise) == pytest.approx((expected.scale, expected.noise), rel=1e-6)
        assert bool(torch.isfinite(fitter.spread(0.7)).all())
    assert chosen["loo"].leave_one_out > chosen["marginal"].leave_one_out
    assert chosen["marginal"].log_marginal > chosen["loo"].log_marginal
    with pytest.raises(RecipeError, match="marginal, loo"):
        Posterior(by="evidence")  # type: ignore[arg-type]


def test_a_run_by_leave_one_out_says_so() -> None:
    x, y = arrays(60, "regression")
    known = with_gradients("tangent-gp", None, LAST)
    stages = tuple(replace(s, by="loo") if isinstance(s, Posterior) else s for s in known.stages)
    run = adapt(rows_of(x, y, tested=20), network(), method=replace(known, stages=stages))
    (told,) = (finding for finding in run.record.findings if finding.code == "error-bars")
    assert "by the density of rows left out" in told.detail
    assert 0.6 < next(s.value for s in run.record.other_scores["test"] if s.metric == "coverage-90") <= 1


def smooth(least: float) -> tuple[Network, Manifest, np.ndarray]:
    """A network of tanh, 80 rows whose numbers are smooth in three inputs but for noise of ``least``, and 20 others."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3)).astype(np.float32)
    y = np.tanh(x @ [[0.5], [0.3], [-0.2]]) + least * rng.normal(size=(100, 1))
    return from_module(body, ArrayPreprocess((3,)), name="smooth"), rows_of(x[:80], y[:80], tested=20), x


def dense_spread(network: Network, part: PosteriorPart, rows: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, float]:
    """The deviations of targets in float64 from derivatives written out, and prior over noise."""
    wide = []
    for x in (rows, new):
        tangent = Tangent(network, list(part.deviations), torch.from_numpy(x), of="embedding", dtype=torch.float64)
        blocks = tangent.through(part.head.double()).rows(torch.arange(len(x)))
        own = (tangent.outputs - part.centre.double()) * part.feature
        told = [(blocks[name] * part.deviations[name]).flatten(2)[:, 0] for name in part.deviations]
        wide.append(torch.cat([own, torch.full((len(x), 1), part.intercept, dtype=torch.float64), *told], dim=1))
    phi, other = wide
    noise = float(part.noise[0].double() / part.unit[0].double().square())
    values, vectors = torch.linalg.eigh(phi.T @ phi)
    variance = ((other @ vectors).square() * (noise / (values.clamp_min(0) + noise))).sum(1)
    return ((variance + noise).sqrt() * part.unit[0]).numpy(), float(other.square().sum(1).mean()) / noise


@pytest.mark.parametrize(("least", "widest"), [(8e-3, 1.01), (3e-3, 1.3), (0.0, 5.0)])
def test_error_bars_of_an_artifact_are_no_narrower_than_exact_ones(least: float, widest: float, tmp_path) -> None:
    """A variance is 1e-4 of its prior's and less: what rounding decides is widened, not narrowed."""
    body, manifest, x = smooth(least)
    adapt(manifest, body, method="tangent-gp", theta2=("0.*", "2.*")).save(tmp_path / "run")
    again = load_artifact(tmp_path / "run", model=body)
    assert again.posterior is not None
    exact, ratio = dense_spread(body, again.posterior, x[:60], x[80:])
    found = again.predict_proba(x[80:]).spread[:, 0] / exact
    assert ratio > 1e4
    assert found.min() > 0.999
    assert found.max() < widest


def test_directions_of_older_artifacts_in_half_precision_are_read() -> None:
    both, labels, _ = problem(outputs=1)
    part = KernelFitter(both, labels, torch.arange(24) % 3, 1e-2, "ntk", Posterior(), 0).fitted(1.0).part
    tensors = part.tensors()
    older = {name: value.half() if name.startswith("direction.") else value for name, value in tensors.items()}
    again = PosteriorPart.holding(part.to_json(), older)
    assert {value.dtype for value in tensors.values()} == {torch.float32}
    for name, value in part.directions.items():
        assert again.directions[name].dtype == torch.float32
        torch.testing.assert_close(again.directions[name], value, rtol=1e-3, atol=1e-6)


def test_fewer_directions_widen_error_bars_by_no_more_than_is_said() -> None:
    both, labels, _ = problem(outputs=1)
    folds = torch.arange(24) % 3
    exact = KernelFitter(both, labels, folds, 1e-2, "ntk", Posterior(), 0).fitted(1.0).part
    x = both.features.matrices["embedding"].rows(slice(0, 24))
    design = both.tangent.through(exact.head)  # type: ignore[union-attr, arg-type]
    true = exact.covariance(x, design)[:, 0, 0]
    prior = Grafted.of(both, labels, 1e-2, "ntk")
    scale = KernelFitter(both, labels, folds, 1e-2, "ntk", Posterior(), 0).fitted(1.0).chosen.scale
    unit = float(exact.unit[0]) ** 2
    widths = []
    for rank in (1, 4, 8):
        part = KernelFitter(both, labels, folds, 1e-2, "ntk", Posterior(rank=rank), 0).fitted(1.0).part
        found = part.covariance(x, design)[:, 0, 0]
        assert bool((found >= true - 1e-5 * unit).all())
        assert bool((found - true <= part.left_out * unit * scale * prior.own.at(1.0).diagonal() + 1e-5 * unit).all())
        widths.append(float(found.mean()))
    assert widths == sorted(widths, reverse=True)


def test_a_run_scores_and_keeps_its_error_bars(tmp_path) -> None:
    x, y = arrays(80, "regression")
    run = adapt(rows_of(x, y, tested=30), network(), method="tangent-gp", theta2=LAST)
    others = {score.metric: score for score in run.record.other_scores["test"]}
    assert {"rmse", "coverage-90", "gaussian-nll"} <= set(others)
    coverage = others["coverage-90"]
    assert 0.6 < coverage.value <= 1
    assert coverage.low <= coverage.value <= coverage.high
    assert run.record.figures["posterior"]["rank"] > 0
    assert any(finding.code == "error-bars" for finding in run.record.findings)
    run.save(tmp_path / "run")
    header = (tmp_path / "run" / "predictions.csv").read_text().splitlines()[0]
    assert header == "id,part,fold,truth y0,predicted y0,std y0,truth y1,predicted y1,std y1"
    again = load_artifact(tmp_path / "run", model=network())
    table = again.predict_proba(x[50:]).table()
    inside = 0
    for row, truth in zip(table, y[50:]):
        for j, name in enumerate(again.classes):
            mean = row[f"prediction({name})"]
            assert row[f"high90({name})"] - mean == pytest.approx(NINETY * row[f"std({name})"], rel=1e-6)
            inside += row[f"low90({name})"] <= truth[j] <= row[f"high90({name})"]
    assert inside / y[50:].size == pytest.approx(coverage.value)  # the artifact says what the record measured
    assert run.record.figures["varied"]["letter"] == "ρ"
    bars = [f"{what}({name})" for name in ("y0", "y1") for what in ("prediction", "std", "low90", "high90")]
    assert again.predict_proba(x[50:]).csv().splitlines()[0] == ",".join(["id", *bars])


def test_findings_name_each_output_and_the_way_of_the_derivatives() -> None:
    """Two outputs of scales 1 and 50 have a noise each; how derivatives are computed is said as for ``gradient``."""
    x, y = arrays(60, "regression")
    run = adapt(rows_of(x, y, tested=20), network(), method="tangent-gp", theta2=LAST)
    found = {finding.code: finding for finding in run.record.findings}
    noise = run.adapted.posterior.noise.sqrt().tolist()
    assert f"Targets scatter by {noise[0]:.3g} (y0), {noise[1]:.3g} (y1) about" in found["error-bars"].title
    assert found["error-bars"].value is None
    tape = Tangent(network(), LAST, torch.from_numpy(x[:3]), of="embedding").tape
    assert found["gradient-features"].detail == "; ".join(tape.path)
    assert found["gradient-features"].value == sum(run.record.figures["posterior"]["parameters"].values())
    run = adapt(rows_of(x, y[:, :1], tested=20), network(), method="tangent-gp", mode="activation")
    found = {finding.code: finding for finding in run.record.findings}
    assert found["error-bars"].value == pytest.approx(float(run.adapted.posterior.noise.sqrt()))
    assert "gradient-features" not in found


def test_error_bars_of_many_batches_look_at_the_network_once(monkeypatch) -> None:
    x, y = arrays(60, "regression")
    adapted = adapt(rows_of(x, y, tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    made, init = [], Tangent.__init__
    monkeypatch.setattr(Tangent, "__init__", lambda self, *a, **k: (made.append(1), init(self, *a, **k))[1])
    few, many = (adapted.predict_proba(x, batch_size=size).spread for size in (7, 60))
    assert len(made) == 1
    np.testing.assert_allclose(few, many, rtol=1e-4)


def test_error_bars_grow_away_from_the_rows() -> None:
    x, _ = arrays(60, "regression")
    features = Tangent(network(), LAST, torch.from_numpy(x), of="embedding").outputs.numpy()
    y = features @ np.arange(1.0, 6.0)[:, None] + 0.01 * np.random.default_rng(0).normal(size=(60, 1))
    adapted = adapt(rows_of(x, y, tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    near, far = adapted.predict_proba(x[:20]).spread, adapted.predict_proba(8 * x[:20]).spread
    assert far.mean() > 2 * near.mean()


@pytest.mark.parametrize("kind", ["constant", "duplicated", "two rows"])
def test_degenerate_rows_give_numbers_or_a_sentence(kind: str) -> None:
    x, y = arrays(40, "regression")
    if kind == "duplicated":
        x, y = np.repeat(x[:10], 4, 0), np.repeat(y[:10], 4, 0)
    manifest = rows_of(x, y, tested=10)
    if kind == "constant":
        manifest = replace(manifest, target=replace(manifest.target, values=np.full((40, 2), 3.0)))
        with pytest.raises(DataError, match="are all equal"):
            adapt(manifest, network(), method="tangent-gp", theta2=LAST)
        return
    if kind == "two rows":
        manifest = rows_of(x[:12], y[:12], tested=6)
    run = adapt(manifest, network(), method="tangent-gp", theta2=LAST)
    assert all(math.isfinite(score.value) for score in run.record.other_scores["test"])


def test_what_has_no_error_bars_is_refused() -> None:
    with pytest.raises(RecipeError, match="does not apply to multiclass labels"):
        adapt(rows_of(*arrays(40, "multiclass"), tested=10), network(), method="tangent-gp", theta2=LAST)
    with pytest.raises(RecipeError, match="features and gradients together"):
        with_gradients("tangent-gp", "gradient", None)
    with pytest.raises(RecipeError, match="keeps no direction"):
        Posterior(rank=0)
    x, y = arrays(40, "regression")
    y[3, 1] = np.nan
    with pytest.raises(DataError, match="needs them all"):
        adapt(rows_of(x, y, tested=10), network(), method="tangent-gp", theta2=LAST)
    assert METHODS["tangent-gp"].posterior is not None


def test_a_fold_is_predicted_without_its_labels() -> None:
    """ω, the kernel through it, scale, noise and the targets' unit are all found without the rows that are held out."""
    both, labels, _ = problem(outputs=1)
    folds = torch.arange(24) % 3
    other = replace(labels, values=torch.where((folds == 0)[:, None], 100 - labels.values, labels.values))
    first, second = (KernelFitter(both, each, folds, 1e-2, "ntk", Posterior(), 0) for each in (labels, other))
    held = folds == 0
    found, again = (fitter.out_of_fold("", [0.5])[0][0] for fitter in (first, second))
    assert torch.equal(found[held], again[held])
    assert not torch.allclose(found[~held], again[~held])
    assert torch.equal(first.spread(0.5)[held], second.spread(0.5)[held])


def test_many_rows_choose_on_some_and_keep_directions_by_lanczos(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leading directions without a whole eigendecomposition; scale and noise from the rows that were drawn."""
    both, labels, _ = problem(rows=40, outputs=1)
    folds, stage = torch.arange(40) % 2, Posterior(rank=6)
    monkeypatch.setattr("regraft.graft.posterior.regression._SEARCHED", 16)
    few = KernelFitter(both, labels, folds, 1e-2, "ntk", stage, 3)
    out = few.out_of_fold("", [1.0])[0][0]
    assert len(few.searched) == 16
    assert torch.equal(~out.isnan().any(1), torch.zeros(40, dtype=torch.bool).index_fill(0, few.searched, True))
    fitted = few.fitted(1.0)
    grafted = Grafted.of(both, labels, 1e-2, "ntk")
    values = torch.linalg.eigvalsh(fitted.chosen.scale * grafted.own.at(1.0)).flip(0)
    explained = values / (values + fitted.chosen.noise)
    torch.testing.assert_close(fitted.part.shrink.double(), explained[:6], rtol=1e-5, atol=1e-6)
    assert fitted.part.left_out == pytest.approx(float(explained[6]), rel=1e-5)
    monkeypatch.setattr("regraft.graft.posterior.regression._MOST", 39)
    with pytest.raises(DataError, match="too many for an exact Gaussian process"):
        KernelFitter(both, labels, folds, 1e-2, "ntk", stage, 3)


def test_the_rank_keeps_the_megabytes() -> None:
    stage = Posterior(rank=256, megabytes=1.0)
    assert stage.rank_for(100) == 256
    assert 4 * 10_000 * stage.rank_for(10_000) <= 2**20 < 4 * 10_000 * (stage.rank_for(10_000) + 1)
    assert stage.rank_for(10**9) == 1
