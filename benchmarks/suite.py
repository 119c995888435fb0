"""The evaluation suite: fixed pairs, rows, seeds and protocol; whatever methods exist, beside today's picks.

1,000 training rows (balanced by class, seeds 0, 1, 2), the named test rows, touched once per method and
seed; every choice by cross-validation on the 1,000. MobileNets see 128 × 128 pixels, the CIFAR ResNet
32 × 32: every image is resized whole, without a crop. Where 1,000 test rows are named they are the first
1,000 (the sets are shuffled); rendered test rows come from a seed of their own (of the
737,280 pictures of one shape, a training and a test draw share one or two by chance). Two tasks of sentences (all
test rows of SST-2, a tenth of Subj) stand apart from the means.

Methods that train the backbone, ours and LoRA by peft, are opted into by ``--trained``: they take minutes of CPU a
pair and seed. With ``--cache`` features, checkpoints and every result are kept there, so that an interrupted run, or
one with further methods, goes on.

One pass per pair and seed computes every tap that any method needs; its CPU seconds stand apart (`pass_cpu_s`), and a
method's `cpu_s` is what it takes beyond the pass. Every frozen method needs that one pass and no more, but for
`gradient` and `tangent-gp` (``--methods gradient tangent-gp``), whose further passes through the topmost block count as
their own.

    python benchmarks/suite.py [--quick] [--json [PATH]] [--pairs NAME …] [--trained [NAME …]] [--data FOLDER]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet
from sklearn.linear_model import LogisticRegressionCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from common import ENCODER, Row, clustered_interval, note, parsed, parser, report, sentence_encoder, table
from regraft.data import Manifest, joined, rendered, scan
from regraft.features import Taps, plan, sweep
from regraft.graft import METHODS, Features, Options, Select, Solve, adapt
from regraft.network import Network
from regraft.reproduce.sources import pack_network
from suite_lora import LORA, at_hand, lora
from suite_training import TRAINED, Measured, Trained, remembered

ROWS = 1000
SEEDS = (0, 1, 2)
RENDERED_TEST_SEED = 1_000_000
PICK = "sklearn-logistic"
TEXTS = ("sst2", "subj")
FROZEN = {name: recipe for name, recipe in METHODS.items() if recipe.train is None}
FROZEN["head2toe-tolerance-0"] = METHODS["head2toe"].tolerating(0.0)
DEFAULT = [name for name, recipe in FROZEN.items() if recipe.gradients is None]  # the others take minutes a pair
# The authors' protocol and ours at the one target size where theirs can be run whole.
FROZEN["head2toe-512"] = replace(
    METHODS["head2toe"], stages=(Features(Taps(sizes=(512,)), ("unit", "root-unit")), Select(tolerance=0.0), Solve())
)
FROZEN["head2toe-512-reference"] = replace(
    METHODS["head2toe"], stages=(Features(Taps(sizes=(512,)), ("unit",)), Select(solver="reference"), Solve())
)


@dataclass(frozen=True)
class Pair:
    """A backbone and a task; ``task`` is the cluster of its interval. What stands apart counts in no mean."""

    name: str
    network: str
    task: str
    kind: str
    random: int | None = None
    apart: bool = False

    @property
    def pixels(self) -> int:
        return 32 if self.network.startswith("R") else 128


def _pairs() -> tuple[Pair, ...]:
    kinds = {"count": "structured", "orientation": "structured", "position": "structured", "fashion": "far, grey"}
    tasks = {
        "v1": ("V1a", ("flowers5", "cifar10", "tiny50", "fashion", "count", "orientation", "position")),
        "r56": ("R56", ("flowers5", "tiny50", "fashion", "count")),
        "v2": ("V2", ("flowers5", "cifar10", "position")),
    }
    named = [
        Pair(f"{short}-{task}", network, task, kinds.get(task, "far" if short == "r56" else "near"))
        for short, (network, group) in tasks.items()
        for task in group
    ]
    control = Pair("control", "V1a", "position", "random weights, reported apart", random=0, apart=True)
    texts = [Pair(f"minilm-{task}", ENCODER, task, "text, reported apart", apart=True) for task in TEXTS]
    return (*named, control, *texts)


PAIRS = _pairs()
APART = {pair.name for pair in PAIRS if pair.apart}
QUICK = ("v1-flowers5", "v1-position")


def rows_of(task: str, data: Path, seed: int) -> Manifest:
    """The 1,000 training rows of a seed, and the task's test rows."""
    if task == "sst2":
        files = {part: scan(data / "text" / f"sst2_{part}.parquet") for part in ("train", "test")}
        return joined({"train": files["train"].limit(ROWS, seed), "test": files["test"]}, task)
    if task == "subj":  # no split of its own: the last tenth of its folds is the test part
        whole, folds = scan(data / "text" / "subj.parquet"), _column(data / "text" / "subj.parquet", "fold")
        parts = {"train": whole.take(np.flatnonzero(folds < 9)).limit(ROWS, seed)}
        return joined({**parts, "test": whole.take(np.flatnonzero(folds == 9))}, task)
    images = data / "images"
    if task in ("count", "orientation", "position"):
        name = "position-x" if task == "position" else task
        parts = {"train": rendered(name, ROWS, seed), "test": rendered(name, ROWS, RENDERED_TEST_SEED)}
        return joined(parts, task)
    if task == "tiny50":
        whole = scan(images / "tiny_imagenet")
        kept = whole.take(np.flatnonzero(whole.target.values < 50))
        return joined({"train": kept.part("train").limit(ROWS, seed), "test": kept.part("test")}, task)
    folder = {"cifar10": "cifar10_jpeg75", "fashion": "fashion_mnist"}.get(task, task)
    whole = scan(images / folder)
    test = whole.part("test")
    test = test if task == "flowers5" else test.take(range(ROWS))
    return joined({"train": whole.part("train").limit(ROWS, seed), "test": test}, task)


