"""The linearised model as a Gaussian process: what it predicts at an input and how surely, without a training row.

With whitened features φ̃ (every feature times its prior deviation; k(x, x') = φ̃(x) · φ̃(x')), their mean m over the n
rows that were fitted to, and eigenpairs (λ_k, q_k) of Σ_i (φ̃_i − m)(φ̃_i − m)ᵀ, λ_1 ≥ λ_2 ≥ …, an output of scale s
and noise σ² has the mean b + φ̃(x) · w̃ and the variance

    s ‖φ̃(x) − m‖² − Σ_{k ≤ r} s² λ_k / (s λ_k + σ²) ((φ̃(x) − m) · q_k)² + σ²/n + (what the pairs beyond r explain).

The last term is left out: the error bars of a cache of rank r are too wide, never too narrow, by at most
s λ_{r+1} / (s λ_{r+1} + σ²) of the prior's variance. Numbers are averaged over s and σ²: to the expectation of the
above comes how far their means lie apart (:class:`regraft.heads.gp.levels.Uncertainty`), along the r directions alone,
so that of these a short cache may make some too narrow. Of so many parameters that few directions of them could be
kept, the variance is that of the process with S φ̃ in the place of φ̃, S random sums of the derivatives
(:mod:`regraft.features.tangent.sums`). The difference is taken of numbers in single precision, which know it to about
1e-6 of the prior's variance: no variance is said to be less than that. Paper: Maddox et al. (2021), Eqs. 2 and 3 (there
with all pairs); σ²/n is what a level that the prior says nothing of leaves open
(:mod:`regraft.graft.posterior.contrasts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regraft.errors import DataError
from regraft.features import Tangent, ntk_adjoints, ntk_project
from regraft.heads.gp.levels import Levels, Uncertainty
from regraft.linear import Design
from regraft.network import Network

__all__ = ["FEATURES", "PosteriorPart", "Rows"]

FEATURES = ".features"
"""What is kept of the last layer's features, beside parameters by name: no parameter's name begins with a dot."""
_WRITTEN = {FEATURES: "features", "features": FEATURES}
"""In the artifact the last layer has the plain name, and a parameter that is called so the other; either way."""
_TENSORS = ("centre", "offsets", "values", "unit")
_OPEN = ("scale", "noise", "explained", "apart", "widening")
_NUMBERS = ("feature", "deviations", "level", "rows", "of_targets", "left_out", "sums")
_ROUNDED = 8 * torch.finfo(torch.float32).eps
"""The share of the prior's variance that derivatives and directions in single precision leave unknown."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of the whitened features φ̃: those of the last layer, and a tangent's of one output; what is kept of them
    is :data:`FEATURES` beside parameters by name, or beside ``sums``.

    Attributes:
        features: (N, D), centred and times their prior deviation.
        tangent: of one output; ``None`` without gradients.
        deviations: the prior deviation of each of its parameters.
    """

    features: Tensor
    tangent: Design | None
    deviations: Mapping[str, float]

    def adjoint(self, vectors: Tensor) -> dict[str, Tensor]:
        """Φ̃ᵀ V for V (N, k): :data:`FEATURES` (k, D), and parameters (k, *shape)."""
        found = {FEATURES: vectors.T @ self.features}
        if self.tangent is None:
            return found
        back = ntk_adjoints(self.tangent, vectors[:, None].to(self.tangent.dtype), prior=self.deviations)
        return {**found, **{name: block.to(vectors) for name, block in back.items()}}

    def project(self, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """φ̃ · φ̃ of each row (N,), and φ̃ · q_k of every direction, (N, k); float64."""
        x = self.features.to(torch.float64)
        within, along = x.square().sum(1), x @ directions[FEATURES].to(torch.float64).T
        if self.tangent is not None:
            named = {name: directions[name] for name in self.tangent.shapes}
            seen = ntk_project(self.tangent, named, prior=self.deviations)
            within = within + seen.within[:, 0, 0].to(within)
            along = along + seen.along[:, 0].to(within)
        return within, along

    def summed(self, count: int, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The features beside so many sums of the derivatives, (N, D + m), and φ̃ · q_k of directions by parameter,
        (N, k); float64."""
        x, tangent = self.features.to(torch.float64), self.tangent
        if tangent is None:
            raise DataError("the error bars are of derivatives", got="rows without them")
        seen = ntk_project(tangent, directions or None, prior=self.deviations, sums=count)
        return torch.cat([x, seen.sums[:, 0].to(x)], dim=1), seen.along[:, 0].to(x)


