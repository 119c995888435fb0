"""The rows that a tangent is taken at: a manifest, or batches that are preprocessed already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from regraft.data import Manifest
from regraft.errors import DataError
from regraft.features.batching import decoded, gathered, in_order
from regraft.network import Network
from regraft.wording import first_line

__all__ = ["Feed", "length", "take"]


class Feed:
    """Preprocessed rows in order.

    Args:
        network: gives the preprocessing.
        inputs: a Manifest; a batch (a tensor, or tensors by name, rows on the first axis); or a list of them.

    Raises:
        DataError: no rows, a row that cannot be decoded, or batches that do not fit together.
    """

    def __init__(self, network: Network, inputs: Manifest | Any) -> None:
        self.preprocess = network.preprocess
        self.manifest = inputs if isinstance(inputs, Manifest) else None
        self.batch: Any = None
        if self.manifest is None:
            self.batch = _tracked(_joined(inputs))
        elif self.preprocess.ragged and len(self.manifest):
            # Token ids are small, and rows that are padded alike have prefixes that fit together.
            self.batch = decoded(self.preprocess, self.manifest.inputs, range(len(self.manifest)), self.manifest.hashes)
        self.rows = len(self.manifest) if self.manifest is not None else length(self.batch)
        if not self.rows:
            raise DataError("there are no rows to take tangents at", expected="at least one row", got="0")

    @cached_property
    def form(self) -> tuple[Any, ...]:
        """What a row is, apart from its numbers: texts are padded to the longest, so that other texts have another."""
        leaves, spec = pytree.tree_flatten(self.some([0]))
        return spec, *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves)

    def some(self, rows: Sequence[int]) -> Any:
        """The batch of a few rows.

        Raises:
            DataError: a row cannot be decoded, or has changed since the manifest was read.
        """
        if self.manifest is not None and self.batch is None:
            return decoded(self.preprocess, self.manifest.inputs, rows, self.manifest.hashes)
        return take(self.batch, torch.as_tensor(rows))

    def where(self, row: int) -> str:
        """What a row is called."""
        return f"row {row}" if self.manifest is None else self.manifest.inputs.where(row)

    def batches(self, size: int) -> Iterator[tuple[int, int, Any]]:
        """(start, stop, batch) over all rows in order."""
        spans = in_order(self.rows, size)
        if self.batch is not None:
            for rows in spans:
                yield rows.start, rows.stop, take(self.batch, slice(rows.start, rows.stop))
        elif self.manifest is not None:
            inputs, hashes = self.manifest.inputs, self.manifest.hashes
            for rows, batch in zip(spans, gathered(self.preprocess, inputs, spans, None, hashes)):
                yield rows.start, rows.stop, batch


def take(batch: Any, index: Any) -> Any:
    """Some rows of a batch."""
    if isinstance(batch, Mapping):
        return {name: value[index] for name, value in batch.items()}
    return batch[index]


def length(batch: Any) -> int:
    """How many rows a batch has.

    Raises:
        DataError: none that all its tensors share.
    """
    values = list(batch.values()) if isinstance(batch, Mapping) else [batch]
    lengths = {len(value) if isinstance(value, Tensor) and value.ndim else -1 for value in values}
    if len(lengths) != 1 or -1 in lengths:
        raise DataError(
            "a batch for tangents",
            expected="tensors with the rows on their first axis, equally many",
            got=", ".join(type(value).__name__ for value in values) or "none",
        )
    return lengths.pop()


def _tracked(batch: Any) -> Any:
    """The batch in tensors that autograd can follow: those of inference mode are copied."""
    with torch.inference_mode(False):
        return pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) and v.is_inference() else v, batch)


def _joined(inputs: Any) -> Any:
    if not isinstance(inputs, list | tuple):
        return inputs
    if not inputs:
        raise DataError("there are no rows to take tangents at", expected="at least one batch", got="none")
    for batch in inputs:
        length(batch)
    try:
        if isinstance(inputs[0], Mapping):
            names = dict.fromkeys(name for batch in inputs for name in batch)
            return {name: torch.cat([batch[name] for batch in inputs]) for name in names}
        return torch.cat(list(inputs))
    except (RuntimeError, KeyError, TypeError) as error:
        raise DataError(
            "the batches do not fit together",
            expected="the same tensors, of equal shapes but for the rows",
            got=f"one without {error}" if isinstance(error, KeyError) else first_line(error),
            do="pad them to one length, or give a Manifest",
        ) from error
