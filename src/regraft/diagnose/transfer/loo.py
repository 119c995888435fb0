"""Every row predicted from all others: ridge in closed form, nearest neighbours."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Estimate, Resamples, estimated, group_codes
from regraft.diagnose.transfer.labels import Labels
from regraft.errors import DataError
from regraft.heads.intervals import wilson
from regraft.linear.products import one_blas_thread

__all__ = ["STRENGTHS", "LeftOut", "left_out", "loo_accuracy", "loo_r2", "neighbour_accuracy"]

STRENGTHS: tuple[float, ...] = tuple(10.0 ** (-k / 2) for k in range(13))
"""Ridge penalties in units of the features' total scatter, from 1 to 1e-6."""
_BLOCK = 2048
_NO_WIDTH = 1e-12
_TIE = 1e-9  # of outputs, which are shares of 1
_PAIRS, _PAIRED_ROWS = 2e8, 4000


@dataclass(frozen=True, eq=False)
class Pairs:
    """Leave-one-out on the rows without row j, for every j, ``(N,)`` each.

    Attributes:
        wrong: Σ_{i≠j} ‖y_i − ŷ_{−ij}‖².
        hits: Σ_{i≠j} of what the margin of row i, at the shares of all rows, says of its hit, with row j less without
            it, see :func:`_soft`; 0 of numbers.
    """

    wrong: Tensor
    hits: Tensor


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Ridge without each row (or group), at every strength.

    Attributes:
        strengths: λ / tr(F_cᵀF_c) tried.
        errors: ``(M,)`` mean over rows of ‖y_i − ŷ_{−i}‖² at each.
        best: index of the least error.
        predicted: ``(N, C)`` ŷ_{−i} there.
        means: ``(N, C)`` ȳ_{−i}, of the labels that ŷ_{−i} was fitted to: of classes their shares.
        pairs: what it all is without a further row; ``None`` of groups, beyond 4,000 rows
            and where N² C is beyond 2e8: there intervals take the fit as it is.
        rivals: ``(N, K)`` errors of the rows, and ``(N, K)`` their :attr:`Pairs.wrong`, at the other strengths that the
            rows cannot tell from the best, see :func:`_rivals`; none where that is dear.
        seconds: CPU-seconds, with those of the decomposition.
    """

    strengths: tuple[float, ...]
    errors: Tensor
    best: int
    predicted: Tensor
    means: Tensor
    pairs: Pairs | None
    rivals: tuple[Tensor, Tensor]
    seconds: float


@one_blas_thread()
def left_out(
    decomposition: Decomposition,
    labels: Labels,
    groups: Sequence[Any] | None = None,
    *,
    strengths: Sequence[float] = STRENGTHS,
) -> LeftOut:
    """Ridge regression of one-hot classes or numbers with a free intercept, without refitting.

    minimise ‖Y − F W − 1bᵀ‖² + λ‖W‖²; with P as in :mod:`regraft.diagnose.transfer.decomposition` the residuals of
    rows G under the fit without them are P_GG⁻¹ (P Y)_G, for a single row (P Y)_i / P_ii (Allen's PRESS, 1974;
    Rasmussen & Williams 2006, Eq. 5.12 in the dual). O(N r C) a strength; with groups O(N r max|G|) beside it, without
    them once O(N² (r + C)), for the intervals.

    Raises:
        DataError: strengths not above 0, or groups that do not fit.
    """
    began = time.process_time()
    levels = tuple(float(x) for x in strengths)
    if not levels or not all(np.isfinite(x) and x > 0 for x in levels):
        raise DataError("the strengths of ridge", expected="finite numbers above zero", got=str(levels)[:60])
    members = None
    if groups is not None:
        codes = torch.from_numpy(group_codes(groups, labels.rows))
        members = [(codes == code).nonzero()[:, 0] for code in range(int(codes.max()) + 1)]
    scale = float(decomposition.centred.square().sum())
    found = [_without(decomposition, labels.values, level * scale, members) for level in levels]
    errors = torch.stack([off.square().sum(1).mean() for off in found])
    best = int(errors.argmin())
    pairs, near = None, list[int]()
    if members is None and labels.rows <= _PAIRED_ROWS and labels.rows**2 * labels.outputs <= _PAIRS:
        pairs = _pairs(decomposition, labels, levels[best] * scale)
        near = _rivals(torch.stack([off.square().sum(1) for off in found], 1), best)
        if labels.rows**2 * labels.outputs * len(near) > _PAIRS:
            near = []
    wrong = [found[m].square().sum(1) for m in near]
    without = [_pairs(decomposition, labels, levels[m] * scale).wrong for m in near]
    rivals = _columns(wrong, labels.rows), _columns(without, labels.rows)
    seconds = time.process_time() - began + decomposition.seconds
    means = _means_without(labels.values, members)
    return LeftOut(levels, errors, best, labels.values - found[best], means, pairs, rivals, seconds)


def _rivals(errors: Tensor, best: int) -> list[int]:
    """Strengths whose errors of rows ``(N, M)`` are on average above the best's by two standard errors at most."""
    behind = errors - errors[:, [best]]
    near = behind.mean(0) <= 2 * behind.std(0) / len(errors) ** 0.5
    return [m for m in range(errors.shape[1]) if m != best and bool(near[m])]


