"""The linearised network as a Gaussian process: chosen by folds, kernel by kernel, then solved on all rows.

Numbers have a scale and a noise each, averaged over what their rows leave open of both; classes, whose one-hot targets
are regressed on and whose means are calibrated like those of any ridge head, have one of each together, the likeliest.
Rows that repeat an earlier one, inputs and labels alike, say nothing new and would make the noise look small: they are
predicted, but nothing is fitted to them, unless inputs bear several labels, whose shares the repetitions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import DataError
from regraft.graft.adapted.posterior import FEATURES, PosteriorPart, Rows
from regraft.graft.adapted.tangent import Prior
from regraft.graft.gradient.fit import Both, Labels
from regraft.graft.posterior.contrasts import Contrasts
from regraft.graft.posterior.covariance import largest, left_out, of_parameters, of_sums, trusted
from regraft.graft.posterior.kernel import AtHead
from regraft.graft.stages.posterior import Posterior
from regraft.heads import Hyperparameters, Response, Spectrum, Status, condition
from regraft.heads.gp.levels import Levels, Uncertainty
from regraft.heads.l2.fitters import Fitter, Found, ridge_targets
from regraft.linear import Blocks
from regraft.record import counted

__all__ = ["Fitted", "KernelFitter", "Solved", "squared"]

_ROUNDED = 1e-12
"""The share of the largest eigenvalue below which others are rounding, of a kernel in double precision."""


def squared(response: Response, weights: Tensor) -> Labels:
    """Any labels as numbers to be regressed on: classes one-hot, labels as ±1."""
    return Labels("squared", ridge_targets(response), weights, alike=response.kind != "regression")


@dataclass(frozen=True, eq=False)
class Solved:
    """The posterior given some rows, at one ρ, for targets in units of their spread.

    Attributes:
        contrasts: of the rows' kernel.
        spectrum: of its gram.
        chosen: the best scale and noise of each output, or one for all.
        levels: (C,) what is averaged over: of outputs that go together, or chosen by rows left out, the best alone.
        targets: (n, C).
    """

    contrasts: Contrasts
    spectrum: Spectrum
    chosen: tuple[Hyperparameters, ...]
    levels: tuple[Levels, ...]
    targets: Tensor

    @staticmethod
    def of(contrasts: Contrasts, targets: Tensor, by: Literal["marginal", "loo"], together: bool) -> Solved:
        """With the scales and noises of each output, or the best of all ``together``."""
        spectrum, turned = Spectrum.of(contrasts.gram), contrasts.of(targets)
        parts = [turned] if together else turned.split(1, dim=1)
        chosen = tuple(spectrum.choose(part, by) for part in parts)
        if together or by != "marginal":
            levels = tuple(Levels.known(each.scale, each.noise) for each in chosen)
        else:
            levels = tuple(spectrum.levels(part) for part in parts)
        return Solved(contrasts, spectrum, chosen, levels * (targets.shape[1] if together else 1), targets)

    @property
    def best(self) -> Solved:
        """With the best scale and noise alone."""
        known = tuple(Levels.known(each.scale, each.noise) for each in self.chosen)
        return replace(self, levels=known * (len(self.levels) // len(known)))

    @cached_property
    def along(self) -> Tensor:
        """Targets along the eigenvectors, (n − 1, C)."""
        return self.spectrum.vectors.T @ self.contrasts.of(self.targets)

    @cached_property
    def weights(self) -> Tensor:
        """E[s (s Qᵀ K Q + σ² I)⁻¹] Qᵀ y, (n − 1, C)."""
        shrunk = torch.stack([levels.shrinkage(self.spectrum.values) for levels in self.levels], dim=1)
        return self.spectrum.vectors @ (self.along * shrunk)

    def mean(self, cross: Tensor) -> Tensor:
        """(M, C) of k(x, X) (M, n)."""
        return self.targets.mean(0) + self.contrasts.across(cross) @ self.weights

    def _largest(self, rank: int) -> slice:
        """Of the eigenpairs, which ascend."""
        return slice(max(0, len(self.spectrum.values) - rank), None)

    def uncertainty(self, rank: int) -> Uncertainty:
        """By the largest eigenpairs alone."""
        kept = self._largest(rank)
        return Uncertainty.of(self.levels, self.spectrum.values[kept], self.along[kept])

    def variance(self, cross: Tensor, own: Tensor, rank: int) -> Tensor:
        """Of the function, (M, C), of k(x, X) (M, n) and k(x, x) (M,), by the largest eigenpairs alone, as an artifact
        that keeps so many directions says it."""
        seen = self.contrasts.across(cross) @ self.spectrum.vectors[:, self._largest(rank)]
        return self.uncertainty(rank).variance(self.contrasts.within(cross, own), seen, len(self.targets))


@dataclass(frozen=True, eq=False)
class Fitted:
    """The posterior of the function, in weight space.

    Attributes:
        features: w₁ (D, C).
        intercept: (C,).
        part: w₂ and the error bars.
        chosen: scale and noise of each output, or one for all.
        status: how the system was solved.
        apart: how far the kernel of the sums that stand for the derivatives is from the exact one; 0 without sums.
    """

    features: Tensor
    intercept: Tensor
    part: PosteriorPart
    chosen: tuple[Hyperparameters, ...]
    status: Status
    apart: float = 0.0


class KernelFitter(Fitter):
    """Fits without each fold, each with its own ω, scale and noise, and the fit on all rows.

    Args:
        both: all rows with all labels.
        labels: theirs, as :func:`squared` makes them; columns that are alike have one scale and noise.
        folds: (N,).
        strength: of ω's penalty.
        prior: of the parameters.
        stage: what the posterior keeps.
        seed: of the rows that the choice is made on, where there are many.
    """

    def __init__(
        self,
        both: Both,
        labels: Labels,
        folds: Tensor,
        strength: float,
        prior: Prior,
        stage: Posterior,
        seed: int,
    ) -> None:
        self.both, self.labels, self.folds, self.stage = both, labels, folds, stage
        self.strength, self.prior, self.together = strength, prior, labels.alike
        order = torch.randperm(len(folds), generator=torch.Generator().manual_seed(seed))
        self.searched = order[: Posterior.searched].sort().values
        self.new = _telling(both, labels)
        self._folds: dict[int, tuple[AtHead, Labels, Tensor]] = {}
        self._solved: dict[tuple[int, float], Solved] = {}
        self._fitted: dict[float, Fitted] = {}

    def out_of_fold(self, form: str, strengths: Sequence[float]) -> tuple[Tensor, list[Tensor | None]]:
        """Means (M, N, C) in the targets' own unit; NaN where a row took no part in the choice."""
        out = torch.full((len(strengths), *self.labels.values.shape), torch.nan, dtype=torch.float64)
        for fold in torch.unique(self.folds[self.searched]).tolist():
            grafted, labels, held = self._fold(fold)
            mean, spread = labels.unit
            for index, ratio in enumerate(strengths):
                out[index, held] = self._without(fold, ratio).mean(grafted.cross.at(ratio)) * spread + mean
        return out, [None] * len(strengths)

    def _fold(self, fold: int) -> tuple[AtHead, Labels, Tensor]:
        if fold not in self._folds:
            inside = self.folds[self.searched] == fold
            rows, held = self.searched[~inside & self.new[self.searched]], self.searched[inside]
            if not len(rows):
                raise DataError(
                    "outside a fold there is no row but copies of those in it",
                    expected="rows that the backbone's last layer tells apart in every two folds",
                    got=f"{counted(int(self.new.sum()), 'different row')} of {len(self.new)}",
                    do="bring more rows that differ; where they do, use all-layers, or another backbone",
                )
            labels = self.labels.take(rows)
            grafted = AtHead.of(self.both.take(rows), labels, self.strength, self.prior, self.both.take(held))
            self._folds[fold] = grafted, labels, held
        return self._folds[fold]

    def _without(self, fold: int, ratio: float) -> Solved:
        if (fold, ratio) not in self._solved:
            grafted, labels, _ = self._fold(fold)
            found = Solved.of(grafted.contrasts(ratio), labels.standard, self.stage.by, self.together)
            self._solved[fold, ratio] = found
        return self._solved[fold, ratio]

    def spread(self, ratio: float) -> Tensor:
        """Deviations (N, C) at one mixture, NaN of rows that took no part: of targets about their out-of-fold means, in
        their own unit; of the function alone, in units of the targets' spread, where the outputs go together."""
        out = torch.full(self.labels.values.shape, torch.nan, dtype=torch.float64)
        for fold in torch.unique(self.folds[self.searched]).tolist():
            grafted, labels, held = self._fold(fold)
            solved = self._without(fold, ratio)
            values = solved.spectrum.values.flip(0)
            most, _, rounded = self._limits(grafted.rows(ratio), int(self.new.sum()))
            rank = min(most, trusted(values, rounded))
            variance = solved.variance(grafted.cross.at(ratio), grafted.held.at(ratio).diagonal(), rank)
            of_targets = variance + solved.uncertainty(0).scatter
            own = variance.sqrt() if self.together else of_targets.sqrt() * labels.unit[1]
            out[held] = own
        return out

    def refit(self, form: str, strength: float, start: Tensor | None) -> Found:
        """On all rows; coefficients in the targets' own unit."""
        fitted = self.fitted(strength)
        names = list(self.both.features.shapes)
        sizes = [self.both.features.shapes[name][0] for name in names]
        blocks = dict(zip(names, fitted.features.split(sizes)))
        return Blocks(blocks).to(torch.float32), fitted.intercept, fitted.status

    def fitted(self, ratio: float) -> Fitted:
        """The posterior on all rows at one mixture."""
        if ratio not in self._fitted:
            self._fitted[ratio] = self._solve(ratio)
        return self._fitted[ratio]

    def _solve(self, ratio: float) -> Fitted:
        rows = self.new.nonzero().squeeze(1)
        labels = self.labels.take(rows)
        grafted = AtHead.of(self.both.take(rows), labels, self.strength, self.prior)
        contrasts, y = grafted.contrasts(ratio), labels.standard
        wide, whole = grafted.rows(ratio), len(rows) <= 2 * Posterior.searched
        head, centre, (feature, deviations) = grafted.head, grafted.centre, grafted.deviations(ratio)
        del grafted  # of many rows its two kernels take as much as all that follows
        most, sums, rounded = self._limits(wide, len(rows))
        if whole:
            solved = Solved.of(contrasts, y, self.stage.by, self.together)
            dual, status = solved.weights, Status(True, 0, 0.0, f"{len(rows)} rows, by an eigendecomposition.")
        else:
            few = self.searched[self.new[self.searched]]
            some = self.labels.take(few)
            small = AtHead.of(self.both.take(few), some, self.strength, self.prior).contrasts(ratio)
            solved = Solved.of(small, some.standard, self.stage.by, self.together).best
            gram = contrasts.gram
            dual, status = _conditioned(gram, contrasts.of(y), solved.chosen)
        turned = contrasts.back(dual)
        if sums:
            kept = of_sums(wide, contrasts, sums, most, rounded, y, whole=whole)
            found = wide.adjoint(turned)
        else:
            values, vectors = solved.spectrum.values.flip(0), solved.spectrum.vectors.flip(1)
            if not whole:
                values, vectors = largest(gram, min(most + 1, len(gram)))
            rank = min(most, trusted(values, rounded))
            kept, found = of_parameters(wide, contrasts, values, vectors, rank, turned, y)
        mean, spread = labels.unit
        w1 = found[FEATURES].T * feature * spread
        bias = (y.mean(0) - contrasts.kernel.mean(0) @ turned) * spread + mean - centre @ w1
        column = spread.expand(y.shape[1])
        part = PosteriorPart(
            head=head.to(torch.float32) if deviations else None,
            centre=centre.to(torch.float32),
            feature=feature,
            deviations=deviations,
            directions={name: value.to(torch.float32) for name, value in kept.directions.items()},
            offsets=kept.offsets,
            values=kept.values,
            weights={
                name: (found[name] * value * _like(column, found[name])).to(torch.float32)
                for name, value in deviations.items()
            },
            level=kept.level,
            rows=len(rows),
            unit=torch.ones_like(column) if self.together else column.clone(),
            uncertainty=Uncertainty.of(solved.levels, kept.values, kept.along),
            of_targets=not self.together,
            left_out=left_out(kept.beyond, solved.levels),
            sums=kept.sums,
        )
        return Fitted(w1, bias, part, solved.chosen, status, kept.error)

    def _limits(self, rows: Rows, count: int) -> tuple[int, int, float]:
        """How many directions are kept at most, of how many sums, and the rounding of the derivatives."""
        shapes = rows.tangent.shapes if rows.tangent else {}
        most, sums = self.stage.kept(sum(torch.Size(shape).numel() for shape in shapes.values()), count)
        if count > 2 * Posterior.searched:
            most = min(most, Posterior.iterated)
        return most, sums, max(_ROUNDED, torch.finfo(rows.tangent.dtype).eps if rows.tangent else 0.0)


