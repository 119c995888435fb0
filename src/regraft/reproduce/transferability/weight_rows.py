"""Rows tr-fig4 and tr-fig5a: where trained weights lie, and how fast they get there (Figs. 4 and 5a).

For distances every run has one protocol, the paper's rate and one length, for a longer run moves further. There is one
source of each kind, as in the paper (that of seed 0): three seeds draw heads, order of rows and the weights of what is
trained from scratch. Distances are those of the convolutions' weights; heads differ in shape and are left out. The
targets are digits and twenty classes of photographs, none of which is a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.diagnose import weight_distances
from regraft.diagnose.clusters import silhouette, tsne
from regraft.files import canonical_json, digest
from regraft.graft.loop.checkpoint import read
from regraft.graft.training.start import start
from regraft.network import Network
from regraft.reproduce.arms import BACKBONES, Arm, Backbone, Bench, Place, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, relabel
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.beginnings import random_weights
from regraft.reproduce.transferability.source_rows import FALLS, Load, bench_of, random_s4, s4_from
from regraft.reproduce.transferability.sources import target
from regraft.reproduce.transferability.tuned import CHOICE, PROTOCOL, TUNED, Search, choice, tuned
from regraft.reproduce.tuning import Cell, Regime
from regraft.reproduce.words import bound, share

__all__ = ["MEASURED", "RUN", "SOURCES", "TARGETS", "epochs_to"]

SOURCES = ("F", "C", "scratch")
TARGETS = ("mnist-600", "usps-600", "tiny20")
RUNS = 3  # seeds
REGIME = Regime(rates=(PROTOCOL,), lengths=(300,), falls=FALLS, nesterov=False, norms="trained")
SHARE = 0.9


# ------------------------------------------------------------------------------------------------ tr-fig4


def _first(how: Load) -> Load:
    """The source of seed 0 for every seed."""

    def load_first(data: Path, cache: Path, seed: int) -> Network:
        return how(data, cache, 0)

    return load_first


def _kept(bench: Bench, place: Place) -> Path:
    network, rows = bench.network(place.network, place.seed), bench.rows(place.task, place.seed)
    name = digest(canonical_json([asdict(REGIME), place.seed]), network.fingerprint, rows.fingerprint)[:24]
    return bench.context.cache / "reproduce" / "weights" / f"{name}.safetensors"


def _run(bench: Bench, place: Place) -> dict[str, Any]:
    whole = bench.rows(place.task, place.seed)
    begin = start(bench.network(place.network, place.seed), whole.part("train"), seed=place.seed)
    return tuned(begin, whole, REGIME, REGIME.cells[0], place.seed, keep=_kept(bench, place))


RUN = Arm("tr-weights", 1, _run)
"""What :func:`regraft.reproduce.transferability.tuned.tuned` gives; the weights lie beside it in the cache."""


def _weights(bench: Bench, place: Place) -> dict[str, Tensor]:
    """Those of a run; trained again where the cache was cleared of them."""
    path = _kept(bench, place)
    if not path.is_file():
        _run(bench, place)
    tensors, _ = read(path)
    return {name: value for name, value in tensors.items() if value.ndim == 4}


def run_clusters(context: Context) -> Result:
    """Three beginnings, three targets, three seeds: the distances of all 27 runs."""
    context.mini_only()
    seeds = context.seeds[:RUNS]
    networks = {
        "F": _first(s4_from("fashion_mnist")),
        "C": _first(s4_from("cifar10_jpeg75")),
        "scratch": random_s4("cifar10_jpeg75"),
    }
    bench = bench_of(replace(context, seeds=seeds), networks, TARGETS)
    places = [Place(name, task, seed) for name in SOURCES for task in TARGETS for seed in seeds]
    error: dict[str, float] = {}
    for number, place in enumerate(places):
        made = bench.measure(RUN, place.network, place.task, place.seed)
        error[_name(place)] = 100.0 - made["accuracy"]
        if context.progress:
            context.progress(number + 1, len(places))
    distances = weight_distances([_weights(bench, place) for place in places])
    names = [_name(place) for place in places]
    table = {name: [row] for name, row in zip(names, distances.tolist())}
    picture = dict(zip(names, tsne(distances).tolist()))
    notes = {"t-SNE": picture, "test error": error, "regime": asdict(REGIME)}
    return Result({"distance": table}, {}, seeds, seeds_gate(seeds, RUNS), notes)


def _name(place: Place) -> str:
    return f"{place.network}/{place.task}/{place.seed}"


def _table(result: Result) -> tuple[np.ndarray, list[list[str]]]:
    """Distances (runs, runs) and (source, target, seed) of each run."""
    return result.arm("distance")[:, 0], [name.split("/") for name in result.arms["distance"]]


def _groups(result: Result) -> Outcome:
    table, runs = _table(result)
    chosen = [index for index, run in enumerate(runs) if run[0] != "scratch"]
    found = silhouette(torch.from_numpy(table[np.ix_(chosen, chosen)]), [runs[i][0] for i in chosen])
    return bound(list(found.groups.values()), at_least=0.5, statistic="min", what="least silhouette of a source's runs")


def _nearest(result: Result) -> Outcome:
    """Every run of a source is nearer to each of the same source on another target than to each from scratch."""
    table, runs = _table(result)
    holds = [
        table[i, j] < table[i, k]
        for i, a in enumerate(runs)
        if a[0] != "scratch"
        for j, b in enumerate(runs)
        if b[0] == a[0] and b[1] != a[1]
        for k, c in enumerate(runs)
        if c[0] == "scratch" and c[1] == a[1]
    ]
    return share(holds, 1.0, what="same source nearer than same target")


def _interleaved(result: Result) -> Result:
    """Every run takes the name of one of another source."""
    table = result.arms["distance"]
    by_seed = sorted(table, key=lambda name: name.split("/")[::-1])
    return replace(result, arms={"distance": dict(zip(by_seed, table.values()))})


# ----------------------------------------------------------------------------------------------- tr-fig5a

SPEED: Mapping[str, Search] = {
    "V1a": Search(Regime((0.003, 0.01, 0.03), (300,), falls=FALLS, nesterov=False, norms="trained")),
    "S4": Search(Regime((0.003, 0.01, 0.03), (400,), falls=FALLS, nesterov=False, norms="trained")),
}
ON = ("flowers5", "tiny20")


def epochs_to(scores: list[float]) -> float:
    """Epochs until the training accuracy is :data:`SHARE` of its last value, between two epochs by a
    straight line from 0."""
    level = SHARE * scores[-1]
    before = 0.0
    for epoch, (last, now) in enumerate(pairwise([0.0, *scores])):
        if now >= level:
            before = epoch + (level - last) / (now - last) if now > last else float(epoch)
            break
    return before


def run_speed(context: Context) -> Result:
    """Two architectures, pretrained and not, on two targets: each by its own best rate, all of one length."""
    context.mini_only()
    backbones = {
        "V1a": BACKBONES["V1a"],
        "random V1a": Backbone(random_weights("V1a"), 256, (64,)),
        "S4": Backbone(s4_from("cifar10_jpeg75"), 256, (256,)),
        "random S4": Backbone(random_s4("cifar10_jpeg75"), 256, (256,)),
    }
    bench = Bench(context, tasks=ON, backbones=backbones, rows=target)
    arms: dict[str, dict[str, Any]] = {name: {} for name in backbones}
    chosen: dict[str, Any] = {}
    for number, (name, task) in enumerate((name, task) for name in backbones for task in ON):
        search = SPEED[name.removeprefix("random ")]
        cell: Cell = choice(bench, name, task, search)
        chosen[f"{name} on {task}"] = bench.measure(CHOICE, name, task, search.seeds[0], **search.parameters())
        runs = bench.over_seeds(TUNED, name, task, regime=asdict(search.regime), cell=asdict(cell))
        arms[name][task] = [epochs_to(made["score"]) for made in runs]
        if context.progress:
            context.progress(number + 1, len(backbones) * len(ON))
    return Result(arms, {}, bench.seeds, seeds_gate(bench.seeds), {"chosen": chosen})


def _faster(result: Result) -> Outcome:
    return all_of(
        [
            bound(
                result.arm(name) / result.arm(f"random {name}"),
                at_most=0.5,
                what=f"epochs of {name} over those from scratch",
            )
            for name in SPEED
        ]
    )


MEASURED: dict[str, Measured] = {
    "tr-fig4": Measured(run_clusters, {"a": _groups, "b": _nearest}, {"a": _interleaved, "b": _interleaved}),
    "tr-fig5a": Measured(
        run_speed,
        {"": _faster},
        {"": relabel({"V1a": "random V1a", "random V1a": "V1a", "S4": "random S4", "random S4": "S4"})},
    ),
}
