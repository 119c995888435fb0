from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from tests.heads.problems import classes_of, design_of, features, flat, scale_of

from regraft.errors import SolverError
from regraft.heads import Response, keep, kept_design, relevance
from regraft.heads.l2.dual import dual_ridge, gram_scale
from regraft.heads.selection.cells import best_of
from regraft.heads.selection.kept import Cell, kept_count, leanest, levels
from regraft.heads.selection.nested import Nested, steps, union
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.reference import _kept
from regraft.heads.selection.reference_scores import dense
from regraft.heads.selection.relevance import FoldTask
from regraft.heads.weights import row_weights
from regraft.linear import Dense, FeatureDesign, UnitRows, mirror
from regraft.linear.products import add_product


def blocks_of(x, cuts=(7, 30)):
    return np.split(x, cuts, axis=1)


def unit_rows(x):
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)


def normalised(x, cuts=(7, 30)):
    return np.concatenate([unit_rows(b) for b in blocks_of(x, cuts)], axis=1)


def unit_design(x, outputs, cuts=(7, 30), dtype=torch.float64):
    return FeatureDesign(
        {f"layer{i}": UnitRows(Dense(torch.tensor(b, dtype=dtype))) for i, b in enumerate(blocks_of(x, cuts))}, outputs
    )


def dense_scores(x, targets, weights, strength, scale):
    """Row norms of scikit-learn's ridge coefficients, output by output."""
    rows = []
    for c in range(targets.shape[1]):
        w = weights[:, min(c, weights.shape[1] - 1)]
        model = Ridge(alpha=strength * scale * w.sum(), solver="cholesky", tol=1e-12)
        rows.append(model.fit(x[w > 0], targets[w > 0, c], sample_weight=w[w > 0]).coef_)
    return np.linalg.norm(rows, axis=0)


@pytest.mark.parametrize(("n", "d"), [(40, 90), (90, 40)])
@pytest.mark.parametrize("weighting", [None, "balanced"])
def test_scores_are_the_row_norms_of_ridge_coefficients_without_each_fold(n, d, weighting):
    x, codes = features(n, d, classes=3)
    z = normalised(x)
    folds = np.arange(n) % 4
    found = relevance(unit_design(x, 3), classes_of(codes), folds, 1e-2, class_weight=weighting)
    assert [tuple(s.shape) for s in found.values()] == [(4, b.shape[1]) for b in blocks_of(x)]
    flat = torch.cat(list(found.values()), dim=1).numpy()
    for fold in range(4):
        train = (folds != fold).astype(float)
        weights = row_weights(classes_of(codes), weighting, torch.tensor(train)).numpy()
        expected = dense_scores(z, np.eye(3)[codes], weights, 1e-2, scale_of(z))
        np.testing.assert_allclose(flat[fold], expected, rtol=1e-7)
    everything = relevance(unit_design(x, 3), classes_of(codes), None, 1e-2)
    expected = dense_scores(z, np.eye(3)[codes], np.ones((n, 1)), 1e-2, scale_of(z))
    np.testing.assert_allclose(torch.cat(list(everything.values())).numpy(), expected, rtol=1e-7)


@pytest.mark.parametrize("offset", [0, 300])
def test_scores_in_float32_are_near_those_in_float64(offset):
    x, codes = features(60, 300, classes=4)
    x = np.float32(x) + np.float32(offset)
    wide, narrow = (
        torch.cat(list(relevance(unit_design(x, 4, dtype=t), classes_of(codes), None, 1e-3).values())).double()
        for t in (torch.float64, torch.float32)
    )
    torch.testing.assert_close(narrow, wide, rtol=1e-3, atol=1e-4 * float(wide.max()))