def _columns(parts: list[Tensor], rows: int) -> Tensor:
    return torch.stack(parts, 1) if parts else torch.zeros(rows, 0, dtype=torch.float64)


def _without(decomposition: Decomposition, values: Tensor, ridge: float, members: list[Tensor] | None) -> Tensor:
    """y_i − ŷ_{−i}, (N, C)."""
    residuals = decomposition.residuals(ridge, values)
    if members is None:
        return residuals / decomposition.residual_diagonal(ridge)[:, None]
    kept = (decomposition.s.square() / (decomposition.s.square() + ridge)).sqrt()
    turned, ones = decomposition.u * kept, decomposition.ones(ridge)
    out = torch.empty_like(residuals)
    for rows in members:
        part = turned[rows]
        system = torch.eye(len(rows), dtype=torch.float64) - part @ part.T - ones[rows] @ ones[rows].T / ones.sum()
        out[rows] = torch.linalg.solve(system, residuals[rows])
    return out


def _means_without(values: Tensor, members: list[Tensor] | None) -> Tensor:
    """ȳ_{−i}, (N, C)."""
    total, rows = values.sum(0), len(values)
    if members is None:
        return (total - values) / (rows - 1)
    out = torch.empty_like(values)
    for own in members:
        out[own] = (total - values[own].sum(0)) / (rows - len(own))
    return out


def _pairs(decomposition: Decomposition, labels: Labels, ridge: float) -> Pairs:
    """Taking row j out of P leaves P − P_·j P_j·/P_jj (it is a Schur complement), from which all else follows."""
    operator = decomposition.residuals(ridge, torch.eye(labels.rows, dtype=torch.float64))
    fitted, diagonal = operator @ labels.values, operator.diagonal()
    wrong, hits = torch.empty(labels.rows, dtype=torch.float64), torch.zeros(labels.rows, dtype=torch.float64)
    codes = labels.codes
    about, rows = labels.values - labels.values.mean(0), labels.rows
    before = labels.values - fitted / diagonal[:, None] + about / (rows - 1)  # at the shares of all rows, as below
    scale = 1.0 if codes is None else _bandwidth(_margins(before, codes))
    soft = None if codes is None else _soft(_margins(before, codes), scale)
    for j in range(labels.rows):
        column = operator[:, j] / diagonal[j]
        left = diagonal - column * operator[:, j]
        left[j] = 1.0
        off = (fitted - column[:, None] * fitted[j]) / left[:, None]
        off[j] = 0.0
        wrong[j] = off.square().sum()
        if codes is not None and soft is not None:
            without = labels.values - off + (about + about[j]) / (rows - 2)
            change = soft - _soft(_margins(without, codes), scale)
            hits[j] = change.sum() - change[j]
    return Pairs(wrong, hits)


