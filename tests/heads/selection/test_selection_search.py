from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from tests.heads.problems import classes_of, flat, scale_of

import regraft.heads.selection.all_rows as all_rows
import regraft.heads.selection.cells as cells
import regraft.heads.selection.head2toe as head2toe
from regraft.errors import SolverError
from regraft.heads import Response, drawn, keep, kept_design, relevance, score, select, solve
from regraft.heads.l2 import fitters
from regraft.heads.search import GRID
from regraft.heads.selection.fold_tasks import fold_tasks
from regraft.heads.selection.heads import Heads
from regraft.heads.selection.kept import TOLERANCE
from regraft.heads.selection.panel import Panel
from regraft.linear import Cast, Dense, FeatureDesign, SignedRoot, UnitRows

from .test_selection import normalised, unit_design, unit_rows


def planted(n=90, d=400, classes=3, matter=(50, 51, 52, 250), noise=1.0, seed=0):
    """Positive features in three layers, of which a few know the class."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(n) % classes)
    x = np.abs(rng.normal(size=(n, d))) * noise
    for place, column in enumerate(matter):
        x[:, column] += 4.0 * (codes == place % classes)
    return x, codes


CUTS = (100, 200)


def design_of(x, outputs, dtype=torch.float64, cuts=CUTS):
    return unit_design(x, outputs, cuts, dtype)


@pytest.mark.parametrize(("offset", "dtype"), [(0, torch.float64), (1000, torch.float32)])
def test_features_that_matter_are_found(offset, dtype):
    x, codes = planted()
    found = select(
        {"512": design_of(x + offset, 3, dtype)},
        classes_of(codes),
        folds=np.arange(90) % 5,
        metric="accuracy",
        fractions=(0.01, 0.05, 0.2),
    )
    assert {name: index.tolist() for name, index in found.columns.items()} == {"layer0": [50, 51, 52], "layer2": [50]}
    assert found.fraction == 0.01
    assert score("accuracy", classes_of(codes), torch.softmax(found.solution.out_of_fold, 1)) > 0.95
    assert sum(cell.chosen for cell in found.table) == 1
    assert len(found.table) == 3 * 2 * 2
    assert all(part.dtype == dtype for part in found.solution.readout.coefficients.values())


def test_cells_of_a_rare_label_are_scored_on_the_same_folds():
    """Where a fold has no row of it, cells that predict it there and cells that do not are compared on the others."""
    rng = np.random.default_rng(0)
    x, folds = rng.normal(size=(60, 30)), np.arange(60) % 5
    labels = (x[:, :2] + 0.5 * rng.normal(size=(60, 2)) > 1.0).astype(float)
    labels[folds == 4] = 0
    response = Response.of("multilabel", ["a", "b"], labels)
    found = select(
        {"512": unit_design(x, 2, cuts=())}, response, folds=folds, metric="miou", fractions=(0.05, 0.2, 1.0)
    )
    assert {len(cell.fold_scores) for cell in found.table} == {4}


def test_the_unit_of_the_targets_changes_no_selection():
    x, _ = planted()
    strong = np.linspace(1, 3, 20)
    x[:, :20] *= strong
    y = normalised(x, CUTS)[:, :20].sum(1, keepdims=True)  # more than the smallest choice, where ties go
    found = []
    for unit in (1.0, 2.0**-50):
        got = select(
            {"512": design_of(x, 1)},
            Response.of("regression", ["y"], y * unit),
            folds=np.arange(90) % 5,
            metric="rmse",
            fractions=(0.01, 0.05, 0.2),
        )
        found.append((got.fraction, got.strength, {name: index.tolist() for name, index in got.columns.items()}))
    assert found[0] == found[1]
    assert found[0][0] > 0.01


def brute_force(x, codes, folds, strength, fraction, normalise, classes=3):
    """Select inside each fold by dense coefficients, refit by scikit-learn, score each fold."""
    z = normalised(x, CUTS)
    scores = []
    for fold in np.unique(folds):
        train = folds != fold
        alpha = strength * scale_of(z) * train.sum()
        w = Ridge(alpha=alpha, solver="cholesky").fit(z[train], np.eye(classes)[codes[train]]).coef_
        order = np.argsort(-np.linalg.norm(w, axis=0), kind="stable")[: max(1, int(x.shape[1] * fraction + 1e-9))]
        mask = np.zeros(x.shape[1], bool)
        mask[order] = True
        kept = np.split(np.where(mask, z, 0), CUTS, axis=1)
        kept = np.concatenate([unit_rows(b) for b in kept] if normalise else kept, axis=1)
        alpha = strength * scale_of(kept) * train.sum()
        head = Ridge(alpha=alpha, solver="cholesky").fit(kept[train], np.eye(classes)[codes[train]])
        scores.append((head.predict(kept[~train]).argmax(1) == codes[~train]).mean())
    return np.mean(scores), np.std(scores, ddof=1) / np.sqrt(len(scores))


def test_every_cell_scores_as_brute_force_does():
    x, codes = planted(n=60, noise=2.0, seed=3)
    folds = np.random.default_rng(0).permutation(60) % 4
    found = select(
        {"512": design_of(x, 3)}, classes_of(codes), folds=folds, metric="accuracy", fractions=(0.04, 0.1, 1.0)
    )
    for cell in found.table:
        expected = brute_force(x, codes, folds, cell.strength, cell.fraction, cell.normalised)
        assert (cell.score, cell.standard_error) == pytest.approx(expected, abs=1e-9)
    best = max(cell.score for cell in found.table)
    fewest = min((c for c in found.table if c.score == best), key=lambda c: (c.stored_bytes, -c.strength))
    assert next(c for c in found.table if c.chosen).fraction == fewest.fraction


def test_the_chosen_cell_is_validated_with_features_chosen_inside_each_fold():
    x, codes = planted(n=60, noise=2.0, seed=3)
    folds = np.arange(60) % 4
    response = classes_of(codes)
    design = design_of(x, 3)
    found = select({"512": design}, response, folds=folds, metric="accuracy", fractions=(0.02,), strengths=(1e-2,))
    scores = relevance(design, response, folds, 1e-2)
    chosen = found.solution.readout
    for fold in range(4):
        kept = kept_design(design, keep({k: v[fold] for k, v in scores.items()}, 0.02), found.normalised)
        alone = np.where(folds == fold, 0, -1)
        fit = solve(kept, response, forms=[chosen.form], strengths=[chosen.strength], folds=alone, metric="accuracy")
        rows = torch.tensor(folds == fold)
        tolerance = 1e-6 if chosen.form == "ridge" else 1e-2
        torch.testing.assert_close(
            found.solution.out_of_fold[rows], fit.out_of_fold[rows], rtol=tolerance, atol=tolerance
        )


def test_the_final_head_is_the_solvers_on_the_kept_design():
    x, codes = planted(noise=2.0)
    design, response, folds = design_of(x, 3), classes_of(codes), np.arange(90) % 3
    found = select({"512": design}, response, folds=folds, metric="accuracy", fractions=(0.05,), strengths=(1e-2,))
    readout = found.solution.readout
    kept = kept_design(design, found.columns, found.normalised)
    fit = solve(kept, response, forms=[readout.form], strengths=[readout.strength], folds=folds, metric="accuracy")
    np.testing.assert_allclose(flat(readout.coefficients), flat(fit.readout.coefficients), rtol=1e-4, atol=1e-6)
    assert {name: len(c) for name, c in readout.coefficients.items()} == kept.widths
    assert keep(found.scores, found.fraction).keys() == found.columns.keys()
    assert readout.predict_proba(kept).shape == (90, 3)


def random_labels(seed=0):
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(size=(80, 3000))), rng.permutation(np.arange(80) % 2)


def test_random_labels_score_at_chance_and_would_not_if_selection_saw_them(monkeypatch):
    x, codes = random_labels()
    folds = np.random.default_rng(1).permutation(80) % 5

    def mean_score():
        found = select(
            {"512": design_of(x, 2, torch.float32)},
            classes_of(codes),
            folds=folds,
            metric="accuracy",
            fractions=(0.005, 0.02, 0.1),
        )
        inner = score("accuracy", classes_of(codes), torch.softmax(found.solution.out_of_fold, 1))
        return np.mean([cell.score for cell in found.table]), inner

    honest = mean_score()
    assert max(honest) < 0.68

    true_scores, everything = cells.panel_scores, fold_tasks(classes_of(codes), None, None)
    monkeypatch.setattr(
        cells,
        "panel_scores",
        lambda panel, tasks, strengths: true_scores(panel, everything * len(tasks), strengths),
    )
    leaky = mean_score()
    assert min(leaky) > 0.78


def test_the_best_of_several_sizes_is_chosen_and_every_cell_is_kept():
    x, codes = planted(noise=2.0)
    noise = np.abs(np.random.default_rng(9).normal(size=(90, 600)))
    designs = {"1": design_of(noise, 3), "2": design_of(x, 3), "3": design_of(noise[:, :300], 3)}
    arguments = {"folds": np.arange(90) % 5, "metric": "accuracy", "fractions": (0.01, 0.05)}
    found = select(designs, classes_of(codes), every_strength=True, **arguments)
    assert found.size == "2"
    assert [cell.size for cell in found.table] == ["1"] * 8 + ["2"] * 8 + ["3"] * 8
    assert {name: len(s) for name, s in found.scores.items()} == designs["2"].widths

    fewer = select(designs, classes_of(codes), **arguments)
    first = max(fewer.table[:8], key=lambda cell: cell.score).strength
    assert [cell.strength for cell in fewer.table] == [1e-2] * 4 + [1e-3] * 4 + [first] * 8
    same = [c for c in found.table if c.size == "1" or c.strength == first]
    assert [(c.size, c.score, c.kept) for c in fewer.table] == [(c.size, c.score, c.kept) for c in same]


def test_a_further_scaling_is_tried_at_the_best_size_alone():
    x, codes = planted(noise=2.0)
    noise = np.abs(np.random.default_rng(9).normal(size=(90, 600)))
    blocks = np.split(x, CUTS, axis=1)
    roots = FeatureDesign({f"layer{i}": UnitRows(SignedRoot(Dense(torch.tensor(b)))) for i, b in enumerate(blocks)}, 3)
    arguments = {"folds": np.arange(90) % 5, "metric": "accuracy", "fractions": (0.01, 0.05)}
    sizes = {"1": design_of(noise, 3), "2": design_of(x, 3)}
    more = {"1": {"1, root-unit": design_of(noise, 3)}, "2": {"2, root-unit": roots}}
    found = select(sizes, classes_of(codes), more=more, every_strength=True, **arguments)
    assert [cell.size for cell in found.table] == ["1"] * 8 + ["2"] * 8 + ["2, root-unit"] * 8
    alone = select({"roots": roots}, classes_of(codes), **arguments)
    assert [c.score for c in found.table[16:]] == [c.score for c in alone.table]
    for wrong in ({"9": {"a": roots}}, {"2": {"1": roots}}):
        with pytest.raises(SolverError, match="further designs"):
            select(sizes, classes_of(codes), more=wrong, **arguments)


def test_an_earlier_cell_that_becomes_the_choice_keeps_its_own_features(monkeypatch):
    """Within one standard error of a better, later cell: the features are that cell's, not those scored last."""
    x, codes = planted(noise=2.0)
    sizes = {"1": design_of(x, 3), "2": design_of(np.abs(np.random.default_rng(9).normal(size=(90, 600))), 3)}
    arguments = {"folds": np.arange(90) % 5, "metric": "accuracy", "fractions": (0.05,)}
    wanted = select({"1": sizes["1"]}, classes_of(codes), strengths=(1e-3,), **arguments)

    def choose(table, *_):
        strength = 1e-2 if all(cell.size == "1" for cell in table) else 1e-3
        return next(
            c for c in table if (c.size, c.strength, c.normalised) == ("1", strength, wanted.normalised)
        )  # fmt: skip

    monkeypatch.setattr(cells, "best_of", choose)
    found = select(sizes, classes_of(codes), strengths=(1e-2, 1e-3), every_strength=True, **arguments)
    assert (found.size, found.strength) == ("1", 1e-3)
    for name, scores in wanted.scores.items():
        torch.testing.assert_close(found.scores[name], scores)
    assert found.columns.keys() == wanted.columns.keys()
    assert len(found.fold_columns) == 5
    for own, other in zip(found.fold_columns, wanted.fold_columns):  # what each fold chose is that cell's too
        assert {name: index.tolist() for name, index in own.items()} == {n: i.tolist() for n, i in other.items()}


