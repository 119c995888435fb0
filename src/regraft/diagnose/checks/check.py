"""What a check looks at, what it says, and how several are run: one that cannot run says why, and the rest go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regraft.diagnose.objective import LossName, Objective
from regraft.errors import DataError, ModelError, RegraftError
from regraft.features.tangent.weights import selected
from regraft.heads import Response
from regraft.network import Network
from regraft.record import Finding, Ledger

__all__ = ["Case", "Check", "Labelled", "Outcome", "Subject", "Tick", "examine", "unlike"]

Tick = Callable[[int, int], None]
_LIKE = 1.2  # losses that differ by more are not alike


@dataclass(frozen=True, eq=False)
class Subject:
    """A network whose logits are the task's, and the rows that its loss is taken on.

    Attributes:
        name: a word for people: ``pretrained``, ``trained``, ``random weights``.
        network: with its head.
        inputs: a Manifest, or batches.
        targets: of these rows, see :class:`regraft.diagnose.Objective`.
        loss: of the outputs.
        select: patterns of the parameters that curvature and landscapes move.
        start: the same architecture where its training began; ``None`` where it was not trained here, or is ``lost``.
        lost: whether it was trained, and where that began is not known.
        batch_size: rows at a time.
        rows: n, how many rows it was trained on; the case's where it is not known.
    """

    name: str
    network: Network
    inputs: Any
    targets: Tensor
    loss: LossName
    select: tuple[str, ...] = ("*",)
    start: Network | None = None
    lost: bool = False
    batch_size: int = 32
    rows: int | None = None

    @cached_property
    def whole(self) -> Objective:
        """The loss as a function of all parameters: the rows are read and passed once, for every check.

        Raises:
            DataError: there are no rows.
        """
        if not len(self.targets):
            do = "label more rows, or choose fewer columns with --label"
            raise DataError("no row has all its labels, which a loss is taken on", do=do)
        return Objective(self.network, self.inputs, self.targets, loss=self.loss, batch_size=self.batch_size)

    @cached_property
    def objective(self) -> Objective:
        """The loss as a function of the selected parameters."""
        return self.whole.moving(self.select)

    @property
    def moved(self) -> int:
        """How many numbers the selected parameters hold."""
        return sum(self.network.params[name].numel() for name in selected(self.network, self.select))

    @property
    def training_share(self) -> float:
        """What a training's loss is of this one: it averages over labels and numbers, and does not halve squares."""
        outputs = 1 if self.targets.ndim == 1 else self.targets.shape[1]
        return {"softmax": 1.0, "sigmoid": 1 / outputs, "squared": 2 / outputs}[self.loss]

    @property
    def guess(self) -> float:
        """The least loss of outputs that are the same for every row: entropies of classes and labels, half the
        variances of numbers."""
        values = self.targets.double().reshape(len(self.targets), -1)
        if self.loss == "squared":
            return float(values.var(0, correction=0).sum() / 2)
        codes = self.loss == "softmax" and self.targets.ndim == 1
        shares = torch.bincount(self.targets.long()).double() / len(values) if codes else values.mean(0)
        entropies = torch.special.entr(shares)
        return float((entropies + torch.special.entr(1 - shares) if self.loss == "sigmoid" else entropies).sum())


def unlike(first: float, second: float) -> str:
    """Why what bends or moves with the loss does not compare between two losses; empty where it does."""
    low, high = sorted((first, second))
    if high <= _LIKE * low:
        return ""
    return f"The losses are {first:.3g} and {second:.3g}: bends and slopes change with it, so these do not compare."


