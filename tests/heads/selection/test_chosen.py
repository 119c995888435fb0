"""Overlaps by counting, depths by hand, and heads on chosen features against scikit-learn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from tests.heads.problems import classes_of, design_of, scale_of

from regraft.errors import SolverError
from regraft.heads import (
    Transfer,
    chosen_scores,
    keep,
    overlap,
    overlap_matrix,
    rank_offset,
    ranked,
    stability,
    transfer,
)
from regraft.heads.selection.chosen import mean_depth


def choice(**blocks):
    return {name: torch.tensor(sorted(index)) for name, index in blocks.items()}


def test_overlap_counts_features_of_the_same_block_only():
    found = overlap(choice(a=[0, 1, 2], b=[5]), choice(a=[2, 3], c=[5, 0]), 100)
    assert (found.shared, found.jaccard, found.overlap) == (1, 1 / 7, 1 / 4)
    assert found.chance == pytest.approx(4 / 100)  # k / N for two sets of one size


def test_sets_of_different_sizes_overlap_by_the_mean_size():
    found = overlap(choice(a=[0, 1, 2, 3, 4, 5]), choice(a=[4, 5]), 50)
    assert (found.shared, found.jaccard, found.overlap) == (2, 1 / 3, 0.5)
    assert found.chance == pytest.approx((6 * 2 / 50) / 4)


def test_random_sets_overlap_by_chance():
    random = np.random.default_rng(0)
    draws = [{"a": torch.tensor(np.sort(random.choice(400, size, replace=False)))} for size in (40, 90) * 60]
    found = stability(draws, 400)
    assert found.overlap == pytest.approx(found.chance, abs=0.005)


def test_equal_choices_overlap_wholly_and_the_order_of_blocks_does_not_count():
    one, two = choice(a=[1, 2], b=[0]), choice(b=[0], a=[1, 2])
    assert stability([one, two, one], 9).overlap == stability([one, two], 9).jaccard == 1


def test_the_matrix_leaves_a_run_paired_with_itself_out():
    first = [choice(a=[0, 1]), choice(a=[1, 2]), choice(a=[0, 1])]
    second = [choice(a=[0, 2]), choice(a=[5, 6])]
    found = overlap_matrix([first, second, [choice(a=[9, 8])]], 10)
    assert found[0, 0] == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert found[1, 1] == 0
    assert found[0, 1] == found[1, 0] == pytest.approx((0.5 + 0 + 0.5 + 0 + 0.5 + 0) / 6)
    assert np.isnan(found[2, 2])


@pytest.mark.parametrize(("a", "b"), [({}, choice(a=[1])), (choice(a=[]), choice(a=[1])), (choice(a=range(9)),) * 2])
def test_what_cannot_be_compared_is_refused(a, b):
    with pytest.raises(SolverError, match="cannot be compared"):
        overlap(a, b, 8)


def test_stability_needs_two():
    with pytest.raises(SolverError, match="at least 2"):
        stability([choice(a=[1])], 8)


def test_mean_depth_weighs_by_kept_features():
    kept = choice(early=[0, 1, 2], late=[4])
    assert mean_depth(kept, {"early": 0.2, "late": 1.0, "other": 0.5}) == pytest.approx((3 * 0.2 + 1.0) / 4)
    with pytest.raises(SolverError, match="late"):
        mean_depth(kept, {"early": 0.2})
    with pytest.raises(SolverError, match="no feature"):
        mean_depth({}, {})


def test_ranked_is_a_window_of_the_order_and_starts_with_what_is_kept():
    random = np.random.default_rng(1)
    scores = {"a": torch.tensor(random.normal(size=7)), "b": torch.tensor(random.normal(size=13))}
    flat = torch.cat(list(scores.values())).numpy()
    order = np.argsort(-flat, kind="stable")
    for offset in (0, 3, 15):
        found = ranked(scores, 5, offset)
        index = np.concatenate([found.get("a", torch.empty(0)).numpy(), found["b"].numpy() + 7])
        assert sorted(index) == sorted(order[offset : offset + 5])
    best = keep(scores, 0.25)
    assert {k: v.tolist() for k, v in ranked(scores, 5).items()} == {k: v.tolist() for k, v in best.items()}
    with pytest.raises(SolverError, match="ranks"):
        ranked(scores, 5, 16)


def task(seed, informative, n=90, d=24):
    """Three classes that only the ``informative`` columns tell apart."""
    random = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    x = random.normal(size=(n, d))
    x[:, informative] += 1.4 * random.normal(size=(3, len(informative)))[codes]
    half = n // 2
    made = [(design_of(x[part], 3, cuts=2), classes_of(codes[part])) for part in (slice(half), slice(half, n))]
    return Transfer(made[0][0], made[0][1], np.arange(half) % 3, *made[1]), x, codes


def test_scores_on_a_choice_are_those_of_scikit_learn():
    rows, x, codes = task(0, [1, 2, 14, 15])
    kept = choice(layer0=[1, 2, 3], layer1=[2, 3])
    columns = [1, 2, 3, 14, 15]
    train = x[:45, columns]
    model = Ridge(alpha=1e-2 * scale_of(train) * 45, solver="cholesky").fit(train, np.eye(3)[codes[:45]])
    expected = (model.predict(x[45:, columns]).argmax(1) == codes[45:]).mean()
    found = chosen_scores(rows, [kept], forms=("ridge",), strengths=[1e-2], normalise=False)
    assert found.tolist() == [expected]


def test_better_ranks_score_better():
    rows, _, _ = task(1, list(range(6)))
    scores = {"layer0": torch.arange(24.0, 12, -1), "layer1": torch.arange(12.0, 0, -1)}
    curve = rank_offset(rows, scores, 6, (0, 3, 9), forms=("ridge",))
    assert all(a > b for a, b in pairwise(curve))
    assert curve[0] > 0.8


def test_transfer_is_measured_against_ones_own_choice():
    first, second = task(2, [0, 1, 2, 3])[0], task(3, [20, 21, 22, 23])[0]
    choices = [choice(layer0=[0, 1, 2, 3]), choice(layer1=[8, 9, 10, 11])]
    found = transfer([first, second], choices, forms=("ridge",), normalise=False)
    assert found.diagonal().tolist() == [0, 0]
    assert found[0, 1] < -0.2
    assert found[1, 0] < -0.2
    lone = [chosen_scores(t, choices, forms=("ridge",), normalise=False) for t in (first, second)]
    assert found[0, 1] == lone[1][0] - lone[1][1]
    assert found[1, 0] == lone[0][1] - lone[0][0]
    with pytest.raises(SolverError, match="one choice of each task"):
        transfer([first], choices)
