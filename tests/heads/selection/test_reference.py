"""The faithful search: every step against automatic differentiation, every cell against the protocol written out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from tests.heads.problems import classes_of, features

from regraft.errors import SolverError
from regraft.heads import FRACTIONS, Response, score, select, select_reference
from regraft.heads.selection.adam import Training
from regraft.heads.selection.kept import by_name
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.reference_scores import AdamScores
from regraft.heads.selection.relevance import fold_tasks

from .test_selection import normalised, unit_design
from .test_selection_search import CUTS, design_of, planted


def labels(kind, x, codes):
    if kind == "multiclass":
        return classes_of(codes)
    if kind == "multilabel":
        return Response.of("multilabel", ["a", "b"], np.stack([codes > 0, x[:, 0] > x[:, 0].mean()], 1).astype(float))
    return Response.of("regression", ["a", "b"], x[:, :2] * [1, 30] + x[:, 5:7] + [0, 400])


def adam_scores(design, response, folds, strength, steps):
    """Block → scores: of all rows where there are no folds, else without each."""
    tasks = fold_tasks(response, None if folds is None else torch.as_tensor(folds))
    found = AdamScores(steps, penalties=(strength,))(Panel(design), tasks, response, [strength])[:, 0]
    return by_name(found[0] if folds is None else found, design.widths)


def batches(seed, rows, steps, size):
    """The stream of shuffled passes, cut into batches."""
    generator = np.random.default_rng(seed)
    stream = np.concatenate([generator.permutation(rows) for _ in range(steps * size // rows + 2)])
    return [torch.tensor(stream[i * size : (i + 1) * size]) for i in range(steps)]


def by_autograd(x, targets, weights, link, seed, steps, rate, strength, size=128):
    """W (d, C) and b by PyTorch's own Adam and gradients."""
    size = min(size, len(x))
    w = torch.zeros(x.shape[1], targets.shape[1], dtype=torch.float64, requires_grad=True)
    b = torch.zeros(targets.shape[1], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([w, b], lr=rate, eps=1e-8)
    for step, index in enumerate(batches(seed, len(x), steps, size)):
        for group in adam.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        z, y = x[index] @ w + b, targets[index]
        if link == "softmax":
            terms = -(y * torch.log_softmax(z, 1)).sum(1, keepdim=True)
        elif link == "sigmoid":
            terms = torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none")
        else:
            terms = 0.5 * (z - y) ** 2
        loss = (weights[index] * terms).sum() / size
        if strength:
            squares = w.square().sum(1)
            loss = loss + strength * torch.where(squares > 0, squares, torch.ones(())).sqrt().sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return w.detach(), b.detach()


@pytest.mark.parametrize("link", ["softmax", "sigmoid", "identity"])
@pytest.mark.parametrize("shared", [True, False])
def test_every_model_is_that_of_automatic_differentiation(link, shared):
    x, codes = features(50, 12, 3)
    x = torch.tensor(x)
    targets = torch.nn.functional.one_hot(torch.tensor(codes), 3).double()
    weights = torch.tensor(np.random.default_rng(0).uniform(0.5, 2, size=(50, 1)))
    members = torch.arange(50)[torch.arange(50) % 7 != 3]
    training = Training(members, link, targets[members], weights[members], (3, 1), batch=16)
    rates, penalties = [0.1, 0.02, 0.1], [1e-2, 3e-2, 0.0]
    copies = torch.stack([x * k for k in (1, 2, 3)])
    found = training.run(x if shared else copies, 40, rates, penalties)
    for k in range(3):
        rows = (x if shared else copies[k])[members]
        w, b = by_autograd(rows, targets[members], weights[members], link, (3, 1), 40, rates[k], penalties[k], 16)
        np.testing.assert_allclose(found.weights[k].T.numpy(), w.numpy(), atol=1e-9)
        np.testing.assert_allclose(found.intercepts[k].numpy(), b.numpy(), atol=1e-9)


def test_the_penalty_shrinks_rows_but_never_to_zero():
    x, codes = features(60, 20, 3)
    response = classes_of(codes)
    design = unit_design(x, 3, cuts=(7,))
    weak, strong = (adam_scores(design, response, None, value, steps=300)["layer1"] for value in (1e-5, 1e-1))
    assert bool((strong < weak).all())
    assert bool((strong > 0).all())


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_scores_never_see_their_fold_and_repeat_themselves(kind):
    x, codes = features(48, 40, 3)
    folds = np.arange(48) % 4
    response = labels(kind, x, codes)
    found = adam_scores(unit_design(x, response.n_outputs), response, folds, 1e-3, steps=30)
    again = adam_scores(unit_design(x, response.n_outputs), response, folds, 1e-3, steps=30)
    assert [tuple(v.shape) for v in found.values()] == [(4, 7), (4, 23), (4, 10)]
    held = folds == 2
    other, values = x.copy(), response.values.numpy().copy()
    other[held] = np.random.default_rng(1).normal(size=(held.sum(), 40))
    values[held] = np.roll(values[held], 1, axis=1)
    changed = (
        classes_of(values.argmax(1)) if kind == "multiclass" else Response.of(response.kind, response.classes, values)
    )
    moved = adam_scores(unit_design(other, response.n_outputs), changed, folds, 1e-3, steps=30)
    for name, piece in found.items():
        assert torch.equal(piece, again[name])
        assert torch.equal(piece[2], moved[name][2])
        assert not torch.equal(piece[1], moved[name][1])


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_every_cell_is_the_protocol_written_out(kind):
    """Scores, selection, norms over what is kept, head, fold by fold, by autograd in float64."""
    x, codes = features(240, 60, 3)  # more training rows than a batch
    folds = np.arange(240) % 3
    response = labels(kind, x, codes)
    metric = {"multiclass": "accuracy", "multilabel": "nll", "regression": "r2"}[kind]
    found = select_reference(
        {"512": unit_design(x, response.n_outputs)},
        response,
        folds=folds,
        metric=metric,
        fractions=(0.1, 0.5),
        strengths=(1e-3,),
        steps=(25,),
        rates=(0.1, 0.01),
        seed=4,
    )
    z, blocks = torch.tensor(normalised(x)), np.split(np.arange(60), (7, 30))
    y = response.values
    chosen = next(cell for cell in found.table if cell.chosen)
    assert len(found.table) == 4
    expected, sets = {}, {}
    for rate in (0.1, 0.01):
        for fraction in (0.1, 0.5):
            out = torch.zeros(240, response.n_outputs, dtype=torch.float64)
            for fold in range(3):
                train = np.flatnonzero(folds != fold)
                mean, spread = torch.zeros(()), torch.ones(())
                if kind == "regression":
                    mean, spread = y[train].mean(0), y[train].std(0, correction=0)
                target, ones = (y[train] - mean) / spread, torch.ones(len(train), 1)
                w, _ = by_autograd(z[train], target, ones, response.link, (4, fold), 25, rate, 1e-3)
                order = np.argsort(-w.norm(dim=1).numpy(), kind="stable")[: int(60 * fraction)]
                sets[rate, fraction, fold] = np.sort(order).tolist()
                parts = [z[:, np.intersect1d(order, block)] for block in blocks]
                norms = [part.norm(dim=1, keepdim=True) for part in parts]
                kept = torch.cat([p / torch.where(n > 0, n, torch.ones(())) for p, n in zip(parts, norms)], 1)
                w, b = by_autograd(kept[train], target, ones, response.link, (4, fold), 25, rate, 0.0)
                out[folds == fold] = ((kept @ w + b) * spread + mean)[folds == fold]
            expected[rate, fraction] = out
    np.testing.assert_allclose(
        found.solution.out_of_fold.numpy(), expected[chosen.rate, chosen.fraction].numpy(), rtol=1e-6, atol=1e-6
    )
    for fold, columns in enumerate(found.fold_columns):
        starts = {"layer0": 0, "layer1": 7, "layer2": 30}
        kept = sorted(starts[name] + i for name, index in columns.items() for i in index.tolist())
        assert kept == sets[chosen.rate, chosen.fraction, fold]
    if kind == "multiclass":
        for cell in found.table:
            logits = expected[cell.rate, cell.fraction]
            by_fold = [
                score("accuracy", response.take(folds == f), torch.softmax(logits[folds == f], 1)) for f in range(3)
            ]
            assert cell.score == pytest.approx(np.mean(by_fold), abs=1e-9)


def test_the_whole_search_finds_what_matters_and_says_how_it_stopped():
    x, codes = planted()
    response, folds = classes_of(codes), np.arange(90) % 3
    seen = []
    found = select_reference(
        {"512": design_of(x, 3), "64": design_of(x[:, 100:], 3, cuts=(50,))},
        response,
        folds=folds,
        metric="accuracy",
        fractions=(0.01, 0.05),
        strengths=(1e-3, 1e-5),
        steps=(20, 60),
        rates=(0.1,),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert found.size == "512"
    assert {name: set(index.tolist()) & {50, 51, 52} for name, index in found.columns.items()}["layer0"] == {50, 51, 52}
    assert len(found.table) == 2 * 2 * 2 * 2
    assert sum(cell.chosen for cell in found.table) == 1
    assert sum(candidate.chosen for candidate in found.solution.candidates) == 1
    assert found.normalised
    assert found.form == found.solution.readout.form == "adam"
    assert "steps of Adam" in found.solution.status.message
    assert found.solution.status.residual > 1e-3  # so short a schedule ends nowhere, and says so
    assert not found.solution.status.converged
    assert seen[-1][0] == seen[-1][1] == 2 * (20 + 60) * 2 * 3 * 3
    assert all(a[0] < b[0] for a, b in itertools.pairwise(seen))
    chosen = next(cell for cell in found.table if cell.chosen)
    top = max(cell.score for cell in found.table)
    assert chosen.score == top
    assert chosen.stored_bytes == min(cell.stored_bytes for cell in found.table if cell.score == top)


def test_the_readout_is_the_head_on_the_kept_design():
    from regraft.heads import kept_design

    x, codes = planted()
    design, response = design_of(x, 3, dtype=torch.bfloat16), classes_of(codes)
    found = select_reference(
        {"a": design}, response, folds=np.arange(90) % 3, metric="accuracy", fractions=(0.02,), strengths=(1e-3,),
        steps=(200,), rates=(0.1,),
    )  # fmt: skip
    view = kept_design(design, found.columns, found.normalised)
    predicted = found.solution.readout.predict_proba(view)
    assert score("accuracy", response, predicted) == 1.0
    assert found.solution.readout.coefficients.dtype == torch.float32
    flat = torch.cat(list(found.scores.values()))
    assert len(flat) == 400
    least = min(float(found.scores[name][index].min()) for name, index in found.columns.items())
    assert int((flat >= least).sum()) == 8


def test_the_same_seed_gives_the_same_bytes_and_another_another_order():
    x, codes = planted()
    settings = {"folds": np.arange(90) % 3, "metric": "accuracy", "fractions": (0.02,), "steps": (15,), "rates": (0.1,)}
    one, two, other = (
        select_reference({"a": design_of(x, 3)}, classes_of(codes), **settings, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(one.solution.out_of_fold, two.solution.out_of_fold)
    assert not torch.equal(one.solution.out_of_fold, other.solution.out_of_fold)


def test_adam_scores_rank_for_the_fast_search():
    x, codes = planted()
    found = select(
        {"512": design_of(x, 3)}, classes_of(codes), folds=np.arange(90) % 3, metric="accuracy", fractions=(0.01,),
        scorer=AdamScores(steps=40),
    )  # fmt: skip
    assert set(found.columns["layer0"].tolist()) >= {50, 51, 52}
    tasks = fold_tasks(classes_of(codes), None)
    direct = AdamScores(steps=40)(Panel(design_of(x, 3)), tasks, classes_of(codes), (1e-2, 1e-3))
    plain = adam_scores(design_of(x, 3), classes_of(codes), None, 1e-3, steps=40)
    np.testing.assert_allclose(direct[0, 0].numpy(), torch.cat(list(plain.values())).numpy(), rtol=1e-3, atol=1e-6)


def test_ties_constant_features_one_class_and_more_classes_than_rows():
    x = np.random.default_rng(0).normal(size=(20, 40))
    x[:, :12] = 0.0
    codes = np.where(np.arange(20) < 3, 1, 0)
    folds = np.where(np.arange(20) < 3, 0, 1 + np.arange(20) % 2)
    settings = {"metric": "accuracy", "fractions": (1e-6, 1.0), "strengths": (1e-3,), "steps": (20,), "rates": (0.1,)}
    found = select_reference({"a": unit_design(x, 2, cuts=(12,))}, classes_of(codes), folds=folds, **settings)
    assert not bool(found.scores["layer0"].any())
    assert found.solution.out_of_fold[:3].argmax(1).tolist() == [0, 0, 0]
    assert [cell.kept for cell in found.table] == [1, 40]
    flat = np.zeros((20, 10))
    none = select_reference({"a": unit_design(flat, 2, cuts=(4,))}, classes_of(codes), folds=folds, **settings)
    if none.fraction < 1:
        assert {name: index.tolist() for name, index in none.columns.items()} == {"layer0": [0]}  # ties: lower index
    many = select_reference(
        {"a": unit_design(x, 30, cuts=(12,))}, classes_of(np.arange(20) % 15, 30), folds=np.arange(20) % 2, **settings
    )
    assert bool(torch.isfinite(many.solution.out_of_fold).all())


def test_what_does_not_fit_is_refused():
    x, codes = planted()
    good = {"folds": np.arange(90) % 3, "metric": "accuracy"}
    response = classes_of(codes)
    for wrong in (
        {"steps": ()},
        {"steps": (0,)},
        {"steps": (20.0,)},
        {"steps": 5},
        {"rates": (0.0,)},
        {"rates": 0.1},
        {"strengths": ()},
        {"fractions": (2.0,)},
        {"fractions": 0.5},
    ):
        with pytest.raises(SolverError):
            select_reference({"a": design_of(x, 3)}, response, **good, **wrong)
    for wrong in ({"steps": 0}, {"rate": -1.0}, {"penalties": 1e-3}):
        with pytest.raises(SolverError, match=r"of Adam|of the group lasso"):
            AdamScores(**wrong)
    with pytest.raises(SolverError, match="no design"):
        select_reference({}, response, **good)
    x[3, 4] = np.nan
    with pytest.raises(SolverError, match="NaN"):
        select_reference({"a": design_of(x, 3)}, response, **good, steps=(2,))
    assert FRACTIONS[0] == 0.0005
    assert CUTS == (100, 200)
