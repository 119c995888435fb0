"""Landscapes of one layer beside plain passes and the library loss-landscapes, and the Chebyshev surrogate.

CIFAR ResNet-20 with its real weights, 256 real images, one thread, CPU-seconds (the machine may be shared), float32.
Layers are counted from 0 (``conv1``) to 19 (the head). A turn times, one after the other, a plane by ours, 4 points by
plain passes (batches of 64, no gradients) and 4 by loss-landscapes 3.0.6 (its ``Loss`` on all 256 rows at once); of
the library nothing but the time is taken: its directions and grid are others. Put it on the path with ``--peer FOLDER``
(it is no dependency; without it that column is empty).

``point_s``: what one more point costs ours, from two planes of different size; ``once_s``: what is done once (the pass
that records, three plain points that check, products with the layer). ``point``: how many times as long a plain point
takes; ``library``: a point of the library's; ``plane_25`` and ``plane_200``: plain passes over ours for 25 × 25 and
200 × 200 points with everything done once counted, computed from those two. Ratios are medians over turns, the range
behind them. ``error``: the largest relative difference from plain passes on points off the grid's symmetry axes.

The surrogate: ``evaluations``: 40,000 over the points at which it computed the loss; ``time``: 40,000 plain points over
its time; ``error``: the largest error on fresh random points, as a share of the range of the loss over the span. Beside
the ResNet of ReLUs two networks without or with few kinks, 784-128-128-10 of tanh and of GELU, 40 steps into MNIST, all
weights moving on 256 rows: the loss is smooth there.
"""

from __future__ import annotations

import copy
import importlib
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from common import Row, note, parsed, parser, report, timed
from regraft.data import scan
from regraft.diagnose import Objective, plane, random_directions, surrogate
from regraft.diagnose.landscape import evaluate
from regraft.network import ArrayPreprocess, Network, from_module
from regraft.reproduce.sources import pack_network

ROWS, GRID = 256, 200 * 200
LAYERS = (
    ("mid: layer 9", "layer2.1.conv1.weight", 5),
    ("late: layer 17", "layer3.2.conv1.weight", 9),
    ("last convolution: 18", "layer3.2.conv2.weight", 13),
    ("head: 19", "linear.weight", 60),
    ("layer 8", "layer2.0.conv2.weight", 5),
    ("layer 16", "layer3.1.conv2.weight", 9),
)
SPANS = (
    ("all weights", "*", 0.1),
    ("layer 9", "layer2.1.conv1.weight", 0.5),
    ("layer 17", "layer3.2.conv1.weight", 1.0),
)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--peer", type=Path, help="a folder that holds the package loss_landscapes")
    options.add_argument("--repeats", type=int, default=3, help="turns (default: %(default)s)")
    options.add_argument("--parts", default="layers,surrogate", help="what to measure (default: %(default)s)")
    arguments = parsed(options, "weights", "images")
    torch.set_num_threads(1)
    network = pack_network("R20", arguments.data)
    inputs, codes = _rows(network, arguments.data)
    repeats, rows, parts = (1 if arguments.quick else arguments.repeats), [], arguments.parts.split(",")
    if "layers" in parts:
        library = _library(arguments.peer, network, inputs, codes)
        for case, select, points in LAYERS[:4] if arguments.quick else LAYERS:
            rows.append(_layer(case, Objective(network, inputs, codes, select=select), points, library, repeats))
            note(f"{case}: {rows[-1].more}")
    if "surrogate" in parts:
        for kind in (nn.Tanh, nn.GELU):
            objective = _smooth(kind, arguments.data)
            cost = _plain(objective)
            for span in (0.1, 0.3):
                rows.append(_surrogate(f"{kind.__name__} network, all weights", objective, span, cost))
                note(f"{rows[-1].case}: {rows[-1].more}")
        plain = _plain(Objective(network, inputs, codes, select="linear.weight"))
        for case, select, span in SPANS[1:] if arguments.quick else SPANS:
            rows.append(_surrogate(case, Objective(network, inputs, codes, select=select), span, plain))
            note(f"{case}: {rows[-1].more}")
    columns = ["case", "point_s", "once_s", "peer_s", "point", "library", "plane_25", "plane_200"]
    columns += ["evaluations", "time", "error"]
    flat = [Row(r.case, r.ours_s, r.peer, r.peer_s, None, r.error, r.more) for r in rows]
    report("landscape", flat, arguments.json, columns=columns, threads=1, rows_of_data=ROWS, unit="CPU-s")