def test_wider_fractions_are_tried_in_turn_where_the_largest_wins():
    """A weak signal in every feature: the more are kept the better, as for a network of few features."""
    generator = np.random.default_rng(0)
    codes = np.arange(90) % 3
    x = generator.normal(size=(90, 400)) + 0.25 * generator.normal(size=(3, 400))[codes]
    sizes = {"1": design_of(np.abs(generator.normal(size=(90, 400))), 3), "2": design_of(x, 3)}
    arguments = {"folds": np.arange(90) // 3 % 5, "metric": "accuracy", "strengths": (1e-2, 1e-3)}
    found = select(sizes, classes_of(codes), fractions=(0.05, 0.2), wider=(0.5, 1.0), **arguments)
    assert found.fraction > 0.2
    further = [cell for cell in found.table if cell.fraction > 0.2]
    assert [(c.size, c.fraction, c.strength) for c in further] == [("2", 0.5, found.strength)] * 2 + [
        ("2", 1.0, found.strength)
    ] * 2
    assert sum(cell.chosen for cell in found.table) == 1
    arguments["strengths"] = (found.strength,)
    whole = select({"2": sizes["2"]}, classes_of(codes), fractions=(0.05, 0.2, 0.5, 1.0), **arguments)
    scores = {(c.fraction, c.normalised): c.score for c in whole.table}
    assert {(c.fraction, c.normalised): c.score for c in further}.items() <= scores.items()
    assert sum(len(index) for index in found.columns.values()) == int(400 * found.fraction)
    design = kept_design(sizes["2"], found.columns, found.normalised)
    np.testing.assert_allclose(found.solution.readout.logits(design), whole.solution.readout.logits(design), atol=1e-10)


def test_wider_fractions_are_left_alone_where_fewer_features_win_and_must_be_wider():
    x, codes = planted(noise=2.0)
    arguments = {"folds": np.arange(90) % 5, "metric": "accuracy", "fractions": (0.01, 0.2)}
    found = select({"1": design_of(x, 3)}, classes_of(codes), wider=(1.0,), **arguments)
    assert found.fraction == 0.01
    assert {cell.fraction for cell in found.table} == {0.01, 0.2}
    with pytest.raises(SolverError, match=r"expected a sequence of numbers above 0, at most 1; got 0\.5"):
        select({"1": design_of(x, 3)}, classes_of(codes), **{**arguments, "fractions": 0.5})
    with pytest.raises(SolverError, match=r"the wider fractions; expected above 0\.2; got 0\.1"):
        select({"1": design_of(x, 3)}, classes_of(codes), wider=(0.1,), **arguments)


def test_wider_fractions_are_tried_where_all_others_keep_the_same_few_features():
    """Four columns, each needed for a class of its own: a fifth of them is one, as is a thousandth."""
    generator = np.random.default_rng(0)
    codes = np.arange(90) % 4
    x = generator.normal(size=(90, 4)) + 4 * np.eye(4)[codes]
    arguments = {"folds": np.arange(90) // 4 % 5, "metric": "accuracy", "fractions": (0.001, 0.2)}
    found = select({"4": design_of(x, 4)}, classes_of(codes), wider=(0.5, 1.0), **arguments)
    assert found.fraction == 1.0
    assert sum(len(index) for index in found.columns.values()) == 4
    (lean,) = [cell for cell in found.table if cell.lean]
    assert lean.kept > 1


def test_the_first_wider_fraction_that_does_not_win_is_the_last(monkeypatch):
    x, codes = planted(noise=2.0)
    arguments = {"folds": np.arange(90) % 5, "metric": "accuracy", "fractions": (0.05, 0.2)}

    def choose(table, *_):  # as if scores rose up to a fraction of 0.4 and fell beyond
        return max(table, key=lambda cell: (-abs(cell.fraction - 0.4), cell.score))

    monkeypatch.setattr(cells, "best_of", choose)
    found = select({"1": design_of(x, 3)}, classes_of(codes), wider=(0.4, 0.7, 0.9, 1.0), **arguments)
    assert found.fraction == 0.4
    assert {cell.fraction for cell in found.table} == {0.05, 0.2, 0.4, 0.7}


def test_the_lean_cell_is_of_the_whole_table_wider_cells_too(monkeypatch):
    """A wider cell may show that another than the best so far is within one standard error: that one is the choice."""
    x, codes = planted(noise=2.0)
    arguments = {"folds": np.arange(90) % 5, "metric": "accuracy", "fractions": (0.01, 0.05), "strengths": (1e-3,)}

    def choose(table, *_):
        wanted = (0.01, False) if any(cell.fraction == 0.5 for cell in table) else (0.05, True)
        return next(cell for cell in table if (cell.fraction, cell.normalised) == wanted)

    monkeypatch.setattr(cells, "best_of", lambda table, *_: max(table, key=lambda cell: cell.fraction))
    monkeypatch.setattr(head2toe, "leanest", choose)
    found = select({"1": design_of(x, 3)}, classes_of(codes), wider=(0.5,), tolerance=1.0, **arguments)
    assert (found.fraction, found.normalised) == (0.01, False)
    assert {cell.fraction for cell in found.table} == {0.01, 0.05, 0.5}
    assert [cell.chosen for cell in found.table] == [cell.lean for cell in found.table]


def faint(seed, n=120):
    """Classes in directions of little variance, under five of much: a strong penalty does not see them."""
    generator = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    much = generator.normal(size=(n, 5)) @ generator.normal(size=(5, 300))
    little = np.eye(3)[codes] @ generator.normal(size=(3, 300)) + 0.5 * generator.normal(size=(n, 300))
    return much + 0.05 * little, codes


def test_weaker_penalties_are_tried_in_turn_while_the_heads_are_better():
    """As a search of each penalty alone would choose, whatever the ridge heads say that judge the cells."""
    went = []
    for seed in (0, 1, 3):
        x, codes = faint(seed)
        other = np.random.default_rng(seed).normal(size=(120, 90))
        designs = {"1": design_of(other, 3, cuts=(40, 60)), "2": design_of(x, 3)}
        arguments = {"folds": np.arange(120) // 3 % 4, "metric": "accuracy", "fractions": (0.05, 0.3)}

        def searched(strengths, keys=("1", "2"), designs=designs, codes=codes, arguments=arguments, **more):
            kept = {key: designs[key] for key in keys}
            return select(kept, classes_of(codes), strengths=strengths, every_strength=True, **arguments, **more)

        def judged(found, codes=codes):
            return score("accuracy", classes_of(codes), torch.softmax(found.solution.out_of_fold, 1).numpy())

        wanted = searched((1e-1, 1e-2))
        tried = [cell.strength for cell in wanted.table]
        for strength in (1e-3, 1e-4) if wanted.strength == 1e-2 else ():
            now = searched((strength,), keys=(wanted.size,))
            tried += [cell.strength for cell in now.table]
            if judged(now) <= judged(wanted):
                break
            wanted = now
        found = searched((1e-1, 1e-2), weaker=(1e-4, 1e-3))
        assert [cell.strength for cell in found.table] == tried
        assert (found.size, found.strength, found.fraction) == (wanted.size, wanted.strength, wanted.fraction)
        (cell,) = (cell for cell in found.table if cell.chosen)
        assert (cell.size, cell.strength, cell.fraction) == (found.size, found.strength, found.fraction)
        for name, columns in wanted.columns.items():
            assert torch.equal(found.columns[name], columns)
        torch.testing.assert_close(found.solution.out_of_fold, wanted.solution.out_of_fold)
        went.append(found.strength)
    assert set(went) == {1e-1, 1e-2, 1e-3}  # none is tried, one in vain, one is taken


def test_weaker_penalties_wait_for_the_weakest_to_win_and_are_the_ridge_scores_own(monkeypatch):
    x, codes = faint(0)
    good = {"folds": np.arange(120) // 3 % 4, "metric": "accuracy", "fractions": (0.05,), "strengths": (1e-2,)}

    def strengths(**change):
        found = select({"1": design_of(x, 3)}, classes_of(codes), **{"weaker": (1e-3,), **good, **change})
        return {cell.strength for cell in found.table}

    assert strengths() == {1e-2, 1e-3}
    assert strengths(tolerance=1.0) == {1e-2, 1e-3}
    monkeypatch.setattr(cells, "best_of", lambda table, *_: max(table, key=lambda cell: cell.strength))
    assert strengths(strengths=(1e-1, 1e-2)) == {1e-1, 1e-2}
    monkeypatch.undo()
    monkeypatch.setattr(head2toe, "GRAM_ROWS", 60)
    assert strengths() == {1e-2, 1e-3}  # judged on the draw
    for weaker, scorer, said in (
        ((1e-2,), None, r"the weaker penalties; expected below 0\.01; got 0\.01"),
        ((-1.0,), None, "penalt|strength"),
        ((1e-3,), Favourites(7), "weaker penalties are the ridge scores' own; got the scores of 'favourites'"),
    ):
        with pytest.raises(SolverError, match=said):
            strengths(weaker=weaker, scorer=scorer)


def test_roots_are_brought_to_unit_norm_over_what_is_kept():
    """UnitRows over SignedRoot: the norms are those of the roots of the kept features."""
    x, codes = planted(noise=2.0)
    x[:, ::3] *= -1
    roots = np.sign(x) * np.sqrt(np.abs(x))
    folds = np.arange(90) % 3
    arguments = {"folds": folds, "metric": "accuracy", "fractions": (0.01, 0.3), "strengths": (1e-2,)}
    blocks = np.split(x, CUTS, axis=1)
    design = FeatureDesign({f"layer{i}": UnitRows(SignedRoot(Dense(torch.tensor(b)))) for i, b in enumerate(blocks)}, 3)
    found = select({"a": design}, classes_of(codes), **arguments)
    plain = select({"a": design_of(roots, 3)}, classes_of(codes), **arguments)
    assert [astuple(c) for c in found.table] == [astuple(c) for c in plain.table]
    columns = dict(found.columns)
    kept = kept_design(design, columns, True).dense().numpy()
    expected = [
        unit_rows(np.split(roots, CUTS, axis=1)[int(name[-1])][:, index.numpy()]) for name, index in columns.items()
    ]
    np.testing.assert_allclose(kept, np.concatenate(expected, axis=1), atol=1e-12)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_stored_in_sixteen_bits_go_through_the_whole_search(monkeypatch, held, dtype):
    if not held:
        monkeypatch.setattr("regraft.heads.selection.panel.EXACT_COLUMNS", 100)
    x, codes = planted()
    rounded = torch.tensor(x).to(dtype)
    arguments = {"folds": np.arange(90) % 5, "metric": "accuracy", "fractions": (0.01, 0.05, 0.2)}
    parts = torch.tensor_split(rounded, CUTS, dim=1)
    stored, wide_design = (
        FeatureDesign({f"layer{i}": UnitRows(Dense(part.to(kind))) for i, part in enumerate(parts)}, 3)
        for kind in (dtype, torch.float32)
    )
    opened: list = []
    monkeypatch.setattr("regraft.heads.selection.cells.Panel", lambda design: opened.append(design) or Panel(design))
    found, wide = (select({"512": design}, classes_of(codes), **arguments) for design in (stored, wide_design))
    assert len(opened) == 2  # rows of each are looked at once
    assert {k: v.tolist() for k, v in found.columns.items()} == {"layer0": [50, 51, 52], "layer2": [50]}
    assert found.columns.keys() == wide.columns.keys()
    assert [c.score for c in found.table] == pytest.approx([c.score for c in wide.table], abs=0.03)
    kept = kept_design(stored, found.columns, found.normalised)
    probabilities = found.solution.readout.predict_proba(kept)
    cast = FeatureDesign({name: Cast(matrix, torch.float32) for name, matrix in kept.matrices.items()}, 3)
    assert torch.equal(found.solution.readout.predict_proba(cast), probabilities)
    assert float((probabilities.argmax(1) == torch.as_tensor(codes)).float().mean()) > 0.9


@pytest.mark.parametrize(("tolerance", "seed"), [(TOLERANCE, 29), (1.0, 4)])
def test_a_tolerance_takes_the_fewest_bytes_among_cells_no_worse_fold_by_fold(tolerance, seed):
    x, codes = planted(n=60, noise=3.0, seed=seed)
    arguments = {"folds": np.arange(60) % 4, "metric": "accuracy"}
    tables = [
        select({"512": design_of(x, 3)}, classes_of(codes), tolerance=errors, **arguments).table
        for errors in (0.0, tolerance)
    ]
    plain, frugal = (next(cell for cell in table if cell.chosen) for table in tables)
    assert all(cell.score == pytest.approx(np.mean(cell.fold_scores), abs=1e-12) for cell in tables[0])
    assert [replace(cell, chosen=False) for cell in tables[0]] == [replace(cell, chosen=False) for cell in tables[1]]
    assert (plain.lean, frugal.lean) == (False, True)  # the best cell's table says which one a rule of one error takes

    def lost(cell):
        return np.array(plain.fold_scores) - np.array(cell.fold_scores)

    alike = [cell for cell in tables[1] if cell.strength == plain.strength]  # of other penalties the judge thinks else
    near = [cell for cell in alike if lost(cell).mean() <= tolerance * lost(cell).std(ddof=1) / 2 + 1e-12]
    assert frugal.stored_bytes == min(cell.stored_bytes for cell in near) < plain.stored_bytes
    assert frugal.score == max(cell.score for cell in near if cell.stored_bytes == frugal.stored_bytes)


def test_only_the_head_that_is_taken_is_validated_where_no_weaker_penalty_is_compared(monkeypatch):
    x, codes = planted(n=60, noise=3.0, seed=29)
    validated, seen = Heads.validated, []
    monkeypatch.setattr(Heads, "validated", lambda self, cell: seen.append(cell) or validated(self, cell))
    arguments = {"folds": np.arange(60) % 4, "metric": "accuracy", "tolerance": TOLERANCE}
    found = select({"512": design_of(x, 3)}, classes_of(codes), **arguments)
    best = max(found.table, key=lambda cell: cell.score)
    assert [replace(cell, chosen=True, lean=True) for cell in seen] == [cell for cell in found.table if cell.chosen]
    assert seen[0].stored_bytes < best.stored_bytes  # the tolerance has taken another one


def test_the_same_call_gives_the_same_bytes():
    x, codes = planted(noise=2.0)
    first, second = (
        select({"512": design_of(x, 3, torch.float32)}, classes_of(codes), folds=np.arange(90) % 5, metric="accuracy")
        for _ in range(2)
    )
    assert [astuple(c) for c in first.table] == [astuple(c) for c in second.table]
    for name, block in first.solution.readout.coefficients.items():
        assert torch.equal(block, second.solution.readout.coefficients[name])
    assert torch.equal(first.solution.out_of_fold, second.solution.out_of_fold)


def test_row_order_does_not_matter_and_rows_of_no_fold_are_never_scored():
    x, codes = planted(noise=2.0)
    folds = np.where(np.arange(90) < 9, -1, np.arange(90) % 3)
    order = np.random.default_rng(2).permutation(90)
    first = select({"512": design_of(x, 3)}, classes_of(codes), folds=folds, metric="accuracy", forms=["ridge"])
    second = select(
        {"512": design_of(x[order], 3)},
        classes_of(codes[order]),
        folds=folds[order],
        metric="accuracy",
        forms=["ridge"],
    )
    assert [c.score for c in first.table] == pytest.approx([c.score for c in second.table])
    torch.testing.assert_close(first.solution.out_of_fold[order], second.solution.out_of_fold, equal_nan=True)
    assert bool(torch.isnan(first.solution.out_of_fold[:9]).all())


def test_constant_features_zero_layers_and_a_tiny_fraction():
    x, codes = planted(noise=2.0)
    x[:, 5] = 1.0
    x[:, 100:200] = 0.0
    found = select(
        {"512": design_of(x, 3)}, classes_of(codes), folds=np.arange(90) % 3, metric="accuracy", fractions=(1e-6, 1.0)
    )
    assert [c.kept for c in found.table[:4]] == [1, 1, 400, 400]
    assert float(found.scores["layer1"].max()) < 1e-10
    assert bool(
        torch.isfinite(
            found.solution.readout.logits(kept_design(design_of(x, 3), found.columns, found.normalised))
        ).all()
    )


def test_only_layers_of_zeros_predict_the_shares():
    codes = np.arange(30) % 3
    found = select(
        {"512": design_of(np.zeros((30, 300)), 3)},
        classes_of(codes),
        folds=np.arange(30) // 10,
        metric="accuracy",
        forms=("ridge",),
    )
    assert float(found.solution.out_of_fold.std(dim=0).max()) < 0.5
    assert all(np.isfinite(c.score) for c in found.table)


def test_more_classes_than_rows_and_a_class_with_one_row():
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(12, 300)))
    codes = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 7])
    for weighting in (None, "balanced"):
        found = select(
            {"512": design_of(x, 20)},
            classes_of(codes, 20),
            folds=np.arange(12) % 3,
            metric="accuracy",
            class_weight=weighting,
        )
        assert bool(torch.isfinite(found.solution.out_of_fold).all())


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_features_are_refused(monkeypatch, held, bad):
    if not held:
        monkeypatch.setattr("regraft.heads.selection.panel.EXACT_COLUMNS", 100)
    x, codes = planted()
    x[7, 131] = bad
    plain = FeatureDesign({"a": Dense(torch.tensor(x[:, :100])), "b": Dense(torch.tensor(x[:, 100:]))}, 3)
    for design in (design_of(x, 3), plain):
        with pytest.raises(SolverError, match="NaN or infinities"):
            select({"512": design}, classes_of(codes), folds=np.arange(90) % 3, metric="accuracy")


