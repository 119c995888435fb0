"""Error bars of `tangent-gp` by random sums of derivatives, beside those by all directions of all parameters.

Rows of UCI sets, drawn once, under a network with random weights and two hidden tanh layers; the derivatives are the
second one's. ``ratio_…``: quantiles of the deviations of 240 new rows over those with all directions, ``far_…`` the
same of rows moved by three deviations of every input. ``coverage``: the share of the new rows' targets inside their
90 % intervals. ``megabytes``: of the directions, four bytes a number.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from common import Row, empty_store, parsed, parser, report, timed
from regraft.graft import METHODS, Options, Posterior, adapt
from regraft.heads import NINETY
from regraft.reproduce.linearized.networks import perceptron

CASES = {"energy": (160, 1330), "concrete": (400, 700), "kin8nm": (600, 700), "power-plant": (1500, 700)}
NEW, MOVED = 240, 3.0
WAYS = {"sums": Posterior(), "all": Posterior(rank=10**4, megabytes=1e5)}


def main() -> None:
    arguments = parsed(parser(__doc__.splitlines()[0]), "tabular")
    torch.set_num_threads(1)
    cases = dict(list(CASES.items())[1:2]) if arguments.quick else CASES
    rows = [_measured(arguments.data / "tabular" / f"{name}.parquet", name, *sizes) for name, sizes in cases.items()]
    columns = ("case", "rows", "parameters", "ratio_least", "ratio_median", "ratio_most", "far_least", "far_most")
    columns += ("coverage", "coverage_all", "rank", "rank_all", "megabytes", "megabytes_all", "cpu_s", "cpu_s_all")
    report("sums", rows, arguments.json, columns=columns)


def _measured(path: Path, name: str, count: int, width: int) -> Row:
    values = np.stack([np.asarray(column, dtype=np.float64) for column in pq.read_table(path).columns], axis=1)
    values = values[np.random.default_rng(0).permutation(len(values))][: count + NEW]
    values = (values - values[:count].mean(0)) / np.where(values[:count].std(0) > 0, values[:count].std(0), 1)
    x, y = values[:, :-1].astype(np.float32), values[:, -1].astype(np.float32)
    network = perceptron((x.shape[1], width, width, 1), 0)
    near, far, more = {}, {}, dict[str, Any]({"rows": count})
    for way, stage in WAYS.items():
        stages = tuple(stage if isinstance(each, Posterior) else each for each in METHODS["tangent-gp"].stages)
        recipe = replace(METHODS["tangent-gp"], stages=stages)
        how = {"method": recipe, "theta2": ("2.*",), "options": Options(folds=3, workers=0)}
        end = "" if way == "sums" else "_all"
        with empty_store():
            run, more[f"cpu_s{end}"], _ = timed(partial(adapt, (x[:count], y[:count]), network, **how))
        says = run.predict_proba(x[count:])
        near[way], far[way] = says.spread[:, 0], run.predict_proba(x[count:] + MOVED).spread[:, 0]
        inside = np.abs(says.probabilities[:, 0] - y[count:]) <= NINETY * near[way]
        part = run.adapted.posterior
        more |= {f"coverage{end}": float(inside.mean()), f"rank{end}": part.rank}
        more[f"megabytes{end}"] = sum(value.numel() for value in part.directions.values()) * 4 / 2**20
        more["parameters"] = sum(value[0].numel() for value in part.weights.values())
    for key, (found, exact) in {"ratio": (near["sums"], near["all"]), "far": (far["sums"], far["all"])}.items():
        least, median, most = np.quantile(found / exact, [0, 0.5, 1])
        more |= {f"{key}_least": float(least), f"{key}_median": float(median), f"{key}_most": float(most)}
    return Row(name, more=more)


if __name__ == "__main__":
    main()
