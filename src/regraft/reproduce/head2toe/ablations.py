"""Frozen rows that vary Head2Toe: where its features lie, less data, other taps, other normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regraft.reproduce.arms import Bench
from regraft.reproduce.head2toe.frozen import H2T, LINEAR
from regraft.reproduce.head2toe.full import bench_of, names_of
from regraft.reproduce.head2toe.layers import OVERLAP_SHARE
from regraft.reproduce.head2toe.training import affinities, learnt
from regraft.reproduce.head2toe.variants import NORM, REFERENCE, REFERENCE_CELL, STRENGTHS, TAPS
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import (
    Measured,
    Tables,
    above,
    average,
    everywhere,
    mirror,
    networks,
    reverse_axis,
)
from regraft.reproduce.result import Result, relabel, shuffle_axis, shuffle_tasks, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import (
    about,
    bound,
    greater,
    rank_correlation,
    series_correlation,
)

__all__ = ["MEASURED", "dist", "fig13", "norm", "table67"]

NETWORKS = ("V1a", "R56")
THREE = ("flowers5", "usps", "pos-x")
THREE_OF_VTAB = ("oxford_flowers102", "svhn", "dsprites_loc")
FRACTIONS_OF_DATA = (0.25, 0.5, 0.75, 1.0)


# ------------------------------------------------------------------------------------- where features lie


def dist(bench: Bench, judged: Sequence[str] = NETWORKS, shown: Sequence[str] = ("TViT",)) -> Result:
    """Mean relative depth of what the search keeps, and how many layers it comes from."""
    table, arms, notes = Tables(bench), {}, {}
    for name in (*judged, *shown):
        values = table.values(H2T, name)
        arms[f"{name} depth"] = {task: [v["depth"] for v in row] for task, row in values.items()}
        arms[f"{name} hit"] = {task: [v["layers_hit"] for v in row] for task, row in values.items()}
        arms[f"{name} hit whole"] = {task: [v["layers_hit_layerwise"] for v in row] for task, row in values.items()}
        notes[f"{name} kept by layer, first seed"] = {task: row[0]["layers"] for task, row in values.items()}
    for name in judged:
        arms[f"{name} affinity"] = affinities(table, name)
    notes |= learnt(table, judged)
    return Result(arms, {}, bench.seeds, table.gates("h2t-dist"), notes)


def _deeper_when_near(result: Result) -> Outcome:
    return all_of(
        [
            rank_correlation(
                result.arm(f"{n} affinity"), result.arm(f"{n} depth"), 0.4, names=(f"{n} affinity", "depth")
            )
            for n in networks(result, "affinity")
        ]
    )


def _more_layers(result: Result) -> Outcome:
    return all_of(
        [
            bound(
                average(result.arm(f"{n} hit") / result.arm(f"{n} hit whole")),
                at_least=2,
                what=f"{n} layers hit, over those of whole layers",
            )
            for n in networks(result, "affinity")
        ]
    )


def _shuffled_depth(result: Result) -> Result:
    return shuffle_tasks(f"{networks(result, 'affinity')[0]} depth")(result)


# ------------------------------------------------------------------------------------- data, taps, norms


def fig13(bench: Bench, network: str = "V1a", fractions: Sequence[float] = FRACTIONS_OF_DATA) -> Result:
    """Linear and H2T with a part of the training rows of every class."""
    table, arms = Tables(bench), {}
    for name, arm in (("Linear", LINEAR), ("H2T", H2T)):
        parts = [table(arm, network, fraction=f) if f < 1 else table(arm, network) for f in fractions]
        arms[name] = {task: [list(steps) for steps in zip(*(part[task] for part in parts))] for task in bench.tasks}
    notes = {"rows": "⌊1000 f / C⌋ of every class, at least one; a class with fewer rows gives all; f = 1: every row"}
    return Result(arms, {"f": list(fractions)}, bench.seeds, table.gates("h2t-fig13"), notes)


def _rises(result: Result) -> Outcome:
    f, accuracy = result.axis("f"), average(result.arm("H2T"))
    first, last = int(f.argmin()), int(f.argmax())
    return all_of(
        [
            series_correlation(f, accuracy, 0.9, names=("f", "H2T")),
            greater(accuracy[:, last], accuracy[:, first], names=("H2T at f=1", "at f=.25")),
        ]
    )


def _gain_rises(result: Result) -> Outcome:
    f, gain = result.axis("f"), result.arm("H2T") - result.arm("Linear")
    first, last = int(f.argmin()), int(f.argmax())
    return greater(gain[..., last], gain[..., first], names=("H2T − Linear at f=1", "at f=.25"))


def table67(bench: Bench, network: str = "V1a", tokens: str = "TViT") -> Result:
    """Activations or what comes before them; tokens pooled, CLS alone, CLS beside."""
    table, arms = Tables(bench), {}
    arms["original"] = table(H2T, network)
    for variant in ("pre-normalisation", "pre-activation", "with input"):
        arms[variant] = table(TAPS, network, variant=variant)
    arms["tokens original"] = table(H2T, tokens)
    for variant in ("only CLS", "with CLS"):
        arms[f"tokens {variant}"] = table(TAPS, tokens, variant=variant)
    return Result(arms, {}, bench.seeds, table.gates("h2t-table6-7"), {"networks": [network, tokens]})


def _before_activation(result: Result) -> Outcome:
    return all_of(
        [
            greater(result.arm("original"), result.arm(arm), names=("original", arm))
            for arm in ("pre-normalisation", "pre-activation")
        ]
    )


def _only_cls(result: Result) -> Outcome:
    return greater(result.arm("tokens original"), result.arm("tokens only CLS"), 1, names=("original", "only CLS"))


def _with_cls(result: Result) -> Outcome:
    return about(result.arm("tokens with CLS"), result.arm("tokens original"), 0.7, names=("with CLS", "original"))


def norm(bench: Bench, networks: Sequence[str] = NETWORKS, three: Sequence[str] = THREE) -> Result:
    """Unit norm by layer, none, by feature; the reference scorer over its λ."""
    table, arms, curve = Tables(bench), {}, {}
    for name in networks:
        for scaling in ("unit", "none", "feature"):
            arms[f"{name} {scaling}"] = table(NORM, name, scaling=scaling)
        steps = [table(REFERENCE, name, tasks=three, strength=s, fraction=OVERLAP_SHARE) for s in STRENGTHS]
        for task in three:
            curve[f"{name} {task}"] = [list(values) for values in zip(*(step[task] for step in steps))]
    notes = {"reference": {**REFERENCE_CELL, "strength": list(STRENGTHS), "F": OVERLAP_SHARE}}
    return Result({**arms, "over λ": curve}, {"λ": list(STRENGTHS)}, bench.seeds, table.gates("h2t-norm"), notes)


def _unit_over(other: str, result: Result) -> Outcome:
    return greater(everywhere(result, "unit"), everywhere(result, other), names=("unit", other))


def _over_none(result: Result) -> Outcome:
    return _unit_over("none", result)


def _over_feature(result: Result) -> Outcome:
    return _unit_over("feature", result)


def _forgiving(result: Result) -> Outcome:
    over = average(result.arm("over λ"))
    return bound(over.max(axis=1) - over.min(axis=1), at_most=1.5, what="range over λ of the mean over tasks")


def _one_worse(result: Result) -> Result:
    """At the last λ every task gets the numbers of the lowest task."""
    curve = result.arms["over λ"]
    low = min(curve, key=lambda task: float(np.mean(curve[task])))
    moved = {task: [[*s[:-1], t[-1]] for s, t in zip(curve[task], curve[low])] for task in curve}
    return Result({**result.arms, "over λ": moved}, result.axes, result.seeds, result.gates, result.notes)


def _run_norm(context: Context) -> Result:
    three = THREE if context.scale != "full" else THREE_OF_VTAB
    return norm(bench_of(context), names_of(context, NETWORKS), three)


def _run_dist(context: Context) -> Result:
    return dist(bench_of(context), names_of(context, NETWORKS), names_of(context, ("TViT",)))


MEASURED: dict[str, Measured] = {
    "h2t-dist": Measured(
        _run_dist,
        {"a": _deeper_when_near, "b": _more_layers},
        {"a": _shuffled_depth, "b": mirror([("hit", "hit whole")])},
    ),
    "h2t-fig13": Measured(
        lambda context: fig13(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _rises, "b": _gain_rises},
        {"a": shuffle_axis("f"), "b": reverse_axis("f")},
    ),
    "h2t-table6-7": Measured(
        lambda context: table67(bench_of(context), *names_of(context, ("V1a", "TViT"))),
        {"a": _before_activation, "b": above("original", "with input"), "c": _only_cls, "d": _with_cls},
        {
            "a": swap("original", "pre-activation"),
            "b": swap("original", "with input"),
            "c": swap("tokens original", "tokens only CLS"),
            "d": relabel({"tokens with CLS": "tokens only CLS"}),
        },
        {"a": 2.3, "b": 0.8},
    ),
    "h2t-norm": Measured(
        _run_norm,
        {"a": _over_none, "b": _over_feature, "c": _forgiving},
        {"a": mirror([("unit", "none")]), "b": mirror([("unit", "feature")]), "c": _one_worse},
    ),
}
