"""Deviation: how far a training has moved the weights, by the root of the number of rows it was given.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Section 3: Tables 1 and 2, Fig. 2. In
Table 1 its rank correlation with the test error over five tasks is 0.7 (fixed backbone) and 0.8 (fine-tuned): larger
deviations go with larger errors, but do not order them.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from torch import Tensor

from regraft.diagnose.weights import LayerChange, weight_changes
from regraft.errors import DataError
from regraft.network import Network

__all__ = ["Counted", "Deviation", "DeviationCourse", "Weights", "counted_weights", "deviation", "deviation_course"]

Counted = Literal["weights", "all"]
Weights = Mapping[str, Tensor] | Network


@dataclass(frozen=True)
class Deviation:
    """The deviation of one training.

    Attributes:
        layers: ``‖W_ℓ − W⁰_ℓ‖_F`` and ``‖W⁰_ℓ‖_F`` of each layer.
        rows: n, the rows that it was trained on.
    """

    layers: tuple[LayerChange, ...]
    rows: int

    @property
    def values(self) -> dict[str, float]:
        """``‖W_ℓ − W⁰_ℓ‖_F / √n`` by layer."""
        return {layer.name: layer.change / math.sqrt(self.rows) for layer in self.layers}

    @property
    def total(self) -> float:
        """``(1/√n) Σ_ℓ ‖W_ℓ − W⁰_ℓ‖_F``: the paper's deviation, of a fine-tuned network."""
        return math.fsum(self.values.values())

    @property
    def relative(self) -> float:
        """``Σ_ℓ ‖W_ℓ − W⁰_ℓ‖_F / Σ_ℓ ‖W⁰_ℓ‖_F``; infinite where all weights began at zero and some moved."""
        moved, before = (math.fsum(getattr(layer, key) for layer in self.layers) for key in ("change", "before"))
        if moved == 0:
            return 0.0
        return moved / before if before > 0 else math.inf

    def ratio(self, other: Deviation) -> float:
        """This total divided by that of another training of the same layers, such as one from scratch.

        Raises:
            DataError: other layers, or the other did not move.
        """
        self._check(other)
        if other.total == 0:
            raise DataError("the ratio of two deviations", expected="a training that moved the weights", got="0")
        return self.total / other.total

    def _check(self, other: Deviation) -> None:
        own, theirs = self.values, other.values
        if list(own) != list(theirs):
            odd = next((name for name in {**own, **theirs} if name not in own or name not in theirs), "another order")
            raise DataError("deviations of other layers", expected="two of the same layers", got=odd)


@dataclass(frozen=True)
class DeviationCourse:
    """The deviation along a training.

    Attributes:
        epochs: of the notes, rising.
        notes: the deviation from the start at each.
    """

    epochs: tuple[float, ...]
    notes: tuple[Deviation, ...]

    @property
    def totals(self) -> tuple[float, ...]:
        """:attr:`Deviation.total` of each note."""
        return tuple(note.total for note in self.notes)

    @property
    def rising(self) -> float:
        """The share of notes whose total is above that of the note before, the start's 0 before the first."""
        before = (0.0, *self.totals[:-1])
        return sum(now > then for now, then in zip(self.totals, before)) / len(self.totals)

    def added(self, share: float = 0.1) -> float:
        """What the last ``share`` of the training added, as a share of the final total: near 0 once it has settled.

        Totals between two notes, and between the start and the first, are interpolated linearly.

        Raises:
            DataError: a share outside (0, 1), or weights that did not move.
        """
        if not 0 < share < 1:
            raise DataError("the last share of a training", expected="a number between 0 and 1", got=f"{share:g}")
        final = self.totals[-1]
        if final == 0:
            raise DataError("what the end of a training added", expected="weights that moved", got="a deviation of 0")
        last = (1 - share) * self.epochs[-1]
        return 1 - float(np.interp(last, (0.0, *self.epochs), (0.0, *self.totals))) / final


def deviation(
    before: Weights, after: Weights, rows: int, *, counted: Counted = "weights", without: str | Sequence[str] = ()
) -> Deviation:
    """``(1/√n) Σ_ℓ ‖W_ℓ − W⁰_ℓ‖_F``, per layer and in total, in float64.

    A layer is a module that owns parameters. Cost: one pass over the weights, no gradient.

    Args:
        before, after: W⁰ and W by name, or networks of one architecture.
        rows: n, the rows of the target that the training saw.
        counted: ``weights`` (matrices and filters alone, the paper's W) or ``all`` (biases and the parameters of
            normalisation as well).
        without: shell-style patterns of parameters that are left out, such as those of the head (``head.*``).

    Raises:
        DataError: no rows, no parameters left, or weights of two architectures.
    """
    if rows < 1:
        raise DataError("the rows of a deviation", expected="at least one", got=str(rows))
    held = [counted_weights(given, counted, without) for given in (before, after)]
    return Deviation(weight_changes(held[0], held[1]), rows)


def deviation_course(
    start: Weights,
    notes: Iterable[tuple[float, Weights]],
    rows: int,
    *,
    counted: Counted = "weights",
    without: str | Sequence[str] = (),
) -> DeviationCourse:
    """:func:`deviation` from the start at each note of a training, read one at a time.

    Args:
        start: W⁰.
        notes: (epoch, weights) in order, such as ``(epoch, load(checkpoint))`` from a generator.
        rows, counted, without: see :func:`deviation`.

    Raises:
        DataError: no notes, epochs that do not rise from above 0 or are not finite, or as :func:`deviation`.
    """
    epochs: list[float] = []
    found: list[Deviation] = []
    for epoch, weights in notes:
        if not (epochs[-1] if epochs else 0) < epoch < math.inf:
            raise DataError(
                "the epochs of a training", expected="rising, above 0", got=f"{epoch:g} in place {len(epochs)}"
            )
        epochs.append(float(epoch))
        found.append(deviation(start, weights, rows, counted=counted, without=without))
    if not found:
        raise DataError("the deviation along a training", expected="at least one note of weights", got="none")
    return DeviationCourse(tuple(epochs), tuple(found))


def counted_weights(
    given: Weights, counted: Counted = "weights", without: str | Sequence[str] = ()
) -> dict[str, Tensor]:
    """The parameters that count, by name; see :func:`deviation`.

    Raises:
        DataError: an unknown word, or none is left.
    """
    if counted not in get_args(Counted):
        raise DataError("which parameters count", expected=", ".join(get_args(Counted)), got=repr(counted))
    patterns = [without] if isinstance(without, str) else list(without)
    named = given.params if isinstance(given, Network) else given
    held = {
        name: value
        for name, value in named.items()
        if (counted == "all" or value.ndim >= 2) and not any(fnmatch.fnmatchcase(name, p) for p in patterns)
    }
    if not held:
        raise DataError("the weights of a network", expected="at least one that counts", got=f"none of {len(named)}")
    return held
