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

from regraft.features import ntk, ntk_within_rows
from regraft.graft.gradient.fit import Both, Labels, solve_head, weight_of
from regraft.graft.posterior_part import Rows
from regraft.graft.tangent_part import Prior, prior_deviations
from regraft.linear import Design

__all__ = ["Grafted", "share"]


def share(ratio: float) -> float:
    """π of ρ."""
    return ratio / (1 + ratio)


@dataclass(frozen=True, eq=False)
class Grafted:
    """Rows with the two kernels, not yet mixed; float64.

    Attributes:
        both: the rows' features and tangent.
        head: ω (C, D), solved on these rows alone.
        centre: of the features.
        unit: t, the features' mean squared norm about it.
        features: x̃ · x̃' + 1, (N, N).
        tangent: over t₂, (N·C, N·C) row-major; ``None`` without gradients.
        tangent_unit: t₂.
        prior: the deviation of each parameter, before its group's scale.
        outputs: C.
    """

    both: Both
    head: Tensor
    centre: Tensor
    unit: float
    features: Tensor
    tangent: Tensor | None
    tangent_unit: float
    prior: Mapping[str, float]
    outputs: int

    @staticmethod
    def of(both: Both, labels: Labels, strength: float, prior: Prior) -> Grafted:
        """Solve ω at its penalty, and compute the kernels of its rows."""
        x = _features(both)
        centre = x.mean(0)
        spread = (x - centre).square().sum(1).mean()
        unit = float(spread) if float(spread) > 0 else 1.0
        scaled = (x - centre) / sqrt(unit)
        outputs = labels.values.shape[1]
        deviations: dict[str, float] = {}
        tangent, tangent_unit, head = None, 1.0, x.new_zeros((outputs, x.shape[1]))
        if both.tangent is not None:
            head = weight_of(solve_head(both, labels, strength))
            if bool(head.any()):  # a constant target's head is zero, and so is every derivative below it
                design = _tangent(both, head)
                deviations = prior_deviations(design.shapes, prior)
                tangent = ntk(design, prior=deviations).to(torch.float64).cpu()
                tangent_unit = float(tangent.diagonal().mean()) or 1.0
                tangent /= tangent_unit
        features = scaled @ scaled.T + 1
        return Grafted(both, head, centre, unit, features, tangent, tangent_unit, deviations, outputs)

    # ------------------------------------------------------------------------------------- the mixture

    def _mixed(self, features: Tensor, tangent: Tensor | None, ratio: float) -> Tensor:
        part = share(ratio) if self.tangent is not None else 0.0
        wide = features if self.outputs == 1 else torch.kron(features, torch.eye(self.outputs, dtype=features.dtype))
        return wide * (1 - part) if tangent is None or part == 0 else wide * (1 - part) + tangent * part

    def gram(self, ratio: float) -> Tensor:
        """K of the rows, (N·C, N·C)."""
        return self._mixed(self.features, self.tangent, ratio)

    def with_rows(self, held: Both) -> Crossed:
        """The kernels of other rows with these."""
        x = self.scaled(held)
        mine = self.scaled(self.both)
        cross = x @ mine.T + 1
        own = x.square().sum(1) + 1
        if self.tangent is None:
            return Crossed(self, cross, None, own, None)
        design = _tangent(held, self.head)
        between = ntk(design, _tangent(self.both, self.head), prior=self.prior).to(torch.float64).cpu()
        within = ntk_within_rows(design, prior=self.prior).diagonal(dim1=1, dim2=2).to(torch.float64).cpu()
        return Crossed(self, cross, between / self.tangent_unit, own, within.reshape(-1) / self.tangent_unit)

    def scaled(self, both: Both) -> Tensor:
        """x̃, (N, D)."""
        return (_features(both) - self.centre) / sqrt(self.unit)

    # ---------------------------------------------------------------------------------- in weight space

    def deviations(self, ratio: float, scale: float) -> tuple[float, float, dict[str, float]]:
        """The prior deviation of a coefficient of x − centre, of an intercept, and of every parameter's."""
        part = share(ratio) if self.tangent is not None else 0.0
        own = sqrt(scale * (1 - part))
        group = sqrt(scale * part / self.tangent_unit)
        named = {name: value * group for name, value in self.prior.items()} if part > 0 else {}
        return own / sqrt(self.unit), own, named

    def rows(self, ratio: float, scale: float) -> Rows:
        """The whitened features φ̃ of these rows: φ̃ φ̃ᵀ = scale · K."""
        feature, intercept, deviations = self.deviations(ratio, scale)
        x = (_features(self.both) - self.centre) * feature
        tangent = _tangent(self.both, self.head) if deviations else None
        return Rows(x, intercept, tangent, deviations, self.outputs)


@dataclass(frozen=True, eq=False)
class Crossed:
    """Kernels between other rows and those of a :class:`Grafted`.

    Attributes:
        grafted: those.
        features, tangent: between, (M, N) and (M·C, N·C).
        own_features, own_tangent: of every other row with itself, (M,) and (M·C,).
    """

    grafted: Grafted
    features: Tensor
    tangent: Tensor | None
    own_features: Tensor
    own_tangent: Tensor | None

    def cross(self, ratio: float) -> Tensor:
        """K between, (M·C, N·C)."""
        return self.grafted._mixed(self.features, self.tangent, ratio)

    def own(self, ratio: float) -> Tensor:
        """The diagonal of K at the other rows, (M·C,)."""
        part = share(ratio) if self.own_tangent is not None else 0.0
        wide = self.own_features.repeat_interleave(self.grafted.outputs) * (1 - part)
        return wide if self.own_tangent is None else wide + self.own_tangent * part


def _features(both: Both) -> Tensor:
    rows = slice(0, both.features.n_rows)
    return torch.cat([m.rows(rows) for m in both.features.matrices.values()], dim=1).to(torch.float64).cpu()


def _tangent(both: Both, head: Tensor) -> Design:
    if both.tangent is None:
        raise TypeError("there is no tangent without gradients")
    return both.tangent.through(head).take(both.rows)
