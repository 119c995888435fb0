"""The search for rate and τ on made-up scores: what it tries, what it takes, what it spends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from regraft.graft.training.search import LOWERED, LR_SHARE, TAU_RUNGS, WIDENED, beyond, search, searched_steps

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

    def shortened(self, share):
        return Made(self.key, self.score, self.log, share)

    def train(self, work):
        self.value, self.outcome = (self.score(*self.key, self.share), 0.0), "completed"
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
    assert {share for *_, share in log} == {LR_SHARE}


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


def test_tau_is_chosen_at_the_best_rate_by_longer_trainings():
    """At a tenth of the length τ = 8 leads, at three tenths τ = 2; the rate is found at the τ in the middle."""

    def score(lr, tau, share):
        bloom = {0: 0.0, 1: 0.1, 2: 0.8 if share >= 0.3 else 0.5, 4: 0.2, 8: 0.6}[tau]
        return bloom - abs(math.log10(lr / 0.01))

    found, log = searched(score, (0.03, 0.01, 0.003), (0, 1, 2, 4, 8))
    assert found[0].key == (0.01, 2)
    assert found[0].share == TAU_RUNGS[-1]
    assert [tau for lr, tau, share in log if share == TAU_RUNGS[0]] == [0, 1, 2, 4, 8]
    assert [tau for lr, tau, share in log if share == TAU_RUNGS[1]] == [8, 2]
    assert all(lr == 0.01 for lr, _, share in log if share in TAU_RUNGS)
    assert len({trial.key for trial in found}) == len(found) == 7


def test_a_candidate_stands_with_the_longest_of_its_trainings():
    """At τ = 2 the rate was found by a fifth of the length; a tenth of it, which takes τ out, says less."""
    found, log = searched(lambda lr, tau, share: share - abs(tau - 8) - abs(math.log10(lr / 0.01)), (0.03, 0.01, 0.003),
                          (0, 1, 2, 4, 8))  # fmt: skip
    assert (0.01, 2, TAU_RUNGS[0]) in log
    assert (0.01, 2, TAU_RUNGS[1]) not in log
    middle = next(trial for trial in found if trial.key == (0.01, 2))
    assert (middle.share, middle.value[0]) == (LR_SHARE, LR_SHARE - 6)
    for trial in found:
        assert trial.share == max(share for lr, tau, share in log if (lr, tau) == trial.key)


@pytest.mark.parametrize("rates", [(0.01,), (0.1, 0.01), (0.03, 0.01, 0.003)])
@pytest.mark.parametrize("taus", [(0,), (0, 8), (0, 1, 2, 4, 8, 16, 32, 64, 128, 200)])
@pytest.mark.parametrize("best", [0.01, 10.0])
def test_it_spends_no_more_than_it_says(rates, taus, best):
    _, log = searched(peak(best), rates, taus)
    spent = sum(max(1, round(share * TOTAL)) for *_, share in log)
    most = searched_steps(len(rates), len(taus), TOTAL)
    assert spent <= most
    if len(rates) > 1 and best == 10.0:
        assert spent == most


def test_ten_taus_at_one_rate_cost_less_than_a_fifth_of_all_of_them():
    assert searched_steps(1, 10, TOTAL) == 10 * 50 + 3 * 150 < 0.2 * 10 * TOTAL


def test_rates_go_by_half_decades():
    assert [beyond(lr, up=True) for lr in (0.003, 0.01, 0.03, 0.02)] == [0.01, 0.03, 0.1, 0.1]
    assert [beyond(lr, up=False) for lr in (0.003, 0.01, 0.1)] == [0.001, 0.003, 0.03]
    rate = 1e-5
    for _ in range(12):
        higher = beyond(rate, up=True)
        assert 2 < higher / rate < 6
        assert beyond(higher, up=False) == rate
        rate = higher
