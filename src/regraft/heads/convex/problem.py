"""Ridge-penalised convex heads on any Design, with a certificate of how far from the optimum they are.

With Φ the design, ω the rows' weights (each output's sum to one), λ_k > 0 the penalty of coefficient block k, and b a
free intercept, the problem is

    min_{w, b}  F = Σ_i ω_i ℓ(y_i, f_i) + ½ Σ_k λ_k ‖w_k‖²,     f = Φ w + b.

A prior standard deviation d_k of a block is the penalty λ / d_k². In u_k = √λ_k w_k the penalty is ½‖u‖² and the design
Ψ = Φ diag(λ_k^-½); everything below is in these coordinates, where the prior is a preconditioner.

The intercept is eliminated: at every point it is solved for to machine precision from the logits alone, so that the
residuals sum to zero, and the Hessian of what is left is

    I + Ψᵀ (H − H 1 (1ᵀH1)⁺ 1ᵀH) Ψ,         H the Hessian of the data term in the logits.

Certificate (Fenchel). For predictions v in the dual's domain with Σ_i ω_i (v_i − y_i) = 0, and Θ = ω (v − y),

    F* ≥ D(v) = dual data term of v  −  ½ ‖Ψᵀ Θ‖²,       gap = F(w, b) − D(v).

At v = the predictions of (w, b) the gap is exactly ½ ‖∇_u F‖², for the loss's own Fenchel inequality is tight there.
Boyd & Vandenberghe, Convex Optimization, §5.5; the dual data terms are those of the group lasso here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.data_term import DataTerm
from regraft.heads.losses import LOSSES
from regraft.heads.readout import Status
from regraft.linear import Blocks, Design

__all__ = ["ConvexFit", "ConvexProblem", "Point", "Progress", "Trace", "not_finite"]

#: Called with (iterations, relative gap, objective).
Progress = Callable[[int, float, float], None]


@dataclass(frozen=True, eq=False)
class ConvexFit:
    """A solution, or where a solver stopped.

    Attributes:
        coefficients: w, by block.
        intercept: (C,) float64, b.
        logits: (N, C) float64, Φ w + b.
        objective: F(w, b).
        gap: an upper bound of ``objective`` minus the minimum, up to the rounding of the design's products.
        products: how often the design or its adjoint was applied to all rows.
        status: iterations, and the relative gap ``gap / objective`` as the residual.
    """

    coefficients: Blocks
    intercept: Tensor
    logits: Tensor
    objective: float
    gap: float
    products: int
    status: Status

    @property
    def relative_gap(self) -> float:
        """``gap / objective``."""
        return _ratio(self.gap, self.objective)


@dataclass(frozen=True, eq=False)
class Point:
    """What is known at one u: ``u`` flat; ``logits`` (C, N) with the intercept ``shift`` (C, 1) in them, and
    ``predictions`` of these; ``gradient`` flat, of F with b eliminated; ``objective``; ``gap``."""

    u: Tensor
    shift: Tensor
    logits: Tensor
    predictions: Tensor
    gradient: Tensor
    objective: float
    gap: float

    @property
    def relative_gap(self) -> float:
        """``gap / objective``."""
        return _ratio(self.gap, self.objective)


def _ratio(gap: float, objective: float) -> float:
    return gap / max(objective, torch.finfo(torch.float64).tiny)


@dataclass
class Trace:
    """Counts products and tells of progress."""

    progress: Progress | None = None
    products: int = 0
    iterations: int = 0

    def step(self, point: Point) -> None:
        """Tell of one point."""
        if self.progress is not None:
            self.progress(self.iterations, point.relative_gap, point.objective)


@dataclass(frozen=True, eq=False)
class Eliminated:
    """H' = H − H 1 (1ᵀH1)⁺ 1ᵀH at some predictions; ``inverse`` is (1ᵀH1)⁺, (C, C)."""

    problem: ConvexProblem
    predictions: Tensor
    inverse: Tensor

    def shift(self, step: Tensor) -> Tensor:
        """The intercept's answer (…, C, 1) to steps of the logits (…, C, N), to first order."""
        return -self.inverse @ self.problem.term.curvature(self.predictions, step).sum(-1, keepdim=True)

    def product(self, step: Tensor) -> Tensor:
        """H' Z."""
        return self.problem.term.curvature(self.predictions, step + self.shift(step))


