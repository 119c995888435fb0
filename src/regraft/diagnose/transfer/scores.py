"""Every transferability score of one backbone on one task, from one decomposition of the features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Estimate, NotApplicable, Resamples, group_codes
from regraft.diagnose.transfer.hscore import h_score, shrunk_h_score
from regraft.diagnose.transfer.labels import Labels, checked_features, rounding
from regraft.diagnose.transfer.logme import logme
from regraft.diagnose.transfer.loo import LeftOut, left_out, loo_accuracy, loo_r2, neighbour_accuracy
from regraft.diagnose.transfer.source import checked_source, leep, nce
from regraft.diagnose.transfer.transrate import transrate
from regraft.errors import DataError

__all__ = ["SCORES", "scores", "spoken"]


@dataclass(frozen=True, eq=False)
class _Task:
    """What the scores take, checked and computed at most once, when a score first asks for it."""

    features: Any
    source: Any
    source_labels: Any
    groups: Sequence[Any] | None
    labels: Labels
    resamples: Resamples

    @cached_property
    def decomposition(self) -> Decomposition:
        features = checked_features(self.features, self.labels.rows)
        return Decomposition.of(features, rounding(self.features))

    @property
    def distinct(self) -> int:
        """How many rows of features there are, where equal ones of a group count as one."""
        rows = (row.tobytes() for row in checked_features(self.features, self.labels.rows).numpy() + 0.0)  # −0 is 0
        return len(set(zip(group_codes(self.groups, self.labels.rows).tolist(), rows)))

    @cached_property
    def left_out(self) -> LeftOut:
        return left_out(self.decomposition, self.labels, self.groups)

    @cached_property
    def probabilities(self) -> torch.Tensor:
        if self.source is None:
            raise DataError("the source's predictions are missing", expected="probabilities of the source's classes")
        return checked_source(self.source, self.labels.rows)

    @property
    def hard(self) -> Any:
        return self.source_labels if self.source_labels is not None else self.probabilities.argmax(1)


_COMPUTE: dict[str, Callable[[_Task], Estimate]] = {
    "logme": lambda t: logme(t.decomposition, t.labels, t.resamples),
    "h-score": lambda t: h_score(t.decomposition, t.labels, t.resamples, t.distinct),
    "h-score-shrunk": lambda t: shrunk_h_score(t.decomposition, t.labels, t.resamples),
    "transrate": lambda t: transrate(t.decomposition, t.labels, t.resamples),
    "loo-accuracy": lambda t: loo_accuracy(t.left_out, t.labels, t.resamples),
    "loo-r2": lambda t: loo_r2(t.left_out, t.labels, t.resamples),
    "neighbour-accuracy": lambda t: neighbour_accuracy(t.decomposition, t.labels, t.resamples, t.groups),
    "leep": lambda t: leep(t.probabilities, t.labels, t.resamples),
    "nce": lambda t: nce(t.hard, t.labels, t.resamples),
}

SCORES: tuple[str, ...] = tuple(_COMPUTE)
"""Names of all scores. Of each, larger is better."""
_SPOKEN = {
    "logme": "LogME",
    "h-score": "H-score",
    "h-score-shrunk": "shrunk H-score",
    "transrate": "TransRate",
    "loo-accuracy": "leave-one-out accuracy",
    "loo-r2": "leave-one-out R²",
    "neighbour-accuracy": "accuracy of nearest neighbours",
    "leep": "LEEP",
    "nce": "NCE",
}
_OF_NUMBERS = ("logme", "loo-r2")


def spoken(name: str) -> str:
    """A score's name in a sentence."""
    return _SPOKEN.get(name, name)


def scores(
    *,
    features: Any,
    labels: Any,
    source: Any = None,
    source_labels: Any = None,
    groups: Sequence[Any] | None = None,
    names: Sequence[str] = SCORES,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Estimate | NotApplicable, ...]:
    """The scores ``names``, in that order, with 95 % intervals by bootstrap over the rows; larger is better.

    ===================  ===================================================================  ==========  ============
    name                 formula                                                              labels      range
    ===================  ===================================================================  ==========  ============
    logme                mean over outputs of max log p(y | F, α, β) / N                      both        any number
    h-score              tr(cov(f)⁺ cov(E[f|y]))                                              classes     0 to C − 1
    h-score-shrunk       (1 − α) tr(Σ_α⁻¹ cov(E[f|y]))                                        classes     0 to C − 1
    transrate            R(Z, ε) − Σ_c (n_c/N) R(Z_c, ε)                                      classes     any number
    loo-accuracy         share of rows that ridge on all others classifies                    classes     0 to 1
    loo-r2               1 − Σ‖y_i − ŷ_{−i}‖² / Σ‖y_i − ȳ‖²                                  both        at most 1
    neighbour-accuracy   share of rows in the class of most of their five nearest others      classes     0 to 1
    leep                 mean of log Σ_z P(y_i|z) θ_i(z)                                      classes     −H(Y) to 0
    nce                  −H(Y|Z)                                                              classes     −H(Y) to 0
    ===================  ===================================================================  ==========  ============

    The functions in ``regraft.diagnose.transfer`` say more of each. One singular value decomposition of the features,
    O(N D min(N, D)), serves all; beside it they take products with N × D matrices (``loo-…`` O(N² D) once, for their
    intervals) and 8 · resamples · N bytes.

    Args:
        features: ``(N, D)`` floats of the backbone, one row an example.
        labels: ``(N,)`` integers (classes), or ``(N,)`` or ``(N, C)`` floats (numbers). All there.
        source: ``(N, S)`` probabilities that the source's own classifier gives the rows; for ``leep`` and ``nce``.
        source_labels: ``(N,)`` integers for ``nce``; by default the most probable class of ``source``.
        groups: N names; rows of a group are drawn, and left out, together.
        names: which of :data:`SCORES`.
        resamples: bootstrap samples.
        seed: of these: the same seed draws the same rows for every backbone.

    Returns:
        An :class:`~regraft.diagnose.Estimate` a name, or a :class:`~regraft.diagnose.NotApplicable` that says why: one
        class, fewer than five rows, features that do not vary, NaN, numbers where classes are needed, no source.

    Raises:
        DataError: an unknown name, or fewer than two resamples.
    """
    unknown = [name for name in names if name not in _COMPUTE]
    if unknown or resamples < 2:
        expected = ", ".join(SCORES) if unknown else "2 or more resamples"
        raise DataError(
            "transferability scores", expected=expected, got=repr(unknown[0]) if unknown else f"{resamples}"
        )
    try:
        known = Labels.of(labels)
        draws = Resamples.of(known, groups, count=resamples, seed=seed)
    except DataError as error:
        return tuple(NotApplicable(name, str(error)) for name in names)
    task = _Task(features, source, source_labels, groups, known, draws)
    return tuple(_one(name, task) for name in names)


def _one(name: str, task: _Task) -> Estimate | NotApplicable:
    try:
        if name not in _OF_NUMBERS:
            task.labels.classes(name)  # before any work
        found = _COMPUTE[name](task)
    except DataError as error:
        return NotApplicable(name, str(error))
    if not (np.isfinite(found.value) and np.isfinite(found.error)):
        return NotApplicable(name, f"{name} is {found.value} ± {found.error} on these rows.")
    return found
