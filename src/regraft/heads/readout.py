"""A solved head, and what the solver has to say about it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.heads.calibration import link as apply_link
from regraft.heads.held import wide_enough
from regraft.heads.response import Link
from regraft.linear import Blocks, Design, FeatureDesign, Outcome
from regraft.record import Candidate

__all__ = ["Readout", "Solution", "Status", "UnconvergedWarning"]


class UnconvergedWarning(RuntimeWarning):
    """Numbers that carry no status of their own rest on a solve that stopped above its tolerance."""


@dataclass(frozen=True)
class Status:
    """How a solver ended.

    Attributes:
        converged: the residual reached its tolerance.
        iterations: of the final fit; 0 for a direct solution.
        residual: relative norm of the gradient (preconditioned, for iterative fits).
        message: what happened, and what to do if it did not converge.
    """

    converged: bool
    iterations: int
    residual: float
    message: str

    @staticmethod
    def of(parts: Sequence[Outcome | Status]) -> Status:
        """Of several solves to one tolerance: the worst residual, and the iterations of all."""
        worst = max(parts, key=lambda part: part.residual)
        return Status(worst.converged, sum(part.iterations for part in parts), worst.residual, worst.message)

    def warn(self, what: str) -> None:
        """Where it did not converge, warn the caller's caller of numbers that go without a status.

        Args:
            what: the numbers, and how they err.
        """
        if not self.converged:
            warnings.warn(f"{what}. {self.message}", UnconvergedWarning, stacklevel=3)


@dataclass(frozen=True, eq=False)
class Readout:
    """A linear head over named blocks of features: logits f = Φ w + b.

    Attributes:
        coefficients: block name → (d, C).
        intercept: (C,) float64: targets may lie far from zero.
        link: ``softmax``, ``sigmoid`` or ``identity``.
        temperature: T of the calibrated probabilities link(f / T).
        form: what made it, such as ``ridge``, ``logistic`` or ``trained``.
        strength: the penalty λ in units of the features' mean squared norm about their mean.
    """

    coefficients: Blocks
    intercept: Tensor
    link: Link
    temperature: float = 1.0
    form: str = ""
    strength: float = 0.0

    def logits(self, design: Design) -> Tensor:
        """Φ w + b, shape (N, C); 16-bit features are read as float32, as when the head was solved."""
        if isinstance(design, FeatureDesign) and design.dtype != self.coefficients.dtype:
            design = wide_enough(design)
        return design.apply(self.coefficients) + self.intercept

    def predict_proba(self, design: Design) -> Tensor:
        """link((Φ w + b) / T), shape (N, C), computed in float64: probabilities, or predictions for regression."""
        return apply_link(self.link, self.logits(design).to(torch.float64) / self.temperature)


@dataclass(frozen=True, eq=False)
class Solution:
    """What :func:`regraft.heads.solve` found.

    Attributes:
        readout: the head, fitted on all rows.
        status: how its final fit ended.
        candidates: every cell of the search with its score over the inner folds; one is chosen.
        out_of_fold: (N, C) float64 logits of the chosen cell, each row predicted by the fit that did not
            see it; NaN for rows that no fold holds out. Not yet divided by the temperature.
    """

    readout: Readout
    status: Status
    candidates: tuple[Candidate, ...]
    out_of_fold: Tensor

    @property
    def chosen(self) -> Candidate:
        """The cell that the readout comes from."""
        return next(candidate for candidate in self.candidates if candidate.chosen)

    def held_out(self) -> tuple[Tensor, Tensor]:
        """The rows that a fold held out, ``(n,)``, and their probabilities (or values) ``(n, C)``."""
        rows = (~self.out_of_fold.isnan()).all(1).nonzero().squeeze(1)
        return rows, apply_link(self.readout.link, self.out_of_fold[rows] / self.readout.temperature)
