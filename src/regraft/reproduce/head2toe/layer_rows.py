"""Frozen rows about layers: what one more layer gives, and whether to select layers or features."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from regraft.errors import RecipeError
from regraft.reproduce.arms import Bench
from regraft.reproduce.head2toe.full import bench_of, names_of
from regraft.reproduce.head2toe.layers import (
    COUNTS,
    ONE_LAYER,
    SECOND,
    WHOLE_LAYERS,
)
from regraft.reproduce.head2toe.training import affinities, learnt
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import (
    Measured,
    Table,
    Tables,
    above,
    average,
    beside_chance,
    flatten,
    of_kind,
    reverse_axis,
    reverse_tasks,
)
from regraft.reproduce.result import Result, exchange, shuffle_tasks, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import (
    bound,
    greater,
    peak,
    rank_correlation,
    share,
    spearman,
)

__all__ = ["MEASURED", "fig4", "fig4_best", "fig4_oracle", "fig6"]

RIDGE_NOTE = "ridge heads in closed form, penalty by five folds; each block as it is or at unit norm, by the folds"


# ------------------------------------------------------------------------------------- one more layer


def _gains(values: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Gains over the embedding alone, in points: of every layer, of the best by test rows, of the best by folds."""
    out: dict[str, dict[str, list[Any]]] = {"gain by layer": {}, "oracle gain": {}, "validated gain": {}}
    for task, row in values.items():
        gains = [[accuracy - v["alone"] for accuracy in v["accuracy"]] for v in row]
        out["gain by layer"][task] = gains
        out["oracle gain"][task] = [max(gain) for gain in gains]
        out["validated gain"][task] = [gain[int(np.argmax(v["score"]))] for gain, v in zip(gains, row)]
    return out


def fig4(bench: Bench, network: str = "V1a") -> Result:
    """Gains of the embedding with one more layer, beside affinity."""
    table = Tables(bench)
    values = table.values(ONE_LAYER, network)
    first = next(iter(values.values()))[0]
    arms: dict[str, Table] = {**_gains(values), "affinity": affinities(table, network)}
    notes = {"layers": first["names"], "heads": RIDGE_NOTE, **learnt(table, [network])}
    axes = {"layer": list(range(len(first["names"])))}
    return Result(arms, axes, bench.seeds, table.gates("h2t-fig4-8r"), notes)


def _far_gain_more(result: Result) -> Outcome:
    affinity = result.arm("affinity")
    return all_of(
        [
            rank_correlation(affinity, result.arm(arm), -0.5, side="<=", names=("affinity", arm))
            for arm in ("oracle gain", "validated gain")
        ]
    )


def _layers(result: Result) -> np.ndarray:
    """Gains (tasks, seeds, layers) in the order of the layers, without one that adds nothing to any task: the last
    activation, pooled, is the embedding itself."""
    gain = result.arm("gain by layer")[:, :, np.argsort(result.axis("layer"))]
    return gain[:, :, (gain != 0).any(axis=(0, 1))]


def _by_layer(result: Result) -> np.ndarray:
    """ρ of affinity and gain over tasks, by seed and layer, in the order of the layers: (seeds, layers)."""
    affinity, gain = result.arm("affinity"), _layers(result)
    seeds, layers = gain.shape[1:]
    return np.array([[spearman(affinity[:, s], gain[:, s, k]) for k in range(layers)] for s in range(seeds)])


def _every_layer(result: Result) -> Outcome:
    """Each layer by the word, its bound included; shown is the one that is furthest from it."""
    affinity, gain = result.arm("affinity"), _layers(result)
    each = [
        rank_correlation(affinity, gain[:, :, k], 0.2, side="<=", names=("affinity", "gain of a layer"))
        for k in range(gain.shape[2])
    ]
    if any(math.isnan(outcome.estimate) for outcome in each):
        return Outcome.unmeasurable(each[0].needed, "a layer's points", each[0].side)
    worst = max(each, key=lambda outcome: (not outcome.holds, outcome.high))
    held = sum(outcome.holds for outcome in each)
    return replace(worst, sentence=f"{held} of {len(each)} layers; the worst: {worst.sentence}")


def _late_below_early(result: Result) -> Outcome:
    rho = _by_layer(result)
    third = rho.shape[1] // 3
    return greater(rho[:, :third].mean(1), rho[:, -third:].mean(1), names=("mean ρ of the early third", "late third"))


def fig4_best(bench: Bench, network: str = "V1a") -> Result:
    """Which layer helps each task most, by the folds."""
    table = Tables(bench)
    values = table.values(ONE_LAYER, network)
    scores = {task: [v["score"] for v in row] for task, row in values.items()}
    names = next(iter(values.values()))[0]["names"]
    best = {task: names[int(np.argmax(np.mean(row, axis=0)))] for task, row in scores.items()}
    arms: dict[str, Table] = {"score by layer": scores, "gain": _gains(values)["validated gain"]}
    notes = {"kinds": table.kinds(), "best layer": best, "heads": RIDGE_NOTE}
    axes = {"layer": list(range(len(names)))}
    return Result(arms, axes, bench.seeds, table.gates("h2t-fig4-9"), notes)


