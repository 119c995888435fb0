"""The fits behind *Gradients as Features*: a head on activations, then activations and gradients together.

For rows x with labels y, f(x) the embedding and θ₂ the chosen parameters (Mu, Liang & Li 2020, Eq. 2):

    ω, b    minimise  Σ_i s_i ℓ(y_i, ω f(x_i) + b) + (λ₁/2) ‖ω‖²
    w₁, w₂, b  minimise  Σ_i s_i ℓ(y_i, w₁ f(x_i) + ω J_θ₂ f(x_i) w₂ + b) + (λ₁/2) ‖w₁‖² + (λ₂/2) Σ_k ‖w₂k‖² / d_k²,

ω frozen in the second, d_k the prior's deviations, s the rows' shares. At w₂ = 0 the second problem is the first, so
that (ω, 0) is where it starts and its optimum over w₁ alone: the model then *is* the activation model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import RecipeError
from regraft.features import Tangent
from regraft.graft.adapted.tangent import PREFIX, prior_deviations, prior_kernel
from regraft.graft.stages.gradient import Gradients
from regraft.heads import ConvexFit, ConvexProblem, Response, minimise
from regraft.heads.convex.newton import newton
from regraft.heads.convex.path import Path
from regraft.heads.convex.rowpath import RowPath
from regraft.heads.convex.subspacepath import SubspacePath
from regraft.heads.l2.fitters import Fitter, Found
from regraft.heads.weights import moments, succeeding
from regraft.linear import Blocks, Design, FeatureDesign

__all__ = ["Both", "Labels", "Mode", "TangentFitter", "solve_head", "weight_of"]

Mode = Literal["activation", "gradient", "full"]
_HEAD_GAP, _SEARCH_GAP, _FINAL_GAP = 1e-8, 1e-2, 1e-4
_NO_GAP = 1e-300  # that no step can come below
_PROBES = 4
_POLISH, _PRODUCTS = 60, 10_000  # of Newton, where a path got there but for rounding, and where it did not


@dataclass(frozen=True, eq=False)
class Labels:
    """Targets and weights as the convex problem takes them.

    Attributes:
        loss: ``softmax``, ``sigmoid`` or ``squared``.
        values: (N, C) float64.
        weights: (N, 1), or (N, C) where labels are missing or outputs weigh differently.
        alike: the columns of numbers are in one unit, as those of classes are: they have one spread.
    """

    loss: str
    values: Tensor
    weights: Tensor
    alike: bool = False

    @staticmethod
    def of(response: Response, weights: Tensor) -> Labels:
        """Classes by cross-entropy, labels by the sigmoid one, numbers by squares."""
        loss = {"multilabel": "sigmoid", "regression": "squared"}.get(response.kind, "softmax")
        return Labels(loss, response.values, weights)

    def take(self, rows: Tensor) -> Labels:
        """Of some rows."""
        return replace(self, values=self.values[rows], weights=self.weights[rows])

    @cached_property
    def unit(self) -> tuple[Tensor, Tensor]:
        """Mean and spread (C,) of numbers to be predicted, so that penalties mean the same in all units; else 0, 1."""
        if self.loss != "squared":
            return torch.zeros(self.values.shape[1], dtype=torch.float64), torch.ones(()).double()
        mean, spread = moments(self.values, self.weights)
        if self.alike:  # in a unit of its own each, a class of one row would weigh as much as one of a hundred
            share = self.weights / self.weights.sum(0).clamp_min(1e-300)
            common = (share * (self.values - mean).square()).sum(0).mean().sqrt()
            spread = (common if common > 0 else torch.ones_like(common)).expand_as(spread)
        return mean, spread

    @property
    def standard(self) -> Tensor:
        """The targets in that unit; labels that are all alike have the chance of the rule of succession."""
        if self.loss == "sigmoid":
            return succeeding(self.values.T, self.weights.expand_as(self.values).T).T
        mean, spread = self.unit
        return (self.values - mean) / spread


@dataclass(frozen=True, eq=False)
class Both:
    """The two halves of the model over the same rows.

    Attributes:
        features: X ⊗ I_C, the embedding.
        tangent: of the embedding, over all rows that there are.
        rows: which of the tangent's rows these are, in order.
        mode: which halves the model has.
    """

    features: FeatureDesign
    tangent: Tangent | None
    rows: Tensor
    mode: Mode

    def take(self, rows: Tensor) -> Both:
        """Some of the rows; the features must still be held."""
        part = self.features.take(rows)
        if not isinstance(part, FeatureDesign):
            raise TypeError("rows of features are features")
        return replace(self, features=part, rows=self.rows[rows])

    def gradients(self, head: Tensor | None) -> Design:
        """ω J of all the rows that the tangent has."""
        if self.tangent is None or head is None:
            raise RecipeError("gradient features need a solved head", expected="SetHead before Gradients")
        return self.tangent.through(head).renamed(PREFIX)

    def design(self, head: Tensor | None, gradients: Design | None = None) -> Design:
        """Φ of the mode, for a head ω (C, D), with its gradients where these are at hand."""
        if self.mode == "activation":
            return self.features
        part = (self.gradients(head) if gradients is None else gradients).take(self.rows)
        return part if self.mode == "gradient" else self.features | part

    @cached_property
    def moments(self) -> dict[str, Tensor]:
        """The covariance of each block of features, (d, d) float64."""
        found = {}
        for name, matrix in self.features.matrices.items():
            x = matrix.rows(slice(0, self.features.n_rows)).to(torch.float64)
            x = x - x.mean(0)
            found[name] = x.T @ x / len(x)
        return found

    @cached_property
    def scale(self) -> float:
        """t = (1/N) Σ_i ‖x_i − x̄‖²."""
        total = sum(float(moment.diagonal().sum()) for moment in self.moments.values())
        return total if total > 0 else 1.0


def head_problem(both: Both, labels: Labels, strength: float) -> ConvexProblem:
    """Of ω and its intercept, on standardised targets, at λ₁ = strength · t."""
    penalties = dict.fromkeys(both.features.shapes, strength * both.scale)
    return ConvexProblem(both.features, labels.loss, labels.standard, labels.weights, penalties, moments=both.moments)


def solve_head(both: Both, labels: Labels, strength: float) -> ConvexFit:
    """ω and its intercept."""
    return solved_head(head_problem(both, labels, strength))


def solved_head(problem: ConvexProblem) -> ConvexFit:
    """The solution; under a penalty so strong that zero is within the gap one step towards it, for the derivatives go
    through ω's direction, whatever its length."""
    fit = minimise(problem, "newton", gap=_HEAD_GAP)
    return fit if fit.status.iterations else minimise(problem, "newton", gap=_NO_GAP, iterations=1)