def test_rows_that_are_taken_of_a_design_are_selected_on_as_if_it_had_no_others():
    x, codes = planted()
    x[:, 200:] *= np.linspace(0.5, 2, 90)[:, None]  # of a layer whose norms tell something
    unit = design_of(x, 3)
    design = FeatureDesign({**unit.matrices, "layer2": unit.matrices["layer2"].matrix}, 3)
    rows = np.arange(0, 90, 2)
    alone = FeatureDesign(
        {
            name: UnitRows(Dense(torch.tensor(block))) if name in ("layer0", "layer1") else Dense(torch.tensor(block))
            for name, block in zip(design.matrices, np.split(x[rows], CUTS, axis=1))
        },
        3,
    )
    arguments = {"folds": np.arange(45) % 3, "metric": "nll", "fractions": (0.01, 0.1)}
    taken, made = (select({"512": each}, classes_of(codes[rows]), **arguments) for each in (design.take(rows), alone))
    assert [astuple(cell) for cell in taken.table] == [astuple(cell) for cell in made.table]


def test_multilabel_with_missing_labels():
    x, codes = planted()
    labels = np.eye(3)[codes]
    labels[::7, 1] = np.nan
    response = Response.of("multilabel", ["a", "b", "c"], labels)
    found = select({"512": design_of(x, 3)}, response, folds=np.arange(90) % 3, metric="map", fractions=(0.01, 0.1))
    assert {"layer0", "layer2"} >= set(found.columns)
    assert max(c.score for c in found.table) > 0.9
    assert found.solution.readout.link == "sigmoid"


