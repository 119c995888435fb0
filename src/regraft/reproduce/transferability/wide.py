"""Wide two-layer ReLU networks of paper 002, Section 6.1, trained by full-batch gradient descent.

    f(x) = (1/√m) Σ_r a_r σ(w_rᵀx),   w_r ~ N(0, κ²I),  a_r = ±1 fixed,   L(W) = ½ Σ_i (f(x_i) − y_i)²,
    W(k+1) = W(k) − η ∂L/∂W,          ∂L/∂w_r = (a_r/√m) Σ_i (f(x_i) − y_i) 1{w_rᵀx_i > 0} x_i

Descent takes a number of *plain* steps, and then *strides*: j steps of gradient descent at once with the activation
pattern 1{w_rᵀx_i > 0} held. While no activation changes, the outputs are linear in W, so that the residual after l
steps is (I − ηH)^l e with H = (1/m) Σ_r x_iᵀx_j 1 1, and the sum of the j gradients is that of one residual
Σ_{l<j} (I − ηH)^l e: a stride in which nothing flips *is* j plain steps. Where something flips, the residual that comes
is beside the one that was foreseen; the length is set so that they differ by at most :data:`OFF` of the residual. A
stride of one step is gradient descent whatever flips.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["OFF", "Descent", "TwoLayer", "descend", "drawn"]

OFF = 0.1
_BLOCK = (
    1000  # hidden units at a time: their activations stay in the processor's cache, which halves the time of a step
)
_LONGEST = 2**20


@dataclass(frozen=True, eq=False)
class TwoLayer:
    """W ``(d, m)`` and a ``(m,)``, float32 or float64."""

    weights: Tensor
    signs: Tensor

    @property
    def width(self) -> int:
        """m."""
        return len(self.signs)

    def outputs(self, x: Tensor) -> Tensor:
        """f(x) ``(n,)`` for x ``(n, d)``."""
        return (x.to(self.weights.dtype) @ self.weights).relu_() @ self.signs / math.sqrt(self.width)

    def active(self, x: Tensor) -> Tensor:
        """``1{w_rᵀx_i > 0}``, ``(n, m)``, in the dtype of the weights."""
        return (x.to(self.weights.dtype) @ self.weights > 0).to(self.weights.dtype)

    def moved(self, origin: TwoLayer) -> Tensor:
        """``‖w_r − w_r(origin)‖``, ``(m,)``."""
        return torch.linalg.vector_norm(self.weights - origin.weights, dim=0)


def drawn(width: int, inputs: int, scale: float, seed: int, *, paired: bool = False) -> TwoLayer:
    """A network with ``w_r ~ N(0, scale² I)`` and fair signs, float32.

    Args:
        width: m.
        inputs: d.
        scale: κ.
        seed: of weights and signs.
        paired: the second half of the units has the weights of the first and the opposite signs, so that f = 0.
    """
    generator = torch.Generator().manual_seed(seed)
    own = width // 2 if paired else width
    weights = scale * torch.randn(inputs, own, generator=generator)
    signs = 2.0 * torch.randint(0, 2, (own,), generator=generator) - 1
    return TwoLayer(weights.repeat(1, 2), torch.cat([signs, -signs])) if paired else TwoLayer(weights, signs)


@dataclass(frozen=True, eq=False)
class Descent:
    """What descent came to.

    Attributes:
        network: at the end.
        losses: ``‖f(k) − y‖²`` at every plain step, from the first weights to those after the last plain step.
        residual: ``‖f − y‖ / ‖y‖`` at the end.
        steps: of gradient descent, strides counted by their length.
        strides: strides taken.
        converged: whether the residual fell to what was asked for.
    """

    network: TwoLayer
    losses: list[float]
    residual: float
    steps: int
    strides: int
    converged: bool


def descend(
    start: TwoLayer,
    x: Tensor,
    y: Tensor,
    rate: float,
    *,
    plain: int = 2000,
    until: float = 1e-2,
    strides: int = 1000,
    visit: Callable[[TwoLayer], None] | None = None,
    every: int = 250,
) -> Descent:
    """Gradient descent on ``½ ‖f − y‖²`` from a network: plain steps, all of them, then strides until it has converged.

    A plain step is two products of ``(n, d)`` and ``(d, m)``; a stride costs about five steps.

    Args:
        start: where to start; stays as it is.
        x: ``(n, d)``.
        y: ``(n,)``.
        rate: η.
        plain: plain steps.
        until: the relative residual at which strides end.
        strides: the most strides.
        visit: called with the network at the start, every so many plain steps, before every tenth stride and at the
            end.
        every: plain steps between visits.
    """
    work = _Work(start, x, y, rate)
    losses = []
    for step in range(plain):
        if visit and step % every == 0:
            visit(work.network())
        losses.append(work.plain())
    error = work.residual()
    losses.append(float(error.square().sum()))
    size, length, taken, steps = float(work.y.norm()), 1, 0, plain
    while float(error.norm()) > until * size and taken < strides:
        if visit and taken % 10 == 0:
            visit(work.network())
        done, length = work.stride(error, length)
        steps, taken = steps + done, taken + 1
        error = work.residual()
    end = work.network()
    if visit:
        visit(end)
    residual = float(error.norm()) / size
    return Descent(end, losses, residual, steps, taken, residual <= until)


class _Work:
    """The weights in blocks of hidden units, and the room that a step needs."""

    def __init__(self, start: TwoLayer, x: Tensor, y: Tensor, rate: float) -> None:
        dtype = start.weights.dtype
        self.x, self.y, self.rate = x.to(dtype), y.to(dtype), rate
        self.blocks = [block.clone(memory_format=torch.contiguous_format) for block in start.weights.split(_BLOCK, 1)]
        self.signs, self.start = start.signs, start
        self.scale = 1 / math.sqrt(start.width)
        self.parts = list(start.signs.split(_BLOCK))
        self.hidden = [torch.empty(len(x), len(part), dtype=dtype) for part in self.parts]
        self.gradient = [torch.empty_like(block) for block in self.blocks]
        self.inner = (self.x @ self.x.T).double() / start.width

    def network(self) -> TwoLayer:
        return TwoLayer(torch.cat(self.blocks, 1), self.start.signs)

    def residual(self) -> Tensor:
        """``f − y``; leaves σ(Wᵀx) in :attr:`hidden`."""
        outputs = torch.zeros_like(self.y)
        for block, hidden, signs in zip(self.blocks, self.hidden, self.parts):
            torch.mm(self.x, block, out=hidden)
            hidden.clamp_(min=0)
            outputs += hidden @ signs
        return outputs * self.scale - self.y

    def plain(self) -> float:
        """One step; the loss before it."""
        error = self.residual()
        towards = (error[:, None] * self.x).T
        for block, hidden, signs, gradient in zip(self.blocks, self.hidden, self.parts, self.gradient):
            torch.mm(towards, hidden.sign_(), out=gradient)
            block.addcmul_(gradient, signs, value=-self.rate * self.scale)
        return float(error.square().sum())

    def stride(self, error: Tensor, length: int) -> tuple[int, int]:
        """Up to ``length`` steps with the pattern held, fewer if the outputs are not those foreseen.

        :attr:`hidden` holds what :meth:`residual` left. Returns the steps taken and the next length.
        """
        patterns = [hidden.sign() for hidden in self.hidden]
        kernel = self.inner * sum(pattern @ pattern.T for pattern in patterns).double()  # type: ignore[union-attr]
        values, vectors = torch.linalg.eigh(kernel)
        values = values.clamp(min=0)
        along = vectors.T @ error.double()
        while True:
            summed = vectors @ (along * _geometric(1 - self.rate * values, length))
            towards = (summed.to(self.x.dtype)[:, None] * self.x).T
            for block, pattern, signs, moved in zip(self.blocks, patterns, self.parts, self.gradient):
                torch.addcmul(block, towards @ pattern, signs, value=-self.rate * self.scale, out=moved)
            self.blocks, self.gradient = self.gradient, self.blocks
            found = self.residual().double()
            self.blocks, self.gradient = self.gradient, self.blocks
            expected = vectors @ (along * (1 - self.rate * values) ** length)
            off = float((found - expected).norm() / error.norm())
            if off <= OFF or length == 1:
                break
            length = max(1, int(length * max(0.2, 0.8 * OFF / off)))
        self.blocks, self.gradient = self.gradient, self.blocks
        longer = math.ceil(length * min(3.0, 0.8 * OFF / max(off, 1e-12)))
        return length, min(_LONGEST, max(longer, 1 if off > OFF else 2))


def _geometric(ratio: Tensor, terms: int) -> Tensor:
    """``Σ_{l < terms} ratio^l``."""
    left = 1 - ratio
    return torch.where(left > 1e-12, (1 - ratio**terms) / left.clamp(min=1e-12), torch.full_like(ratio, float(terms)))
