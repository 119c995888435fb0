"""The exact lasso over features of all layers: a whole path with its certificates, beside what there is.

MobileNetV1-0.25 of the data pack on the orientation of rendered shapes, 1,000 rows, 16 classes, rows of unit norm in
each layer, at one target size or more; eight ℓ1 penalties from half λ_max down to 10⁻⁴ of it, to a relative duality gap
of 10⁻³. ``--quick``, or no data pack: drawn features, 300 rows.

*Ours* is :func:`regraft.heads.lasso`. Peers, each in this process, one after the other:

* the same path by proximal steps alone (10,000 a penalty at most), which is what Newton steps between the kinks are
  worth; and both of :func:`regraft.heads.group_lasso`;
* scikit-learn's LogisticRegression with penalty l1, by saga, warm along the same penalties, ``--passes`` passes each:
  the only multinomial lasso of a library. It gives no certificate; ``error`` is how far the worst of its objectives
  lies over ours, relatively (negative: under).

``floor_s`` reads all features twice for each penalty: the products of one certificate. All seconds are processor
seconds, one run each. ``certified``: penalties whose gap was reached, ours and the peer's.

Run with OMP_NUM_THREADS=1 for figures of one core.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from common import Row, empty_store, note, parser, report, timed
from regraft.data import rendered
from regraft.features import Taps, plan, sweep
from regraft.heads import GroupLassoPath, Response, group_lasso, lasso
from regraft.heads.sparse import inner
from regraft.linear import Dense, FeatureDesign, UnitRows
from regraft.network import load

WEIGHTS = "mobilenet_v1_0.25_128"
ROWS, QUICK_ROWS = 1000, 300
DRAWN, CLASSES = 2000, 6
LENGTH, WEAKEST = 8, 1e-4
TOL, MOST = 1e-3, 10_000


@dataclass(frozen=True, eq=False)
class Task:
    """Labelled features by layer, and the same side by side."""

    name: str
    design: FeatureDesign
    response: Response
    matrix: np.ndarray
    codes: np.ndarray

    @staticmethod
    def of(name: str, blocks: dict[str, torch.Tensor], codes: np.ndarray) -> Task:
        """Rows of unit norm in each layer."""
        rows = {key: UnitRows(Dense(block.float())).rows(slice(None)) for key, block in blocks.items()}
        response = Response.of("multiclass", [str(c) for c in range(int(codes.max()) + 1)], codes)
        design = FeatureDesign({key: Dense(block) for key, block in rows.items()}, response.n_outputs)
        matrix = torch.cat(list(rows.values()), 1).double().numpy()
        return Task(f"{name}: {len(matrix):,} × {matrix.shape[1]:,}", design, response, matrix, codes)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--sizes", default="0,512", help="target sizes, 0 the pooled maps (default: %(default)s)")
    options.add_argument("--passes", type=int, default=100, help="of saga, a penalty (default: %(default)s)")
    arguments = options.parse_args()
    rows = []
    for task in tasks(arguments.data, [int(size) for size in arguments.sizes.split(",")], quick=arguments.quick):
        note(task.name)
        rows += measured(task, 10 if arguments.quick else arguments.passes)
    columns = ("case", "ours_s", "peer", "peer_s", "ratio", "floor_s", "times_floor", "certified", "error")
    report("sparse", rows, arguments.json, columns=columns, threads=torch.get_num_threads())


def tasks(data: Path, sizes: list[int], *, quick: bool) -> list[Task]:
    """Features of the data pack's network, or drawn ones whose labels follow a few of them."""
    folder = data / "weights" / WEIGHTS
    if quick or not folder.is_dir():
        if not quick:
            note(f"{folder} is not there: drawn features")
        generator = np.random.default_rng(0)
        values = torch.from_numpy(generator.standard_normal((QUICK_ROWS, DRAWN)))
        follow = generator.standard_normal((12, CLASSES))
        noise = generator.gumbel(size=(QUICK_ROWS, CLASSES))
        codes = (values[:, :12].numpy() @ follow + noise).argmax(1)
        return [Task.of("drawn", {"layer1": values[:, :500], "layer2": values[:, 500:]}, codes)]
    network, manifest = load(str(folder)), rendered("orientation", ROWS, 0)
    found = []
    for size in sizes:
        wanted = plan(network, [Taps(sizes=(size,) if size else (None,))])
        with empty_store():
            store = sweep(network, manifest, wanted, workers=0)
            blocks = {key: m.rows(slice(0, store.rows)) for key, m in store.matrices().items()}
        found.append(Task.of("V1a, orientation", blocks, np.asarray(manifest.target.values)))
    return found


