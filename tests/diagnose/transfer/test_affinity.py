"""Domain affinity: a difference of accuracies on the same rows, with a paired interval."""

from __future__ import annotations

import numpy as np
import pytest

from regraft.diagnose import affinity
from regraft.errors import DataError


def drawn(rows: int, linear: float, scratch: float, seed: int = 0):
    """Labels, and predictions that are right with these chances, independently."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, rows)

    def predicted(chance: float) -> np.ndarray:
        return np.where(rng.random(rows) < chance, labels, (labels + rng.integers(1, 4, rows)) % 4)

    return labels, predicted(linear), predicted(scratch)


def test_it_is_the_difference_of_two_accuracies():
    labels, linear, scratch = drawn(300, 0.8, 0.5)
    found = affinity(linear=linear, scratch=scratch, labels=labels)
    assert found.value == pytest.approx((linear == labels).mean() - (scratch == labels).mean(), abs=1e-12)
    turned = affinity(linear=scratch, scratch=linear, labels=labels)
    assert turned.value == pytest.approx(-found.value, abs=1e-12)


def test_the_interval_is_paired():
    labels, linear, _ = drawn(400, 0.7, 0.5)
    scratch = linear.copy()
    scratch[:8] = labels[:8]
    alike = affinity(linear=linear, scratch=scratch, labels=labels)
    differing = int((linear[:8] != labels[:8]).sum())
    assert alike.value == pytest.approx(-differing / 400)
    # the variance of a mean of N differences of which these alone are not 0, a few per cent for the strata
    share = differing / 400
    assert alike.error == pytest.approx((share * (1 - share) / 400) ** 0.5, rel=0.15)
    never = affinity(linear=linear, scratch=linear, labels=labels)
    assert never.error == pytest.approx((never.high - never.low) / 3.92, rel=1e-3)  # a jackknife would say 0


def test_the_interval_covers_the_difference_of_the_chances():
    inside = 0
    for seed in range(200):
        labels, linear, scratch = drawn(150, 0.7, 0.55, seed)
        found = affinity(linear=linear, scratch=scratch, labels=labels, seed=seed)
        inside += found.low <= 0.15 <= found.high
    # 95 % of 200: 2.5 % and 97.5 % quantiles of the binomial are 184 and 196; a percentile interval is a little short
    assert 180 <= inside <= 198


def test_groups_widen_the_interval():
    labels, linear, scratch = drawn(60, 0.8, 0.5)
    five = [np.repeat(each, 5) for each in (linear, scratch, labels)]
    loose = affinity(linear=five[0], scratch=five[1], labels=five[2])
    groups = np.repeat(np.arange(60), 5)
    bound = affinity(linear=five[0], scratch=five[1], labels=five[2], groups=groups)
    assert bound.value == loose.value
    assert bound.error == pytest.approx(5**0.5 * loose.error, rel=0.1)
    assert bound.high - bound.low > 2 * (loose.high - loose.low)


def test_it_stays_between_minus_one_and_one():
    labels = np.arange(40) % 2
    found = affinity(linear=labels, scratch=1 - labels, labels=labels)
    assert (found.value, found.high) == (1.0, 1.0)


def test_rows_that_agree_within_each_class_are_no_certainty():
    labels = np.repeat([0, 1], 10)
    found = affinity(linear=labels, scratch=np.zeros(20, int), labels=labels)
    assert found.value == 0.5
    assert found.low < 0.3
    assert found.high > 0.65
    same = affinity(linear=labels, scratch=labels, labels=labels)
    assert same.low < -0.05
    assert same.high == -same.low
    assert same.error == pytest.approx(same.high / 1.96, rel=1e-3)


def test_rows_of_one_class_have_accuracies_too():
    labels = np.ones(20, int)
    found = affinity(linear=labels, scratch=np.arange(20) % 2, labels=labels)
    assert found.value == 0.5
    assert 0.2 < found.low < 0.5 < found.high < 0.8


@pytest.mark.parametrize("name", ["linear", "scratch"])
def test_predictions_of_other_rows_are_refused(name):
    labels, linear, scratch = drawn(20, 0.8, 0.5)
    given = {"linear": linear, "scratch": scratch, name: linear[:-1]}
    with pytest.raises(DataError, match=rf"predictions of {name}.*20 codes.*\(19,\)"):
        affinity(**given, labels=labels)


def test_numbers_are_refused():
    with pytest.raises(DataError, match="defined for classes"):
        affinity(linear=np.zeros(9), scratch=np.ones(9), labels=np.linspace(0, 1, 9))