def test_regression_has_a_ridge_head():
    x, _ = planted()
    y = np.stack(
        [x[:, 3] / np.linalg.norm(x[:, :100], axis=1), 100 * x[:, 250] / np.linalg.norm(x[:, 200:], axis=1)], 1
    )
    response = Response.of("regression", ["u", "v"], y)
    found = select({"512": design_of(x, 2)}, response, folds=np.arange(90) % 3, metric="r2", fractions=(0.005, 0.2))
    assert found.form == "ridge"
    assert {name: index.tolist() for name, index in found.columns.items()} == {"layer0": [3], "layer2": [50]}
    with pytest.raises(SolverError, match="logistic"):
        select({"512": design_of(x, 2)}, response, folds=np.arange(90) % 3, metric="r2", forms=["logistic"])


def test_rows_beyond_the_limit_are_streamed(monkeypatch):
    x, codes = planted(n=600, d=400, noise=2.0)
    folds = np.arange(600) % 3
    arguments = {"folds": folds, "metric": "accuracy", "fractions": (0.01, 0.1), "strengths": (1e-2,)}
    gram = select({"512": design_of(x, 3)}, classes_of(codes), **arguments)
    monkeypatch.setattr(head2toe, "GRAM_ROWS", 300)
    streamed = select({"512": design_of(x, 3)}, classes_of(codes), **arguments)
    assert streamed.fraction == gram.fraction
    assert {k: v.tolist() for k, v in streamed.columns.items()} == {k: v.tolist() for k, v in gram.columns.items()}
    agree = streamed.solution.out_of_fold.argmax(1) == gram.solution.out_of_fold.argmax(1)
    assert float(agree.float().mean()) > 0.98
    assert bool(torch.isfinite(streamed.solution.out_of_fold).all())


