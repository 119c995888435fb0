"""*Gradients as Features* as a problem of the protocol: the last layer and the tangent of the network's top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.features import Plan, Tangent
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.tangent import PREFIX, TangentPart
from regraft.graft.adapted.view import View
from regraft.graft.frozen.problem import held_out
from regraft.graft.gradient.fit import Both, Labels, TangentFitter
from regraft.graft.problem import Head, HeldOut, Problem, Task
from regraft.graft.stages.features import Solve
from regraft.graft.stages.gradient import Gradients
from regraft.heads import Solution, Status, higher_is_better, link, solve
from regraft.heads.search import Judge
from regraft.heads.solve import check_training, search
from regraft.heads.weights import ClassWeight, row_weights, sample_weights
from regraft.linear import Blocks, Cast, FeatureDesign, Matrix, Taken
from regraft.network import Network
from regraft.record import Candidate, Finding

__all__ = ["GradientHead", "GradientProblem", "behind", "derivatives_read"]

#: Strengths of the gradients' penalty, in units of their mean square; the search goes on past an edge that is best.
STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3)


@dataclass(frozen=True, eq=False)
class GradientHead(Head):
    """A solved model.

    Attributes:
        solution: w₁, w₂ and the intercept over the design of :class:`regraft.graft.gradient.fit.Both`.
        head: ω, (C, D); ``None`` for activations alone.
        fold_ids: the inner folds of the rows that it was solved on.
        stage: the recipe's.
        path: how derivatives are computed, a sentence a part.
    """

    solution: Solution
    head: Tensor | None
    fold_ids: np.ndarray
    stage: Gradients
    path: tuple[str, ...] = ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every cell that was tried."""
        return self.solution.candidates

    @property
    def status(self) -> Status:
        """How the final solve ended."""
        return self.solution.status

    def predict_proba(self, problem: GradientProblem) -> Tensor:
        """Probabilities (or values) of another problem's rows, ``(N, C)``."""
        design = problem.both.design(self.head)
        readout = replace(self.solution.readout, coefficients=self.solution.readout.coefficients.to(design.device))
        logits = design.apply(readout.coefficients).cpu().to(torch.float64) + readout.intercept
        return link(readout.link, logits / readout.temperature)

    def held_out(self) -> HeldOut:
        """The rows that chose, by the inner fold that did not see them."""
        return held_out(self.solution, self.fold_ids)

    def adapted(self, task: Task, network: Network, plan: Plan) -> Adapted:
        """The frozen backbone with w₁ as its head and ω J w₂ beside it."""
        readout, outputs = self.solution.readout, task.target.outputs
        found = {name: b for name, b in readout.coefficients.items() if not name.startswith(PREFIX)}
        for block in plan.blocks:  # of gradients alone w₁ is zero
            found.setdefault(block.name, torch.zeros(block.width, outputs))
        plain = replace(readout, coefficients=Blocks({name: b.to(torch.float32) for name, b in found.items()}))
        return Adapted(network, plan, View(), plain, task.kind, task.target.classes, tangent=self._tangent())

    def _tangent(self) -> TangentPart | None:
        blocks = {
            name.removeprefix(PREFIX): block
            for name, block in self.solution.readout.coefficients.items()
            if name.startswith(PREFIX)
        }
        return TangentPart(self.head, Blocks(blocks)) if blocks and self.head is not None else None

    def figures(self, problem: GradientProblem, plan: Plan) -> dict[str, Any]:
        """``gradient``: the mode, θ₂, and what part of the logits' variance over rows and outputs each half makes."""
        shares = {}
        design = problem.both.design(self.head)
        coefficients = self.solution.readout.coefficients.to(design.device)
        for name, chosen in (("activation", False), ("gradient", True)):
            some = Blocks({n: b if n.startswith(PREFIX) == chosen else 0 * b for n, b in coefficients.items()})
            logits = design.apply(some).cpu().to(torch.float64)
            shares[name] = float((logits - logits.mean(0)).square().sum())
        total = sum(shares.values()) or 1.0
        parameters = {n.removeprefix(PREFIX): b.numel() for n, b in coefficients.items() if n.startswith(PREFIX)}
        return {
            "gradient": {
                "mode": self.stage.mode,
                "parameters": parameters,
                "shares": {name: value / total for name, value in shares.items()},
                "path": list(self.path),
            }
        }

    def findings(self) -> Iterator[Finding]:
        """How many parameters' derivatives the model reads, and how they are computed."""
        read = {n: b for n, b in self.solution.readout.coefficients.items() if n.startswith(PREFIX)}
        yield from derivatives_read({n.removeprefix(PREFIX): b.numel() for n, b in read.items()}, self.path)


def derivatives_read(parameters: Mapping[str, int], path: tuple[str, ...]) -> Iterator[Finding]:
    """How many numbers of each parameter a model reads the derivatives of, and how they are computed; none of none."""
    if parameters:
        count = sum(parameters.values())
        yield Finding(
            "gradient-features",
            f"The model reads the derivatives of {count:,} parameters, from {next(iter(parameters))} on.",
            "info",
            count,
            "parameters",
            detail="; ".join(path),
        )


