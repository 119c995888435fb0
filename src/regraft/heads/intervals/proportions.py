"""Closed intervals of proportions: Wilson's, of their mean, and of differences between two on the same rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from regraft.errors import DataError
from regraft.heads.response import Response

__all__ = ["NORMAL", "bonett_price", "mean_of_differences", "mean_of_proportions", "parts_of", "wilson", "wilson_of"]

NORMAL = 1.959963984540054
"""The normal distribution's 97.5 % point."""


def wilson(hits: float, rows: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson, 1927).

    (p + z²/2n ± z sqrt(p(1−p)/n + z²/4n²)) / (1 + z²/n), with p = hits/rows and z = 1.96.
    """
    if rows < 1:
        raise DataError("an interval needs rows", got="0 rows")
    if not -1e-9 * rows <= hits <= (1 + 1e-9) * rows:  # a share times rows is rounded
        raise DataError("hits are some of the rows", expected=f"0 to {rows}", got=f"{hits}")
    return wilson_of(hits / rows, rows, NORMAL)


def wilson_of(p: float, rows: float, z: float) -> tuple[float, float]:
    """Wilson's interval of a share p of so many rows at the quantile z, such as Student's in the place of 1.96."""
    z2 = z * z / rows
    middle = (p + z2 / 2) / (1 + z2)
    half = z * math.sqrt(p * (1 - p) / rows + z2 / (4 * rows)) / (1 + z2)
    return min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half))  # p is inside but for rounding


def mean_of_proportions(hits: npt.ArrayLike, rows: npt.ArrayLike) -> tuple[float, float]:
    """95 % interval of the mean of K independent proportions p_k, each with its Wilson interval (l_k, u_k).

    low = p̄ − sqrt(Σ (p_k − l_k)²) / K, high = p̄ + sqrt(Σ (u_k − p_k)²) / K: variances recovered from the limits of
    the parts (Zou and Donner, *Statistics in Medicine* 27, 2008). It keeps its width where a p_k is 0 or 1, of which a
    bootstrap of few rows sees no variation; over many classes of few rows it is too narrow, for each l_k and u_k is
    shifted towards one half.

    Args:
        hits: K counts of what is right.
        rows: K counts of all, each at least 1.
    """
    parts = np.array([(hit / of, *wilson(hit, of)) for hit, of in zip(np.asarray(hits), np.asarray(rows), strict=True)])
    share, low, high = parts.T
    below, above = np.linalg.norm(share - low), np.linalg.norm(high - share)
    return max(0.0, share.mean() - below / len(share)), min(1.0, share.mean() + above / len(share))


def bonett_price(second: float, first: float, rows: int) -> tuple[float, float]:
    """The interval of :func:`regraft.heads.paired_difference`, of so many rows that one alone has right."""
    n = rows + 2
    p, q = (second + 1) / n, (first + 1) / n
    half = NORMAL * math.sqrt((p + q - (p - q) ** 2) / n)
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def mean_of_differences(second: npt.ArrayLike, first: npt.ArrayLike, rows: npt.ArrayLike) -> tuple[float, float]:
    """95 % interval of the mean of K independent differences d_k = (b_k − c_k) / n_k of proportions of the same rows,
    each with the interval (l_k, u_k) of :func:`bonett_price`.

    low = d̄ − sqrt(Σ (d_k − l_k)²) / K, high = d̄ + sqrt(Σ (u_k − d_k)²) / K, as :func:`mean_of_proportions`.

    Args:
        second, first: K counts b and c of the rows that one alone has right.
        rows: K counts of all, each at least 1.
    """
    counts = zip(np.asarray(second), np.asarray(first), np.asarray(rows), strict=True)
    found, low, high = np.array([((b - c) / of, *bonett_price(b, c, of)) for b, c, of in counts]).T
    middle, below, above = map(float, (found.mean(), np.linalg.norm(found - low), np.linalg.norm(high - found)))
    return max(-1.0, middle - below / len(found)), min(1.0, middle + above / len(found))


def parts_of(
    response: Response, values: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of the K proportions that balanced accuracy is the mean of, which rows each is a share of, and which of these are
    right, (N, K) each: of classes the rows of each that occurs; of each label that has both values its ones and its
    zeros, 2K, each row a part of several.

    Args:
        response: N labelled rows, classes or several labels.
        values: (N, C) probabilities.
    """
    truth = response.values.numpy() > 0.5
    if response.codes is not None:
        of = truth[:, truth.any(0)]
        return of, of & (values.argmax(1) == response.codes.numpy())[:, None]
    known = np.ones(truth.shape, bool) if response.mask is None else response.mask.numpy()
    ones, zeros, right = known & truth, known & ~truth, (values > 0.5) == truth
    both = ones.any(0) & zeros.any(0)
    of = np.concatenate([ones[:, both], zeros[:, both]], 1)
    return of, of & np.tile(right[:, both], 2)
