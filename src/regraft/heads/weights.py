"""Class and sample weights as one number a row, or a row and output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.metrics import as_array
from regraft.heads.response import Response
from regraft.linear.checks import as_tensor
from regraft.wording import some

__all__ = ["ClassWeight", "class_weights", "in_spreads", "moments", "row_weights", "sample_weights", "succeeding"]

ClassWeight = None | Literal["balanced"] | Mapping[str, float]


def sample_weights(response: Response, sample_weight: Any) -> Tensor:
    """(N,) float64: ones, or the given weights checked; zero for rows without any label.

    Raises:
        SolverError: no numbers, negative, not finite, not one a row, or all zero.
    """
    weights = torch.ones(len(response), dtype=torch.float64)
    if sample_weight is not None:
        try:
            weights = as_tensor(as_array(sample_weight)).clone()
        except (TypeError, ValueError):
            raise SolverError(f"sample weights are {sample_weight!r:.60}", expected="a number for each row") from None
        if tuple(weights.shape) != (len(response),):
            raise SolverError(f"sample weights have shape {tuple(weights.shape)}", expected=f"({len(response)},)")
        if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
            raise SolverError(
                "sample weights hold negative or non-finite numbers", expected="zero or more, at least one above"
            )
    weights[~response.present] = 0
    # only their ratios matter; sums of huge ones would overflow, and tiny ones vanish beside what guards divisions
    largest = float(weights.max()) if len(weights) else 0.0
    if not 1e-100 < largest < 1e100 and largest > 0:
        weights = weights / largest
    if not bool((weights > 0).any()):
        raise SolverError("no labelled row has a weight above zero", do="give some row a positive sample weight")
    return weights


def row_weights(response: Response, class_weight: ClassWeight, rows: Tensor) -> Tensor:
    """Sample weights times class weights: (N, 1), or (N, C) where outputs differ (missing labels, multilabel).

    Classes are counted over the rows of positive weight (:func:`class_weights`).

    Raises:
        SolverError: class weights for regression, an unknown class, a negative weight.
    """
    columns = response.kind in ("multilabel", "regression")
    weights = rows[:, None]
    if columns and response.mask is not None:
        weights = weights * response.mask.to(torch.float64)
    if class_weight is None:
        return weights
    for_ones, for_zeros = class_weights(response, class_weight, weights > 0)
    if columns:
        return weights * torch.where(response.values > 0.5, for_ones, for_zeros)
    return weights * (response.values @ for_ones)[:, None]


def class_weights(
    response: Response, class_weight: Literal["balanced"] | Mapping[str, float], there: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights of each output's ones and of its zeros: (C,) float64 each; zeros weigh less or more in multilabel
    columns alone.

    ``"balanced"`` gives class c the weight n / (C · n_c), of n counted rows (pixels) and the C classes that occur in
    them, or, for each multilabel column, n / (2 n_1) to its ones and n / (2 n_0) to its zeros. A mapping gives weights
    by class name; for a multilabel column the weight of its ones. Classes that are not named weigh 1.

    Args:
        response: labels.
        class_weight: see above.
        there: (N, 1) or (N, C), what is counted.

    Raises:
        SolverError: class weights for regression, an unknown class, a negative weight.
    """
    if response.kind == "regression":
        raise SolverError("class weights do not fit regression", do="use sample weights")
    if class_weight != "balanced" and not isinstance(class_weight, Mapping):
        raise SolverError(f"class weight is {class_weight!r}", expected="'balanced' or a mapping from class to weight")
    if not isinstance(class_weight, str):
        named = _named(response, class_weight)
        return named, torch.ones_like(named)
    there = there.to(torch.float64).expand_as(response.values)
    ones = (there * response.values).sum(0)
    if response.kind != "multilabel":
        return ones.sum() / ((ones > 0).sum() * ones.clamp_min(1)), torch.ones_like(ones)
    total, zeros = there.sum(0), (there * (1 - response.values)).sum(0)
    return total / (2 * ones.clamp_min(1)), total / (2 * zeros.clamp_min(1))


def moments(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation of each column, ``(C,)`` each: what brings numbers to one unit.

    Args:
        values: (N, C), finite.
        weights: (N, 1) or (N, C), zero where a value does not count.

    Returns:
        the mean, 0 where nothing counts, and the deviation, 1 where all that counts is one number.
    """
    there = (weights > 0).expand_as(values)
    low, high = values.where(there, torch.inf).amin(0), values.where(there, -torch.inf).amax(0)
    share = weights / weights.sum(0).clamp_min(1e-300)
    mean = (share * values).sum(0)
    # a mean of equal numbers is rounded, and its distance from them would be no spread
    mean = torch.where(low == high, low, mean)
    spread = (share * (values - mean).square()).sum(0).sqrt()
    return mean, torch.where(spread > 0, spread, torch.ones_like(spread))


def succeeding(labels: Tensor, weights: Tensor) -> Tensor:
    """(…, N) labels, and where the n of positive weight are all alike, k of them ones, (k + 1) / (n + 2) instead.

    An intercept that is free would go to infinity there: it ends at the log odds of what Laplace's rule of succession
    gives one more row, and no feature is read.
    """
    there = (weights > 0).to(labels)
    rows, ones = there.sum(-1, keepdim=True), (there * labels).sum(-1, keepdim=True)
    return torch.where((ones == 0) | (ones == rows), (ones + 1) / (rows + 2), labels)


def in_spreads(response: Response, weights: Tensor) -> tuple[Response, Tensor]:
    """Numbers in units of their weighted spread, so that one penalty of all outputs means the same for each, and (C,)
    what brings them back; other labels as they are, and ones."""
    if response.kind != "regression":
        return response, torch.ones(response.n_outputs, dtype=torch.float64)
    spread = moments(response.values, weights)[1]
    return replace(response, values=response.values / spread), spread


def _named(response: Response, class_weight: Mapping[str, float]) -> Tensor:
    unknown = [name for name in class_weight if str(name) not in response.classes]
    if unknown:
        raise SolverError(
            f"class weights name {unknown[0]!r}", expected=f"one of {some([*map(repr, response.classes)], 10)}"
        )
    given = {str(name): float(value) for name, value in class_weight.items()}
    found = torch.tensor([given.get(name, 1.0) for name in response.classes], dtype=torch.float64)
    if not bool(torch.isfinite(found).all()) or bool((found < 0).any()):
        raise SolverError("class weights hold negative or non-finite numbers", expected="zero or more")
    return found
