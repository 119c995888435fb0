"""Dense labels on frozen features: positions of feature maps as the rows of an ordinary linear head.

The rows of the inner problem are positions, each labelled by the commonest class of its pixels, grouped by image (or by
the images' own groups), so that no fold divides an image. What is scored are pixels: logits of a map are brought to
the mask's size bilinearly. Everything else, folds, penalties and the choice among them, is
:class:`regraft.graft.frozen.problem.FeatureProblem`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import Target
from regraft.features import Block, Plan, grid_of, maps, positions
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.view import Scaling, View
from regraft.graft.frozen.problem import FeatureHead, FeatureProblem
from regraft.graft.pixels import confusions, position_labels
from regraft.graft.problem import Head, HeldOut, Problem, Task
from regraft.graft.stages.features import Solve
from regraft.heads import Readout, Response, Status
from regraft.heads.metrics import confusion
from regraft.linear import Dense, Matrix, Taken
from regraft.network import Network
from regraft.record import Candidate, Finding
from regraft.record.protocol import INNER_POSITIONS

__all__ = ["LIMIT", "DenseHead", "DenseProblem"]

#: Positions that a head is solved on; of more, so many are drawn by the task's seed.
LIMIT = 8_000
_CHUNK = 64  # images whose maps are in memory at once


@dataclass(frozen=True, eq=False)
class DenseHead(Head):
    """A linear head on positions.

    Attributes:
        inner: the head, solved on labelled positions.
        block: the map that it reads.
        rows: (M, 2) image and position of the inner problem's rows.
        codes: their classes.
        images: how many images there were.
        classes: their names.
    """

    inner: FeatureHead
    block: Block
    rows: np.ndarray
    codes: np.ndarray
    images: int
    classes: tuple[str, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every cell that was tried, scored on positions."""
        return self.inner.candidates

    @property
    def status(self) -> Status:
        """How the final solve ended."""
        return self.inner.status

    def predict_proba(self, problem: DenseProblem) -> Tensor:
        """Pixels of another problem's images by class and predicted class, ``(N, C, C)``."""
        readout = self.inner.solution.readout
        found = [
            confusions(problem.logits(self.inner.view, readout, rows), problem.task.target.take(rows))
            for rows in torch.arange(len(problem)).split(_CHUNK)
        ]
        return torch.cat(found)

    def held_out(self) -> HeldOut:
        """Every image's positions, by the inner fold that did not see it; counted by class and predicted class."""
        classes = len(self.classes)
        said = self.inner.solution.out_of_fold.argmax(1).numpy()
        counts = np.zeros((self.images, classes, classes))
        fold = np.full(self.images, -1)
        for image in range(self.images):
            mine = self.rows[:, 0] == image
            counts[image] = confusion(self.codes[mine], said[mine], classes)
            if mine.any():
                fold[image] = self.inner.fold_ids[mine][0]
        there = np.flatnonzero(fold >= 0)
        response = Response.of("segmentation", self.classes, counts[there].sum(2))
        return HeldOut(there, torch.from_numpy(counts[there]), fold[there], INNER_POSITIONS, response)

    def adapted(self, task: Task, network: Network, plan: Plan) -> Adapted:
        """The backbone with this head at every position."""
        return Adapted(network, plan, self.inner.view, self.inner.solution.readout, task.kind, task.target.classes)

    def figures(self, problem: DenseProblem, plan: Plan) -> dict[str, Any]:
        """``dense``: which map is read, its grid, and how many positions the head was solved on."""
        return {"dense": {**problem.about(), "positions": len(self.codes)}}

    def findings(self) -> Iterator[Finding]:
        """None."""
        return iter(())


@dataclass(frozen=True, eq=False)
class DenseProblem(Problem):
    """Feature maps of some images with masks.

    Attributes:
        task: the labels, and how heads are judged.
        maps: ``(N, C h w)`` flattened maps.
        block: the tap and the grid of the maps.
        scalings: of each position's features.
        stage: forms and penalties to try.
        labels: ``(N, h w)`` of positions, see :func:`regraft.graft.pixels.position_labels`.
        limit: positions to solve on at most.
    """

    task: Task
    maps: Matrix
    block: Block
    scalings: tuple[Scaling, ...]
    stage: Solve
    labels: Tensor
    limit: int = LIMIT

    @staticmethod
    def of(task: Task, maps: Matrix, block: Block, scalings: tuple[Scaling, ...], stage: Solve) -> DenseProblem:
        """With the labels of the positions read from the masks."""
        return DenseProblem(task, maps, block, scalings, stage, position_labels(task.target, grid_of(block)))

    @property
    def grid(self) -> tuple[int, int]:
        """(h, w) of the maps."""
        return grid_of(self.block)

    @property
    def dear(self) -> bool:
        """No: a solve takes seconds."""
        return False

    def about(self) -> dict[str, Any]:
        """The map in plain words."""
        return {"tap": self.block.site, "grid": list(self.grid), "channels": self.block.width // self.labels.shape[1]}

    def take(self, rows: np.ndarray) -> DenseProblem:
        """The problem on some of its images."""
        index = torch.as_tensor(rows, dtype=torch.long)
        return replace(self, task=self.task.take(rows), maps=Taken(self.maps, index), labels=self.labels[index])

    def features(self, images: Tensor) -> Tensor:
        """``(B h w, C)`` of some images, position by position."""
        return positions(self.maps.rows(images).float(), self.grid)

    def logits(self, view: View, readout: Readout, images: Tensor) -> Tensor:
        """Maps ``(B, C, h, w)`` of some images by a head on positions."""
        design = view.design({self.block.name: Dense(self.features(images))}, self.task.target.outputs)
        return maps(readout.logits(design).float(), self.grid)

    def chosen(self) -> np.ndarray:
        """(M, 2) image and position of the labelled positions, or of ``limit`` of them drawn by the task's seed."""
        found = torch.nonzero(self.labels >= 0).numpy()
        if len(found) <= self.limit:
            return found
        drawn = np.random.default_rng(self.task.seed).permutation(len(found))[: self.limit]
        return found[np.sort(drawn)]

    def flat(self) -> tuple[FeatureProblem, np.ndarray]:
        """The problem of labelling positions, grouped by image, and which position each of its rows is."""
        task, rows = self.task, self.chosen()
        pieces = []
        for images in torch.arange(len(self)).split(_CHUNK):
            mine = rows[(rows[:, 0] >= int(images[0])) & (rows[:, 0] <= int(images[-1]))]
            place = (mine[:, 0] - int(images[0])) * self.labels.shape[1] + mine[:, 1]
            pieces.append(self.features(images)[torch.from_numpy(place)])
        codes = self.labels.numpy()[rows[:, 0], rows[:, 1]]
        groups = tuple(str(image) if task.groups is None else task.groups[image] for image in rows[:, 0])
        inner = replace(task, target=Target("multiclass", task.target.classes, codes), groups=groups)
        return FeatureProblem(inner, {self.block.name: Dense(torch.cat(pieces))}, self.scalings, self.stage), rows

    def solve(self) -> DenseHead:
        """Choose scaling, form and strength by cross-validation over images, and solve on all positions."""
        problem, rows = self.flat()
        target = problem.task.target
        return DenseHead(problem.solve(), self.block, rows, target.values, len(self), target.classes)
