"""The whole fast Head2Toe search on synthetic features, beside what it replaces, in one process.

1,000 rows, 10 classes, 52 layers, three target sizes (30,440, 457,600 and 1,070,160 features), 5 folds, two
penalties, nine fractions, both norm orders: 108 honest cells, the logistic cross-validation at the best one and the
exact refit. CPU seconds, wall seconds, peak memory. Beside it:

* one Adam step of the paper's reference scorer (batch 128, softmax cross-entropy + λ Σ‖W_i‖₂) at every size, and
  what its grid of 22,000 steps a fold and size would take: *extrapolated*, heads not counted;
* scikit-learn's LogisticRegressionCV on the last layer of the smallest size;
* ``overlap``: how much of the top 1 % by exact float32 scores the sampled bfloat16 scores find.

Run with OMP_NUM_THREADS=1 for figures of one core.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV

from common import Row, note, parser, report
from regraft.heads import Response, Selection, relevance, select
from regraft.heads.dual import dual_ridge, gram_scale
from regraft.linear import Dense, FeatureDesign, UnitRows

LAYERS = 52
SIZES = (30_440, 457_600, 1_070_160)
QUICK_SIZES = (3_016, 20_020, 80_080)
STEPS = (500 + 5000) * 2 * 2  # two learning rates, two penalties
FOLDS = 5
STRENGTH = 1e-2


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--classes", type=int, default=10, help="classes (default: %(default)s)")
    arguments = options.parse_args()
    rows = 300 if arguments.quick else 1000
    sizes = QUICK_SIZES if arguments.quick else SIZES
    codes = np.arange(rows) % arguments.classes
    response = Response.of("multiclass", [str(c) for c in range(arguments.classes)], codes)
    folds = np.random.default_rng(0).permutation(rows) % FOLDS
    designs = {str(size): features(size, codes, arguments.classes) for size in sizes}
    before = peak()
    note(f"{rows} rows, {arguments.classes} classes, {torch.get_num_threads()} threads, {before:.1f} GiB of features")

    found, cpu, wall = timed(lambda: select(designs, response, folds=folds, metric="accuracy"))
    note(f"whole search: {cpu:.2f} CPU-s, {wall:.2f} s, chose {chosen(found)}")
    table = [search_row(found, cpu, wall, before)]
    steps = {size: adam_step(designs[size], response) for size in designs}
    grid = sum(steps.values()) * STEPS * FOLDS
    note(f"reference grid, extrapolated from one step a size: {grid:.0f} CPU-s")
    table[0] = Row(
        table[0].case, cpu, "reference grid (extrapolated)", grid, more={**table[0].more, "adam_step_s": steps}
    )
    table.append(library_row(designs[str(sizes[0])], codes, folds, cpu))
    middle = str(sizes[-1] if arguments.quick else sizes[1])
    table.append(overlap_row(designs[middle], response))
    report("head2toe", table, arguments.json, columns=("case", "ours_s", "peer", "peer_s", "ratio", "error"))


def features(total: int, codes: np.ndarray, classes: int) -> FeatureDesign:
    """Rectified random mixtures of 60 factors that know the class, under as much noise; float32."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(len(codes), 60, generator=generator)
    hidden += 0.5 * torch.randn(classes, 60, generator=generator)[torch.as_tensor(codes)]
    matrices = {}
    for layer in range(LAYERS):
        width = total // LAYERS + (layer < total % LAYERS)
        out = torch.empty(len(codes), width)
        for start in range(0, width, 4096):
            part = out[:, start : start + 4096]
            mixed = hidden @ torch.randn(60, part.shape[1], generator=generator) / 8
            part.copy_((mixed + torch.randn(part.shape, generator=generator)).clamp_min_(0))
        matrices[f"layer{layer:02d}"] = UnitRows(Dense(out))
    return FeatureDesign(matrices, classes)


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, CPU seconds, wall seconds)."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def peak() -> float:
    """GiB that the process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def chosen(found: Selection) -> str:
    kept = sum(map(len, found.columns.values()))
    norms = "recomputed" if found.normalised else "as they were"
    return f"T={found.size} F={found.fraction} λ={found.strength} {found.form}, norms {norms}, {kept} features"


def search_row(found: Selection, cpu: float, wall: float, before: float) -> Row:
    cell = next(c for c in found.table if c.chosen)
    more = {
        "cpu_s": cpu,
        "wall_s": wall,
        "features_gib": before,
        "peak_gib": peak(),
        "cells": len(found.table),
        "chosen": chosen(found),
        "cross_validated": [cell.score, cell.standard_error],
        "stored_bytes": cell.stored_bytes,
    }
    return Row("whole search, CPU-s", cpu, more=more)


def adam_step(design: FeatureDesign, response: Response) -> float:
    """Median CPU seconds of a step of the reference scorer on rows that are already normalised."""
    features_, targets = design.dense(torch.arange(128)), response.codes[:128]
    weight = torch.zeros(design.width, response.n_outputs, requires_grad=True)
    optimiser = torch.optim.Adam([weight], lr=0.01)

    def step() -> None:
        optimiser.zero_grad()
        norms = (weight.square().sum(1) + 1e-12).sqrt()
        loss = torch.nn.functional.cross_entropy(features_ @ weight, targets) + 1e-3 * norms.sum()
        loss.backward()
        optimiser.step()

    step()
    return float(np.median([timed(step)[1] for _ in range(3)]))


def library_row(design: FeatureDesign, codes: np.ndarray, folds: np.ndarray, ours: float) -> Row:
    x = design.matrices[f"layer{LAYERS - 1:02d}"].rows(slice(None)).numpy()
    splits = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(FOLDS)]
    model = LogisticRegressionCV(
        Cs=10, l1_ratios=(0,), cv=splits, max_iter=2000, scoring="accuracy", use_legacy_attributes=False
    )
    model, cpu, _ = timed(lambda: model.fit(x * np.sqrt(x.shape[1]), codes))
    score = float(np.max(np.mean(np.asarray(model.scores_), axis=0)))
    return Row("scikit-learn, last layer alone", ours, "LogisticRegressionCV", cpu, more={"cross_validated": score})


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
