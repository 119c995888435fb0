"""Error bars: the weights that are kept against posteriors in function space, and what a run says of them."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.graft.gradient.test_gradient import LAST, arrays, network, rows_of
from tests.graft.posterior.test_contrasts import averaged
from torch import nn

from regraft.data import Manifest
from regraft.errors import DataError, RecipeError
from regraft.features import Tangent, ntk
from regraft.features.tangent.sums import signs
from regraft.graft import METHODS, adapt, load_artifact, with_gradients
from regraft.graft.adapted.model import with_own_head
from regraft.graft.adapted.posterior import PosteriorPart, Rows
from regraft.graft.evidence.exchange import head_exchange
from regraft.graft.gradient.fit import Both, Labels, solve_head, weight_of
from regraft.graft.posterior.fit import KernelFitter, Solved
from regraft.graft.posterior.kernel import AtHead, about_the_mean, combination, share
from regraft.graft.preparation import prepare
from regraft.graft.stages.posterior import Posterior
from regraft.heads import NINETY, Response, Spectrum
from regraft.heads.gp.levels import Levels
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


def dense_prior(grafted: AtHead, ratio: float) -> torch.Tensor:
    """K from features and Jacobians written out."""
    both = grafted.both
    x = both.features.matrices["embedding"].rows(slice(0, both.features.n_rows))
    x = (x - grafted.centre) / math.sqrt(grafted.unit)
    if both.tangent is None:
        return x @ x.T
    rows = both.tangent.through(grafted.head).take(both.rows).rows(both.rows)
    j = torch.cat([(block * grafted.prior[name]).flatten(2) for name, block in rows.items()], dim=2)[:, 0]
    return (1 - share(ratio)) * (x @ x.T) + share(ratio) * (j @ j.T) / grafted.tangent_unit


def test_gradients_that_are_much_alike_have_a_kernel_without_the_rounding_of_their_level() -> None:
    """Rows about a far point: in float32 their kernel about its mean has eigenvalues below zero, its level rounded."""
    torch.manual_seed(0)
    near = 1000 + torch.randn(40, 6)
    module = nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.Linear(8, 3))
    tangent = Tangent(from_module(module, ArrayPreprocess((6,))), ["0.*"], near, of="embedding")
    prior = dict.fromkeys(tangent.names, 1.0)
    middle = torch.eye(40, dtype=torch.float64) - 1 / 40
    design = tangent.through(torch.ones(1, 8))
    plain = middle @ ntk(design, prior=prior).double() @ middle
    kernel, unit = about_the_mean(design, prior, 40)
    assert kernel is not None
    mended = middle @ kernel @ middle
    least, lowest = (float(torch.linalg.eigvalsh(k)[0] / torch.linalg.eigvalsh(k)[-1]) for k in (plain, mended))
    assert least < -1e-4
    assert abs(lowest) < 1e-8
    assert float(kernel.diagonal().mean() - kernel.mean()) == pytest.approx(1, rel=1e-6)
    assert unit > 0


def test_rows_of_one_gradient_have_no_tangent_kernel() -> None:
    """ReLUs that never open: the block below gives the same for every input, and only rounding would be left of it."""

    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.inner((x - 1e6).relu() + 1))

    torch.manual_seed(0)
    near = torch.randn(20, 8)
    tangent = Tangent(from_module(Closed(), ArrayPreprocess((8,))), ["inner.*"], near, of="embedding")
    found = about_the_mean(tangent.through(torch.ones(1, 8)), dict.fromkeys(tangent.names, 1.0), 20)
    assert found == (None, 1.0)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_prior_is_that_of_the_linearised_network(outputs: int) -> None:
    both, labels, _ = problem(outputs=outputs)
    grafted = AtHead.of(both, labels, 1e-2, "ntk")
    for ratio in (0.3, 5.0):
        torch.testing.assert_close(grafted.own.at(ratio), dense_prior(grafted, ratio))
    own = grafted.own.tangent
    assert own is not None
    assert float(own.diagonal().mean() - own.mean()) == pytest.approx(1)
    assert float(grafted.own.features.sum(1).abs().max()) < 1e-9  # features are centred
    omega = weight_of(solve_head(both, labels, 1e-2))
    assert grafted.head.shape == (1, omega.shape[1])
    if outputs == 1:
        assert torch.equal(grafted.head, omega)


def test_the_kernel_of_many_outputs_is_on_average_the_mean_of_their_own() -> None:
    """E[g gᵀ] = I: over draws of g the kernel through g ω is the ``shared`` form of all outputs."""
    omega = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mixed = torch.cat([combination(omega, seed) for seed in range(2000)])
    np.testing.assert_allclose(mixed.T @ mixed / 2000, omega.T @ omega / 4, atol=0.2)
    assert torch.equal(combination(omega[:1]), omega[:1])
    assert torch.equal(combination(omega), combination(omega))


@pytest.mark.parametrize(("outputs", "mode"), [(1, "full"), (2, "full"), (2, "activation")])
@pytest.mark.parametrize("together", [True, False])
def test_weights_and_error_bars_are_the_posterior_in_function_space(outputs: int, mode: str, together: bool) -> None:
    """With every direction kept, at new rows; the posterior in function space has its own tests."""
    both, labels, _ = problem(outputs=outputs, mode=mode)
    whole, new = both, torch.arange(18, 24)
    old, old_labels = whole.take(torch.arange(18)), labels.take(torch.arange(18))
    ratio = 0.7 if mode == "full" else 0.0
    old_labels = replace(old_labels, alike=together)
    fitter = KernelFitter(old, old_labels, torch.arange(18) % 3, 1e-2, "ntk", Posterior(), 0)
    fitted = fitter.fitted(ratio)
    grafted = AtHead.of(old, old_labels, 1e-2, "ntk", whole.take(new))
    solved = Solved.of(grafted.contrasts(ratio), old_labels.standard, "marginal", together)
    assert [each.noise for each in fitted.chosen] == pytest.approx([each.noise for each in solved.chosen])
    mean, spread = old_labels.unit
    cross, own = grafted.cross.at(ratio), grafted.held.at(ratio).diagonal()
    x = whole.features.matrices["embedding"].rows(slice(18, 24)).to(torch.float64)
    part, design = fitted.part, None
    if mode == "full":
        assert whole.tangent is not None
        design = whole.tangent.through(grafted.head).take(new)
    moved, bars = part.read(x, design)
    found = x @ fitted.features + fitted.intercept + moved
    torch.testing.assert_close(found, solved.mean(cross) * spread + mean, rtol=1e-5, atol=1e-5)
    variance = solved.variance(cross, own, 18)
    scatter = torch.tensor([each.widening * each.mean_noise for each in solved.levels])
    expected = variance.sqrt() if together else (variance + scatter).sqrt() * spread
    torch.testing.assert_close(bars, expected, rtol=1e-4, atol=1e-4)
    assert part.left_out < 1e-9


def test_scale_and_noise_are_chosen_by_what_the_stage_says() -> None:
    both, labels, _ = problem()
    folds = torch.arange(24) % 3
    contrasts = AtHead.of(both, labels, 1e-2, "ntk").contrasts(0.7)
    chosen = {}
    for by in ("marginal", "loo"):
        fitter = KernelFitter(both, labels, folds, 1e-2, "ntk", Posterior(by=by), 0)
        chosen[by] = fitter.fitted(0.7).chosen
        for column, found in enumerate(chosen[by]):
            some = contrasts.of(labels.standard[:, column : column + 1])
            expected = Spectrum.of(contrasts.gram).choose(some, by)
            assert (found.scale, found.noise) == pytest.approx((expected.scale, expected.noise), rel=1e-6)
        assert bool(torch.isfinite(fitter.spread(0.7)).all())
    assert chosen["loo"][0].leave_one_out >= chosen["marginal"][0].leave_one_out
    assert chosen["marginal"][0].log_marginal >= chosen["loo"][0].log_marginal
    with pytest.raises(RecipeError, match="marginal, loo"):
        Posterior(by="evidence")  # type: ignore[arg-type]


def test_each_number_has_its_own_noise() -> None:
    """A column of noise beside a clean one neither widens the clean one's error bars nor narrows its own."""
    x, _ = arrays(120, "regression")
    features = Tangent(network(), LAST, torch.from_numpy(x), of="embedding").outputs.numpy()
    rng = np.random.default_rng(0)
    clean = features @ np.arange(1.0, 6.0)[:, None]
    clean = clean / clean.std() + 0.05 * rng.normal(size=(120, 1))
    y = np.hstack([clean, rng.normal(size=(120, 1))])
    both = adapt(rows_of(x[:80], y[:80], tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    alone = adapt(rows_of(x[:80], y[:80, :1], tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    pair, single = both.predict_proba(x[80:]), alone.predict_proba(x[80:])
    assert pair.spread[:, 0].mean() == pytest.approx(single.spread.mean(), rel=0.5)
    assert pair.spread[:, 1].mean() > 5 * pair.spread[:, 0].mean()
    errors = [np.abs(found.probabilities[:, 0] - y[80:, 0]).mean() for found in (pair, single)]
    assert errors[0] < 2 * errors[1]


@pytest.mark.parametrize("method", ["tangent-gp", "gradient"])
def test_a_head_beside_derivatives_is_no_last_layer_and_not_swapped(method: str) -> None:
    x, y = arrays(40, "regression")
    rows, net = rows_of(x, y[:, :1], tested=10), network()
    adapted = adapt(rows, net, method=method, theta2=LAST).adapted
    with pytest.raises(RecipeError, match=r"not a last layer of its network.*got embedding, .*derivatives"):
        with_own_head(adapted)
    probe = replace(adapted, tangent=None, posterior=None)
    for models in ([adapted, probe], [probe, adapted]):
        with pytest.raises(RecipeError, match="cannot be swapped"):
            head_exchange(models, rows)


@pytest.mark.parametrize("factor", [1e-24, 1.0, 1e20])
def test_error_bars_follow_the_unit_of_the_targets(factor: float) -> None:
    x, y = arrays(60, "regression")
    known = adapt(rows_of(x, y[:, :1], tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    scaled = adapt(rows_of(x, factor * y[:, :1], tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    found, expected = (each.predict_proba(x[40:]).spread for each in (scaled, known))
    np.testing.assert_allclose(found / factor, expected, rtol=1e-3)


def test_rows_that_repeat_an_earlier_one_say_nothing_new() -> None:
    both, labels, _ = problem(outputs=1)
    twice = torch.arange(24).repeat_interleave(3)
    many = KernelFitter(both.take(twice), labels.take(twice), twice % 3, 1e-2, "ntk", Posterior(), 0)
    once = KernelFitter(both, labels, torch.arange(24) % 3, 1e-2, "ntk", Posterior(), 0)
    assert int(many.new.sum()) == 24
    found, expected = (each.fitted(1.0).part.uncertainty.noise for each in (many, once))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(many.out_of_fold("", [1.0])[0][0][::3], once.out_of_fold("", [1.0])[0][0])


@pytest.mark.parametrize(("kind", "near"), [("binary", 0.1), ("regression", 0.03)])
def test_where_inputs_bear_several_labels_their_shares_are_what_is_predicted(kind: str, near: float) -> None:
    """Of four inputs, each sixty times, a share of .05, .1, .7 and .95 says yes: rows that repeat one are no copies."""
    rng = np.random.default_rng(0)
    corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    shares = np.array([0.05, 0.1, 0.7, 0.95])
    y = np.concatenate([np.arange(60) < 60 * share for share in shares]).astype(int)
    order = rng.permutation(240)
    x, y = corners.repeat(60, 0)[order], y[order]
    torch.manual_seed(0)
    small = from_module(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), ArrayPreprocess((2,)), name="small")
    run = adapt((x, np.array(["no", "yes"])[y] if kind == "binary" else y + 0.25), small, method="tangent-gp")
    found = run.adapted.predict_proba(corners).probabilities[:, -1]
    np.testing.assert_allclose(found, shares if kind == "binary" else shares + 0.25, atol=near)
    assert not any("rows are fitted" in finding.detail for finding in run.record.findings)


def test_a_run_by_leave_one_out_says_so() -> None:
    x, y = arrays(60, "regression")
    known = with_gradients("tangent-gp", None, LAST)
    stages = tuple(replace(s, by="loo") if isinstance(s, Posterior) else s for s in known.stages)
    run = adapt(rows_of(x, y, tested=20), network(), method=replace(known, stages=stages))
    (told,) = (finding for finding in run.record.findings if finding.code == "error-bars")
    assert "by the density of contrasts of the rows, left out" in told.detail
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
        wide.append(torch.cat([own, *told], dim=1))
    phi, other = wide[0] - wide[0].mean(0), wide[1] - wide[0].mean(0)
    scale, noise = float(part.uncertainty.scale[0]), float(part.uncertainty.noise[0])
    values, vectors = torch.linalg.eigh(phi.T @ phi)
    left = scale * noise / (scale * values.clamp_min(0) + noise)
    variance = ((other @ vectors).square() * left).sum(1) + noise / len(rows)
    return ((variance + noise).sqrt() * part.unit[0]).numpy(), scale * float(wide[1].square().sum(1).mean()) / noise


@pytest.mark.parametrize(("least", "widest"), [(6e-3, 1.01), (3e-3, 1.3), (0.0, 5.0)])
def test_error_bars_of_an_artifact_are_no_narrower_than_exact_ones(
    least: float, widest: float, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variance is 1e-4 of its prior's and less: what rounding decides is widened, not narrowed."""

    def best(spectrum: Spectrum, targets: torch.Tensor) -> Levels:
        chosen = spectrum.choose(targets)
        return Levels.known(chosen.scale, chosen.noise)

    monkeypatch.setattr(Spectrum, "levels", best)
    body, manifest, x = smooth(least)
    adapt(manifest, body, method="tangent-gp", theta2=("0.*", "2.*")).save(tmp_path / "run")
    again = load_artifact(tmp_path / "run", model=body)
    assert again.posterior is not None
    exact, ratio = dense_spread(body, again.posterior, x[:60], x[80:])
    found = again.predict_proba(x[80:]).spread[:, 0] / exact
    assert ratio > 1e4
    assert found.min() > 0.999
    assert found.max() < widest


def test_error_bars_of_an_older_form_are_refused_in_a_sentence() -> None:
    with pytest.raises(DataError, match=r"of an older kind.*adapt again"):
        PosteriorPart.holding({"feature": 1.0, "intercept": 1.0, "deviations": {}, "left_out": 0.0}, {})


def test_error_bars_of_earlier_versions_are_read() -> None:
    """Before sums, and of the best scale and noise alone."""
    both, labels, _ = problem(outputs=2)
    part = KernelFitter(both, labels, torch.arange(24) % 3, 1e-2, "ntk", Posterior(by="loo"), 0).fitted(1.0).part
    recorded = {name: value for name, value in part.to_json().items() if name != "sums"}
    kept = {name: value for name, value in part.tensors().items() if name not in ("explained", "apart", "widening")}
    again = PosteriorPart.holding(recorded, kept)
    assert again.sums == 0
    assert again.left_out == part.left_out
    x = both.features.matrices["embedding"].rows(slice(0, 24))
    design = both.tangent.through(part.head)  # type: ignore[union-attr, arg-type]
    for found, expected in zip(again.read(x, design), part.read(x, design)):
        torch.testing.assert_close(found, expected)


class Gained(nn.Module):
    """A network with a parameter of any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name, self.inner = name, nn.Linear(6, 5)
        self.register_parameter(name, nn.Parameter(torch.linspace(0.5, 1.5, 5)))
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.inner(x)) * getattr(self, self.name))


@pytest.mark.parametrize("sums", [0, 11])
def test_parameters_may_be_called_as_the_last_layer_or_the_sums_are(monkeypatch, sums: int) -> None:
    """A parameter ``features``, of as many numbers as the last layer has features, took the place of their block."""
    if sums:
        monkeypatch.setattr(Posterior, "sums", sums)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    response = Response.of("regression", ["a"], np.sin(2 * x[:, :1].double().numpy()))
    labels = Labels.of(response, torch.ones(40, 1, dtype=torch.float64))

    def read(name: str) -> tuple[torch.Tensor, ...]:
        backbone = from_module(Gained(name).eval(), ArrayPreprocess((6,)))
        tangent = Tangent(backbone, [name, "inner.*"], x, of="embedding", dtype=torch.float64)
        features = FeatureDesign({"embedding": Dense(tangent.outputs)}, 1)
        both = Both(features, tangent, torch.arange(40), "full")
        stage = Posterior(megabytes=6 * 11 * 4 / 2**20)
        found = KernelFitter(both, labels, torch.arange(40) % 3, 1e-2, "ntk", stage, 0).fitted(1.0)
        assert found.part.sums == sums
        kept = {key: value.clone() for key, value in found.part.tensors().items()}
        again = PosteriorPart.holding(found.part.to_json(), kept)
        assert set(again.directions) == set(found.part.directions)
        read = again.read(tangent.outputs, tangent.through(again.head))  # type: ignore[arg-type]
        return found.features, found.intercept, *read

    for name, plain in (("features", "gain"), ("sums", "tail")):  # signs go by the order of names
        for value, expected in zip(read(name), read(plain)):
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)


def test_an_artifact_that_lost_the_last_layer_to_a_parameter_of_its_name_is_refused() -> None:
    """As it was written when both had one name."""
    both, labels, _ = problem(outputs=1)
    part = KernelFitter(both, labels, torch.arange(24) % 3, 1e-2, "ntk", Posterior(by="loo"), 0).fitted(1.0).part
    recorded = part.to_json()
    recorded["deviations"] = {**recorded["deviations"], "features": 1.0}
    with pytest.raises(DataError, match=r"parameter 'features'.*adapt again"):
        PosteriorPart.holding(recorded, part.tensors())


def test_fewer_directions_widen_error_bars_by_no_more_than_is_said() -> None:
    both, labels, _ = problem(outputs=1)
    folds = torch.arange(24) % 3
    exact = KernelFitter(both, labels, folds, 1e-2, "ntk", Posterior(by="loo"), 0).fitted(1.0).part
    x = both.features.matrices["embedding"].rows(slice(0, 24))
    design = both.tangent.through(exact.head)  # type: ignore[union-attr, arg-type]
    true = exact.read(x, design)[1][:, 0].square()
    own = AtHead.of(both, labels, 1e-2, "ntk").contrasts(1.0)
    prior = own.within(own.kernel, own.kernel.diagonal()) * float(exact.uncertainty.scale)
    unit = float(exact.unit[0]) ** 2
    widths = []
    for rank in (1, 4, 8):
        part = KernelFitter(both, labels, folds, 1e-2, "ntk", Posterior(rank=rank, by="loo"), 0).fitted(1.0).part
        found = part.read(x, design)[1][:, 0].square()
        assert bool((found >= true - 1e-5 * unit).all())
        assert bool((found - true <= part.left_out * unit * prior + 1e-5 * unit).all())
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


def test_of_few_rows_error_bars_of_one_scale_and_noise_cause_a_warning() -> None:
    x, y = arrays(50, "regression")
    codes = np.digitize(y[:, 0], np.quantile(y[:, 0], [0.5]))
    severities = {}
    for name, labels in (("averaged", y[:, :1]), ("classes", codes)):
        run = adapt(rows_of(x, labels, tested=30), network(), method="tangent-gp", theta2=LAST)
        (told,) = (finding for finding in run.record.findings if finding.code == "error-bars")
        severities[name] = told.severity
        assert ("averaged over" in told.detail) == (name == "averaged")
        assert ("too narrow" in told.detail) == (name == "classes")
    assert severities == {"averaged": "info", "classes": "warning"}


def test_directions_that_are_left_out_may_narrow_error_bars_of_numbers_and_the_finding_says_so() -> None:
    """Of numbers, whose scales and noises are averaged over; of one scale and noise the others can only narrow."""
    x, y = arrays(50, "regression")
    known = with_gradients("tangent-gp", None, LAST)
    told = {}
    for by in ("marginal", "loo"):
        for rank in (2, 512):
            stages = (replace(s, rank=rank, by=by) if isinstance(s, Posterior) else s for s in known.stages)
            run = adapt(rows_of(x, y[:, :1], tested=10), network(), method=replace(known, stages=tuple(stages)))
            (found,) = (finding for finding in run.record.findings if finding.code == "error-bars")
            told[by, rank] = "widen it: some error bars may be too narrow." in found.detail
    assert told == {("marginal", 2): True, ("marginal", 512): False, ("loo", 2): False, ("loo", 512): False}


def test_findings_name_each_output_and_the_way_of_the_derivatives() -> None:
    """Two outputs of scales 1 and 50 have a noise each; how derivatives are computed is said as for ``gradient``."""
    x, y = arrays(60, "regression")
    run = adapt(rows_of(x, y, tested=20), network(), method="tangent-gp", theta2=LAST)
    found = {finding.code: finding for finding in run.record.findings}
    part = run.adapted.posterior
    noise = (part.uncertainty.noise.sqrt() * part.unit).tolist()
    assert f"Targets scatter by {noise[0]:.3g} (y0), {noise[1]:.3g} (y1) about" in found["error-bars"].title
    assert found["error-bars"].value is None
    tape = Tangent(network(), LAST, torch.from_numpy(x[:3]), of="embedding").tape
    assert found["gradient-features"].detail == "; ".join(tape.path)
    assert found["gradient-features"].value == sum(run.record.figures["posterior"]["parameters"].values())
    run = adapt(rows_of(x, y[:, :1], tested=20), network(), method="tangent-gp", mode="activation")
    found = {finding.code: finding for finding in run.record.findings}
    assert found["error-bars"].value == pytest.approx(
        float(run.adapted.posterior.uncertainty.noise.sqrt() * run.adapted.posterior.unit)
    )
    assert "gradient-features" not in found


def test_error_bars_of_many_batches_look_at_the_network_once(monkeypatch) -> None:
    x, y = arrays(60, "regression")
    adapted = adapt(rows_of(x, y, tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    made, init = [], Tangent.__init__
    monkeypatch.setattr(Tangent, "__init__", lambda self, *a, **k: (made.append(1), init(self, *a, **k))[1])
    few, many = (adapted.predict_proba(x, batch_size=size).spread for size in (7, 60))
    assert len(made) == 1
    np.testing.assert_allclose(few, many, rtol=1e-4)


def test_networks_that_error_bars_were_taken_of_are_let_go() -> None:
    """The one before the last at once, and the last with the error bars."""
    both, labels, _ = problem(outputs=1)
    part = KernelFitter(both, labels, torch.arange(24) % 3, 1e-2, "ntk", Posterior(), 0).fitted(1.0).part
    seen = []
    for _ in range(2):
        body = network()
        batch = torch.randn(5, *body.preprocess.shape)
        part.of_batch(body, batch, body.without_head()(body.params, {}, batch))
        seen.append(weakref.ref(body))
        del body
        gc.collect()
    assert seen[0]() is None
    assert seen[1]() is not None
    del part
    gc.collect()
    assert seen[1]() is None


def test_error_bars_are_there_in_inference_mode() -> None:
    x, y = arrays(60, "regression")
    adapted = adapt(rows_of(x, y, tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    wanted = adapted.predict_proba(x[:7])
    with torch.inference_mode():
        found = adapted.predict_proba(x[:7])
    np.testing.assert_array_equal(found.spread, wanted.spread)
    np.testing.assert_array_equal(found.probabilities, wanted.probabilities)


def test_error_bars_grow_away_from_the_rows() -> None:
    x, _ = arrays(60, "regression")
    features = Tangent(network(), LAST, torch.from_numpy(x), of="embedding").outputs.numpy()
    y = features @ np.arange(1.0, 6.0)[:, None] + 0.01 * np.random.default_rng(0).normal(size=(60, 1))
    adapted = adapt(rows_of(x, y, tested=20), network(), method="tangent-gp", theta2=LAST).adapted
    near, far = adapted.predict_proba(x[:20]).spread, adapted.predict_proba(8 * x[:20]).spread
    assert far.mean() > 2 * near.mean()


def test_copies_of_two_rows_that_one_fold_holds_are_counted_in_the_refusal() -> None:
    """Another backbone tells copies apart no better: what is wanted first is other rows."""
    both, labels, _ = problem(outputs=1)
    copies = torch.arange(24) // 12
    folds = (torch.arange(24) % 12).clamp(max=1)  # both rows' first copies in one fold
    fitter = KernelFitter(both.take(copies), labels.take(copies), folds, 1e-2, "ntk", Posterior(by="loo"), 0)
    with pytest.raises(DataError, match=r"got 2 different rows of 24\. To mend it: bring more rows that differ"):
        fitter.out_of_fold("tangent-gp", [1.0])


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


def test_what_has_no_error_bars_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="weighs all rows alike"):
        adapt(
            rows_of(*arrays(40, "multiclass"), tested=10), network(), method="tangent-gp", theta2=LAST,
            class_weight="balanced",
        )  # fmt: skip
    with pytest.raises(RecipeError, match="features and gradients together"):
        with_gradients("tangent-gp", "gradient", None)
    for rank in (0, 2.5, "many"):
        with pytest.raises(RecipeError, match="keeps no direction"):
            Posterior(rank=rank)  # type: ignore[arg-type]
    x, y = arrays(40, "regression")
    with monkeypatch.context() as patch:
        patch.setattr(Posterior, "most", 29)
        with pytest.raises(DataError, match=r"30 rows are too many .*at most 29"):
            prepare(rows_of(x, y, tested=10), network(), method=with_gradients("tangent-gp", None, LAST))
    y[3, 1] = np.nan
    with pytest.raises(DataError, match=r"needs every label of a row; got gaps in 1 row of 30\."):
        prepare(rows_of(x, y, tested=10), network(), method=with_gradients("tangent-gp", None, LAST))
    x, y = arrays(40, "regression")
    y[35, 1] = np.nan  # a row that is only scored
    assert (
        prepare(
            rows_of(x, y, tested=10), network(), method=with_gradients("tangent-gp", None, LAST)
        ).manifest.labels.outputs
        == 2
    )
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
    monkeypatch.setattr("regraft.graft.stages.posterior.Posterior.searched", 16)
    few = KernelFitter(both, labels, folds, 1e-2, "ntk", stage, 3)
    out = few.out_of_fold("", [1.0])[0][0]
    assert len(few.searched) == 16
    assert torch.equal(~out.isnan().any(1), torch.zeros(40, dtype=torch.bool).index_fill(0, few.searched, True))
    fitted = few.fitted(1.0)
    grafted = AtHead.of(both, labels, 1e-2, "ntk")
    scale, noise = fitted.chosen[0].scale, fitted.chosen[0].noise
    values = torch.linalg.eigvalsh(grafted.contrasts(1.0).gram).flip(0)
    torch.testing.assert_close(fitted.part.values, values[:6], rtol=1e-6, atol=1e-6)
    assert fitted.part.left_out == pytest.approx(float(scale * values[6] / (scale * values[6] + noise)), rel=1e-5)
    # the mean in weight space is still that of all rows at the drawn rows' scale and noise
    y = labels.standard
    dense = torch.linalg.inv(scale * grafted.own.at(1.0) + 1e6 + noise * torch.eye(40, dtype=torch.float64))
    expected = (scale * grafted.own.at(1.0) + 1e6) @ dense @ y
    x = both.features.matrices["embedding"].rows(slice(0, 40)).to(torch.float64)
    moved, _ = fitted.part.read(x, both.tangent.through(fitted.part.head))  # type: ignore[union-attr, arg-type]
    mean, spread = labels.unit
    found = (x @ fitted.features + fitted.intercept + moved - mean) / spread
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_rank_keeps_the_megabytes() -> None:
    stage = Posterior(rank=256, megabytes=1.0)
    assert stage.kept(100, 1000) == (256, 0)
    assert stage.kept(100, 40) == (39, 0)
    assert stage.kept(100, 1) == (1, 0)
    assert stage.kept(8191, 1000) == (32, 0)  # sums would be no fewer
    assert stage.kept(8191, 1000)[0] * 8191 * 4 <= 2**20 < 33 * 8191 * 4
    assert stage.kept(10_000, 27) == (26, 0)  # as many as the rows have fit
    assert stage.kept(10_000, 28) == (27, 8191)
    assert stage.kept(10**9, 1000) == (32, 8191)
    assert Posterior().kept(10**6, 100_000) == (512, 8191)


def explicit(rows: Rows, sums: int) -> torch.Tensor:
    """Φ̂ (n, D + m) from the whole Jacobian and a matrix S of signs, which is made here entry by entry."""
    assert rows.tangent is not None
    blocks = rows.tangent.rows(torch.arange(rows.tangent.n_rows))
    wide = torch.cat([blocks[n][:, 0].flatten(1).double() * rows.deviations[n] for n in sorted(blocks)], dim=1)
    matrix = torch.zeros(sums, wide.shape[1], dtype=torch.float64)
    for number, sign in enumerate(signs(0, wide.shape[1]).tolist()):
        matrix[number % sums, number] = sign
    return torch.cat([rows.features, wide @ matrix.T], dim=1)


@pytest.mark.parametrize("kept", [39, 15])
def test_error_bars_of_sums_are_those_of_the_process_that_the_sums_define(monkeypatch, kept) -> None:
    """The textbook's variance, with a flat prior on the level, of features that are written out; few pairs of many rows
    are the leading ones, by products."""
    both, labels, _ = problem(rows=40, outputs=1)
    monkeypatch.setattr(Posterior, "sums", 53)
    if kept < 39:
        monkeypatch.setattr(Posterior, "searched", 16)
    stage = Posterior(megabytes=kept * 53 * 4 / 2**20)
    part = KernelFitter(both, labels, torch.arange(40) % 2, 1e-2, "ntk", stage, 3).fitted(1.0).part
    phi = explicit(AtHead.of(both, labels, 1e-2, "ntk").rows(1.0), 53)
    about = phi - phi.mean(0)
    values = torch.linalg.eigvalsh(about @ about.T).flip(0)[:kept]
    assert (part.sums, part.rank) == (53, kept)
    torch.testing.assert_close(part.values, values, rtol=1e-5, atol=1e-6 * float(values[0]))
    x = both.features.matrices["embedding"].rows(slice(0, 40))
    found = part.read(x, both.tangent.through(part.head))[1][:, 0] / float(part.unit)  # type: ignore[union-attr,arg-type]
    scale, y = float(part.uncertainty.scale), labels.standard
    if kept == 39:
        exact_kernel = AtHead.of(both, labels, 1e-2, "ntk").contrasts(1.0)
        levels = Spectrum.of(exact_kernel.gram).levels(exact_kernel.of(y))
    else:
        levels = Levels.known(scale, float(part.uncertainty.noise))
    own = phi @ phi.T
    exact = averaged(own, own, own.diagonal(), y[:, 0], levels)[1] + levels.widening * levels.mean_noise
    if kept == 39:
        torch.testing.assert_close(found.square(), exact, rtol=2e-4, atol=0)
    else:
        assert bool((found.square() >= exact - 1e-5).all())
        assert bool((found.square() - exact <= part.left_out * scale * about.square().sum(1) + 1e-5).all())


def test_sums_stand_for_more_derivatives_than_could_be_kept(tmp_path) -> None:
    """Of 53,000 parameters four directions fit into a megabyte: with sums the error bars are the exact ones, nearly."""
    torch.manual_seed(0)
    body = from_module(
        nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 256), nn.Tanh()), ArrayPreprocess((6,))
    )
    x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + 0.1 * x[:, 1]
    manifest = rows_of(x[:60], y[:60], tested=10)

    def run(**kept: float):
        stages = tuple(Posterior(**kept) if isinstance(s, Posterior) else s for s in METHODS["tangent-gp"].stages)
        return adapt(manifest, body, method=replace(METHODS["tangent-gp"], stages=stages), theta2=("0.*", "2.*"))

    exact, short = run(), run(megabytes=2.0)
    assert exact.adapted.posterior.sums == 0
    assert short.adapted.posterior.sums == 8191
    figures = short.record.figures["posterior"]
    assert 0 < figures["sums_apart"] < 0.05
    (finding,) = [f for f in short.record.findings if f.code == "error-bars"]
    assert "8,191 random sums of derivatives" in finding.detail
    for inputs in (x[60:], 4 * x[60:]):
        both = [r.adapted.predict_proba(inputs) for r in (exact, short)]
        np.testing.assert_allclose(both[0].probabilities, both[1].probabilities, atol=1e-5)
        np.testing.assert_allclose(both[1].spread, both[0].spread, rtol=0.05)
    short.save(tmp_path / "run")
    again = load_artifact(tmp_path / "run", model=body)
    one = np.concatenate([np.asarray(again.predict_proba(x[row : row + 1]).spread) for row in (60, 75)])
    np.testing.assert_allclose(one, np.asarray(short.adapted.predict_proba(x[[60, 75]]).spread), rtol=1e-4)


def blobs(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that the inputs tell apart for most rows."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, rows)
    x = rng.normal(size=(rows, 3, 6, 6)).astype(np.float32)
    x[np.arange(rows), codes] += 0.7
    return x, codes


def test_classes_have_probabilities_and_error_bars(tmp_path) -> None:
    x, codes = blobs(240)
    run = adapt(rows_of(x, codes, tested=80), network(), method="tangent-gp", theta2=LAST)
    assert run.record.scores["test"].value > 0.5 > 1 / 3
    kinds = {score.metric for score in run.record.other_scores["test"]}
    assert {"nll", "ece"} <= kinds
    assert not kinds & {"coverage-90", "gaussian-nll"}
    run.save(tmp_path / "run")
    again = load_artifact(tmp_path / "run", model=network())
    found = again.predict_proba(x[160:])
    assert found.probabilities.sum(1) == pytest.approx(np.ones(80))
    np.testing.assert_allclose(found.probabilities, run.adapted.predict_proba(x[160:]).probabilities, atol=1e-6)
    assert [row["std"] for row in found.table()] == pytest.approx(found.spread.mean(1).tolist())
    right = (found.probabilities.argmax(1) == codes[160:]).mean()
    assert right == pytest.approx(run.record.scores["test"].value)


def test_a_class_of_one_row_hardly_changes_the_others() -> None:
    """Its column would weigh as much in the evidence as the others', were each in units of its own spread."""
    x, codes = blobs(240)
    names = np.array(["a", "b", "c", "stray"])
    stray = codes.copy()
    stray[7] = 3
    alone, beside = (
        adapt(rows_of(x, names[some], tested=80), network(), method="tangent-gp", mode="activation")
        for some in (codes, stray)
    )
    assert beside.adapted.classes == tuple(names)
    found = [run.adapted.posterior.uncertainty for run in (alone, beside)]
    ratio = [float((each.noise / each.scale)[0]) for each in found]
    assert ratio[1] == pytest.approx(ratio[0], rel=0.3)


def test_a_model_with_error_bars_can_be_pickled_and_copied() -> None:
    x, codes = blobs(120)
    run = adapt(rows_of(x, codes, tested=40), network(), method="tangent-gp", theta2=LAST)
    expected = run.adapted.predict_proba(x[80:])  # after which it keeps how derivatives of the network are found
    for again in (copy.deepcopy(run.adapted), pickle.loads(pickle.dumps(run.adapted))):
        found = again.predict_proba(x[80:])
        np.testing.assert_array_equal(found.probabilities, expected.probabilities)
        np.testing.assert_array_equal(found.spread, expected.spread)


def test_columns_that_are_alike_have_one_spread() -> None:
    values = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]], dtype=torch.float64)
    mean, spread = Labels("squared", values, torch.ones(4, 1, dtype=torch.float64), alike=True).unit
    assert mean.tolist() == [0.5, 0.5, 0]
    assert spread.tolist() == pytest.approx([(2 * 0.25 / 3) ** 0.5] * 3)  # a class without a row has none
    _, alone = Labels("squared", values[:2], torch.ones(2, 1, dtype=torch.float64), alike=True).unit
    assert alone.tolist() == [1.0] * 3


def test_the_error_bars_of_classes_tell_inputs_that_are_unlike_the_rows() -> None:
    """Of rows like those that were fitted to few lie above what the finding names, of others most."""
    x, codes = blobs(400)
    run = adapt(rows_of(x[:300], codes[:300], tested=60), network(), method="tangent-gp", theta2=LAST)
    typical = run.record.figures["posterior"]["typical"]
    (told,) = (finding for finding in run.record.findings if finding.code == "error-bars")
    assert told.value == typical["0.99"] > typical["0.9"] > typical["0.5"]
    assert told.unit == "times the scores' spread"  # no share of it, to be written in per cent
    like, unlike = (run.adapted.predict_proba(some).spread[:, 0] for some in (x[300:], 6 * x[300:]))
    assert (like > typical["0.99"]).mean() < 0.1
    assert (unlike > typical["0.99"]).mean() > 0.9


def test_the_probabilities_of_classes_are_a_calibrated_ridge_heads() -> None:
    """Without gradients: the mean is ridge regression on one-hot classes at penalty σ²/s, its softmax tempered."""
    x, codes = blobs(150)
    run = adapt(rows_of(x, codes, tested=50), network(), method="tangent-gp", mode="activation")
    part, readout = run.adapted.posterior, run.adapted.readout
    features = Tangent(network(), LAST, torch.from_numpy(x), of="embedding").outputs.double()
    train, y = features[:100], torch.nn.functional.one_hot(torch.from_numpy(codes[:100]), 3).double()
    centred = (train - train.mean(0)) * part.feature
    penalty = float(part.uncertainty.noise[0] / part.uncertainty.scale[0])
    eye = torch.eye(centred.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(centred.T @ centred + penalty * eye, centred.T @ (y - y.mean(0)))
    logits = y.mean(0) + (features[100:] - train.mean(0)) * part.feature @ weight
    expected = (logits / readout.temperature).softmax(1)
    np.testing.assert_allclose(run.adapted.predict_proba(x[100:]).probabilities, expected, atol=1e-4)


class Branching(nn.Module):
    """A layer that runs only where a row of the batch is large, and then changes the large rows alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.more, self.top, self.head = (nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, large = self.body(x).tanh(), x[:, :1] > 2
        if large.any():
            hidden = hidden + self.more(hidden) * large
        return self.head(self.top(hidden).relu())


def test_rows_that_take_another_path_than_the_first_ones_are_solved_all_the_same(tmp_path) -> None:
    """What comes before θ₂ cannot be kept of them, and the pass for the features goes on without it."""
    torch.manual_seed(0)
    x = torch.rand(60, 4).numpy()
    x[30, 0] = 3
    net = from_module(Branching(), ArrayPreprocess((4,)))
    found = [
        adapt(rows_of(x, np.arange(60) % 3), net, method="tangent-gp", theta2="top.*", batch_size=8, cache=tmp_path)
        for _ in range(2)  # the second time the features are stored
    ]
    assert found[0].score == found[1].score
    assert [cost.backbone_passes for cost in found[0].record.costs if cost.stage == "sweep"] == [1]
