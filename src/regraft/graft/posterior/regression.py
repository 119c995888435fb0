"""Gaussian process regression with the tangent kernel, chosen by folds: kernel by kernel, then solved on all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from regraft.errors import DataError
from regraft.graft.gradient.fit import Both, Labels
from regraft.graft.posterior.kernel import Grafted
from regraft.graft.posterior_part import PosteriorPart, Rows
from regraft.graft.stages.posterior import Posterior
from regraft.graft.tangent_part import Prior
from regraft.heads import Hyperparameters, Spectrum, Status, condition
from regraft.heads import Posterior as Conditioned
from regraft.heads.l2.fitters import Fitter, Found
from regraft.linear import Blocks

__all__ = ["Fitted", "KernelFitter"]

_SEARCHED = 1500
"""Outputs of rows (N · C) that the kernel's mixture, scale and noise are chosen on: an eigendecomposition costs N³."""
_MOST = 25_000
"""Outputs of rows that one factorisation is taken of."""
_ROUNDED = 1e-12
"""The share of the largest eigenvalue below which others are rounding, of a kernel in double precision."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The posterior of the function, in weight space.

    Attributes:
        features: w₁ (D, C).
        intercept: (C,).
        parameters: w₂ by parameter; empty without gradients.
        head: ω (C, D), for targets in units of their spread.
        part: the error bars.
        chosen: scale and noise.
        status: how the system was solved.
    """

    features: Tensor
    intercept: Tensor
    parameters: dict[str, Tensor]
    head: Tensor
    part: PosteriorPart
    chosen: Hyperparameters
    status: Status