def _column(path: Path, name: str) -> np.ndarray:
    return parquet.read_table(path, columns=[name])[name].to_numpy()


def network_of(pair: Pair, data: Path) -> Network | None:
    """The pair's backbone; nothing where its package is not installed."""
    if pair.network != ENCODER:
        return pack_network(pair.network, data, pixels=pair.pixels, random=pair.random)
    return sentence_encoder()


def ours(method: str, rows: Manifest, network: Network, seed: int, cache: Path) -> Measured:
    """One of regraft's methods, from the store that the shared pass filled."""
    began = time.process_time()
    run = adapt(rows, network, method=FROZEN[method], options=Options(seed=seed, cache=cache, workers=0))
    seconds = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        size = run.save(Path(folder) / "run").record.artifact_bytes
    return Measured(run.record.scores["test"].value, seconds, size)


def peers() -> dict[str, Callable[[], Any]]:
    """What a user picks today, on the last layer's features."""
    return {
        PICK: lambda: make_pipeline(
            StandardScaler(),
            LogisticRegressionCV(
                Cs=10, cv=5, max_iter=2000, l1_ratios=(0,), scoring="accuracy", use_legacy_attributes=False
            ),
        ),
        "5-nearest": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier(5)),
    }


def _peer(make: Callable[[], Any], rows: Manifest, features: Mapping[str, np.ndarray]) -> Measured:
    labels = {part: rows.part(part).target.values for part in ("train", "test")}
    began = time.process_time()
    model = make().fit(features["train"], labels["train"])
    right = (model.predict(features["test"]) == labels["test"]).mean()
    seconds = time.process_time() - began
    last = model[-1]
    weights = last.coef_.size + last.intercept_.size if hasattr(last, "coef_") else features["train"].size
    return Measured(float(right), seconds, 4 * (weights + 2 * features["train"].shape[1]))


@dataclass(frozen=True)
class Arms:
    """What is measured on every pair, and where what is measured is kept."""

    frozen: Sequence[str]
    trained: Sequence[str]
    taus: Sequence[int]
    steps: int | None
    data: Path
    cache: Path

    def measure(self, pair: Pair, network: Network, seed: int) -> tuple[dict[str, Measured], dict[str, Any]]:
        """Every method on one pair and seed, and what the shared pass cost."""
        cache, folder = self.cache, self.cache / "suite" / pair.name / f"seed-{seed}"
        rows = rows_of(pair.task, self.data, seed)
        wanted = plan(network, [FROZEN[name].features.taps for name in ("probe", *self.frozen)])
        began = time.process_time()
        stores = {part: sweep(network, rows.part(part), wanted, cache=cache, workers=0) for part in ("train", "test")}
        seconds = time.process_time() - began
        # One row's cost from what was computed now: the test rows may stand in the store from another seed.
        computed = sum(store.computed_rows for store in stores.values())
        flops = sum(store.flops for store in stores.values())
        last = plan(network, [FROZEN["probe"].features.taps])
        features = {}
        for part in ("train", "test"):
            store = sweep(network, rows.part(part), last, cache=cache, workers=0)
            features[part] = next(iter(store.matrices().values())).rows(slice(0, store.rows)).numpy()
        calls = {name: lambda make=make: _peer(make, rows, features) for name, make in peers().items()}
        calls |= {name: lambda name=name: ours(name, rows, network, seed, cache) for name in self.frozen}
        results = {name: remembered(folder / f"{name}.json", call) for name, call in calls.items()}
        mine = [name for name in self.trained if name != LORA]
        results |= Trained(cache, folder, self.taus, self.steps).measure(mine, rows, network, seed)
        if LORA in self.trained:
            results[LORA] = remembered(folder / f"{LORA}.json", lambda: lora(rows, network, seed))
        cost = {
            "passes": 1,
            "pass_cpu_s": seconds * len(rows) / max(computed, 1) if computed else None,
            "pass_flops": flops * len(rows) // computed if computed else None,
            "train_rows": len(rows.part("train")),
            "test_rows": len(rows.part("test")),
            "taps": len(wanted.blocks),
            "features": sum(block.width for block in wanted.blocks),
        }
        return results, cost


