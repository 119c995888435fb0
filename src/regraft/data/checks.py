"""What a labelled manifest must satisfy before anything is computed from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regraft.data.manifest import Manifest, Target
from regraft.errors import DataError
from regraft.wording import some

__all__ = ["check_target"]


def check_target(manifest: Manifest) -> None:
    """Refuse a task that cannot be learnt or scored; of labels that score alone, no row at all.

    Raises:
        DataError: no row, no or one training row, one class, a class that training lacks but another part
            holds, a label column without a training label, a constant regression output.
    """
    if not len(manifest):
        raise DataError(f"{manifest.name}: no usable row is left", do="mend the rows that were left out")
    target = manifest.target
    if target is None or target.scores_only:
        return
    train = manifest.rows_of("train")
    if len(train) < 2:
        found = "no training row" if not len(train) else "1 training row"
        expected = "at least 2" if target.kind == "regression" else "at least 2, and 2 classes"
        raise DataError(f"{manifest.name}: {found}", expected=expected, do="add labelled rows")
    if target.masks is not None:
        if (target.values[train].sum(axis=0) > 0).sum() < 2:
            raise DataError(
                f"{manifest.name}: the training masks hold fewer than two classes",
                expected="at least 2",
                got=f"pixels of value {target.ignore} count as unlabelled" if target.ignore >= 0 else "",
                do="write the classes as 0, 1, 2, …, or name another value of unlabelled pixels with --ignore",
            )
    elif target.kind in ("binary", "multiclass"):
        _check_classes(manifest, target, train)
    else:
        _check_columns(manifest, target, train)


def _check_classes(manifest: Manifest, target: Target, train: np.ndarray) -> None:
    counts = np.bincount(target.values[train][target.values[train] >= 0], minlength=len(target.classes))
    for part in ("validation", "test"):
        present = np.unique(target.values[manifest.rows_of(part)])
        absent = [target.classes[code] for code in present if code >= 0 and counts[code] == 0]
        if absent:
            occur, them, their = ("occurs", "it", "its") if len(absent) == 1 else ("occur", "them", "their")
            raise DataError(
                f"{manifest.name}: {_listed('class', absent)} {occur} in the {part} part but not in training",
                do=f"add training rows of {them}, or take {their} rows out of the other parts",
            )
    known = [name for name, count in zip(target.classes, counts) if count]
    if len(known) < 2:
        raise DataError(
            f"{manifest.name}: a single class in training{f', {known[0]!r}' if known else ''}",
            expected="at least two classes",
            do="add rows of another class",
        )
    if counts.max() == 1 and len(train) > 2:
        raise DataError(
            f"{manifest.name}: each of the {len(train)} training rows has its own class",
            expected="classes that come more than once",
            do="name another label column, or use --kind regression for numbers",
        )


def _check_columns(manifest: Manifest, target: Target, train: np.ndarray) -> None:
    values = target.values[train]
    empty = [name for name, gap in zip(target.classes, np.isnan(values).all(axis=0)) if gap]
    if empty:
        raise DataError(
            f"{manifest.name}: no training label in {_listed('column', empty)}",
            do="leave the column out or label some rows",
        )
    constant = [
        name for j, name in enumerate(target.classes) if len(np.unique(values[:, j][~np.isnan(values[:, j])])) == 1
    ]
    if target.kind == "regression" and constant:
        raise DataError(
            f"{manifest.name}: the training values of {_listed('column', constant)} are all equal",
            expected="a target that varies",
            do="name another label column",
        )
    if target.kind == "multilabel" and len(constant) == len(target.classes):
        raise DataError(
            f"{manifest.name}: every label column has one value in training",
            expected="rows with and without a label",
            do="add rows of the other value",
        )


def _listed(what: str, names: Sequence[str]) -> str:
    plural = "es" if what == "class" else "s"
    return f"the {what if len(names) == 1 else what + plural} {some([*map(repr, names)])}"
