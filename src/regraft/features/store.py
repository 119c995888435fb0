"""The feature store: what a sweep computed, under a key that is the whole truth.

Layout of the cache folder::

    features/<base key>/<part key>/
        part.json                                what the keys mean, blocks, rows per shard
        00000000-00000032.<sha16>.safetensors    one shard a batch, written atomically
        done.json                                written last: the names of all shards

The base key covers the network (weights, architecture, preprocessing), the rows' contents in order,
the storage type and the version of this code; the part key adds the blocks. A shard carries the
beginning of its own SHA-256 in its name, so a torn shard is seen and computed again, and a sweep that
was killed goes on at the first missing batch. Shards are independent: two processes, or two machines
on one disk, can fill a part together.
"""

from __future__ import annotations

import bisect
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor

from regraft.errors import StoreError
from regraft.features.plan import Block, Plan
from regraft.files import atomic_path, canonical_json, digest, file_digest, intact, read_json, sealed, write_json
from regraft.linear import Dense, Matrix

__all__ = ["DTYPES", "VERSION", "Arrivals", "Part", "Shard", "ShardedMatrix", "Store", "described"]

VERSION = 2
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_DECIDED = ("version", "rows", "dtype", "blocks")  # of a part, by its place; the first of two writers says the rest
_NAMES = re.compile(r"(\d{8,})-(\d{8,})\.[0-9a-f]{16}\.safetensors")
_IN_MEMORY_BYTES = 2 << 30  # a block larger than this is read from its shards chunk by chunk


@dataclass(frozen=True)
class Shard:
    """The features of rows ``start`` to ``stop`` (exclusive), in one file."""

    start: int
    stop: int
    path: Path