def _different_layers(result: Result) -> Outcome:
    score = result.arm("score by layer")
    best = score.mean(1).argmax(1)
    found = bound([len(set(best.tolist()))], at_least=4, what="different best layers over the tasks")
    return beside_chance(found, depth=score.argmax(2)) if np.isfinite(score).all() else found


def _near_gain_less(result: Result) -> Outcome:
    first = "near" if "near" in result.notes["kinds"].values() else "natural"
    near, far = (average(of_kind(result, "gain", kind)) for kind in (first, "structured"))
    return greater(far, near, names=("gain on structured", f"on {first}"))


def fig4_oracle(bench: Bench, network: str = "R56", other: str = "R20") -> Result:
    """The embedding with a layer of about its width, or with another network's embedding."""
    table = Tables(bench)
    values = table.values(ONE_LAYER, network)
    gains = _gains(values)
    linear = {task: [v["alone"] for v in row] for task, row in values.items()}

    def plus(gain: str) -> Table:
        return {task: [a + g for a, g in zip(linear[task], gains[gain][task])] for task in linear}

    arms: dict[str, Table] = {
        "Linear": linear,
        "Control": table(SECOND, network, other=other),
        "Oracle": plus("oracle gain"),
        "validated layer": plus("validated gain"),
    }
    notes = {"Oracle": "the layer is chosen on the test rows", "heads": RIDGE_NOTE, "kinds": table.kinds()}
    return Result(arms, {}, bench.seeds, table.gates("h2t-fig4-oracle"), notes)


# ------------------------------------------------------------------------------------- features or layers


def fig6(bench: Bench, network: str = "V1a") -> Result:
    """As many features by their own scores, or whole layers by mean score or by a lasso over layers."""
    table = Tables(bench)
    values = table.values(WHOLE_LAYERS, network)
    arms = {arm: {task: [v[arm] for v in row] for task, row in values.items()} for arm in ("feature", "mean", "group")}
    first = next(iter(values.values()))[0]
    notes = {"counts": first["counts"], "width": first["width"], "layers": first["layers"]}
    return Result(arms, {"share": list(COUNTS)}, bench.seeds, table.gates("h2t-fig6-10"), notes)


def _over_counts(result: Result, arm: str) -> np.ndarray:
    mean: np.ndarray = result.arm(arm).mean(axis=2)
    return mean


def _features_win(result: Result) -> Outcome:
    feature = _over_counts(result, "feature")
    return all_of(
        [greater(feature, _over_counts(result, arm), names=("feature-wise", arm)) for arm in ("mean", "group")]
    )


def _on_most_tasks(result: Result) -> Outcome:
    feature, mean, group = (
        _over_counts(result, arm).mean(axis=1, keepdims=True) for arm in ("feature", "mean", "group")
    )
    layers = np.maximum(mean, group)
    return share(feature > layers, 0.7, baseline=layers, what="tasks on which feature-wise is better than both")


def _few_beat_all(result: Result) -> Outcome:
    feature = average(result.arm("feature"))
    return peak(result.axis("share"), feature[:-2], feature[-2:], above="last", names=("share", "accuracy"))


def _run_oracle(context: Context) -> Result:
    if context.scale == "full":
        raise RecipeError(
            "the control of this row is a second ResNet-50 trained with another seed",
            expected="scale mini, where a ResNet-20 stands for it",
        )
    return fig4_oracle(bench_of(context))


MEASURED: dict[str, Measured] = {
    "h2t-fig4-8r": Measured(
        lambda context: fig4(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _far_gain_more, "b": _every_layer, "c": _late_below_early},
        {"a": shuffle_tasks("affinity"), "b": reverse_tasks("affinity"), "c": reverse_axis("layer")},
    ),
    "h2t-fig4-9": Measured(
        lambda context: fig4_best(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _different_layers, "b": _near_gain_less},
        {"a": flatten("score by layer"), "b": reverse_tasks("gain")},
    ),
    "h2t-fig4-oracle": Measured(
        _run_oracle,
        {"a": above("Control", "Linear"), "b": above("Oracle", "Control")},
        {"a": swap("Control", "Linear"), "b": swap("Oracle", "Control")},
    ),
    "h2t-fig6-10": Measured(
        lambda context: fig6(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _features_win, "b": _on_most_tasks, "c": _few_beat_all},
        {"a": swap("feature", "group"), "b": swap("feature", "mean"), "c": exchange("share", 4, 7)},
    ),
}