def loo_accuracy(found: LeftOut, labels: Labels, resamples: Resamples) -> Estimate:
    """The share of rows whose largest ŷ_{−i} + ȳ − ȳ_{−i} is their class, at the strength of least left-out error.

    Without row i its own class is rarer by one, and the intercept ȳ_{−i} of ŷ_{−i} says so: of balanced classes and
    features that say nothing any class but the row's own would be the largest. So only what the features say is left
    out, and the classes have their shares ȳ of all rows, as for a new row; without row i alone ȳ − ȳ_{−i} is
    (y_i − ȳ)/(N − 1). Larger is better; between 0 and 1. The interval is that of a mean over rows. A tie of k classes
    (to 1e-9) is 1/k of a hit.

    Raises:
        DataError: labels that are numbers.
    """
    began = time.process_time()
    hits = _shared_hits(found.predicted + labels.values.mean(0) - found.means, labels.classes("accuracy"))
    meaning = "Share of rows that ridge on all other rows puts into their class: from 0 to 1."
    lent = None if found.pairs is None else found.pairs.hits
    return _mean("loo-accuracy", hits, lent, resamples, meaning, began, found.seconds)


def loo_r2(found: LeftOut, labels: Labels, resamples: Resamples) -> Estimate:
    """1 − Σ_i ‖y_i − ŷ_{−i}‖² / Σ_i ‖y_i − ȳ‖² at the strength of least left-out error.

    Larger is better; at most 1, below 0 where the rows' mean predicts better (and 1 − (N/(N−1))² at infinite λ, which
    features that say little often come to: the upper end of the interval is that of the best strength of each
    resample, among those that the rows cannot tell apart). Of classes y are one-hot rows.
    """
    began = time.process_time()
    spread = (labels.values - labels.values.mean(0)).square().sum(1)
    wrong = (labels.values - found.predicted).square().sum(1)
    value = 1 - float(wrong.sum() / spread.sum())
    influence = _influence(wrong, None if found.pairs is None else found.pairs.wrong, spread)
    meaning = "Share of the labels' variance that ridge on all other rows explains: at most 1."
    within = (-math.inf, 1.0)
    estimate = estimated("loo-r2", value, influence, resamples, meaning, began, found.seconds, within)
    rivals = list(zip(*(part.T for part in found.rivals)))
    if not rivals:
        return estimate
    # other rows might have chosen another strength: each resample takes its best
    moved = resamples.spread(torch.stack([_influence(off, pairs, spread) for off, pairs in rivals], 1))
    levels = 1 - found.rivals[0].sum(0) / spread.sum()
    best = torch.maximum(resamples.spread(influence), (levels - value + moved).amax(1))
    _, high = resamples.interval(value, best.numpy())
    return replace(estimate, high=min(max(high, estimate.high), within[1]))


def _influence(wrong: Tensor, pairs: Tensor | None, spread: Tensor) -> Tensor:
    """What each row adds to R², ``(N,)``, from the rows' errors, :attr:`Pairs.wrong` and (y_i − ȳ)²."""
    ratio, rows = wrong.sum() / spread.sum(), len(wrong)
    alone = (ratio * spread - wrong) / spread.sum()
    if pairs is None:
        return alone
    left = spread.sum() - spread * rows / (rows - 1)
    # without the one row whose label differs there is no variance to explain
    return torch.where(left <= 1e-9 * spread.sum(), alone, (pairs / left - ratio) * (rows - 1) / rows)


