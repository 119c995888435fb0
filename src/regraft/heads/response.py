"""The labels as the heads see them: targets, which of them are there, class names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regraft.errors import DataError, SolverError
from regraft.linear.checks import Index, as_index
from regraft.wording import some

__all__ = ["KINDS", "Kind", "Link", "Response", "require_learnable"]

Kind = Literal["binary", "multiclass", "multilabel", "regression", "segmentation"]
Link = Literal["softmax", "sigmoid", "identity"]
KINDS: tuple[Kind, ...] = ("binary", "multiclass", "multilabel", "regression", "segmentation")


@dataclass(frozen=True, eq=False)
class Response:
    """Targets of N rows and C outputs. Make it with :meth:`of`.

    Attributes:
        kind: ``binary`` (two classes, two outputs), ``multiclass``, ``multilabel``, ``regression`` or
            ``segmentation``.
        values: (N, C) float64: one-hot rows, 0/1 labels or real targets; 0 where the label is missing. Of
            segmentation: how many labelled pixels of the image have each class, which is all that scores need.
        mask: (N, C) bool, True where a label is there; ``None`` when all are.
        codes: (N,) class indices of ``binary`` and ``multiclass`` (-1: no label), else ``None``.
        classes: C names: classes, label columns or outputs.
    """

    kind: Kind
    values: Tensor
    mask: Tensor | None
    codes: Tensor | None
    classes: tuple[str, ...]

    @staticmethod
    def of(kind: Kind, classes: Sequence[str], values: Any) -> Response:
        """Check and encode labels.

        Args:
            kind: one of :data:`KINDS`.
            classes: names of the C outputs.
            values: (N,) integers for ``binary``/``multiclass`` (-1: no label); (N, C) of 0, 1, NaN for
                ``multilabel``; (N,) or (N, C) floats (NaN: missing) for ``regression``; (N, C) counts of pixels
                for ``segmentation``.

        Raises:
            DataError: a value does not fit the kind.
        """
        names = tuple(str(name) for name in classes)
        if kind not in KINDS:
            raise DataError(f"the kind of the labels is {kind!r}", expected=", ".join(KINDS))
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            values = values.double() if values.is_floating_point() else values  # numpy has no bfloat16
        given = np.array(values)
        if given.dtype.kind not in "buif":
            raise DataError(
                f"{kind} labels are of type {given.dtype}",
                expected="numbers: class indices (0 for the first of the classes), 0 and 1, or targets",
                do="look names up in the classes, and write -1 (a class) or NaN for a missing label",
            )
        # torch reads native byte order alone, and compares no unsigned integers
        wide = {"f": np.float64, "b": np.bool_}.get(given.dtype.kind, np.int64)
        array = torch.from_numpy(given.astype(wide))
        if kind in ("binary", "multiclass"):
            return _classes(kind, names, array)
        if kind == "segmentation":
            return _pixels(names, array)
        return _columns(kind, names, array.to(torch.float64))

    @property
    def n_outputs(self) -> int:
        """C, the number of outputs."""
        return int(self.values.shape[1])

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def predicted_shape(self) -> tuple[int, ...]:
        """Of predictions that are scored against it: (N, C); (N, C, C) pixels by class and predicted class for
        segmentation."""
        shape = tuple(self.values.shape)
        return (*shape, shape[1]) if self.kind == "segmentation" else shape

    @property
    def present(self) -> Tensor:
        """(N,) bool: the row has at least one label."""
        if self.mask is None:
            return torch.ones(len(self), dtype=torch.bool)
        return self.mask.any(dim=1)

    @property
    def link(self) -> Link:
        """What turns logits into predictions: softmax, sigmoid or identity."""
        return {"multilabel": "sigmoid", "regression": "identity"}.get(self.kind, "softmax")  # type: ignore[return-value]

    def take(self, index: Index) -> Response:
        """The rows of ``index`` (indices, none of them, or a boolean mask), in that order."""
        rows = as_index(index, len(self))
        return Response(
            self.kind,
            self.values[rows],
            None if self.mask is None else self.mask[rows],
            None if self.codes is None else self.codes[rows],
            self.classes,
        )

    def seen_elsewhere(self, folds: Tensor) -> Response:
        """Without the labels that no row of another fold has: what is fitted without a fold knows nothing of them.

        So a class of one row is taken as missing, and of several labels one that no other fold has beside its absence.

        Args:
            folds: (N,) fold of each row, -1 for rows that are in every fit.
        """
        if self.kind in ("regression", "segmentation"):
            return self
        there = torch.ones_like(self.values, dtype=torch.bool) if self.mask is None else self.mask
        unknown = torch.zeros_like(there)
        numbers, own = torch.unique(folds, return_inverse=True)
        for having in (self.values,) if self.codes is not None else (self.values, 1 - self.values):
            rows = having * there
            within = torch.zeros(len(numbers), self.n_outputs, dtype=rows.dtype).index_add_(0, own, rows)
            unknown |= (rows > 0) & (rows.sum(0) == within[own]) & (folds >= 0)[:, None]
        if not bool(unknown.any()):
            return self
        if self.codes is None:
            return replace(self, mask=there & ~unknown)
        alone = unknown.any(1)
        return replace(self, mask=there & ~alone[:, None], codes=torch.where(alone, -1, self.codes))


def require_learnable(response: Response) -> None:
    """Refuse labels from which nothing can be learnt.

    Raises:
        DataError: bare labels, which are no Response.
        SolverError: no rows, one class only, or an output without any label.
    """
    if not isinstance(response, Response):
        raise DataError(
            "the labels do not say what they are",
            expected="a Response",
            got=f"a {type(response).__name__}",
            do="make one, such as Response.of('multiclass', class_names, class_indices)",
        )
    if len(response) == 0 or not bool(response.present.any()):
        raise SolverError("there is no labelled row to learn from", do="give rows with labels")
    if response.codes is not None:
        seen = torch.unique(response.codes[response.codes >= 0])
        if len(seen) < 2:
            name = response.classes[int(seen[0])]
            raise SolverError(
                "the labels hold one class only",
                expected="at least two classes",
                got=repr(name),
                do="add rows of another class",
            )
    elif response.mask is not None and not bool(response.mask.any(dim=0).all()):
        empty = [name for name, labelled in zip(response.classes, response.mask.any(dim=0).tolist()) if not labelled]
        raise SolverError(
            f"no row has a label for {some([*map(repr, empty)])}",
            expected="at least one label in each column",
            do="leave the column out",
        )


def _classes(kind: Kind, names: tuple[str, ...], codes: Tensor) -> Response:
    if codes.ndim != 1 or codes.is_floating_point():
        raise DataError(
            f"{kind} labels have shape {tuple(codes.shape)} and type {codes.dtype}",
            expected="one integer class index a row",
        )
    codes = codes.to(torch.int64)
    if kind == "binary" and len(names) != 2:
        raise DataError("binary labels need two class names", got=f"{len(names)}", do="use kind 'multiclass'")
    if len(codes) and (int(codes.max()) >= len(names) or int(codes.min()) < -1):
        worst = int(codes.max()) if int(codes.max()) >= len(names) else int(codes.min())
        raise DataError(f"class index {worst} has no name", expected=f"-1 to {len(names) - 1}")
    values = torch.zeros(len(codes), len(names), dtype=torch.float64)
    there = codes >= 0
    values[there, codes[there]] = 1.0
    mask = None if bool(there.all()) else there[:, None].expand(-1, len(names)).contiguous()
    return Response(kind, values, mask, codes, names)


def _pixels(names: tuple[str, ...], counts: Tensor) -> Response:
    if counts.ndim != 2 or counts.shape[1] != len(names) or bool((counts < 0).any()):
        raise DataError(
            f"segmentation labels have shape {tuple(counts.shape)}", expected=f"(rows, {len(names)}) counts of pixels"
        )
    there = counts.sum(dim=1) > 0
    mask = None if bool(there.all()) else there[:, None].expand(-1, len(names)).contiguous()
    return Response("segmentation", counts.to(torch.float64), mask, None, names)


def _columns(kind: Kind, names: tuple[str, ...], values: Tensor) -> Response:
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] != len(names):
        raise DataError(
            f"{kind} labels have shape {tuple(values.shape)}", expected=f"(rows, {len(names)}), a column a name"
        )
    missing = torch.isnan(values)
    if bool(torch.isinf(values).any()):
        raise DataError(f"{kind} labels hold infinities", expected="finite numbers, NaN where missing")
    filled = torch.where(missing, torch.zeros((), dtype=values.dtype), values)
    if kind == "multilabel" and not bool(((filled == 0) | (filled == 1)).all()):
        raise DataError("multilabel labels hold other numbers", expected="0, 1, or NaN where missing")
    return Response(kind, filled, ~missing if bool(missing.any()) else None, None, names)
