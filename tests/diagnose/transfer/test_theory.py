"""H∞ against its integral, the theorems' numbers against dense formulas, invariances, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regraft.diagnose import feasibility, gram, transferred_labels, unit_rows
from regraft.errors import DataError, SolverError


def rows(count, width, seed):
    return unit_rows(torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@pytest.fixture(scope="module")
def problem():
    p, q = rows(30, 6, 0), rows(25, 6, 1)
    return p, torch.sign(p[:, :2]), q, torch.sign(q[:, :2] + 0.2 * q[:, 2:4])


# ---------------------------------------------------------------------------------------------- H∞


def test_the_gram_matrix_is_the_expectation_over_gaussian_weights():
    """Every entry inside its own interval of 5 standard errors: 2 million draws, 24 entries."""
    x, z = rows(4, 3, 2), rows(6, 3, 3)
    w = torch.randn(2_000_000, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    draws = ((w @ x.T >= 0).double().T @ (w @ z.T >= 0).double()) / len(w)
    error = (draws * (1 - draws) / len(w)).sqrt() * (x @ z.T).abs()
    found = (gram(x, z) - draws * (x @ z.T)).abs()
    assert (found <= 5 * error).all()
    assert (error < 5e-4).all()


def test_limits_and_closed_forms():
    x = rows(5, 4, 5)
    assert torch.equal(gram(x).diagonal(), torch.full((5,), 0.5, dtype=torch.float64))
    assert (gram(x, -x).diagonal() == 0).all()
    at = torch.tensor([0, math.pi / 3, math.pi / 2, 2 * math.pi / 3], dtype=torch.float64)
    plane = torch.stack([at.cos(), at.sin()], 1)
    torch.testing.assert_close(
        gram(plane[:1], plane)[0],
        torch.tensor([1 / 2, 1 / 6, 0, -1 / 12], dtype=torch.float64),
        rtol=1e-15,
        atol=1e-16,
    )


def test_near_one_no_digit_is_lost():
    """H(θ) = ½ − θ/2π + O(θ²): arccos of a float64 cosine cannot tell θ = 1e-9 from 0."""
    angle = 1e-9
    pair = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert float(0.5 - gram(pair)[0, 1]) == pytest.approx(angle / (2 * math.pi), rel=1e-6)
    opposite = torch.tensor([[-math.cos(angle), -math.sin(angle)]], dtype=torch.float64)
    assert float(gram(pair[:1], opposite)) == pytest.approx(-angle / (2 * math.pi), rel=1e-6)


def test_it_is_positive_definite_on_distinct_rows_and_symmetric():
    for seed, count, width in ((0, 60, 3), (1, 60, 40), (2, 8, 2)):
        matrix = gram(rows(count, width, seed))
        torch.testing.assert_close(matrix, matrix.T, rtol=0, atol=1e-16)
        assert float(torch.linalg.eigvalsh(matrix)[0]) > 1e-6


def test_float32_rows_are_taken_and_others_refused():
    x = rows(6, 5, 6)
    torch.testing.assert_close(gram(x.float()), gram(x), rtol=0, atol=1e-6)
    with pytest.raises(DataError, match="2 of 6 rows are not of unit norm"):
        gram(torch.cat([x[:4], 2 * x[4:]]))
    with pytest.raises(DataError, match="1 of 3 rows are zero"):
        unit_rows(torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]))
    with pytest.raises(DataError, match="differ in width"):
        gram(x, rows(3, 4, 0))
    with pytest.raises(DataError, match="no matrix of finite numbers"):
        gram(torch.tensor([[math.nan, 1.0]]))


# ------------------------------------------------------------------------------- theorems in numbers


def dense(p, y_p, q, y_q):
    """The printed formulas by explicit inverses and arccos, in numpy."""

    def h(x, z):
        c = np.clip(x @ z.T, -1, 1)
        return c * (np.pi - np.arccos(c)) / (2 * np.pi)

    p, y_p, q, y_q = (value.numpy() for value in (p, y_p, q, y_q))
    moved = h(p, q).T @ np.linalg.inv(h(p, p)) @ y_p
    inverse = np.linalg.inv(h(q, q))
    gap = y_q - moved
    return moved, np.trace(gap.T @ gap), np.trace(gap.T @ inverse @ gap), np.trace(y_q.T @ inverse @ y_q)


def test_the_theorems_numbers_are_the_dense_formulas(problem):
    moved, mismatch, form, scratch = dense(*problem)
    found = feasibility(*problem)
    assert feasibility(*(value.numpy() for value in problem)) == found
    np.testing.assert_allclose(transferred_labels(*problem[:3]).numpy(), moved, rtol=1e-6, atol=1e-7)
    labels = float(problem[3].square().sum())
    assert found.mismatch == pytest.approx(mismatch, rel=1e-6)
    assert (found.form, found.form_scratch) == pytest.approx((form, scratch), rel=1e-6)
    assert (found.labels, found.change) == pytest.approx((labels, mismatch - labels), rel=1e-6)
    assert found.gradient.value == pytest.approx(mismatch / labels, rel=1e-6)
    assert found.distance.value == pytest.approx(form / scratch, rel=1e-6)
    spectrum = np.linalg.eigvalsh(gram(problem[2]).numpy())
    assert found.least_eigenvalue == pytest.approx(spectrum[0])
    assert found.condition == pytest.approx(spectrum[-1] / spectrum[0])
    assert (found.source_rows, found.target_rows, found.outputs) == (30, 25, 2)


def test_a_source_that_is_the_target_transfers_everything(problem):
    p, y_p, _, _ = problem
    torch.testing.assert_close(transferred_labels(p, y_p, p), y_p)
    torch.testing.assert_close(transferred_labels(p, y_p[:, 0], p), y_p[:, 0])
    same = feasibility(p, y_p, p, y_p)
    assert same.mismatch == pytest.approx(0, abs=1e-18)
    assert same.form == pytest.approx(0, abs=1e-15)
    assert "the source helps" in same.gradient.meaning
    assert "the source helps" in same.distance.meaning


def test_opposite_labels_harm_and_source_labels_of_zero_are_scratch(problem):
    p, y_p, _, _ = problem
    worse = feasibility(p, -y_p, p, y_p)
    assert (worse.gradient.value, worse.distance.value) == pytest.approx((4, 4))
    assert "the source harms" in worse.gradient.meaning
    none = feasibility(p, 0 * y_p, *problem[2:])
    assert (none.gradient.value, none.distance.value) == pytest.approx((1, 1))
    assert none.change == pytest.approx(0)


def test_numbers_stay_under_rotations_orders_and_units_of_the_labels(problem):
    p, y_p, q, y_q = problem
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(8), dtype=torch.float64))[0]
    plain = feasibility(p, y_p, q, y_q)
    shuffle = torch.randperm(len(p), generator=torch.Generator().manual_seed(9))
    changed = feasibility(p[shuffle] @ turn, 3 * y_p[shuffle], q @ turn, 3 * y_q)
    assert changed.gradient.value == pytest.approx(plain.gradient.value)
    assert changed.distance.value == pytest.approx(plain.distance.value)
    assert (changed.mismatch, changed.form) == pytest.approx((9 * plain.mismatch, 9 * plain.form))
    # the same halves are drawn, so the interval is the same too
    assert changed.distance.error == pytest.approx(plain.distance.error)


def test_outputs_add_up(problem):
    p, y_p, q, y_q = problem
    whole = feasibility(p, y_p, q, y_q)
    parts = [feasibility(p, y_p[:, c], q, y_q[:, c]) for c in (0, 1)]
    assert whole.mismatch == pytest.approx(sum(part.mismatch for part in parts))
    assert whole.form_scratch == pytest.approx(sum(part.form_scratch for part in parts))


def test_codes_are_centred_one_hot_rows(problem):
    p, y_p, q, y_q = problem
    codes = [(1 + y[:, 0].long()) // 2 + (1 + y[:, 1].long()) // 2 for y in (y_p, y_q)]
    hot = [torch.eye(3, dtype=torch.float64)[c] - 1 / 3 for c in codes]
    assert feasibility(p, codes[0], q, codes[1]) == feasibility(p, hot[0], q, hot[1])
    with pytest.raises(DataError, match="different kinds"):
        feasibility(p, codes[0], q, y_q)
    with pytest.raises(DataError, match="one class"):
        feasibility(p, 0 * codes[0], q, 0 * codes[1])


def test_intervals_narrow_with_rows_and_hold_the_truth():
    """The ratio of 2,000 rows lies in the interval of 40 in nearly all of 40 draws; 160 rows halve the error."""
    p = rows(60, 5, 10)
    y_p = p[:, 0].sign()
    truth = feasibility(p, y_p, rows(2000, 5, 11), rows(2000, 5, 11)[:, 0].sign(), halves=0).gradient.value
    inside, few, many = 0, [], []
    for draw in range(40):
        small, large = rows(40, 5, 100 + draw), rows(160, 5, 200 + draw)
        one = feasibility(p, y_p, small, small[:, 0].sign(), seed=draw).gradient
        inside += one.low <= truth <= one.high
        few.append(one.error)
        many.append(feasibility(p, y_p, large, large[:, 0].sign(), halves=50, seed=draw).gradient.error)
    assert inside >= 33
    assert np.mean(many) / np.mean(few) == pytest.approx(0.5, abs=0.1)


def test_the_same_seed_gives_the_same_numbers(problem):
    assert feasibility(*problem, seed=3) == feasibility(*problem, seed=3)
    assert feasibility(*problem, seed=3).distance.error != feasibility(*problem, seed=4).distance.error


def test_repeated_rows_are_counted_and_refused_unless_jitter_is_asked_for(problem):
    p, y_p, q, y_q = problem
    twice = torch.cat([q, q[:3]])
    labels = torch.cat([y_q, y_q[:3]])
    with pytest.raises(SolverError, match=r"the target's Gram matrix is singular.*28 rows, 3 repeated"):
        feasibility(p, y_p, twice, labels)
    with pytest.raises(SolverError, match="the source's Gram matrix is singular"):
        transferred_labels(twice, labels, p)
    mended = feasibility(p, y_p, twice, labels, jitter=1e-3)
    assert (mended.duplicates, mended.source_duplicates, mended.jitter) == (3, 0, 1e-3)
    assert mended.least_eigenvalue == pytest.approx(1e-3)
    with pytest.raises(DataError, match="jitter"):
        feasibility(p, y_p, q, y_q, jitter=-1.0)


def test_labels_that_do_not_fit_are_refused(problem):
    p, y_p, q, y_q = problem
    with pytest.raises(DataError, match="target labels do not fit"):
        feasibility(p, y_p, q, y_q[:-1])
    with pytest.raises(DataError, match="differ in outputs"):
        feasibility(p, y_p, q, y_q[:, 0])
    with pytest.raises(DataError, match="all target labels are zero"):
        feasibility(p, y_p, q, 0 * y_q)


def test_few_rows_have_no_interval(problem):
    p, y_p, q, y_q = problem
    small = feasibility(p, y_p, q[:3], y_q[:3])
    assert math.isnan(small.gradient.error)
    assert "cannot be told" in small.gradient.meaning
