"""Arms: one measured value per (arm, network, task, seed), kept on disk, so that rows share what they need.

An :class:`Arm` is a function with a name and a version; a :class:`Bench` knows the networks, the tasks, the seeds
and the cache, and measures an arm once. Its value lies under a key of everything that decides it: the arm's name,
version and parameters, the fingerprints of the network, the rows and what else it reads, and the seed. So rows share
features and arms, a run that was killed goes on where it stopped, and one row can be run alone. The device is no part
of the key, for it changes a value by rounding alone, if by more where a training follows; every value says which it
was.

Arms lie in the cache, or in a folder that is named: a few kilobytes each, with which a row that takes days is measured
on one machine after the other. Runs beside each other share the work: an arm is locked while it is measured, a source
while it is trained, and a run measures what no other does before it waits (:meth:`Bench.ahead`).

Features come from one sweep a (network, rows) over the union of the taps and sizes that the rows share; whatever
is wider than :data:`WIDE` features goes to a part of the cache that is kept below :data:`QUOTA_BYTES`, for it is
large and is swept again in seconds.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from torch import Tensor

from regraft.data import Manifest, folds
from regraft.features import Block, Plan, Store, Taps, plan, sweep
from regraft.features.cache import entries
from regraft.files import canonical_json, digest, intact, read_json, sealed, write_json
from regraft.heads import Readout, Response, score
from regraft.linear import Dense, FeatureDesign, Matrix, UnitRows
from regraft.network import Network
from regraft.network.vit import TAPS
from regraft.reproduce.alone import alone
from regraft.reproduce.packs import DATA
from regraft.reproduce.result import GateReport
from regraft.reproduce.row import Context
from regraft.reproduce.sources import pack_network, vision_transformer
from regraft.reproduce.tasks import KINDS, T12, task

__all__ = [
    "BACKBONES",
    "EMBEDDING",
    "FOLDS",
    "SEEDS",
    "Arm",
    "Backbone",
    "Bench",
    "Place",
    "Sample",
    "points",
    "seeds_gate",
    "unit",
]

FOLDS = 5
SEEDS = 5
WIDE = 20_000
QUOTA_BYTES = 12 * 2**30
EMBEDDING = Taps(("embedding",), (None,))
_STORED = "float16"  # half the room of float32; the features are activations of order one


@dataclass(frozen=True)
class Backbone:
    """A network of the page, and the pooling that its rows use.

    Attributes:
        load: (data pack, cache, seed) → the network; the seed matters for networks that the harness trains.
        width: features of its embedding, and the target size of "one more layer as wide as the embedding".
        sizes: target sizes T of the search: of the convolutional networks ¼, 2 and 16 times the embedding's width.
            The paper's (512, 8192, 24576; Table 2) are ¼, 4 and 12 times that of its ResNet-50; ours hold the sizes
            64, 512 and 4096 at which the page scales V1a's candidates, so that rows share features.
        unit: how many of its blocks make one unit.
        patterns: of its taps.
    """

    load: Callable[[Path, Path, int], Network]
    width: int
    sizes: tuple[int, ...]
    unit: int = 1
    patterns: tuple[str, ...] = Taps().patterns


def _packed(name: str, pixels: int) -> Callable[[Path, Path, int], Network]:
    def load(data: Path, cache: Path, seed: int) -> Network:
        return pack_network(name, data, pixels=pixels)

    return load


def _transformer(data: Path, cache: Path, seed: int) -> Network:
    return vision_transformer(data / DATA["tiny_imagenet"], seed, cache)[0]


BACKBONES: dict[str, Backbone] = {
    "V1a": Backbone(_packed("V1a", 128), 256, (64, 512, 4096), 2),
    "V1b": Backbone(_packed("V1b", 128), 512, (128, 1024, 8192), 2),
    "R20": Backbone(_packed("R20", 32), 64, (16, 128, 1024)),
    "R56": Backbone(_packed("R56", 32), 64, (16, 128, 1024)),
    "TViT": Backbone(_transformer, 96, (64, 512, 4096), patterns=TAPS),
}
"""MobileNets see 128 × 128 pixels, the CIFAR ResNets and the transformer 32 × 32."""


@dataclass(frozen=True)
class Place:
    """What an arm is measured on: names of a network and a task, and the seed of rows and folds."""

    network: str
    task: str
    seed: int


Compute = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Arm:
    """Something to measure at a place.

    Attributes:
        name: its folder in the cache.
        version: raised whenever the function may give other values.
        compute: (bench, place, **parameters) → JSON values by name; accuracies in percentage points.
        reads: (bench, place, parameters) → fingerprints of what it reads beside the network and rows of its place.
    """

    name: str
    version: int
    compute: Compute = field(repr=False)
    reads: Callable[[Bench, Place, Mapping[str, Any]], Sequence[str]] = field(default=lambda *_: (), repr=False)


class Bench:
    """Networks, tasks, seeds and the cache of a row's run.

    Args:
        context: of the row.
        tasks: their names, in order.
        backbones: by name.
        rows: (task, data pack, seed) → the task's rows, parts ``train`` and ``test``.
        kinds: of the tasks.
    """

    def __init__(
        self,
        context: Context,
        *,
        tasks: Sequence[str] = T12,
        backbones: Mapping[str, Backbone] | None = None,
        rows: Callable[[str, Path, int], Manifest] = task,
        kinds: Mapping[str, str] = KINDS,
    ) -> None:
        self.context, self.tasks, self.seeds = context, tuple(tasks), tuple(context.seeds)
        self.backbones = dict(BACKBONES if backbones is None else backbones)
        self._rows, self._kinds = rows, kinds
        self._networks: dict[tuple[str, int], Network] = {}
        self._sample: Sample | None = None
        self._keys: dict[tuple[str, int, Place, str], str] = {}  # asked for often, and rendered rows are slow to read

    def kind_of(self, name: str) -> str:
        """``near``, ``characters`` or ``structured``."""
        return self._kinds[name]

    def network(self, name: str, seed: int = 0) -> Network:
        """A network, loaded (or trained) once."""
        key = (name, seed)
        if key not in self._networks:
            network = self.backbones[name].load(self.context.data, self.context.cache, seed)
            self._networks[key] = network.to(self.context.device)
        return self._networks[key]

    def rows(self, name: str, seed: int) -> Manifest:
        """The rows of a task."""
        return self._rows(name, self.context.data, seed)

    def sample(self, place: Place) -> Sample:
        """The rows of a place with their features; the last one is kept, for arms in a row ask for the same."""
        if self._sample is None or self._sample.place != place:
            self._sample = Sample(self, place)
        return self._sample

    def measure(self, arm: Arm, network: str, task: str, seed: int, **parameters: Any) -> dict[str, Any]:
        """The arm's value there: from the cache, or measured now and kept; awaited where another run measures it.

        Args:
            arm: what to measure.
            network, task, seed: the place.
            parameters: plain JSON values; part of the key.
        """
        return self._value(arm, Place(network, task, seed), parameters)

    def over_seeds(self, arm: Arm, network: str, task: str, **parameters: Any) -> list[dict[str, Any]]:
        """The arm's values there by seed: see :meth:`measure`."""
        self.ahead(arm, [Place(network, task, seed) for seed in self.seeds], **parameters)
        return [self.measure(arm, network, task, seed, **parameters) for seed in self.seeds]

    def ahead(self, arm: Arm, places: Iterable[Place], **parameters: Any) -> None:
        """Measure the arm where it is not known and no other run is measuring it."""
        some, told = list(places), self.told(arm.name)
        for number, place in enumerate(some):
            with contextlib.suppress(Timeout):
                self._value(arm, place, parameters, patience=0)
            told(number + 1, len(some))

    def unknown(self, arm: Arm, places: Iterable[Place], **parameters: Any) -> list[Place]:
        """The places where the arm is not measured yet."""
        return [each for each in places if self._kept(self._path(arm, each, parameters)) is None]

    def told(self, what: str) -> Callable[[int, int], None]:
        """Something that is called with (done, total) of what takes minutes or more inside the row."""
        within = self.context.within
        return (lambda done, total: None) if within is None else partial(within, what)

    def _value(self, arm: Arm, place: Place, parameters: Mapping[str, Any], patience: float = -1) -> dict[str, Any]:
        """The arm's value, waiting ``patience`` seconds (-1: for ever) for another run that measures it."""
        path = self._path(arm, place, parameters)
        if kept := self._kept(path):
            return kept
        with alone(path, patience):
            return self._kept(path) or self._measured(path, arm, place, parameters)

    def _path(self, arm: Arm, place: Place, parameters: Mapping[str, Any]) -> Path:
        return self._folder(arm) / f"{self._key(arm, place, parameters)}.json"

    def _folder(self, arm: Arm) -> Path:
        return (self.context.arms or self.context.cache / "reproduce" / "arms") / arm.name

    def _kept(self, path: Path) -> dict[str, Any] | None:
        """What lies there; nothing where it is torn or was changed, by a bad copy, say: then it is measured again."""
        kept = read_json(path)
        if not isinstance(kept, dict) or not isinstance(kept.get("value"), dict) or not intact(kept):
            return None
        self._told_of(path, str(kept.get("device", "cpu")), float(kept.get("wall_s", 0.0)))
        return dict(kept["value"])

    def _measured(self, path: Path, arm: Arm, place: Place, parameters: Mapping[str, Any]) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        value = arm.compute(self, place, **parameters)
        value = dict(json.loads(json.dumps(value)))  # as it will be read again: JSON knows no tuples
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        about = {"arm": arm.name, "version": arm.version, **asdict(place), "device": self.context.device}
        write_json(path, sealed({**about, "parameters": dict(parameters), "value": value, **spent}))
        self._told_of(path, self.context.device, spent["wall_s"])
        return value

    def _told_of(self, path: Path, device: str, seconds: float) -> None:
        self.context.measured_on.add(device)
        self.context.arm_seconds[path.stem] = seconds

    def _key(self, arm: Arm, place: Place, parameters: Mapping[str, Any]) -> str:
        asked = (arm.name, arm.version, place, canonical_json(dict(parameters)))
        if asked not in self._keys:
            shape = self.backbones[place.network]
            self._keys[asked] = digest(
                arm.name,
                str(arm.version),
                asked[-1],
                canonical_json([place.seed, FOLDS, shape.width, list(shape.sizes), _STORED]),
                self.network(place.network, place.seed).fingerprint,
                self.rows(place.task, place.seed).fingerprint,
                *arm.reads(self, place, parameters),
            )[:24]
        return self._keys[asked]


