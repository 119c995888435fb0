"""Metrics on probabilities (predictions, for regression), each for many row weightings at once.

Every metric is computed for a (B, N) table of row weights: ones give the point estimate, bootstrap
counts give B resamples in a few matrix products. Missing labels are left out. A metric that a
resample leaves undefined is NaN there; :func:`score` refuses to return one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from regraft.errors import DataError
from regraft.heads.response import Kind, Response

__all__ = [
    "METRICS",
    "NINETY",
    "PROPER",
    "WITH_SPREAD",
    "area_under_roc",
    "as_array",
    "bin_of",
    "calibration_gaps",
    "check_calibrated",
    "check_predictions",
    "confidences",
    "confusion",
    "default_metric",
    "defined",
    "ece",
    "fitting",
    "higher_is_better",
    "nll",
    "resampled",
    "rounding",
    "score",
    "uninformed",
]

#: Metrics that a user may choose by.
METRICS: tuple[str, ...] = ("accuracy", "balanced-accuracy", "f1", "roc-auc", "map", "miou", "r2", "rmse")
#: Scores of the probabilities themselves.
PROPER: tuple[str, ...] = ("nll", "ece", "brier")
#: Scores of numbers predicted with a deviation each: predictions ``(N, 2, C)``, means and deviations.
WITH_SPREAD: tuple[str, ...] = ("coverage-90", "gaussian-nll")
_LOWER = ("rmse", "nll", "ece", "brier", "gaussian-nll")
_REGRESSION = ("r2", "rmse")
_SEGMENTATION = ("miou", "accuracy", "balanced-accuracy", "f1")
_TINY = 1e-15
_CANCELLED = 1e-6  # of a sum of squares: what is left below it after subtracting is not known well
NINETY = 1.6448536269514722
"""Of a normal distribution 90 % lie within so many deviations of the mean."""

Array = np.ndarray[Any, Any]


def default_metric(kind: Kind) -> str:
    """``map`` for multilabel, ``r2`` for regression, ``miou`` for segmentation, else ``accuracy``."""
    return {"multilabel": "map", "regression": "r2", "segmentation": "miou"}.get(kind, "accuracy")


def fitting(kind: Kind) -> tuple[str, ...]:
    """The metrics that a kind of labels has."""
    if kind == "segmentation":
        return _SEGMENTATION
    return tuple(m for m in METRICS + PROPER if (m in _REGRESSION) == (kind == "regression"))


def higher_is_better(metric: str) -> bool:
    """False for errors (``rmse``) and for ``nll``, ``ece``, ``brier``, ``gaussian-nll``."""
    if metric not in METRICS + PROPER + WITH_SPREAD:
        raise DataError(f"{metric!r} is no metric", expected=", ".join(METRICS + PROPER + WITH_SPREAD))
    return metric not in _LOWER


def rounding(value: float) -> float:
    """By how much a number, such as a score, may differ and be the same: 10⁻¹² of it, for errors have the unit of their
    targets."""
    return 1e-12 * abs(value)


def uninformed(metric: str, response: Response) -> Array:
    """Predictions that a metric takes and that say nothing: every class alike, else zeros."""
    shape = response.predicted_shape
    return np.full(shape, 1 / shape[1] if metric in _OF_PROBABILITIES else 0.0)


def defined(metric: str, response: Response) -> bool:
    """Whether a metric can be told on these rows: that hangs on their labels alone."""
    try:
        score(metric, response, uninformed(metric, response))
    except DataError:
        return False
    return True


def score(metric: str, response: Response, probabilities: Any) -> float:
    """One metric on the rows that have labels.

    ``accuracy``, ``balanced-accuracy`` (mean recall of the classes that occur), ``f1`` (macro),
    ``roc-auc`` (one class against the rest, macro over classes with both kinds of rows), ``map`` (mean
    average precision; binary: of the second class), ``miou`` (mean over classes of the intersection of truth and
    prediction divided by their union, the Jaccard index; a class in neither is left out of the mean, one that is
    predicted alone counts as 0; a label that no row has is left out in either case), ``r2`` and ``rmse`` (mean over
    outputs), ``nll``, ``ece``, ``brier``. Of segmentation the rows are images and all their labelled pixels are counted
    together, whatever image they are of (``accuracy`` is that of pixels). For ``multilabel`` they are means over
    columns (``accuracy``, ``nll``, ``brier``, ``ece``: over labels), a probability above ½ counting as a predicted
    label.

    Args:
        metric: a name of :data:`METRICS`, :data:`PROPER` or :data:`WITH_SPREAD`.
        response: N rows of labels.
        probabilities: (N, C); for regression the predictions, of :data:`WITH_SPREAD` (N, 2, C) with their deviations;
            for segmentation (N, C, C) pixels by class and predicted class.

    Raises:
        DataError: the metric does not fit the kind of labels, or these rows leave it undefined.
    """
    value = float(resampled(metric, response, probabilities, np.ones((1, len(response))))[0])
    if np.isnan(value):
        raise DataError(
            f"{metric} is undefined on these {len(response)} rows",
            expected="rows of at least two classes" if metric not in _REGRESSION else "targets that vary",
            do="choose another metric or more rows",
        )
    return value


def nll(response: Response, probabilities: Any) -> float:
    """Mean negative log-likelihood −log p(label), in nats; probabilities are clipped at 1e-15."""
    return score("nll", response, probabilities)


def ece(response: Response, probabilities: Any, bins: int = 15) -> float:
    """Expected calibration error Σ_b (n_b/n) |accuracy_b − confidence_b| over equal-width bins.

    Confidence is the largest probability (Guo et al., 2017); for multilabel every label counts, by
    its probability and whether it holds.
    """
    check_calibrated(response, probabilities)
    ones = np.ones((1, len(response)))
    return float(_ece(response, as_array(probabilities), ones, bins)[0])


def confusion(truth: Array, predicted: Array, classes: int) -> Array:
    """Counts ``(C, C)`` by class and predicted class, of the places whose truth is a class (-1: none)."""
    there = truth >= 0
    pairs = truth[there] * classes + predicted[there]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def resampled(metric: str, response: Response, probabilities: Any, weights: Array) -> Array:
    """The metric under each row weighting.

    Args:
        metric: a name of :data:`METRICS`, :data:`PROPER` or :data:`WITH_SPREAD`.
        response: N rows of labels.
        probabilities: as :func:`score` takes them.
        weights: (B, N) non-negative.

    Returns:
        (B,), NaN where a weighting leaves the metric undefined.
    """
    check_predictions(metric, response, probabilities)
    values = as_array(probabilities)
    there = response.present.numpy()
    if not there.all():
        response, values, weights = response.take(there), values[there], weights[:, there]
    if metric in _OF_PROBABILITIES:
        _check_probabilities(metric, response.kind, values[weights.any(0)])
    with np.errstate(divide="ignore", invalid="ignore"):
        return _FUNCTIONS[metric](response, values, weights)


def confidences(response: Response, probabilities: Array) -> tuple[Array, Array, Array]:
    """Rows, confidences and hits (0/1) of what calibration is judged on; missing labels left out."""
    if response.kind == "multilabel":
        there = np.ones(probabilities.shape, bool) if response.mask is None else response.mask.numpy()
        rows = np.nonzero(there)[0]
        return rows, probabilities[there], response.values.numpy()[there]
    codes = _codes(response)
    rows = np.nonzero(codes >= 0)[0]
    top = probabilities[rows].argmax(1)
    return rows, probabilities[rows, top], (top == codes[rows]).astype(float)


def calibration_gaps(response: Response, probabilities: Array, bins: int = 15) -> tuple[Array, Array]:
    """Σ (hit − confidence) of each row in each bin, (N, bins), and how many confidences each row has, (N,)."""
    rows, confidence, hit = confidences(response, probabilities)
    gaps = np.zeros((len(probabilities), bins))  # by row first: a multilabel row has several labels
    np.add.at(gaps, (rows, bin_of(confidence, bins)), hit - confidence)
    return gaps, np.bincount(rows, minlength=len(probabilities))


def bin_of(confidence: Array, bins: int) -> Array:
    """Index of the bin ((b/bins, (b+1)/bins], the first closed at 0) of each confidence."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


