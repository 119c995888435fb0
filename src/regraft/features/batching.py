"""Which rows make a batch, and the batches themselves, decoded ahead of the model."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from regraft.data import Source
from regraft.data.hashing import content_hash
from regraft.errors import DataError, RegraftError, WorkerError
from regraft.network import Preprocess

__all__ = ["by_length", "decoded", "each_decoded", "gathered", "in_order", "of_worker", "told_if_killed"]

_WORKER_PAYS_AFTER_SECONDS = 2.0  # below this much decoding, starting worker processes costs more than it saves
_NEWS_AFTER_SECONDS = 1.0


class _Decoded(Dataset):
    """Rows decoded and preprocessed; lives in worker processes, so it holds no module."""

    def __init__(self, preprocess: Preprocess, source: Source, hashes: Sequence[str] = ()) -> None:
        self.preprocess, self.source, self.hashes = preprocess, source, hashes

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> Any:
        decoded = self._decoded(row)
        if self.hashes and content_hash(self.source, row) != self.hashes[row]:
            raise DataError(
                f"{self.source.where(row)} has changed since it was first read",
                do="run again when it stays as it is; a preprocessing of your own must not write into its input",
            )
        return decoded

    def _decoded(self, row: int) -> Any:
        try:
            return self.preprocess(self.source.read(row))
        except (OSError, ValueError, SyntaxError) as error:
            where = self.source.where(row)
            of_source = str(error).startswith(f"{where}: ")
            if isinstance(error, RegraftError) and not of_source:
                do = error.do or "mend or remove it"
                raise DataError(f"{where}: {error.what}", expected=error.expected, got=error.got, do=do) from None
            raise DataError(
                f"{where} cannot be decoded",
                got=str(error).removeprefix(f"{where}: ").partition(" To mend it: ")[0],
                do="mend or remove it",
            ) from None

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """A batch; or the error in its place, for one that is raised in a worker comes out as a stack trace."""
        try:
            return self.preprocess.collate([self[row] for row in rows])
        except RegraftError as error:
            return error


def _as_it_is(batch: Any) -> Any:
    return batch


def by_length(preprocess: Preprocess, source: Source, rows: Sequence[int], size: int) -> list[list[int]]:
    """``rows`` in batches of ``size``: in order, or those of a ragged preprocessing from the shortest to the longest.

    Rows that are padded to the longest of their batch waste least beside rows of their own length. Rows of one length
    keep their order, so that the batches are a function of the inputs alone.

    Raises:
        DataError: a row cannot be read.
    """
    order = list(rows)
    if preprocess.ragged and len(order) > size:
        lengths = [preprocess.length(source.read(row)) for row in order]
        order = [order[place] for place in np.argsort(lengths, kind="stable").tolist()]
    return [order[start : start + size] for start in range(0, len(order), size)]


def in_order(count: int, size: int) -> list[range]:
    """``count`` rows in batches of ``size`` as they come, the last one of what is left."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


_CUT = (EOFError, ConnectionResetError, ConnectionRefusedError)  # of a pipe or socket whose other end is gone


def of_worker(error: BaseException) -> WorkerError | None:
    """What torch says of a decoding process that the system ended, or what is raised where a batch was on its way from
    it, in a sentence; ``None`` of any other error."""
    told = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
    if not told and not isinstance(error, _CUT):
        return None
    return WorkerError(
        "a decoding process was killed, perhaps for want of memory",
        do="take fewer --workers or a smaller --batch-size; what a pass has computed is kept",
    )


@contextmanager
def told_if_killed() -> Iterator[None]:
    """Inside (or as a decorator), a decoding process that is killed ends in a sentence.

    torch raises that wherever the program happens to be, mostly in the code that waits for a batch or uses one.

    Raises:
        WorkerError: one was.
    """
    try:
        yield
    except (RuntimeError, *_CUT) as error:
        if (said := of_worker(error)) is None:
            raise
        seen: BaseException | None = error
        while seen is not None:  # lest the loader that the frames hold raise it again at the end of any other process
            traceback.clear_frames(seen.__traceback__)
            seen = seen.__context__
        raise said from None


def each_decoded(preprocess: Preprocess, source: Source, hashes: Sequence[str] = ()) -> list[Any]:
    """All rows, preprocessed and not collated: see :func:`decoded`."""
    rows = _Decoded(preprocess, source, hashes)
    return [rows[row] for row in range(len(rows))]


def decoded(preprocess: Preprocess, source: Source, rows: Sequence[int], hashes: Sequence[str] = ()) -> Any:
    """The preprocessed batch of a few rows, decoded here and now; ``hashes`` as :func:`gathered` takes them.

    Raises:
        DataError: a row cannot be decoded, or is no longer what its hash says, or rows differ in shape.
    """
    batch = _Decoded(preprocess, source, hashes).__getitems__(rows)
    if isinstance(batch, RegraftError):
        raise batch
    return batch


def gathered(
    preprocess: Preprocess,
    source: Source,
    rows: Sequence[Sequence[int]],
    workers: int | None,
    hashes: Sequence[str] = (),
) -> Iterator[Any]:
    """The preprocessed batches of the rows, in order, decoded ahead of the model.

    Args:
        preprocess: from raw input to tensor; runs in the workers.
        source: the raw inputs.
        rows: the row numbers of each batch.
        workers: decoding processes; ``None`` chooses from the measured time of one row.
        hashes: of the source's rows, where what is computed is kept under them.

    Raises:
        DataError: a row cannot be decoded, or is no longer what its hash says, or rows differ in shape.
        WorkerError: the system killed a decoding process.
    """
    if not rows:
        return
    dataset = _Decoded(preprocess, source, hashes)
    count = _workers(dataset, rows) if workers is None else workers
    loader = DataLoader(
        dataset,
        batch_sampler=[list(some) for some in rows],
        collate_fn=_as_it_is,
        num_workers=count,
        prefetch_factor=4 if count else None,
        generator=torch.Generator(),  # of the workers' seed, which torch would draw from the caller's random state
    )
    with told_if_killed():
        try:
            for batch in loader:
                if isinstance(batch, RegraftError):
                    raise batch
                yield batch
        except (ConnectionError, EOFError):  # killed while it handed a batch over: torch hears of that in a moment
            time.sleep(_NEWS_AFTER_SECONDS)
            raise


def _workers(dataset: _Decoded, rows: Sequence[Sequence[int]]) -> int:
    """Worker processes worth starting: from the time of one row, measured."""
    first = rows[0][0]
    dataset[first]
    began = time.perf_counter()
    dataset[first]
    seconds = (time.perf_counter() - began) * sum(len(some) for some in rows)
    return 0 if seconds < _WORKER_PAYS_AFTER_SECONDS else max(1, min(8, (os.cpu_count() or 2) // 2))