@pytest.mark.parametrize("scorer", [None, "given"])
def test_heads_of_many_rows_and_features_begin_where_the_drawn_rows_say(monkeypatch, scorer):
    """Few of the penalties, one fold that chooses, and the head that the whole grid finds."""
    x, codes = planted(n=600, d=400, noise=2.0)
    folds = np.arange(600) % 4
    ranks = None if scorer is None else Favourites(*range(50, 130))
    arguments = {
        "folds": folds, "metric": "nll", "fractions": (0.2,), "strengths": (1e-2,), "scorer": ranks, "forms": ("ridge",)
    }  # fmt: skip
    whole = select({"512": design_of(x, 3)}, classes_of(codes), **arguments)
    monkeypatch.setattr(head2toe, "GRAM_ROWS", 200)
    monkeypatch.setattr(fitters, "EIGEN_LIMIT", 40)
    monkeypatch.setattr(drawn, "ENOUGH", 100)
    few = select({"512": design_of(x, 3)}, classes_of(codes), **arguments)
    held = few.solution.held_out()[0]
    assert held.tolist() == np.flatnonzero(folds == 0).tolist()
    assert {k: v.tolist() for k, v in few.columns.items()} == {k: v.tolist() for k, v in whole.columns.items()}
    assert len(few.solution.candidates) < len(whole.solution.candidates)
    apart = np.log(few.solution.readout.strength / whole.solution.readout.strength)
    assert abs(apart) < 1.01 * np.log(GRID[0] / GRID[1])
    rows = folds == 0
    ours, theirs = (found.solution.out_of_fold[rows].argmax(1) for found in (few, whole))
    assert float((ours == theirs).float().mean()) > 0.95
    mixed = codes.copy()
    mixed[rows] = np.random.default_rng(0).permutation(codes[rows])  # their labels are not seen by what predicts them
    other = select({"512": design_of(x, 3)}, classes_of(mixed), **arguments)
    trial = next(c for c in other.solution.candidates if c.chosen)
    assert trial.score > 1.0  # nats: no better than chance