_OF_PROBABILITIES = frozenset({"nll", "ece", "brier"})
_ROUNDING = 0.02  # of probabilities in bfloat16, and of their sums


def check_predictions(metric: str, response: Response, probabilities: Any) -> None:
    """Refuse a metric that does not fit the labels, and predictions of another shape or that are not finite."""
    higher_is_better(metric)
    fits, wanted = fitting(response.kind), response.predicted_shape
    if metric in WITH_SPREAD and response.kind == "regression":
        wanted = (wanted[0], 2, *wanted[1:])
    elif metric not in fits:
        raise DataError(f"{metric} does not fit {response.kind} labels", expected=", ".join(fits))
    shape = tuple(np.shape(probabilities))
    if shape != wanted:
        raise DataError(f"predictions have shape {shape}", expected=f"{wanted}")
    if not bool(response.present.any()):
        raise DataError(f"{metric} needs labels", expected="at least one labelled row")
    if not np.isfinite(as_array(probabilities)).all():
        raise DataError("predictions hold NaN or infinities", do="look for NaN in the features")


def check_calibrated(response: Response, probabilities: Any) -> None:
    """Refuse what no calibration is judged of: predictions that do not fit the labels, and logits."""
    check_predictions("ece", response, probabilities)
    _check_probabilities("ece", response.kind, as_array(probabilities)[response.present.numpy()])


