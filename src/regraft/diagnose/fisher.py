"""Products with the Fisher matrix of a network's loss: exact, and by the finite difference that paper 001 takes.

For the losses here the Fisher matrix is the Gauss-Newton matrix, and the labels do not enter:

    F = Σ_i w_i J_iᵀ H_i J_i,      J_i = ∂f(θ, x_i)/∂θ  (C, P),      H_i = ∂²ℓ/∂f²  (C, C),

a *mean* over rows by default (w_i = 1/N); a sum has weights of one.

=========  =========================  ====================================
loss       ℓ(y, f)                    H, with p = softmax(f) or σ(f)
=========  =========================  ====================================
softmax    log Σ_c exp f_c − f_y      diag(p) − p pᵀ
sigmoid    Σ_c log(1+exp f_c) − y f   diag(p (1 − p))
squared    ½ ‖f − y‖²                 I  (a Gaussian of unit variance)
=========  =========================  ====================================

Paper: Maddox, Tang, Moreno, Wilson, Damianou, "Fast Adaptation with Linearized Neural Networks", AISTATS 2021: the
definition in Section 3.2, the finite difference in Eq. 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from regraft.diagnose.objective import LossName, row_weights
from regraft.errors import DataError, SolverError
from regraft.features import Tangent
from regraft.features.tangent.feed import Feed
from regraft.features.tangent.replay import cast, private_copy
from regraft.features.tangent.weights import check_modes, selected
from regraft.heads import link
from regraft.linear import Blocks, Design, Operator, Tag, all_finite
from regraft.linear.operator import diagonal
from regraft.network import Network
from regraft.network.policy import grad

__all__ = ["DifferenceFisher", "Fisher", "LossHessian", "ProductError", "fisher", "product_error"]

_LINKS: dict[str, Literal["softmax", "sigmoid", "identity"]] = {
    "softmax": "softmax",
    "sigmoid": "sigmoid",
    "squared": "identity",
}
_BYTES = 2**28  # of the derivatives of a few rows


@final
class LossHessian(Operator):
    """diag(w_1 H_1, …, w_N H_N), the loss's second derivative in the outputs, ``(N·C, N·C)`` over row-major outputs.

    Nothing of size C² is kept, so a thousand classes are no burden.

    Args:
        outputs: f, ``(N, C)``.
        loss: ``softmax``, ``sigmoid`` or ``squared``.
        weights: w, ``(N,)``, finite and not negative; 1/N by default. For a Gaussian of noise σ_i², give 1/σ_i².

    Raises:
        DataError: the loss is unknown, there are no rows, or the weights do not fit.
    """

    def __init__(self, outputs: Tensor, loss: LossName = "softmax", weights: Tensor | None = None) -> None:
        if outputs.ndim != 2 or not len(outputs):
            raise DataError("outputs of a loss", expected="(N, C) with N > 0", got=str(tuple(outputs.shape)))
        size = outputs.numel()
        super().__init__((size, size), outputs.dtype, tags=(Tag.POSITIVE_SEMIDEFINITE,), device=outputs.device)
        self.loss, self.mean = loss, link(_link(loss), outputs.detach())
        self.weights = row_weights(weights, outputs)

    def _apply(self, vectors: Tensor) -> Tensor:
        return self._curve(vectors.reshape(*self.mean.shape, -1)).reshape(vectors.shape)

    _adjoint = _apply

    def _curve(self, step: Tensor) -> Tensor:
        """w H z for z ``(N, C, k)``."""
        mean, weights = self.mean[:, :, None], self.weights[:, None, None]
        if self.loss == "squared":
            return weights * step
        if self.loss == "sigmoid":
            return weights * mean * (1 - mean) * step
        return weights * mean * (step - (mean * step).sum(1, keepdim=True))


@final
class Fisher(Operator):
    """F = Σ_i w_i J_iᵀ H_i J_i of a design J, ``(P, P)`` over flattened coefficients; exact.

    A product is one ``apply`` and one ``adjoint`` of the design. Make it of a network with :func:`fisher`. The diagonal
    is written from the rows of J, N · C derivatives, so that ``linear.jacobi`` can be used.

    Args:
        design: J, such as a :class:`regraft.features.Tangent`, or the features under a linear head.
        outputs: f, ``(N, C)``, where the loss's curvature is taken.
        loss, weights: see :class:`LossHessian`.

    Raises:
        DataError: outputs of another shape than the design's.
    """

    def __init__(
        self, design: Design, outputs: Tensor, loss: LossName = "softmax", weights: Tensor | None = None
    ) -> None:
        if tuple(outputs.shape) != (design.n_rows, design.n_outputs):
            expected = str((design.n_rows, design.n_outputs))
            raise DataError("the outputs of a design", expected=expected, got=str(tuple(outputs.shape)))
        self.design = design
        self.hessian = LossHessian(outputs.to(device=design.device, dtype=design.dtype), loss, weights)
        size = design.n_coefficients
        super().__init__((size, size), design.dtype, tags=(Tag.POSITIVE_SEMIDEFINITE,), device=design.device)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The blocks that a flat vector holds, in order: ``Blocks.unflatten(vector, shapes)``."""
        return dict(self.design.shapes)

    def _apply(self, vectors: Tensor) -> Tensor:
        return _columns(self._product, vectors)

    _adjoint = _apply

    def _product(self, vector: Tensor) -> Tensor:
        moved = self.design.apply(Blocks.unflatten(vector, self.design.shapes))
        return self.design.adjoint(self.hessian.apply(moved.reshape(-1)).view(moved.shape)).flatten()


