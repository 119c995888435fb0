"""Rows tr-thm1, -thm2, -thm3 and -lemmas: really training wide networks on P then Q, beside the printed limits.

The four rows share every network, trained once a seed and width and kept in the cache.

At the page's κ = .01 and m ≤ 16,000 the conditions of the theorems do not hold: f is homogeneous in W, so what counts
is κ √m (1.3 at 16,000) beside the distance √(yᵀ H⁻¹ y) that the weights must move (18). The results show next to it,
judged by nothing, the same widths at κ = 10 from f = 0 (``regime``), where κ √m is 300 to 1,300 and the limits are
approached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Disturbance, Result, exchange, relabel, swap
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.theory import LOGGED, Part, Plan, measured, transfer
from regraft.reproduce.words import bound, greater, rank_correlation, share, slope, within

__all__ = ["MEASURED", "PAGE", "REGIME", "WIDTHS"]

WIDTHS = (1000, 4000, 16000)
PAGE = Plan()
REGIME = Plan(scale=10.0, plain=0, early=0, paired=True)  # shown, never judged
FAR = 0.1  # relative error that Theorem 1 may have at the widest
_Numbers = list[list[dict[str, Any]]]


@lru_cache(maxsize=8)
def _numbers(seeds: tuple[int, ...], plan: Plan, folder: Path, parts: tuple[Part, ...]) -> _Numbers:
    """By seed and width; from scratch at the widest alone, where the page judges it."""
    rest = tuple(part for part in parts if part != "scratch")
    return [
        [measured(seed, width, plan, folder, parts if width == WIDTHS[-1] else rest) for width in WIDTHS]
        for seed in seeds
    ]


def _found(context: Context, *parts: Part, plan: Plan | None = None) -> _Numbers:
    context.mini_only()
    seeds = context.seeds if plan is None else context.seeds[:1]
    return _numbers(seeds, plan or PAGE, context.cache / "reproduce" / "two-layer", parts)


def _arm(found: _Numbers, pick: Callable[[int, dict[str, Any]], Any]) -> dict[str, list[Any]]:
    """One entry a seed: what is picked of (the seed's place, the numbers of a width), by width."""
    return {"all": [[pick(place, numbers) for numbers in widths] for place, widths in enumerate(found)]}


def _result(context: Context, arms: dict[str, dict[str, list[Any]]], found: _Numbers, notes: dict[str, Any]) -> Result:
    axes: dict[str, list[float]] = {
        "m": [float(width) for width in WIDTHS],
        "random": PAGE.shares,
        "step": [float(step) for step in LOGGED],
    }
    runs = [[numbers["source"], *numbers["targets"], *numbers["scratch"]] for widths in found for numbers in widths]
    flat = [run for some in runs for run in some]
    common = {
        "trained": f"{len(flat)} runs of gradient descent, {sum(run['converged'] for run in flat)} with ‖f − y‖² below "
        f"a thousandth of ‖y‖², the worst {max(run['residual'] for run in flat) ** 2:.2g}",
        "steps, median and most, by m": [_steps([widths[place] for widths in found]) for place in range(len(WIDTHS))],
        "cpu_seconds": sum(run["cpu_seconds"] for run in flat),
    }
    return Result(arms, axes, context.seeds, seeds_gate(context.seeds), {**common, **notes})


def _steps(some: list[dict[str, Any]]) -> list[float]:
    steps = [run["steps"] for numbers in some for run in (numbers["source"], *numbers["targets"])]
    return [float(np.median(steps)), float(max(steps))]


def _widest(result: Result) -> int:
    return int(result.axis("m").argmax())


def _columns(result: Result, name: str) -> np.ndarray:
    """An arm ``(seeds, widths, …)`` in the order of the widths."""
    columns: np.ndarray = result.one(name)[:, np.argsort(result.axis("m"), kind="stable")]
    return columns


# ------------------------------------------------------------------------------------------- Theorem 1


def _first_gradient(found: _Numbers, plan: Plan, seeds: tuple[int, ...]) -> dict[str, dict[str, list[Any]]]:
    """``‖∂L/∂X¹‖² = ‖f − y‖²`` (Eq. 14) on the target at W(0) and at W(P), and the printed change."""

    def norms(place: int, numbers: dict[str, Any], at: str) -> list[float]:
        outputs = torch.tensor(numbers["source"][at], dtype=torch.float64)
        squares: list[float] = (transfer(seeds[place], plan).targets - outputs).square().sum(1).tolist()
        return squares

    changes = [[transfer(seed, plan).limits(mix).change for mix in range(plan.mixes)] for seed in seeds]
    return {
        "at W(0)": _arm(found, lambda place, numbers: norms(place, numbers, "outputs, first")),
        "at W(P)": _arm(found, lambda place, numbers: norms(place, numbers, "outputs")),
        "form": _arm(found, lambda place, numbers: changes[place]),
    }


def run_lipschitz(context: Context) -> Result:
    """Theorem 1."""
    found, shown = _found(context), _found(context, plan=REGIME)
    beside = _first_gradient(shown, REGIME, context.seeds[:1])
    notes = {
        "error": "‖measured − form‖ / ‖form‖ over the ten targets; target by target the form passes through zero",
        "regime": {
            "network": "κ = 10, started from f = 0 by pairs of units, first seed; shown, not judged",
            "error": _errors(Result(beside, {"m": list(WIDTHS)}))[0].tolist(),
        },
    }
    return _result(context, _first_gradient(found, PAGE, context.seeds), found, notes)


def _errors(result: Result) -> np.ndarray:
    """``(seeds, widths)``."""
    change = _columns(result, "at W(P)") - _columns(result, "at W(0)")
    form = _columns(result, "form")
    errors: np.ndarray = np.linalg.norm(change - form, axis=2) / np.linalg.norm(form, axis=2)
    return errors


def _small_and_falling(result: Result) -> Outcome:
    errors = _errors(result)
    widths = [f"error at m={width:g}" for width in np.sort(result.axis("m"))]
    falls = [
        greater(errors[:, i], errors[:, i + 1], names=(widths[i], widths[i + 1])) for i in range(errors.shape[1] - 1)
    ]
    return all_of([bound(errors[:, -1], at_most=FAR, what=widths[-1]), *falls])


# ------------------------------------------------------------------------------------------- Theorem 2


def _distances(found: _Numbers, plan: Plan, seeds: tuple[int, ...]) -> dict[str, dict[str, list[Any]]]:
    limits = [[transfer(seed, plan).limits(mix) for mix in range(plan.mixes)] for seed in seeds]
    return {
        "distance": _arm(found, lambda place, numbers: [run["distance"] for run in numbers["targets"]]),
        "form": _arm(found, lambda place, numbers: [each.form for each in limits[place]]),
        "form from scratch": _arm(found, lambda place, numbers: [each.form_scratch for each in limits[place]]),
    }


def run_distance(context: Context) -> Result:
    """Theorem 2; from scratch at the widest alone."""
    found, shown = _found(context, "targets", "scratch"), _found(context, "targets", plan=REGIME)
    arms = _distances(found, PAGE, context.seeds)
    arms["distance from scratch"] = {"all": [[run["distance"] for run in widths[-1]["scratch"]] for widths in found]}
    beside = _distances(shown, REGIME, context.seeds[:1])
    ratio = np.asarray(beside["distance"]["all"]) / np.asarray(beside["form"]["all"])
    notes = {
        "distance": "squared, as in Eq. 45; Theorem 2 prints it without the square",
        "ratio by m": [[float(r.min()), float(r.mean()), float(r.max())] for r in _ratio_by_width(arms)],
        "regime": {
            "network": "κ = 10, started from f = 0 by pairs of units, first seed; shown, not judged",
            "ratio by m and target": ratio[0].tolist(),
        },
    }
    return _result(context, arms, found, notes)


def _ratio_by_width(arms: dict[str, dict[str, list[Any]]]) -> np.ndarray:
    ratio = np.asarray(arms["distance"]["all"]) / np.asarray(arms["form"]["all"])
    return ratio.transpose(1, 0, 2)


def _at_widest(result: Result, name: str) -> np.ndarray:
    at: np.ndarray = result.one(name)[:, _widest(result)]
    return at


def _tight(result: Result) -> Outcome:
    ratio = _at_widest(result, "distance") / _at_widest(result, "form")
    return all_of(
        [
            bound(ratio, at_most=1.1, statistic="max", what="distance² beside the form, every seed and target"),
            bound(ratio, at_least=0.8, statistic="min", what="distance² beside the form, every seed and target"),
        ]
    )


def _ordered(result: Result) -> Outcome:
    """Points are the ten targets."""
    return rank_correlation(
        _at_widest(result, "form").T, _at_widest(result, "distance").T, 0.95, names=("form", "distance²")
    )


def _says_which(result: Result) -> Outcome:
    said = _at_widest(result, "form") < _at_widest(result, "form from scratch")
    was = _at_widest(result, "distance") < result.one("distance from scratch")
    return share(said == was, 0.9, what="targets where the form says whether transfer or scratch moves less")


def _reversed(name: str, axis: int) -> Disturbance:
    """Deal an arm's numbers out along an axis (1: widths, 2: targets) in the opposite order."""

    def disturb(result: Result) -> Result:
        values = np.flip(result.one(name), axis).tolist()
        return replace(result, arms={**result.arms, name: {"all": values}})

    return disturb


# ------------------------------------------------------------------------------------------- Theorem 3


def run_convergence(context: Context) -> Result:
    """Theorem 3, every one of the 2,000 steps of every fine-tuning."""
    found = _found(context, "targets")
    arms = {
        "violations": _arm(found, lambda place, numbers: [run["violations"] for run in numbers["targets"]]),
        "loss": _arm(found, lambda place, numbers: [run["loss"] for run in numbers["targets"]]),
        "bound": _arm(found, lambda place, numbers: [run["promised"] for run in numbers["targets"]]),
    }
    ratios = np.asarray(arms["loss"]["all"]) / np.asarray(arms["bound"]["all"])
    notes = {
        "η": "1 / λ_max(H_Q∞)",
        "loss / bound after all steps, by m": [
            [float(r.min()), float(r.max())] for r in ratios[..., -1].transpose(1, 0, 2)
        ],
    }
    return _result(context, arms, found, notes)


def _never_above(result: Result) -> Outcome:
    ratio = result.one("loss") / result.one("bound")
    return all_of(
        [
            bound(result.one("violations"), at_most=0, statistic="max", what="steps above the bound"),
            bound(ratio, at_most=1 + 1e-6, statistic="max", what="loss beside its bound at the logged steps"),
        ]
    )


# --------------------------------------------------------------------------------- Lemmas, Corollary 1


def _lemmas(found: _Numbers, plan: Plan, seeds: tuple[int, ...]) -> dict[str, dict[str, list[Any]]]:
    """Extremes over the visited steps, by width and target; matrices on the target's rows."""

    def promised(place: int, numbers: dict[str, Any]) -> list[float]:
        """Corollary 1: ``4 √n_P ‖y_P − u_P(0)‖ / (√m λ_P) + 4 √n_Q ‖y_Q − u_Q(P)‖ / (√m λ_Q)``."""
        rows = transfer(seeds[place], plan)
        outputs = torch.tensor(numbers["source"]["outputs"], dtype=torch.float64)
        first = (rows.targets - outputs).norm(dim=1)
        bounds = numbers["source"]["start"] / rows.limits(0).source_least_eigenvalue
        per_unit = bounds + first / rows.limits(0).least_eigenvalue
        values: list[float] = (4 * (plan.rows / numbers["width"]) ** 0.5 * per_unit).tolist()
        return values

    half = [transfer(seed, plan).limits(0).least_eigenvalue / 2 for seed in seeds]

    def of(name: str) -> dict[str, list[Any]]:
        return _arm(found, lambda place, numbers: [run[name] for run in numbers["targets"]])

    return {
        "moved": of("moved"),
        "bound": _arm(found, promised),
        "‖H(k) − H∞‖": of("gap"),
        "‖H_PQ(P) − H∞_PQ‖": _arm(found, lambda place, numbers: numbers["source"]["cross gap"]),
        "λmin(H)": of("least"),
        "λ0/2": _arm(found, lambda place, numbers: [half[place]] * plan.mixes),
        "flips": of("flips"),
    }


def run_lemmas(context: Context) -> Result:
    """Lemmas 1 to 6 and Corollary 1."""
    found, shown = _found(context, "targets"), _found(context, "targets", plan=REGIME)
    arms = _lemmas(found, PAGE, context.seeds)
    beside = _lemmas(shown, REGIME, context.seeds[:1])
    notes = {
        "moved": "max over r and the visited k of ‖w_r(k) − w_r(0)‖ during fine-tuning, W(0) from before pretraining",
        "flips": "share of all 1{w_rᵀx_i > 0} on the target's rows that differ between W(0) and W(Q); R is moved",
        "means by m": {name: _means(each).tolist() for name, each in arms.items()},
        "regime": {
            "network": "κ = 10, started from f = 0 by pairs of units, first seed; shown, not judged",
            "means by m": {name: _means(each).tolist() for name, each in beside.items()},
        },
    }
    return _result(context, arms, found, notes)


def _means(arm: dict[str, list[Any]]) -> np.ndarray:
    values = np.asarray(arm["all"], dtype=np.float64)
    means: np.ndarray = values.reshape(len(values), len(WIDTHS), -1).mean(axis=(0, 2))
    return means


def _over_width(result: Result, name: str) -> np.ndarray:
    """The slope of an arm's mean over targets in m, by seed."""
    values = result.one(name)
    return slope(result.axis("m"), values.reshape(*values.shape[:2], -1).mean(axis=2))


def _barely_move(result: Result) -> Outcome:
    beside = result.one("moved") / result.one("bound")
    return all_of(
        [
            within(_over_width(result, "moved"), -0.5, 0.1, what="slope of max ‖w(k) − w(0)‖ in m"),
            bound(beside, at_most=1, statistic="max", what="max ‖w(k) − w(0)‖ beside its bound"),
        ]
    )


def _kernels(result: Result) -> Outcome:
    return all_of(
        [
            bound(_over_width(result, name), at_most=-0.2, what=f"slope of {name} in m")
            for name in ("‖H(k) − H∞‖", "‖H_PQ(P) − H∞_PQ‖")
        ]
    )


def _definite(result: Result) -> Outcome:
    above = result.one("λmin(H)") / result.one("λ0/2")
    return bound(above, at_least=1 + 1e-9, statistic="min", what="λmin(H(k)) beside λ0/2, every width")


def _proportional(result: Result) -> Outcome:
    """R² of ``flips = c R`` by seed, over widths and targets, about the mean."""
    flips = result.one("flips").reshape(len(result.one("flips")), -1)
    radius = result.one("moved").reshape(flips.shape)
    factor = (flips * radius).sum(1, keepdims=True) / (radius**2).sum(1, keepdims=True)
    left = ((flips - factor * radius) ** 2).sum(1)
    total = ((flips - flips.mean(1, keepdims=True)) ** 2).sum(1)
    return bound(1 - left / total, at_least=0.95, what="R² of flips = c R")


MEASURED: dict[str, Measured] = {
    "tr-thm1": Measured(run_lipschitz, {"": _small_and_falling}, {"": exchange("m", 0, 2)}),
    "tr-thm2": Measured(
        run_distance,
        {"a": _tight, "b": _ordered, "c": _says_which},
        {
            "a": relabel({"form": "form from scratch"}),
            "b": _reversed("form", 2),
            "c": swap("form", "form from scratch"),
        },
    ),
    "tr-thm3": Measured(run_convergence, {"": _never_above}, {"": swap("loss", "bound")}),
    "tr-lemmas": Measured(
        run_lemmas,
        {"a": _barely_move, "b": _kernels, "c": _definite, "d": _proportional},
        {
            "a": exchange("m", 0, 2),
            "b": exchange("m", 0, 2),
            "c": swap("λmin(H)", "λ0/2"),
            "d": _reversed("moved", 1),
        },
    ),
}
