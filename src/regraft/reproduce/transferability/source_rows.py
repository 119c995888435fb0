"""Rows tr-fig8b, tr-fig8cd and tr-fig9: an S4 from other labels, from a nearer or a farther source, from every stage of
a pretraining (Figs. 8b, 8c, 8d and 9).

Every source is trained as the harness trains its S4 (:data:`regraft.reproduce.transferability.sources.S4`); a random
one has the weights that the architecture draws and the pictures' normalisation of the source beside it. Each network
chooses its rate and length on the target from one grid (:mod:`regraft.reproduce.transferability.tuned`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import scan
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.outputs import logits
from regraft.network import Network, load
from regraft.reproduce.arms import Arm, Backbone, Bench, Place, points, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.packs import DATA
from regraft.reproduce.pieces import Measured, above, still
from regraft.reproduce.probe import probed
from regraft.reproduce.result import Result, relabel, shuffle_axis, swap
from regraft.reproduce.row import Context
from regraft.reproduce.sources import pack_network, supervised_source
from regraft.reproduce.tasks import some_classes
from regraft.reproduce.transferability.sources import S4, blank, by_colour, target
from regraft.reproduce.transferability.tuned import CHOICE, TUNED, Search, choice
from regraft.reproduce.tuning import Regime
from regraft.reproduce.words import about, greater, peak, series_correlation

__all__ = [
    "BIRDS",
    "EPOCHS",
    "FALLS",
    "MEASURED",
    "SEARCH",
    "STAGES",
    "Load",
    "bench_of",
    "random_s4",
    "s4_from",
    "tuned_table",
]

STAGES = (0, 1, 2, 4, 8, 16, 32, 64)
EPOCHS = max(STAGES)
FALLS = (2 / 3,)
SEARCH = Search(Regime(rates=(0.003, 0.01, 0.03), lengths=(200, 400), falls=FALLS, nesterov=False, norms="trained"))
"""Batches of 32: 10 and 21 epochs of 600 rows, 15 and 31 of tiny20's 400."""
BIRDS = ("n01855672 goose", "n02002724 black stork", "n02056570 king penguin", "n02058221 albatross")
PIXELS = 128  # of V2 and BIRD, whose figures are shown and not judged

Load = Callable[[Path, Path, int], Network]


def s4_from(pack: str) -> Load:
    """The S4 that the harness trains on a data set of the pack."""

    def load_source(data: Path, cache: Path, seed: int) -> Network:
        return supervised_source(data / DATA[pack], seed, cache)[0]

    return load_source


def random_s4(pack: str) -> Load:
    """An S4 with random weights before the preprocessing of the one trained on a data set."""

    def load_random(data: Path, cache: Path, seed: int) -> Network:
        return blank(s4_from(pack)(data, cache, seed), "s4", seed, {"classes": 10})

    return load_random


def _by_colour(data: Path, cache: Path, seed: int) -> Network:
    return S4.trained(by_colour(scan(data / DATA["cifar10_jpeg75"])), "cifar10-by-colour", seed, cache)


def _half(data: Path, cache: Path, seed: int, source: Any = S4, checkpoints: bool = False) -> Network:
    clothes = some_classes(scan(data / DATA["fashion_mnist"]), range(5))
    made: Network = source.trained(clothes, "fashion-0-4", seed, cache, checkpoints)
    return made


def _stage(epoch: int) -> Load:
    def load_stage(data: Path, cache: Path, seed: int) -> Network:
        source = S4.lasting(EPOCHS)
        _half(data, cache, seed, source, checkpoints=True)
        return load(str(source.folder("fashion-0-4", seed, cache) / "checkpoints" / f"epoch-{epoch:03d}"))

    return load_stage


def bench_of(context: Context, networks: Mapping[str, Load], tasks: Sequence[str]) -> Bench:
    """The bench of a row whose networks are S4s."""
    backbones = {name: Backbone(how, 256, (256,)) for name, how in networks.items()}
    return Bench(context, tasks=tuple(tasks), backbones=backbones, rows=target)


def tuned_table(bench: Bench, networks: Sequence[str], search: Search) -> tuple[dict[str, Any], dict[str, Any]]:
    """The test accuracy of each network by target and seed, and what was chosen."""
    arms: dict[str, Any] = {name: {} for name in networks}
    chosen: dict[str, Any] = {}
    total = len(bench.tasks) * len(networks)
    for number, (task, name) in enumerate((task, name) for task in bench.tasks for name in networks):
        cell = choice(bench, name, task, search)
        chosen[f"{name} on {task}"] = bench.measure(CHOICE, name, task, search.seeds[0], **search.parameters())
        run = partial(bench.measure, TUNED, name, task, regime=asdict(search.regime), cell=asdict(cell))
        arms[name][task] = [run(seed=seed)["accuracy"] for seed in bench.seeds]
        if bench.context.progress:
            bench.context.progress(number + 1, total)
    return arms, {"chosen": chosen, "regime": asdict(search.regime)}