def _rows(network: Network, data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    manifest = scan(data / "images" / "cifar10_jpeg75" / "test.parquet", kind="regression")
    if manifest.target is None:
        raise RuntimeError("the images have no labels")
    batch = network.preprocess.collate([network.preprocess(manifest.inputs.read(row)) for row in range(ROWS)])
    return batch, torch.as_tensor(manifest.target.values[:ROWS, 0]).long()


def _library(folder: Path | None, network: Network, inputs: torch.Tensor, codes: torch.Tensor) -> Any:
    """A call that evaluates 2 × 2 points by loss-landscapes, or nothing."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        peer = importlib.import_module("loss_landscapes")
        metrics = importlib.import_module("loss_landscapes.metrics")
    except ImportError:
        note("loss-landscapes is not there: its column stays empty")
        return None
    module = copy.deepcopy(network.module).eval()
    metric = metrics.Loss(nn.CrossEntropyLoss(), inputs, codes)

    def four() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return peer.random_plane(module, metric, distance=1, steps=2, deepcopy_model=True)

    return four


def _layer(case: str, objective: Objective, points: int, library: Any, repeats: int) -> Row:
    directions = random_directions(objective, 2, seed=0)
    some = torch.rand(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    ours, once, plains, theirs, errors = [], [], [], [], []
    short = evaluate(objective, directions.vectors, some, way="layer")  # warms up
    for _ in range(repeats):
        _, few, _ = timed(lambda: plane(objective, directions, points=2, way="layer"))
        made, many, _ = timed(lambda: plane(objective, directions, points=points, way="layer"))
        truth, plain, _ = timed(lambda: evaluate(objective, directions.vectors, some, way="plain"))
        peer = None if library is None else timed(library)[1]
        each = (many - few) / (points**2 - 4)
        ours.append(each)
        once.append(max(0.0, many - each * points**2))
        plains.append(plain / 4)
        if peer is not None:
            theirs.append(peer / 4)
        gap = ((short.losses - truth.losses) / truth.losses).abs()
        errors.append(max(made.error, float(gap.max())))
    more: dict[str, Any] = {"point_s": statistics.median(ours), "once_s": statistics.median(once), "points": points**2}
    ratios = {
        "point": [p / o for p, o in zip(plains, ours)],
        "library": [p / o for p, o in zip(theirs, ours)],
        "plane_25": [625 * p / (f + 625 * o) for p, o, f in zip(plains, ours, once)],
        "plane_200": [GRID * p / (f + GRID * o) for p, o, f in zip(plains, ours, once)],
        "library_200": [GRID * p / (f + GRID * o) for p, o, f in zip(theirs, ours, once)],
    }
    for name, values in ratios.items():
        more[name] = statistics.median(values) if values else None
        more[f"{name}_range"] = [min(values), max(values)] if values else None
    more["library_s"] = statistics.median(theirs) if theirs else None
    return Row(case, more["point_s"], "plain passes", statistics.median(plains), None, max(errors), more)


def _smooth(kind: type[nn.Module], data: Path) -> Objective:
    """The loss of a network of smooth units, 40 steps of training into MNIST."""
    manifest = scan(data / "images" / "mnist" / "train.parquet", kind="regression")
    if manifest.target is None:
        raise RuntimeError("the images have no labels")
    pictures = np.stack([np.asarray(manifest.inputs.read(row), np.float32).ravel() for row in range(1000)])
    x = torch.from_numpy((pictures - pictures.mean()) / pictures.std())
    codes = torch.as_tensor(manifest.target.values[: len(x), 0]).long()
    torch.manual_seed(0)
    width = x.shape[1]
    module = nn.Sequential(
        nn.Linear(width, 128), kind(), nn.Linear(128, 128), kind(), nn.Linear(128, 10)
    )  # fmt: skip
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(40):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), codes).backward()
        optimiser.step()
    network = from_module(module.eval(), ArrayPreprocess((width,)), name="smooth")
    return Objective(network, x[:ROWS], codes[:ROWS])


def _plain(objective: Objective) -> float:
    """CPU-seconds of a point by plain passes: the median of four."""
    vectors = random_directions(objective, 2, seed=0).vectors
    some = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    return statistics.median(timed(lambda: evaluate(objective, vectors, some, way="plain"))[1] for _ in range(4))


def _surrogate(case: str, objective: Objective, span: float, plain: float) -> Row:
    directions = random_directions(objective, 2, seed=0)
    made, seconds, _ = timed(lambda: surrogate(objective, directions, span=span))
    drawn = torch.rand(40, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    fresh = (2 * drawn - 1) * span
    truth = evaluate(objective, directions.vectors, fresh).losses
    error = float((made.at(fresh) - truth).abs().max()) / made.range
    more = {
        "span": span,
        "evaluations": GRID / made.evaluations,
        "evaluated": made.evaluations,
        "time": GRID * plain / seconds,
        "seconds": seconds,
        "held_out_error": made.relative,
        "attempts": [list(pair) for pair in made.attempts],
        "reached": made.reached,
        "range": made.range,
        "way": made.way,
        "fresh": len(fresh),
    }
    return Row(f"surrogate, {case}, span {span:g}", None, None, None, None, error, more)


if __name__ == "__main__":
    main()
