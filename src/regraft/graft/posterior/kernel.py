"""The prior of a linearised model: a linear kernel of the last layer, and the tangent kernel of θ₂ beside it.

    k(x, x') = (1 − π) x̃ · x̃' + π / t₂ · ∇_θ₂ u(x) D ∇_θ₂ u(x')ᵀ,    u(x) = g ω f(x),    π = ρ / (1 + ρ),

x̃ the last layer's features, centred and in units of their mean squared norm, D the prior of
:func:`regraft.graft.adapted.tangent.prior_deviations`, ω a head that was solved first and t₂ the gradients' mean
squared norm about their mean. Every output has this kernel, a scale of its own and a level of its own, of which the
prior says nothing; the outputs are independent a priori. Of one output g is 1: the kernel of the network with its head,
every parameter of θ₂ and of the head being free, with one scale a group (Maddox et al., 2021, Section 3). Of several
outputs u is a random combination g ~ N(0, I) of them, the same for all: its kernel is on average the mean over outputs
of their own (:func:`regraft.features.ntk`, ``shared``), at one backward pass instead of C. Targets are in units of
their spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from regraft.graft.adapted.posterior import Rows
from regraft.graft.adapted.tangent import Prior, prior_deviations, prior_kernel
from regraft.graft.gradient.fit import Both, Labels, solve_head, weight_of
from regraft.graft.posterior.contrasts import Contrasts
from regraft.linear import Design

__all__ = ["AtHead", "Kernels", "about_the_mean", "combination", "share"]


_ROUNDED = 1e-12
"""Spread of gradients over their level, in squares, below which they differ by their rounding to float32 alone."""


def share(ratio: float) -> float:
    """π of ρ."""
    return ratio / (1 + ratio)


def combination(weight: Tensor, seed: int = 0) -> Tensor:
    """g ω / √C, (1, D), g ~ N(0, I) drawn with ``seed``; of one output ω itself."""
    if len(weight) == 1:
        return weight
    drawn = torch.randn(1, len(weight), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(weight) @ weight / sqrt(len(weight))


@dataclass(frozen=True, eq=False)
class Kernels:
    """Two kernels between some rows and others, not yet mixed; float64.

    Attributes:
        features: x̃ · x̃', (M, N).
        tangent: over t₂, (M, N); ``None`` without gradients.
    """

    features: Tensor
    tangent: Tensor | None

    def at(self, ratio: float) -> Tensor:
        """K at ρ, (M, N)."""
        return self.features if self.tangent is None else torch.lerp(self.features, self.tangent, share(ratio))

    def between(self, left: slice, right: slice) -> Kernels:
        """Of some rows with some others."""
        return Kernels(self.features[left, right], None if self.tangent is None else self.tangent[left, right])


@dataclass(frozen=True, eq=False)
class AtHead:
    """A head solved on some rows, and the kernels of these and of rows held out.

    Attributes:
        both: the rows' features and tangent.
        head: g ω (1, D), ω solved on them alone.
        centre: of their features.
        unit: t, the features' mean squared norm about it.
        tangent_unit: t₂.
        prior: the deviation of each parameter, before its group's scale; empty without gradients.
        own: of the rows with one another.
        cross: of the held-out rows with them.
        held: of the held-out rows with one another.
    """

    both: Both
    head: Tensor
    centre: Tensor
    unit: float
    tangent_unit: float
    prior: Mapping[str, float]
    own: Kernels
    cross: Kernels
    held: Kernels

    @staticmethod
    def of(both: Both, labels: Labels, strength: float, prior: Prior, held: Both | None = None) -> AtHead:
        """Solve ω at its penalty, and compute all kernels in one pass over all the rows."""
        x = _features(both)
        centre = x.mean(0)
        spread = float((x - centre).square().sum(1).mean())
        unit = spread if spread > 0 else 1.0
        every = x if held is None else torch.cat([x, _features(held)])
        scaled = (every - centre) / sqrt(unit)
        deviations: dict[str, float] = {}
        tangent, tangent_unit, head = None, 1.0, x.new_zeros((1, x.shape[1]))
        if both.tangent is not None:
            head = combination(weight_of(solve_head(both, labels, strength)))
            if bool(head.any()):  # a constant target's head is zero, and so is every derivative below it
                rows = both.rows if held is None else torch.cat([both.rows, held.rows])
                design = both.tangent.through(head).take(rows)
                deviations = prior_deviations(design.shapes, prior, both.tangent.network.module)
                tangent, tangent_unit = about_the_mean(design, deviations, len(x))
                deviations = {} if tangent is None else deviations
        whole = Kernels(scaled @ scaled.T, tangent)
        mine, theirs = slice(0, len(x)), slice(len(x), len(every))
        parts = (whole.between(mine, mine), whole.between(theirs, mine), whole.between(theirs, theirs))
        return AtHead(both, head, centre, unit, tangent_unit, deviations, *parts)

    def contrasts(self, ratio: float) -> Contrasts:
        """The kernel of the rows at ρ, their common level taken out."""
        return Contrasts(self.own.at(ratio))

    # ---------------------------------------------------------------------------------- in weight space

    def deviations(self, ratio: float) -> tuple[float, dict[str, float]]:
        """The prior deviation, at scale 1, of a coefficient of x − centre, and of every parameter's."""
        part = share(ratio) if self.prior else 0.0
        group = sqrt(part / self.tangent_unit)
        named = {name: value * group for name, value in self.prior.items()} if part > 0 else {}
        return sqrt((1 - part) / self.unit), named

    def rows(self, ratio: float) -> Rows:
        """The whitened features φ̃ of these rows: φ̃ φ̃ᵀ = K."""
        feature, deviations = self.deviations(ratio)
        x = (_features(self.both) - self.centre) * feature
        tangent = None
        if deviations and self.both.tangent is not None:
            tangent = self.both.tangent.through(self.head).take(self.both.rows)
        return Rows(x, tangent, deviations)


def about_the_mean(design: Design, deviations: Mapping[str, float], rows: int) -> tuple[Tensor | None, float]:
    """The tangent kernel in units of t₂, and t₂, of the first ``rows`` rows; no kernel of rows with one gradient."""
    kernel = prior_kernel(design, deviations).to(torch.float64).cpu()
    some = kernel[:rows, :rows]
    level = float(some.diagonal().mean())
    spread = level - float(some.mean())
    if rows > 1 and spread <= _ROUNDED * level:
        return None, 1.0
    unit = spread if spread > 0 else 1.0
    kernel /= unit
    return kernel, unit


def _features(both: Both) -> Tensor:
    rows = slice(0, both.features.n_rows)
    return torch.cat([m.rows(rows) for m in both.features.matrices.values()], dim=1).to(torch.float64).cpu()