def test_wide_designs_with_a_sampled_gram_find_nearly_the_same_features(monkeypatch):
    rng = np.random.default_rng(0)
    codes = np.arange(200) % 5
    hidden = rng.normal(size=(200, 20)) + rng.normal(size=(5, 20))[codes]
    x = np.maximum(hidden @ rng.normal(size=(20, 6000)) + rng.normal(size=(200, 6000)), 0)
    design = unit_design(x, 5, cuts=(1000, 3500), dtype=torch.float32)
    exact = torch.cat(list(relevance(design, classes_of(codes), None, 1e-2).values()))
    monkeypatch.setattr("regraft.heads.selection.panel.EXACT_COLUMNS", 3000)
    assert not Panel(design).held
    rough = torch.cat(list(relevance(design, classes_of(codes), None, 1e-2).values()))
    full = Panel(design).gram(limit=10**6)
    torch.testing.assert_close(full, design.kernel(), rtol=1e-5, atol=1e-5)
    for count in (60, 600):
        same = set(exact.topk(count).indices.tolist()) & set(rough.topk(count).indices.tolist())
        assert len(same) >= 0.9 * count


def test_labels_of_a_fold_have_no_say_in_its_scores():
    x, codes = features(60, 50, classes=3)
    folds = np.arange(60) % 3
    changed = np.where(folds == 1, (codes + 1) % 3, codes)
    for weighting in (None, "balanced"):
        first, second = (
            relevance(unit_design(x, 3), classes_of(c, 3), folds, 1e-2, class_weight=weighting)
            for c in (codes, changed)
        )
        for name in first:
            assert torch.equal(first[name][1], second[name][1])
            assert not torch.allclose(first[name][0], second[name][0])


def test_multilabel_scores_skip_missing_labels_and_regression_scores_are_in_units_of_spread():
    x, codes = features(50, 80, classes=3)
    z, rng = normalised(x), np.random.default_rng(1)
    labels = (rng.random((50, 3)) < 0.2 + 0.5 * np.eye(3)[codes]).astype(float)
    labels[rng.random((50, 3)) < 0.1] = np.nan
    response = Response.of("multilabel", ["a", "b", "c"], labels)
    found = torch.cat(list(relevance(unit_design(x, 3), response, None, 1e-2).values())).numpy()
    targets, there = np.nan_to_num(2 * labels - 1), (~np.isnan(labels)).astype(float)
    np.testing.assert_allclose(found, dense_scores(z, targets, there, 1e-2, scale_of(z)), rtol=1e-6)
    real = np.stack([codes + rng.normal(size=50), 1000 * rng.normal(size=50)], axis=1)
    response = Response.of("regression", ["u", "v"], real)
    found = torch.cat(list(relevance(unit_design(x, 2), response, None, 1e-2).values())).numpy()
    expected = dense_scores(z, real / real.std(0), np.ones((50, 1)), 1e-2, scale_of(z))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_streamed_scores_equal_those_of_the_gram(monkeypatch, kind):
    x, codes = features(600, 60, classes=3)
    folds = np.where(np.arange(600) < 10, -1, np.arange(600) % 3)
    values = {
        "multiclass": codes,
        "multilabel": np.where(np.arange(600)[:, None] % 11 == 0, np.nan, np.eye(3)[codes]),
        "regression": np.eye(3)[codes] * [1, 5, 30] + x[:, :3],
    }[kind]
    response = Response.of(kind, ["a", "b", "c"], values)
    gram = relevance(unit_design(x, 3), response, folds, 1e-2)
    monkeypatch.setattr("regraft.heads.selection.relevance.GRAM_ROWS", 500)
    streamed = relevance(unit_design(x, 3), response, folds, 1e-2)
    for name in gram:
        torch.testing.assert_close(streamed[name], gram[name], rtol=1e-3, atol=1e-3 * float(gram[name].max()))


