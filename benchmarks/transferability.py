"""Transferability scores beside the accuracy that they should foretell, over pretrained networks and tasks.

For every network and task one sweep of up to 1,000 training and 1,000 test rows stores the embedding and the logits.
The truth is the test accuracy of a linear head on the embedding, its form and penalty chosen by five folds of the
training rows. Every score is computed from the training rows alone. A task's *rank correlation* is the weighted
Kendall τ (Vigna, 2015; as in LogME) of a score with the truth over the networks; a row of the table has its mean over
tasks, with a 95 % interval by Student's t. ``times_sweep`` is the CPU-seconds of a score, with the decomposition that
it needs, over those of the sweep of the same training rows: the median over networks and tasks.

Features, what their sweep took and the truth are kept in the store, and taken from there by a later run, of a later
version too: to measure them again, name another folder by ``REGRAFT_CACHE``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import Row, note, parsed, parser, report, timed
from regraft.data import Manifest, folds, joined
from regraft.diagnose import SCORES, Estimate, Ranking, rank_models, scores, weighted_kendall
from regraft.diagnose.transfer.reliability import PATH, kept
from regraft.features import Taps, cache_root, plan, sweep
from regraft.files import canonical_json, digest, read_json, write_json
from regraft.heads import Response, score, solve
from regraft.linear import Dense, FeatureDesign
from regraft.network import Network, load
from regraft.reproduce.sources import pack_network
from regraft.reproduce.tasks import task

TASKS = ("flowers5", "vww", "tiny20", "cifar10", "usps", "fashion", "pos-x", "count")
BACKBONES: dict[str, tuple[str, int | None, int | None]] = {
    "V1a": ("V1a", 128, None),
    "V1b": ("V1b", 128, None),
    "V2": ("V2", 128, None),
    "BIRD": ("BIRD", 128, None),
    "R20": ("R20", 32, None),
    "R56": ("R56", 32, None),
    "fashion-resnet": ("regraft/fashion-resnet", None, None),
    "V1a random": ("V1a", 128, 0),
}
"""Name of the network, pixels, seed of random weights."""
ROWS, FOLDS = 1000, 5


@dataclass(frozen=True, eq=False)
class Cell:
    """A network on a task: features, source probabilities, CPU-seconds of the sweep of the training rows (NaN where it
    is not known what they were) and the file of these."""

    embedding: Mapping[str, Tensor]
    source: Mapping[str, Tensor]
    seconds: float
    note: Path


@lru_cache(maxsize=2)
def rows_of(name: str, data: Path) -> Manifest:
    """Up to 1,000 training rows (seed 0) and 1,000 test rows of a task."""
    whole = task(name, data, 0)
    test = whole.part("test")
    return joined({"train": whole.part("train"), "test": test.take(range(min(len(test), ROWS)))}, name)


@lru_cache(maxsize=1)
def network_of(name: str, data: Path) -> Network:
    """A network of :data:`BACKBONES`."""
    known, pixels, random = BACKBONES[name]
    return load(known) if "/" in known else pack_network(known, data, pixels=pixels, random=random)


def swept(network: Network, manifest: Manifest) -> Cell:
    """Embedding and logits of all rows, from the store where they are there, with what their sweep took."""
    wanted = plan(network, [Taps(("embedding",), (None,)), Taps(("logits",), (None,))])
    folder = cache_root() / "transferability"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{digest(network.fingerprint, canonical_json(list(manifest.part('train').hashes)))}.json"
    embedding, source = {}, {}
    for name in ("train", "test"):
        store, taken, _ = timed(partial(sweep, network, manifest.part(name), wanted, workers=0))
        if name == "train" and store.computed_rows:  # of an interrupted sweep the rest, as if all rows took as long
            write_json(kept, {"cpu_s": taken * store.rows / store.computed_rows})
        values = {key.split("@")[0]: m.rows(slice(0, store.rows)) for key, m in store.matrices().items()}
        embedding[name] = values["embedding"].float()
        source[name] = values["logits"].double().softmax(1)
    seconds = float((read_json(kept) or {"cpu_s": math.nan})["cpu_s"])  # a whole store may lie there without its note
    return Cell(embedding, source, seconds, kept)


def truth_of(cell: Cell, manifest: Manifest, kept: Path) -> float:
    """Per cent of the test rows that a linear head on the embedding gets right; from ``kept`` where it lies there."""
    if kept.exists():
        return float(read_json(kept)["accuracy"])
    train, target = manifest.part("train"), manifest.part("train").target
    if target is None:
        raise ValueError(f"{manifest.name} has no labels")
    responses = {name: response_of(manifest.part(name)) for name in cell.embedding}
    designs = {
        name: FeatureDesign({"embedding": Dense(values)}, responses[name].n_outputs)
        for name, values in cell.embedding.items()
    }
    held = torch.from_numpy(folds(target, train.groups, FOLDS, 0))
    head = solve(designs["train"], responses["train"], folds=held, metric="accuracy", calibrate=False).readout
    accuracy = 100.0 * score("accuracy", responses["test"], head.predict_proba(designs["test"]))
    write_json(kept, {"accuracy": accuracy})
    return accuracy


def response_of(part: Manifest) -> Response:
    """The labels of a part."""
    if part.target is None:
        raise ValueError(f"{part.name} has no labels")
    return Response.of(part.target.kind, part.target.classes, part.target.values)


def measured(backbone: str, name: str, data: Path) -> tuple[dict[str, Any], dict[str, Estimate], Tensor]:
    """A cell's figures as JSON, its estimates and the labels of the training rows."""
    network, manifest = network_of(backbone, data), rows_of(name, data)
    cell = swept(network, manifest)
    accuracy = truth_of(cell, manifest, cell.note.with_suffix(".truth.json"))
    codes = response_of(manifest.part("train")).codes
    if codes is None:
        raise ValueError(f"{name} has no classes")
    began = time.process_time()
    every = scores(features=cell.embedding["train"], labels=codes, source=cell.source["train"])
    seconds = time.process_time() - began
    found = {each.name: each for each in every if isinstance(each, Estimate)}
    sweep_s = cell.seconds
    figures: dict[str, Any] = {"task": name, "backbone": backbone, "accuracy": accuracy, "sweep_s": sweep_s}
    figures |= {"rows": len(codes), "width": cell.embedding["train"].shape[1], "all_s": seconds}
    figures["scores"] = {
        key: {"value": e.value, "low": e.low, "high": e.high, "cpu_s": e.seconds, "times_sweep": e.seconds / sweep_s}
        for key, e in found.items()
    }
    note(f"{name}, {backbone}: {accuracy:.1f} %, sweep {sweep_s:.1f} s, scores {seconds:.2f} s")
    return figures, found, codes


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--keep", action="store_true", help="write what regraft rank says of scores")
    options.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    options.add_argument("--backbones", nargs="+", default=tuple(BACKBONES), choices=tuple(BACKBONES))
    arguments = parsed(options, "weights", "images")
    torch.set_num_threads(1)
    tasks, backbones = tuple(arguments.tasks), tuple(arguments.backbones)
    if arguments.quick:
        tasks, backbones = tasks[:2], ("V1a", "R20", "fashion-resnet", "V1a random")
    began = time.process_time()
    cells: dict[str, list[dict[str, Any]]] = {}
    orders: dict[str, dict[str, Ranking]] = {}
    for name in tasks:
        found = [measured(backbone, name, arguments.data) for backbone in backbones]
        cells[name] = [figures for figures, _, _ in found]
        orders[name] = {
            key: rank_models({b: e[key] for b, (_, e, _) in zip(backbones, found)}, labels=found[0][2])
            for key in SCORES
            if all(key in e for _, e, _ in found)
        }
    rows = [_row(key, cells, orders) for key in SCORES if all(key in order for order in orders.values())]
    rows.append(_together(cells))
    columns = ("case", "tau", "tau_low", "tau_high", "lost_points", "sure_pairs", "sure_right", "times_sweep")
    flat = [figures for each in cells.values() for figures in each]
    value = report(
        "transferability", rows, arguments.json, columns=columns, tasks=tasks, backbones=backbones, cells=flat,
        cpu_seconds=time.process_time() - began,
    )  # fmt: skip
    if arguments.keep:
        write_json(PATH, kept(value))


