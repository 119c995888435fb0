"""The search for rate and τ on made-up scores: what it tries, what it takes, what it spends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from regraft.graft.training.search import (
    LOWERED,
    WIDENED,
    around,
    beyond,
    coarse,
    search,
    searched_steps,
    trial_steps,
)

TOTAL = 500


@dataclass
class Made:
    """A training whose score is a function of rate, τ and length."""

    key: tuple[float, int]
    score: object
    log: list = field(default_factory=list)
    share: float = 1.0
    value: tuple[float, float] = (-math.inf, -math.inf)
    outcome: str | None = None
    total: int = TOTAL

    def shortened(self, share):
        return Made(self.key, self.score, self.log, share)

    def train(self, work):
        found = self.score(*self.key, self.share)
        self.value, self.outcome = found if isinstance(found, tuple) else (found, 0.0), "completed"
        self.log.append((*self.key, self.share))


def searched(score, rates, taus=(0,), **settings):
    log = []
    found = search(lambda lr, tau: Made((lr, tau), score, log), rates, taus, None, **settings)
    return found, log


def peak(best):
    return lambda lr, tau, share: -abs(math.log10(lr) - math.log10(best))


def test_the_best_rate_inside_the_grid_needs_no_other():
    found, log = searched(peak(0.01), (0.03, 0.01, 0.003))
    assert found[0].key == (0.01, 0)
    assert [key for *key, _ in log] == [[0.03, 0], [0.01, 0], [0.003, 0]]
    assert {share for *_, share in log} == {0.2}


@pytest.mark.parametrize(("best", "tried"), [(0.1, [0.1, 0.3]), (0.001, [0.001, 0.0003]), (10.0, [0.1, 0.3])])
def test_a_rate_at_the_edge_is_looked_beyond(best, tried):
    found, log = searched(peak(best), (0.03, 0.01, 0.003))
    assert [lr for lr, *_ in log[3:]] == tried
    assert found[0].key[0] == min((0.03, 0.01, 0.003, *tried), key=lambda lr: abs(math.log10(lr / best)))
    assert len(tried) <= WIDENED


def test_without_leave_to_widen_the_edge_is_taken():
    found, log = searched(peak(0.1), (0.03, 0.01), widen=False)
    assert found[0].key[0] == 0.03
    assert len(log) == 2


def test_a_single_candidate_is_left_untrained():
    found, log = searched(peak(1), (0.01,))
    assert [trial.key for trial in found] == [(0.01, 0)]
    assert found[0].outcome is None
    assert log == []


def test_where_all_diverge_lower_rates_are_tried():
    found, log = searched(lambda lr, *_: -math.inf if lr > 0.005 else 1.0, (0.1, 0.03))
    assert [lr for lr, *_ in log] == [0.1, 0.03, 0.01, 0.003]
    assert found[0].key[0] == 0.003
    found, log = searched(lambda *_: -math.inf, (0.1, 0.03))
    assert len(log) == 2 + LOWERED
    assert found[0].key[0] == 0.1
    assert len(searched(lambda *_: -math.inf, (0.1, 0.03), widen=False)[1]) == 2


def test_while_the_best_spoils_what_it_began_with_lower_rates_are_tried():
    """The best of three lies inside, but far below the head that it began with."""

    def score(lr, tau, share):
        return {0.03: -400.0, 0.01: -70.0, 0.003: -90.0, 0.001: -5.0, 0.0003: 0.8, 0.0001: 0.7}[lr]

    found, log = searched(score, (0.03, 0.01, 0.003), floor=0.7)
    assert [lr for lr, *_ in log] == [0.03, 0.01, 0.003, 0.001, 0.0003]
    assert found[0].key[0] == 0.0003
    assert searched(score, (0.03, 0.01, 0.003))[0][0].key[0] == 0.01  # where nothing is asked for
    assert len(searched(score, (0.03, 0.01, 0.003), floor=-80.0)[1]) == 3


def test_where_chance_chose_among_rates_one_above_is_tried():
    """No rate gets far but the next; the first of three lies inside or at the foot by chance."""

    def score(lr, tau, share):
        return {0.3: 0.5, 0.1: 0.6, 0.03: 0.19, 0.01: 0.2, 0.003: 0.18, 0.001: 0.18}[lr]

    found, log = searched(score, (0.03, 0.01, 0.003), noise=0.02)
    assert [lr for lr, *_ in log] == [0.03, 0.01, 0.003, 0.1, 0.3]
    assert found[0].key[0] == 0.1
    assert searched(score, (0.03, 0.01, 0.003))[0][0].key[0] == 0.01  # scores without an error are taken as they are
    assert len(searched(score, (0.03, 0.01, 0.003), noise=0.005)[1]) == 3


def test_where_that_is_no_better_it_stays_at_one():
    def score(lr, tau, share):
        return {0.3: 0.9, 0.1: 0.6, 0.03: 0.695, 0.01: 0.7, 0.003: 0.69, 0.001: 0.71, 0.0003: 0.5}[lr]

    found, log = searched(score, (0.03, 0.01, 0.003), noise=0.02)
    assert [lr for lr, *_ in log] == [0.03, 0.01, 0.003, 0.1]
    assert found[0].key[0] == 0.01
    _, log = searched(score, (0.03, 0.01, 0.001), noise=0.02)  # the lowest is best
    assert [lr for lr, *_ in log[3:]] == [0.1, 0.0003]
    _, log = searched(lambda lr, *_: 0.7 if lr == 0.01 else 0.69, (0.03, 0.01, 0.003), noise=0.02)
    assert [lr for lr, *_ in log[3:]] == [0.1]  # as good as the best again, but for chance


def test_of_equal_scores_the_lower_loss_is_better():
    found, log = searched(
        lambda lr, tau, _: (0.5, -abs(math.log10(lr / 0.01)) - abs(tau - 4)), (0.03, 0.01, 0.003), TAUS
    )
    assert found[0].key == (0.01, 4)
    assert [tau for *_, tau, _ in log[-2:]] == [1, 16]


TAUS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 200)


def test_rate_and_tau_are_chosen_together():
    """A random head wants three times the rate of a prepared one, and is the better for it."""

    def score(lr, tau, share):
        return -abs(math.log10(lr / (0.03 if tau == 0 else 0.01))) + (0.2 if tau == 0 else 0.0)

    found, log = searched(score, (0.03, 0.01, 0.003), TAUS, widen=False)
    assert found[0].key == (0.03, 0)
    assert [(lr, tau) for lr, tau, _ in log[:9]] == [(lr, tau) for tau in (0, 4, 64) for lr in (0.03, 0.01, 0.003)]
    assert [(lr, tau) for lr, tau, _ in log[9:]] == [(0.03, 2)]
    assert [trial.value for trial in found] == sorted((trial.value for trial in found), reverse=True)


@pytest.mark.parametrize(("best", "later"), [(0, [2]), (4, [1, 16]), (64, [16, 200])])
def test_the_taus_around_the_best_one_are_tried_at_its_rate(best, later):
    found, log = searched(lambda lr, tau, _: -abs(math.log2((tau + 1) / (best + 1))), (0.01,), TAUS)
    assert [(lr, tau) for lr, tau, _ in log] == [(0.01, tau) for tau in (0, 4, 64, *later)]
    assert found[0].key == (0.01, best)
    assert {share for *_, share in log} == {trial_steps(TOTAL) / TOTAL}


def test_what_is_tried_around_the_best_may_be_better():
    found, _ = searched(lambda lr, tau, _: -abs(tau - 16) - abs(math.log10(lr / 0.01)), (0.03, 0.01, 0.003), TAUS)
    assert found[0].key == (0.01, 16)


def test_rates_beyond_are_tried_at_the_best_tau():
    def score(lr, tau, share):
        return -abs(math.log10(lr / 0.1)) - (tau != 4)

    found, log = searched(score, (0.03, 0.01, 0.003), TAUS)
    assert [(lr, tau) for lr, tau, _ in log[9:11]] == [(0.1, 4), (0.3, 4)]
    assert found[0].key == (0.1, 4)


def test_rates_are_as_good_as_the_best_by_what_they_do_at_its_tau():
    def score(lr, tau, share):
        return {4: {0.03: 0.3, 0.01: 0.7, 0.003: 0.5}, 64: {0.03: 0.69}}.get(tau, {}).get(lr, 0.1)

    _, log = searched(score, (0.03, 0.01, 0.003), TAUS, noise=0.02)
    assert [(lr, tau) for lr, tau, _ in log[9:]] == [(0.01, 1), (0.01, 16)]


def test_only_a_prepared_head_can_be_spoilt():
    """The random head is best, but below what a prepared one had before any training: that wants a lower rate."""

    def score(lr, tau, share):
        return 0.4 if tau == 0 else 0.8 if lr < 2e-3 else 0.1 if lr == 0.003 else 0.05

    found, log = searched(score, (0.03, 0.01, 0.003), TAUS, floor=0.7)
    assert [(lr, tau) for lr, tau, _ in log[9:10]] == [(0.001, 4)]
    assert found[0].key == (0.001, 4)


@pytest.mark.parametrize("count", range(1, 13))
def test_a_few_taus_stand_for_all(count):
    taus = TAUS[:count] if count <= 10 else tuple(range(count))
    first = coarse(taus)
    assert first == sorted(set(first))
    assert set(first) <= set(taus)
    assert first[0] == taus[0]
    assert len(first) == min(3, count)
    for tau in taus:
        assert tau not in around(taus, tau)
        assert set(around(taus, tau)) <= set(taus)
    if count <= 5:  # so few that each is tried, or lies next to one that is
        assert {tau for one in first for tau in (one, *around(taus, one))} == set(taus)


@pytest.mark.parametrize(
    ("total", "steps"), [(1, 1), (2, 1), (10, 4), (100, 40), (200, 80), (250, 100), (500, 100), (1000, 200)]
)
def test_a_short_training_has_steps_enough_to_leave_its_head(total, steps):
    assert trial_steps(total) == steps


@pytest.mark.parametrize("rates", [(0.01,), (0.1, 0.01), (0.03, 0.01, 0.003)])
@pytest.mark.parametrize("taus", [(0,), (0, 8), (4, 8), (0, 1, 2, 4, 8), TAUS])
@pytest.mark.parametrize("best", [(0.01, 0), (10.0, 4), (10.0, 64), (1e-9, 8)])
@pytest.mark.parametrize("widen", [True, False])
def test_it_spends_no_more_than_it_says(rates, taus, best, widen):
    def score(lr, tau, _):
        return -abs(math.log10(lr / best[0])) - abs(math.log2((tau + 1) / (best[1] + 1)))

    _, log = searched(score, rates, taus, widen=widen)
    spent = sum(max(1, round(share * TOTAL)) for *_, share in log)
    most = searched_steps(len(rates), taus, TOTAL, widen=widen)
    assert spent <= most
    if best == (10.0, 4) and taus in ((0,), TAUS):
        assert spent == most


def test_what_it_costs_beside_every_tau_or_every_rate_and_tau():
    """With the whole training of what was chosen: a third of ten at one rate, a third of thirty at most."""
    for total in (100, 150, 200, 500):
        assert searched_steps(1, TAUS, total) + total <= 0.35 * 10 * total
        assert searched_steps(3, TAUS, total) + total <= 0.25 * 30 * total


def test_rates_go_by_half_decades():
    assert [beyond(lr, up=True) for lr in (0.003, 0.01, 0.03, 0.02)] == [0.01, 0.03, 0.1, 0.1]
    assert [beyond(lr, up=False) for lr in (0.003, 0.01, 0.1)] == [0.001, 0.003, 0.03]
    rate = 1e-5
    for _ in range(12):
        higher = beyond(rate, up=True)
        assert 2 < higher / rate < 6
        assert beyond(higher, up=False) == rate
        rate = higher
