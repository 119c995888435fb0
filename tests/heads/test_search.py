"""How far past its edges a grid of strengths is tried."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.heads import Response, temperature
from regraft.heads.search import STEPS, Judge, Trial, choose, explore

GRID = (1.0, 1e-1, 1e-2, 1e-3)


def explored(scores: dict[int, float], steps: int, gain: float = 0.0) -> tuple[list[list[int]], list[int]]:
    """The powers of ten that were asked for, call by call, and all that were tried; others score 0."""
    asked: list[list[int]] = []

    def run(strengths):
        powers = [round(np.log10(strength)) for strength in strengths]
        asked.append(powers)
        return [
            Trial("form", float(s), scores.get(p, 0.0), 0.1, 0.0, 1.0, torch.zeros(1))
            for s, p in zip(strengths, powers)
        ]

    trials = explore(run, None, 1.0, GRID, steps=steps, gain=gain)
    return asked, sorted(round(np.log10(trial.strength)) for trial in trials)


@pytest.mark.parametrize(
    ("scores", "steps", "past"),
    [
        ({-3: 1.0}, 1, [[-4]]),
        ({-3: 1.0, -4: 2.0, -5: 3.0, -6: 2.0}, 1, [[-4], [-5], [-6]]),
        ({-3: 1.0, -4: 1.0}, 1, [[-4]]),  # no better is a plateau
        ({0: 1.0, 1: 2.0}, 1, [[1], [2]]),
        ({0: 1.0, 1: 1.0, 2: 1.0}, 1, [[1]]),  # on the strong side too, whose end a tie goes to
        ({0: 1.0, -1: 1.0}, 1, [[1]]),  # which is then looked behind
        ({-2: 1.0}, 1, []),
        ({-3: 1.0, -5: 2.0}, STEPS, [[-4, -5, -6]]),
        ({-3: 1.0, -6: 2.0}, STEPS, [[-4, -5, -6], [-7, -8, -9]]),
        ({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}, 1, [[1], [2], [3], [4]]),  # the strongest that is ever tried
    ],
)
def test_an_edge_that_scores_best_is_passed_until_nothing_is_better(scores, steps, past) -> None:
    asked, tried = explored(scores, steps)
    assert asked == [[0, -1, -2, -3], *past]
    assert tried == sorted(power for powers in asked for power in powers)


@pytest.mark.parametrize(
    ("scores", "past"),
    [
        ({-3: 1.0, -2: 0.9, -4: 2.0, -5: 2.1}, []),  # the edge is hardly better than what is inside
        ({-3: 1.0, -2: 0.7, -4: 1.3, -5: 1.4, -6: 9.0}, [[-4], [-5]]),
        ({-3: 1.0, -4: 1.1, -5: 9.0}, [[-4]]),
    ],
)
def test_small_gains_are_not_gone_after(scores, past) -> None:
    assert explored(scores, 1, gain=0.2)[0] == [[0, -1, -2, -3], *past]


@pytest.mark.parametrize("steps", [1, STEPS])
def test_both_steps_reach_as_far(steps) -> None:
    _, tried = explored({power: -float(power) for power in range(-9, 1)}, steps)
    assert min(tried) == -9


def trial(strength: float, score: float, *, form: str = "ridge", error: float = 0.1, loss: float = 0.0) -> Trial:
    return Trial(form, strength, score, error, loss, 1.0, torch.zeros(1))


def test_equal_scores_go_to_the_lower_loss_then_to_the_stronger_penalty() -> None:
    """Scores and losses within 1e-12 are equal; the order in which they were tried decides nothing."""
    alike = [trial(0.1, 0.8, loss=1.0), trial(1.0, 0.8 - 1e-13, loss=1.0 + 1e-13), trial(0.01, 0.8, loss=1.0)]
    lower, better = trial(1e-3, 0.8, loss=0.9), trial(1e-4, 0.8 + 1e-9, loss=5.0)
    for trials in (alike, alike[::-1]):
        assert choose(trials, 1.0).strength == 1.0
        assert choose([*trials, lower], 1.0) is lower
        assert choose([*trials, lower, better], 1.0) is better
        assert choose([*trials, lower, better], -1.0).strength == 1e-3  # errors: the larger by 1e-9 is worse


def test_one_standard_error_stays_with_the_form_that_is_best() -> None:
    best = trial(1e-3, 0.8, form="logistic")
    near, far = trial(1e-2, 0.7, form="logistic"), trial(1e-1, 0.69, form="logistic")
    other = trial(1.0, 0.79, form="ridge")
    assert choose([other, far, near, best], 1.0, one_standard_error=True) is near
    unknown = trial(1e-3, 0.8, form="logistic", error=float("nan"))
    assert choose([other, far, near, unknown], 1.0, one_standard_error=True) is unknown


def test_a_class_that_a_fold_never_saw_says_nothing_of_how_sure_the_fit_may_be() -> None:
    rng = np.random.default_rng(0)
    codes = np.r_[rng.integers(0, 3, 120), 3, 4]
    logits = torch.from_numpy(3 * (np.eye(5)[np.minimum(codes, 2)] + rng.normal(size=(122, 5))))
    folds = torch.arange(122) % 4
    response = Response.of("multiclass", list("abcde"), codes)
    every = torch.ones(122, dtype=torch.bool)
    some = response.take(torch.arange(120))
    for metric in ("accuracy", "nll"):
        lone, (without,) = (
            Judge(metric, labels, folds[: len(labels)], every[: len(labels)], True).trials(
                "ridge", [1.0], logits[None, : len(labels)], [None]
            )
            for labels in (response, some)
        )
        assert lone[0].temperature == without.temperature == temperature(logits[:120], some)
        assert lone[0].loss == pytest.approx(without.loss)
        # of classes, though, the rows count: they are wrong, and no penalty changes that
        assert (lone[0].score == pytest.approx(without.score)) is (metric == "nll")
        # a row of weight zero is in no fit: its class is not known by it
        more = Response.of("multiclass", list("abcde"), np.r_[codes, 3])
        judge = Judge(metric, more, torch.arange(123) % 4, torch.arange(123) < 122, True)
        (weightless,) = judge.trials("ridge", [1.0], torch.cat([logits, logits[:1]])[None], [None])
        assert weightless.temperature == lone[0].temperature
        assert (weightless.score, weightless.loss) == (lone[0].score, lone[0].loss)


def test_where_no_fold_knows_any_class_all_rows_are_judged() -> None:
    response = Response.of("multiclass", list("abc"), [0, 0, 1, 2])
    judge = Judge("nll", response, torch.tensor([0, 0, 1, 2]), torch.ones(4, dtype=torch.bool), True)
    (trial,) = judge.trials("ridge", [1.0], torch.zeros(1, 4, 3), [None])
    assert trial.loss == pytest.approx(np.log(3))


def test_logits_are_judged_on_the_same_folds_whatever_they_say() -> None:
    """A fold without a row of the label tells nothing of its overlap, whether or not the label is predicted there."""
    truth = ((np.arange(250) % 5 < 4) & (np.arange(250) < 50)).astype(float)[:, None]
    judge = Judge(
        "miou",
        Response.of("multilabel", ["a"], truth),
        torch.arange(250) % 5,
        torch.ones(250, dtype=torch.bool),
        calibrate=False,
    )
    silent = np.where(truth > 0, 3.0, -3.0)
    once = silent.copy()
    once[4] = 3.0  # in the fold that no row of the label is in
    misses = silent.copy()
    misses[[0, 1, 2, 3]] = -3.0
    logits = torch.from_numpy(np.stack([silent, once, misses]))
    all_right, one_more, fewer = judge.trials("ridge", [1.0] * 3, logits, [None] * 3)
    assert all_right.fold_scores == one_more.fold_scores == (1.0,) * 4
    assert fewer.fold_scores == pytest.approx((0.9,) * 4)
