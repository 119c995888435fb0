"""What Records of Head2Toe and of a training add to a plain one: figures as such runs write them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from regraft.record import Record

FRACTIONS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


def selection(layers: list[dict[str, Any]], seed: int = 3) -> dict[str, Any]:
    """Late layers, mostly; three target sizes; five folds that agree on three features of four."""
    rng = np.random.default_rng(seed)
    weights = np.exp(np.linspace(-6, 1, len(layers)) + rng.normal(0, 0.5, len(layers)))
    kept = np.floor(480 * weights / weights.sum()).astype(int)
    rows = [
        {
            "name": row["name"],
            "kind": row["kind"],
            "depth": row["depth"],
            "features": 512 if i < len(layers) - 2 else 256,
            "kept": int(k),
            "mean_score": float(0.002 + 0.01 * w / weights.max()),
            "score_share": float(w / weights.sum()),
        }
        for i, (row, k, w) in enumerate(zip(layers, kept, weights, strict=True))
    ]
    width = sum(row["features"] for row in rows)
    grid = []
    for index, size in enumerate(("512", "2048", "8192")):
        for fraction in FRACTIONS:
            for normalised in (False, True):
                features = max(1, int(width * 3**index * fraction))
                score = (
                    0.91 - 0.012 * abs(math.log10(fraction) + 1.7) ** 1.5 - 0.004 * abs(index - 1) - 0.002 * normalised
                )
                grid.append(
                    {
                        "size": size,
                        "fraction": fraction,
                        "strength": 0.01,
                        "normalised": normalised,
                        "score": score,
                        "standard_error": 0.007,
                        "kept": features,
                        "stored_bytes": 20 * (features + 1) + width * 3**index // 8,
                        "chosen": size == "2048" and fraction == 0.02 and not normalised,
                    }
                )
    total = int(kept.sum())
    depths = [0.86 + 0.01 * i for i in range(5)]
    return {
        "size": "2048",
        "fraction": 0.02,
        "strength": 0.01,
        "form": "logistic",
        "normalised": False,
        "scorer": {
            "name": "relevance",
            "meaning": "the norm of the feature’s row of a ridge head’s coefficients",
            "score": "relevance",
            "mean": True,
            "share": True,
            "strength": 0.01,
            "strengths": [0.01, 0.001],
            "unit": "of the features’ mean squared norm",
            "ridge_strength": None,
            "certificate": None,
        },
        "kept": total,
        "width": width,
        "stored_bytes": next(cell["stored_bytes"] for cell in grid if cell["chosen"]),
        "whole_bytes": 20 * (width + 1),
        "layers": rows,
        "grid": grid,
        "depth": 0.88,
        "depth_all": 0.5,
        "ranks": {
            "count": total,
            "rows": 1000,
            "ranks": [
                {"offset": offset, "score": 0.9 - 0.04 * place, "standard_error": 0.01}
                for place, offset in enumerate((0, total, 2 * total, 4 * total, 8 * total, width - total))
            ],
            "blind": {"offset": None, "score": 0.8, "standard_error": 0.01},
        },
        "folds": {
            "jaccard": 0.6,
            "overlap": 0.75,
            "chance": total / width,
            "matrix": [[1.0 if i == j else 0.7 + 0.02 * (i + j) for j in range(5)] for i in range(5)],
            "depths": depths,
            "depth_spread": float(np.std(depths, ddof=1)),
        },
    }


def price(method: str) -> dict[str, Any]:
    """This run beside three others."""
    own = {
        "name": "this run", "passes": 1.0, "backbone_flops": 518_000_000_000, "head_flops": 2.1e11, "seconds": 31.0,
        "stored_bytes": 15_310,
    }  # fmt: skip
    others = [
        {
            "name": "probe", "passes": 1.0, "backbone_flops": 5.18e11, "head_flops": 3e9, "seconds": 22.9,
            "stored_bytes": 25_620,
        },
        {
            "name": "all-layers", "passes": 1.0, "backbone_flops": 5.18e11, "head_flops": 9e10, "seconds": 22.9,
            "stored_bytes": 376_340,
        },
        {
            "name": "finetune", "passes": 22.24, "backbone_flops": 1.152e13, "head_flops": 0.0, "seconds": None,
            "stored_bytes": 14_045_108,
        },
    ]  # fmt: skip
    return {
        "rows": [own, *(row for row in others if row["name"] != method)],
        "head": {"score": 5e10, "fractions": 1.5e11, "final": 1e10},
        "finetune": {"steps": 500, "batch": 64},
        "forward_flops": 1.2e8,
        "paper_search_flops": 3.1e16,
    }


def head2toe(base: Record) -> Record:
    """A run that chose features."""
    layers = [{**row, "kept": row["width"] // 10} for row in base.figures["layers"]]
    figures = {**base.figures, "layers": layers, "selection": selection(layers), "price": price("head2toe")}
    return replace(base, method="head2toe", task={**base.task, "metric": "accuracy"}, figures=figures)


def training() -> dict[str, Any]:
    """A final run, its twin that was judged, and three more."""

    def epochs(count: int, rate: float, held: bool) -> list[dict[str, Any]]:
        return [
            {
                "epoch": epoch,
                "loss": 1.6 * math.exp(-rate * epoch) + 0.1,
                "train": 1 - 0.75 * math.exp(-1.2 * rate * epoch),
                "validation": 0.93 - 0.6 * math.exp(-rate * epoch) - 0.0002 * epoch**2 if held else None,
            }
            for epoch in range(1, count + 1)
        ]

    def run(name: str, role: str, count: int, rate: float, held: bool, status: str = "completed") -> dict[str, Any]:
        return {"name": name, "role": role, "steps": 25 * count, "status": status, "epochs": epochs(count, rate, held)}

    runs = [
        run("lr 0.003, tau 16", "final", 20, 0.3, False),
        run("lr 0.003, tau 16", "twin", 20, 0.3, True),
        run("lr 0.01, tau 16", "candidate", 20, 0.16, True, "stopped"),
        run("lr 0.003, tau 0", "candidate", 10, 0.2, True),
        {**run("lr 0.1, tau 16", "candidate", 2, 0.1, False, "diverged")},
    ]
    return {
        "runs": runs,
        "metric": "accuracy",
        "probing": {
            "taus": [{"tau": t, "accuracy": 1 - 0.75 * 0.9**t, "energy": 0.1 + 0.8 * 0.9**t} for t in (0, 4, 16, 64)],
            "chosen": 16,
            "curve": [1 - 0.75 * 0.9**t for t in range(1, 65)],
            "smoothing": 0.0,
        },
        "smoothing": 0.0,
        "instruments": instruments(),
    }


def instruments(rows: int = 40, epochs: tuple[int, ...] = (1, 2, 4, 8, 16, 20)) -> dict[str, Any]:
    """What looked on at the final run: everything."""
    rng = np.random.default_rng(5)
    start, way = rng.normal(size=(rows, 2)), rng.normal(size=(rows, 2))
    shares = np.exp(np.linspace(0, 3, 20))
    drift = [
        {"epoch": e, "change": 4 * (1 - math.exp(-0.2 * e)), "norm": 30.0 + e / 10, "dot": 27.0, "cosine": 0.93,
         "norm_before": 28.0, "distance": 1.9}
        for e in epochs
    ]  # fmt: skip
    return {
        "level": "all",
        "energy": {"mean": 0.31, "accuracy": 0.86, "truth": 0.77, "histogram": (shares / shares.sum()).tolist(),
                   "rows": 900, "seconds": 0.4},
        "drift": {**drift[-1], "rows": 200, "course": drift, "seconds": 0.9},
        "direction": {"norms": [2.0 - 0.1 * i for i in range(10)], "seconds": 0.01},
        "weights": {
            "relative": 0.08,
            "layers": [{"name": f"layer{i}.conv", "relative": 0.02 + 0.01 * i, "size": 1000 + i} for i in range(9)],
            "seconds": 0.02,
        },
        "kernel": {
            "notes": [{"epoch": e, "norm": 40.0 + e, "gap": 3.0 / e if e else None} for e in (0, *epochs)],
            "rows": 50,
            "reason": "",
            "seconds": 12.0,
        },
        "tracks": {
            "notes": [{"epoch": e, "points": (start + way * e / 20).tolist()} for e in (0, *epochs)],
            "explained": [0.4, 0.2],
            "classes": [i % 3 for i in range(rows)],
            "seconds": 0.1,
        },
    }  # fmt: skip


def finetuned(base: Record) -> Record:
    """A run that trained the backbone."""
    figures = {k: v for k, v in base.figures.items() if k not in ("layers", "strengths")}
    figures |= {"training": training(), "price": price("finetune")}
    return replace(base, method="finetune", figures=figures, candidates=())
