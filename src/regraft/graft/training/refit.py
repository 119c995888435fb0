"""A head on all layers of a network that was tuned for the task, the tuned logits among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.features import Plan, plan, pool_batch
from regraft.graft.adapted import Adapted, with_own_head
from regraft.graft.frozen.layers import layer_shares
from regraft.graft.problem import Task
from regraft.graft.stages.features import Features, Solve
from regraft.graft.training.manifest_rows import ManifestRows
from regraft.graft.training.trial import Work
from regraft.graft.view import Scaling, View
from regraft.heads import Solution, higher_is_better, link, solve
from regraft.linear import Dense, FeatureDesign
from regraft.network import Network

__all__ = ["Refit", "Refitted"]

_BATCH = 64
_SHOWN_ROWS = 1000


@dataclass(frozen=True)
class Refitted:
    """What a refitted head was chosen as."""

    scaling: Scaling
    form: str
    strength: float
    temperature: float


@dataclass(frozen=True, eq=False)
class Refit:
    """Sweep the tuned network and solve a head on what it gives.

    The features of all rows are held in memory, 4 bytes a number (0.06 GB for 1,000 rows of 15,000 features).

    Attributes:
        features: which taps of the tuned network (its logits are the tuned ones), and the scalings to choose from.
        stage: forms and penalties to choose from.
    """

    features: Features
    stage: Solve

    def choose(
        self, twin: Adapted, rows: ManifestRows, task: Task, out: np.ndarray, work: Work
    ) -> tuple[Refitted, Tensor]:
        """Choose scaling, form, penalty and temperature on the rows ``out``, which the twin was not trained on.

        Every candidate is solved on the rows that the twin was trained on, and judged on the others.

        Returns:
            the choice, and the calibrated probabilities of the rows ``out``.
        """
        network = with_own_head(twin)
        wanted = plan(network, [self.features.taps])
        folds = np.where(out, 0, -1)
        matrices = _swept(network, wanted, rows, work)
        found: list[tuple[Scaling, Solution]] = []
        for scaling in self.features.scalings:
            design = View(scaling).design(matrices, task.target.outputs)
            found.append((scaling, self._solved(design, task, folds)))
        sign = 1 if higher_is_better(task.metric) else -1
        scaling, best = max(found, key=lambda pair: sign * next(c.score for c in pair[1].candidates if c.chosen))
        readout = best.readout
        logits = best.out_of_fold[torch.from_numpy(out)]
        chosen = Refitted(scaling, readout.form, readout.strength, readout.temperature)
        return chosen, link(readout.link, logits / readout.temperature)

    def final(
        self, tuned: Adapted, rows: ManifestRows, task: Task, chosen: Refitted, work: Work
    ) -> tuple[Adapted, tuple[dict[str, Any], ...]]:
        """The chosen head on the finally tuned network and all rows, and the shares of its layers."""
        network = with_own_head(tuned)
        wanted = plan(network, [self.features.taps])
        matrices = _swept(network, wanted, rows, work)
        view = View(chosen.scaling)
        design = view.design(matrices, task.target.outputs)
        only = replace(self, stage=Solve((chosen.form,), (chosen.strength,)))
        solution = only._solved(design, task, np.where(np.arange(len(rows)) % 2, 0, -1))
        readout = replace(solution.readout, temperature=chosen.temperature)
        some = {name: Dense(matrix.tensor[:_SHOWN_ROWS]) for name, matrix in matrices.items()}
        shares = layer_shares(readout, view.design(some, task.target.outputs), wanted.blocks)
        own_head = tuned.own_head or (task.target.outputs, tuned.plan.blocks[0].width)
        model = replace(tuned, network=network, plan=wanted, view=view, readout=readout, own_head=own_head)
        return model, tuple(shares)

    def _solved(self, design: FeatureDesign, task: Task, folds: np.ndarray) -> Solution:
        return solve(
            design,
            task.response,
            forms=self.stage.forms,
            strengths=self.stage.strengths,
            folds=folds,
            metric=task.metric,
            class_weight=task.class_weight,
        )


def _swept(network: Network, wanted: Plan, rows: ManifestRows, work: Work) -> dict[str, Dense]:
    """Every block of every row, un-augmented, float32 in memory."""
    held = {block.name: torch.empty(len(rows), block.width) for block in wanted.blocks}
    for part in torch.arange(len(rows)).split(_BATCH):
        for name, value in pool_batch(network, wanted.blocks, rows.inputs(part)).items():
            held[name][part] = value.float().cpu()
    work.rows += len(rows)
    few = rows.inputs(torch.arange(1))
    work.flops += network.flops(network.place(few)) * len(rows)
    return {name: Dense(value) for name, value in held.items()}
