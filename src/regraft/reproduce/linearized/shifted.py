"""Row ntk-fig7a: regression under a shift, by the number of points.

At scale mini the source are rows whose first input is at most its median, the target those above. At scale full it is
the paper's (Maddox et al., Section 5, Fig. 7a): a map of malaria's infection rate in 2012, and the one of 2016. A
500-500-2 tanh network gives mean and variance. It is linearised about itself: mean f, the kernel of its first output,
noise in proportion to its own variances, scale and factor by marginal likelihood on the target's rows. The last layer
is retrained for as many epochs as the source, and for six times that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regraft.data import scan
from regraft.errors import DataError, MissingPathError
from regraft.features import Tangent, ntk
from regraft.heads import Spectrum, condition
from regraft.network import Network
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.linearized.atlas import read_map
from regraft.reproduce.linearized.networks import Descent, gaussian, perceptron, refitted, trained, variance_of
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.packs import DATA
from regraft.reproduce.pieces import Measured, reverse_axis
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import bound, series_correlation

__all__ = ["MEASURED", "Shift", "errors", "linearised", "malaria", "retrained", "shift_of", "shift_of_maps"]

SETS = ("power-plant", "kin8nm")
SIZES = (10, 20, 50, 100, 200, 500, 1000)
SOURCE, TEST = 2000, 1000
SOURCE_YEAR, TARGET_YEAR = 2012, 2016
TRAINING = Descent(epochs=100, batch=200, rate=1e-3, kind="adam", loss=gaussian, anneal=True)
BATCHES = 10  # an epoch, as the paper's code
_Rows = tuple[np.ndarray, np.ndarray]  # (N, D) and (N,)


@dataclass(frozen=True, eq=False)
class Shift:
    """Standardised by the source: inputs (rows, D) and targets (rows,) of the source, of the target's points, and of
    its test rows."""

    source: tuple[Tensor, Tensor]
    points: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def shift_of(path: Path, seed: int, sizes: tuple[int, int, int] = (SOURCE, max(SIZES), TEST)) -> Shift:
    """The rows of a seed.

    Raises:
        DataError: the file is no regression of one target.
    """
    manifest = scan(path)
    if manifest.target is None or manifest.target.kind != "regression":
        raise DataError(f"{path} is no regression", expected="a column y of numbers")
    x = np.stack([np.asarray(manifest.inputs.read(row), dtype=np.float64) for row in range(len(manifest))])
    y = np.asarray(manifest.target.values, dtype=np.float64).reshape(len(x), -1)[:, 0]
    below = x[:, 0] <= np.median(x[:, 0])
    return _drawn((x[below], y[below]), (x[~below], y[~below]), seed, sizes)


def shift_of_maps(folder: Path, seed: int, sizes: tuple[int, int, int] = (SOURCE, max(SIZES), TEST)) -> Shift:
    """The same from two maps: the only file there with 2012 in its name is the
    source's, that with 2016 the target's.

    Raises:
        MissingPathError: a map is not there.
        DataError: several are, one is no map, or has fewer places than are drawn.
    """
    return _drawn(read_map(_map_of(folder, SOURCE_YEAR)), read_map(_map_of(folder, TARGET_YEAR)), seed, sizes)


def malaria(data: Path) -> Path:
    """The folder of the two maps: ``malaria`` in the data pack, or where ``REGRAFT_MALARIA`` says.

    Raises:
        MissingPathError: it is not there.
    """
    folder = Path(os.environ.get("REGRAFT_MALARIA") or data / "malaria")
    if not folder.is_dir():
        raise MissingPathError(
            f"the folder of malaria's maps is absent: {folder}",
            expected=f"maps of {SOURCE_YEAR} and {TARGET_YEAR}, as .tif or .csv",
            do="put them there, or set REGRAFT_MALARIA to their folder",
        )
    return folder


def _map_of(folder: Path, year: int) -> Path:
    found = [path for path in sorted(folder.iterdir()) if str(year) in path.name]
    if not found:
        raise MissingPathError(f"{folder} has no map of {year}", expected=f"one file with {year} in its name")
    if len(found) > 1:
        raise DataError(f"{folder} has several maps of {year}", expected="one", got=", ".join(p.name for p in found))
    return found[0]


def _drawn(old: _Rows, new: _Rows, seed: int, sizes: tuple[int, int, int]) -> Shift:
    """So many rows of the source, and points and test rows of the target, of a seed."""
    for name, have, wanted in (("source", old, sizes[0]), ("target", new, sizes[1] + sizes[2])):
        if len(have[1]) < wanted:
            raise DataError(f"too few rows of the {name}", expected=str(wanted), got=str(len(have[1])))
    rng = np.random.default_rng(seed)
    source = rng.permutation(len(old[1]))[: sizes[0]]
    target = rng.permutation(len(new[1]))[: sizes[1] + sizes[2]]
    centre, spread = old[0][source].mean(0), old[0][source].std(0)
    shift, unit = old[1][source].mean(), old[1][source].std()

    def rows(of: _Rows, index: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs = (of[0][index] - centre) / np.where(spread > 0, spread, 1)
        return torch.from_numpy(inputs).float(), torch.from_numpy((of[1][index] - shift) / unit).float()

    return Shift(rows(old, source), rows(new, target[: sizes[1]]), rows(new, target[sizes[1] :]))


def retrained(network: Network, points: tuple[Tensor, Tensor], new: Tensor, how: Descent, seed: int) -> Tensor:
    """The first output at new inputs after descent in the last layer alone, on features that are computed once."""
    how = replace(how, batch=max(1, len(points[0]) // BATCHES))
    made = refitted(network, (points[0], points[1][:, None]), how, seed)
    with torch.no_grad():
        return made.forward(new)[:, 0]


def linearised(
    gram: Tensor, points: Tensor, test: Tensor, residual: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of f − f(θ) at the test rows, and the factor of the noise.

    Args:
        gram: K of all rows, float64.
        points, test: which of them.
        residual: y − f(θ) at ``points``.
        noise: σ_i² of ``points`` up to a factor; rows over σ_i have the kernel K_ij / σ_i σ_j and one noise level.
    """
    own = gram[points][:, points]
    deviations = noise.sqrt()
    chosen = Spectrum.of(own / deviations[:, None] / deviations).choose(residual / deviations)
    posterior = condition(own, residual, chosen.noise * noise, chosen.scale)
    cross = gram[test][:, points]
    mean, variance = posterior.mean(cross)[:, 0], posterior.variance(cross, gram.diagonal()[test])[:, 0]
    return mean, variance, chosen.noise