def test_targets_of_a_regression_are_in_units_of_their_spread_over_the_rows_that_train():
    """Another unit of an output changes no target; what is left out or missing has no part in the spread."""
    y = np.random.default_rng(0).normal(size=(30, 3)) * [1e-3, 1.0, 1e4] + [0.0, 5.0, -1e5]
    y[:, 2] = -1e5  # constant: kept in its own unit
    y[3, 0] = np.nan
    rows = torch.ones(30, dtype=torch.float64)
    rows[20:] = 0
    task = FoldTask(Response.of("regression", list("abc"), y), None, rows)
    for column in range(3):
        there = ~np.isnan(y[:, column]) & (rows.numpy() > 0)
        spread = y[there, column].std() if column < 2 else 1.0
        np.testing.assert_allclose(task.targets[there, column], y[there, column] / spread, rtol=1e-12)
        np.testing.assert_allclose(task.plain[there, column], y[there, column], rtol=0)
        assert not task.targets[~there, column].any()


@pytest.mark.parametrize("constant", [0.3, -1e5])
def test_an_output_that_never_varies_has_no_part_in_the_relevance(constant):
    """The rounding of its mean is no spread."""
    x = np.random.default_rng(1).normal(size=(60, 30))
    y = np.stack([x[:, 2] + 0.1 * x[:, 5], np.full(60, constant)], axis=1)
    alone = relevance(design_of(x, 1), Response.of("regression", ["a"], y[:, :1]), None, 1e-2)
    both = relevance(design_of(x, 2), Response.of("regression", ["a", "b"], y), None, 1e-2)
    np.testing.assert_allclose(flat(both), flat(alone), rtol=1e-6, atol=1e-9)


def test_relevance_has_no_unit_and_no_level():
    """Rows that vary by a hundred-thousandth of what they are, in float64, are ranked as without their level."""
    x, codes = features(60, 5, classes=2)
    response = Response.of("binary", "ab", codes)
    plain, moved = (flat(relevance(design_of(each, 2), response, None, 1e-3)) for each in (x, 1e3 + 5e-3 * x))
    np.testing.assert_allclose(5e-3 * moved, plain, rtol=5e-2)