@dataclass(frozen=True, eq=False)
class PosteriorPart:
    """What the error bars of a new input need, and the part of its mean that derivatives make.

    Attributes:
        head: g ω, (1, D), that the tangent is taken through; ``None`` without gradients.
        centre: (D,), subtracted from the features.
        feature: the prior deviation of each feature's coefficients, at scale 1.
        deviations: of the parameters' coefficients, by name.
        directions: m, and after it q_k: :data:`FEATURES` (1 + r, D), parameters (1 + r, *shape) or ``sums``
            (1 + r, m).
        offsets: m · q_k, (r,).
        values: λ_k, (r,).
        weights: w₂ of each output by parameter, (C, *shape), in the targets' own unit; none without gradients.
        level: ‖m‖².
        rows: n.
        unit: (C,), what one unit of an output is in the error bars' own: of numbers the targets', of classes 1.
        uncertainty: what stays open of the function.
        of_targets: whether error bars are of targets, noise included, or of the function.
        left_out: the largest s λ / (s λ + σ²) beyond the cache: by at most this share of the prior variance is a
            variance too large.
        sums: how many sums stand for the derivatives; 0 where directions are of the parameters themselves.
    """

    head: Tensor | None = field(repr=False)
    centre: Tensor = field(repr=False)
    feature: float
    deviations: Mapping[str, float]
    directions: Mapping[str, Tensor] = field(repr=False)
    offsets: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    weights: Mapping[str, Tensor] = field(repr=False)
    level: float
    rows: int
    unit: Tensor
    uncertainty: Uncertainty
    of_targets: bool
    left_out: float
    sums: int = 0
    _looked: list[Tangent] = field(default_factory=list, init=False, repr=False)
    """The tangent of the network that was looked at last: what finds its derivatives is found and checked once."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_looked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _looked=[])

    @property
    def rank(self) -> int:
        """r."""
        return len(self.values)

    def read(self, features: Tensor, tangent: Design | None) -> tuple[Tensor, Tensor]:
        """What derivatives add to the mean, (N, C), and the error bars, (N, C); float64, in one pass.

        Args:
            features: (N, D) of the last layer.
            tangent: of the same rows through :attr:`head`; ``None`` where there is no head.
        """
        x = (features.to(torch.float64).cpu() - self.centre.to(torch.float64)) * self.feature
        rows = Rows(x, tangent, self.deviations)
        within, along, moved = self._by_sums(rows) if self.sums else self._by_parameters(rows)
        middle, along = along[:, 0], along[:, 1:] - self.offsets
        about = within - 2 * middle + self.level
        variance = self.uncertainty.variance(about, along * self.values.sqrt(), self.rows, _ROUNDED * within)
        if self.of_targets:
            variance = variance + self.uncertainty.scatter
        return moved, variance.sqrt() * self.unit.to(variance)

    def _by_parameters(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """φ̃ · φ̃, φ̃ · (m, q_k) and φ̃ · w₂ of each row."""
        within, along = (found.cpu() for found in rows.project(self._with_weights))
        kept = 1 + self.rank
        moved = along[:, kept:] if self.weights else along.new_zeros(len(along), len(self.unit))
        return within, along[:, :kept], moved

    def _by_sums(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The same, the variance's in terms of the sums."""
        features, moved = (found.cpu() for found in rows.summed(self.sums, self._whitened))
        directions = torch.cat([self.directions[FEATURES], self.directions["sums"]], dim=1).to(features)
        return features.square().sum(1), features @ directions.T, moved

    @cached_property
    def _whitened(self) -> Mapping[str, Tensor]:
        """w₂ of each output, divided by the prior's deviations."""
        return {name: given / self.deviations[name] for name, given in self.weights.items()}

    @cached_property
    def _with_weights(self) -> Mapping[str, Tensor]:
        """The directions, and after them w₂ of each output, whitened: of the tangent alone."""
        if not self.weights:
            return self.directions
        found = {}
        for name, value in self.directions.items():
            given = self._whitened.get(name)
            zeros = value.new_zeros(len(self.unit), *value.shape[1:])
            found[name] = torch.cat([value, zeros if given is None else given.to(value)])
        return found

    def of_batch(self, network: Network, batch: Any, features: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`read` for a preprocessed batch with its last layer's features (B, D)."""
        if self.head is None:
            return self.read(features, None)
        with torch.inference_mode(False):  # in which there would be no derivatives
            batch = network.place(batch)
            return self.read(features, self._tangent(network, batch).on(batch).through(self.head))

    def _tangent(self, network: Network, batch: Any) -> Tangent:
        for looked in self._looked:
            if looked.network is network:
                return looked
        # no weak dictionary by network: a tangent holds its network, which would never be let go
        found = Tangent(network, list(self.deviations), batch, of="embedding", fast=False)
        self._looked[:] = [found]
        return found

    def tensors(self) -> dict[str, Tensor]:
        """For the artifact: everything that is a tensor; directions in single precision, for a variance is a small
        difference of large numbers."""
        found: dict[str, Tensor] = {name: getattr(self, name) for name in _TENSORS}
        found |= {name: getattr(self.uncertainty, name) for name in _OPEN}
        found |= {f"direction.{_WRITTEN.get(name, name)}": value for name, value in self.directions.items()}
        found |= {f"weight.{name}": value for name, value in self.weights.items()}
        if self.head is not None:
            found["head"] = self.head
        return {name: value.contiguous() for name, value in found.items()}

    def to_json(self) -> dict[str, Any]:
        """For the artifact: everything else."""
        return {name: getattr(self, name) for name in _NUMBERS}

    @staticmethod
    def holding(recorded: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> PosteriorPart:
        """What :meth:`to_json` and :meth:`tensors` wrote.

        Raises:
            DataError: error bars as versions before 6 of the artifact kept them, or where those of a parameter
                ``features`` stood in the place of the last layer's directions.
        """
        if "level" not in recorded:
            raise DataError(
                "the error bars of this artifact are of an older kind", do="adapt again with --method tangent-gp"
            )

        def named(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}

        plain: dict[str, Any] = {name: tensors[name] for name in _TENSORS}
        plain |= {name: recorded[name] for name in _NUMBERS if name in recorded}  # no sums before version 7
        if "explained" in tensors:
            plain["uncertainty"] = Uncertainty(*(tensors[name] for name in _OPEN))
        else:  # before version 8 the best scale and noise alone
            known = [Levels.known(*pair) for pair in zip(tensors["scale"].tolist(), tensors["noise"].tolist())]
            values = tensors["values"]
            plain["uncertainty"] = Uncertainty.of(known, values, values.new_zeros(len(values), len(known)))
        directions = {_WRITTEN.get(name, name): value for name, value in named("direction.").items()}
        part = PosteriorPart(head=tensors.get("head"), directions=directions, weights=named("weight."), **plain)
        if "features" in part.deviations and not part.sums and "features" not in directions:
            raise DataError(
                "the error bars of this artifact",
                expected="directions of the last layer and of the parameter 'features'",
                got="one of both",
                do="adapt again with --method tangent-gp",
            )
        return part
