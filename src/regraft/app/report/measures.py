"""What each metric is called, how its number is written, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from regraft.app.report import words

__all__ = ["Measure", "measure"]


@dataclass(frozen=True)
class Measure:
    """How a metric is shown.

    Attributes:
        label: its name on the page.
        claim: what stands before the number in the verdict, after the method's name.
        after: what stands after the number.
        form: ``percent`` (of one) or ``decimal``.
        better: which way is better.
        low, high: the ends of its axis; ``high=None`` where it has no upper end.
        meaning: one phrase for readers who do not know it.
    """

    label: str
    claim: str
    after: str = ""
    form: Literal["percent", "decimal"] = "decimal"
    better: Literal["higher", "lower", ""] = "higher"
    low: float = 0.0
    high: float | None = 1.0
    meaning: str = ""

    def write(self, value: float | None) -> str:
        """The number in this metric's form."""
        return words.percent(value) if self.form == "percent" else words.decimal(value)

    def write_error(self, value: float | None) -> str:
        """A standard error in this metric's form, its unit left to the number before it."""
        return words.percent(value, unit=False) if self.form == "percent" else words.decimal(value)

    def tick(self, value: float) -> str:
        """The number as a tick label, without idle zeros."""
        return words.trimmed(self.write(value))


_MEASURES = {
    "accuracy": Measure(
        "Accuracy",
        "is right",
        "of the time",
        "percent",
        meaning="share of rows named right",
    ),
    "balanced-accuracy": Measure(
        "Balanced accuracy",
        "reaches a balanced accuracy of",
        form="percent",
        meaning="recall, averaged over the classes, so that rare classes count as much as common ones",
    ),
    "f1": Measure(
        "F1", "reaches an F1 of", meaning="harmonic mean of precision and recall, mean over the classes (macro)"
    ),
    "roc-auc": Measure(
        "ROC AUC",
        "reaches an area under the ROC curve of",
        low=0.5,
        meaning="chance that a positive row is ranked above a negative one; 0.5 is guessing",
    ),
    "map": Measure(
        "Mean average precision",
        "reaches a mean average precision of",
        meaning="area under the precision-recall curve, averaged over the classes",
    ),
    "miou": Measure(
        "Mean IoU",
        "reaches a mean IoU of",
        form="percent",
        meaning="intersection over union of a class's true and predicted rows, averaged over the classes",
    ),
    "r2": Measure(
        "R²",
        "explains",
        "of the variance",
        "percent",
        meaning="share of the target's variance that is explained; 0 is no better than the mean",
    ),
    "rmse": Measure(
        "RMSE",
        "is off by",
        "(root mean square error)",
        better="lower",
        high=None,
        meaning="root mean square error, in the target's own unit",
    ),
    "coverage-90": Measure(
        "Coverage of 90 % intervals",
        "covers",
        "of the targets by its 90 % intervals",
        form="percent",
        better="",
        meaning="share of targets inside their 90 % intervals; near 90 % is right, more means that they are too wide, "
        "less that they are too narrow",
    ),
    "gaussian-nll": Measure(
        "Log loss of numbers",
        "has a log loss of",
        better="lower",
        high=None,
        meaning="surprise per target in nats, its unit's logarithm in it; punishes confident mistakes",
    ),
    "nll": Measure(
        "Log loss (NLL)",
        "has a log loss of",
        better="lower",
        high=None,
        meaning="surprise per row in nats; punishes confident mistakes",
    ),
    "ece": Measure(
        "Calibration error (ECE)",
        "has a calibration error of",
        better="lower",
        high=None,
        meaning="mean gap between confidence and accuracy",
    ),
    "brier": Measure(
        "Brier score",
        "has a Brier score of",
        better="lower",
        high=None,
        meaning="mean squared error of the probabilities",
    ),
}


_MEANT = {
    ("accuracy", "segmentation"): "share of pixels named right",
    ("miou", "segmentation"): "intersection over union of true and predicted pixels, averaged over the classes",
    ("miou", "multilabel"): "intersection over union of the rows with a label and those predicted to have it, averaged "
    "over the labels",
    ("brier", "multiclass"): "squared error of the probabilities, summed over the classes, averaged over the rows",
    ("brier", "binary"): "squared error of the second class's probability, averaged over the rows",
    ("brier", "multilabel"): "squared error of the probabilities, averaged over labels and rows",
    ("accuracy", "multilabel"): "share of labels named right",
    ("balanced-accuracy", "multilabel"): "recall of the rows with a label and of those without, averaged over both and "
    "over the labels",
    ("f1", "multilabel"): "harmonic mean of precision and recall, mean over the labels (macro)",
    ("map", "multilabel"): "area under the precision-recall curve, averaged over the labels",
    ("map", "binary"): "area under the precision-recall curve of the second class",
    ("rmse", "numbers"): "root mean square error, averaged over the outputs, whose units it mixes: each has its own "
    "under Numbers",
    ("nll", "multilabel"): "surprise per label in nats; punishes confident mistakes",
}
"""Where a metric counts something else of a kind of labels; ``numbers`` are several outputs of a regression."""


def measure(name: str, value: float | None = None, kind: str = "") -> Measure:
    """How ``name`` is shown of labels of a ``kind``; an unknown metric under its own name, as a decimal number.

    A negative ``value`` (an R² below the mean's) is no share of anything and is shown as a decimal.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    label = name.replace("_", " ").replace("-", " ").strip() or "Score"
    found = _MEASURES.get(key) or Measure(label[:1].upper() + label[1:], f"has a {label} of", better="", high=None)
    found = replace(found, meaning=_MEANT.get((key, kind), found.meaning))
    if value is not None and value < 0 and found.form == "percent":
        return replace(found, form="decimal", claim=f"has an {found.label} of", after="")
    return found
