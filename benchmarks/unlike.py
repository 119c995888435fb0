"""Do the error bars of classes tell inputs that are unlike the task's rows?

A network of the pack is adapted to 500 rows of a task by ``tangent-gp``, by the same with ``mode="activation"`` (the
last layer alone) and by scikit-learn's ``LogisticRegressionCV`` on the standardised last layer. Each is then shown 200
test rows of the task and 200 of every other set. ``auroc`` is the probability that a foreign row has a larger deviation
(of scikit-learn: a smaller largest probability) than one of the task: one half says nothing, one parts all pairs.
``flagged`` is the share of rows above the deviation that 99 of 100 held-out training rows stay below: of the task's own
test rows one in a hundred would be right. ``cpu_s``: CPU-seconds of one ``adapt`` from an empty store, of scikit-learn
beside the pass. Accuracy and log loss are those of the task's test rows. Intervals are 95 %, over task and foreign set
clustered by task.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss, roc_auc_score

from common import Row, clustered_interval, empty_store, note, parsed, parser, report, timed
from regraft.data import Manifest, joined, scan
from regraft.graft import adapt
from regraft.network import Network
from regraft.reproduce.sources import pack_network

SETS = ("flowers5", "cifar10_jpeg75", "fashion_mnist", "mnist", "usps", "vww")
NETWORKS = {"V1a": 128, "R20": 32}
METHODS: dict[str, dict[str, Any]] = {
    "tangent-gp": {"method": "tangent-gp"},
    "activation": {"method": "tangent-gp", "mode": "activation"},
}
ROWS, SHOWN = 500, 200
PEER = "scikit-learn"


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    options.add_argument("--tasks", nargs="+", default=SETS, choices=SETS)
    options.add_argument("--seeds", nargs="+", type=int, default=[0])
    given = parsed(options, "weights", "images")
    tasks = given.tasks[:1] if given.quick else given.tasks
    networks = given.networks[:1] if given.quick else given.networks
    cells = []
    for name in networks:
        network = pack_network(name, given.data, pixels=NETWORKS[name])
        for seed in given.seeds:
            for task in tasks:
                began = time.process_time()
                cells += measured(network, name, task, given.data, seed)
                note(f"{name}, {task}, seed {seed}: {time.process_time() - began:.0f} CPU-seconds")
    rows = [Row(cell["method"], more=cell) for cell in cells]
    columns = ("case", "network", "task", "seed", "accuracy", "nll", "cpu_s", "flagged", *SETS)
    value = report("unlike", rows, given.json, columns=columns, **{"means": means(cells), "differences": paired(cells)})
    for key in ("means", "differences"):
        for name, found in value[key].items():
            note(f"{name}: {found}")


def rows_of(task: str, data: Path, seed: int) -> Manifest:
    whole = scan(data / "images" / task)
    return joined({"train": whole.part("train").limit(ROWS, seed), "test": first(whole.part("test"))}, task)


def first(rows: Manifest) -> Manifest:
    """As many as are shown; the sets are shuffled."""
    return rows.take(range(SHOWN))


def measured(network: Network, name: str, task: str, data: Path, seed: int) -> list[dict[str, Any]]:
    """A cell for every method: its scores on the task, and the AUROC of every foreign set by its name."""
    rows = rows_of(task, data, seed)
    shown = {other: first(scan(data / "images" / other).part("test")) for other in SETS if other != task}
    truth = rows.part("test").target.values  # type: ignore[union-attr]
    found = []
    for method, how in METHODS.items():
        with empty_store():
            run, spent, _ = timed(partial(adapt, rows, network, seed=seed, **how))
        own = run.adapted.predict_proba(rows.part("test"))
        doubt = own.spread[:, 0]
        limit = run.record.figures["posterior"]["typical"]["0.99"]
        cell = {"flagged": float((doubt > limit).mean()), "cpu_s": spent, **scores(own.probabilities, truth)}
        for other, manifest in shown.items():
            foreign = run.adapted.predict_proba(manifest).spread[:, 0]
            cell |= {other: auroc(doubt, foreign), f"{other} flagged": float((foreign > limit).mean())}
        found.append({"method": method, "network": name, "task": task, "seed": seed, **cell})
    return [*found, {"method": PEER, "network": name, "task": task, "seed": seed, **peer(network, rows, shown)}]


def peer(network: Network, rows: Manifest, shown: dict[str, Manifest]) -> dict[str, Any]:
    train, test = rows.part("train"), rows.part("test")
    x = embedded(network, train)
    mean, spread = x.mean(0), x.std(0) + 1e-8
    began = time.process_time()
    model = LogisticRegressionCV(
        Cs=np.logspace(-5, 1, 7), max_iter=1000, l1_ratios=(0,), scoring="neg_log_loss", use_legacy_attributes=False
    ).fit((x - mean) / spread, train.target.values)  # type: ignore[union-attr]
    spent = time.process_time() - began
    own = model.predict_proba((embedded(network, test) - mean) / spread)
    cell = {"cpu_s": spent, **scores(own, test.target.values)}  # type: ignore[union-attr]
    for other, manifest in shown.items():
        cell[other] = auroc(-own.max(1), -model.predict_proba((embedded(network, manifest) - mean) / spread).max(1))
    return cell


def embedded(network: Network, rows: Manifest) -> np.ndarray:
    """The last layer's features of every row."""
    body, parts = network.without_head(), []
    for start in range(0, len(rows), 50):
        some = range(start, min(start + 50, len(rows)))
        with torch.no_grad():
            batch = network.preprocess.collate([network.preprocess(rows.inputs.read(row)) for row in some])
            parts.append(body.forward(batch))
    return torch.cat(parts).double().numpy()


def scores(probabilities: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    right = float((probabilities.argmax(1) == truth).mean())
    return {"accuracy": right, "nll": float(log_loss(truth, probabilities, labels=range(probabilities.shape[1])))}


def auroc(own: np.ndarray, foreign: np.ndarray) -> float:
    return float(roc_auc_score(np.r_[np.zeros(len(own)), np.ones(len(foreign))], np.r_[own, foreign]))


def values_of(cells: list[dict[str, Any]], method: str, what: str) -> list[tuple[str, float]]:
    """(task, value): of ``auroc`` one for every foreign set."""
    chosen = [cell for cell in cells if cell["method"] == method]
    if what != "auroc":
        return [(cell["task"], cell[what]) for cell in chosen]
    return [(cell["task"], cell[other]) for cell in chosen for other in SETS if other in cell]


def means(cells: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for method in (*METHODS, PEER):
        found[method] = {
            w: float(np.mean([v for _, v in values_of(cells, method, w)])) for w in ("auroc", "accuracy", "nll")
        }
        worst = [v for _, v in values_of(cells, method, "auroc")]
        found[method] |= {"least auroc": float(min(worst))}
    flagged = [cell["flagged"] for cell in cells if cell["method"] == "tangent-gp"]
    foreign = [v for c in cells if c["method"] == "tangent-gp" for k, v in c.items() if k.endswith(" flagged")]
    return {**found, "flagged by tangent-gp": {"own": float(np.mean(flagged)), "foreign": float(np.mean(foreign))}}


def paired(cells: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for what in ("auroc", "accuracy", "nll"):
        first = values_of(cells, "tangent-gp", what)
        for other in ("activation", PEER):
            second = values_of(cells, other, what)
            differences = [a - b for (_, a), (_, b) in zip(first, second)]
            names = ("mean", "low", "high")
            found[f"{what}, tangent-gp − {other}"] = dict(
                zip(names, clustered_interval(differences, [task for task, _ in first]))
            )
    return found


if __name__ == "__main__":
    main()
