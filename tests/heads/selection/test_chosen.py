"""Overlaps by counting, depths by hand, ranks by sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.errors import SolverError
from regraft.heads import (
    keep,
    overlap,
    ranked,
    stability,
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
