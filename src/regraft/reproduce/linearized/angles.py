"""Row ntk-fig7b: the angle of turned digits, from the digits 0 to 4 to the digits 5 to 9 (Fig. 7b on other pictures).

Every picture is turned by an angle of U(0, 30) degrees, drawn by the seed, which is also the target, standardised by
the source's. A LeNet of one output is trained on the source, linearised about itself (mean f, scale and noise by
marginal likelihood on the target's points) and compared with its last layer retrained, all of it fine-tuned (both with
rate and length chosen on a fifth of the points), and with itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regraft.features import Tangent, ntk
from regraft.graft.loop.outcome import DivergedError
from regraft.heads import Spectrum
from regraft.network import Network
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.linearized.alike import pictures_of
from regraft.reproduce.linearized.comparators import predicted
from regraft.reproduce.linearized.networks import Descent, lenet, trained
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.packs import DATA
from regraft.reproduce.pieces import Measured, by_seed, reverse_axis, without_tasks
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.tuning import Cell, beyond, ranked
from regraft.reproduce.words import bound, series_correlation

__all__ = ["MEASURED", "errors", "tuned", "turned"]

SIZES = (10, 20, 50, 100, 200)
TEST, SPAN = 1000, 30.0
TRAINING = Descent(epochs=30, batch=64, rate=0.01, anneal=True)
RATES, LENGTHS, BATCH = (0.01, 0.001), (100, 300), 32  # of retraining, in steps
RIVALS = ("last layer", "fine-tuning", "no retraining")


def turned(pictures: Tensor, angles: np.ndarray) -> Tensor:
    """(N, 1, H, W) turned counter-clockwise by degrees (N,), bilinear, black outside."""
    radians = torch.from_numpy(np.deg2rad(angles)).to(pictures)
    cosine, sine, zero = radians.cos(), radians.sin(), torch.zeros_like(radians)
    theta = torch.stack([torch.stack([cosine, -sine, zero], 1), torch.stack([sine, cosine, zero], 1)], 1)
    grid = functional.affine_grid(theta, list(pictures.shape), align_corners=False)
    return functional.grid_sample(pictures, grid, align_corners=False)


def tuned(network: Network, inputs: Tensor, targets: Tensor, select: str, seed: int) -> Network:
    """Descent in the selected parameters; rate and length by the error on a fifth of the rows, then on all rows.

    While the best rate is at an edge of those that were tried, the next one is tried too.
    """
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    held, kept = order.split([max(1, len(order) // 5), len(order) - max(1, len(order) // 5)])

    def score(cell: Cell) -> float:
        """Minus the error on the held-out rows."""
        try:
            made = trained(network, inputs[kept], targets[kept], _descent(cell, len(kept)), seed, select)
        except DivergedError:
            return -math.inf
        with torch.no_grad():
            error = float((made.forward(inputs[held]) - targets[held]).square().mean())
        return -error if math.isfinite(error) else -math.inf

    tried: dict[Cell, float] = {}
    rates: tuple[float, ...] = RATES
    while rates:
        tried |= {cell: score(cell) for cell in (Cell(rate, steps) for rate in rates for steps in LENGTHS)}
        rates = () if (wider := beyond(tried)) is None else (wider,)
    best = ranked(tried)[0]
    if tried[best] == -math.inf:
        raise DivergedError("every rate diverged", do="add a lower one")
    return trained(network, inputs, targets, _descent(best, len(order)), seed, select)


def _descent(cell: Cell, rows: int) -> Descent:
    return Descent(max(1, round(cell.steps / -(-rows // BATCH))), BATCH, cell.rate, anneal=True)


def errors(
    source: tuple[Tensor, Tensor], points: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], seed: int,
    sizes: Sequence[int] = SIZES, how: Descent = TRAINING,
) -> dict[str, list[float]]:  # fmt: skip
    """Mean squared errors on the test rows by the number of points; every pair is pictures and angles (N, 1)."""
    network = trained(lenet(1, seed), *source, how, seed)
    inputs = torch.cat([points[0], test[0]])
    with torch.no_grad():
        plain = network.forward(inputs)[:, 0].double()
    gram = ntk(Tangent(network, "*", inputs, batch_size=256)).double()
    rows, wanted = torch.arange(len(points[0]), len(inputs)), test[1][:, 0].double()
    found: dict[str, list[float]] = {}
    for size in sizes:
        some = torch.arange(size)
        residual = points[1][:size, 0].double() - plain[some]
        chosen = Spectrum.of(gram[some][:, some]).choose(residual)
        means = {
            "NTK": plain[rows] + predicted(gram, some, rows, residual, chosen.noise, chosen.scale).mean,
            "no retraining": plain[rows],
        }
        for name, select in (("last layer", f"{network.head}.*"), ("fine-tuning", "*")):
            made = tuned(network, points[0][:size], points[1][:size], select, seed)
            with torch.no_grad():
                means[name] = made.forward(test[0])[:, 0].double()
        for name, mean in means.items():
            found.setdefault(name, []).append(float((mean - wanted).square().mean()))
    return found


def run(context: Context) -> Result:
    """Every seed: its angles, its target's points and test rows, its weights."""
    context.mini_only()
    folder = context.data / DATA["mnist"]
    pictures, classes = pictures_of(folder, "train")
    low, high = torch.nonzero(classes < 5)[:, 0], torch.nonzero(classes >= 5)[:, 0]

    def of(seed: int) -> dict[str, list[float]]:
        rng = np.random.default_rng(seed)
        chosen = high[torch.from_numpy(rng.permutation(len(high))[: max(SIZES) + TEST])]
        angles = [rng.uniform(0, SPAN, len(rows)) for rows in (low, chosen)]
        unit = angles[0].mean(), angles[0].std()
        (source, target) = (
            (turned(pictures[rows], own), torch.from_numpy((own - unit[0]) / unit[1]).float()[:, None])
            for rows, own in zip((low, chosen), angles)
        )
        split = max(SIZES)
        points, test = (target[0][:split], target[1][:split]), (target[0][split:], target[1][split:])
        return errors(source, points, test, seed)

    arms = without_tasks(by_seed(context, of))
    return Result(arms, {"n": list(SIZES)}, context.seeds, seeds_gate(context.seeds))


def _best_rival(result: Result) -> np.ndarray:
    best: np.ndarray = np.min([result.one(name) for name in RIVALS], axis=0)
    return best


def _lowest(result: Result) -> Outcome:
    ours = result.one("NTK").mean(axis=0)
    rivals = np.min([result.one(name).mean(axis=0) for name in RIVALS], axis=0)
    return all_of(
        [
            bound(
                np.array([rival / own]),
                at_least=1,
                strict=True,
                what=f"best rival's error over NTK's, n {n:g}",
            )
            for n, own, rival in zip(result.axis("n"), ours, rivals)
        ]
    )


def _fades(result: Result) -> Outcome:
    ratio = _best_rival(result) / result.one("NTK")
    return series_correlation(result.axis("n"), ratio, -0.6, side="<=", names=("n", "best rival's error over NTK's"))


MEASURED: dict[str, Measured] = {
    "ntk-fig7b": Measured(
        run, {"a": _lowest, "b": _fades}, {"a": swap("NTK", "no retraining"), "b": reverse_axis("n")}
    ),
}
