"""Temperature calibration and reliability bins."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regraft.errors import DataError
from regraft.heads.losses import LOSSES
from regraft.heads.metrics import as_array, bin_of, check_calibrated, confidences
from regraft.heads.response import Link, Response

__all__ = ["link", "reliability", "temperature", "temperatures"]

#: Temperatures are kept within these bounds: logits that order the rows wrongly would send one to infinity.
BOUNDS = (1e-3, 1e3)


def link(name: Link, logits: Tensor) -> Tensor:
    """Probabilities of logits: softmax over the last dimension, sigmoid, or the logits themselves."""
    if name == "softmax":
        return torch.softmax(logits, -1)
    return torch.sigmoid(logits) if name == "sigmoid" else logits


def temperature(logits: Tensor, response: Response) -> float:
    """The T > 0 that minimises the negative log-likelihood of link(logits / T) (Guo et al., 2017), smoothed.

    With n labels, each is taken to hold with the chance (n + 1) / (n + 2) that Laplace's rule of succession gives one
    more label after n that were all right (Platt, 1999, smooths those of each class so); what is left of 1 is shared by
    the other classes that labels show, for a head may have ruled out those that none shows. The likelihood alone would
    send T to zero and every confidence to 1 where no row is wrong; so confidences lie about that chance (of two
    classes their mean, weighted by the margins, is it). Where many rows are wrong it hardly moves T.

    Args:
        logits: (N, C) of rows that the model did not see.
        response: their labels; rows and labels that are missing are left out. n counts rows, or for multilabel the
            labels that are there.

    Returns:
        T in [1e-3, 1e3]; 1.0 for regression and where the logits say nothing.
    """
    return float(temperatures(logits[None], response)[0])


def temperatures(logits: Tensor, response: Response) -> Tensor:
    """:func:`temperature` of M sets of logits (M, N, C) at once: (M,) float64.

    The likelihood is convex in β = 1/T; its root is bracketed and found by Newton's method.
    """
    sets = logits.shape[0]
    if response.kind == "regression":
        return torch.ones(sets, dtype=torch.float64)
    if tuple(logits.shape[1:]) != tuple(response.values.shape):
        raise DataError(f"logits have shape {tuple(logits.shape[1:])}", expected=f"{tuple(response.values.shape)}")
    there = response.present
    values, rows = response.values[there], logits[:, there].to(torch.float64)
    if not bool(torch.isfinite(rows).all()):
        raise DataError("logits hold NaN or infinities", do="look for NaN in the features")
    if response.kind == "multilabel":
        mask = torch.ones_like(values) if response.mask is None else response.mask[there].to(values)
        step, target = rows.reshape(sets, 1, -1), values.reshape(1, 1, -1)
        weights, loss, others = mask.reshape(1, -1).to(torch.float64), LOSSES["sigmoid"], torch.ones_like(target)
    else:
        step, target, loss = rows.transpose(1, 2).contiguous(), values.T[None], LOSSES["softmax"]
        weights, others = torch.ones(1, len(values), dtype=torch.float64), _shares(values)[None, :, None]
    doubt = 1 / (weights.sum() + 2)
    target = target * (1 - doubt) + (1 - target) * (doubt * others)
    low = torch.full((sets,), math.log(1 / BOUNDS[1]), dtype=torch.float64)
    high = torch.full((sets,), math.log(1 / BOUNDS[0]), dtype=torch.float64)
    log_beta = torch.zeros(sets, dtype=torch.float64)
    for _ in range(60):
        beta = log_beta.exp()
        first, second = loss.slope(step * beta[:, None, None], target, weights, step)
        low, high = torch.where(first < 0, log_beta, low), torch.where(first < 0, high, log_beta)
        newton = beta - first / second.clamp_min(1e-300)
        proposal = torch.where(newton > 0, newton.clamp_min(1e-300).log(), low)
        inside = (proposal > low) & (proposal < high)
        following = torch.where(inside, proposal, (low + high) / 2)
        done = (following - log_beta).abs().max() < 1e-10
        log_beta = following
        if bool(done):
            break
    moves = step if loss.separable else step - step[:, :1]  # what all classes share says nothing of them
    flat = (moves.square() * (weights > 0)[:, None]).sum((1, 2)) == 0
    return torch.where(flat, torch.ones_like(log_beta), (-log_beta).exp())


def _shares(values: Tensor) -> Tensor:
    """(C,) of a row's doubt that each class other than its own gets: the same for all that some of (n, C) labels
    show; for all where they show one alone."""
    shown = (values.sum(0) > 0).to(torch.float64)
    if float(shown.sum()) < 2:
        shown = torch.ones_like(shown)
    return shown / (shown.sum() - 1).clamp_min(1)


def reliability(probabilities: Any, response: Response, bins: int = 15) -> list[dict[str, float | int]]:
    """Data of a reliability diagram, as plain JSON values.

    Returns:
        One dict for each bin that holds rows: ``low``, ``high``, ``confidence`` (mean), ``accuracy``
        (mean) and ``count``. Their count-weighted mean gap is :func:`regraft.heads.ece`.

    Raises:
        DataError: regression, or probabilities that do not fit the labels.
    """
    if response.kind == "regression":
        raise DataError("regression has no reliability diagram", expected="class probabilities")
    check_calibrated(response, probabilities)
    _, confidence, hit = confidences(response, as_array(probabilities))
    member = bin_of(confidence, bins)
    rows: list[dict[str, float | int]] = []
    for b in range(bins):
        inside = member == b
        if inside.any():
            rows.append(
                {
                    "low": b / bins,
                    "high": (b + 1) / bins,
                    "confidence": float(confidence[inside].mean()),
                    "accuracy": float(hit[inside].mean()),
                    "count": int(inside.sum()),
                }
            )
    return rows