def _check_probabilities(metric: str, kind: str, values: Array) -> None:
    """Refuse logits where a metric reads probabilities: rows that count ``(n, C)``."""
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    sums = np.zeros(1) if kind == "multilabel" else np.abs(values.sum(1) - 1)
    if low < -_ROUNDING or high > 1 + _ROUNDING or sums.max() > _ROUNDING:
        raise DataError(
            f"{metric} needs probabilities",
            expected="numbers from 0 to 1" + ("" if kind == "multilabel" else ", 1 in all for each row"),
            got=f"{low:.3g} to {high:.3g}" + (f", up to {sums.max():.2g} away from 1" if sums.max() else ""),
            do="give the softmax of logits, or the sigmoid of several labels",
        )


def as_array(values: Any) -> Array:
    """float64 numbers of a tensor, wherever it is and whether or not it is differentiated, or of what numpy reads."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to(device="cpu", dtype=torch.float64).numpy()  # numpy has no bfloat16
    return np.asarray(values, dtype=np.float64)


def _codes(response: Response) -> Array:
    if response.codes is None:
        raise DataError(f"{response.kind} labels have no class index")
    return response.codes.numpy()


def _mask(response: Response) -> Array:
    if response.mask is None:
        return np.ones(tuple(response.values.shape))
    return response.mask.numpy().astype(float)


def _counts(response: Response, values: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Weighted true positives, positives and predicted positives of each class or column: (B, C)."""
    truth = response.values.numpy()
    if response.kind == "segmentation":
        return weights @ np.diagonal(values, axis1=1, axis2=2), weights @ truth, weights @ values.sum(1)
    if response.kind == "multilabel":
        mask = _mask(response)
        guess = (values > 0.5) * mask
        truth = truth * mask
    else:
        guess = np.eye(values.shape[1])[values.argmax(1)]
    return weights @ (truth * guess), weights @ truth, weights @ guess


def _miou(response: Response, values: Array, weights: Array) -> Array:
    hits, positives, guesses = _counts(response, values, weights)
    overlap = hits / (positives + guesses - hits)  # 0/0 is a class that nothing is and nothing is said to be
    if response.kind == "multilabel":  # rows are of some class, but may have no label: then no prediction defines it
        overlap = np.where(positives > 0, overlap, np.nan)
    return _nanmean(overlap)


def _nanmean(values: Array) -> Array:
    there = ~np.isnan(values)
    return np.where(there, values, 0.0).sum(1) / there.sum(1)


