"""The case that checks look at: how much of the data, and networks under their heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regraft.data import Manifest, Target
from regraft.diagnose.checks.check import Case, Subject
from regraft.diagnose.objective import LossName
from regraft.errors import RecipeError
from regraft.features.tangent.weights import selected
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.heads import Readout
from regraft.heads.weights import moments
from regraft.network import Network
from regraft.record import Finding
from regraft.wording import some

__all__ = [
    "NONE",
    "RANDOM",
    "Looked",
    "Scope",
    "drawn",
    "last_layer",
    "patterns",
    "subject_of",
    "told_apart",
    "unit_of",
]

RANDOM, NONE = "random", "none"
_LOSSES: dict[str, LossName] = {
    "binary": "softmax",
    "multiclass": "softmax",
    "multilabel": "sigmoid",
    "regression": "squared",
}


@dataclass(frozen=True)
class Scope:
    """How much is looked at.

    Attributes:
        rows: of the data, on which losses are taken; drawn by the seed, each row alike.
        select: patterns of the parameters that move: ``top`` is the topmost block with the head, ``all`` every one.
        top: how many eigenvalues.
        points: of a side of a landscape.

    Raises:
        RecipeError: fewer than three rows or points, no eigenvalue, or nothing selected.
    """

    rows: int = 256
    select: tuple[str, ...] = ("top",)
    top: int = 20
    points: int = 25

    def __post_init__(self) -> None:
        if isinstance(self.select, str):
            object.__setattr__(self, "select", (self.select,))
        if self.rows < 3 or self.points < 3 or self.top < 1 or not self.select:
            got = f"rows={self.rows}, points={self.points}, top={self.top}, select={self.select!r}"
            raise RecipeError("too little is to be looked at", expected="3 rows and points, 1 eigenvalue", got=got)


@dataclass(frozen=True, eq=False)
class Looked:
    """A case, what it was made of, and what is to be said of it beside what checks say."""

    case: Case
    ready: Prepared
    notes: tuple[Finding, ...] = ()


def drawn(rows: Manifest, count: int, seed: int) -> Manifest:
    """So many rows whose labels are all there, each alike: their mean loss is that of all but for chance."""
    values = np.asarray(rows.labels.values, dtype=np.float64).reshape(len(rows), -1)
    known = np.isfinite(values).all(1) & ((values >= 0).all(1) | (rows.labels.kind == "regression"))
    return rows.take(np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(known))[:count]))


def unit_of(target: Target | None) -> tuple[Tensor, Tensor] | None:
    """Mean and deviation of each column of numbers, ``(C,)``; ``None`` for other labels."""
    if target is None or target.kind != "regression":
        return None
    values = torch.as_tensor(np.asarray(target.values), dtype=torch.float64).reshape(len(target), -1)
    return moments(values.nan_to_num(), (~values.isnan()).double())


def last_layer(readout: Readout, unit: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Weight ``(C, D)`` and bias of the head as a training begins with it: of classes over the temperature, of numbers
    those of standardised ones."""
    (block,) = readout.coefficients.values()
    weight, bias = (part.double() / readout.temperature for part in (block.T, readout.intercept))
    if unit is not None:
        shift, spread = unit
        weight, bias = weight / spread[:, None], (bias - shift) / spread
    return weight.float().contiguous(), bias.float()


def subject_of(
    name: str, network: Network, rows: Manifest, scope: Scope, options: Options, unit: tuple[Tensor, Tensor] | None
) -> Subject:
    """A network, the rows that its loss is taken on, with numbers in the ``unit`` of its head, and what of it moves."""
    target = rows.labels
    values = torch.as_tensor(np.asarray(target.values))
    if unit is not None:
        values = (values.double().reshape(len(rows), -1) - unit[0]) / unit[1]
    select = patterns(network, scope.select)
    return Subject(name, network, rows, values, _LOSSES[target.kind], select, batch_size=options.batch_size)


def patterns(network: Network, asked: Sequence[str]) -> tuple[str, ...]:
    """What of the parameters moves: ``top`` and ``all`` are words, the others patterns.

    Raises:
        ModelError: a pattern matches none.
    """
    found: list[str] = []
    for pattern in asked:
        if pattern == "all":
            found.append("*")
        elif pattern == "top":
            found += [*network.topmost, f"{network.head}.*"]
        else:
            found.append(pattern)
    selected(network, found)
    return tuple(found)


def told_apart(kind: str, classes: Sequence[str], other_kind: str, others: Sequence[str]) -> tuple[str, str]:
    """Two sets of labels in words: the kinds where these differ, else the names that one has and the other has not."""
    if kind != other_kind and {kind, other_kind} != {"binary", "multiclass"}:
        return f"{kind} labels", f"{other_kind} labels"
    lacking, more = [c for c in classes if c not in others], [c for c in others if c not in classes]
    if not lacking and not more:
        return f"the labels in the order {some(classes, 4)}", some(others, 4)
    said = [f"{what} {some(names, 4)}" for what, names in (("without", lacking), ("with", more)) if names]
    return f"the same {len(classes)} labels", f"{len(others)}, {' and '.join(said)}"