def crowd(shift, rows, seed=0):
    """A few features that know the class fairly well, and all others each a little."""
    x, codes = planted(n=rows, noise=2.0, seed=seed)
    x[:, (50, 51, 52, 250)] -= 2.5 * np.eye(3)[codes][:, [0, 1, 2, 0]]
    return x + shift * np.random.default_rng(1).normal(size=(3, x.shape[1]))[codes], codes


def test_many_rows_are_worth_more_features_than_the_drawn_ones_show(monkeypatch):
    """The best 4 of 400 features on a hundred rows; on all 2,000 half of them, and that is no accident of the folds."""
    x, codes = crowd(0.08, 2000)
    arguments = {
        "folds": np.arange(2000) % 3, "metric": "accuracy", "fractions": (0.01, 0.1), "strengths": (1e-2,),
        "forms": ("ridge",), "wider": (0.5, 1.0),
    }  # fmt: skip
    monkeypatch.setattr(head2toe, "GRAM_ROWS", 100)
    lean = select({"512": design_of(x, 3)}, classes_of(codes), **{**arguments, "fractions": (0.01,), "wider": ()})
    found, other = (
        select({"512": design_of(x, 3)}, classes_of(codes), tolerance=errors, **arguments) for errors in (1.0, 0.0)
    )
    assert found.fraction == other.fraction == 0.5
    assert [cell.fraction for cell in found.table if cell.chosen] == [0.5]
    assert [cell.fraction for cell in found.table if cell.lean] == [0.5]
    monkeypatch.setattr(all_rows, "HELD_BYTES", 4 * 2000 * 3 * 199)  # half of the features does not fit
    assert select({"512": design_of(x, 3)}, classes_of(codes), **arguments).fraction < 0.5
    fresh, truth = crowd(0.08, 2000, seed=1)

    def right(selection):
        rows = kept_design(design_of(fresh, 3), selection.columns, selection.normalised)
        return score("accuracy", classes_of(truth), selection.solution.readout.predict_proba(rows))

    assert right(found) > right(lean) + 0.02