def _accuracy(response: Response, values: Array, weights: Array) -> Array:
    if response.kind == "multilabel":
        mask = _mask(response)
        right = ((values > 0.5) == (response.values.numpy() > 0.5)) * mask
        return (weights @ right.sum(1)) / (weights @ mask.sum(1))
    if response.kind == "segmentation":
        hits, positives, _ = _counts(response, values, weights)
        return hits.sum(1) / positives.sum(1)
    right = values.argmax(1) == _codes(response)
    return (weights @ right) / weights.sum(1)


def _balanced(response: Response, values: Array, weights: Array) -> Array:
    hits, positives, guesses = _counts(response, values, weights)
    recall = np.where(positives > 0, hits / positives, np.nan)
    if response.kind != "multilabel":
        return _nanmean(recall)
    total = weights @ _mask(response)
    negatives = total - positives
    correct = negatives - (guesses - hits)
    return _nanmean(np.where(negatives > 0, (recall + correct / negatives) / 2, np.nan))


def _f1(response: Response, values: Array, weights: Array) -> Array:
    hits, positives, guesses = _counts(response, values, weights)
    if response.kind == "multilabel":  # a column without a one, true or guessed, counts as 0, as in scikit-learn
        found = np.where(positives + guesses > 0, 2 * hits / (positives + guesses), 0.0)
        return _nanmean(np.where(weights @ _mask(response) > 0, found, np.nan))
    return _nanmean(np.where(positives + guesses > 0, 2 * hits / (positives + guesses), np.nan))


def _columns(response: Response, values: Array, weights: Array, curve: Callable[..., Array]) -> Array:
    """Mean over classes or columns of a ranking metric, less those for which a weighting leaves it undefined."""
    truth, mask = response.values.numpy(), _mask(response)
    columns = [1] if response.kind == "binary" else range(values.shape[1])
    parts = []
    for c in columns:
        rows = np.nonzero(mask[:, c])[0]
        parts.append(curve(truth[rows, c], values[rows, c], weights[:, rows]))
    return _nanmean(np.stack(parts, 1))


def _ranked(truth: Array, values: Array, weights: Array) -> tuple[Array, Array]:
    """Cumulated weighted positives and negatives, best first, at the last row of each tie: (B, T)."""
    order = np.argsort(-values, kind="stable")
    ends = np.nonzero(np.append(np.diff(values[order]) != 0, True))[0] if len(order) else np.zeros(0, int)
    sorted_weights, positive = weights[:, order], truth[order]
    hits = np.cumsum(sorted_weights * positive, 1)[:, ends]
    misses = np.cumsum(sorted_weights * (1 - positive), 1)[:, ends]
    return hits, misses


def area_under_roc(truth: Array, values: Array) -> float:
    """The area under the ROC curve of one column: the share of pairs of a positive and a negative of which ``values``
    are higher for the positive, ties by half. NaN without one of both kinds."""
    return float(_auc(truth.astype(float), values, np.ones((1, len(truth))))[0])


def _auc(truth: Array, values: Array, weights: Array) -> Array:
    hits, misses = _ranked(truth, values, weights)
    if hits.shape[1] == 0:
        return np.full(len(weights), np.nan)
    gained = np.diff(misses, axis=1, prepend=0)
    before = hits - np.diff(hits, axis=1, prepend=0)
    area = (gained * (hits + before) / 2).sum(1)
    return area / (hits[:, -1] * misses[:, -1])


def _average_precision(truth: Array, values: Array, weights: Array) -> Array:
    hits, misses = _ranked(truth, values, weights)
    if hits.shape[1] == 0:
        return np.full(len(weights), np.nan)
    precision = np.where(hits + misses > 0, hits / (hits + misses), 0.0)
    return (np.diff(hits, axis=1, prepend=0) * precision).sum(1) / hits[:, -1]


