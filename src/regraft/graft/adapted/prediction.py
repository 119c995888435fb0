"""What a head says of some rows, and the files that people want it in."""

from __future__ import annotations

import colorsys
import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from regraft.data import Kind, LabelType
from regraft.data.labels import SEPARATOR
from regraft.errors import DataError
from regraft.files import atomic_path, read_json, write_bytes, write_json
from regraft.heads import NINETY
from regraft.record.folder import check_other_file

__all__ = ["Prediction", "as_csv", "check_masks", "indexed_png", "palette", "predicted_names"]


_AS: dict[LabelType, Callable[[str], Any]] = {"str": str, "int": int, "bool": "True".__eq__}


def as_csv(lines: Sequence[Sequence[Any]]) -> str:
    """A table as CSV; all of it in quotes where a name holds a carriage return, which Python 3.11 leaves bare."""
    bare = any("\r" in cell for line in lines for cell in line if isinstance(cell, str))
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def predicted_names(classes: Sequence[str], probabilities: np.ndarray) -> list[str]:
    """The labels of one multilabel row: those with a probability above ½, as the metrics count them."""
    return [classes[int(j)] for j in np.flatnonzero(probabilities > 0.5)]


def palette(classes: int) -> list[tuple[int, int, int]]:
    """Colours that differ: hues a golden section apart, of three brightnesses in turn."""
    colours = []
    for index in range(classes):
        hue, value = (index * 0.6180339887) % 1.0, (0.95, 0.7, 0.5)[index % 3]
        red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.75, value))
        colours.append((red, green, blue))
    return colours


def indexed_png(mask: np.ndarray) -> bytes:
    """A mask of class indices as a PNG with a palette; 16-bit grey where there are more than 256 classes."""
    buffer = io.BytesIO()
    if mask.max(initial=0) > 255:
        Image.fromarray(mask.astype(np.uint16)).save(buffer, "PNG")
        return buffer.getvalue()
    image = Image.fromarray(mask.astype(np.uint8))
    image.putpalette([part for colour in palette(256) for part in colour])
    image.save(buffer, "PNG")
    return buffer.getvalue()


def check_masks(path: Path) -> None:
    """Refuse a table of predicted masks whose folder holds files that no earlier one names: the true masks, say.

    Raises:
        DataError: there are such files in the folder.
    """
    folder = path.with_suffix("")
    if not folder.is_dir():
        return
    if {file.name for file in folder.iterdir() if not file.name.startswith(".")} - _predicted(path):
        raise DataError(
            f"{path.name} would write its masks among the files in {folder}",
            expected="a new or an empty folder, or that of earlier predictions",
            do="choose another name: the masks go into a folder of that name",
        )