def measured(task: Task, passes: int) -> list[Row]:
    """Both penalties, and the library's."""
    largest = lasso(task.design, task.response, strengths=1, tol=TOL).strength_max
    strengths = [largest * WEAKEST ** (step / (LENGTH - 1)) for step in range(1, LENGTH)]
    strengths = [largest * 0.5, *strengths]
    floor = timed(lambda: _read(task))[1] * len(strengths)

    def path(solve: Callable[..., GroupLassoPath]) -> Callable[[], GroupLassoPath]:
        return lambda: solve(task.design, task.response, strengths=strengths, tol=TOL, max_iterations=MOST)

    found, ours, _ = timed(path(lasso))
    groups, grouped, _ = timed(path(group_lasso))
    with _proximal():
        slower, plain, _ = timed(path(lasso))
        flats, flat, _ = timed(path(group_lasso))
    objectives, theirs, _ = timed(lambda: _saga(task, strengths, passes))
    excess = max(value / fit.objective - 1 for value, fit in zip(objectives, found))
    apart, gone = (
        max(abs(a.objective / b.objective - 1) for a, b in zip(*paths)) for paths in ((found, slower), (groups, flats))
    )
    return [
        Row(f"ℓ1, {task.name}", ours, "proximal steps alone", plain, floor, apart,
            {"certified": f"{_certified(found)}, {_certified(slower)} of {len(strengths)}"}),
        Row(f"ℓ1, {task.name}", ours, f"saga, {passes} passes", theirs, floor, excess,
            {"certified": f"{_certified(found)}, none"}),
        Row(f"ℓ2,1, {task.name}", grouped, "proximal steps alone", flat, floor, gone,
            {"certified": f"{_certified(groups)}, {_certified(flats)} of {len(strengths)}"}),
    ]  # fmt: skip


def _proximal() -> AbstractContextManager[Any]:
    """So patient that Newton steps never come."""
    return mock.patch.dict(inner._PATIENCE, dict.fromkeys(inner._PATIENCE, (MOST + 1, MOST + 1)))


def _certified(path: GroupLassoPath) -> int:
    return sum(fit.status.converged for fit in path)


def _read(task: Task) -> np.ndarray:
    """X W and Xᵀ R for dense W and R."""
    dense = np.ones((task.matrix.shape[1], task.response.n_outputs))
    return task.matrix.T @ (task.matrix @ dense)


def _saga(task: Task, strengths: list[float], passes: int) -> list[float]:
    """The objectives that it reaches, Σ_i ℓ_i / n + λ ‖W‖₁."""
    rows, found = len(task.codes), []
    model = LogisticRegression(solver="saga", l1_ratio=1, warm_start=True, max_iter=passes, tol=1e-6, random_state=0)
    for strength in strengths:
        model.set_params(C=1 / (rows * strength))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", FutureWarning)
            model.fit(task.matrix, task.codes)
        logits = task.matrix @ model.coef_.T + model.intercept_
        picked = logits[np.arange(rows), task.codes]
        losses = np.logaddexp.reduce(logits, 1) - picked
        found.append(float(losses.mean() + strength * np.abs(model.coef_).sum()))
    return found


if __name__ == "__main__":
    main()