class Sample:
    """The rows of one place: labels, folds, and features by tap and size, read when asked for.

    Args:
        bench: of the place.
        place: network, task and seed.
    """

    def __init__(self, bench: Bench, place: Place) -> None:
        self.bench, self.place = bench, place
        self.network = bench.network(place.network, place.seed)
        self.backbone = bench.backbones[place.network]
        rows = bench.rows(place.task, place.seed)
        self.parts = {"train": rows.part("train"), "test": rows.part("test")}
        self._held: dict[tuple[str, str], Tensor] = {}

    @cached_property
    def responses(self) -> dict[str, Response]:
        """Labels by part."""
        out = {}
        for name, part in self.parts.items():
            out[name] = Response.of(part.labels.kind, part.labels.classes, part.labels.values)
        return out

    @property
    def train(self) -> Response:
        """Labels of the training rows."""
        return self.responses["train"]

    @cached_property
    def folds(self) -> Tensor:
        """(N,) the fold of each training row: stratified, by the seed, never through a group."""
        part = self.parts["train"]
        return torch.from_numpy(folds(part.labels, part.groups, FOLDS, self.place.seed))

    def blocks(self, taps: Taps) -> tuple[Block, ...]:
        """The blocks of some taps, in the network's order."""
        return plan(self.network, [taps]).blocks

    def layers(self, size: int) -> tuple[Block, ...]:
        """Every layer that Head2Toe takes, pooled to a target size."""
        return self.blocks(Taps(self.backbone.patterns, (size,)))

    def matrices(self, blocks: Sequence[Block], part: str = "train") -> dict[str, Matrix]:
        """Features by block, (rows, width) in float32."""
        absent = [block for block in blocks if (part, block.name) not in self._held]
        if absent:
            store = self._store(absent, part)
            for name, matrix in store.matrices([block.name for block in absent]).items():
                self._held[part, name] = matrix.rows(slice(0, store.rows))
        return {block.name: Dense(self._held[part, block.name]) for block in blocks}

    def _store(self, blocks: Sequence[Block], part: str) -> Store:
        """The sweep that holds the blocks: one of those that rows share where it does."""
        names = {block.name for block in blocks}
        own = Plan(tuple(blocks))
        wanted = next((plan for plan in self._shared if names <= {block.name for block in plan.blocks}), own)
        cache = self.bench.context.cache
        if wanted.width > WIDE:
            cache = cache / "reproduce" / "wide"
            _make_room(cache, QUOTA_BYTES - 2 * wanted.width * len(self.parts[part]))
        return sweep(self.network, self.parts[part], wanted, cache=cache, dtype=_STORED, workers=0)

    @cached_property
    def _shared(self) -> tuple[Plan, Plan]:
        """Every layer at all but the largest target size and at the embedding's width; every layer at the largest."""
        sizes = (*self.backbone.sizes[:-1], self.backbone.width, None)
        small = plan(self.network, [Taps(self.backbone.patterns, sizes), EMBEDDING])
        return small, Plan(self.layers(self.backbone.sizes[-1]))

    def design(self, matrices: Mapping[str, Matrix], part: str = "train") -> FeatureDesign:
        """Blocks side by side, one coefficient each an output."""
        return FeatureDesign(dict(matrices), self.responses[part].n_outputs)

    def accuracy(self, readout: Readout, test: FeatureDesign) -> float:
        """Per cent of the test rows whose most probable class is theirs."""
        return 100.0 * score("accuracy", self.responses["test"], readout.predict_proba(test))


def unit(matrices: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Every row of every block at unit norm (Head2Toe §3.3)."""
    return {name: UnitRows(matrix) for name, matrix in matrices.items()}


def points(value: float) -> float:
    """A share as percentage points."""
    return 100.0 * float(value)


def seeds_gate(seeds: Sequence[int], needed: int = SEEDS) -> tuple[GateReport, ...]:
    """No gate where every seed was run; else one that leaves the row *not run*, whatever its clauses say."""
    if len(seeds) >= needed:
        return ()
    message = f"{len(seeds)} of {needed} seeds were run"
    return (GateReport("seeds", "not run", f"{needed} seeds", {"seeds": float(len(seeds))}, message),)


def _make_room(cache: Path, room: int) -> None:
    """Delete the parts written longest ago until no more than ``room`` bytes are left."""
    found = entries(cache)
    total = sum(entry.nbytes for entry in found)
    for entry in found:
        if total <= max(0, room):
            break
        shutil.rmtree(entry.path, ignore_errors=True)
        total -= entry.nbytes
