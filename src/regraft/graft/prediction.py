"""What a head says of some rows, and the files that people want it in."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from regraft.data import Kind
from regraft.errors import DataError
from regraft.files import atomic_path, write_bytes, write_json

__all__ = ["Prediction", "predicted_names"]


def predicted_names(classes: Sequence[str], probabilities: np.ndarray) -> list[str]:
    """The labels of one multilabel row: those with a probability above ½, as the metrics count them."""
    return [classes[int(j)] for j in np.flatnonzero(probabilities > 0.5)]


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
        """Class names; lists of class names (multilabel, probability above ½); numbers (regression)."""
        if self.kind == "regression":
            values = self.probabilities
            return values[:, 0].tolist() if values.shape[1] == 1 else values.tolist()
        if self.kind == "multilabel":
            return [predicted_names(self.classes, row) for row in self.probabilities]
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
