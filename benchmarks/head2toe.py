"""The whole fast Head2Toe search on synthetic features, beside what it replaces, in one process.

``--case search`` (the default): 1,000 rows, 52 layers, three target sizes (30,440, 457,600 and 1,070,160 features),
5 folds, two penalties at the first size and the better one at the others, nine fractions, both norm orders: 72 honest
cells (and what lies beyond an end of the grid that wins), the logistic cross-validation at the best one and the exact
refit. CPU and wall seconds, peak memory, accuracy in cross-validation and on 200 rows held out. Beside it, in turn:

* the paper's reference search (``select_reference``): whole at the smallest size with ``--reference`` (it takes half
  an hour), else, and at the larger sizes always, one step timed and the grid of 22,000 steps a fold *extrapolated*,
  heads not counted; and a loop of the same Adam steps that reads the rows in order, without gathering them;
* skglm's multi-task lasso (the group lasso of the squared loss) at one penalty, where it is installed and not
  with ``--quick``;
* scikit-learn's LogisticRegressionCV on the last layer, and LogisticRegression on all layers, of the smallest size;
* the pass that the search follows: a forward pass of ResNet-50 (random weights) at 224 pixels, timed on 64 rows and
  multiplied up to as many as are searched, without decoding;
* ``overlap``: how much of the top 1 % by exact float32 scores the scores from a sampled Gram find.

``--case wide``: 397 classes × 1,696,552 features of 1,191 rows, stored in bfloat16. ``--case tall``: 10,000 rows ×
200,000 features. ``--case vast``: 50,000 rows × 500,000 features, in files of 50 GB in ``--folder``, which are removed
again. All the search alone; of peak memory, what is not of a file. ``--case kept``: a product and its transpose with a
tenth of the features of ``tall``, from the temporary file in which a search keeps what memory has no room for, beside
reading them from all features.

Run with OMP_NUM_THREADS=1 for figures of one core.
"""

from __future__ import annotations

import importlib.util
import resource
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from torch import Tensor
from transformers import ResNetConfig, ResNetModel

from common import Row, note, parser, report, timed
from regraft.heads import (
    TOLERANCE,
    WEAKER,
    WIDER,
    Response,
    Selection,
    kept_design,
    relevance,
    select,
    select_reference,
)
from regraft.heads.l2.dual import dual_ridge, gram_scale
from regraft.heads.l2.fitters import wide_enough
from regraft.heads.selection import foldwise
from regraft.heads.selection.kept import by_block, by_name
from regraft.linear import Blocks, Cast, Dense, FeatureDesign, UnitRows