def test_dual_heads_equal_the_library_with_weights_and_rows_left_out():
    x, codes = features(50, 70, classes=3)
    rng = np.random.default_rng(2)
    weights = rng.random(50) * (rng.random(50) < 0.8)
    gram = torch.tensor(x @ x.T)
    penalty = 1e-2 * scale_of(x)
    assert gram_scale(gram) == pytest.approx(scale_of(x))
    ((a, b),) = dual_ridge(gram, torch.tensor(np.eye(3)[codes]), torch.tensor(weights)[:, None], [penalty])
    model = Ridge(alpha=penalty * weights.sum(), solver="cholesky").fit(x, np.eye(3)[codes], sample_weight=weights)
    np.testing.assert_allclose((gram @ a + b).numpy(), model.predict(x), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(a.sum(0).numpy(), 0, atol=1e-10)
    rough, _ = dual_ridge(gram.float(), torch.tensor(np.eye(3)[codes]), torch.tensor(weights)[:, None], [penalty])[0]
    np.testing.assert_allclose(rough.numpy(), a.numpy(), atol=1e-2 * float(a.abs().max()))


def test_a_dual_system_that_is_not_positive_definite_is_refused():
    with pytest.raises(SolverError, match="positive definite"):
        dual_ridge(-torch.eye(4), torch.ones(4, 1).double(), torch.ones(4, 1).double(), [1e-3])


@pytest.mark.parametrize(
    ("width", "fraction", "count"),
    [(1000, 0.0005, 1), (7, 0.3, 2), (10, 0.3, 3), (100, 0.29, 29), (30440, 0.0005, 15), (5, 1.0, 5)],
)
def test_a_fraction_keeps_the_floor_and_at_least_one(width, fraction, count):
    assert kept_count(width, fraction) == count
    scores = {"a": torch.rand(width // 2), "b": torch.rand(width - width // 2)}
    assert sum(map(len, keep(scores, fraction).values())) == count


def test_ties_go_to_the_lower_index_over_all_blocks():
    scores = {"a": torch.tensor([1.0, 3.0, 2.0]), "empty": torch.empty(0), "b": torch.tensor([2.0, 2.0, 0.5])}
    found = keep(scores, 0.5)
    assert {name: index.tolist() for name, index in found.items()} == {"a": [1, 2], "b": [0]}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_levels_are_those_of_a_stable_sort(values, data):
    counts = sorted(data.draw(st.lists(st.integers(0, len(values)), min_size=1, max_size=4)))
    order = np.argsort(-np.array(values), kind="stable")
    index, level = levels(torch.tensor(values, dtype=torch.float32), counts)
    assert index.tolist() == sorted(order[: counts[-1]])
    rank = {int(i): r for r, i in enumerate(order)}
    assert level.tolist() == [next(p for p, count in enumerate(counts) if rank[i] < count) for i in index.tolist()]


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(SolverError, match="fraction"):
        keep({"a": torch.ones(3)}, fraction)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(SolverError, match="feature 2 is not finite"):
        keep({"a": torch.ones(2), "b": torch.tensor([float("nan")])}, 0.5)
    with pytest.raises(SolverError, match="no feature"):
        keep({}, 0.5)


def test_the_kept_design_has_unit_rows_over_what_is_kept_or_the_norms_as_they_were():
    x, _ = features(12, 40)
    x[3, 7:30] = 0
    columns = {"layer1": torch.tensor([0, 5]), "layer2": torch.tensor([2])}
    z = normalised(x)
    picked = [z[:, [7, 12]], z[:, [32]]]
    after = kept_design(unit_design(x, 2), columns)
    assert list(after.widths.items()) == [("layer1", 2), ("layer2", 1)]
    np.testing.assert_allclose(after.dense().numpy(), np.concatenate([unit_rows(p) for p in picked], 1), atol=1e-12)
    assert not after.dense()[3, :2].any()
    before = kept_design(unit_design(x, 2), columns, normalise=False)
    np.testing.assert_allclose(before.dense().numpy(), np.concatenate(picked, 1), atol=1e-12)
    for wrong in ({}, {"layer9": torch.tensor([0])}):
        with pytest.raises(SolverError, match="columns to keep"):
            kept_design(unit_design(x, 2), wrong)


def plain_last(design):
    """The design with the last layer's rows as they are."""
    *_, last = design.matrices
    return FeatureDesign({**design.matrices, last: design.matrices[last].matrix}, design.n_outputs)


def test_norms_are_taken_again_of_layers_that_had_unit_norm_alone():
    x, _ = features(9, 40, classes=2, shift=0.5)
    design = plain_last(unit_design(x, 2))
    *unit, last = design.matrices
    columns = {name: torch.tensor([0, 1]) for name in design.matrices}
    found = kept_design(design, columns).matrices
    rows = slice(0, 9)
    assert torch.equal(found[last].rows(rows), design.matrices[last].rows(rows)[:, :2])
    for name in unit:
        torch.testing.assert_close(found[name].rows(rows).norm(dim=1), torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(_kept(dense(design), [columns_through(design, columns)], design)[0],
                               kept_design(design, columns).dense())  # fmt: skip
    nothing_scaled = FeatureDesign({last: design.matrices[last]}, 2)
    alone = kept_design(nothing_scaled, {last: columns[last]}).dense()
    torch.testing.assert_close(alone.norm(dim=1), torch.ones(9, dtype=torch.float64))


def test_rows_may_be_taken_before_columns_are_kept_or_after():
    """A choice of rows keeps which layers had rows of unit norm, also a choice among chosen ones."""
    x, _ = features(9, 40, classes=2, shift=0.5)
    design = plain_last(unit_design(x, 2))
    columns = {name: torch.tensor([0, 1]) for name in design.matrices}
    for normalise in (True, False):
        kept = kept_design(design, columns, normalise).dense()
        for taken, rows in ((design.take([5, 0, 2, 2]), [5, 0, 2, 2]), (design.take([5, 0, 2]).take([2, 0]), [2, 5])):
            assert torch.equal(kept_design(taken, columns, normalise).dense(), kept[rows])


def columns_through(design, columns):
    starts = np.cumsum([0, *design.widths.values()])
    return torch.cat([index + int(start) for index, start in zip(columns.values(), starts)])


@pytest.mark.parametrize("scaled", [lambda design: design, plain_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nested_heads_equal_heads_on_the_kept_features(dtype, scaled):
    x, codes = features(30, 200, classes=2, shift=0.5)
    x = np.maximum(x, 0)
    x[4, 7:30] = 0
    design, response = scaled(unit_design(x, 2, dtype=dtype)), classes_of(codes)
    scores = torch.rand(200, generator=torch.Generator().manual_seed(0))
    counts = [1, 1, 5, 16, 40, 200]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    rows = torch.ones(30, dtype=torch.float64)
    rows[order[6:11]] = 0
    task, again = (FoldTask(r, None, w) for r, w in ((response, rows), (response.take(order), rows[order])))
    panel = Panel(design)
    plan = steps(list(panel.widths.values()), *levels(scores, counts), counts)
    nested = Nested(panel, panel.collect(union([plan], 200), order))
    pieces = dict(zip(panel.widths, torch.split(scores, list(panel.widths.values()))))
    kinds = []
    for _ in range(2):  # the memory is used again
        for count, heads in zip(counts, nested.heads(plan)):
            columns = keep(pieces, count / 200)
            assert sum(map(len, columns.values())) == count
            for normalise, head in zip((False, True), heads):
                kinds.append(type(head).__name__)
                direct = kept_design(design, columns, normalise).kernel().double()
                ((a, b),) = dual_ridge(direct, task.plain, task.weights, [1e-2 * gram_scale(direct)])
                found = head.predict(again, 1e-2, slice(6, 11))
                torch.testing.assert_close(found, (direct @ a + b)[order[6:11]], rtol=1e-4, atol=1e-4)
                (kernel,) = panel.kernels([columns], normalise)
                torch.testing.assert_close(kernel.double(), direct, rtol=1e-5, atol=1e-5)
    assert kinds[:12] == ["Columnwise"] * 6 + ["Kernelwise"] * 6


@pytest.mark.parametrize("scaled", [lambda design: design, plain_last])
@pytest.mark.parametrize("counts", [[120], [28, 120], [4, 120], [4, 28, 120]])
def test_sampled_steps_are_whole_where_neighbours_are_alike(counts, scaled):
    """Every fourth of columns in fours: each of the sample stands for four, and none of those that came before does."""
    x, _ = features(10, 40, classes=2, shift=0.0)
    design = scaled(unit_design(np.repeat(x, 4, axis=1), 2, cuts=(40, 100)))
    panel = Panel(design)
    plan = steps(list(panel.widths.values()), *levels(-torch.arange(160.0), counts), counts, limit=30)
    assert plan[-1].weight == 4
    nested = Nested(panel, panel.collect(union([plan], 160), torch.arange(10)))
    *_, (before, after) = nested.heads(plan)
    columns = {"layer0": torch.arange(40), "layer1": torch.arange(60), "layer2": torch.arange(20)}
    torch.testing.assert_close(before.gram, kept_design(design, columns, normalise=False).kernel(), rtol=0, atol=1e-12)
    torch.testing.assert_close(after.gram, kept_design(design, columns).kernel(), rtol=0, atol=1e-12)
    (again,) = panel.kernels([columns], True, limit=30)
    torch.testing.assert_close(again, after.gram, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ([{"score": 0.9}, {"score": 0.8, "stored_bytes": 1}], 0),
        ([{}, {"stored_bytes": 9}], 1),
        ([{"strength": 1e-3}, {}], 1),
        ([{}, {"strength": 1e-3}], 0),
        ([{}, {"normalised": True}], 1),
        ([{"normalised": True, "strength": 1e-3}, {}], 1),
        ([{"score": 0.8 + 1e-13}, {"stored_bytes": 9}], 1),
    ],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cells_of_one_score_go_by_bytes_then_penalty_then_norms(changes, first, sign):
    plain = {"size": "512", "strength": 1e-2, "fraction": 0.1, "normalised": False, "score": 0.8}
    plain |= {"standard_error": 0.0, "kept": 2, "stored_bytes": 10}
    table = [Cell(**{**plain, **change}) for change in changes]
    table = [replace(cell, score=sign * cell.score) for cell in table]
    assert best_of(table, sign) is table[first]


def test_one_standard_error_is_that_of_the_mean_difference_over_folds():
    """Differences of folds d: the smaller cell is near where mean d ≤ s_d / √k."""
    for lost, near in (((0.0, 0.1, 0.1, 0.0), False), ((0.0, 0.0, 0.2, -0.05), True)):
        folds = np.array([0.9, 0.8, 0.85, 0.95])
        large = Cell("512", 1e-2, 0.2, False, folds.mean(), 0.1, 20, 100, fold_scores=tuple(folds))
        fewer = folds - np.array(lost)
        small = Cell("512", 1e-2, 0.1, False, fewer.mean(), 0.1, 10, 50, fold_scores=tuple(fewer))
        assert np.mean(lost) < np.std(lost, ddof=1)  # within one deviation of a fold, if not of the mean
        assert leanest([small, large], 1.0) is (small if near else large)
        within = np.mean(lost) / (np.std(lost, ddof=1) / 2)
        assert leanest([small, large], 1.0, large, within * 1.01) is small
        assert leanest([small, large], 1.0, large, within * 0.99) is large
        assert leanest([replace(small, strength=1e-3), large], 1.0, large, within * 1.01) is large  # another penalty's
        errors = [replace(c, score=-c.score, fold_scores=tuple(-s for s in c.fold_scores)) for c in (small, large)]
        assert leanest(errors, -1.0) is errors[0 if near else 1]


def test_sampled_steps_touch_every_layer_and_stay_near_the_whole_gram():
    rng = np.random.default_rng(3)
    hidden = rng.normal(size=(40, 5))
    x = np.concatenate([np.repeat(hidden @ rng.normal(size=(5, 500)), 10, axis=1), rng.normal(size=(40, 3))], axis=1)
    panel = Panel(unit_design(x, 2, cuts=(2000, 5000)))
    widths = list(panel.widths.values())
    index, level = levels(-torch.arange(5003.0), [5003])
    (sampled,) = steps(widths, index, level, [5003], limit=500)
    assert [len(part) for part in sampled.kept] == [182, 273, 1]
    assert sampled.weight * len(sampled.new) == pytest.approx(5003)
    (whole,) = steps(widths, index, level, [5003], limit=None)
    assert torch.cat(whole.kept).tolist() == list(range(5003))
    columns = panel.collect(index, torch.arange(40))
    a, b = (next(Nested(panel, columns).heads([step]))[1].gram.clone() for step in (sampled, whole))
    # the first two layers: the last one's sample is a single feature of three
    assert float((a - b).abs().max()) < 2.1
    assert float((a - b).abs().mean()) < 1.0


def test_products_fill_the_triangle():
    x = torch.randn(37, 5000, generator=torch.Generator().manual_seed(0))
    for rows, tolerance in ((x, 1e-4), (x.T.contiguous().T, 1e-4), (x.double(), 1e-12)):
        out = torch.zeros(37, 37, dtype=rows.dtype)
        add_product(out, rows[:, :3000])
        add_product(out, rows[:, 3000:])
        exact = (x.double() @ x.double().T).to(out.dtype)
        torch.testing.assert_close(mirror(out) / 5000, exact / 5000, rtol=tolerance, atol=tolerance)
        assert torch.equal(out, out.T)


def test_wide_designs_are_read_scaled_and_sampled_columns_weigh_for_their_neighbours(monkeypatch):
    monkeypatch.setattr("regraft.heads.selection.panel.EXACT_COLUMNS", 10)
    x = torch.randn(9, 40, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 10)[:, None]
    panel = Panel(FeatureDesign({"a": UnitRows(Dense(x[:, :30])), "b": UnitRows(Dense(x[:, 30:]))}, 2))
    rows = {name: matrix.rows(slice(0, 9)) for name, matrix in panel.design.matrices.items()}
    for name, _, values in panel.layers():
        torch.testing.assert_close(values, rows[name])
    picked = [
        (whole, whole[:, 1::4]) for whole in rows.values()
    ]  # every fourth column, from the middle of the first four
    weighed = sum(whole.shape[1] / part.shape[1] * part @ part.T for whole, part in picked)
    torch.testing.assert_close(panel.gram(limit=13), weighed)


@pytest.mark.parametrize("normalise", [False, True])
def test_kernels_from_every_third_column_are_whole_where_neighbours_are_alike(normalise):
    x, _ = features(20, 30, classes=2)
    thrice = np.repeat(x, 3, axis=1)
    panel = Panel(unit_design(thrice, 2, cuts=(21, 60)))
    choice = {"layer0": torch.arange(21), "layer1": torch.arange(39), "layer2": torch.arange(30)}
    (whole,) = panel.kernels([choice], normalise, limit=None)
    (sampled,) = panel.kernels([choice], normalise, limit=30)
    torch.testing.assert_close(sampled, whole, rtol=1e-12, atol=1e-12)
    two = panel.kernels([choice, {"layer1": torch.tensor([4])}], normalise, limit=30)
    alone = panel.kernels([{"layer1": torch.tensor([4])}], normalise)
    torch.testing.assert_close(two[1], alone[0])


def test_designs_that_do_not_fit_are_refused():
    x, codes = features(20, 40)
    with pytest.raises(SolverError, match="2 outputs; expected 3"):
        relevance(unit_design(x, 2), classes_of(codes), None, 1e-2)
    with pytest.raises(SolverError, match="strengths"):
        relevance(unit_design(x, 3), classes_of(codes), None, 0.0)
    with pytest.raises(SolverError, match="FeatureDesign"):
        relevance(object(), classes_of(codes), None, 1e-2)
    with pytest.raises(SolverError, match="train on"):
        relevance(unit_design(x, 3), classes_of(codes), np.zeros(20, int), 1e-2)


def test_scores_of_many_rows_from_a_sample_of_columns_are_near_the_exact_ones(monkeypatch):
    """At most 1/λ directions count: a third of the columns finds nearly the same features."""
    rng = np.random.default_rng(0)
    codes = np.arange(900) % 5
    hidden = rng.normal(size=(900, 20)) + rng.normal(size=(5, 20))[codes]
    x = np.maximum(hidden @ rng.normal(size=(20, 3000)) + rng.normal(size=(900, 3000)), 0)
    design = unit_design(x, 5, cuts=(700, 1500), dtype=torch.float32)
    folds = np.arange(900) % 3
    exact = torch.cat(list(relevance(design, classes_of(codes), folds, 1e-2).values()), dim=1)
    monkeypatch.setattr("regraft.heads.selection.relevance.GRAM_ROWS", 800)
    whole = torch.cat(list(relevance(design, classes_of(codes), folds, 1e-2).values()), dim=1)
    monkeypatch.setattr("regraft.heads.selection.tall_scores._MOST", 1000)
    rough = torch.cat(list(relevance(design, classes_of(codes), folds, 1e-2).values()), dim=1)
    assert not torch.equal(whole, rough)
    for fold in range(3):
        torch.testing.assert_close(whole[fold], exact[fold], rtol=0.02, atol=5e-3 * float(exact.max()))
        for found, least in ((whole, 0.97), (rough, 0.9)):
            same = set(exact[fold].topk(300).indices.tolist()) & set(found[fold].topk(300).indices.tolist())
            assert len(same) >= least * 300
            assert float(found[fold].sum() / exact[fold].sum()) == pytest.approx(1, abs=0.05)  # and as large