@diagonal.register
def _(operator: Fisher) -> Tensor:
    """Σ_i w_i Σ_c s_c (J_c − m)²: for softmax the variance of J_c under p, for the others Σ_c H_cc J_c²."""
    design, hessian = operator.design, operator.hessian
    like = torch.zeros(0, dtype=operator.dtype, device=operator.device)
    total = {name: like.new_zeros(prod(shape)) for name, shape in design.shapes.items()}
    for part, name, written in design.row_blocks(_BYTES):
        mean, weights = hessian.mean[part][:, :, None], hessian.weights[part]
        if hessian.loss == "softmax":
            found = (mean * (written - (mean * written).sum(1, keepdim=True)).square()).sum(1)
        elif hessian.loss == "sigmoid":
            found = (mean * (1 - mean) * written.square()).sum(1)
        else:
            found = written.square().sum(1)
        total[name] += weights @ found
    return torch.cat(list(total.values()))


def fisher(
    network: Network,
    inputs: Any,
    *,
    loss: LossName = "softmax",
    select: str | Sequence[str] = "*",
    weights: Tensor | None = None,
    dtype: torch.dtype | None = None,
    batch_size: int = 64,
    fast: bool = True,
) -> Fisher:
    """The exact Fisher matrix of a network's loss as an Operator: symmetric, positive semi-definite, for CG or Lanczos.

    The network is linearised once, with the activations of all rows kept (``fisher(…).design.cost`` says how much,
    ``.design.path`` how); then a product runs the linear operations alone, forward and back, which takes about as long
    as one gradient of the loss.

    Args:
        network: f; frozen, BatchNorm by its running statistics.
        inputs: a Manifest, a preprocessed batch, or a list of batches; batches are summed.
        loss: ``softmax``, ``sigmoid`` or ``squared``, of the network's outputs.
        select: shell-style patterns over parameter names; all of them by default.
        weights: of the rows; 1/N by default, so that F is a mean.
        dtype: of vectors and arithmetic; by default the parameters'.
        batch_size: rows at a time.
        fast: whether activations are kept; else every product runs the network forward twice and back once, and
            nothing but the inputs is held.

    Raises:
        ModelError, RecipeError, DataError: as :class:`regraft.features.Tangent` and :class:`LossHessian` do.
    """
    tangent = Tangent(network, select, inputs, dtype=dtype, batch_size=batch_size, fast=fast)
    return Fisher(tangent, tangent.outputs, loss, weights)


