"""The rows of paper 004 on its toy: Proposition 1, energy and direction by τ (Fig. 2), swapped heads (Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from regraft.reproduce.arms import Bench, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, by_seed, reverse_axis
from regraft.reproduce.result import Result, relabel, swap
from regraft.reproduce.taskhead.toy import BATCH, EPOCHS, LONG, MOMENTUM, POWERS, RATE, STEPS, SWEEP, TOY, bench_of
from regraft.reproduce.words import bound, greater, rank_correlation, series_correlation, share

__all__ = ["MEASURED", "RECIPE", "fig2", "prop1", "series", "swapped"]

SWAPPED = SWEEP[:7]  # the page's seven
RECIPE = {
    "source": "MLP4 on mnist, 6,000 rows: AdamW 1e-3, cosine, 30 epochs",
    "target": "digits 0-2, 3 x 500 rows, turned by up to 45 degrees, zoomed 1 to 1.5 times",
    "probing and fine-tuning": f"SGD {RATE:g}, momentum {MOMENTUM:g}, batches of {BATCH}, constant; {EPOCHS} epochs",
}


def series(found: Sequence[Mapping[str, Any]], part: str, what: str, taus: Sequence[int]) -> dict[str, list[Any]]:
    """One entry by τ for every seed, as an arm of a row without tasks."""
    return {"all": [[each[part][str(tau)][what] for tau in taus] for each in found]}


# -------------------------------------------------------------------------------------- Proposition 1


def prop1(bench: Bench) -> Result:
    """Mean drift ``E ‖Δz‖`` of the features (not squared, as in Figs. 3, 11) beside ``c · AIE``, ``c = γ C₁ C₂ T``.

    T is the number of steps and γ the rate over 1 − momentum, which is what a gradient moves the weights by in all; C₁
    the largest ``‖κ(j, n)‖_F`` among 30 rows before and after training, C₂ the largest ``‖v‖₂`` of any epoch.
    """
    found = by_seed(bench.context, partial(bench.measure, TOY, "MLP4", "toy"))
    rate = RATE / (1 - MOMENTUM)
    arms = {
        "AIE": series(found, "heads", "energy", SWEEP),
        "drift": series(found, "tuned", "distance", SWEEP),
        "accuracy": series(found, "heads", "accuracy", SWEEP),
        "bound": {
            "all": [
                [
                    rate * STEPS * tuned["kernel"] * tuned["head"] * each["heads"][tau]["energy"]
                    for tau, tuned in each["tuned"].items()
                ]
                for each in found
            ]
        },
    }
    measured = {"C₁": series(found, "tuned", "kernel", SWEEP), "C₂": series(found, "tuned", "head", SWEEP)}
    notes = {**RECIPE, "drift": "E ‖Δz‖", **measured}
    return Result(arms, {"τ": list(SWEEP)}, bench.seeds, seeds_gate(bench.seeds), notes)


def _bounded(result: Result) -> Outcome:
    violations = (result.one("drift") > result.one("bound")).sum(axis=1)
    return bound(violations, at_most=0, statistic="max", what="violations of a seed")


def _energy_drives(result: Result) -> Outcome:
    return rank_correlation(result.one("AIE").T, result.one("drift").T, 0.9, names=("AIE", "drift"))


# -------------------------------------------------------------------------------------------- Figure 2


def fig2(bench: Bench) -> Result:
    """Energy by τ up to 1,024; the head's gradient over the first ten steps of fine-tuning."""
    found = by_seed(bench.context, partial(bench.measure, TOY, "MLP4", "toy"))
    arms: dict[str, dict[str, list[Any]]] = {
        "p₀[y]": series(found, "heads", "truth", POWERS),
        "AIE": series(found, "heads", "energy", POWERS),
        "accuracy": series(found, "heads", "accuracy", POWERS),
    }
    for tau in (POWERS[0], POWERS[-1]):
        arms[f"‖∇L‖ τ={tau}"] = {"all": [float(np.mean(each["tuned"][str(tau)]["direction"][:10])) for each in found]}
    longest = {name: [each["heads"][str(LONG)][name] for each in found] for name in ("energy", "truth", "accuracy")}
    notes = {**RECIPE, f"τ = {LONG}": longest, "accuracy": "of the training rows, in points"}
    return Result(arms, {"τ": list(POWERS)}, bench.seeds, seeds_gate(bench.seeds), notes)


