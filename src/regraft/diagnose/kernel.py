"""The neural tangent kernel of a backbone's features at a few inputs, and how far it has moved.

Paper: Ren, Guo, Bae, Sutherland, "How to prepare your task head for finetuning", ICLR 2023, Appendix A ("Verification
of slow kernel change", Fig. 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regraft.errors import DataError
from regraft.features import Tangent, ntk
from regraft.network import Network

__all__ = ["Kernel", "feature_kernel"]

_BATCH = 8


@dataclass(frozen=True, eq=False)
class Kernel:
    """``κ(j, n) = (∂z_j/∂B) (∂z_n/∂B)ᵀ`` of all pairs of n inputs, between r directions on either side.

    Attributes:
        values: ``(n, r, n, r)``.
        factor: what a norm is multiplied by: ``h / r``, 1 for all directions.
    """

    values: Tensor
    factor: float = 1.0

    @property
    def norm(self) -> float:
        """``k_norm``: the mean of ``‖κ(j, n)‖_F`` over all pairs."""
        return self.factor * _mean_norm(self.values)

    def gap(self, later: Kernel) -> float:
        """``k_gap``: the mean of ``‖κ'(j, n) − κ(j, n)‖_F`` over all pairs, κ' a later kernel.

        Raises:
            DataError: the later kernel has other inputs or directions.
        """
        if later.values.shape != self.values.shape:
            raise DataError(
                "kernels do not fit", expected=str(tuple(self.values.shape)), got=str(tuple(later.values.shape))
            )
        return self.factor * _mean_norm(later.values - self.values)


def feature_kernel(network: Network, batch: Any, *, directions: int | None = 16, seed: int = 0) -> Kernel:
    """The kernel of the pooled embedding z ``(N, h)`` in all parameters B below it.

    With fewer directions than h, ``κ`` is replaced by ``S₁ κ S₂ᵀ`` with two independent random S of r orthonormal rows
    each: ``E ‖S₁ κ S₂ᵀ‖²_F = (r/h)² ‖κ‖²_F``, so ``h / r`` times its norm estimates that of κ, without bias in the
    squares. The same seed gives the same directions, so gaps compare like with like. Where one direction carries κ,
    as in trained networks, the estimate of a norm has a relative error of about ``√(1/r)``, much of which a gap shares.
    It costs 2 r backward passes a row (h for all directions), and again as many for every 2 GiB of derivatives, of
    which a layer's are held at a time (:func:`regraft.features.ntk`), and 8 (n r)² bytes beside these.

    Args:
        network: the backbone; what gives its logits, if it has any, is left out.
        batch: preprocessed inputs.
        directions: r; ``None`` for all h.
        seed: of the directions.

    Raises:
        ModelError: the network cannot be differentiated, or gives its logits by no single linear layer.
        DataError: less than one direction.
    """
    if directions is not None and directions < 1:
        raise DataError("the directions of a kernel", expected="at least one, or None for all", got=str(directions))
    width = next(site.shape[0] for site in network.sites if site.name == "embedding")
    count = width if directions is None else min(directions, width)
    below = [name for name in network.params if not (network.head and name.startswith(f"{network.head}."))]
    # A Tangent's own fast ways pay where many products are taken; here each derivative is written out once.
    tangent = Tangent(network, below, batch, of="embedding", fast=False, batch_size=_BATCH)
    if count == width:
        values = ntk(tangent)
    else:
        values = ntk(*(tangent.through(_directions(width, count, seed, side)) for side in (0, 1)))
    shape = (tangent.n_rows, count) * 2
    return Kernel(values.cpu().double().view(shape), width / count)


def _directions(width: int, count: int, seed: int, side: int) -> Tensor:
    """``(count, width)`` orthonormal rows, uniform (the Q of a Gaussian matrix, its signs fixed by R)."""
    generator = torch.Generator().manual_seed(2 * seed + side)
    drawn = torch.randn(width, count, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(drawn)
    return (q * r.diagonal().sign()).T.float()


def _mean_norm(values: Tensor) -> float:
    return float(values.square().sum((1, 3)).sqrt().mean())