@dataclass(frozen=True)
class Part:
    """One sweep's folder: a plan's blocks over a fixed list of rows."""

    path: Path
    plan: Plan
    rows: int
    dtype: str
    shard_rows: int
    about: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def place(base: Path, plan: Plan) -> Path:
        """The folder below ``base`` of a plan's part."""
        return base / digest(canonical_json(plan.to_json()))[:16]

    @classmethod
    def open(cls, base: Path, plan: Plan, rows: int, dtype: str, shard_rows: int, about: Mapping[str, Any]) -> Part:
        """Open the part of ``plan`` below ``base``, or begin it.

        An existing part keeps its own rows per shard, so that it can be resumed with another batch size.
        """
        part = cls(cls.place(base, plan), plan, rows, dtype, shard_rows, dict(about))
        meta = part._begin()
        return replace(part, shard_rows=int(meta["shard_rows"]))

    def _begin(self) -> dict[str, Any]:
        """Write ``part.json`` unless it is there, and return what is there: the first of two writers has its way."""
        mine = sealed({
            "version": VERSION,
            "rows": self.rows,
            "dtype": self.dtype,
            "shard_rows": self.shard_rows,
            "blocks": self.plan.to_json(),
            "about": dict(self.about),
        })  # fmt: skip
        there = described(self.path)
        if there is None:
            write_json_once(self.path / "part.json", mine)
            there = described(self.path)
        if there is None or any(canonical_json(there[key]) != canonical_json(mine[key]) for key in _DECIDED):  # torn
            write_json(self.path / "part.json", mine)
            return mine
        return there

    @classmethod
    def load(cls, path: Path) -> Part | None:
        """The part in a folder, with its blocks as they were written; ``None`` if ``part.json`` is torn."""
        meta = described(path)
        if meta is None or meta["version"] != VERSION:
            return None
        try:
            plan = Plan.from_json(meta["blocks"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return cls(path, plan, meta["rows"], meta["dtype"], meta["shard_rows"], meta.get("about", {}))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The row ranges of all shards, in order."""
        return [(a, min(a + self.shard_rows, self.rows)) for a in range(0, self.rows, self.shard_rows)]

    def files(self) -> list[tuple[tuple[int, int], Path]]:
        """Row range and path of every shard file, whole or torn, from one look at the folder.

        Of one range there are several where two runs rounded differently.
        """
        return [
            ((int(named[1]), int(named[2])), path)
            for path in sorted(self.path.glob("*-*.*.safetensors"), reverse=True)
            if (named := _NAMES.fullmatch(path.name))  # others are copies that a file manager or an archive left
        ]

    def listing(self) -> dict[tuple[int, int], Path]:
        """One shard file a row range: the first by name."""
        return dict(self.files())

    def sound(self, path: Path) -> bool:
        """Whether a shard is there with the bytes that its name promises; a torn one is deleted."""
        try:
            good = file_digest(path)[:16] == path.name.split(".")[1]
        except FileNotFoundError:  # deleted since it was listed
            return False
        if not good:
            path.unlink(missing_ok=True)
        return good

    def missing(self) -> list[tuple[int, int]]:
        """The row ranges without a sound shard. Reads every shard that is there once, also several of one range."""
        whole = {span for span, path in self.files() if self.sound(path)}
        return [span for span in self.spans if span not in whole]

    def write(self, start: int, stop: int, values: Mapping[str, Tensor]) -> None:
        """Write one shard atomically. ``values`` maps each block's name to ``(stop - start, width)``."""
        for block in self.plan.blocks:
            expected = (stop - start, block.width)
            if tuple(values[block.name].shape) != expected:
                raise StoreError(
                    f"tap {block.site} changed its shape within the data",
                    expected=str(expected),
                    got=str(tuple(values[block.name].shape)),
                    do="give all rows one input size, or leave this tap out",
                )
        span = f"{start:08d}-{stop:08d}"
        named = self.path / f"{span}.safetensors"
        with atomic_path(named, lambda written: f"{span}.{file_digest(written)[:16]}.safetensors") as temporary:
            try:
                save_file({f"{i:05d}": values[b.name] for i, b in enumerate(self.plan.blocks)}, temporary)
            except SafetensorError as error:  # it has no errno, and what was given it can be written
                raise OSError(str(error)) from error

    def finish(self, about: Mapping[str, Any]) -> None:
        """Write ``done.json``: the part is complete.

        Raises:
            StoreError: shards are gone; ``part.json`` stands, so that the same call goes on with the rest.
        """
        self._begin()  # for the case that the folder was deleted meanwhile and came back with the later shards
        shards = [shard.path.name for shard in self.shards()]
        write_json(self.path / "done.json", sealed({"shards": shards, "about": dict(about)}))
        spans = set(self.spans)
        for span, path in self.files():
            if span not in spans:  # of other rows per shard, which a part.json said that was torn since
                path.unlink(missing_ok=True)

    @property
    def done(self) -> dict[str, Any] | None:
        """The content of ``done.json``, or ``None`` while the part is incomplete."""
        done = read_json(self.path / "done.json")
        if not isinstance(done, dict) or not isinstance(done.get("shards"), list) or not intact(done):
            return None
        return done if all((self.path / name).is_file() for name in done["shards"]) else None

    def shards(self) -> tuple[Shard, ...]:
        """All shards in row order."""
        there = self.listing()
        found = []
        for start, stop in self.spans:
            path = there.get((start, stop))
            if path is None:
                raise StoreError(
                    f"the features of rows {start} to {stop} are gone from {self.path}: something emptied the cache",
                    do="run the same command again: only what is missing is computed",
                )
            found.append(Shard(start, stop, path))
        return tuple(found)

    def check_space(self, missing: Sequence[tuple[int, int]]) -> None:
        """Refuse a disk that has not as much room as the missing shards will take.

        Raises:
            StoreError: the disk is too small.
        """
        rows = sum(stop - start for start, stop in missing)
        needed = rows * self.plan.width * DTYPES[self.dtype].itemsize
        free = shutil.disk_usage(self.path).free
        if needed > free:
            raise StoreError(
                f"the disk of {self.path.parent.parent} is too small for the features",
                expected=f"{needed / 1e9:.2f} GB free",
                got=f"{free / 1e9:.2f} GB",
                do="set REGRAFT_CACHE to a larger disk, use --dtype float16 or fewer taps",
            )


class Arrivals:
    """Which shards of a part some process has written by now, from a look at the folder once in a while.

    A look costs the more the more shards there are, so that one per batch would make a long pass quadratic. What
    arrives between two looks is computed twice, to the same bytes.
    """

    def __init__(self, part: Part, every_seconds: float = 1.0) -> None:
        self._part, self._every = part, every_seconds
        self._there: frozenset[tuple[int, int]] = frozenset()
        self._looked = -math.inf

    def has(self, start: int, stop: int) -> bool:
        """Whether the shard of these rows was there at the last look."""
        if time.monotonic() - self._looked >= self._every:
            self._there = frozenset(self._part.listing())
            self._looked = time.monotonic()
        return (start, stop) in self._there


class ShardedMatrix:
    """A block's ``(N, width)`` features, read from its shards as needed. Final; a :class:`Matrix`."""

    def __init__(self, shards: Sequence[Shard], key: str, width: int) -> None:
        self._shards, self._key = tuple(shards), key
        self._starts = [shard.start for shard in self._shards]
        self.shape = (self._shards[-1].stop, width)
        self.dtype = torch.float32

    def rows(self, index: slice | Tensor) -> Tensor:
        """Rows as float32; a slice reads only the shards that it touches."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step == 1:
                return self._span(start, stop)
            index = torch.arange(start, stop, step)
        index = index.long()
        out = torch.empty(len(index), self.shape[1], dtype=self.dtype)
        owner = torch.tensor([bisect.bisect_right(self._starts, int(i)) - 1 for i in index], dtype=torch.long)
        for number in torch.unique(owner).tolist():
            here = owner == number
            shard = self._shards[number]
            out[here] = self._read(shard)[index[here] - shard.start].to(self.dtype)
        return out

    def _span(self, start: int, stop: int) -> Tensor:
        pieces = []
        for shard in self._shards:
            if shard.start < stop and shard.stop > start:
                piece = self._read(shard)
                pieces.append(piece[max(start - shard.start, 0) : stop - shard.start].to(self.dtype))
        return torch.cat(pieces) if pieces else torch.empty(0, self.shape[1], dtype=self.dtype)

    def _read(self, shard: Shard) -> Tensor:
        return read_shard(shard.path, (self._key,))[self._key]


def described(folder: Path) -> dict[str, Any] | None:
    """What ``part.json`` says of a part; ``None`` where the file is absent or torn."""
    meta = read_json(folder / "part.json")
    kinds = {"version": int, "rows": int, "shard_rows": int, "dtype": str, "blocks": list}
    if not isinstance(meta, dict) or not all(isinstance(meta.get(key), kind) for key, kind in kinds.items()):
        return None
    return meta if meta["shard_rows"] > 0 and intact(meta) else None


def read_shard(path: Path, keys: Sequence[str] | None = None) -> dict[str, Tensor]:
    """The tensors of one shard (all, or those named)."""
    try:
        if keys is None:
            return load_tensors(path.read_bytes())
        with safe_open(path, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in keys}
    except Exception as error:
        raise StoreError(
            f"{path} cannot be read",
            got=str(error),
            do="run the same command again: a torn file is recomputed",
        ) from error


def write_json_once(path: Path, value: Any) -> None:
    """Write JSON to a new file, whole or not at all; one that is there already stays."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    write_json(temporary, value)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a disk without hard links
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class Store:
    """Features of a fixed list of rows: a view over one or more complete parts. Immutable.

    Attributes:
        rows: number of rows.
        blocks: the blocks that were asked for, in the network's order.
        flops: floating-point operations of the backbone in *this* call (0 when all was there already).
        computed_rows: rows that went through the backbone in this call.
        nbytes: bytes of the blocks on disk.
    """

    def __init__(self, plan: Plan, parts: Sequence[Part], flops: int = 0, computed_rows: int = 0) -> None:
        self.blocks: tuple[Block, ...] = plan.blocks
        self.rows = parts[0].rows
        self.flops, self.computed_rows = flops, computed_rows
        self._where: dict[str, tuple[Part, str]] = {}
        for part in parts:
            for i, block in enumerate(part.plan.blocks):
                self._where.setdefault(block.name, (part, f"{i:05d}"))
        self.nbytes = sum(
            self.rows * block.width * DTYPES[self._where[block.name][0].dtype].itemsize for block in self.blocks
        )
        self._shards: dict[Path, tuple[Shard, ...]] = {}

    def __repr__(self) -> str:
        width = sum(block.width for block in self.blocks)
        blocks, size = len(self.blocks), f"{self.nbytes:,}"
        return f"Store(rows: {self.rows:,}, blocks: {blocks}, features: {width:,}, bytes: {size})"

    @property
    def seconds_per_row(self) -> float:
        """Wall seconds that the pass took for one row when it was made; 0 where its last call made one batch alone."""
        return self._about("seconds_per_row")

    @property
    def forward_seconds_per_row(self) -> float:
        """The same without pooling and writing features: reading the row, and the network's forward pass."""
        return self._about("forward_seconds_per_row")

    @property
    def reading_seconds_per_row(self) -> float:
        """The same of waiting for the row to be read alone."""
        return self._about("reading_seconds_per_row")

    @property
    def flops_per_row(self) -> int:
        """Floating-point operations of the backbone for one row, counted when its pass was made."""
        return int(self._about("flops_per_row"))

    @property
    def finite(self) -> bool:
        """Whether the passes that made it saw finite numbers alone; also false where nothing is known."""
        return all(about.get("finite") is True for about in self._abouts())

    def _about(self, name: str) -> float:
        """The largest of what the parts say of themselves under a name; 0 where none says anything."""
        return max(about.get(name, 0) for about in self._abouts())

    def _abouts(self) -> list[dict[str, Any]]:
        parts = {part.path: part for part, _ in self._where.values()}
        return [(part.done or {}).get("about", {}) for part in parts.values()]

    @property
    def reused(self) -> bool:
        """Whether nothing had to be computed."""
        return self.computed_rows == 0

    def matrices(self, names: Sequence[str] | None = None) -> dict[str, Matrix]:
        """The named blocks as matrices (all by default).

        What fits in memory together (2 GiB as float32) is read at once, each shard opened a single
        time; otherwise every block stays on disk and is read in chunks.
        """
        wanted = [block for block in self.blocks if names is None or block.name in set(names)]
        if sum(self.rows * block.width * 4 for block in wanted) > _IN_MEMORY_BYTES:
            return {block.name: self._lazy(block) for block in wanted}
        out = {block.name: torch.empty(self.rows, block.width) for block in wanted}
        by_part: dict[Path, list[Block]] = {}
        for block in wanted:
            by_part.setdefault(self._where[block.name][0].path, []).append(block)
        for blocks in by_part.values():
            keys = {self._where[block.name][1]: block.name for block in blocks}
            for shard in self._shards_of(self._where[blocks[0].name][0]):
                for key, value in read_shard(shard.path, tuple(keys)).items():
                    out[keys[key]][shard.start : shard.stop] = value
        return {name: Dense(value) for name, value in out.items()}

    def _lazy(self, block: Block) -> Matrix:
        part, key = self._where[block.name]
        return ShardedMatrix(self._shards_of(part), key, block.width)

    def _shards_of(self, part: Part) -> tuple[Shard, ...]:
        if part.path not in self._shards:
            self._shards[part.path] = part.shards()
        return self._shards[part.path]