class KernelFitter(Fitter):
    """Fits without each fold, each with its own ω, scale and noise, and the fit on all rows.

    Args:
        both: all rows with all labels.
        labels: theirs.
        folds: (N,).
        strength: of ω's penalty.
        prior: of the parameters.
        stage: what the posterior keeps.
        seed: of the rows that the choice is made on, where there are many.
    """

    def __init__(
        self, both: Both, labels: Labels, folds: Tensor, strength: float, prior: Prior, stage: Posterior, seed: int
    ) -> None:
        self.both, self.labels, self.folds, self.stage = both, labels, folds, stage
        self.strength, self.prior = strength, prior
        outputs = labels.values.shape[1]
        rows = len(folds)
        if rows * outputs > _MOST:
            raise DataError(
                f"{rows} rows of {outputs} outputs are too many for an exact Gaussian process",
                expected=f"at most {_MOST:,} outputs of rows",
                do="take fewer rows with --limit, or use --method gradient, whose model is of the same form",
            )
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        self.searched = order[: max(2, _SEARCHED // outputs)].sort().values
        self._folds: dict[int, tuple[Grafted, Labels, Tensor]] = {}
        self._fitted: dict[float, Fitted] = {}

    def out_of_fold(self, form: str, strengths: Sequence[float]) -> tuple[Tensor, list[Tensor | None]]:
        """Means (M, N, C) in the targets' own unit; NaN where a row took no part in the choice."""
        out = torch.full((len(strengths), *self.labels.values.shape), torch.nan, dtype=torch.float64)
        for fold in torch.unique(self.folds[self.searched]).tolist():
            grafted, labels, held = self._fold(fold)
            mean, spread = labels.unit
            for index, ratio in enumerate(strengths):
                posterior, _ = _conditioned(grafted, labels, ratio, self.stage.by)
                out[index, held] = posterior.mean(grafted.cross.at(ratio)) * spread + mean
        return out, [None] * len(strengths)

    def _fold(self, fold: int) -> tuple[Grafted, Labels, Tensor]:
        if fold not in self._folds:
            inside = self.folds[self.searched] == fold
            rows, held = self.searched[~inside], self.searched[inside]
            labels = self.labels.take(rows)
            grafted = Grafted.of(self.both.take(rows), labels, self.strength, self.prior, self.both.take(held))
            self._folds[fold] = grafted, labels, held
        return self._folds[fold]

    def spread(self, ratio: float) -> Tensor:
        """The deviations of the targets about their out-of-fold means (N, C), at one mixture; NaN of other rows."""
        out = torch.full(self.labels.values.shape, torch.nan, dtype=torch.float64)
        for fold in torch.unique(self.folds[self.searched]).tolist():
            grafted, labels, held = self._fold(fold)
            posterior, found = _conditioned(grafted, labels, ratio, self.stage.by)
            own = grafted.held.at(ratio).diagonal()
            variance = posterior.variance(grafted.cross.at(ratio), own) + found.noise
            out[held] = variance.sqrt() * labels.unit[1]
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
        labels, y = self.labels, self.labels.standard
        grafted = Grafted.of(self.both, labels, self.strength, self.prior)
        gram = grafted.own.at(ratio)
        spectrum = None
        if len(gram) <= 2 * _SEARCHED:
            spectrum = Spectrum.of(gram)
            chosen = spectrum.choose(y, self.stage.by)
        else:
            some = self.labels.take(self.searched)
            few = Grafted.of(self.both.take(self.searched), some, self.strength, self.prior)
            chosen = Spectrum.of(few.own.at(ratio)).choose(some.standard, self.stage.by)
        posterior = condition(gram, y, chosen.noise, chosen.scale)
        rows = grafted.rows(ratio, chosen.scale)
        feature, intercept, deviations = grafted.deviations(ratio, chosen.scale)
        values, vectors, left_out = self._leading(gram, spectrum, rows, chosen)
        # the mean and all directions in one pass over the rows
        found = rows.adjoint(torch.cat([posterior.weights[:, :, None], vectors], dim=2))
        mean, spread = labels.unit
        w1 = found["features"][0] * feature * spread
        bias = found["intercept"][0] * intercept * spread + mean - grafted.centre @ w1
        w2 = {name: found[name][0] * value for name, value in deviations.items()}
        wide = spread.expand(grafted.own.outputs)
        part = PosteriorPart(
            grafted.head.to(torch.float32) if deviations else None,
            grafted.centre.to(torch.float32),
            feature,
            intercept,
            deviations,
            {name: value[1:].to(torch.float32) for name, value in found.items()},
            (values / (values + chosen.noise)).to(torch.float32),
            wide.to(torch.float32).clone(),
            (chosen.noise * wide.square()).to(torch.float32),
            left_out,
        )
        return Fitted(w1, bias, w2, grafted.head, part, chosen, posterior.status)

    def _leading(
        self, gram: Tensor, spectrum: Spectrum | None, rows: Rows, chosen: Hyperparameters
    ) -> tuple[Tensor, Tensor, float]:
        """The largest eigenvalues of s K and vectors (N, C, r) over their roots; what the next one explains.

        Eigenvalues that the rounding of the derivatives makes up are none: they would explain what no row shows.
        """
        numbers = sum(torch.Size(shape).numel() for shape in (rows.tangent.shapes if rows.tangent else {}).values())
        rank = min(self.stage.rank_for(numbers), len(gram))
        values, vectors = _largest(gram, spectrum, min(rank + 1, len(gram)))
        values = values.clamp_min(0) * chosen.scale
        rounded = max(_ROUNDED, torch.finfo(rows.tangent.dtype).eps if rows.tangent else 0.0)
        kept = min(rank, int((values > rounded * float(values.max().clamp_min(1e-300))).sum()))
        left_out = float(values[kept] / (values[kept] + chosen.noise)) if len(values) > kept else 0.0
        vectors = vectors[:, :kept] / values[:kept].sqrt()
        return values[:kept], vectors.view(-1, rows.outputs, kept), left_out


def _conditioned(
    grafted: Grafted, labels: Labels, ratio: float, by: Literal["marginal", "loo"]
) -> tuple[Conditioned, Hyperparameters]:
    """The posterior at ρ, with the best scale and noise."""
    gram = grafted.own.at(ratio)
    found = Spectrum.of(gram).choose(labels.standard, by)
    return condition(gram, labels.standard, found.noise, found.scale), found


def _largest(gram: Tensor, spectrum: Spectrum | None, rank: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues, descending, and their vectors."""
    if spectrum is None and rank < len(gram) // 2:
        values, vectors = eigsh(gram.numpy(), k=rank, which="LM", v0=gram.new_ones(len(gram)).numpy())
        return torch.from_numpy(values.copy()).flip(0), torch.from_numpy(vectors.copy()).flip(1)
    spectrum = spectrum or Spectrum.of(gram)
    return spectrum.values.flip(0)[:rank], spectrum.vectors.flip(1)[:, :rank]
