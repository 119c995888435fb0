"""Choosing a form and a strength by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.calibration import link, temperatures
from regraft.heads.metrics import PROPER, higher_is_better, resampled, rounding
from regraft.heads.response import Response
from regraft.linear.products import one_torch_thread
from regraft.record import Candidate

__all__ = ["GRID", "STEPS", "WEAKEST", "Judge", "Trial", "candidates", "choose", "explore"]

#: Strengths that are tried when none are given, strongest first.
GRID: tuple[float, ...] = tuple(float(s) for s in np.logspace(0, -6, 10))
#: The grid is extended past an edge that scores best, but never beyond these.
STRONGEST, WEAKEST = 1e4, 1e-9
STEPS = 3
_MOST = 9  # strengths past an edge
_RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class Trial:
    """One cell of the search.

    Attributes:
        form, strength: what was fitted.
        score: mean of the metric over the folds where it is defined (over all rows where it is in none).
        standard_error: of that mean over folds, s/√k.
        fold_scores: of each of those folds.
        loss: negative log-likelihood at the calibrated temperature (regression: root mean squared error).
        temperature: T, fitted on the out-of-fold logits.
        out_of_fold: (N, C) logits.
        centre: where a refit may begin.
    """

    form: str
    strength: float
    score: float
    standard_error: float
    loss: float
    temperature: float
    out_of_fold: Tensor
    centre: Tensor | None = None
    fold_scores: tuple[float, ...] = ()


class Judge:
    """Scores out-of-fold logits; every row of positive weight counts once, whatever its weight.

    Args:
        metric: what to choose by.
        response: N rows of labels.
        folds: (N,).
        counted: (N,) bool: rows that are scored where they lie in a fold; others are in no fit.
        calibrate: fit a temperature; else T = 1.
    """

    def __init__(self, metric: str, response: Response, folds: Tensor, counted: Tensor, calibrate: bool) -> None:
        self.metric, self.calibrate = metric, calibrate
        self.kept = (counted & (folds >= 0)).nonzero().squeeze(1)
        if len(self.kept) == 0:
            raise SolverError("no labelled row lies in a fold", do="give folds that hold labelled rows")
        self.response = response.take(self.kept)
        among = folds[counted]
        known = response.take(counted).seen_elsewhere(among).take(among >= 0)
        #: what says how sure a fit may be: of a class that it never saw it cannot but be wrong
        self.known = known if bool(known.present.any()) else self.response
        kept_folds = folds[self.kept]
        self.tables = (kept_folds[None] == torch.unique(kept_folds)[:, None]).to(torch.float64).numpy()
        self.sign = 1.0 if higher_is_better(metric) else -1.0

    @one_torch_thread()
    def trials(
        self, form: str, strengths: Sequence[float], logits: Tensor, centres: Sequence[Tensor | None]
    ) -> list[Trial]:
        """Judge M sets of logits (M, N, C) at once."""
        rows = logits[:, self.kept]
        if not bool(torch.isfinite(rows).all()):
            raise SolverError(
                f"the {form} fits gave logits that are not finite", do="look for huge or non-finite features"
            )
        warm = temperatures(rows, self.known) if self.calibrate else torch.ones(len(rows), dtype=torch.float64)
        out = []
        for index, strength in enumerate(strengths):
            predicted = link(self.response.link, rows[index] / warm[index]).numpy()
            values = self._scores(predicted)
            error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            out.append(
                Trial(
                    form,
                    strength,
                    float(values.mean()),
                    error,
                    self._loss(predicted),
                    float(warm[index]),
                    logits[index],
                    centres[index],
                    tuple(values.tolist()),
                )
            )
        return out

    def error(self, trial: Trial) -> float:
        """The standard error of a trial's score: over folds; of one fold over resamples of its rows."""
        if not math.isnan(trial.standard_error):
            return trial.standard_error
        rows = len(self.kept)
        weights = np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), _RESAMPLES).astype(float)
        predicted = link(self.response.link, trial.out_of_fold[self.kept] / trial.temperature).numpy()
        values = resampled(self.metric, self._judged, predicted, weights)
        return float(np.nanstd(values, ddof=1)) if (~np.isnan(values)).sum() > 1 else math.inf

    @property
    def _judged(self) -> Response:
        """What the metric is of: where it is one of probabilities, of those labels alone that a fit can know."""
        return self.known if self.metric in PROPER else self.response

    def _scores(self, predicted: np.ndarray) -> np.ndarray:
        """Of each fold where the metric is defined, which depends on the labels alone; where none is, of all rows."""
        values = resampled(self.metric, self._judged, predicted, self.tables)
        values = values[~np.isnan(values)]
        if len(values) == 0:
            values = resampled(self.metric, self._judged, predicted, np.ones((1, len(self.kept))))
        if np.isnan(values).any():
            raise SolverError(
                f"{self.metric} is undefined on the rows that the folds hold out",
                expected="targets that vary, classes that both occur",
                do="choose another metric or give more rows",
            )
        return values

    def _loss(self, predicted: np.ndarray) -> float:
        name = "rmse" if self.response.kind == "regression" else "nll"
        return float(resampled(name, self.known, predicted, np.ones((1, len(self.kept))))[0])