# ---------------------------------------------------------------------------------------------- tr-fig8b


def run_labels(context: Context) -> Result:
    """Classes or colours as the source's labels."""
    context.mini_only()
    networks = {"class": s4_from("cifar10_jpeg75"), "colour": _by_colour, "scratch": random_s4("cifar10_jpeg75")}
    bench = bench_of(context, networks, ("tiny20",))
    arms, notes = tuned_table(bench, tuple(networks), replace(SEARCH, seeds=bench.seeds[:2]))
    return Result(arms, {}, bench.seeds, seeds_gate(bench.seeds), notes)


def _no_better(result: Result) -> Outcome:
    return about(result.one("colour"), result.one("scratch"), 2.0, names=("colour", "scratch"))


# --------------------------------------------------------------------------------------------- tr-fig8cd


def run_nearer(context: Context) -> Result:
    """Digits or clothes as the source, digits and other clothes as the targets."""
    context.mini_only()
    networks = {"M": s4_from("mnist"), "F 0-4": _half, "scratch": random_s4("mnist")}
    bench = bench_of(context, networks, ("usps-600", "fashion 5-9"))
    arms, notes = tuned_table(bench, tuple(networks), SEARCH)
    return Result(arms, {}, bench.seeds, seeds_gate(bench.seeds), {**notes, "shown": _shown(context)})


def _shown(context: Context) -> dict[str, float]:
    """Linear probes of V2 and BIRD on the birds of tiny_imagenet and on flowers5, seed 0."""
    seed = context.seeds[0]
    whole = scan(context.data / DATA["tiny_imagenet"])
    codes = [whole.target.classes.index(name) for name in BIRDS] if whole.target is not None else []
    rows = {"tiny birds": some_classes(whole, codes), "flowers5": target("flowers5", context.data, seed)}
    return {
        f"probe of {name} on {task}": probed(
            pack_network(name, context.data, pixels=PIXELS), manifest, context.cache, seed
        )
        for name in ("V2", "BIRD")
        for task, manifest in rows.items()
    }


def _nearer_wins(result: Result) -> Outcome:
    pairs = (("usps-600", "M", "F 0-4"), ("fashion 5-9", "F 0-4", "M"))
    return all_of(
        [
            greater(result.arm(near, [task])[0], result.arm(far, [task])[0], names=(f"{near} on {task}", far))
            for task, near, far in pairs
        ]
    )


# ----------------------------------------------------------------------------------------------- tr-fig9


def _own(bench: Bench, place: Place) -> dict[str, float]:
    """How well a stage knows its own task, by its own last layer."""
    network = bench.network(place.network, place.seed)
    clothes = some_classes(scan(bench.context.data / DATA["fashion_mnist"]), range(5)).part("test")
    rows = ManifestRows.of(network, clothes, workers=0)
    network.module.eval()
    right = logits(network.module, rows).argmax(1) == rows.labels
    return {"accuracy": points(float(right.double().mean()))}


OWN = Arm("tr-source-accuracy", 1, _own)


def run_epochs(context: Context) -> Result:
    """Every stage of one pretraining a seed."""
    context.mini_only()
    seeds = tuple(range(2 * len(context.seeds)))
    bench = bench_of(replace(context, seeds=seeds), {str(e): _stage(e) for e in STAGES}, ("cifar10-600",))
    by_stage, notes = tuned_table(bench, [str(e) for e in STAGES], SEARCH)
    source = [[bench.measure(OWN, str(e), bench.tasks[0], seed)["accuracy"] for e in STAGES] for seed in seeds]
    curve = np.array([by_stage[str(e)][bench.tasks[0]] for e in STAGES]).T.tolist()
    arms = {"target": {bench.tasks[0]: curve}, "source": {"fashion 0-4": source}}
    return Result(arms, {"epoch": list(STAGES)}, seeds, seeds_gate(seeds, 10), notes)


def _peak(above: Any) -> Callable[[Result], Outcome]:
    def check(result: Result) -> Outcome:
        curve = result.one("target")
        half = len(curve) // 2
        return peak(result.axis("epoch"), curve[:half], curve[half:], above=above, names=("epoch", "accuracy"))

    return check


def _source_rises(result: Result) -> Outcome:
    return series_correlation(result.axis("epoch"), result.one("source"), 0.8, names=("epoch", "source accuracy"))


MEASURED: dict[str, Measured] = {
    "tr-fig8b": Measured(
        run_labels,
        {"a": above("class", "scratch"), "b": above("class", "colour"), "c": _no_better},
        {"a": swap("class", "scratch"), "b": swap("class", "colour"), "c": relabel({"colour": "class"})},
    ),
    "tr-fig8cd": Measured(run_nearer, {"": _nearer_wins}, {"": swap("M", "F 0-4")}),
    "tr-fig9": Measured(
        run_epochs,
        {"a": _peak("first"), "b": _peak("last"), "c": _source_rises},
        {"a": still("target"), "b": still("target"), "c": shuffle_axis("epoch")},
    ),
}
