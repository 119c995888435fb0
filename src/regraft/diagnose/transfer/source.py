"""Scores from what the source's own classifier says of the rows: NCE and LEEP."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.diagnose.transfer.estimate import Estimate, Resamples, estimated
from regraft.diagnose.transfer.labels import Labels, as_tensor
from regraft.errors import DataError

__all__ = ["checked_source", "leep", "nce"]

_OFF = 1e-3
_AT_MOST_ZERO = (-math.inf, 0.0)


def checked_source(source: Any, rows: int) -> Tensor:
    """``(N, S)`` float64 probabilities, rows scaled to sum to 1 exactly.

    Raises:
        DataError: another shape, NaN, a number below 0, or rows that do not sum to 1 within 1e-3 (logits do not).
    """
    found = as_tensor(source)
    if found.ndim != 2 or not found.is_floating_point() or len(found) != rows or found.shape[1] < 2:
        expected = f"({rows}, S) probabilities of S ≥ 2 source classes"
        got = f"shape {tuple(found.shape)} of {found.dtype}"
        raise DataError("the source's predictions", expected=expected, got=got)
    found = found.to(device="cpu", dtype=torch.float64)
    sums = found.sum(1)
    if not bool(torch.isfinite(found).all()) or bool((found < 0).any()) or bool(((sums - 1).abs() > _OFF).any()):
        expected = "probabilities, rows that sum to 1"
        got = f"sums from {float(sums.min()):.3g} to {float(sums.max()):.3g}, least number {float(found.min()):.3g}"
        raise DataError("the source's predictions", expected=expected, got=got, do="take the softmax of the logits")
    return found / sums[:, None]


def leep(source: Tensor, labels: Labels, resamples: Resamples) -> Estimate:
    """LEEP = (1/N) Σ_i log Σ_z P(y_i|z) θ_i(z), Nguyen et al. (2020).

    θ_i(z) is the source's probability of its class z for row i, P(y, z) = (1/N) Σ_{i: y_i = y} θ_i(z) the empirical
    joint distribution and P(y|z) = P(y, z)/P(z): the log-likelihood of the classifier that draws a source class from
    θ_i and a target class given it. Between −H(Y), of a source that tells nothing, and 0 (by Jensen's inequality it is
    at least −H(Y|Z) of that joint distribution). Larger is better. Not symmetric: the source comes as probabilities,
    the target as labels. The interval moves P(y|z) to first order. O(N S).

    Args:
        source: ``(N, S)`` of :func:`checked_source`.
        labels: classes of the target.
        resamples: of the rows.

    Raises:
        DataError: labels that are numbers.
    """
    began = time.process_time()
    codes, rows = labels.classes("LEEP"), labels.rows
    joint = labels.values.T @ source
    marginal = source.sum(0)
    conditional = joint / marginal.clamp_min(torch.finfo(torch.float64).tiny)
    expected = (source * conditional[codes]).sum(1)
    each = expected.log()
    value = float(each.mean())
    # by P(y|z): Σ_i ∂ log e_i/∂w_j = Σ_z θ_jz/B_z (G_{y_j,z} − Σ_y P(y|z) G_yz), G_yz = Σ_{i: y_i = y} θ_iz/e_i
    weighed = torch.zeros_like(joint).index_add_(0, codes, source / expected[:, None])
    change = weighed - (conditional * weighed).sum(0)
    shares = source / marginal.clamp_min(torch.finfo(torch.float64).tiny)
    influence = (each - value + (shares * change[codes]).sum(1)) / rows
    meaning = f"Log likelihood a row of the labels given the source's probabilities: at most 0, {_chance(labels)}."
    return estimated("leep", value, influence, resamples, meaning, began, within=_AT_MOST_ZERO)


def nce(source_labels: Any, labels: Labels, resamples: Resamples) -> Estimate:
    """NCE = −H(Y|Z) = Σ_{y,z} P(y, z) log P(y|z), Tran, Nguyen & Hassner (2019); P by counting.

    Z are hard source labels of the rows (given, or the source's most probable classes), Y those of the target. Between
    −H(Y), of a Z that is independent of Y, and 0, where every source class holds rows of one target class. Larger is
    better. Not symmetric: −H(Z|Y) is another number. Few rows a source class flatter it.
    O(N).

    Args:
        source_labels: ``(N,)`` integers.
        labels: classes of the target.
        resamples: of the rows.

    Raises:
        DataError: labels that are numbers, or source labels that are not one integer a row.
    """
    began = time.process_time()
    codes = labels.classes("NCE")
    array = np.asarray(source_labels)
    if array.shape != (labels.rows,) or array.dtype.kind not in "biu":
        got = f"shape {array.shape} of {array.dtype}"
        raise DataError("source labels", expected=f"({labels.rows},) integers", got=got)
    which = torch.from_numpy(np.unique(array, return_inverse=True)[1].astype(np.int64))
    joint = torch.zeros(labels.outputs, int(which.max()) + 1, dtype=torch.float64)
    joint.index_put_((codes, which), torch.ones(labels.rows, dtype=torch.float64), accumulate=True)
    each = (joint[codes, which] / joint.sum(0)[which]).log()
    value = float(each.mean())
    # N · NCE = Σ φ(n_yz) − Σ φ(n_z) with φ(n) = n log n, so a row's share is a difference of two φ
    alone, beside = joint[codes, which], joint.sum(0)[which]
    share = _phi(alone) - _phi(alone - 1) - _phi(beside) + _phi(beside - 1)
    influence = (share - value) / labels.rows
    meaning = f"Minus the entropy of the labels given the source's, in nats: at most 0, {_chance(labels)}."
    return estimated("nce", value, influence, resamples, meaning, began, within=_AT_MOST_ZERO)


def _phi(counts: Tensor) -> Tensor:
    return torch.special.xlogy(counts, counts)


def _chance(labels: Labels) -> str:
    shares = labels.counts / labels.rows
    return f"{float((shares * shares.log()).sum()):.3g} where the source tells nothing"
