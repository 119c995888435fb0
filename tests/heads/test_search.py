"""How far past its edges a grid of strengths is tried."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.heads.search import STEPS, Trial, explore

GRID = (1.0, 1e-1, 1e-2, 1e-3)


def explored(scores: dict[int, float], steps: int) -> tuple[list[list[int]], list[int]]:
    """The powers of ten that were asked for, call by call, and all that were tried; others score 0."""
    asked: list[list[int]] = []

    def run(strengths):
        powers = [round(np.log10(strength)) for strength in strengths]
        asked.append(powers)
        return [
            Trial("form", float(s), scores.get(p, 0.0), 0.1, 0.0, 1.0, torch.zeros(1))
            for s, p in zip(strengths, powers)
        ]

    trials = explore(run, None, 1.0, GRID, steps=steps)
    return asked, sorted(round(np.log10(trial.strength)) for trial in trials)


@pytest.mark.parametrize(
    ("scores", "steps", "past"),
    [
        ({-3: 1.0}, 1, [[-4]]),
        ({-3: 1.0, -4: 2.0, -5: 3.0, -6: 2.0}, 1, [[-4], [-5], [-6]]),
        ({-3: 1.0, -4: 1.0}, 1, [[-4]]),  # no better is a plateau
        ({0: 1.0, 1: 2.0}, 1, [[1], [2]]),
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


@pytest.mark.parametrize("steps", [1, STEPS])
def test_both_steps_reach_as_far(steps) -> None:
    _, tried = explored({power: -float(power) for power in range(-9, 1)}, steps)
    assert min(tried) == -9