def _r2(response: Response, values: Array, weights: Array) -> Array:
    mask, truth = _mask(response), response.values.numpy()
    total = weights @ mask
    # centred by the plain mean first: Σ w (y - m)² would cancel for targets far from zero
    shift = (mask * truth).sum(0) / mask.sum(0)
    moved = (truth - shift) * mask
    second = weights @ moved**2
    spread = second - (weights @ moved) ** 2 / total
    for draw, output in zip(*np.nonzero(spread <= _CANCELLED * second)):  # rounding is what is left
        taken = (weights[draw] > 0) & (mask[:, output] > 0)
        spread[draw, output] = _about_its_mean(truth[taken, output], weights[draw, taken])
    error = weights @ (mask * (truth - values) ** 2)
    # equal targets differ from their mean by rounding, 1e-16 of them; what differs by 1e-12 of itself is known
    floor = 1e-24 * np.maximum((weights @ (mask * truth**2)), 1e-300)
    return _nanmean(np.where(spread > floor, 1 - error / spread, np.nan))


def _about_its_mean(values: Array, weights: Array) -> float:
    """Σ w (y − m)² about the weighted mean; nothing for equal values, whatever their rounding."""
    if not len(values) or (values == values[0]).all():
        return 0.0
    moved = values - values[0]
    return float(weights @ (moved - weights @ moved / weights.sum()) ** 2)


def _rmse(response: Response, values: Array, weights: Array) -> Array:
    mask = _mask(response)
    error = weights @ (mask * (response.values.numpy() - values) ** 2)
    return _nanmean(np.sqrt(error / (weights @ mask)))


def _coverage(response: Response, values: Array, weights: Array) -> Array:
    """The share of targets inside their 90 % intervals: mean ± 1.645 deviations."""
    mask, truth = _mask(response), response.values.numpy()
    inside = (np.abs(truth - values[:, 0]) <= NINETY * values[:, 1]) * mask
    return (weights @ inside.sum(1)) / (weights @ mask.sum(1))


def _gaussian_nll(response: Response, values: Array, weights: Array) -> Array:
    """½ ((y − μ)/σ)² + log σ + ½ log 2π, mean over targets, in nats of the targets' own unit."""
    mask, truth = _mask(response), response.values.numpy()
    spread = np.maximum(values[:, 1], np.finfo(np.float64).tiny)
    each = 0.5 * np.square((truth - values[:, 0]) / spread) + np.log(spread) + 0.5 * np.log(2 * np.pi)
    return (weights @ (mask * each).sum(1)) / (weights @ mask.sum(1))


def _nll(response: Response, values: Array, weights: Array) -> Array:
    if response.kind == "multilabel":
        mask, truth = _mask(response), response.values.numpy()
        chosen = np.where(truth > 0.5, values, 1 - values)
        return (weights @ (mask * -np.log(np.maximum(chosen, _TINY))).sum(1)) / (weights @ mask.sum(1))
    chosen = values[np.arange(len(values)), _codes(response)]
    return (weights @ -np.log(np.maximum(chosen, _TINY))) / weights.sum(1)


def _brier(response: Response, values: Array, weights: Array) -> Array:
    squares = (values - response.values.numpy()) ** 2
    if response.kind == "multilabel":
        mask = _mask(response)
        return (weights @ (mask * squares).sum(1)) / (weights @ mask.sum(1))
    if response.kind == "binary":
        squares = squares[:, 1:]
    return (weights @ squares.sum(1)) / weights.sum(1)


def _ece(response: Response, values: Array, weights: Array, bins: int = 15) -> Array:
    gaps, counts = calibration_gaps(response, values, bins)
    return np.abs(weights @ gaps).sum(1) / (weights @ counts)


_FUNCTIONS: dict[str, Callable[[Response, Array, Array], Array]] = {
    "accuracy": _accuracy,
    "balanced-accuracy": _balanced,
    "f1": _f1,
    "roc-auc": lambda r, v, w: _columns(r, v, w, _auc),
    "miou": _miou,
    "map": lambda r, v, w: _columns(r, v, w, _average_precision),
    "r2": _r2,
    "rmse": _rmse,
    "coverage-90": _coverage,
    "gaussian-nll": _gaussian_nll,
    "nll": _nll,
    "ece": _ece,
    "brier": _brier,
}
