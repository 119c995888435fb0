"""The one pass: rows through the backbone, every wanted tap into the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regraft.data import Manifest
from regraft.errors import DataError, ModelError, StoreError
from regraft.features.batching import by_length, gathered, told_if_killed
from regraft.features.cache import cache_root
from regraft.features.finite import lost
from regraft.features.plan import Block, Plan
from regraft.features.store import DTYPES, VERSION, Arrivals, Part, Store
from regraft.files import canonical_json, digest
from regraft.linear import all_finite
from regraft.memory import kept_memory
from regraft.network import Network, attention_mask
from regraft.network.flops import Operations
from regraft.network.onednn import wide_linear

__all__ = ["Passing", "Progress", "Stopwatch", "base_key", "find", "left", "pool_batch", "sweep"]

Progress = Callable[[int, int], None]
Passing = Callable[[int, Any], Tensor]
_ROUNDING = 1e-4  # of the largest number, that two ways through a network in float32 may be apart
_WINDOW = 32  # shards of ragged rows whose batches are made together, by length, and written together


def base_key(network: Network, manifest: Manifest, dtype: str) -> str:
    """The key of everything that features depend on, except which blocks were asked for.

    Weights, architecture and preprocessing are in the network's fingerprint; the rows are their
    content hashes in order. The fingerprint outlives an upgrade of torch or of the libraries that hold the
    architecture or read the inputs, the features do not: another version may compute other numbers.
    """
    versions = {"torch": str(torch.__version__)}
    code = {type(part).__module__.partition(".")[0] for part in network.module.modules()} - {"torch"}
    for name in (network.about.source, *code, *network.preprocess.libraries):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    rows = canonical_json(list(manifest.hashes))
    return digest(str(VERSION), network.fingerprint, canonical_json(versions), rows, dtype)[:24]


def find(
    network: Network, manifest: Manifest, plan: Plan, *, cache: str | Path | None = None, dtype: str = "float32"
) -> Store | None:
    """The store of a sweep that is complete already, without reading any input; else ``None``."""
    base = _base(network, manifest, cache, dtype)
    parts, missing = _complete_parts(base, plan, len(manifest), dtype)
    return None if missing.blocks else Store(plan, parts)


def left(
    network: Network, manifest: Manifest, plan: Plan, *, cache: str | Path | None = None, dtype: str = "float32"
) -> int:
    """How many rows a sweep would pass: all but those whose shards an earlier one wrote before it was stopped."""
    base = _base(network, manifest, cache, dtype)
    _, missing = _complete_parts(base, plan, len(manifest), dtype)
    if not missing.blocks:
        return 0
    part = Part.load(Part.place(base, missing))
    if part is None or (part.rows, part.dtype) != (len(manifest), dtype):
        return len(manifest)
    return sum(stop - start for start, stop in part.missing())


@told_if_killed()
@kept_memory()
def sweep(
    network: Network,
    manifest: Manifest,
    plan: Plan,
    *,
    cache: str | Path | None = None,
    dtype: str = "float32",
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
    passing: Passing | None = None,
) -> Store:
    """Compute the plan's blocks for every row, or find them in the cache.

    Each input is decoded once and crosses the backbone once. Blocks that earlier sweeps of the same
    rows left in the cache are not computed again. Memory stays flat: a batch is written as soon as it
    is done. After an interruption the same call goes on at the first missing batch. Texts are batched by length, a
    thousand rows or so at a time, and written in their own order: what a row's features are depends on its
    neighbours by float rounding alone.

    Args:
        network: the frozen backbone, on the device that it should run on.
        manifest: the rows; labels are not looked at.
        plan: the blocks.
        cache: the cache folder; :func:`regraft.features.cache_root` by default.
        dtype: storage type, ``float32``, ``float16`` or ``bfloat16``.
        batch_size: rows per forward pass and per shard.
        workers: decoding processes; by default none for little work, else one per two cores.
        progress: called with (rows done, rows in all) after every batch.
        passing: (first row, batch) → ``(B, width)``: runs the network instead, for the plan's one block, and keeps what
            else is needed of the pass. The first batch goes both ways; where they differ it is not asked again, nor
            after a ModelError or a DataError, by which it says that it cannot pass a batch or some rows of it.

    Raises:
        StoreError: the disk is too small, full or read-only.
        DataError: there are no rows, or none in a batch; a row cannot be decoded, or has changed since the manifest was
            made.
        WorkerError: the system killed a decoding process.
    """
    if not len(manifest):
        raise DataError(f"{manifest.name} has no rows for this pass", expected="at least one row", got="0")
    if batch_size < 1:
        raise DataError(f"a batch of {batch_size} rows", expected="one at least")
    if dtype not in DTYPES:
        raise StoreError(f"storage type {dtype!r} is unknown", expected=", ".join(DTYPES))
    base = _base(network, manifest, cache, dtype)
    parts, missing = _complete_parts(base, plan, len(manifest), dtype)
    if not missing.blocks:
        return Store(plan, parts)
    about = {"model": network.name, "network": network.fingerprint, "data": manifest.name}
    part = Part.open(base, missing, len(manifest), dtype, batch_size, about)
    along = passing if len(missing.blocks) == 1 else None
    meter = _fill(part, network, manifest, workers, progress, along)
    per_row = meter.flops // meter.rows if meter.rows else _flops_of_a_row(part, network, manifest)
    paces = {
        "seconds_per_row": meter.pace,
        "forward_seconds_per_row": meter.forward_pace,
        "reading_seconds_per_row": meter.reading_pace,
    }
    finite = meter.finite and (meter.rows == part.rows or not lost(Store(part.plan, [part])))
    part.finish({"flops_per_row": per_row, "finite": finite, **paces})
    return Store(plan, [*parts, part], meter.flops, meter.rows)


def _base(network: Network, manifest: Manifest, cache: str | Path | None, dtype: str) -> Path:
    return cache_root(cache) / "features" / base_key(network, manifest, dtype)


def _complete_parts(base: Path, plan: Plan, rows: int, dtype: str) -> tuple[list[Part], Plan]:
    """Complete, sound parts that hold blocks of the plan, and the plan of what is in none of them."""
    wanted = {block.name: block for block in plan.blocks}
    parts: list[Part] = []
    exact = Part.place(base, plan)
    folders = sorted(base.glob("*/done.json"), key=lambda path: (path.parent != exact, path))
    for folder in (path.parent for path in folders):
        part = Part.load(folder)
        if part is None or part.rows != rows or part.dtype != dtype or part.done is None:
            continue
        useful = [block.name for block in part.plan.blocks if wanted.get(block.name) == block]
        if useful and not part.missing():
            parts.append(part)
            for name in useful:
                del wanted[name]
        if not wanted:
            break
    return parts, plan.only(list(wanted))


def _fill(
    part: Part,
    network: Network,
    manifest: Manifest,
    workers: int | None,
    progress: Progress | None,
    passing: Passing | None,
) -> _Meter:
    """Compute the missing shards of a part. Returns what the passes of this call cost."""
    missing = part.missing()
    part.check_space(missing)
    todo = sum(stop - start for start, stop in missing)
    done = part.rows - todo
    if progress:
        progress(done, part.rows)
    preprocess, inputs, wide = network.preprocess, manifest.inputs, _WINDOW if network.preprocess.ragged else 1
    windows = [missing[at : at + wide] for at in range(0, len(missing), wide)]
    cut = [by_length(preprocess, inputs, _rows_of(window), part.shard_rows) for window in windows]
    stream = gathered(preprocess, inputs, [rows for some in cut for rows in some], workers, manifest.hashes)
    _ = network.channels_last  # found with the sites by example passes, which are none of those counted
    meter, arrivals = _Meter(time.perf_counter()), Arrivals(part)
    run, batches = _Run(network, part.plan.blocks, passing, meter.keeping), meter.read(stream)
    for window, some in zip(windows, cut):
        arrived = all(arrivals.has(*span) for span in window)  # another process may have written them meanwhile
        values: list[dict[str, Tensor]] = []
        for place, (rows, batch) in enumerate(zip(some, batches)):
            if not arrived:
                found = meter.of(batch, len(rows), lambda: run(rows[0], batch))  # noqa: B023
                if meter.rows == len(rows):
                    found = run.settled(rows[0], batch, found)
                    meter.restart(todo)
                values.append({name: value.to(DTYPES[part.dtype]).cpu() for name, value in found.items()})
                with meter.keeping.running():
                    meter.finite = meter.finite and all(map(all_finite, values[-1].values()))
                if place + 1 == len(some):
                    with meter.keeping.running():
                        _write(part, window, some, values)
            done += len(rows)
            if progress:
                progress(done, part.rows)
    meter.shared = run.agreed
    return meter


def _flops_of_a_row(part: Part, network: Network, manifest: Manifest) -> int:
    """Counted in one batch, for a part whose every shard a run wrote that was stopped before it said so."""
    some = by_length(network.preprocess, manifest.inputs, range(min(part.rows, part.shard_rows)), part.shard_rows)[0]
    meter = _Meter(time.perf_counter())
    for batch in gathered(network.preprocess, manifest.inputs, [some], 0):
        meter.of(batch, len(some), lambda: pool_batch(network, part.plan.blocks, batch))  # noqa: B023
    return meter.flops // len(some)


def _rows_of(window: Sequence[tuple[int, int]]) -> list[int]:
    return [row for start, stop in window for row in range(start, stop)]


def _write(
    part: Part, window: Sequence[tuple[int, int]], cut: Sequence[Sequence[int]], values: Sequence[dict[str, Tensor]]
) -> None:
    """The shards of a window, each with its own rows in order, from batches that held them in another."""
    order = torch.tensor([row for rows in cut for row in rows])
    if len(values) == 1 and bool((order.diff() > 0).all()):
        whole = {name: value.contiguous() for name, value in values[0].items()}
    else:
        back = torch.argsort(order)
        whole = {name: torch.cat([some[name] for some in values])[back] for name in values[0]}
    at = 0
    for start, stop in window:
        part.write(start, stop, {name: value[at : at + stop - start] for name, value in whole.items()})
        at += stop - start


@dataclass
class Stopwatch:
    """Wall seconds of what ran under it."""

    seconds: float = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Add the block's time."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


@dataclass
class _Meter:
    """What the passes of one call cost.

    FLOPs are counted in the first batch and laid on the others by their positions, padded ones included, those of
    attention by the squares of a row's. The seconds leave that batch out where others follow (it starts the decoders
    and is counted, which takes many times a pass), and are laid on it by its positions. ``keeping`` runs while features
    are pooled and written, which is no part of a forward pass, ``reading`` while a batch is waited for. ``shared`` says
    that the passes served something else too, and ``finite`` that all that was found are numbers.
    """

    began: float
    keeping: Stopwatch = field(default_factory=Stopwatch)
    reading: Stopwatch = field(default_factory=Stopwatch)
    shared: bool = False
    finite: bool = True
    rows: int = 0
    positions: int = 0
    squares: int = 0
    counted: tuple[float, float] | None = None
    before: tuple[int, int] = 0, 0

    def read(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The stream's batches; what they are waited for is added."""
        while True:
            with self.reading.running():
                batch = next(stream, None)
            if batch is None:
                return
            yield batch

    def of(self, batch: Any, rows: int, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The work's values; what it took is added."""
        mask = attention_mask(batch)
        positions = rows if mask is None else mask.numel()
        squares = rows if mask is None else positions * mask.shape[1]
        wide_linear()  # its trial, once a process, is no operation of the network's
        counter = Operations() if self.counted is None else contextlib.nullcontext()
        with counter:
            values = work()
        self.rows, self.positions, self.squares = self.rows + rows, self.positions + positions, self.squares + squares
        if isinstance(counter, Operations):
            self.counted = (counter.total - counter.attention) / positions, counter.attention / squares
        return values

    def restart(self, todo: int) -> None:
        """Leave out the time so far, where more rows follow."""
        if self.rows < todo:
            self.began, self.before = time.perf_counter(), (self.rows, self.positions)
            self.keeping.seconds = self.reading.seconds = 0.0

    @property
    def flops(self) -> int:
        """Of the backbone in this call."""
        each, of_pairs = self.counted or (0, 0)
        return round(each * self.positions + of_pairs * self.squares)

    @property
    def pace(self) -> float:
        """Seconds per row; 0, not known, of one batch alone, whose time is mostly that of starting."""
        return self._per_row(time.perf_counter() - self.began)

    @property
    def forward_pace(self) -> float:
        """The same of reading rows and the network's forward pass alone; not known of shared passes. (On an accelerator
        what is pooled there is waited for later, and counts as the network's.)"""
        return 0.0 if self.shared else self._per_row(time.perf_counter() - self.began - self.keeping.seconds)

    @property
    def reading_pace(self) -> float:
        """The same of waiting for rows alone."""
        return 0.0 if self.shared else self._per_row(self.reading.seconds)

    def _per_row(self, seconds: float) -> float:
        rows, positions = self.before
        if not rows or self.rows == rows:
            return 0.0
        return seconds / (self.positions - positions) * self.positions / self.rows


@dataclass
class _Run:
    """How a batch becomes blocks: by a pass that serves something else too, once it was seen to give the same."""

    network: Network
    blocks: Sequence[Block]
    passing: Passing | None
    keeping: Stopwatch
    agreed: bool = False

    def __call__(self, first: int, batch: Any) -> dict[str, Tensor]:
        if self.agreed and (along := self._along(first, batch)) is not None:
            return {self.blocks[0].name: along}
        return pool_batch(self.network, self.blocks, batch, self.keeping)

    def settled(self, first: int, batch: Any, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Settle by what was found for a batch whether the other pass serves: then the batch has its values, as the
        others will."""
        if (along := self._along(first, batch)) is None:
            return found
        (block,) = self.blocks
        known = found[block.name]
        self.agreed = float((along - known).abs().max()) <= _ROUNDING * float(known.abs().max()) + 1e-6
        if self.agreed:
            return {block.name: along}
        self.passing = None
        return found

    def _along(self, first: int, batch: Any) -> Tensor | None:
        """What the other pass gives; nothing from the first batch on that it cannot pass."""
        if self.passing is None:
            return None
        try:
            return self.passing(first, batch)
        except (DataError, ModelError):
            self.passing = None
            return None


def pool_batch(
    network: Network, blocks: Sequence[Block], batch: Any, pooling: Stopwatch | None = None
) -> dict[str, Tensor]:
    """One forward pass of a batch under ``no_grad``; each block pooled at the moment its tap exists.

    On a processor images go through in portions of so few rows that their largest map stays in its cache.

    Args:
        network, blocks, batch: what passes.
        pooling: runs while blocks are pooled, and not during the rest of the pass.

    Returns:
        block name → ``(B, width)``.
    """
    batch = network.laid_out(network.place(batch))
    mask = attention_mask(batch)
    by_site: dict[str, list[Block]] = {}
    for block in blocks:
        by_site.setdefault(block.site, []).append(block)
    values: dict[str, list[Tensor]] = {block.name: [] for block in blocks}
    pooling = pooling or Stopwatch()

    def keep(site: str, value: Tensor) -> None:
        with pooling.running():
            for block in by_site[site]:
                values[block.name].append(block.pooling(value, mask))

    with torch.no_grad(), wide_linear(network.device), network.observe(tuple(by_site), keep):
        for portion in batch.split(network.rows_at_once()) if isinstance(batch, Tensor) else (batch,):
            network.forward(portion)
    return {name: torch.cat(some) if len(some) > 1 else some[0] for name, some in values.items()}