@dataclass(frozen=True, eq=False)
class Labelled:
    """Features of labelled rows, for checks that need no network.

    Attributes:
        features: ``(N, D)`` of the last layer.
        response: the labels.
        source: ``(N, S)`` probabilities of the source's own classes; ``None`` where the backbone gives none.
        groups: of the rows, which no resampling may tear apart.
    """

    features: Tensor
    response: Response
    source: Tensor | None = None
    groups: tuple[str, ...] | None = None

    @property
    def known(self) -> tuple[Tensor, Tensor]:
        """Labels of the rows that have all of theirs (codes, or those numbers in float64 that vary), and which rows
        these are."""
        response = self.response
        if response.codes is not None:
            there = response.codes >= 0
            return response.codes[there], there
        there = torch.ones(len(response), dtype=torch.bool) if response.mask is None else response.mask.all(1)
        values = response.values[there].to(torch.float64)
        varies = (values != values[:1]).any(0)
        return values[:, varies] if bool(varies.any()) else values, there

    @property
    def commonest(self) -> float | None:
        """The share of the commonest class: what guessing gets; ``None`` of numbers and several labels."""
        if self.response.codes is None:
            return None
        counts = torch.bincount(self.known[0])
        return float(counts.max() / counts.sum())

    @property
    def known_groups(self) -> list[str] | None:
        """The groups of these rows."""
        return None if self.groups is None else [g for g, there in zip(self.groups, self.known[1].tolist()) if there]

    @property
    def units(self) -> tuple[int, str]:
        """How many of what is drawn, and left out, whole: rows, or groups of them."""
        rows, groups = int(self.known[1].sum()), self.known_groups
        count = rows if groups is None else len(set(groups))
        return count, "rows" if count == rows else "groups"


@dataclass(frozen=True, eq=False)
class Case:
    """What is diagnosed.

    Attributes:
        subjects: the network that is asked about, and after it those it is compared with; none where no check looks
            at networks, or none can.
        labelled: its features; ``None`` where they were not computed.
        untrained: those of the same network with random weights; ``None`` where there is none.
        rows: n, how many training rows the task has.
        origin: features and labels of a source task with the same classes; ``None`` where none was given.
        top: how many eigenvalues.
        points: of a side of a landscape.
        seed: of directions, probes and resampling.
        lacking: why no loss can be taken; empty where it can.
    """

    subjects: tuple[Subject, ...]
    labelled: Labelled | None
    rows: int
    origin: Labelled | None = None
    top: int = 20
    points: int = 25
    seed: int = 0
    untrained: Labelled | None = None
    lacking: str = ""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a check says: findings, and the data of its picture as plain JSON values."""

    findings: tuple[Finding, ...]
    figure: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A named instrument.

    Attributes:
        name: the key of its figure, and what a user asks for.
        title: a few words, for progress and for saying that it does not apply.
        run: (case, tick) → outcome; a :class:`RegraftError` means that it does not apply, and why.
        losses: whether it looks at networks, under a head that must be solved first; else features are enough.
    """

    name: str
    title: str
    run: Callable[[Case, Tick], Outcome]
    losses: bool = True


def examine(
    case: Case, checks: Sequence[Check], ledger: Ledger, progress: Callable[[str, int, int], None] | None = None
) -> tuple[tuple[Finding, ...], dict[str, Any]]:
    """Run checks: their findings with what each check cost, and their figures by name."""
    findings: list[Finding] = []
    figures: dict[str, Any] = {}
    for check in checks:
        began = time.perf_counter()
        with ledger.stage(check.name):
            try:
                if case.lacking and check.losses:
                    raise ModelError(case.lacking)
                outcome = check.run(case, _tick(check.name, progress))
            except RegraftError as error:
                outcome = Outcome(
                    (Finding(check.name, f"{check.title} not measured", "not-applicable", detail=str(error)),)
                )
        spent = time.perf_counter() - began
        findings += [replace(finding, cost_seconds=spent) for finding in outcome.findings]
        if outcome.figure:
            figures[check.name] = {**outcome.figure, "seconds": spent}
    return tuple(findings), figures


def _tick(name: str, progress: Callable[[str, int, int], None] | None) -> Tick:
    return (lambda done, total: None) if progress is None else (lambda done, total: progress(name, done, total))