LAYERS = 52
SIZES = (30_440, 457_600, 1_070_160)
QUICK_SIZES = (3_016, 20_020, 80_080)
STEPS = (500 + 5000) * 2 * 2  # two learning rates, two penalties
FOLDS = 5
STRENGTH = 1e-2
HELD_OUT = 200
CASES = {"wide": (1_191, 1_696_552, 397), "tall": (10_000, 200_000, 10), "vast": (50_000, 500_000, 10)}
QUICK_CASES = {"wide": (300, 80_080, 60), "tall": (4_400, 3_016, 10), "vast": (4_400, 3_016, 10)}
PASS_ROWS, PASS_BATCH = 64, 16


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--classes", type=int, help="classes (default: 10, or the case's own)")
    options.add_argument("--case", choices=("search", *CASES, "kept"), default="search", help="default: %(default)s")
    options.add_argument("--reference", action="store_true", help="run the reference whole at the smallest size")
    options.add_argument("--folder", help="of the files of --case vast (default: that of temporary files)")
    arguments = options.parse_args()
    if arguments.case == "search":
        rows = search_case(arguments.quick, arguments.classes or 10, arguments.reference)
    elif arguments.case == "kept":
        rows = [kept_case(arguments.quick)]
    else:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            files = Path(folder) if arguments.case == "vast" else None
            rows = [large_case(arguments.case, arguments.quick, arguments.classes, files)]
    report("head2toe", rows, arguments.json)


@dataclass(frozen=True)
class Task:
    """Rows to search on and rows held out, by size."""

    codes: np.ndarray
    folds: np.ndarray
    response: Response
    designs: dict[str, FeatureDesign]
    held_codes: np.ndarray
    held: dict[str, FeatureDesign]

    @classmethod
    def draw(
        cls,
        rows: int,
        sizes: tuple[int, ...],
        classes: int,
        dtype: torch.dtype,
        held: int = HELD_OUT,
        files: Path | None = None,
    ) -> Task:
        codes = np.arange(rows + held) % classes
        both = {str(size): features(size, codes, classes, dtype, files) for size in sizes}

        def part(blocks: dict[str, Tensor], place: slice) -> FeatureDesign:
            return FeatureDesign({name: UnitRows(Dense(block[place])) for name, block in blocks.items()}, classes)

        return cls(
            codes[:rows],
            np.random.default_rng(0).permutation(rows) % FOLDS,
            Response.of("multiclass", [str(c) for c in range(classes)], codes[:rows]),
            {size: part(blocks, slice(0, rows)) for size, blocks in both.items()},
            codes[rows:],
            {size: part(blocks, slice(rows, rows + held)) for size, blocks in both.items()},
        )

    def accuracy(self, found: Selection) -> float:
        """Of the selection's head on the rows held out."""
        kept = kept_design(self.held[found.size], found.columns, found.normalised)
        wide = {name: Cast(matrix, torch.float32) for name, matrix in kept.matrices.items()}
        probabilities = found.solution.readout.predict_proba(FeatureDesign(wide, kept.n_outputs))
        return float((probabilities.argmax(1).numpy() == self.held_codes).mean())


def features(
    total: int, codes: np.ndarray, classes: int, dtype: torch.dtype, files: Path | None = None
) -> dict[str, Tensor]:
    """Rectified random mixtures of 60 factors that know the class, under as much noise, by layer."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(len(codes), 60, generator=generator)
    hidden += 0.5 * torch.randn(classes, 60, generator=generator)[torch.as_tensor(codes)]
    blocks = {}
    for layer in range(LAYERS):
        width = total // LAYERS + (layer < total % LAYERS)
        if files is None:
            out = torch.empty(len(codes), width, dtype=dtype)
        else:
            path, entries = str(files / f"{layer}"), len(codes) * width
            out = torch.from_file(path, shared=True, size=entries, dtype=dtype).view(-1, width)
        for start in range(0, width, 4096):
            part = out[:, start : start + 4096]
            mixed = hidden @ torch.randn(60, part.shape[1], generator=generator) / 8
            for row in range(0, len(codes), 16_384):
                some = part[row : row + 16_384]
                noise = torch.randn(some.shape, generator=generator)
                some.copy_(noise.add_(mixed[row : row + 16_384]).clamp_min_(0))
        blocks[f"layer{layer:02d}"] = out
    return blocks


def peak() -> float:
    """GiB that the process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextmanager
def watched() -> Iterator[list[float]]:
    """GiB of the process that are not of a file, ten times a second; none where the system does not say."""
    status, found, stop = Path("/proc/self/status"), [], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            found.extend(
                int(line.split()[1]) / 2**20 for line in status.read_text().splitlines() if line.startswith("RssAnon")
            )

    watcher = threading.Thread(target=watch)
    if status.exists():
        watcher.start()
    try:
        yield found
    finally:
        stop.set()
        if watcher.is_alive():
            watcher.join()


def chosen(found: Selection) -> str:
    kept = sum(map(len, found.columns.values()))
    norms = "recomputed" if found.normalised else "as they were"
    return f"T={found.size} F={found.fraction} λ={found.strength} {found.form}, norms {norms}, {kept} features"


def searched(task: Task, case: str) -> Row:
    """The fast search, timed."""
    before = peak()
    asked = {"metric": "accuracy", "wider": WIDER, "weaker": WEAKER, "tolerance": TOLERANCE}
    with watched() as own:
        found, cpu, wall = timed(lambda: select(task.designs, task.response, folds=task.folds, **asked))
    cell = next(c for c in found.table if c.chosen)
    note(f"{case}: {cpu:.2f} CPU-s, {wall:.2f} s, peak {peak():.2f} GiB, chose {chosen(found)}")
    if own:
        note(f"of the peak, not of a file: {max(own):.2f} GiB")
    more = {
        "cpu_s": cpu,
        "wall_s": wall,
        "features_gib": before,
        "peak_gib": peak(),
        "peak_not_of_a_file_gib": max(own, default=None),
        "cells": len(found.table),
        "chosen": chosen(found),
        "cross_validated": [cell.score, cell.standard_error],
        "held_out": task.accuracy(found),
        "stored_bytes": cell.stored_bytes,
    }
    return Row(case, cpu, more=more)


def large_case(name: str, quick: bool, classes: int | None, files: Path | None) -> Row:
    rows, width, own = (QUICK_CASES if quick else CASES)[name]
    task = Task.draw(rows, (width,), classes or own, torch.bfloat16, classes or own, files)
    return searched(task, f"{name}: {rows} rows × {width} features, {classes or own} classes, CPU-s")


def kept_case(quick: bool) -> Row:
    """Products with kept columns that memory has no room for."""
    rows, width, classes = (QUICK_CASES if quick else CASES)["tall"]
    (design,) = Task.draw(rows, (width,), classes, torch.bfloat16, classes).designs.values()
    drawn = np.sort(np.random.default_rng(0).choice(width, width // 10, replace=False))
    columns = by_block(torch.from_numpy(drawn), design.widths)
    with mock.patch.object(foldwise, "HELD_BYTES", 1):
        (filed,), made, _ = timed(lambda: foldwise.gathered(design, [columns], normalise=False))
    note(f"the file was made in {made:.2f} CPU-s")
    seconds, products = [], []
    for kept in (filed, kept_design(design, columns, normalise=False)):
        kept = wide_enough(kept)
        weights = torch.randn(kept.width, classes, generator=torch.Generator().manual_seed(0))
        blocks = Blocks({name: part.T.contiguous() for name, part in by_name(weights.T, kept.widths).items()})
        found = [timed(lambda kept=kept, blocks=blocks: kept.adjoint(kept.apply(blocks))) for _ in range(3)]
        seconds.append(float(np.median([cpu for _, cpu, _ in found])))
        products.append(torch.cat(list(found[0][0].values())))
    off = float((products[0] - products[1]).abs().max() / products[1].abs().max())
    case = f"kept: a tenth of {rows} rows × {width} features, CPU-s"
    return Row(case, seconds[0], "read when asked for", seconds[1], error=off, more={"file_cpu_s": made})


def search_case(quick: bool, classes: int, reference: bool) -> list[Row]:
    sizes = QUICK_SIZES if quick else SIZES
    task = Task.draw(300 if quick else 1000, sizes, classes, torch.float32)
    note(f"{len(task.codes)} rows, {classes} classes, {torch.get_num_threads()} threads, {peak():.1f} GiB of features")
    ours = searched(task, "whole search, CPU-s")
    steps = {size: adam_step(design, task.response, gather=True) for size, design in task.designs.items()}
    plain = {size: adam_step(design, task.response, gather=False) for size, design in task.designs.items()}
    rows = [
        Row(ours.case, ours.ours_s, f"{name} (extrapolated)", sum(step.values()) * STEPS * FOLDS, more=more)
        for name, step, more in (
            ("reference grid", steps, {**ours.more, "adam_step_s": steps}),
            ("no-gather Adam", plain, {"adam_step_s": plain}),
        )
    ]
    smallest = str(sizes[0])
    if reference:
        rows.append(reference_row(task, smallest, ours.ours_s))
    if not quick:  # the peer compiles for ten seconds before it is timed
        rows.append(lasso_row(task, smallest))
    rows += library_rows(task, smallest, ours.ours_s)
    rows.append(pass_row(len(task.codes), ours.ours_s))
    rows.append(overlap_row(task.designs[str(sizes[-1] if quick else sizes[1])], task.response))
    return rows


def adam_step(design: FeatureDesign, response: Response, gather: bool) -> float:
    """Median CPU seconds of a step of the reference scorer on rows that are already normalised."""
    count = min(256, design.n_rows)
    features_, targets = design.dense(torch.arange(count)), response.codes[:count]
    weight = torch.zeros(design.width, response.n_outputs, requires_grad=True)
    optimiser = torch.optim.Adam([weight], lr=0.01)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:128]

    def step() -> None:
        optimiser.zero_grad()
        x, y = (features_[order], targets[order]) if gather else (features_[:128], targets[:128])
        norms = (weight.square().sum(1) + 1e-12).sqrt()
        loss = torch.nn.functional.cross_entropy(x @ weight, y) + 1e-3 * norms.sum()
        loss.backward()
        optimiser.step()

    step()
    return float(np.median([timed(step)[1] for _ in range(3)]))


def reference_row(task: Task, size: str, ours: float | None) -> Row:
    call = lambda: select_reference(  # noqa: E731
        {size: task.designs[size]}, task.response, folds=task.folds, metric="accuracy"
    )
    found, cpu, wall = timed(call)
    more = {"held_out": task.accuracy(found), "wall_s": wall, "chosen": chosen(found)}
    return Row(f"reference, whole, {size} features alone", ours, "select_reference", cpu, more=more)


def lasso_row(task: Task, size: str) -> Row:
    case = f"scores of {size} features"
    ours, cpu, _ = timed(lambda: relevance(task.designs[size], task.response, None, STRENGTH))
    if importlib.util.find_spec("skglm") is None:
        note("skglm is not installed: no group lasso of its own beside ours (pip install skglm)")
        return Row(case, cpu, "skglm (not installed)")
    from skglm.estimators import MultiTaskLasso  # an optional extra of this benchmark

    x = np.asfortranarray(task.designs[size].dense().numpy(), dtype=np.float64)
    y = np.eye(task.response.n_outputs)[task.codes]
    y = np.asfortranarray(y - y.mean(0))
    x -= x.mean(0)
    alpha = 0.1 * float(np.linalg.norm(x.T @ y, axis=1).max()) / len(x)
    model = MultiTaskLasso(alpha=alpha, tol=1e-4, fit_intercept=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MultiTaskLasso(alpha=alpha, tol=1e-4, fit_intercept=False).fit(x[:40, :60], y[:40])  # it compiles first
        model, peer, _ = timed(lambda: model.fit(x, y))
    kept = int((np.linalg.norm(model.coef_, axis=0) > 0).sum())
    flat = torch.cat(list(ours.values()))
    top = set(flat.topk(max(1, kept)).indices.tolist())
    shared = len(top & set(np.flatnonzero(np.linalg.norm(model.coef_, axis=0)).tolist())) / max(1, kept)
    return Row(case, cpu, "skglm MultiTaskLasso, 0.1 λ_max", peer, more={"kept": kept, "shared_with_ours": shared})


def library_rows(task: Task, size: str, ours: float | None) -> list[Row]:
    last = f"layer{LAYERS - 1:02d}"
    splits = [(np.flatnonzero(task.folds != k), np.flatnonzero(task.folds == k)) for k in range(FOLDS)]

    def rows_of(designs: dict[str, FeatureDesign], layer: str | None) -> np.ndarray:
        design = designs[size]
        x = design.dense() if layer is None else design.matrices[layer].rows(slice(0, design.n_rows))
        return x.numpy() * np.sqrt(x.shape[1])

    alone = LogisticRegressionCV(
        Cs=10, l1_ratios=(0,), cv=splits, max_iter=2000, scoring="accuracy", use_legacy_attributes=False
    )
    found = []
    for case, layer, name, model in (
        ("scikit-learn, last layer alone", last, "LogisticRegressionCV", alone),
        ("scikit-learn, all layers", None, "LogisticRegression, C = 0.01, one fit", LogisticRegression(C=0.01)),
    ):
        x = rows_of(task.designs, layer)
        model, cpu, _ = timed(lambda model=model, x=x: model.fit(x, task.codes))
        more = {"held_out": float(model.score(rows_of(task.held, layer), task.held_codes))}
        found.append(Row(case, ours, name, cpu, more=more))
    return found


def pass_row(rows: int, ours: float | None) -> Row:
    """The search beside a backbone's pass over the same number of rows."""
    network = ResNetModel(ResNetConfig()).eval()  # depths 3, 4, 6, 3 of bottlenecks
    pixels = torch.zeros(PASS_BATCH, 3, 224, 224)
    with torch.inference_mode():
        network(pixels)
        found = [timed(lambda: network(pixels))[1] for _ in range(PASS_ROWS // PASS_BATCH)]
    floor = float(np.median(found)) / PASS_BATCH * rows
    return Row(f"the pass before it, ResNet-50, {PASS_ROWS} rows timed", ours, floor_s=floor)


def overlap_row(design: FeatureDesign, response: Response) -> Row:
    """The share of the exact top 1 % that the search's scores miss."""
    ours, cpu, _ = timed(lambda: torch.cat(list(relevance(design, response, None, STRENGTH).values())))

    def exact() -> torch.Tensor:
        gram = design.kernel().to(torch.float64)
        ((a, _),) = dual_ridge(
            gram, response.values, torch.ones(len(response), 1).double(), [STRENGTH * gram_scale(gram)]
        )
        return torch.cat([torch.linalg.vector_norm(w, dim=1) for w in design.adjoint(a.float()).values()])

    true, peer, _ = timed(exact)
    count = design.width // 100
    same = len(set(ours.topk(count).indices.tolist()) & set(true.topk(count).indices.tolist())) / count
    note(f"overlap of the top 1 % of {design.width}: {same:.4f}")
    case = f"scores of {design.width} features (error: 1 - overlap of the top 1 %)"
    return Row(case, cpu, "exact float32 Gram", peer, error=1 - same, more={"overlap": same})


if __name__ == "__main__":
    main()
