"""*Fast Adaptation with Linearized Neural Networks* as a problem of the protocol: predictions with error bars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regraft.features import Plan
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.view import View
from regraft.graft.gradient.problem import GradientProblem, behind, derivatives_read
from regraft.graft.posterior.fit import Fitted, KernelFitter, squared
from regraft.graft.posterior.kernel import share
from regraft.graft.problem import Head, HeldOut, Predicted, Problem, Task
from regraft.graft.stages.posterior import Posterior
from regraft.heads import Solution, Status, link
from regraft.heads.search import Judge
from regraft.heads.solve import search
from regraft.heads.weights import sample_weights
from regraft.network import Network
from regraft.record import Candidate, Finding
from regraft.record.protocol import INNER
from regraft.wording import some

__all__ = ["GaussianHead", "GaussianProblem"]

_FEW = 30
"""Rows below which error bars of one scale and noise are said to be too narrow: of numbers and ten rows 90 % intervals
held 77 % of new targets."""
_TOLD = 5e-4
"""The least share of a variance that is not told as 0.0 %."""
_CRITERIA = {"marginal": "marginal likelihood", "loo": "the density of contrasts of the rows, left out one by one"}


@dataclass(frozen=True, eq=False)
class GaussianHead(Head):
    """A Gaussian process posterior in weight space.

    Attributes:
        solution: the chosen mixture, with w₁ as its readout.
        fitted: the posterior on all rows.
        rows: those that took part in the choice.
        deviations: (N, C) error bars of these rows by the fit without their fold; NaN of rows that took no part.
        fold_ids: the inner folds.
        outputs: names of the C numbers or classes.
        path: how derivatives are computed, a sentence a part.
    """

    solution: Solution
    fitted: Fitted
    rows: np.ndarray
    deviations: Tensor
    fold_ids: np.ndarray
    outputs: tuple[str, ...]
    path: tuple[str, ...]

    varied = ("ρ", "share of gradients")

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every mixture that was tried."""
        return self.solution.candidates

    @property
    def status(self) -> Status:
        """How the final system was solved."""
        return self.fitted.status

    def predict_proba(self, problem: GaussianProblem) -> Tensor:
        """Means or probabilities of another problem's rows, ``(N, C)``."""
        return self.predict(problem).probabilities

    def predict(self, problem: GaussianProblem) -> Predicted:
        """Means or probabilities of another problem's rows, and their error bars."""
        gradient, part, readout = problem.gradient, self.fitted.part, self.solution.readout
        rows = slice(0, gradient.both.features.n_rows)
        features = torch.cat([m.rows(rows) for m in gradient.both.features.matrices.values()], dim=1)
        design = None
        if gradient.tangent is not None and part.head is not None:
            design = gradient.tangent.through(part.head).take(gradient.rows)
        moved, spread = part.read(features, design)
        weights = torch.cat(list(readout.coefficients.values())).cpu().to(torch.float64)
        logits = features.cpu().to(torch.float64) @ weights + readout.intercept + moved
        return Predicted(link(readout.link, logits / readout.temperature), spread)

    def held_out(self) -> HeldOut:
        """The rows that took part in the choice, by the inner fold that did not see them."""
        rows, readout = torch.as_tensor(self.rows), self.solution.readout
        found = link(readout.link, self.solution.out_of_fold[rows] / readout.temperature)
        return HeldOut(self.rows, found, self.fold_ids[self.rows], INNER, spread=self.deviations[rows])

    def adapted(self, task: Task, network: Network, plan: Plan) -> Adapted:
        """The frozen backbone with the mean's weights, and the error bars of what it predicts."""
        readout = self.solution.readout
        return Adapted(network, plan, View(), readout, task.kind, task.target.classes, posterior=self.fitted.part)

    def figures(self, problem: GaussianProblem, plan: Plan) -> dict[str, Any]:
        """``posterior``: the best scales and noises, the tangent's share of the prior, and what the error bars leave
        out; of classes also how wide the error bars of the rows held out are: ``typical``, quantiles by name."""
        part, ratio = self.fitted.part, self.solution.readout.strength
        found: dict[str, Any] = {
            "scale": [each.scale for each in self.fitted.chosen],
            "noise": [each.noise for each in self.fitted.chosen],
            "log_marginal": sum(each.log_marginal for each in self.fitted.chosen),
            "tangent_share": share(ratio) if part.weights else 0.0,
            "rank": part.rank,
            "left_out": part.left_out,
            "sums": part.sums,
            "sums_apart": self.fitted.apart,
            "parameters": {name: value[0].numel() for name, value in part.weights.items()},
        }
        if not part.of_targets:
            found["typical"] = self._typical
        return {"posterior": found}

    @property
    def _typical(self) -> dict[str, float]:
        seen = self.deviations[torch.as_tensor(self.rows), 0]
        return {str(share): float(seen.quantile(share)) for share in (0.5, 0.9, 0.99)}

    def findings(self) -> Iterator[Finding]:
        """What the error bars rest on, and how derivatives are computed."""
        part, chosen = self.fitted.part, self.fitted.chosen
        said = " ".join(dict.fromkeys(each.message for each in chosen))
        averaged = bool((part.uncertainty.widening > 1).any())
        how = "Scale and noise are averaged over; the likeliest" if averaged else "Scale and noise"
        detail = (
            f"{how} by {_CRITERIA[chosen[0].by]}. {said} {part.rank} directions of the posterior are kept; "
            f"the others would narrow a variance by at most {100 * part.left_out:.1f} % of the prior's"
        )
        if averaged and part.left_out >= _TOLD:  # the means of different scales and noises lie apart along them too
            detail += ", and where scales and noises differ along them, widen it: some error bars may be too narrow"
        detail += "."
        if part.sums:
            apart = f"{100 * self.fitted.apart:.2g} %"
            detail += (
                f" They are of {part.sums:,} random sums of derivatives, whose kernel is {apart} from the exact one."
            )
        if part.rows < len(self.deviations):
            detail += f" {part.rows} of {len(self.deviations)} rows are fitted: the others repeat one of them."
        few = part.rows < _FEW and not averaged
        if few:
            detail = (
                f"Of {part.rows} rows, scale and noise are themselves uncertain: error bars are too narrow. {detail}"
            )
        found = self._of_numbers(detail) if part.of_targets else self._of_classes(detail)
        yield replace(found, severity="warning") if few else found
        parameters = {name: value[0].numel() for name, value in part.weights.items()}
        yield from derivatives_read(parameters, self.path)

    def _of_numbers(self, detail: str) -> Finding:
        part = self.fitted.part
        noise = (part.uncertainty.noise.sqrt() * part.unit.to(torch.float64)).tolist()
        alone = len(noise) == 1
        scatter = f"{noise[0]:.3g}" if alone else some([f"{n:.3g} ({o})" for n, o in zip(noise, self.outputs)])
        return Finding(
            "error-bars",
            f"Targets scatter by {scatter} about the function; error bars add what the function itself leaves "
            "open at each input.",
            "info",
            noise[0] if alone else None,
            "target unit" if alone else "",
            detail=detail,
        )

    def _of_classes(self, detail: str) -> Finding:
        typical = self._typical
        return Finding(
            "error-bars",
            "Of rows that the fit had not seen, the function behind the probabilities has a deviation above "
            f"{typical['0.5']:.2g} at one in two and above {typical['0.99']:.2g} at one in a hundred: inputs with more "
            "are unlike the task's rows, whatever their probabilities say.",
            "info",
            typical["0.99"],
            "times the scores' spread",
            detail=detail,
        )