def _row(pair: Pair, runs: Sequence[dict[str, Measured]], cost: Mapping[str, Any]) -> Row:
    arms = {
        method: {
            "accuracy": [run[method].accuracy for run in runs],
            "mean": float(np.mean([run[method].accuracy for run in runs])),
            "cpu_s": float(np.median([run[method].cpu_s for run in runs])),
            "stored_bytes": int(np.median([run[method].stored_bytes for run in runs])),
        }
        for method in runs[0]
    }
    ours_first = next(name for name in arms if name in FROZEN or name in METHODS)
    more = {"task": pair.task, "kind": pair.kind, "arms": arms, **cost}
    return Row(pair.name, arms[ours_first]["cpu_s"], PICK, arms[PICK]["cpu_s"], cost["pass_cpu_s"], None, more)


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean over pairs of each method and of its paired difference to today's pick, intervals clustered by task."""
    counted = [row for row in rows if row.case not in APART]
    if not counted:
        return []
    tasks = [row.more["task"] for row in counted]
    out = []
    for method in counted[0].more["arms"]:
        points = 100 * np.array([row.more["arms"][method]["mean"] for row in counted])
        pick = 100 * np.array([row.more["arms"][PICK]["mean"] for row in counted])
        mean, low, high = clustered_interval(points, tasks)
        gain, gain_low, gain_high = clustered_interval(points - pick, tasks)
        cost = [row.more["arms"][method]["cpu_s"] for row in counted]
        size = [row.more["arms"][method]["stored_bytes"] for row in counted]
        out.append(
            {
                "method": method,
                "accuracy": mean,
                "accuracy_low": low,
                "accuracy_high": high,
                f"minus {PICK}": gain,
                "low": gain_low,
                "high": gain_high,
                "cpu_s": float(np.median(cost)),
                "stored_bytes": int(np.median(size)),
                "pairs": len(counted),
                "tasks": len(set(tasks)),
            }
        )
    return out


def _accuracies(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {"pair": row.case, "kind": row.more["kind"]}
        | {method: round(100 * arm["mean"], 2) for method, arm in row.more["arms"].items()}
        | {"pass_cpu_s": row.more["pass_cpu_s"], "pass_gflops": (row.more["pass_flops"] or 0) / 1e9}
        for row in rows
    ]


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--pairs", nargs="*", default=(), metavar="NAME", help="some pairs only")
    options.add_argument("--seeds", nargs="*", type=int, default=(), help="some seeds only (default: 0 1 2)")
    options.add_argument("--methods", nargs="*", default=DEFAULT, choices=list(FROZEN), help="on the frozen backbone")
    options.add_argument(
        "--trained",
        nargs="*",
        default=(),
        choices=(*TRAINED, LORA),
        help=f"methods that train (minutes each; none by default); {LORA} needs peft",
    )
    options.add_argument("--taus", nargs="*", type=int, default=(), help="of head probing (default: the methods' own)")
    options.add_argument("--steps", type=int, help="of a training (default: the methods' own)")
    options.add_argument("--cache", type=Path, help="keep the features here (default: a folder that is deleted)")
    chosen = parsed(options, "weights", "images")
    names = chosen.pairs or (QUICK if chosen.quick else [pair.name for pair in PAIRS])
    unknown = [name for name in names if name not in {pair.name for pair in PAIRS}]
    if unknown:
        options.error(f"no pair is called {unknown[0]}; the pairs are {', '.join(p.name for p in PAIRS)}")
    if LORA in chosen.trained and not at_hand():
        options.error(f"{LORA}: peft is not installed")
    seeds = tuple(chosen.seeds) or (SEEDS[:1] if chosen.quick else SEEDS)
    with tempfile.TemporaryDirectory() as folder:
        cache = chosen.cache or Path(folder)
        arms = Arms(chosen.methods, chosen.trained, chosen.taus, chosen.steps, chosen.data, cache)
        found = [_measured(pair, seeds, arms) for pair in PAIRS if pair.name in names]
    rows = [row for row in found if row is not None]
    totals = summary(rows)
    report(
        "suite",
        rows,
        chosen.json,
        columns=("case", "ours_s", "peer", "peer_s", "ratio", "floor_s", "times_floor"),
        seeds=seeds,
        taus=list(chosen.taus) or "the methods' own",
        steps=chosen.steps or "the methods' own",
        training_rows=ROWS,
        summary=totals,
    )
    shown = (table(_accuracies(rows), list(_accuracies(rows)[0])), table(totals, list(totals[0]) if totals else []))
    for text in (*shown, f"clustered by task, {len(seeds)} seed(s)"):
        note(text) if chosen.json == "-" else print(f"\n{text}")


def _measured(pair: Pair, seeds: Sequence[int], arms: Arms) -> Row | None:
    network = network_of(pair, arms.data)
    if network is None:
        note(f"{pair.name}: not run: {pair.network} is not installed")
        return None
    runs, costs = [], []
    for seed in seeds:
        result, cost = arms.measure(pair, network, seed)
        runs.append(result)
        costs.append(cost)
        shown = ", ".join(f"{name} {100 * m.accuracy:.1f}" for name, m in result.items())
        note(f"{pair.name} seed {seed}: {shown}")
    return _row(pair, runs, next((c for c in costs if c["pass_cpu_s"]), costs[0]))


if __name__ == "__main__":
    main()
