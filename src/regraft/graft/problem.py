"""What the protocol asks of a method: labelled rows that can be cut and solved, and the head that they give.

:func:`regraft.graft.protocol.evaluate` scores every method through these two abstract classes alone, so a method is
a :class:`Problem` of its own (features and a linear head, a network to be trained, …) and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from regraft.data import Kind, Target, folds
from regraft.features import Plan
from regraft.graft.adapted.model import Adapted
from regraft.heads import Response, Status
from regraft.network import Network
from regraft.record import Candidate, Finding

__all__ = ["MANY", "Head", "HeldOut", "Predicted", "Problem", "Task"]

#: Rows of which a held-out fifth says enough: 2,000 of them put an accuracy of 90 % within 1.3 points.
MANY = 10_000


@dataclass(frozen=True, eq=False)
class Task:
    """The labels of some rows, and how a choice among heads is judged on them.

    Attributes:
        target, groups: the labels, and the groups that no fold may cross.
        metric: what a head is chosen by.
        seed, folds: of the inner folds.
        class_weight: see :func:`regraft.heads.solve`.
        cross: score by cross-validation, however many rows there are.
    """

    target: Target
    groups: tuple[str, ...] | None
    metric: str
    seed: int = 0
    folds: int = 5
    class_weight: Literal["balanced"] | Mapping[str, float] | None = None
    cross: bool = False

    def __len__(self) -> int:
        return len(self.target)

    @property
    def many(self) -> bool:
        """Whether there are so many rows that a held-out fifth scores, where no part is named that does."""
        return len(self) >= MANY and not self.cross

    @property
    def kind(self) -> Kind:
        """Of the labels."""
        return self.target.kind

    @property
    def response(self) -> Response:
        """The target as tensors."""
        return Response.of(self.target.kind, self.target.classes, self.target.values)

    def take(self, rows: np.ndarray) -> Task:
        """The task on some of its rows."""
        groups = None if self.groups is None else tuple(self.groups[i] for i in rows)
        return replace(self, target=self.target.take(rows), groups=groups)

    def fold_ids(self) -> np.ndarray:
        """Seeded, stratified folds that no group crosses."""
        return folds(self.target, self.groups, self.folds, self.seed)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions of rows that took part in a head's choice but not in the fit that predicts them.

    Attributes:
        rows: indices into the problem.
        probabilities: ``(len(rows), C)``.
        fold: the inner fold of each row; ``None`` where there are no folds.
        protocol: how they came about, for the record.
        response: the labels that they are about, where these are not the rows' own (of positions of a feature map).
        spread: ``(len(rows), C)``, the deviations of numbers about their predictions, where the head knows them.
    """

    rows: np.ndarray
    probabilities: Tensor
    fold: np.ndarray | None
    protocol: str
    response: Response | None = None
    spread: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a head says of some rows.

    Attributes:
        probabilities: ``(N, C)``, or numbers.
        spread: ``(N, C)``, the deviations of targets about numbers, noise included; ``None`` where unknown.
    """

    probabilities: Tensor
    spread: Tensor | None = None


class Head(ABC):
    """What solving a problem gives.

    Attributes:
        varied: the letter and the name of what its candidates' ``strength`` is.
    """

    varied: ClassVar[tuple[str, str]] = ("λ", "penalty")

    @property
    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Every cell that was tried, one of them chosen."""

    @property
    @abstractmethod
    def status(self) -> Status:
        """How the final fit ended."""

    @abstractmethod
    def predict_proba(self, problem: Any) -> Tensor:
        """Probabilities (or values) of the rows of another problem of the same kind, ``(N, C)`` on the processor.

        For segmentation ``(N, C, C)``: how many pixels of each class are predicted as each, all that scores need.
        """

    def predict(self, problem: Any) -> Predicted:
        """:meth:`predict_proba`, with deviations where the head knows them: both in one pass over the rows."""
        return Predicted(self.predict_proba(problem))

    @abstractmethod
    def held_out(self) -> HeldOut:
        """Predictions of rows it was solved on, by fits that did not see them. They chose it: optimistic."""

    @abstractmethod
    def adapted(self, task: Task, network: Network, plan: Plan) -> Adapted:
        """The model for raw inputs, given the backbone and the blocks that were swept."""

    @abstractmethod
    def figures(self, problem: Any, plan: Plan) -> dict[str, Any]:
        """Pictures that only this kind of head has, as plain JSON, given the problem that it solves."""

    @abstractmethod
    def findings(self) -> Iterator[Finding]:
        """What this kind of head has to say of itself."""


class Problem(ABC):
    """Labelled rows of one method, with all that the choice of its head needs. Immutable.

    Attributes:
        weighs_classes: whether a class may weigh more than another in the loss.
    """

    task: Task
    weighs_classes: ClassVar[bool] = True

    @property
    @abstractmethod
    def dear(self) -> bool:
        """Whether one solve costs so much that the protocol holds one part out instead of cross-validating."""

    @property
    def flops(self) -> int:
        """Floating-point operations of the backbone in solving and predicting so far; none for stored features."""
        return 0

    @property
    def passed(self) -> int:
        """Rows that went through the backbone in solving and predicting so far; none for stored features."""
        return 0

    @abstractmethod
    def take(self, rows: np.ndarray) -> Problem:
        """The problem on some of its rows."""

    @abstractmethod
    def solve(self) -> Head:
        """Choose and fit a head on these rows alone."""

    def sharing(self) -> Problem:
        """The problem with what all parts that :meth:`take` will cut from it have in common, computed once; itself
        where that is nothing."""
        return self

    def telling(self, progress: Callable[[int, int], None]) -> Problem:
        """The problem whose solves call ``progress`` with (done, in all), where one takes minutes; else itself."""
        return self

    def settled(self, head: Any) -> Problem:
        """The problem that takes over the choices of a head chosen on part of its rows, instead of choosing anew.

        For dear problems and heads on features of many rows; others give themselves, and choose anew.
        """
        return self

    def __len__(self) -> int:
        return len(self.task)
