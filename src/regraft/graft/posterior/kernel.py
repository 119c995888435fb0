"""The prior of a linearised model: a linear kernel of the last layer, and the tangent kernel of θ₂ beside it.

    K = (1 − π) (x̃ · x̃' + 1) ⊗ I_C + π / t₂ · ω J_θ₂ f(x) D J_θ₂ f(x')ᵀ ωᵀ,    π = ρ / (1 + ρ),

x̃ the last layer's features, centred and in units of their mean squared norm, t₂ the mean of the tangent kernel's
diagonal, D the prior of :func:`regraft.graft.tangent_part.prior_deviations`, ω a head that was solved first. It is the
kernel of the network with its head, every parameter of θ₂ and of the head being free (Maddox et al., 2021, Section 3),
with one scale a group. Targets are in units of their spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from regraft.features import ntk
from regraft.graft.gradient.fit import Both, Labels, solve_head, weight_of
from regraft.graft.posterior_part import Rows
from regraft.graft.tangent_part import Prior, prior_deviations

__all__ = ["Grafted", "Kernels", "share"]


def share(ratio: float) -> float:
    """π of ρ."""
    return ratio / (1 + ratio)


@dataclass(frozen=True, eq=False)
class Kernels:
    """Two kernels between some rows and others, not yet mixed; float64.

    Attributes:
        features: x̃ · x̃' + 1, (M, N).
        tangent: over t₂, (M·C, N·C) row-major; ``None`` without gradients.
        outputs: C.
    """

    features: Tensor
    tangent: Tensor | None
    outputs: int

    def at(self, ratio: float) -> Tensor:
        """K at ρ, (M·C, N·C)."""
        eye = torch.eye(self.outputs, dtype=torch.float64)
        wide = self.features if self.outputs == 1 else torch.kron(self.features, eye)
        part = share(ratio)
        return wide if self.tangent is None else wide * (1 - part) + self.tangent * part

    def between(self, left: slice, right: slice) -> Kernels:
        """Of some rows with some others."""
        c, tangent = self.outputs, self.tangent
        if tangent is not None:
            tangent = tangent[left.start * c : left.stop * c, right.start * c : right.stop * c]
        return Kernels(self.features[left, right], tangent, c)


@dataclass(frozen=True, eq=False)
class Grafted:
    """A head solved on some rows, and the kernels of these and of rows held out.

    Attributes:
        both: the rows' features and tangent.
        head: ω (C, D), solved on them alone.
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
    def of(both: Both, labels: Labels, strength: float, prior: Prior, held: Both | None = None) -> Grafted:
        """Solve ω at its penalty, and compute all kernels in one pass over all the rows."""
        x, outputs = _features(both), labels.values.shape[1]
        centre = x.mean(0)
        spread = float((x - centre).square().sum(1).mean())
        unit = spread if spread > 0 else 1.0
        every = x if held is None else torch.cat([x, _features(held)])
        scaled = (every - centre) / sqrt(unit)
        deviations: dict[str, float] = {}
        tangent, tangent_unit, head = None, 1.0, x.new_zeros((outputs, x.shape[1]))
        if both.tangent is not None:
            head = weight_of(solve_head(both, labels, strength))
            if bool(head.any()):  # a constant target's head is zero, and so is every derivative below it
                rows = both.rows if held is None else torch.cat([both.rows, held.rows])
                design = both.tangent.through(head).take(rows)
                deviations = prior_deviations(design.shapes, prior)
                tangent = ntk(design, prior=deviations).to(torch.float64).cpu()
                tangent_unit = float(tangent.diagonal()[: len(x) * outputs].mean()) or 1.0
                tangent /= tangent_unit
        whole = Kernels(scaled @ scaled.T + 1, tangent, outputs)
        mine, theirs = slice(0, len(x)), slice(len(x), len(every))
        parts = (whole.between(mine, mine), whole.between(theirs, mine), whole.between(theirs, theirs))
        return Grafted(both, head, centre, unit, tangent_unit, deviations, *parts)

    # ---------------------------------------------------------------------------------- in weight space

    def deviations(self, ratio: float, scale: float) -> tuple[float, float, dict[str, float]]:
        """The prior deviation of a coefficient of x − centre, of an intercept, and of every parameter's."""
        part = share(ratio) if self.own.tangent is not None else 0.0
        own = sqrt(scale * (1 - part))
        group = sqrt(scale * part / self.tangent_unit)
        named = {name: value * group for name, value in self.prior.items()} if part > 0 else {}
        return own / sqrt(self.unit), own, named

    def rows(self, ratio: float, scale: float) -> Rows:
        """The whitened features φ̃ of these rows: φ̃ φ̃ᵀ = scale · K."""
        feature, intercept, deviations = self.deviations(ratio, scale)
        x = (_features(self.both) - self.centre) * feature
        tangent = None
        if deviations and self.both.tangent is not None:
            tangent = self.both.tangent.through(self.head).take(self.both.rows)
        return Rows(x, intercept, tangent, deviations, self.own.outputs)


def _features(both: Both) -> Tensor:
    rows = slice(0, both.features.n_rows)
    return torch.cat([m.rows(rows) for m in both.features.matrices.values()], dim=1).to(torch.float64).cpu()
