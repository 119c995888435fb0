"""Other ways to rank features: formulas in numpy, and what every scorer must keep to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.heads.problems import classes_of, design_of, features

from regraft.errors import SolverError
from regraft.heads import Response, group_lasso, select
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.penalised_scorers import ExactGroupLasso, LayerGroups
from regraft.heads.selection.relevance import fold_tasks, panel_scores
from regraft.heads.selection.scorers import ByLayer, FirstGradient, RandomScores, Relevance, Stability, Variance
from regraft.heads.sparse.layers import LayerLasso
from regraft.heads.sparse.problem import data_term
from regraft.linear import Dense, FeatureDesign

from .test_selection import normalised, unit_design
from .test_selection_search import design_of as planted_design
from .test_selection_search import planted

STRENGTHS = (1e-2, 1e-3)
ALL = [
    RandomScores(3),
    Variance(),
    FirstGradient(),
    Stability(3),
    ByLayer(),
    ByLayer(Variance()),
    ExactGroupLasso((0.5, 0.1), tol=1e-8),
    LayerGroups((0.5, 0.1), tol=1e-8),
]


def labels(kind, x, codes):
    if kind == "multiclass":
        return classes_of(codes)
    if kind == "multilabel":
        return Response.of("multilabel", ["a", "b"], np.stack([codes > 0, x[:, 0] > x[:, 0].mean()], 1).astype(float))
    return Response.of("regression", ["a", "b"], x[:, :2] * [1, 30] + x[:, 5:7])


def scores_of(scorer, design, response, folds, class_weight=None):
    tasks = [*fold_tasks(response, folds, class_weight), *fold_tasks(response, None, class_weight)]
    return scorer(Panel(design), tasks, response, STRENGTHS)


@pytest.mark.parametrize("scorer", ALL, ids=lambda s: s.name)
@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_every_scorer_is_finite_repeats_itself_and_never_sees_its_fold(scorer, kind):
    x, codes = features(48, 60, 3)
    folds = torch.arange(48) % 4
    response = labels(kind, x, codes)
    found = scores_of(scorer, unit_design(x, response.n_outputs), response, folds)
    assert found.shape == (5, 2, 60)
    assert bool(torch.isfinite(found).all())
    again = scores_of(scorer, unit_design(x, response.n_outputs), response, folds)
    assert torch.equal(found, again)
    held = (folds == 1).numpy()
    other = x.copy()
    # other labels in the fold; other features too, but for scorers of which the unit of the penalty is a mean over rows
    uses_unit = isinstance(scorer, Stability | ByLayer) and scorer != ByLayer(Variance())
    if not uses_unit:
        other[held] = np.random.default_rng(9).normal(size=(held.sum(), 60))
    values = response.values.numpy().copy()
    values[held] = values[held][:, ::-1] if kind != "multiclass" else np.roll(values[held], 1, axis=1)
    changed = (
        classes_of(values.argmax(1)) if kind == "multiclass" else Response.of(response.kind, response.classes, values)
    )
    moved = scores_of(scorer, unit_design(other, response.n_outputs), changed, folds)
    np.testing.assert_allclose(moved[1].numpy(), found[1].numpy(), rtol=1e-6, atol=1e-9)
    if not isinstance(scorer, RandomScores) and scorer != ByLayer(Variance()) and not isinstance(scorer, Variance):
        assert not np.allclose(moved[0].numpy(), found[0].numpy(), rtol=1e-6)


def test_variance_is_that_of_the_training_rows():
    x, codes = features(40, 30, 3)
    folds = torch.arange(40) % 4
    found = scores_of(Variance(), design_of(x, 3, cuts=3), classes_of(codes), folds, "balanced")
    for fold in range(4):
        np.testing.assert_allclose(found[fold, 0].numpy(), x[(folds != fold).numpy()].var(0), rtol=1e-9)
    np.testing.assert_allclose(found[4, 1].numpy(), x.var(0), rtol=1e-9)


@pytest.mark.parametrize("weighting", [None, "balanced"])
def test_the_first_gradient_is_that_of_the_softmax_loss_at_zero(weighting):
    """By automatic differentiation of the loss at W = 0 and the intercept that is optimal there."""
    x, codes = features(40, 30, 3)
    folds = torch.arange(40) % 4
    response = classes_of(codes)
    found = scores_of(FirstGradient(), design_of(x, 3, cuts=2), response, folds, weighting)
    task = fold_tasks(response, folds, weighting)[2]
    share = task.weights[:, 0] / task.weights.sum()
    weights = torch.zeros(30, 3, dtype=torch.float64, requires_grad=True)
    prior = (share[:, None] * response.values).sum(0).log()
    loss = torch.nn.functional.cross_entropy(torch.tensor(x) @ weights + prior, response.codes, reduction="none")
    (gradient,) = torch.autograd.grad((share * loss).sum(), weights)
    np.testing.assert_allclose(found[2, 0].numpy(), gradient.norm(dim=1).numpy(), rtol=1e-9)


def test_the_first_gradient_is_the_relevance_under_a_strong_penalty():
    x, codes = features(40, 30, 3)
    panel, tasks = Panel(unit_design(x, 3)), fold_tasks(classes_of(codes), None)
    strong = panel_scores(panel, tasks, [1e6])[0, 0]
    first = FirstGradient()(panel, tasks, classes_of(codes), [1.0])[0, 0]
    np.testing.assert_allclose((strong / strong.max()).numpy(), (first / first.max()).numpy(), rtol=1e-4)


def test_random_scores_are_one_draw():
    x, codes = features(40, 30, 3)
    folds = torch.arange(40) % 4
    found = scores_of(RandomScores(1), design_of(x, 3), classes_of(codes), folds)
    assert bool((found == found[0, 0]).all())
    assert not torch.equal(found, scores_of(RandomScores(2), design_of(x, 3), classes_of(codes), folds))


def test_stability_over_all_rows_is_the_relevance_and_over_halves_a_mean():
    x, codes = features(40, 30, 3)
    folds, design, response = torch.arange(40) % 4, unit_design(x, 3), classes_of(codes)
    plain = scores_of(Relevance(), design, response, folds)
    whole = scores_of(Stability(2, share=1.0), design, response, folds)
    np.testing.assert_allclose(whole.numpy(), plain.numpy(), rtol=1e-9)
    one = [scores_of(Stability(n, seed=5), design, response, folds) for n in (1, 2, 3)]
    assert not torch.allclose(one[0], plain)
    second = 2 * one[1] - one[0]
    third = 3 * one[2] - 2 * one[1]
    assert bool((second > 0).all())
    assert bool((third > 0).all())
    assert not torch.allclose(second, third)
    other = scores_of(Stability(1, seed=6), design, response, folds)  # another seed draws other halves
    assert not torch.allclose(other, one[0])
    assert torch.equal(scores_of(Stability(1, seed=5), design, response, folds), one[0])


def test_stability_draws_halves_in_proportion(monkeypatch):
    import regraft.heads.selection.scorers as scorers

    seen = []
    plain = scorers.dual_ridge

    def spy(gram, targets, weights, penalties):
        seen.append(weights[:, 0].clone())
        return plain(gram, targets, weights, penalties)

    monkeypatch.setattr(scorers, "dual_ridge", spy)
    codes = np.repeat([0, 1, 2], [40, 19, 1])
    x = np.random.default_rng(0).normal(size=(60, 10))
    folds = torch.tensor(np.where(np.arange(60) % 2, 0, 1))
    scores_of(Stability(4), design_of(x, 3), classes_of(codes), folds)
    assert len(seen) == 4 * 3
    for index, weights in enumerate(seen):
        task = index % 3
        rows = np.ones(60, bool) if task == 2 else (folds != task).numpy()
        assert not weights[~rows].any()
        counts = [int((weights[codes == c] > 0).sum()) for c in range(3)]
        total = [int((rows & (codes == c)).sum()) for c in range(3)]
        assert counts == [max(1, round(0.5 * n)) if n else 0 for n in total]


def test_layers_are_taken_whole_by_their_mean():
    x, codes = features(40, 60, 3)
    design, response = unit_design(x, 3), classes_of(codes)  # layers of 7, 23 and 30
    folds = torch.arange(40) % 4
    plain = scores_of(Relevance(), design, response, folds)
    found = scores_of(ByLayer(), design, response, folds)
    edges = [0, 7, 30, 60]
    for task in range(5):
        for level in range(2):
            means = [float(plain[task, level, a:b].mean()) for a, b in itertools.pairwise(edges)]
            order = np.argsort(means)[::-1]
            best = order[0]
            count = edges[best + 1] - edges[best]
            top = torch.topk(found[task, level], count).indices
            assert sorted(top.tolist()) == list(range(edges[best], edges[best + 1]))
            inside = slice(edges[order[1]], edges[order[1] + 1])
            next_ones = torch.topk(found[task, level], count + 3).indices[count:]
            expected = edges[order[1]] + torch.topk(plain[task, level, inside], 3).indices
            assert sorted(next_ones.tolist()) == sorted(expected.tolist())


def test_exact_scores_are_the_group_lassos_and_go_on_with_the_next_to_enter():
    x, codes = features(40, 60, 3)
    z, folds = normalised(x), torch.arange(40) % 4
    found = scores_of(ExactGroupLasso((0.5, 0.1), tol=1e-10), unit_design(x, 3), classes_of(codes), folds)
    for fold in (0, 3):
        train = (folds != fold).numpy()
        part = classes_of(codes).take(train)
        largest = group_lasso(z[train], part, strengths=1).strength_max
        for level, share in enumerate((0.5, 0.1)):
            fit = group_lasso(z[train], part, strengths=[share * largest], tol=1e-11)[0]
            expected = fit.scores(60).numpy()
            inside = expected > 0
            scores = found[fold, level].numpy()
            np.testing.assert_allclose(scores[inside], expected[inside], rtol=2e-3, atol=1e-4)
            assert 0 < inside.sum() < 60
            logits = z[train] @ (fit.scores(60)[:, None] * 0).numpy() + fit.intercept.numpy()
            logits += z[train][:, fit.indices.numpy()] @ fit.values.numpy()
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            reach = np.linalg.norm(z[train].T @ (part.values.numpy() - p) / train.sum(), axis=1)
            np.testing.assert_allclose(scores[~inside], reach[~inside] - fit.strength, atol=1e-4)
            assert scores[~inside].max() <= 0


def layer_problem(loss, n=50, widths=(4, 9, 1, 30, 6), seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(n) % 3)
    layers = [rng.normal(size=(n, d)) for d in widths]
    layers[1] += 0.8 * rng.normal(size=(3, 9))[codes]
    layers[3][:, :8] += 0.4 * rng.normal(size=(3, 8))[codes]
    response = classes_of(codes)
    if loss == "squared":
        response = Response.of("regression", ["a", "b"], layers[1][:, :2] + layers[3][:, :2] + rng.normal(size=(n, 2)))
    elif loss == "sigmoid":
        response = Response.of("multilabel", ["a", "b"], np.stack([codes == 0, layers[3][:, 0] > 0], 1).astype(float))
    centred = [torch.tensor(x - x.mean(0)) for x in layers]
    fit, _, _, _ = data_term(response, loss, torch.ones(n, 1, dtype=torch.float64))
    sizes = torch.tensor([float(d) for d in widths]).sqrt()
    return centred, LayerLasso(torch.stack([x @ x.T for x in centred]), sizes, fit), fit, sizes


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "squared"])
def test_the_layer_lasso_fulfils_its_optimality_conditions(loss):
    layers, path, fit, sizes = layer_problem(loss)
    seen = []
    for share in (1.0, 0.6, 0.05):
        found = path.solve(share * path.largest, tol=1e-10)
        assert found.relative_gap <= 1e-10
        weights = [a @ x for a, x in zip(found.duals, layers)]
        logits = sum(w @ x.T for w, x in zip(weights, layers)) + found.intercept
        theta = fit.residual(fit.predict(logits))
        assert float(theta.sum(1).abs().max()) < 1e-7
        objective = fit.value(logits) + found.strength * sum(float(s * w.norm()) for s, w in zip(sizes, weights))
        assert found.objective == pytest.approx(objective, rel=1e-9)
        for w, x, size, norm in zip(weights, layers, sizes, found.norms):
            reach = theta @ x
            assert float(w.norm()) == pytest.approx(float(norm), abs=1e-7)
            if float(norm) > 0:
                np.testing.assert_allclose(
                    reach.numpy(), (found.strength * size * w / w.norm()).numpy(), atol=2e-3 * found.strength
                )
            else:
                assert float(reach.norm()) <= found.strength * float(size) * (1 + 1e-4)
        seen.append(int((found.norms > 0).sum()))
    assert seen[0] == 0
    assert 0 < seen[1] < 5
    assert seen[2] > seen[1]


def test_layers_of_one_feature_make_it_the_group_lasso():
    x, codes = features(40, 25, 3)
    centred = torch.tensor(x - x.mean(0))
    response = classes_of(codes)
    fit, _, _, _ = data_term(response, "softmax", torch.ones(40, 1, dtype=torch.float64))
    path = LayerLasso(torch.stack([torch.outer(c, c) for c in centred.T]), torch.ones(25), fit)
    other = group_lasso(centred.numpy(), response, strengths=1)
    assert path.largest == pytest.approx(other.strength_max, rel=1e-9)
    strength = 0.1 * path.largest
    fine = group_lasso(centred.numpy(), response, strengths=[strength], tol=1e-11)[0]
    found = path.solve(strength, tol=1e-10)
    assert found.objective == pytest.approx(fine.objective, rel=1e-8)
    np.testing.assert_allclose(found.norms.numpy(), fine.scores(25).numpy(), atol=1e-3)


def test_layer_groups_put_the_layer_that_knows_first():
    x, codes = planted(noise=0.5, matter=tuple(range(110, 150)))  # all in the second layer of 100, 100, 200
    response, folds = classes_of(codes), torch.arange(90) % 3
    found = scores_of(LayerGroups(), planted_design(x, 3), response, folds)
    for task in range(4):
        for level in range(2):
            assert set(torch.topk(found[task, level], 100).indices.tolist()) == set(range(100, 200))


@pytest.mark.parametrize("scorer", [ExactGroupLasso(), LayerGroups()])
def test_numbers_labelled_in_one_fold_alone_have_no_say_without_it(scorer):
    x, _ = planted(noise=0.5)
    folds = torch.arange(90) % 3
    values = x[:, :2].copy()
    both = scores_of(scorer, planted_design(x, 2), Response.of("regression", ["a", "b"], values), folds)
    values[folds.numpy() == 1, 1] = np.nan
    values[folds.numpy() == 2, 1] = np.nan
    found = scores_of(scorer, planted_design(x, 2), Response.of("regression", ["a", "b"], values), folds)
    assert bool(torch.isfinite(found).all())
    one = scores_of(scorer, planted_design(x, 1), Response.of("regression", ["a"], values[:, 0]), folds)
    torch.testing.assert_close(found[0], one[0])
    assert not torch.allclose(both[0], one[0])


@pytest.mark.parametrize("scorer", [ExactGroupLasso(), LayerGroups()])
def test_the_unit_of_a_number_has_no_say(scorer):
    x, _ = planted(noise=0.5)
    folds, values = torch.arange(90) % 3, x[:, [0, 250]].copy()
    values[4, 0] = np.nan
    found, other = (
        scores_of(scorer, planted_design(x, 2), Response.of("regression", ["a", "b"], values * unit), folds)
        for unit in (1.0, [1024.0, 1.0])  # a power of two, so that rounding is the same
    )
    torch.testing.assert_close(found, other)


def test_where_columns_lie_has_no_say_in_the_order_within_a_layer():
    """The intercept is free: ‖W_i‖ is that of the column about its mean, weighted as the rows are."""
    x, codes = features(48, 60, 3)
    codes[:30] = 0  # so that the weighted mean is another
    response, folds = classes_of(codes), torch.arange(48) % 2
    found, moved = (
        scores_of(LayerGroups(), design_of(y, 3, cuts=2), response, folds, "balanced")
        for y in (x, x + np.where(np.arange(60) % 3, 0, 100.0))
    )
    torch.testing.assert_close(moved, found, rtol=1e-5, atol=1e-5)


def test_layers_enter_by_their_gradient_over_the_root_of_their_size():
    """Just below λ_max the order is that of ‖X_lᵀR‖_F / √d_l, R the first residual: being large is no merit."""
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    signal = np.eye(3)[codes] @ rng.normal(size=(3, 75))
    strength = np.repeat([0.5, 0.75, 0.25], [5, 50, 20])  # the largest layer knows most, feature by feature
    x = torch.tensor(strength * signal + 0.3 * rng.normal(size=(60, 75)))
    blocks = dict(zip("abc", torch.split(x, [5, 50, 20], dim=1)))
    design, response = FeatureDesign({name: Dense(block) for name, block in blocks.items()}, 3), classes_of(codes)
    panel, tasks = Panel(design), fold_tasks(response, None)
    first = FirstGradient()(panel, tasks, response, [1.0])[0, 0]
    means = [float(part.square().mean().sqrt()) for part in torch.split(first, [5, 50, 20])]
    assert np.argsort(means)[::-1].tolist() == [1, 0, 2]
    found = LayerGroups((0.999,), tol=1e-8)(panel, tasks, response, [1e-2])[0, 0]
    ranks = [float(part.max()) for part in torch.split(found, [5, 50, 20])]
    assert np.argsort(ranks)[::-1].tolist() == [1, 0, 2]


@pytest.mark.parametrize("scorer", ALL, ids=lambda s: s.name)
def test_every_scorer_works_in_the_search(scorer):
    x, codes = planted()
    found = select(
        {"512": planted_design(x, 3)},
        classes_of(codes),
        folds=np.arange(90) % 3,
        metric="accuracy",
        fractions=(0.01, 0.5),
        scorer=scorer,
    )
    assert len(found.table) == 2 * 2 * 2
    assert sum(len(index) for index in found.columns.values()) == max(1, int(400 * found.fraction))


@pytest.mark.parametrize("scorer", ALL, ids=lambda s: s.name)
def test_constant_features_one_class_in_a_fold_and_more_classes_than_rows(scorer):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 40))
    x[:, :12] = 3.0
    codes = np.where(np.arange(20) < 3, 1, 0)
    folds = torch.where(torch.arange(20) < 3, 0, 1 + torch.arange(20) % 2)
    found = scores_of(scorer, design_of(x, 2, cuts=2), classes_of(codes), folds)  # without fold 0 one class is left
    assert bool(torch.isfinite(found).all())
    if isinstance(scorer, Variance | FirstGradient | ExactGroupLasso):
        assert float(found[3, 0, :12].max()) <= min(1e-9, float(found[3, 0, 12:].max()))
    many = classes_of(np.arange(20) % 15, 30)
    found = scores_of(scorer, design_of(x, 30, cuts=2), many, torch.arange(20) % 2)
    assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_of_rows_that_are_alike_are_out_at_once(dtype):
    """A Gram of alike rows, centred, is rounding; a path that follows it takes all its steps."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=60)
    alike = np.repeat(rng.normal(size=(1, 400)), 60, axis=0)
    told: list = []
    scorer, folds = LayerGroups(told=told.append), torch.arange(60) % 3

    def scores(*blocks):
        layers = {f"layer{i}": Dense(torch.tensor(block).to(dtype)) for i, block in enumerate(blocks)}
        return scores_of(scorer, FeatureDesign(layers, 3), classes_of(codes), folds)

    scores(alike, alike[:, :300])
    assert {status.iterations for status in told} == {0}
    assert all(status.converged for status in told)
    knows = rng.normal(size=(60, 50)) + np.eye(3)[codes] @ rng.normal(size=(3, 50))
    found = scores(alike, knows)  # beside one that tells rows apart
    assert set(torch.topk(found[3, 1], 50).indices.tolist()) == set(range(400, 450))
    faint = scores(alike + 0.01 * knows @ rng.normal(size=(50, 400)))  # a hundredth of the features differs
    assert float(faint[3, 1].max()) > 0


def test_what_does_not_fit_is_refused():
    x, codes = features(30, 20, 3)
    for wrong in ((), (0.1, 0.5), (2.0,), (0.0,), 0.1):
        with pytest.raises(SolverError, match="shares of λ_max"):
            ExactGroupLasso(wrong)
    with pytest.raises(SolverError, match="one share for each penalty"):
        scores_of(LayerGroups((0.1,)), design_of(x, 3), classes_of(codes), torch.arange(30) % 3)
    with pytest.raises(SolverError, match="at least one draw"):
        Stability(0)
    x[3, 4] = np.nan
    for scorer in (Variance(), FirstGradient(), ExactGroupLasso()):
        with pytest.raises(SolverError, match="NaN"):
            scores_of(scorer, design_of(x, 3), classes_of(codes), torch.arange(30) % 3)


def test_layer_grams_that_do_not_fit_in_memory_are_refused(monkeypatch):
    import regraft.heads.selection.penalised_scorers as module

    monkeypatch.setattr(module, "_GRAM_BYTES", 1000)
    x, codes = features(30, 20, 3)
    with pytest.raises(SolverError, match="layer-grouped lasso needs"):
        scores_of(LayerGroups(), design_of(x, 3), classes_of(codes), torch.arange(30) % 3)