@dataclass(frozen=True, eq=False)
class ConvexProblem:
    """The problem above.

    Attributes:
        design: Φ.
        loss: ``softmax``, ``sigmoid`` or ``squared``.
        targets: (N, C): rows on the simplex; numbers from 0 to 1; numbers.
        weights: (N, 1), or (N, C) where outputs differ (missing labels; not for softmax). Their sums are divided out.
        penalties: λ_k by block, above zero.
        moments: block → (d, d) covariance of the rows of X, for blocks (d, C) that act as X ⊗ I_C; a solver may
            precondition by them. They change no solution.

    Raises:
        SolverError: a penalty that is missing or not above zero, shapes that do not fit, NaN in the targets, an
            output without any weight, or an unknown loss.
    """

    design: Design
    loss: str
    targets: Tensor
    weights: Tensor
    penalties: Mapping[str, float]
    moments: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        design = self.design
        if self.loss not in LOSSES:
            raise SolverError(f"the loss {self.loss!r} is unknown", expected=", ".join(LOSSES))
        if sorted(self.penalties) != sorted(design.shapes):
            every = (*design.shapes, *self.penalties)
            lacking = next(name for name in every if name not in design.shapes or name not in self.penalties)
            raise SolverError(f"the penalty of block {lacking!r}", expected="one for each block of the design")
        for name, value in self.penalties.items():
            if not (math.isfinite(value) and value > 0):
                raise SolverError(
                    f"the penalty of block {name!r}", expected="a finite number above zero", got=f"{value}"
                )
        shape = (design.n_rows, design.n_outputs)
        if tuple(self.targets.shape) != shape:
            raise SolverError("the targets", expected=str(shape), got=str(tuple(self.targets.shape)))
        widths = (1,) if self.loss == "softmax" else (1, shape[1])
        if self.weights.ndim != 2 or self.weights.shape[0] != shape[0] or self.weights.shape[1] not in widths:
            raise SolverError("the rows' weights", expected=f"({shape[0]}, 1)", got=str(tuple(self.weights.shape)))
        if not bool(torch.isfinite(self.targets).all()) or not bool(torch.isfinite(self.weights).all()):
            raise SolverError("the targets or weights", expected="finite numbers", got="NaN or infinity")
        if bool((self.weights < 0).any()) or not bool((self.weights.sum(0) > 0).all()):
            raise SolverError("the rows' weights", expected="none below zero, and some above it for each output")

    # ------------------------------------------------------------------ the two sides of the problem

    @cached_property
    def term(self) -> DataTerm:
        """The data term in float64; logits are (C, N)."""
        weights = self.weights.to(torch.float64).cpu()
        if self.loss != "softmax":
            weights = weights.expand(-1, self.design.n_outputs)
        return DataTerm(self.loss, self.targets.to(torch.float64).cpu().T, weights.T.contiguous())

    @cached_property
    def scaled(self) -> Design:
        """Ψ = Φ diag(λ_k^-½)."""
        return self.design.scaled({name: value**-0.5 for name, value in self.penalties.items()})

    def forward(self, u: Tensor, trace: Trace) -> Tensor:
        """Ψ u, (C, N) float64."""
        trace.products += 1
        outputs = self.scaled.apply(Blocks.unflatten(u, self.design.shapes))
        found = outputs.detach().to(device="cpu", dtype=torch.float64).T.contiguous()
        if not bool(torch.isfinite(found).all()):
            raise not_finite()
        return found

    def backward(self, outputs: Tensor, trace: Trace) -> Tensor:
        """Ψᵀ Θ, flat, in the design's dtype, for Θ (C, N)."""
        trace.products += 1
        placed = outputs.T.to(device=self.design.device, dtype=self.design.dtype).contiguous()
        found = self.scaled.adjoint(placed).flatten()
        if not bool(torch.isfinite(found).all()):
            raise not_finite()
        return found

    def standardised(self, coefficients: Blocks | None) -> Tensor:
        """u of coefficients w (zero where ``None``), flat."""
        if coefficients is None:
            return torch.zeros(self.design.n_coefficients, dtype=self.design.dtype, device=self.design.device)
        blocks = coefficients.ordered(list(self.design.shapes))
        return Blocks({name: block * self.penalties[name] ** 0.5 for name, block in blocks.items()}).flatten()

    def coefficients(self, u: Tensor) -> Blocks:
        """w of u."""
        blocks = Blocks.unflatten(u, self.design.shapes)
        return Blocks({name: block * self.penalties[name] ** -0.5 for name, block in blocks.items()})

    # ------------------------------------------------------------------ values

    def plain(self, u: Tensor, trace: Trace) -> Tensor:
        """Logits (C, N) without the intercept."""
        return self.forward(u, trace) if bool(u.any()) else torch.zeros_like(self.term.targets)

    def point(self, u: Tensor, plain: Tensor, trace: Trace, guess: Tensor | None = None) -> Point:
        """Everything at u, given its logits without the intercept (and a guess of that): one adjoint."""
        term = self.term
        shift = torch.zeros_like(term.mean) if guess is None else guess
        shift = shift + term.recentre(plain + shift)
        logits = plain + shift
        data, predictions = term.value(logits), term.predict(logits)
        feasible = self.feasible(predictions)
        slope = self.backward(-term.residual(feasible), trace)
        size = float(u.to(torch.float64).square().sum())
        dual = term.dual(feasible, 1.0) - 0.5 * float(slope.to(torch.float64).square().sum())
        objective = data + 0.5 * size
        if not math.isfinite(objective):
            raise SolverError(
                "the objective of the head is not finite",
                expected="finite logits",
                do="scale the features, or use a stronger penalty",
            )
        return Point(u, shift, logits, predictions, slope + u, objective, max(0.0, objective - dual))

    def feasible(self, predictions: Tensor) -> Tensor:
        """Predictions (C, N) moved into the dual's domain; of an output that is the same in all rows, to just that."""
        term = self.term
        same = (term.mean <= 0) | (term.mean >= 1 - 1e-12)
        if self.loss != "squared" and bool(same.any()):
            if self.loss == "sigmoid":
                predictions = torch.where(same, term.mean.round(), predictions)
            else:
                predictions = torch.where(term.mean <= 0, torch.zeros_like(predictions), predictions)
                predictions = predictions / predictions.sum(0, keepdim=True)
        return term.balanced(predictions)

    def eliminated(self, predictions: Tensor) -> Eliminated:
        """The Hessian at some predictions with the intercept eliminated."""
        block = self.term.of_intercept(predictions)
        return Eliminated(self, predictions, torch.linalg.pinv(block, hermitian=True, rtol=1e-12))

    def curvature(self, predictions: Tensor) -> float:
        """The mean second derivative in one output's logit."""
        return float(self.term.curvatures(predictions).expand_as(predictions).sum()) / len(predictions)

    @cached_property
    def _axes(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Eigenvalues and eigenvectors of ``moments``."""
        found = {}
        for name, moment in self.moments.items():
            squares, vectors = torch.linalg.eigh(moment.to(torch.float64))
            found[name] = (squares.clamp_min(0), vectors)
        return found

    def preconditioned(self, vector: Tensor, curvature: float) -> Tensor:
        """(I + κ S_k / λ_k)⁻¹ on the blocks of a flat vector whose covariance S_k is known, I on the others."""
        if not self.moments:
            return vector
        blocks = dict(Blocks.unflatten(vector, self.design.shapes))
        for name, (squares, axes) in self._axes.items():
            turn = axes.to(blocks[name])
            shrink = 1 / (1 + curvature * squares / self.penalties[name])
            blocks[name] = turn @ (shrink.to(turn)[:, None] * (turn.T @ blocks[name]))
        return Blocks(blocks).flatten()

    def fit(self, point: Point, trace: Trace, status: Status) -> ConvexFit:
        """The outcome at a point."""
        return ConvexFit(
            self.coefficients(point.u),
            point.shift[:, 0].clone(),
            point.logits.T.contiguous(),
            point.objective,
            point.gap,
            trace.products,
            status,
        )

    def at(self, coefficients: Blocks) -> ConvexFit:
        """Objective and gap at given coefficients, with their best intercept."""
        trace = Trace()
        u = self.standardised(coefficients)
        point = self.point(u, self.plain(u, trace), trace)
        return self.fit(point, trace, Status(False, 0, point.relative_gap, "evaluated, not solved"))


def not_finite() -> SolverError:
    """The refusal of a design whose products overflow."""
    return SolverError(
        "the design's products hold NaN or infinities",
        expected="finite numbers",
        do="look for unreadable inputs, or a network that overflows in this dtype",
    )