def test_other_scalings_are_tried_on_all_rows_too(monkeypatch):
    """What the draw never looked at wins where it is better there, and nothing changes where it is not."""
    x, codes = planted(n=300, noise=2.0)
    blind = np.random.default_rng(5).permutation(300)
    designs = {"a": design_of(x[blind], 3), "b": design_of(x, 3)}
    arguments = {"folds": np.arange(300) % 3, "metric": "accuracy", "fractions": (0.01,), "strengths": (1e-2,)}
    monkeypatch.setattr(head2toe, "GRAM_ROWS", 150)
    for first, other in (("a", "b"), ("b", "a")):
        monkeypatch.setattr(head2toe, "_compare", lambda cells, _, __, grid, only=first: cells.judged(only, grid))
        found = select({first: designs[first]}, classes_of(codes), more={first: {other: designs[other]}}, **arguments)
        assert found.size == "b"
        assert found.solution.held_out()[0].tolist() == list(range(300))


def test_other_scalings_are_tried_where_the_features_fit_into_memory(monkeypatch):
    x, codes = planted(n=300, noise=2.0)
    designs, tried = {"a": design_of(x, 3), "b": design_of(2 * x, 3)}, []
    validated = all_rows._Rows.validated
    monkeypatch.setattr(
        all_rows._Rows, "validated", lambda self, cell, start: tried.append(cell.size) or validated(self, cell, start)
    )
    monkeypatch.setattr(head2toe, "GRAM_ROWS", 150)
    monkeypatch.setattr(head2toe, "_compare", lambda cells, _, __, grid: cells.judged("a", grid))
    arguments = {"folds": np.arange(300) % 3, "metric": "accuracy", "fractions": (0.01,), "strengths": (1e-2,)}
    for room, expected in ((2**32, {"a", "b"}), (1, {"a"})):
        tried.clear()
        monkeypatch.setattr(all_rows, "HELD_BYTES", room)
        select({"a": designs["a"]}, classes_of(codes), more={"a": {"b": designs["b"]}}, **arguments)
        assert set(tried) == expected


def test_a_fold_that_the_draw_missed_is_in_every_training_set(monkeypatch):
    monkeypatch.setattr(head2toe, "GRAM_ROWS", 60)
    x, codes = planted(n=600)
    folds = 1 + np.arange(600) % 2
    missed = np.setdiff1d(np.arange(600), head2toe._draw(classes_of(codes), 60, 0).numpy())[:3]
    folds[missed] = 0
    arguments = {"folds": folds, "metric": "accuracy", "fractions": (0.01,), "strengths": (1e-2,)}
    found = select({"512": design_of(x, 3)}, classes_of(codes), scorer=Favourites(7, 120, 300, 301), **arguments)
    assert sorted(set(range(600)) - set(found.solution.held_out()[0].tolist())) == missed.tolist()