def _row(key: str, cells: Mapping[str, list[dict[str, Any]]], orders: Mapping[str, Mapping[str, Ranking]]) -> Row:
    """A score over all tasks."""
    values = [[cell["scores"][key]["value"] for cell in each] for each in cells.values()]
    truth = [[cell["accuracy"] for cell in each] for each in cells.values()]
    tau = weighted_kendall(scores=values, truth=truth)
    lost = [max(t) - t[v.index(max(v))] for v, t in zip(values, truth)]
    pairs, sure, right = 0, 0, 0
    for name, each in cells.items():
        accuracy = {cell["backbone"]: cell["accuracy"] for cell in each}
        for difference in orders[name][key].differences:
            pairs += 1
            sure += difference.real
            right += difference.real and accuracy[difference.better] > accuracy[difference.worse]
    times = [cell["scores"][key]["times_sweep"] for each in cells.values() for cell in each]
    more: dict[str, Any] = {"tau": tau.value, "tau_low": tau.low, "tau_high": tau.high}
    more["tau_by_task"] = dict(zip(cells, tau.each))
    more["lost_points"], more["lost_by_task"] = statistics.fmean(lost), dict(zip(cells, lost))
    more["sure_pairs"], more["sure_right"] = sure / pairs, right / sure if sure else None
    more["times_sweep"] = statistics.median(_known(times))
    return Row(key, more=more)


def _together(cells: Mapping[str, list[dict[str, Any]]]) -> Row:
    """What all scores take together, their decomposition once."""
    times = _known([cell["all_s"] / cell["sweep_s"] for each in cells.values() for cell in each])
    spread = {"times_sweep_low": min(times), "times_sweep_high": max(times)}
    return Row("all of them", more={"times_sweep": statistics.median(times), **spread})


def _known(times: list[float]) -> list[float]:
    """Those that are; NaN alone where none is."""
    return [value for value in times if math.isfinite(value)] or [math.nan]


if __name__ == "__main__":
    main()