def errors(
    rows: Shift, seed: int, sizes: Sequence[int] = SIZES, widths: Sequence[int] = (500, 500), how: Descent = TRAINING
) -> dict[str, list[float]]:
    """Mean squared errors on the test rows by the number of points, in units of the source's variance; and the share
    of test rows inside the linearised network's 90 % interval."""
    network = perceptron((rows.source[0].shape[1], *widths, 2), seed)
    network = trained(network, rows.source[0], rows.source[1][:, None], how, seed)
    inputs = torch.cat([rows.points[0], rows.test[0]])
    with torch.no_grad():
        outputs = network.forward(inputs)
    plain, noise = outputs[:, 0].double(), variance_of(outputs).double()
    tangent = Tangent(network, "*", inputs, batch_size=len(inputs))
    gram = ntk(tangent, form="per-output")[0].double()
    test = torch.arange(len(rows.points[0]), len(inputs))
    wanted = rows.test[1].double()
    found: dict[str, list[float]] = {}

    def add(name: str, mean: Tensor) -> None:
        found.setdefault(name, []).append(float((mean.double() - wanted).square().mean()))

    for size in sizes:
        some = torch.arange(size)
        points = rows.points[0][:size], rows.points[1][:size]
        mean, variance, factor = linearised(gram, some, test, points[1].double() - plain[some], noise[some])
        add("NTK", mean + plain[test])
        inside = (mean + plain[test] - wanted).abs() <= 1.6448536 * (variance + factor * noise[test]).sqrt()
        found.setdefault("coverage", []).append(100 * float(inside.double().mean()))
        add("last layer", retrained(network, points, rows.test[0], how, seed))
        add("last layer, 6 x", retrained(network, points, rows.test[0], replace(how, epochs=6 * how.epochs), seed))
        add("no retraining", plain[test])
    return found


def run(context: Context) -> Result:
    """Both sets (at scale full the two maps), every seed."""
    folder = malaria(context.data) if context.scale == "full" else None
    sets = SETS if folder is None else ("malaria",)
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in sets}
    for number, seed in enumerate(context.seeds):
        for name in sets:
            rows = shift_of(context.data / DATA[name], seed) if folder is None else shift_of_maps(folder, seed)
            found[name].append(errors(rows, seed))
        if context.progress:
            context.progress(number + 1, len(context.seeds))
    names = list(found[sets[0]][0])
    arms = {arm: {name: [each[arm] for each in rows] for name, rows in found.items()} for arm in names}
    notes = {
        "training": "Adam 1e-3, cosine, 100 epochs of 2,000 rows in batches of 200, negative log density",
        "last layer": f"the same, {BATCHES} batches an epoch",
    }
    return Result(arms, {"n": list(SIZES)}, context.seeds, seeds_gate(context.seeds), notes)


def _improves(result: Result) -> Outcome:
    n = result.axis("n")
    return all_of(
        [
            series_correlation(n, result.arm("NTK", [name])[0], -0.9, side="<=", names=("n", f"error on {name}"))
            for name in result.arms["NTK"]
        ]
    )


def _at_most(result: Result) -> int:
    return int(result.axis("n").argmax())


def _stagnates(result: Result) -> Outcome:
    last = _at_most(result)
    outcomes = []
    for name in result.arms["NTK"]:
        none, kernel, layer = (result.arm(arm, [name])[0][:, last] for arm in ("no retraining", "NTK", "last layer"))
        gain = (none - kernel).mean()
        if gain > 0:
            share = (none - layer).mean() / gain
            outcomes.append(bound(np.array([share]), at_most=0.5, what=f"last layer's gain over NTK's on {name}"))
        else:  # the ratio would change its sign, and a last layer that alone gains would pass
            outcomes.append(Outcome.unmeasurable("mean ≤ 0.5", f"the NTK gains nothing on {name}", -1))
    return all_of(outcomes)


def _catches_up(result: Result) -> Outcome:
    last = _at_most(result)
    return all_of(
        [
            bound(
                result.arm("last layer, 6 x", [name])[0][:, last] / result.arm("NTK", [name])[0][:, last],
                at_most=1.15,
                what=f"error of the last layer retrained 6 times as long over NTK's on {name}",
            )
            for name in result.arms["NTK"]
        ]
    )


MEASURED: dict[str, Measured] = {
    "ntk-fig7a": Measured(
        run,
        {"a": _improves, "b": _stagnates, "c": _catches_up},
        {"a": reverse_axis("n"), "b": swap("last layer", "NTK"), "c": swap("last layer, 6 x", "no retraining")},
    ),
}
