"""The one pass: rows through the backbone, every wanted tap into the store."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from regraft.data import Manifest, Source
from regraft.errors import DataError, StoreError
from regraft.features.cache import cache_root
from regraft.features.plan import Block, Plan
from regraft.features.store import DTYPES, VERSION, Arrivals, Part, Store
from regraft.files import canonical_json, digest
from regraft.network import Network, Preprocess

__all__ = ["Progress", "base_key", "batches", "find", "pool_batch", "sweep"]

Progress = Callable[[int, int], None]
_WORKER_PAYS_AFTER_SECONDS = 2.0  # below this much decoding, starting worker processes costs more than it saves


def base_key(network: Network, manifest: Manifest, dtype: str) -> str:
    """The key of everything that features depend on, except which blocks were asked for.

    Weights, architecture and preprocessing are in the network's fingerprint; the rows are their
    content hashes in order. The fingerprint outlives an upgrade of torch or of the library that holds the
    architecture, the features do not: another version may compute other numbers.
    """
    versions = {"torch": str(torch.__version__)}
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions[network.about.source] = metadata.version(network.about.source)
    rows = canonical_json(list(manifest.hashes))
    return digest(str(VERSION), network.fingerprint, canonical_json(versions), rows, dtype)[:24]


def find(
    network: Network, manifest: Manifest, plan: Plan, *, cache: Path | None = None, dtype: str = "float32"
) -> Store | None:
    """The store of a sweep that is complete already, without reading any input; else ``None``."""
    base = _base(network, manifest, cache, dtype)
    parts, missing = _complete_parts(base, plan, len(manifest), dtype)
    return None if missing.blocks else Store(plan, parts)


def sweep(
    network: Network,
    manifest: Manifest,
    plan: Plan,
    *,
    cache: Path | None = None,
    dtype: str = "float32",
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Store:
    """Compute the plan's blocks for every row, or find them in the cache.

    Each input is decoded once and crosses the backbone once. Blocks that earlier sweeps of the same
    rows left in the cache are not computed again. Memory stays flat: a batch is written as soon as it
    is done. After an interruption the same call goes on at the first missing batch.

    Args:
        network: the frozen backbone, on the device that it should run on.
        manifest: the rows; labels are not looked at.
        plan: the blocks.
        cache: the cache folder; :func:`regraft.features.cache_root` by default.
        dtype: storage type, ``float32``, ``float16`` or ``bfloat16``.
        batch_size: rows per forward pass and per shard.
        workers: decoding processes; by default none for little work, else one per two cores.
        progress: called with (rows done, rows in all) after every batch.

    Raises:
        StoreError: the disk is too small, full or read-only.
        DataError: there are no rows, or a row cannot be decoded.
    """
    if not len(manifest):
        raise DataError(f"{manifest.name} has no rows for this pass", expected="at least one row", got="0")
    if dtype not in DTYPES:
        raise StoreError(f"storage type {dtype!r} is unknown", expected=", ".join(DTYPES))
    base = _base(network, manifest, cache, dtype)
    parts, missing = _complete_parts(base, plan, len(manifest), dtype)
    if not missing.blocks:
        return Store(plan, parts)
    about = {"model": network.name, "network": network.fingerprint, "data": manifest.name}
    part = Part.open(base, missing, len(manifest), dtype, batch_size, about)
    flops, rows, pace = _fill(part, network, manifest, workers, progress)
    part.finish({"flops_per_row": flops // max(rows, 1), "seconds_per_row": pace})
    return Store(plan, [*parts, part], flops, rows)


def _base(network: Network, manifest: Manifest, cache: Path | None, dtype: str) -> Path:
    return (cache_root() if cache is None else cache) / "features" / base_key(network, manifest, dtype)


def _complete_parts(base: Path, plan: Plan, rows: int, dtype: str) -> tuple[list[Part], Plan]:
    """Complete, sound parts that hold blocks of the plan, and the plan of what is in none of them."""
    wanted = {block.name: block for block in plan.blocks}
    parts: list[Part] = []
    exact = base / digest(canonical_json(plan.to_json()))[:16]
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
    part: Part, network: Network, manifest: Manifest, workers: int | None, progress: Progress | None
) -> tuple[int, int, float]:
    """Compute the missing shards of a part. Returns FLOPs and rows of this call, and its seconds per row: without the
    first batch where others follow, for it starts the decoders and is counted, which takes many times a pass."""
    missing = part.missing()
    part.check_space(missing)
    done = part.rows - sum(stop - start for start, stop in missing)
    if progress:
        progress(done, part.rows)
    flops_per_row, computed = 0, 0
    arrivals = Arrivals(part)
    began, before = time.perf_counter(), 0
    for (start, stop), batch in zip(missing, batches(network.preprocess, manifest.inputs, missing, workers)):
        if not arrivals.has(start, stop):  # another process may have written it meanwhile
            counter = FlopCounterMode(display=False) if not flops_per_row else contextlib.nullcontext()
            with counter:
                values = pool_batch(network, part.plan.blocks, batch)
            if isinstance(counter, FlopCounterMode):
                flops_per_row = counter.get_total_flops() // (stop - start)
            part.write(start, stop, {name: v.to(DTYPES[part.dtype]).cpu() for name, v in values.items()})
            computed += stop - start
            if computed == stop - start < sum(last - first for first, last in missing):
                began, before = time.perf_counter(), computed
        done += stop - start
        if progress:
            progress(done, part.rows)
    seconds = time.perf_counter() - began
    return flops_per_row * computed, computed, seconds / max(computed - before, 1)


def pool_batch(network: Network, blocks: Sequence[Block], batch: Any) -> dict[str, Tensor]:
    """One forward pass of a batch under ``no_grad``; each block pooled at the moment its tap exists.

    Returns:
        block name → ``(B, width)``.
    """
    batch = network.place(batch)
    mask = batch.get("attention_mask") if isinstance(batch, dict) else None
    by_site: dict[str, list[Block]] = {}
    for block in blocks:
        by_site.setdefault(block.site, []).append(block)
    values: dict[str, Tensor] = {}

    def keep(site: str, value: Tensor) -> None:
        for block in by_site[site]:
            values[block.name] = block.pooling(value, mask)

    with torch.no_grad(), network.observe(tuple(by_site), keep):
        network.forward(batch)
    return values


class _Decoded(Dataset):
    """Rows decoded and preprocessed; lives in worker processes, so it holds no module."""

    def __init__(self, preprocess: Preprocess, source: Source) -> None:
        self.preprocess, self.source = preprocess, source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> Any:
        try:
            return self.preprocess(self.source.read(row))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(
                f"{self.source.where(row)} cannot be decoded",
                got=str(error),
                do="mend or remove it, or pass --skip-bad",
            ) from None


def batches(
    preprocess: Preprocess, source: Source, spans: Sequence[tuple[int, int]], workers: int | None
) -> Iterator[Any]:
    """The preprocessed batches of the row ranges, in order, decoded ahead of the model.

    Args:
        preprocess: from raw input to tensor; runs in the workers.
        source: the raw inputs.
        spans: ``(start, stop)`` of each batch.
        workers: decoding processes; ``None`` chooses from the measured time of one row.

    Raises:
        DataError: a row cannot be decoded.
    """
    if not spans:
        return
    dataset = _Decoded(preprocess, source)
    count = _workers(dataset, spans) if workers is None else workers
    loader = DataLoader(
        dataset,
        batch_sampler=[list(range(start, stop)) for start, stop in spans],
        collate_fn=preprocess.collate,
        num_workers=count,
        prefetch_factor=4 if count else None,
    )
    yield from loader


def _workers(dataset: _Decoded, spans: Sequence[tuple[int, int]]) -> int:
    """Worker processes worth starting: from the time of one row, measured."""
    first = spans[0][0]
    dataset[first]
    began = time.perf_counter()
    dataset[first]
    seconds = (time.perf_counter() - began) * sum(stop - start for start, stop in spans)
    return 0 if seconds < _WORKER_PAYS_AFTER_SECONDS else max(1, min(8, (os.cpu_count() or 2) // 2))