@dataclass(frozen=True, eq=False)
class GradientProblem(Problem):
    """Labelled rows with their last layer's features and their place in a tangent.

    Attributes:
        task: the labels, and how heads are judged.
        matrices: the embedding's block → features ``(N, D)``, un-scaled.
        tangent: of the embedding by θ₂, over at least these rows; ``None`` for activations alone. It may be that of
            another network (with some of θ₁, θ₂ drawn anew) than the one the features come from.
        rows: which of the tangent's rows these are.
        stage: mode, prior, solver.
        first, second: penalties of ω and of the gradients.
        omega: ω for every fit, instead of the one solved in each fold: to ablate it.
    """

    task: Task
    matrices: Mapping[str, Matrix]
    tangent: Tangent | None
    rows: Tensor
    stage: Gradients
    first: Solve
    second: Solve
    omega: Tensor | None = None

    @property
    def dear(self) -> bool:
        """No: a solve is some hundred passes of the network's top."""
        return False

    @property
    def flops(self) -> int:
        """Of the products with the Jacobian, counted; those of all parts that share the tangent are in it."""
        return 0 if self.tangent is None else self.tangent.spent_flops

    @property
    def passed(self) -> int:
        """Of the kernels."""
        return 0 if self.tangent is None else self.tangent.passed_rows

    def take(self, rows: np.ndarray) -> GradientProblem:
        """The problem on some of its rows."""
        index = torch.as_tensor(rows, dtype=torch.long)
        matrices = {name: Taken(matrix, index) for name, matrix in self.matrices.items()}
        return replace(self, task=self.task.take(rows), matrices=matrices, rows=self.rows[index])

    @property
    def both(self) -> Both:
        """Features and tangent side by side."""
        dtype = torch.float32 if self.tangent is None else self.tangent.dtype
        device = "cpu" if self.tangent is None else self.tangent.device
        matrices = {name: m if m.dtype == dtype else Cast(m, dtype) for name, m in self.matrices.items()}
        features = FeatureDesign(matrices, self.task.target.outputs, device=device)
        return Both(features, self.tangent, self.rows, self.stage.mode)

    def first_head(self, form: str, class_weight: ClassWeight = None) -> Solution:
        """The head on features alone, its penalty λ₁ cross-validated: ω."""
        features, task = self.both.features, self.task
        return solve(
            FeatureDesign(features.matrices, features.n_outputs),
            task.response,
            forms=(form,),
            strengths=self.first.strengths,
            folds=task.fold_ids(),
            metric=task.metric,
            class_weight=class_weight,
        )

    def solve(self) -> GradientHead:
        """Cross-validate ω, then λ₂ at two of its λ₁ with ω solved inside each fold, and solve on all rows."""
        task, both = self.task, self.both
        fold_ids, response = task.fold_ids(), task.response
        regression = response.kind == "regression"
        first = self.first_head("ridge" if regression else "logistic", task.class_weight)
        if self.stage.mode == "activation":
            return GradientHead(first, None, fold_ids, self.stage)
        rows = sample_weights(response, None)
        weights = row_weights(response, task.class_weight, rows)
        folds = torch.as_tensor(fold_ids).to(torch.int64)
        check_training(folds, weights, response.classes)
        fitter = TangentFitter(both, Labels.of(response, weights), folds, self.stage, self.omega)
        judge = Judge(task.metric, response, folds, rows > 0, True)
        forms = [fitter.form(strength) for strength in _heads(first, higher_is_better(task.metric))]
        # one at a time, for the weakest penalties take most of the products, and in the noise of a fold's score three
        # more are tempting often: measured, half of the whole time, and the same cell in the end
        found = search(fitter, judge, forms, self.second.strengths, default=STRENGTHS, steps=1)
        path = () if self.tangent is None else self.tangent.path
        head = fitter.head(found.readout.form)
        return GradientHead(behind(first, found), head, fold_ids, self.stage, path)


def behind(first: Solution, found: Solution) -> Solution:
    """What was found on top of a first head, with that head's candidates, under names of their own, among those
    tried."""
    heads = (replace(candidate, chosen=False, name=f"head: {candidate.name}") for candidate in first.candidates)
    return replace(found, candidates=(*heads, *found.candidates))


def _heads(first: Solution, higher: bool) -> list[float]:
    """λ₁ of the best ω, and the strongest within one standard error of it.

    A head that fits its rows without penalty leaves no residual, and so nothing for gradients to learn from.
    """
    best = first.chosen
    floor = (best.score if higher else -best.score) - (best.standard_error or 0.0)
    near = [c.strength for c in first.candidates if (c.score if higher else -c.score) >= floor]
    return list(dict.fromkeys([best.strength, max(near, default=best.strength)]))