@one_blas_thread()
def neighbour_accuracy(
    decomposition: Decomposition,
    labels: Labels,
    resamples: Resamples,
    groups: Sequence[Any] | None = None,
    *,
    neighbours: int = 5,
) -> Estimate:
    """The share of rows whose class is the most frequent among their nearest other rows, by cosine of the raw features.

    Larger is better; between 0 and 1. Rows of the same group are no neighbours. Ties go to the class of larger summed
    cosine. O(N² r).

    Raises:
        DataError: labels that are numbers, or fewer other rows than neighbours.
    """
    began = time.process_time()
    codes = labels.classes("accuracy")
    member = torch.from_numpy(group_codes(groups, labels.rows))
    most = int(torch.bincount(member).max())
    if not 1 <= neighbours <= labels.rows - most:
        raise DataError("nearest neighbours", expected=f"1 to {labels.rows - most}", got=f"{neighbours}")
    rows = decomposition.u * decomposition.s
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    rows = rows / norms.where(norms > 0, 1)
    hits, lost = [], torch.zeros(labels.rows, dtype=torch.float64)
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        alike = torch.from_numpy(rows[part].numpy() @ rows.numpy().T)
        alike[member[part][:, None] == member[None, :]] = -2.0
        near, which = alike.topk(min(neighbours + 1, alike.shape[1]), dim=1)
        votes = (1 + near / (4 * neighbours)) * (near > -2)  # the sum of cosines only breaks ties
        own = codes[part]
        votes_of = _voted(votes[:, :neighbours], codes[which[:, :neighbours]], labels.outputs)
        margins = _margins(votes_of, own)
        hits.append(margins >= 0)
        for k in range(neighbours):  # without its k-th neighbour a row has the next one
            kept = [m for m in range(votes.shape[1]) if m != k]
            other = _margins(_voted(votes[:, kept], codes[which[:, kept]], labels.outputs), own)
            change = _soft(margins, 1.0) - _soft(other, 1.0)
            lost.index_add_(0, which[:, k], change)
    meaning = f"Share of rows in the class of most of their {neighbours} nearest other rows: from 0 to 1."
    found = torch.cat(hits).to(torch.float64)
    return _mean("neighbour-accuracy", found, lost, resamples, meaning, began, decomposition.seconds)


def _voted(votes: Tensor, classes: Tensor, outputs: int) -> Tensor:
    return torch.zeros(len(votes), outputs, dtype=torch.float64).scatter_add_(1, classes, votes)


def _margins(outputs: Tensor, codes: Tensor) -> Tensor:
    """By how much the own class leads the best other one, ``(n,)``; of a tie 0 if it comes first, else just below."""
    own = outputs.gather(1, codes[:, None])[:, 0]
    others = outputs.scatter(1, codes[:, None], -torch.inf)
    best, first = others.max(1)
    return torch.where((own == best) & (first < codes), -torch.finfo(torch.float64).tiny, own - best)


def _shared_hits(outputs: Tensor, codes: Tensor) -> Tensor:
    """1 where the own class has the largest output, 1/k where it shares it with k − 1 others, else 0, ``(n,)``."""
    largest = outputs >= outputs.amax(1, keepdim=True) - _TIE
    return largest.gather(1, codes[:, None])[:, 0] / largest.sum(1).to(torch.float64)


def _bandwidth(margins: Tensor) -> float:
    """Silverman's (1986), for the density of margins at 0."""
    return max(1.06 * float(margins.std()) * len(margins) ** -0.2, torch.finfo(torch.float64).tiny)


def _soft(margins: Tensor, scale: float) -> Tensor:
    """Φ(margin / scale): the share of hits as a smooth function of margins.

    A row tips few others, at random, over their boundary; the jackknife of the hits themselves takes that chance for
    influence and is two to four times too wide. What counts is how far a row moves the margins where they are near 0.
    """
    return torch.special.ndtr(margins / scale)


def _mean(
    name: str, hits: Tensor, lent: Tensor | None, resamples: Resamples, meaning: str, began: float, shared: float
) -> Estimate:
    """A share of hits; ``lent`` are the hits of others that are owed to a row, ``(N,)``.

    Where every resample has as many hits, Wilson's interval of as many rows (groups) stands in, unless it is the
    narrower one: twelve rows without an error do not exclude errors.
    """
    value, rows = float(hits.mean()), len(hits)
    influence = (hits - value + (0.0 if lent is None else lent)) / rows
    found = estimated(name, value, influence, resamples, meaning, began, shared, within=(0.0, 1.0))
    if float(resamples.spread((hits - value) / rows).abs().max()) > _NO_WIDTH:
        return found
    low, high = wilson(value * resamples.units, resamples.units)
    return replace(found, low=min(low, found.low), high=max(high, found.high))