def _like(column: Tensor, block: Tensor) -> Tensor:
    """(C,) as it multiplies (C, *shape)."""
    return column.to(block).view(-1, *[1] * (block.ndim - 1))


def _telling(both: Both, labels: Labels) -> Tensor:
    """(N,) bool: rows that repeat no earlier one, features and labels alike; where equal features bear several labels
    all rows, for how often each occurs is then what there is to learn, unless no row is told from another."""
    rows = slice(0, both.features.n_rows)
    features = [matrix.rows(rows).cpu().numpy() for matrix in both.features.matrices.values()]
    values, borne = labels.values.numpy(), dict[bytes, set[bytes]]()
    new = torch.zeros(len(values), dtype=torch.bool)
    for row in range(len(values)):
        labels_of = borne.setdefault(b"".join(block[row].tobytes() for block in features), set())
        new[row] = (label := values[row].tobytes()) not in labels_of
        labels_of.add(label)
    several = len(borne) > 1 and any(len(labels_of) > 1 for labels_of in borne.values())
    return torch.ones_like(new) if several else new


def _conditioned(gram: Tensor, targets: Tensor, chosen: Sequence[Hyperparameters]) -> tuple[Tensor, Status]:
    """s (s K + σ² I)⁻¹ y, (n, C), and how it was solved."""
    parts = [targets] if len(chosen) == 1 else targets.split(1, dim=1)
    found = [condition(gram, part, each.noise, each.scale) for part, each in zip(parts, chosen)]
    dual = torch.cat([each.scale * posterior.weights for posterior, each in zip(found, chosen)], dim=1)
    worst = max((posterior.status for posterior in found), key=lambda status: (not status.converged, status.residual))
    return dual, worst