def weight_of(fit: ConvexFit) -> Tensor:
    """ω (C, D) of a head's fit."""
    return torch.cat(list(fit.coefficients.values())).T.contiguous()


class _Cut:
    """One training part: its own ω, its own gradient features, and where its path has come to.

    Args:
        both, labels: of its rows.
        strength: of ω's penalty.
        stage: the recipe's.
        given: ω, where it is not solved for.
        held: the rows that are predicted besides.
    """

    def __init__(
        self,
        both: Both,
        labels: Labels,
        strength: float,
        stage: Gradients,
        given: Tensor | None = None,
        held: Both | None = None,
    ) -> None:
        self.both, self.labels, self.stage, self.held = both, labels, stage, held
        self.activation = head_problem(both, labels, strength)
        self.start = solved_head(self.activation)
        self.head = weight_of(self.start) if given is None else given
        self.alike = given is None and not bool(self.head.any())  # all its targets: no derivative goes through ω = 0
        self.head_penalty = strength * both.scale
        self.last: tuple[float, Blocks] | None = None

    @cached_property
    def gradients(self) -> Design | None:
        """Of all rows."""
        return None if self.both.tangent is None else self.both.gradients(self.head)

    @cached_property
    def design(self) -> Design:
        """Φ."""
        return self.both.design(self.head, self.gradients)

    @cached_property
    def deviations(self) -> dict[str, float]:
        """The prior's, of every block of gradients."""
        module = None if self.both.tangent is None else self.both.tangent.network.module
        shapes = {n.removeprefix(PREFIX): shape for n, shape in self.design.shapes.items() if n.startswith(PREFIX)}
        return {PREFIX + name: value for name, value in prior_deviations(shapes, self.stage.prior, module).items()}

    @cached_property
    def unit(self) -> float:
        """t₂ = (1/NC) ‖Φ D^½‖_F² of the gradients, the unit of λ₂: the mean of the kernel's diagonal where rows are few
        enough for one, else by seeded random probes (Hutchinson, 1990)."""
        if self.few:
            unit = float(self.kernel[: self.both.features.n_rows * self.both.features.n_outputs].diagonal().mean())
            return unit if unit > 0 else 1.0
        part = self.gradients.take(self.both.rows)  # type: ignore[union-attr]
        generator = torch.Generator().manual_seed(0)
        total = 0.0
        for _ in range(_PROBES):
            signs = torch.randint(2, (part.n_rows, part.n_outputs), generator=generator) * 2.0 - 1.0
            found = part.adjoint(signs.to(device=part.device, dtype=part.dtype))
            total += sum(float((block * self.deviations[name]).square().sum()) for name, block in found.items())
        unit = total / (_PROBES * part.n_rows * part.n_outputs)
        return unit if unit > 0 else 1.0

    def problem(self, strength: float) -> ConvexProblem:
        """At λ₂ = strength · t₂."""
        penalties = {
            name: strength * self.unit / self.deviations[name] ** 2 if name in self.deviations else self.head_penalty
            for name in self.design.shapes
        }
        # no ``moments``: measured, a preconditioner of the features alone costs products beside gradients
        labels = self.labels
        return ConvexProblem(self.design, labels.loss, labels.standard, labels.weights, penalties)

    def begin(self) -> Blocks:
        """w₁ = ω, w₂ = 0."""
        zero = {name: torch.zeros(shape, dtype=self.design.dtype) for name, shape in self.design.shapes.items()}
        known = {name: block for name, block in self.start.coefficients.items() if name in zero}
        return Blocks({name: block.to(self.design.device) for name, block in {**zero, **known}.items()})

    @cached_property
    def path(self) -> Path:
        """All strengths together, the held rows predicted along."""
        rows = self.both.rows
        return (RowPath if self.few else SubspacePath)(
            self.activation,
            self.start,
            self.gradients.take(rows),  # type: ignore[union-attr]
            self.gradients.take(self.every),  # type: ignore[union-attr]
            self.deviations,
            None if self.held is None else self.held.features,
            features=self.both.mode == "full",
            kernel=lambda: self.kernel,
        )

    @property
    def few(self) -> bool:
        """Whether the kernel of the rows is no larger than what is solved with ease."""
        return Gradients.few(len(self.every), self.both.features.n_outputs, classes=self.labels.loss == "softmax")

    @property
    def every(self) -> Tensor:
        """The rows, and those held out."""
        return self.both.rows if self.held is None else torch.cat([self.both.rows, self.held.rows])

    @cached_property
    def kernel(self) -> Tensor:
        """Of the gradients of every row, (M·C, M·C)."""
        design = self.both.tangent.through(self.head).take(self.every)  # type: ignore[union-attr]
        return prior_kernel(design, {name.removeprefix(PREFIX): value for name, value in self.deviations.items()})

    @property
    def pathwise(self) -> bool:
        """Whether one subspace serves all strengths: where no solver and no number of iterations is asked for."""
        return self.stage.solver == "auto" and self.stage.iterations is None

    def out(self, strength: float) -> Tensor:
        """Logits (M, C) of the held rows at λ₂ = strength · t₂, for the search."""
        if self.held is None:
            raise RecipeError("no rows are held out", expected="a training part of the cross-validation")
        if self.alike:
            logits = self.held.features.apply(self.start.coefficients)
            return logits.to(device="cpu", dtype=torch.float64) + self.start.intercept
        if self.pathwise:
            found = self.path.solve(strength * self.unit, _SEARCH_GAP)
            if found.status.converged:
                return found.logits[self.both.features.n_rows :]
        fit = self.fit(strength, _SEARCH_GAP)
        logits = self.held.design(self.head, self.gradients).apply(fit.coefficients)
        return logits.to(device="cpu", dtype=torch.float64) + fit.intercept

    def fit(self, strength: float, gap: float) -> ConvexFit:
        """The model at λ₂ = strength · t₂."""
        if not self.pathwise:
            return self.solve(strength, gap)
        found = self.path.solve(strength * self.unit, gap)
        problem, start, least = self.problem(strength), self.path.coefficients(found), found.objective - found.gap
        fit = problem.at(start)
        if fit.objective - least > gap * fit.objective:  # a full memory ended the path, or the coefficients' rounding
            most = _POLISH if found.status.converged else _PRODUCTS
            fit = newton(problem, start=start, gap=gap, max_products=most)
        # what the path's dual point leaves possible has less rounding in it than the coefficients' own
        above = min(fit.gap, max(0.0, fit.objective - least))
        done, ratio = above <= gap * fit.objective, above / max(fit.objective, torch.finfo(torch.float64).tiny)
        status = replace(found.status if found.status.converged else fit.status, converged=done, residual=ratio)
        if not done:
            status = replace(status, message=f"stopped at a relative gap of {ratio:.1e}, above the tolerance {gap:.0e}")
        return replace(fit, gap=above, status=status)

    def solve(self, strength: float, gap: float) -> ConvexFit:
        """Along a path, each from where the last one ended; for a stronger penalty (ω, 0) is the nearer start."""
        last = self.last if self.last is not None and self.last[0] >= strength else None
        fit = minimise(
            self.problem(strength),
            self.stage.solver,
            start=self.begin() if last is None else last[1],
            gap=gap,
            iterations=self.stage.iterations,
            deviations=self.deviations,
        )
        self.last = strength, fit.coefficients
        return fit