@dataclass(frozen=True, eq=False)
class GaussianProblem(Problem):
    """Labelled rows, their last layer's features and their place in a tangent.

    Attributes:
        gradient: the same rows as gradient features see them.
        stage: what the posterior keeps.
    """

    gradient: GradientProblem
    stage: Posterior
    weighs_classes: ClassVar[bool] = False  # its noise is the same for every row

    @property
    def task(self) -> Task:  # type: ignore[override]
        """The labels."""
        return self.gradient.task

    @property
    def dear(self) -> bool:
        """No: some kernel matrices."""
        return False

    @property
    def flops(self) -> int:
        """Of the products with the Jacobian, counted."""
        return self.gradient.flops

    @property
    def passed(self) -> int:
        """Of the kernels."""
        return self.gradient.passed

    def take(self, rows: np.ndarray) -> GaussianProblem:
        """The problem on some of its rows."""
        return replace(self, gradient=self.gradient.take(rows))

    def solve(self) -> GaussianHead:
        """Cross-validate ω's penalty, then the mixture of the two kernels, and condition on all rows."""
        gradient, task = self.gradient, self.task
        fold_ids, response = task.fold_ids(), task.response
        both = gradient.both
        first = gradient.first_head("ridge")
        folds = torch.as_tensor(fold_ids).to(torch.int64)
        weights = sample_weights(response, None)[:, None]
        fitter = KernelFitter(
            both,
            squared(response, weights),
            folds,
            first.chosen.strength,
            gradient.stage.prior,
            self.stage,
            task.seed,
        )
        counted = torch.zeros(len(response), dtype=torch.bool)
        counted[fitter.searched] = True
        judge = Judge(task.metric, response, folds, counted, True)
        ratios = (0.0,) if gradient.tangent is None else gradient.second.strengths
        found = search(fitter, judge, ["tangent-gp"], ratios, default=Posterior.ratios)
        ratio = found.readout.strength
        path = () if gradient.tangent is None else gradient.tangent.tape.path
        return GaussianHead(
            behind(first, found),
            fitter.fitted(ratio),
            fitter.searched.numpy(),
            fitter.spread(ratio),
            fold_ids,
            task.target.classes,
            path,
        )