def _predicted(path: Path) -> set[str]:
    """The masks that a table of predictions names, if the file is one."""
    try:
        if path.suffix.lower() == ".parquet":
            rows = parquet.read_table(path).to_pylist()
        elif path.suffix.lower() == ".json":
            rows = list(read_json(path) or [])
        else:
            rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        return {str(row["mask"]) for row in rows if row["id"] and row["confidence"]}
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException):  # absent, or a table of something else
        return set()


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a head says of some rows.

    Attributes:
        ids: the rows' names.
        probabilities: ``(N, C)``; for regression the predicted values; for segmentation the share of each class.
        kind, classes: of the task.
        masks: of segmentation: ``(H, W)`` class indices of each image, of its own size.
        sure: of segmentation: ``(N,)``, the mean over pixels of the likeliest class's probability.
        spread: error bars ``(N, C)``, where the head knows them: of numbers the deviations of targets about them; of
            classes that of the function behind their probabilities, in units of the scores' spread.
        label_type: what predicted classes are given as: what the labels came as.
    """

    ids: tuple[str, ...]
    probabilities: np.ndarray
    kind: Kind
    classes: tuple[str, ...]
    masks: tuple[np.ndarray, ...] = ()
    sure: np.ndarray | None = None
    spread: np.ndarray | None = None
    label_type: LabelType = "str"

    def __repr__(self) -> str:
        bars = "" if self.spread is None else ", with error bars"
        return f"Prediction({self.kind}, {len(self.ids):,} rows, C = {len(self.classes):,}{bars})"

    @property
    def known(self) -> np.ndarray:
        """Bool ``(N,)``: all that is said of the row is finite."""
        known: np.ndarray = np.isfinite(self.probabilities).all(1)
        if self.spread is not None:
            known &= np.isfinite(self.spread).all(1)
        return known if self.sure is None else known & np.isfinite(self.sure)

    def take(self, rows: Sequence[int] | np.ndarray) -> Prediction:
        """The given rows, in the given order."""
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            probabilities=self.probabilities[rows],
            masks=tuple(self.masks[row] for row in rows) if self.masks else (),
            sure=None if self.sure is None else self.sure[rows],
            spread=None if self.spread is None else self.spread[rows],
        )

    @property
    def labels(self) -> list[Any]:
        """Classes; lists of them (multilabel, probability above ½); numbers (regression); masks.

        Classes are whole numbers, or true and false, where the labels that the head was solved on were; names else.
        """
        if self.kind == "segmentation":
            return list(self.masks)
        if self.kind == "regression":
            values = self.probabilities
            return values[:, 0].tolist() if values.shape[1] == 1 else values.tolist()
        as_label = _AS[self.label_type]
        if self.kind == "multilabel":
            return [[as_label(name) for name in predicted_names(self.classes, row)] for row in self.probabilities]
        return [as_label(self.classes[j]) for j in self.probabilities.argmax(1)]

    @property
    def confidence(self) -> np.ndarray:
        """Per row the probability of the most likely class, of several labels that of what is said of the least sure
        one; all ones for regression."""
        if self.kind == "regression":
            return np.ones(len(self.probabilities))
        if self.sure is not None:
            return self.sure
        if self.kind == "multilabel":
            return np.maximum(self.probabilities, 1 - self.probabilities).min(1)
        return self.probabilities.max(1)

    def table(self) -> list[dict[str, Any]]:
        """One plain-JSON row per input: id, prediction, confidence, probability per class, with error bars ``std``.

        Of numbers: id and prediction, with error bars also the deviation of the target about it and the 90 % interval;
        of several numbers a row such columns for each, as ``prediction(NAME)``. Of segmentation: id, the name of its
        mask's file (see :meth:`save`), width, height, confidence, share of each class.
        """
        if self.kind == "segmentation":
            return self._summary()
        rows, confidence = [], self.confidence
        for i, (name, label) in enumerate(zip(self.ids, self.labels)):
            if self.kind == "regression":
                rows.append({"id": name, **self._numbers(i)})
                continue
            row: dict[str, Any] = {"id": name, "prediction": label, "confidence": float(confidence[i])}
            row |= {f"p({c})": float(p) for c, p in zip(self.classes, self.probabilities[i])}
            if self.spread is not None:
                row["std"] = float(self.spread[i].mean())
            rows.append(row)
        return rows

    def _numbers(self, i: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for j, mean in enumerate(self.probabilities[i]):
            of = "" if self.probabilities.shape[1] == 1 else f"({self.classes[j]})"
            found[f"prediction{of}"] = float(mean)
            if self.spread is not None:
                reach = NINETY * self.spread[i, j]
                found[f"std{of}"] = float(self.spread[i, j])
                found[f"low90{of}"], found[f"high90{of}"] = float(mean - reach), float(mean + reach)
        return found

    def _summary(self) -> list[dict[str, Any]]:
        rows = []
        for i, (name, file, mask) in enumerate(zip(self.ids, self._files(), self.masks)):
            row: dict[str, Any] = {"id": name, "mask": file, "width": mask.shape[1], "height": mask.shape[0]}
            row["confidence"] = float(self.confidence[i])
            rows.append(row | {f"share({c})": float(p) for c, p in zip(self.classes, self.probabilities[i])})
        return rows

    def _files(self) -> list[str]:
        """A name for each mask: the input's without folders and ending, numbered where several share it, in whatever
        case, as some disks know none; all are numbered where one's own name is another's numbered one."""
        stems = [Path(name).stem.replace(" ", "-") or "mask" for name in self.ids]
        several = Counter(stem.casefold() for stem in stems)
        every = [f"{stem}-{i:05d}.png" for i, stem in enumerate(stems)]
        some = [name if several[stem.casefold()] > 1 else f"{stem}.png" for stem, name in zip(stems, every)]
        return some if len({name.casefold() for name in some}) == len(some) else every

    def csv(self) -> str:
        """:meth:`table` as CSV; several labels of one row are joined by ``|``, which alone means that none applies."""
        rows = self.table()
        names = list(rows[0]) if rows else ["id", "prediction"]
        lines = [[_joined(v) if isinstance(v, list) else v for v in row.values()] for row in rows]
        return as_csv([names, *lines])

    def save(self, path: str | Path) -> Path:
        """Write ``.csv``, ``.json`` or ``.parquet``, atomically; masks as indexed PNG into a folder of the same name
        without its ending, whose pixels are class indices and whose colours are :func:`palette`'s.

        Raises:
            DataError: another ending, a file that a run folder consists of, or masks that would lie among other files.
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending not in (".csv", ".json", ".parquet"):
            raise DataError(f"cannot write predictions as {path.name}", expected="a .csv, .json or .parquet file")
        check_other_file(path)
        if self.masks:
            check_masks(path)
            files, folder = self._files(), path.with_suffix("")
            for file in _predicted(path) - set(files):  # the new table will not name it, and then it would be nobody's
                (folder / Path(file).name).unlink(missing_ok=True)
            for file, mask in zip(files, self.masks):
                write_bytes(folder / file, indexed_png(mask))
        if ending == ".csv":
            write_bytes(path, self.csv().encode())
        elif ending == ".json":
            write_json(path, self.table())
        else:
            with atomic_path(path) as temporary:
                parquet.write_table(pyarrow.Table.from_pylist(self.table()), temporary)
        return path


def _joined(labels: list[Any]) -> str:
    return SEPARATOR.join(map(str, labels)) or SEPARATOR
