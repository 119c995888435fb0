"""Error bars of `tangent-gp` on regression sets whose inputs shift, over the 20 standard splits of each.

Of a split's training rows those whose first input lies below its median are the source, the others the target. A
network of two hidden tanh layers of 100 is trained on the source (2,000 steps of Adam on 64 rows, the rate falling by a
cosine), inputs in units of the training rows, targets in units of the source. Each method adapts it to ``--points``
target rows (all, where fewer) and is tested on the split's test rows from the same side of the median: ``tangent-gp``
on all hidden layers, the same with ``mode="activation"`` (Bayesian linear regression on the last layer), ``probe``, and
the network as it is.

``rmse`` is in units of the source's deviation of y, ``coverage`` the share of test rows inside the 90 % interval over
all splits, ``nll`` the mean of −log N(y; mean, variance) in the same units, ``cpu_s`` the CPU-seconds of one ``adapt``
from an empty store. Differences are paired: the same split, the same network; intervals are 95 %, those over all sets
clustered by set (the splits of one set share their rows, so an interval over splits alone would be too narrow).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from common import Row, clustered_interval, empty_store, note, parsed, parser, report, timed
from regraft.data import joined, scan
from regraft.graft import Options, adapt
from regraft.heads import NINETY
from regraft.network import Network
from regraft.reproduce.linearized.networks import Descent, perceptron, trained

SETS = ("power-plant", "kin8nm", "concrete", "energy", "yacht")
METHODS: dict[str, dict[str, Any]] = {
    "tangent-gp": {"method": "tangent-gp", "theta2": ("0.*", "2.*")},
    "activation": {"method": "tangent-gp", "mode": "activation"},
    "probe": {"method": "probe"},
}
STEPS, BATCH, RATE, WIDTH = 2000, 64, 2e-3, 100
PEERS = ("activation", "probe", "no adaptation")


@dataclass(frozen=True, eq=False)
class Cell:
    """Rows of one split: inputs (n, D) and targets (n,) of the source, of the points to adapt to and of the test."""

    source: tuple[np.ndarray, np.ndarray]
    points: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--splits", type=int, default=20, help="of each set (default: %(default)s)")
    options.add_argument("--points", type=int, default=200, help="to adapt to (default: %(default)s)")
    options.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    arguments = parsed(options, "tabular")
    torch.set_num_threads(1)
    splits = min(arguments.splits, 2) if arguments.quick else arguments.splits
    began = time.process_time()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.sets}
    for split in range(splits):
        for name in arguments.sets:
            found[name].append(_measured(arguments.data / "tabular", name, split, arguments.points))
        note(f"split {split}: {time.process_time() - began:.0f} CPU-seconds so far")
    rows = [_row(name, cells) for name, cells in found.items()]
    rows.append(_row("all", [cell for cells in found.values() for cell in cells]))
    differences = {peer: _difference(found, peer) for peer in PEERS}
    columns = ("case", "rmse", *(f"rmse_{peer}" for peer in PEERS), "coverage", "coverage_activation")
    columns += ("nll", "nll_activation", "cpu_s", "cpu_s_probe")
    more = {"splits": splits, "points": arguments.points, "differences": differences}
    more["cpu_seconds"] = time.process_time() - began
    for peer, value in differences.items():
        note(f"rmse, tangent-gp − {peer}: {value['mean']:+.4f} [{value['low']:+.4f}, {value['high']:+.4f}]")
    report("error_bars", rows, arguments.json, columns=columns, **more)


def cell_of(folder: Path, name: str, split: int, points: int) -> Cell:
    """The rows of one split."""
    table = pq.read_table(folder / f"{name}.parquet")
    values = np.stack([np.asarray(column, dtype=np.float64) for column in table.columns], axis=1)
    tests = pq.read_table(folder / f"{name}_splits.parquet")["test"][split].as_py()
    test = np.zeros(len(values), dtype=bool)
    test[tests] = True
    x, y = values[:, :-1], values[:, -1]
    below = x[:, 0] < np.median(x[~test, 0])
    spread = x[~test].std(0)
    x = (x - x[~test].mean(0)) / np.where(spread > 0, spread, 1)
    source = ~test & below
    y = (y - y[source].mean()) / y[source].std()
    target = np.random.default_rng(split).permutation(np.flatnonzero(~test & ~below))[:points]

    def rows(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[index].astype(np.float32), y[index].astype(np.float32)

    return Cell(rows(np.flatnonzero(source)), rows(target), rows(np.flatnonzero(test & ~below)))


def source_network(cell: Cell, seed: int) -> Network:
    """Trained on the source alone."""
    x, y = (torch.from_numpy(part) for part in cell.source)
    epochs = math.ceil(STEPS / math.ceil(len(x) / BATCH))
    how = Descent(epochs=epochs, batch=BATCH, rate=RATE, kind="adam", anneal=True)
    return trained(perceptron((x.shape[1], WIDTH, WIDTH, 1), seed), x, y[:, None], how, seed)


def _measured(folder: Path, name: str, split: int, points: int) -> dict[str, Any]:
    """Every method on one split."""
    cell = cell_of(folder, name, split, points)
    network = source_network(cell, split)
    wanted = cell.test[1].astype(np.float64)
    with torch.no_grad():
        fit = network.forward(torch.from_numpy(cell.source[0]))[:, 0].numpy() - cell.source[1]
        plain = network.forward(torch.from_numpy(cell.test[0]))[:, 0].numpy().astype(np.float64)
    figures: dict[str, Any] = {"set": name, "split": split, "rows": len(wanted), "points": len(cell.points[0])}
    figures["source_mse"] = float(np.square(fit).mean())
    figures["no adaptation"] = {"rmse": _rmse(plain - wanted)}
    data = joined({"train": scan(cell.points), "test": scan(cell.test)}, name)
    options = Options(seed=split, workers=0)
    for label, settings in METHODS.items():
        with empty_store():
            run, seconds, _ = timed(partial(adapt, data, network, options=options, **settings))
        says = run.predict_proba(cell.test[0])
        off = says.probabilities[:, 0] - wanted
        figures[label] = {"rmse": _rmse(off), "cpu_s": seconds}
        if says.spread is not None:
            spread = says.spread[:, 0]
            figures[label]["inside"] = int((np.abs(off) <= NINETY * spread).sum())
            normal = np.square(off / spread) + np.log(2 * np.pi * np.square(spread))
            figures[label]["nll"] = float(normal.mean()) / 2
            figures[label]["width"] = float(2 * NINETY * spread.mean())
    return figures


def _rmse(off: np.ndarray) -> float:
    return float(np.sqrt(np.square(off).mean()))


def _row(name: str, cells: Sequence[dict[str, Any]]) -> Row:
    """Means over splits; coverage over all their test rows."""
    more: dict[str, Any] = {"cells": list(cells), "splits": len(cells)}
    more["source_mse"] = statistics.fmean(cell["source_mse"] for cell in cells)
    for label in ("tangent-gp", *PEERS):
        of = "" if label == "tangent-gp" else f"_{label}"
        for key in ("rmse", "nll", "width", "cpu_s"):
            if key in cells[0][label]:
                more[f"{key}{of}"] = statistics.fmean(cell[label][key] for cell in cells)
        if "inside" in cells[0][label]:
            inside = sum(cell[label]["inside"] for cell in cells)
            more[f"coverage{of}"] = inside / sum(cell["rows"] for cell in cells)
            more[f"coverage{of}_by_split"] = statistics.fmean(cell[label]["inside"] / cell["rows"] for cell in cells)
    return Row(name, more=more)


def _difference(found: dict[str, list[dict[str, Any]]], peer: str) -> dict[str, Any]:
    """RMSE of tangent-gp − the peer's, and as a share of the peer's; by set, and over all clustered by set."""
    measures: dict[str, Callable[[dict[str, Any]], float]] = {
        "": lambda cell: cell["tangent-gp"]["rmse"] - cell[peer]["rmse"],
        "share_": lambda cell: cell["tangent-gp"]["rmse"] / cell[peer]["rmse"] - 1,
    }
    value: dict[str, Any] = {}
    for key, measure in measures.items():
        cells = [cell for each in found.values() for cell in each]
        interval = clustered_interval([measure(cell) for cell in cells], [cell["set"] for cell in cells])
        value |= dict(zip((f"{key}mean", f"{key}low", f"{key}high"), interval))
        value[f"{key}by_set"] = {name: statistics.fmean(map(measure, each)) for name, each in found.items()}
    return value


if __name__ == "__main__":
    main()