@final
class DifferenceFisher(Operator):
    """The finite-difference Fisher product of paper 001, Eq. 5; as costly as a gradient, and approximate.

    With u = v / ‖v‖ and ε = step · ‖θ‖ (over the selected parameters; ``step`` itself where they are zero),

        F v ≈ (‖v‖ / ε) ∇_θ' Σ_i w_i KL(p(· | x_i, θ) ‖ p(· | x_i, θ')) at θ' = θ + ε u
            = (‖v‖ / ε) Σ_i w_i J_i(θ')ᵀ (μ_i(θ') − μ_i(θ)),      μ = softmax(f), σ(f) or f.

    The error is O(ε), until rounding of μ, which grows as 1/ε, exceeds it: in float32 relative errors of 1e-3 to 1e-2
    are left whatever the step (the paper says "on the order of 0.001"); :func:`product_error` measures them. The
    product is exactly homogeneous for positive factors of v, and symmetric and linear up to that error only. CG and
    Lanczos take it at that price; what is solved with it is no more accurate. :func:`fisher` costs about the same.

    Args:
        network, inputs, loss, select, weights, dtype, batch_size: see :func:`fisher`.
        step: ε / ‖θ‖. The paper names none; 1e-4 did well in float32 on four networks (``benchmarks/fisher.py``).

    Raises:
        ModelError: a pattern matches nothing, or a module is in training mode.
        DataError: there are no rows, the loss is unknown, or the weights do not fit.
        SolverError: the step is not finite and positive, or a product is not finite.
    """

    def __init__(
        self,
        network: Network,
        inputs: Any,
        *,
        loss: LossName = "softmax",
        select: str | Sequence[str] = "*",
        weights: Tensor | None = None,
        step: float = 1e-4,
        dtype: torch.dtype | None = None,
        batch_size: int = 64,
    ) -> None:
        if not 0 < step < float("inf"):
            raise SolverError("the step of a finite difference", expected="a finite positive number", got=str(step))
        names = selected(network, select)
        check_modes(network)
        dtype = dtype or network.params[names[0]].dtype
        self.shapes = {name: tuple(network.params[name].shape) for name in names}
        size = sum(prod(shape) for shape in self.shapes.values())
        super().__init__((size, size), dtype, tags=(Tag.SYMMETRIC,), device=network.device)
        self.loss, self.step, self._network = loss, step, private_copy(network, dtype)
        self._policy = network.policy
        self._point = Blocks({name: self._network.params[name] for name in names})
        length = float(self._point.norm())
        self.epsilon = step * (length or 1.0)
        self._batches = list(Feed(network, inputs).batches(max(1, int(batch_size))))
        with torch.no_grad():
            outputs = torch.cat([self._outputs(self._point, batch) for _, _, batch in self._batches])
        self._mean, self._weights = link(_link(loss), outputs), row_weights(weights, outputs)

    def _outputs(self, point: Blocks, batch: Any) -> Tensor:
        """f at other parameters; of a copy of the batch, for networks may write into what they are given."""
        given = pytree.tree_map(
            lambda v: v.clone() if isinstance(v, Tensor) else v, cast(self._network, batch, self.dtype)
        )
        with self._policy.differentiable():
            return self._network(point, {}, given)

    def _apply(self, vectors: Tensor) -> Tensor:
        return _columns(self._product, vectors)

    _adjoint = _apply

    def _product(self, vector: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(vector))
        if not length:
            return torch.zeros_like(vector)
        direction = Blocks.unflatten(vector * (self.epsilon / length), self.shapes)
        moved = (self._point + direction).map(lambda block: block.requires_grad_(True))
        leaves, total = list(moved.values()), torch.zeros(())
        for start, stop, batch in self._batches:
            outputs = self._outputs(moved, batch)
            with torch.no_grad():
                change = link(_link(self.loss), outputs) - self._mean[start:stop]
                change *= self._weights[start:stop, None] * (length / self.epsilon)
            found = grad(outputs, leaves, change, allow_unused=True, materialize_grads=True)
            part = torch.cat([gradient.reshape(-1) for gradient in found])
            total = total + part if start else part
        if all_finite(vector) and not all_finite(total):
            raise SolverError(
                f"the derivatives of {self._network.name} at a step of {self.step:g}",
                expected="finite numbers",
                got="NaN or infinity",
                do="look for NaN in the network's derivatives, or take a shorter step",
            )
        return total


@dataclass(frozen=True, eq=False)
class ProductError:
    """How far the products of two operators are apart, on random vectors.

    Attributes:
        relative: ``(probes,)``, ‖(Ã − A) v‖ / ‖A v‖ for each vector.
    """

    relative: Tensor

    @property
    def median(self) -> float:
        """The median over vectors."""
        return float(self.relative.quantile(0.5))  # Tensor.median is the lower of two middle ones

    @property
    def largest(self) -> float:
        """The largest over vectors."""
        return float(self.relative.max())


def product_error(approximate: Operator, exact: Operator, *, probes: int = 8, seed: int = 0) -> ProductError:
    """‖(Ã − A) v‖ / ‖A v‖ for standard normal v, such as the finite difference's error against the exact product.

    The two may differ in dtype; v is drawn in float64 and the difference is taken in it.

    Raises:
        SolverError: other shapes, no probes, or a product A v that is zero.
    """
    if probes < 1:
        raise SolverError("the probes of a product's error", expected="at least one", got=str(probes))
    if approximate.shape != exact.shape:
        raise SolverError(
            "the error of a product", expected=f"two operators of {exact.shape}", got=str(approximate.shape)
        )
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(probes):
        vector = torch.randn(exact.shape[1], generator=generator, dtype=torch.float64)
        wanted = exact.apply(vector.to(exact.device, exact.dtype)).double().cpu()
        given = approximate.apply(vector.to(approximate.device, approximate.dtype)).double().cpu()
        found.append(torch.linalg.vector_norm(given - wanted) / torch.linalg.vector_norm(wanted))
    relative = torch.stack(found)
    if not bool(torch.isfinite(relative).all()):
        raise SolverError("the error of a product", expected="finite products that are not zero", got="zero or NaN")
    return ProductError(relative)


def _columns(product: Any, vectors: Tensor) -> Tensor:
    """A product for each column; a single one is not copied again."""
    found = [product(column.contiguous()) for column in vectors.T]
    return found[0][:, None] if len(found) == 1 else torch.stack(found, dim=1) if found else torch.zeros_like(vectors)


def _link(loss: str) -> Literal["softmax", "sigmoid", "identity"]:
    if loss not in _LINKS:
        raise DataError("the loss of a Fisher matrix", expected=", ".join(_LINKS), got=repr(loss))
    return _LINKS[loss]
