"""Successive halving against its own bookkeeping and against training all candidates."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from regraft.graft.training.halving import counts, halve, survivors


def run(values: list[list[float]], rungs=(0.1, 0.3, 1.0), keep=1 / 3) -> tuple[list[int], Counter[float]]:
    """Candidates that score values[c][rung]; the ranking, and how many were judged at each rung."""
    spent: Counter[float] = Counter()

    def judge(candidate: int, rung: float) -> tuple[float, float]:
        spent[rung] += 1
        return values[candidate][rungs.index(rung)], 0.0

    return halve(list(range(len(values))), judge, rungs=rungs, keep=keep), spent


def test_a_share_of_candidates_is_rounded_up_but_not_for_rounding():
    """Such as 0.55 · 100 = 55.00000000000001."""
    assert all(
        survivors(count, percent / 100) == max(1, -(-percent * count // 100))
        for count in range(1, 121)
        for percent in range(5, 100, 5)
    )


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 27])
def test_it_judges_as_many_as_it_says_and_finds_the_best_of_steady_candidates(count):
    random = np.random.default_rng(count)
    final = random.permutation(count).astype(float)
    ranking, spent = run([[v, v, v] for v in final])
    assert ranking[0] == int(final.argmax())
    assert sorted(ranking) == list(range(count))
    assert spent == counts(count, rungs=(0.1, 0.3, 1.0), keep=1 / 3)


def test_a_third_or_what_is_left_of_it_goes_on():
    assert counts(10, rungs=(0.1, 0.3), keep=0.3) == {0.1: 10, 0.3: 3}
    assert counts(1, rungs=(0.1, 0.3), keep=0.3) == {}
    assert [survivors(n, 1 / 3) for n in (1, 2, 3, 4, 10)] == [1, 1, 1, 2, 4]


def test_a_late_bloomer_among_the_survivors_wins_and_one_that_was_dropped_does_not():
    values = [[3.0, 3.0, 3.0], [2.0, 2.5, 9.0], [1.0, 1.0, 1.0], [0.0, 0.0, 99.0]]
    ranking, _ = run(values, keep=0.75)
    assert ranking[0] == 1
    assert ranking[-1] == 3


def test_of_equal_candidates_the_earlier_wins():
    assert run([[1.0] * 3] * 4)[0] == [0, 1, 2, 3]
