"""A network with a solved head: raw inputs in, probabilities out."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow
import torch
from pyarrow import parquet
from torch import Tensor

from regraft.data import BadRow, Kind, Manifest, inspect, scan
from regraft.errors import DataError
from regraft.features import Plan, Progress, batches, pool_batch
from regraft.files import atomic_path, write_bytes, write_json
from regraft.heads import Readout
from regraft.linear import Dense, FeatureDesign, Matrix, SignedRoot, UnitRows
from regraft.network import Network

__all__ = ["Adapted", "Prediction", "Scaling", "design_of", "refuse"]

Scaling = Literal["none", "unit", "root", "root-unit"]
_STEPS: dict[str, tuple[Callable[[Matrix], Matrix], ...]] = {
    "none": (),
    "unit": (UnitRows,),
    "root": (SignedRoot,),
    "root-unit": (SignedRoot, UnitRows),
}

_SHOWN = 50


def design_of(matrices: Mapping[str, Matrix], scaling: Scaling, outputs: int) -> FeatureDesign:
    """The design matrix of some blocks: ``Φ = [X_1 | X_2 | …] ⊗ I_C``, each block scaled alike."""
    steps = _STEPS[scaling]
    scaled = dict(matrices)
    for step in steps:
        scaled = {name: step(matrix) for name, matrix in scaled.items()}
    return FeatureDesign(scaled, outputs)


def refuse(bad: Sequence[tuple[int, BadRow]], name: str) -> DataError:
    """One error that names every row that cannot be used (the first fifty of very many)."""
    shown = "; ".join(f"{row.where}: {row.reason}" for _, row in bad[:_SHOWN])
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    where = "" if name == "inputs" else f" in {name}"
    return DataError(
        f"{len(bad)} of the inputs{where} cannot be used: {shown}{more}",
        do="mend or remove them, or pass --skip-bad to go on without them",
    )


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a head says of some rows.

    Attributes:
        ids: the rows' names.
        probabilities: ``(N, C)``; for regression the predicted values.
        kind, classes: of the task.
    """

    ids: tuple[str, ...]
    probabilities: np.ndarray
    kind: Kind
    classes: tuple[str, ...]

    @property
    def labels(self) -> list[Any]:
        """Class names; lists of class names (multilabel, probability at least 0.5); numbers (regression)."""
        if self.kind == "regression":
            values = self.probabilities
            return values[:, 0].tolist() if values.shape[1] == 1 else values.tolist()
        if self.kind == "multilabel":
            return [[self.classes[j] for j in np.flatnonzero(row >= 0.5)] for row in self.probabilities]
        return [self.classes[j] for j in self.probabilities.argmax(1)]

    @property
    def confidence(self) -> np.ndarray:
        """Probability of the most likely class per row; NaN-free; all ones for regression."""
        if self.kind == "regression":
            return np.ones(len(self.probabilities))
        return self.probabilities.max(1)

    def table(self) -> list[dict[str, Any]]:
        """One plain-JSON row per input: id, prediction, confidence, probability per class."""
        rows = []
        for i, (name, label) in enumerate(zip(self.ids, self.labels)):
            row: dict[str, Any] = {"id": name, "prediction": label}
            if self.kind != "regression":
                row["confidence"] = float(self.confidence[i])
                row |= {f"p({c})": float(p) for c, p in zip(self.classes, self.probabilities[i])}
            rows.append(row)
        return rows

    def csv(self) -> str:
        """:meth:`table` as CSV; several labels of one row are joined by ``|``."""
        buffer = io.StringIO()
        rows = [{k: "|".join(map(str, v)) if isinstance(v, list) else v for k, v in r.items()} for r in self.table()]
        names = list(rows[0]) if rows else ["id", "prediction"]
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return buffer.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write ``.csv``, ``.json`` or ``.parquet``, atomically.

        Raises:
            DataError: another ending.
        """
        path = Path(path)
        if path.suffix == ".csv":
            write_bytes(path, self.csv().encode())
        elif path.suffix == ".json":
            write_json(path, self.table())
        elif path.suffix == ".parquet":
            with atomic_path(path) as temporary:
                parquet.write_table(pyarrow.Table.from_pylist(self.table()), temporary)
        else:
            raise DataError(f"cannot write predictions as {path.name}", expected="a .csv, .json or .parquet file")
        return path


@dataclass(frozen=True, eq=False)
class Adapted:
    """A frozen backbone, the taps that the head reads, and the head. Immutable.

    Attributes:
        network: the backbone.
        plan: the blocks that are computed for a new input.
        scaling: as in :class:`regraft.graft.recipe.Features`.
        readout: the solved head.
        kind, classes: of the task.
    """

    network: Network
    plan: Plan
    scaling: Scaling
    readout: Readout
    kind: Kind
    classes: tuple[str, ...]

    def predict_proba(
        self,
        inputs: Any,
        *,
        batch_size: int = 32,
        workers: int | None = None,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Prediction:
        """Probabilities (or values) for raw inputs.

        Args:
            inputs: a Manifest, a folder, a table, arrays, or a list of image paths; labels are ignored.
            batch_size: rows per forward pass.
            workers: decoding processes; chosen by the work at hand if ``None``.
            skip_bad: leave unreadable inputs out instead of refusing all.
            progress: called with (rows done, rows).

        Raises:
            DataError: inputs that cannot be read, all named at once.
        """
        manifest = inputs if isinstance(inputs, Manifest) else scan(inputs, labelled=False)
        if bad := inspect(manifest.inputs):
            if not skip_bad:
                raise refuse(bad, manifest.name)
            left_out = {row for row, _ in bad}
            manifest = manifest.take([row for row in range(len(manifest)) if row not in left_out])
        spans = [(a, min(a + batch_size, len(manifest))) for a in range(0, len(manifest), batch_size)]
        outputs: list[Tensor] = []
        done = 0
        for batch in batches(self.network.preprocess, manifest.inputs, spans, workers):
            outputs.append(self._batch(batch))
            done += len(outputs[-1])
            if progress:
                progress(done, len(manifest))
        empty = torch.empty(0, len(self.classes))
        return Prediction(manifest.ids, torch.cat(outputs or [empty]).numpy(), self.kind, self.classes)

    def _batch(self, batch: Any) -> Tensor:
        values = pool_batch(self.network, self.plan.blocks, batch)
        matrices: dict[str, Matrix] = {
            block.name: Dense(values[block.name].float().cpu()) for block in self.plan.blocks
        }
        return self.readout.predict_proba(design_of(matrices, self.scaling, len(self.classes)))

    def predict(self, inputs: Any, **options: Any) -> list[Any]:
        """Class names, lists of names, or numbers: see :attr:`Prediction.labels`."""
        return self.predict_proba(inputs, **options).labels
