"""Weights of rows and classes, and what brings numbers to one unit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.heads import Response
from regraft.heads.solve import check_folds
from regraft.heads.weights import moments, sample_weights, succeeding


def test_moments_are_those_of_the_weighted_numbers() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(50, 3)) * [1e-3, 1, 1e4] + [0, 5, -1e5], rng.random((50, 3))
    weights[rng.random((50, 3)) < 0.3] = 0
    mean, spread = moments(torch.from_numpy(values), torch.from_numpy(weights))
    expected = np.average(values, axis=0, weights=weights)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    np.testing.assert_allclose(spread, np.average((values - expected) ** 2, axis=0, weights=weights) ** 0.5, rtol=1e-9)
    alike = moments(torch.from_numpy(values), torch.ones(50, 1).double())
    np.testing.assert_allclose(alike[0], values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(alike[1], values.std(0), rtol=1e-9)


def test_equal_numbers_have_no_spread_to_divide_by() -> None:
    """The mean of sixty 0.1 is not 0.1; neither what does not count nor a column without anything makes a spread."""
    values = np.array([[0.1, 0.1, 7.0, 1.0]] * 60)
    there = np.ones_like(values)
    there[:7, 1], there[:, 2], values[:7, 1], values[30:, 3] = 0, 0, 4.0, 5.0
    mean, spread = moments(torch.from_numpy(values), torch.from_numpy(there))
    assert mean.tolist() == pytest.approx([0.1, 0.1, 0.0, 3.0])
    assert spread.tolist()[:3] == [1.0, 1.0, 1.0]
    assert spread.tolist()[3] == pytest.approx(2.0)


def test_labels_of_one_kind_alone_are_as_sure_as_the_rule_of_succession() -> None:
    """(k + 1) / (n + 2) of the n rows that count, where k is 0 or n; other labels stay as they are."""
    labels = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    counted = torch.tensor([[2.0, 0.5, 1.0, 1.0]] * 3 + [[0.0, 0.5, 1.0, 1.0]])
    found = succeeding(labels, counted)
    assert found[:, 0].tolist() == pytest.approx([1 / 6, 5 / 6, 0.0, 4 / 5])
    assert torch.equal(found[2], labels[2])


@pytest.mark.parametrize("dtype", [">f8", ">f4", np.float16])
def test_weights_and_folds_may_be_stored_in_any_way(dtype) -> None:
    response = Response.of("binary", ["a", "b"], [0, 1, 1])
    given = np.array([0.5, 2.0, 1.0], dtype)[::-1]
    assert sample_weights(response, given).tolist() == [1.0, 2.0, 0.5]
    assert given[0] == 1.0
    for folds in (np.arange(3, dtype=">i4"), np.arange(3)[::-1][::-1], np.array([2, 1, 0])[::-1]):
        assert check_folds(folds, 3).tolist() == [0, 1, 2]