def choose(trials: Sequence[Trial], sign: float, one_standard_error: bool = False) -> Trial:
    """The best trial: by score; equal scores, to 1e-12 of them, by lower loss, then by the stronger penalty.

    With ``one_standard_error``, the strongest penalty of the same form whose score is within one standard
    error of the best (Breiman et al., 1984).
    """
    top = max(sign * trial.score for trial in trials)
    tied = [trial for trial in trials if sign * trial.score >= top - rounding(top)]
    least = min(trial.loss for trial in tied)
    tied = [trial for trial in tied if trial.loss <= least + rounding(least)]
    best = max(tied, key=lambda trial: trial.strength)
    if not one_standard_error or math.isnan(best.standard_error):
        return best
    floor = sign * best.score - best.standard_error
    near = [trial for trial in trials if trial.form == best.form and sign * trial.score >= floor - rounding(floor)]
    return max(near, key=lambda trial: trial.strength)


def explore(
    run: Callable[[Sequence[float]], list[Trial]],
    strengths: Sequence[float] | None,
    sign: float,
    default: Sequence[float] = GRID,
    bounds: tuple[float, float] = (WEAKEST, STRONGEST),
    steps: int = STEPS,
    gain: float = 0.0,
) -> list[Trial]:
    """All trials of one form: a given grid, or the default one, extended within bounds while its edge scores best.

    It is extended by ``steps`` strengths at a time, nine in all at most, until none of these is better by more than
    ``gain``; with a gain the edge itself must be as much better than the others.
    """
    if strengths is not None:
        return run(sorted(strengths, reverse=True))
    grid = list(default)
    ratio = grid[0] / grid[1] if len(grid) > 1 else GRID[0] / GRID[1]
    trials = run(grid)
    for _ in range(_MOST // steps):
        best = choose(trials, sign).strength
        others = [sign * trial.score for trial in trials if trial.strength != best]
        if gain > 0 and others and max(sign * trial.score for trial in trials) <= max(others) + gain:
            break
        values = [trial.strength for trial in trials]
        if best == max(values):
            more = [best * ratio**k for k in range(1, steps + 1)]
        elif best == min(values):
            more = [best / ratio**k for k in range(1, steps + 1)]
        else:
            break
        more = [s for s in more if bounds[0] - rounding(bounds[0]) <= s <= bounds[1] + rounding(bounds[1])]
        if not more:
            break
        found = run(more)
        before = max(sign * trial.score for trial in trials)
        trials = trials + found
        if max(sign * trial.score for trial in found) <= before + max(gain, rounding(before)):
            break  # a plateau: its far end is no better
    return trials


def candidates(trials: Sequence[Trial], chosen: Trial) -> tuple[Candidate, ...]:
    """The trials as the Record keeps them, by form, strongest first."""
    order = {form: index for index, form in enumerate(dict.fromkeys(trial.form for trial in trials))}
    ranked = sorted(trials, key=lambda trial: (order[trial.form], -trial.strength))
    return tuple(Candidate(t.form, t.strength, t.score, t.standard_error, t is chosen) for t in ranked)