def _truth_grows(result: Result) -> Outcome:
    return series_correlation(result.axis("τ"), result.one("p₀[y]"), 0.95, names=("τ", "mean p₀[y]"))


def _never_zero(result: Result) -> Outcome:
    longest = int(result.axis("τ").argmax())
    return all_of(
        [
            bound(result.one("accuracy")[:, longest], at_least=99, statistic="min", what="accuracy at the longest τ"),
            bound(result.one("AIE")[:, longest], at_least=0.01, statistic="min", what="AIE at the longest τ"),
        ]
    )


def _turns(result: Result) -> Outcome:
    first, last = (result.one(f"‖∇L‖ τ={tau}") for tau in (POWERS[0], POWERS[-1]))
    return share(first > last, 1.0, what="seeds in which the head's gradient is larger at τ=0")


# ----------------------------------------------------------------------------------- swapped heads, Fig. 3


def swapped(bench: Bench) -> Result:
    """Validation accuracy of every head on every backbone, seven τ; rows are heads, columns backbones."""
    found = by_seed(bench.context, partial(bench.measure, TOY, "MLP4", "toy"))
    kept = [SWEEP.index(tau) for tau in SWAPPED]
    tables = [np.asarray(each["exchange"])[np.ix_(kept, kept)].tolist() for each in found]
    notes = {**RECIPE, "validation": "the test part's rows of digits 0-2, distorted once"}
    return Result({"accuracy": {"all": tables}}, {"τ": list(SWAPPED)}, bench.seeds, seeds_gate(bench.seeds), notes)


def _tables(result: Result) -> np.ndarray:
    """(seeds, heads, backbones), both by ascending τ."""
    order = np.argsort(result.axis("τ"), kind="stable")
    found: np.ndarray = result.one("accuracy")[:, order][:, :, order]
    return found


def _own(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every backbone its own head's accuracy, and the mean of the others' (seeds, backbones)."""
    count = tables.shape[1]
    own = np.diagonal(tables, axis1=1, axis2=2)
    return own, (tables.sum(axis=1) - own) / (count - 1)


def _diagonal(result: Result) -> Outcome:
    own, others = _own(_tables(result))
    return greater(own.mean(axis=1), others.mean(axis=1), names=("own heads", "others'"))


def _strong_differ(result: Result) -> Outcome:
    own, others = _own(_tables(result))
    drop = own - others
    names = ("drop under the first two backbones", "under the last two")
    return greater(drop[:, :2].mean(axis=1), drop[:, -2:].mean(axis=1), names=names)


def _far_heads(result: Result) -> Result:
    """Every backbone is given another's head as its own, three further on; the next one's is nearly its own."""
    rolled = {
        name: [np.roll(table, 3, axis=0).tolist() for table in rows] for name, rows in result.arms["accuracy"].items()
    }
    return replace(result, arms={"accuracy": rolled})


MEASURED: dict[str, Measured] = {
    "th-prop1": Measured(
        lambda context: prop1(bench_of(context)),
        {"a": _bounded, "b": _energy_drives},
        {"a": swap("drift", "bound"), "b": relabel({"AIE": "accuracy"})},
    ),
    "th-fig2": Measured(
        lambda context: fig2(bench_of(context)),
        {"a": _truth_grows, "b": _never_zero, "c": _turns},
        {"a": reverse_axis("τ"), "b": swap("AIE", "accuracy"), "c": swap("‖∇L‖ τ=0", "‖∇L‖ τ=1024")},
    ),
    "th-fig3-swap": Measured(
        lambda context: swapped(bench_of(context)),
        {"a": _diagonal, "b": _strong_differ},
        {"a": _far_heads, "b": reverse_axis("τ")},
    ),
}