class TangentFitter(Fitter):
    """Fits of the whole model without each fold, ω solved without it too, and the fit on all rows.

    Args:
        both: all rows.
        labels: theirs; rows without a label weigh nothing.
        folds: (N,).
        stage: the recipe's.
        head: ω for all fits, instead of each part's own: to ablate it.
    """

    def __init__(
        self,
        both: Both,
        labels: Labels,
        folds: Tensor,
        stage: Gradients,
        head: Tensor | None = None,
    ) -> None:
        self.both, self.labels, self.folds = both, labels, folds
        self.stage, self.given = stage, head
        self.names = torch.unique(folds[folds >= 0]).tolist()
        self._strengths: dict[str, float] = {}
        self._cuts: dict[tuple[str, int], _Cut] = {}

    def form(self, strength: float) -> str:
        """The name of the models whose ω has λ₁ = strength · t."""
        name = f"{self.stage.mode}, head {strength:.2g}"
        self._strengths[name] = strength
        return name

    def _cut(self, form: str, fold: int) -> _Cut:
        """Of the rows outside a fold; all rows for −1."""
        if (form, fold) not in self._cuts:
            counted = (self.labels.weights > 0).any(1)
            rows = (counted if fold < 0 else counted & (self.folds != fold)).nonzero().squeeze(1)
            held = None if fold < 0 else self.both.take((self.folds == fold).nonzero().squeeze(1))
            strength = self._strengths[form]
            self._cuts[form, fold] = _Cut(
                self.both.take(rows), self.labels.take(rows), strength, self.stage, self.given, held
            )
        return self._cuts[form, fold]

    def out_of_fold(self, form: str, strengths: Sequence[float]) -> tuple[Tensor, list[Tensor | None]]:
        """Logits (M, N, C), in the targets' own unit; strongest penalties first along each path."""
        out = torch.full((len(strengths), *self.labels.values.shape), torch.nan, dtype=torch.float64)
        order = sorted(range(len(strengths)), key=lambda i: -strengths[i])
        for fold in self.names:
            cut = self._cut(form, fold)
            mean, spread = cut.labels.unit
            for index in order:
                out[index, self.folds == fold] = cut.out(strengths[index]) * spread + mean
        return out, [None] * len(strengths)

    def refit(self, form: str, strength: float, start: Tensor | None) -> Found:
        """On all rows, from (ω, 0); coefficients and ω (:attr:`head`) in the targets' own unit."""
        cut = self._cut(form, -1)
        fit = cut.fit(strength, _FINAL_GAP)
        mean, spread = cut.labels.unit
        # coefficients that all outputs share keep their unit: an output's own goes into ω
        blocks = {
            name: block if name in cut.deviations else block * spread.to(block)
            for name, block in fit.coefficients.items()
        }
        return Blocks(blocks).to("cpu"), fit.intercept * spread + mean, fit.status

    def head(self, form: str) -> Tensor:
        """ω (C, D) of the fit on all rows, in the targets' own unit."""
        cut = self._cut(form, -1)
        spread = cut.labels.unit[1].expand(self.labels.values.shape[1])
        return (cut.head.cpu() * spread.to(cut.head.dtype)[:, None]).contiguous()
