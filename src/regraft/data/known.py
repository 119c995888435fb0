"""Labels by the classes of a head that is there already: they score it, and nothing is learnt from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from regraft.data.manifest import BadRow, Kind, Target
from regraft.errors import DataError

__all__ = ["by_known_classes"]

_UNKNOWN = "label it with one of the classes, or leave the row out"


def by_known_classes(
    target: Target, kind: Kind, classes: Sequence[str], where: Sequence[str]
) -> tuple[Target, list[tuple[int, BadRow]]]:
    """The same labels as indices (columns, values of masks) of the given classes, and the rows that have another.

    Of several labels, one that is no class of the target's applies to no row where each lists those that apply
    (``target.listed``); where they are columns it is not known.

    Args:
        target: labels by their own classes.
        kind, classes: of the head. A class may have no row here.
        where: the rows' names.

    Raises:
        DataError: labels of another kind, a column or a value of masks that the head does not know.
    """
    known = tuple(classes)
    if not _alike(target.kind, kind):
        raise DataError(f"the labels are of kind {target.kind}", expected=f"{kind}, as those the head was solved on")
    place = {name: index for index, name in enumerate(known)}
    own = np.array([place.get(name, -1) for name in target.classes], dtype=np.int64)
    if kind in ("binary", "multiclass"):
        return _codes(target, kind, known, own, where)
    if kind == "segmentation":
        values = _pixels(target, known)
    elif kind == "regression" and len(known) == len(target.classes) == 1:
        values = target.values  # whatever the column is called
    else:
        values, bad = _columns(target, known, own, where)
        return dataclasses.replace(target, kind=kind, classes=known, values=values, scores_only=True), bad
    return dataclasses.replace(target, kind=kind, classes=known, values=values, scores_only=True), []


def _alike(one: Kind, other: Kind) -> bool:
    return one == other or {one, other} == {"binary", "multiclass"}


def _codes(
    target: Target, kind: Kind, known: tuple[str, ...], own: np.ndarray, where: Sequence[str]
) -> tuple[Target, list[tuple[int, BadRow]]]:
    strange = [name for name, code in zip(target.classes, own) if code < 0]
    codes = np.append(own, -1)[target.values]  # -1 stays -1
    shown = ", ".join(known[:9]) + (", …" if len(known) > 9 else "")
    bad = [
        (row, BadRow(where[row], f"the label {target.classes[target.values[row]]!r} is none of {shown}", _UNKNOWN))
        for row in np.flatnonzero((target.values >= 0) & (codes < 0)).tolist()
    ]
    if strange and len(bad) == int((target.values >= 0).sum()):
        raise DataError(
            f"none of the labels is a class of the head, such as {strange[0]!r}",
            expected=shown,
            do="name the label column with --label, or write the labels as they were when the head was solved",
        )
    return dataclasses.replace(target, kind=kind, classes=known, values=codes, scores_only=True), bad


def _columns(
    target: Target, known: tuple[str, ...], own: np.ndarray, where: Sequence[str]
) -> tuple[np.ndarray, list[tuple[int, BadRow]]]:
    strange = np.flatnonzero(own < 0)
    shown = ", ".join(known[:9]) + (", …" if len(known) > 9 else "")
    if len(strange) and (not target.listed or len(strange) == len(own)):
        raise DataError(
            f"{target.classes[strange[0]]!r} is none of what the head predicts",
            expected=shown,
            do="name the label columns with --label",
        )
    values = np.full((len(target), len(known)), np.nan, dtype=target.values.dtype)
    if target.listed:
        values[target.present] = 0.0
    values[:, own[own >= 0]] = target.values[:, own >= 0]
    held = target.values[:, strange] > 0
    bad = []
    for row in np.flatnonzero(held.any(axis=1)).tolist():
        name = target.classes[strange[held[row].argmax()]]
        bad.append((row, BadRow(where[row], f"the label {name!r} is none of {shown}", _UNKNOWN)))
    return values, bad


def _pixels(target: Target, known: tuple[str, ...]) -> np.ndarray:
    if target.classes != known[: len(target.classes)]:
        raise DataError(
            "the masks' values have other classes than the head's",
            expected=", ".join(known[:9]),
            got=", ".join(target.classes[:9]),
            do="number the classes as in the masks that the head was solved on",
        )
    counts = np.zeros((len(target), len(known)), dtype=target.values.dtype)
    counts[:, : len(target.classes)] = target.values
    return counts
