"""A head on all layers of a network that was tuned for the task, the tuned logits among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.features import Plan, by_size, plan, pool_batch
from regraft.graft.adapted.model import Adapted, with_own_head
from regraft.graft.frozen.problem import FeatureHead, FeatureProblem
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import affine
from regraft.graft.loop.rows import AT_ONCE
from regraft.graft.problem import Task
from regraft.graft.stages.features import Features, Select, Solve
from regraft.graft.training.trial import Work
from regraft.linear import Dense
from regraft.network import Network

__all__ = ["Refit"]


@dataclass(frozen=True, eq=False)
class Refit:
    """Sweep the tuned network and solve a head on what it gives; of numbers in units of their spread about their mean,
    so that no penalty depends on how the targets are written, and unscaled, for of one number a row's length leaves a
    sign.

    The features of all rows are held in memory, 4 bytes a number (0.06 GB for 1,000 rows of 15,000 features).

    Attributes:
        features: which taps of the tuned network (its logits are the tuned ones), and the scalings to choose from.
        stage: forms and penalties to choose from.
        select: Head2Toe's search before the head is solved, if wanted.
    """

    features: Features
    stage: Solve
    select: Select | None = None

    def choose(
        self, twin: Adapted, rows: ManifestRows, task: Task, out: np.ndarray, work: Work
    ) -> tuple[FeatureHead, Tensor]:
        """Choose scaling, form, penalty and temperature, and how features are chosen, on the rows ``out``, which the
        twin was not trained on.

        Every candidate is solved on the rows that the twin was trained on, and judged on the others.

        Returns:
            the chosen head, and the calibrated probabilities of the rows ``out``.
        """
        unit = affine(task.take(np.flatnonzero(~out)))
        problem, _ = self._problem(with_own_head(twin, unit), rows, task, work)
        head = problem.solve(np.where(out, 0, -1))
        return head, head.held_out().probabilities

    def final(
        self, tuned: Adapted, rows: ManifestRows, task: Task, chosen: FeatureHead, work: Work
    ) -> tuple[Adapted, dict[str, Any]]:
        """The chosen head on the finally tuned network and all rows, and what is to be shown of it."""
        network = with_own_head(tuned, affine(task))
        problem, wanted = self._problem(network, rows, task, work)
        head = problem.repeated(chosen)
        own_head = tuned.own_head or (task.target.outputs, tuned.plan.blocks[0].width)
        model = replace(head.adapted(task, network, wanted), source=tuned.source, own_head=own_head)
        shown = head.figures(problem, wanted)
        if "selection" in shown:  # depths of a tuned network's features say nothing of what its source has
            shown["selection"]["tuned"] = True
        return model, shown

    def _problem(self, network: Network, rows: ManifestRows, task: Task, work: Work) -> tuple[FeatureProblem, Plan]:
        """The features of all rows, and their blocks."""
        wanted = plan(network, [self.features.taps])
        sizes = by_size(network, self.features.taps) if self.select is not None else {}
        matrices = _swept(network, wanted, rows, work)
        tuned = tuple(block.name for block in wanted.blocks if block.kind == "logits" and task.kind == "regression")
        problem = FeatureProblem(task, matrices, self.features.scalings, self.stage, self.select, sizes, tuned)
        return problem, wanted


def _swept(network: Network, wanted: Plan, rows: ManifestRows, work: Work) -> dict[str, Dense]:
    """Every block of every row, un-augmented, float32 in memory."""
    held = {block.name: torch.empty(len(rows), block.width) for block in wanted.blocks}
    for part in torch.arange(len(rows)).split(AT_ONCE):
        for name, value in pool_batch(network, wanted.blocks, rows.inputs(part)).items():
            held[name][part] = value.float().cpu()
    work.passed(len(rows))
    return {name: Dense(value) for name, value in held.items()}
