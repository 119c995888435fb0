"""The error bars of a linearised model: the covariance of its logits or values at an input, without a training row.

With coefficients v ~ N(0, I) of whitened features φ̃ (every feature times its prior standard deviation) and curvature
H of the likelihood, the posterior is N(·, (I + Φ̃ᵀ H Φ̃)⁻¹). From the eigenpairs (λ_k, q_k) of Φ̃ᵀ H Φ̃, λ_1 ≥ λ_2 ≥ …,

    Cov[f(x)] = φ̃(x) φ̃(x)ᵀ − Σ_{k ≤ r} λ_k / (1 + λ_k) (φ̃(x) q_k)(φ̃(x) q_k)ᵀ + (what the pairs beyond r explain).

The last term is left out: the error bars of a cache of rank r are too wide, never too narrow, by at most
λ_{r+1} / (1 + λ_{r+1}) of the prior's variance. The difference is taken of numbers in single precision, which know it
to about 1e-6 of the prior's variance: no variance is said to be less than that. Paper: Maddox et al. (2021), Eqs. 2
and 3 (there with all pairs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from regraft.features import Tangent, ntk_adjoints, ntk_project
from regraft.linear import Design
from regraft.network import Network

__all__ = ["PosteriorPart", "Rows"]

_ROUNDED = 8 * torch.finfo(torch.float32).eps
"""The share of the prior's variance that derivatives and directions in single precision leave unknown."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of the whitened features φ̃: those of the last layer, an intercept, and a tangent's.

    Attributes:
        features: (N, D), centred and times their prior deviation.
        intercept: the prior deviation of an output's intercept.
        tangent: of the outputs (N, C); ``None`` without gradients.
        deviations: the prior deviation of each of its parameters.
        outputs: C.
    """

    features: Tensor
    intercept: float
    tangent: Design | None
    deviations: Mapping[str, float]
    outputs: int

    def adjoint(self, vectors: Tensor) -> dict[str, Tensor]:
        """Φ̃ᵀ V for V (N, C, k): ``features`` (k, D, C), ``intercept`` (k, C), and parameters (k, *shape)."""
        found = {
            "features": torch.einsum("nd,nck->kdc", self.features, vectors),
            "intercept": self.intercept * vectors.sum(0).T,
        }
        if self.tangent is None:
            return found
        back = ntk_adjoints(self.tangent, vectors.to(self.tangent.dtype), prior=self.deviations)
        return {**found, **{name: block.to(vectors) for name, block in back.items()}}

    def project(self, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """φ̃ φ̃ᵀ within rows (N, C, C), and φ̃ q_k of every direction (N, C, k); float64."""
        x = self.features.to(torch.float64)
        own = x.square().sum(1) + self.intercept**2
        within = own[:, None, None] * torch.eye(self.outputs, dtype=torch.float64)
        along = torch.einsum("nd,kdc->nck", x, directions["features"].to(torch.float64))
        along = along + self.intercept * directions["intercept"].to(torch.float64).T
        if self.tangent is not None:
            named = {name: directions[name] for name in self.tangent.shapes}
            seen = ntk_project(self.tangent, named, prior=self.deviations)
            within, along = within + seen.within.to(torch.float64), along + seen.along.to(torch.float64)
        return within, along


@dataclass(frozen=True, eq=False)
class PosteriorPart:
    """What the covariance of a new input's outputs needs.

    Attributes:
        head: ω, (C, D), that the tangent is taken through; ``None`` without gradients.
        centre: (D,), subtracted from the features.
        feature: the prior deviation of each feature's coefficients.
        intercept: of the intercepts.
        deviations: of the parameters' coefficients, by name.
        directions: q_k: ``features`` (r, D, C), ``intercept`` (r, C), parameters (r, *shape).
        shrink: λ_k / (1 + λ_k), (r,).
        unit: (C,), what one unit of an output is in the targets' own.
        noise: (C,), the variance of a target beside its mean, in the targets' own unit; ``None`` for classes.
        left_out: the largest λ / (1 + λ) beyond the cache: by at most this share of the prior variance is a variance
            too large.
    """

    head: Tensor | None
    centre: Tensor
    feature: float
    intercept: float
    deviations: Mapping[str, float]
    directions: Mapping[str, Tensor]
    shrink: Tensor
    unit: Tensor
    noise: Tensor | None
    left_out: float
    _looked: WeakKeyDictionary[Network, Tangent] = field(default_factory=WeakKeyDictionary, init=False, repr=False)
    """Tangents of networks that were looked at: what finds their derivatives is found and checked once."""

    @property
    def rank(self) -> int:
        """r."""
        return len(self.shrink)

    def covariance(self, features: Tensor, tangent: Design | None) -> Tensor:
        """Cov[f(x)], (N, C, C): see :meth:`read`."""
        return self.read(features, tangent, {})[1]

    def read(self, features: Tensor, tangent: Design | None, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """ω J w₂, (N, C), and Cov[f(x)], (N, C, C), of the function and not of noisy targets; float64, in one pass.

        Args:
            features: (N, D) of the last layer.
            tangent: of the same rows through :attr:`head`; ``None`` where there is no head.
            weights: w₂ by parameter; none for a mean without a tangent.
        """
        x = (features.to(torch.float64).cpu() - self.centre.to(torch.float64)) * self.feature
        rows = Rows(x, self.intercept, tangent, self.deviations, len(self.unit))
        within, along = rows.project(self._with(weights))
        along, mean = along[:, :, : self.rank], along[:, :, self.rank :].sum(2)
        found = within.cpu() - torch.einsum("nck,k,ndk->ncd", along.cpu(), self.shrink.to(torch.float64), along.cpu())
        own = found.diagonal(dim1=1, dim2=2)
        own.copy_(torch.maximum(own, _ROUNDED * within.diagonal(dim1=1, dim2=2).cpu()))
        unit = self.unit.to(torch.float64)
        return mean.cpu() * unit, found * unit[:, None] * unit

    def _with(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The directions, and after them w₂, whitened: of the tangent alone."""
        if not weights:
            return self.directions
        found = {}
        for name, value in self.directions.items():
            given = weights.get(name)
            last = torch.zeros_like(value[:1]) if given is None else (given / self.deviations[name])[None].to(value)
            found[name] = torch.cat([value, last])
        return found

    def spread(self, covariance: Tensor) -> Tensor:
        """The deviations of targets about their means, (N, C): of the function, and of the noise beside it."""
        variance = covariance.diagonal(dim1=1, dim2=2)
        return variance.sqrt() if self.noise is None else (variance + self.noise.to(variance)).sqrt()

    def of_batch(self, network: Network, batch: Any, features: Tensor) -> Tensor:
        """Cov[f(x)], (B, C, C), for a preprocessed batch with its last layer's features (B, D)."""
        if self.head is None:
            return self.covariance(features, None)
        batch = network.place(batch)
        if network not in self._looked:
            self._looked[network] = Tangent(network, list(self.deviations), batch, of="embedding", fast=False)
        return self.covariance(features, self._looked[network].on(batch).through(self.head))

    def tensors(self) -> dict[str, Tensor]:
        """For the artifact: everything that is a tensor; directions in single precision, for a variance is a small
        difference of large numbers."""
        found = {"centre": self.centre, "shrink": self.shrink, "unit": self.unit}
        found |= {f"direction.{name}": value for name, value in self.directions.items()}
        if self.head is not None:
            found["head"] = self.head
        if self.noise is not None:
            found["noise"] = self.noise
        return {name: value.contiguous() for name, value in found.items()}

    def to_json(self) -> dict[str, Any]:
        """For the artifact: everything else."""
        return {
            "feature": self.feature,
            "intercept": self.intercept,
            "deviations": dict(self.deviations),
            "left_out": self.left_out,
        }

    @staticmethod
    def holding(recorded: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> PosteriorPart:
        """What :meth:`to_json` and :meth:`tensors` wrote."""
        directions = {
            name.removeprefix("direction."): value.to(torch.float32)
            for name, value in tensors.items()
            if name.startswith("direction.")
        }
        return PosteriorPart(
            tensors.get("head"),
            tensors["centre"],
            recorded["feature"],
            recorded["intercept"],
            recorded["deviations"],
            directions,
            tensors["shrink"],
            tensors["unit"],
            tensors.get("noise"),
            recorded["left_out"],
        )