def test_drawn_rows_hold_every_class_in_proportion():
    codes = np.array([0] * 900 + [1] * 99 + [2])
    rows = head2toe._draw(classes_of(codes), 100, seed=0)
    assert len(rows) == 100
    assert bool((rows.diff() > 0).all())
    assert np.bincount(codes[rows.numpy()]).tolist() == pytest.approx([90, 9, 1], abs=1)
    assert torch.equal(rows, head2toe._draw(classes_of(codes), 100, seed=0))
    assert not torch.equal(rows, head2toe._draw(classes_of(codes), 100, seed=1))


class Favourites:
    """Ranks the given columns first, whatever the labels."""

    name = "favourites"

    def __init__(self, *columns):
        self.columns, self.seen = columns, []

    def __call__(self, panel, tasks, response, strengths):
        self.seen.append((panel.n_rows, len(tasks), len(response), list(strengths)))
        scores = torch.zeros(len(tasks), len(strengths), panel.width)
        for place, column in enumerate(self.columns):
            scores[..., column] = len(self.columns) - place
        return scores


@pytest.mark.parametrize("limit", [1000, 60])
def test_a_given_scorer_ranks_the_features_in_every_fold_and_for_the_final_head(monkeypatch, limit):
    monkeypatch.setattr(head2toe, "GRAM_ROWS", limit)
    x, codes = planted()
    scorer = Favourites(7, 120, 300, 301)
    arguments = {"folds": np.arange(90) % 3, "metric": "accuracy", "fractions": (0.01,)}
    found = select({"512": design_of(x, 3)}, classes_of(codes), scorer=scorer, **arguments)
    rows = min(limit, 90)
    assert scorer.seen == [(rows, 3, rows, [1e-2, 1e-3]), (rows, 1, rows, [1e-2, 1e-3])]
    assert {k: v.tolist() for k, v in found.columns.items()} == {"layer0": [7], "layer1": [20], "layer2": [100, 101]}
    assert found.scores["layer1"][20] == 3
    assert found.table[0].score < 0.7 < select({"512": design_of(x, 3)}, classes_of(codes), **arguments).table[0].score


def test_scores_of_another_shape_are_refused():
    x, codes = planted()
    scorer = Favourites(7)
    short = type("Short", (), {"name": "short", "__call__": lambda self, *a: scorer(*a)[:1]})()
    with pytest.raises(SolverError, match="'short' have shape"):
        select({"512": design_of(x, 3)}, classes_of(codes), folds=np.arange(90) % 3, metric="accuracy", scorer=short)


def test_arguments_that_do_not_fit_are_refused():
    x, codes = planted()
    good = {"folds": np.arange(90) % 3, "metric": "accuracy"}
    design, response = design_of(x, 3), classes_of(codes)
    for change in (
        {"fractions": ()},
        {"fractions": (0.0,)},
        {"fractions": (1.5,)},
        {"fractions": 0.5},
        {"strengths": ()},
        {"strengths": 0.5},
        {"strengths": (-1.0,)},
        {"forms": ["lda"]},
        {"metric": "luck"},
        {"folds": np.zeros(90, int)},
    ):
        with pytest.raises(SolverError):
            select({"512": design}, response, **{**good, **change})
    with pytest.raises(SolverError, match="no design"):
        select({}, response, **good)
    with pytest.raises(SolverError, match="4 outputs; expected 3"):
        select({"512": design_of(x, 4)}, response, **good)
    with pytest.raises(SolverError, match="one class only"):
        select({"512": design}, classes_of(np.zeros(90, int), 3), **good)
    empty = FeatureDesign({"a": UnitRows(Dense(torch.empty(90, 0)))}, 3)
    with pytest.raises(SolverError, match="no column"):
        select({"512": empty}, response, **good)


def test_rows_that_are_much_alike_are_told_apart_in_sixteen_bits() -> None:
    """Rendered images on one black ground: what rows share is a hundred times what parts them."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.arange(60) % 3
    rows = 1 + 0.01 * torch.randn(60, 6000, generator=generator)
    rows[:, :300] += 0.02 * torch.nn.functional.one_hot(codes, 3).float().repeat_interleave(100, 1)
    design = FeatureDesign({"one": UnitRows(Dense(rows[:, :3000])), "two": UnitRows(Dense(rows[:, 3000:]))}, 3)
    response = Response.of("multiclass", ("a", "b", "c"), codes.numpy())
    folds = np.arange(60) // 3 % 5
    found = select({"6000": design}, response, folds=folds, metric="accuracy", fractions=(0.05, 0.9))
    wide = [cell.score for cell in found.table if cell.fraction == 0.9]
    assert min(wide) > 0.6
    assert max(cell.score for cell in found.table) > 0.9


def test_the_final_head_of_wide_double_precision_is_in_it(monkeypatch):
    """A search reads wide designs in single precision."""
    monkeypatch.setattr("regraft.heads.selection.panel.EXACT_COLUMNS", 10)
    x, _ = planted()
    response, folds = Response.of("regression", ["y"], x[:, :20].sum(1)), np.arange(90) % 5  # of rows as they are
    design = FeatureDesign({"a": Dense(torch.from_numpy(x))}, 1)
    found = select({"a": design}, response, folds=folds, metric="rmse")
    assert not found.normalised
    kept = kept_design(design, found.columns, normalise=False)
    head = solve(kept, response, folds=folds, strengths=[found.solution.readout.strength], metric="rmse").readout
    torch.testing.assert_close(found.solution.readout.coefficients.flatten(), head.coefficients.flatten())
