"""The rows of a task: inputs, labels, parts, groups and content hashes, as immutable values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from regraft.data.source import Joined, Source
from regraft.errors import DataError
from regraft.files import digest

__all__ = ["NO_LABEL", "PARTS", "BadRow", "Kind", "LabelType", "Manifest", "Part", "Target", "joined"]

Kind = Literal["binary", "multiclass", "multilabel", "regression", "segmentation"]
LabelType = Literal["str", "int", "bool"]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")

Rows: TypeAlias = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: where it is, why, and what to do about it."""

    where: str
    reason: str
    do: str


NO_LABEL = "no label"
"""The reason of a row that can be read and says nothing of the task."""


@dataclass(frozen=True, eq=False)
class Target:
    """The labels of N rows.

    Attributes:
        kind: ``binary``, ``multiclass``, ``multilabel``, ``regression`` or ``segmentation``.
        classes: class names (two for binary; one per column for multilabel; the outputs' names for
            regression).
        values: binary and multiclass: int64 ``(N,)`` indices into ``classes``, -1 = no label;
            multilabel: float32 ``(N, C)`` of 0, 1 and NaN = missing; regression: float64 ``(N, K)``,
            NaN = missing; segmentation: int64 ``(N, C)``, how many pixels have each class.
        masks: segmentation: a source whose row i is the ``(H, W)`` array of class indices.
        ignore: the mask value that is left out; -1: none.
        label_type: what the labels were before they became class names, and what predictions are given as.
        scores_only: nothing is to be learnt from them: they may lack classes, and there may be one alone.
        listed: multilabel: each row lists the labels that apply, so that one which is no class here applies to none.
    """

    kind: Kind
    classes: tuple[str, ...]
    values: np.ndarray
    masks: Source | None = None
    ignore: int = -1
    label_type: LabelType = "str"
    scores_only: bool = False
    listed: bool = False

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Target({self.kind}, {len(self):,} rows, C = {len(self.classes):,})"

    def take(self, rows: Rows) -> Target:
        """The labels of the given rows, in the given order; the classes stay."""
        index = np.asarray(rows, dtype=np.int64)
        masks = None if self.masks is None else self.masks.take(index)
        return dataclasses.replace(self, values=self.values[index], masks=masks)

    @property
    def present(self) -> np.ndarray:
        """Bool ``(N,)``: the row has any label."""
        if self.masks is not None:
            return self.values.sum(axis=1) > 0
        if self.values.ndim == 1:
            return self.values >= 0
        return ~np.isnan(self.values).all(axis=1)

    def mask(self, row: int) -> np.ndarray:
        """Of segmentation: the class of each pixel of a row, int64 ``(H, W)``, -1 where it has no label.

        Raises:
            DataError: there are no masks, or the row's cannot be read.
        """
        if self.masks is None:
            raise DataError(f"{self.kind} labels have no masks")
        values = np.asarray(self.masks.read(row))
        return np.where(values == self.ignore, -1, values)

    @property
    def outputs(self) -> int:
        """The width C of a readout: the number of classes (2 for binary), label columns or outputs."""
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over kind, classes, ignored value and labels, masks included."""
        dtype = self.values.dtype.newbyteorder("<")
        parts: list[str | bytes] = [
            self.kind, str(self.ignore), str(self.values.shape), dtype.str, *self.classes,
            np.ascontiguousarray(self.values, dtype=dtype).tobytes(),
        ]  # fmt: skip
        if self.masks is not None:
            parts += [digest(self.masks.content(row)) for row in range(len(self.masks))]
        return digest(*parts)


@dataclass(frozen=True, eq=False)
class Manifest:
    """The rows of a task.

    Attributes:
        name: a short name of the data.
        inputs: the raw inputs.
        ids: a name per row, such as ``tulip/003.jpg`` or ``row 17``.
        hashes: SHA-256 (hex) per row of ``inputs.content(row)``.
        target: the labels; ``None`` where there are none (prediction).
        split: ``train``, ``validation`` or ``test`` per row; rows that name no part are ``train``.
        groups: the group of each row (patient, molecule, film), or ``None``.
        skipped: rows that were left out because they cannot be used.
        empty: folders that name a class or a part and hold no row, such as ``tulip/`` or ``test/``.
        roles: the columns of a table by what they were read as: ``input``, ``label``, ``group``, ``split``, ``unread``.
        partless: ids of rows that are ``train`` because the cell of their part is blank.

    Raises:
        DataError: the lengths differ.
    """

    name: str
    inputs: Source
    ids: tuple[str, ...]
    hashes: tuple[str, ...]
    target: Target | None
    split: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    skipped: tuple[BadRow, ...] = ()
    empty: tuple[str, ...] = ()
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    partless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.inputs)
        lengths = {
            "ids": len(self.ids),
            "hashes": len(self.hashes),
            "split": len(self.split),
            "target": rows if self.target is None else len(self.target),
            "groups": rows if self.groups is None else len(self.groups),
        }
        for name, length in lengths.items():
            if length != rows:
                raise DataError(f"{self.name}: {name} and inputs differ in length", expected=f"{rows}", got=f"{length}")
        if unknown := sorted(set(self.split) - set(PARTS)):
            raise DataError(f"{self.name}: unknown part {unknown[0]!r}", expected=", ".join(PARTS))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        parts = ", ".join(f"{count:,} {part}" for part in PARTS if (count := self.split.count(part)))
        labels = "no labels" if self.target is None else repr(self.target)
        return f"Manifest({self.name!r}, {len(self):,} {self.inputs.modality} rows: {parts}; {labels})"

    @property
    def labels(self) -> Target:
        """The target.

        Raises:
            DataError: there is none.
        """
        if self.target is None:
            raise DataError(f"{self.name} has no labels", do="name the label column with --label")
        return self.target

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a row is read from, in order; none where they have no names."""
        return self.inputs.columns or self.roles.get("input", ())

    def take(self, rows: Rows) -> Manifest:
        """The given rows, in the given order."""
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        return dataclasses.replace(
            self,
            inputs=self.inputs.take(index),
            ids=tuple(self.ids[row] for row in index),
            hashes=tuple(self.hashes[row] for row in index),
            target=None if self.target is None else self.target.take(index),
            split=tuple(self.split[row] for row in index),
            groups=None if self.groups is None else tuple(self.groups[row] for row in index),
        )

    def rows_of(self, split: str) -> np.ndarray:
        """The row numbers (int64, ascending) of one part."""
        if split not in PARTS:
            raise DataError(f"unknown part {split!r}", expected=", ".join(PARTS))
        return np.flatnonzero(np.asarray(self.split, dtype=object) == split).astype(np.int64)

    def part(self, split: str) -> Manifest:
        """The rows of one part; none where the data has no such part."""
        return self.take(self.rows_of(split))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over content hashes, labels, parts and groups.

        Names, ids and places are left out, so that the same rows in another folder or on another machine have
        the same fingerprint.
        """
        groups = ("none",) if self.groups is None else ("groups", *self.groups)
        labels = "none" if self.target is None else self.target.fingerprint
        return digest(digest(*self.hashes), labels, digest(*self.split), digest(*groups))

    def limit(self, n: int, seed: int = 0) -> Manifest:
        """``n`` training rows drawn with ``seed``; the other parts stay whole and the order of rows is kept.

        For binary and multiclass labels the draw is balanced: classes are served in turn, so that their counts
        differ by at most one unless a class runs out of rows, and the rest is drawn from the others.
        Where there are no more than ``n`` training rows, all are kept.

        Raises:
            DataError: ``n`` is smaller than 2 or than the number of classes in training.
        """
        train = self.rows_of("train")
        target = self.target
        if n < 2:
            raise DataError(
                f"{self.name}: cannot limit training to {n} rows", expected="at least 2", do="raise --limit"
            )
        if n >= len(train):
            return self
        rng = np.random.default_rng(seed)
        shuffled = rng.permutation(train)
        if target is not None and target.kind in ("binary", "multiclass") and target.masks is None:
            codes = target.values[shuffled]
            classes = np.unique(codes)
            if n < len(classes):
                raise DataError(
                    f"{self.name}: cannot limit training to {n} rows",
                    expected=f"at least one for each of the {len(classes)} classes",
                    do=f"use --limit {len(classes)} or more",
                )
            turn = np.empty(len(codes))  # a row's turn: how many rows of its class come before it …
            for place, code in zip(rng.permutation(len(classes)), classes):
                mine = np.flatnonzero(codes == code)
                turn[mine] = np.arange(len(mine)) + place / len(classes)  # … then the class's own place
            shuffled = shuffled[np.argsort(turn, kind="stable")]
        keep = np.ones(len(self), dtype=bool)
        keep[shuffled[n:]] = False
        return self.take(np.flatnonzero(keep))


def joined(parts: Mapping[str, Manifest], name: str = "") -> Manifest:
    """One manifest of several, each becoming the part it is named after.

    Args:
        parts: ``{"train": manifest, "test": manifest}`` and the like; their own parts are forgotten.
        name: the name of the whole; that of the first part where empty.

    Raises:
        DataError: no part, an unknown part, or parts whose kind, classes or modality differ.
    """
    manifests = list(parts.values())
    if not manifests:
        raise DataError("nothing to join", expected="at least one part")
    targets = [m.target for m in manifests]
    target = None
    if all(t is not None for t in targets):
        whole = [t for t in targets if t is not None]
        if len({(t.kind, t.classes, t.ignore, t.masks is None) for t in whole}) != 1:
            raise DataError(
                "the parts cannot be joined: their kinds or classes differ", do="give all parts the same classes"
            )
        masks = [t.masks for t in whole if t.masks is not None]
        target = dataclasses.replace(
            whole[0],
            values=np.concatenate([t.values for t in whole]),
            masks=Joined(masks) if masks else None,
            listed=all(t.listed for t in whole),
        )
    elif any(t is not None for t in targets):
        raise DataError("the parts cannot be joined: some have labels and some have none")
    groups = [m.groups for m in manifests if m.groups is not None]
    if groups and len(groups) != len(manifests):
        raise DataError("the parts cannot be joined: some have groups and some have none")
    return Manifest(
        name=name or manifests[0].name,
        inputs=manifests[0].inputs if len(manifests) == 1 else Joined([m.inputs for m in manifests]),
        ids=tuple(f"{part} {i}" for part, m in parts.items() for i in m.ids),
        hashes=tuple(h for m in manifests for h in m.hashes),
        target=target,
        split=tuple(part for part, m in parts.items() for _ in m.ids),
        groups=tuple(g for column in groups for g in column) if groups else None,
        skipped=tuple(bad for m in manifests for bad in m.skipped),
        empty=tuple(folder for m in manifests for folder in m.empty),
        roles=manifests[0].roles,
    )
