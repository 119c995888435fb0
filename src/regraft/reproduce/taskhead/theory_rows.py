"""The rows of paper 004 on its linear theory (Appendix D): critical points, trends, and really training the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from regraft.diagnose import drift
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, relabel, swap
from regraft.reproduce.row import Context
from regraft.reproduce.taskhead.theory import Model, aligned, generic, head_for
from regraft.reproduce.words import bound, slope, within

__all__ = ["MEASURED", "descend", "lemmas", "trends"]

DRAWS = 20  # the page's
STEP = 0.01  # of the path q₀ = s Y
RATES = tuple(0.5**k for k in range(1, 6))  # in units of the largest stable rate
TIME = 40.0  # of the descents whose invariant is followed, in the same units
LAZY = (0.1, 0.03, 0.01, 0.003)  # ‖Y‖ in units of the largest that the head can give
_CLOSE = 1e-9


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value))


# ------------------------------------------------------------------------------------- Lemmas 1 to 3


def lemmas(seed: int) -> dict[str, float]:
    """Relative errors of the lemmas on a draw, every derivative by automatic differentiation through B_t itself.

    ``q₀`` is varied by varying the head at a fixed norm, so nothing of the lemmas' algebra is used. Gradients are
    relative to that at ``q₀ = Y``; ``aligned`` and ``unaligned`` are the sine between Y and Lemma 3's point.
    """
    model, even = generic(seed), aligned(seed)
    labels = model.labels
    by_weights = jacobian(lambda b: model.inputs @ b.T @ model.head, model.backbone)
    products = by_weights.flatten(1) @ model.backbone.flatten()

    def dot(outputs: Tensor) -> Tensor:
        return head_for(model, outputs).dot

    def norm(outputs: Tensor) -> Tensor:
        return head_for(model, outputs).norm

    def relative(function: Callable[[Tensor], Tensor], at: Tensor) -> float:
        return _norm(jacobian(function, at)) / _norm(jacobian(function, labels))

    corrected, printed = (model.critical_norm(k) for k in (model.backbone_kernel, model.head_kernel))
    curved = -2 * torch.linalg.inv(model.kernel)  # negative definite: Lemma 2's point is a maximum
    off = _norm(hessian(dot, labels / 2) - curved) / _norm(curved)
    highest = torch.linalg.eigvalsh(hessian(norm, corrected))[-1]
    return {
        "Lemma 1": _norm(products - model.outputs) / _norm(model.outputs),
        "Lemma 2": max(relative(dot, labels / 2), off),
        "Lemma 3 corrected": relative(norm, corrected),
        "Lemma 3 printed": relative(norm, printed),
        "aligned": _sine(even.critical_norm(even.backbone_kernel), even.labels),
        "unaligned": _sine(corrected, labels),
        "highest curvature": float(highest),
    }


def _sine(one: Tensor, other: Tensor) -> float:
    """Of the angle between two vectors, accurate where it is small."""
    along = other * (one @ other) / (other @ other)
    return _norm(one - along) / _norm(one)


def run_lemmas(context: Context) -> Result:
    """Every draw."""
    found = [lemmas(draw) for draw in range(DRAWS)]
    arms = {name: {"all": [each[name] for each in found]} for name in found[0] if name != "highest curvature"}
    notes = {
        "model": "N 6, d 12, h 10, float64; unaligned: Gaussian; aligned: X Xᵀ = I and X B₀ᵀB₀ Xᵀ = c I",
        "highest curvature at Lemma 3's point": [each["highest curvature"] for each in found],
    }
    return Result(arms, {}, tuple(range(DRAWS)), notes=notes)


def _first_two(result: Result) -> Outcome:
    return all_of(
        [
            bound(result.one(name), at_most=_CLOSE, statistic="max", what=f"error of {name}")
            for name in ("Lemma 1", "Lemma 2")
        ]
    )


def _third(result: Result) -> Outcome:
    corrected, printed = result.one("Lemma 3 corrected"), result.one("Lemma 3 printed")
    return all_of(
        [
            bound(corrected, at_most=_CLOSE, statistic="max", what="gradient at the corrected point"),
            bound(printed, at_least=_CLOSE, statistic="min", what="gradient at the printed point"),
        ]
    )


def _multiple(result: Result) -> Outcome:
    return all_of(
        [
            bound(result.one("aligned"), at_most=_CLOSE, statistic="max", what="sine to Y where X Xᵀ ∝ K₀"),
            bound(result.one("unaligned"), at_least=_CLOSE, statistic="min", what="sine to Y elsewhere"),
        ]
    )


# ----------------------------------------------------------------------------- Proposition 2, Table 9


def trends(seed: int) -> dict[str, list[float]]:
    """The four measures along ``q₀ = s Y``, s from 1 to 0, on whitened inputs with ``X Xᵀ ∝ K₀`` and a fixed ‖v₀‖.

    Features are those of the N inputs, by the backbone of Eq. 31: means of :class:`regraft.diagnose.Drift`.
    """
    model = aligned(seed)
    before = model.inputs @ model.backbone.T
    out: dict[str, list[float]] = {name: [] for name in ("euc", "dot", "norm", "cos")}
    for share in _path():
        tuned = head_for(model, float(share) * model.labels).tuned_backbone
        moved = drift(before, model.inputs @ tuned.T)
        for name, value in zip(out, (moved.change, moved.dot, moved.norm, moved.cosine)):
            out[name].append(value)
    return out


def _path() -> np.ndarray:
    return np.linspace(1.0, 0.0, round(1 / STEP) + 1)


def run_trends(context: Context) -> Result:
    """Every draw's curves, and the share r of the kernel that the backbone has."""
    found, shares = [trends(draw) for draw in range(DRAWS)], []
    for draw in range(DRAWS):
        model = aligned(draw)
        shares.append(float((model.backbone_kernel.diagonal() / model.kernel.diagonal()).mean()))
    arms: dict[str, dict[str, list[Any]]] = {name: {"all": [each[name] for each in found]} for name in found[0]}
    arms["r"] = {"all": shares}
    return Result(arms, {"q₀/Y": _path().tolist()}, tuple(range(DRAWS)), notes={"model": "N 6, d 12, h 10, float64"})


ARROWS: tuple[dict[str, int], ...] = (
    {"euc": 1, "dot": 1, "norm": 1},
    {"euc": 1, "dot": -1, "norm": 1, "cos": -2},
    {"euc": 1, "dot": -1, "norm": -1},
)
"""Table 9, by phase: Y → ½Y, ½Y → αY, αY → 0; the energy, its first column, is the axis itself. A double arrow is
also steeper than the phase before it."""


def _alpha(result: Result) -> np.ndarray:
    r = result.one("r")
    alpha: np.ndarray = (1 - r) / (2 - r)
    return alpha


def _phases(result: Result) -> list[list[np.ndarray]]:
    """For every draw the positions along the path of each phase, in the order in which q₀ goes from Y to 0."""
    axis = result.axis("q₀/Y")
    order = np.argsort(-axis, kind="stable")
    ends = [(1.0, 0.5, a, 0.0) for a in _alpha(result)]
    return [
        [order[(axis[order] <= high + 1e-12) & (axis[order] >= low - 1e-12)] for high, low in itertools.pairwise(e)]
        for e in ends
    ]


def _follows(result: Result, arrows: Sequence[dict[str, int]], what: str) -> Outcome:
    """How many arrows a draw does not follow, strictly, at every step of the path."""
    wrong = np.zeros(len(result.seeds))
    for draw, phases in enumerate(_phases(result)):
        before = phases[0]
        for phase, signs in zip(phases, arrows):
            for name, sign in signs.items():
                curve = result.one(name)[draw] * np.sign(sign)
                rises = np.diff(curve[phase])
                steeper = abs(sign) < 2 or (len(rises) and rises.mean() > np.diff(curve[before]).mean())
                wrong[draw] += not (len(rises) and bool((rises > 0).all()) and steeper)
            before = phase
    return bound(wrong, at_most=0, statistic="max", what=what)


def _arrows(result: Result) -> Outcome:
    return _follows(result, ARROWS, "arrows of Table 9 that a draw does not follow")


def _peaks(result: Result) -> Outcome:
    axis = result.axis("q₀/Y")
    dots, norms = (axis[result.one(name).argmax(axis=1)] for name in ("dot", "norm"))
    return all_of(
        [
            bound(np.abs(dots - 0.5), at_most=0.01, statistic="max", what="peak of the dot product, from ½"),
            bound(np.abs(norms - _alpha(result)), at_most=0.01, statistic="max", what="peak of the norm, from α"),
        ]
    )


def _unknown(result: Result) -> Outcome:
    return _follows(result, ({"cos": -1}, {}, {"cos": -1}), 'phases of "???" in which a draw\'s cosine does not fall')


# ------------------------------------------------------------------------------- Equations 28 to 31


def descend(model: Model, rate: float, steps: int) -> tuple[Tensor, Tensor]:
    """(B, v) after gradient descent on ``½ ‖X Bᵀ v − Y‖²`` at a constant rate, both moving together (Eq. 1)."""
    backbone, head = model.backbone, model.head
    for _ in range(steps):
        pulled = model.inputs.T @ (model.inputs @ (backbone.T @ head) - model.labels)  # (d,)
        backbone, head = backbone - rate * torch.outer(head, pulled), head - rate * (backbone @ pulled)
    return backbone, head


def _stable(model: Model) -> float:
    """``1 / λ_max(K₀)``."""
    return 1.0 / float(torch.linalg.eigvalsh(model.kernel)[-1])


def _broken(model: Model, rate: float) -> float:
    """By how much ``v vᵀ − B Bᵀ`` has moved (Eq. 28) after a fixed time, in units of its norm."""
    unit = _stable(model)
    backbone, head = descend(model, rate * unit, round(TIME / rate))
    before = torch.outer(model.head, model.head) - model.backbone @ model.backbone.T
    return _norm(torch.outer(head, head) - backbone @ backbone.T - before) / _norm(before)


def _missed(model: Model, level: float) -> float:
    """Relative error of the closed form's change of all weights, beside that of training to convergence.

    Smaller labels are larger weights: the residual moves them less (lazy training: Chizat et al., 2019).
    """
    lazy = Model(model.inputs, level * model.labels, model.backbone, model.head)
    lazy = head_for(lazy, torch.zeros_like(lazy.labels))
    slowest = float(torch.linalg.eigvalsh(lazy.kernel)[0])
    rate = _stable(lazy)
    backbone, head = descend(lazy, rate, round(30 / (rate * slowest)))
    trained = torch.cat([(backbone - lazy.backbone).flatten(), head - lazy.head])
    closed = torch.cat([(lazy.tuned_backbone - lazy.backbone).flatten(), lazy.tuned_head - lazy.head])
    return _norm(trained - closed) / _norm(trained)


def run_training(context: Context) -> Result:
    """Both parts for every seed."""
    models = [generic(seed) for seed in context.seeds]
    arms: dict[str, dict[str, list[Any]]] = {
        "invariant": {"all": [[_broken(model, rate) for rate in RATES] for model in models]},
        "weights": {"all": [[_moved(model, rate) for rate in RATES] for model in models]},
        "error": {"all": [_missed(model, LAZY[-1]) for model in models]},
        "error, not lazy": {"all": [_missed(model, 1.0) for model in models]},
    }
    notes = {
        "model": "N 6, d 12, h 10, float64, Gaussian; from q₀ = 0; lazy: the labels made smaller by the named factor",
        "error by factor": {f"{level:g}": [_missed(model, level) for model in models] for level in LAZY},
    }
    return Result(arms, {"rate": list(RATES)}, context.seeds, seeds_gate(context.seeds), notes)


def _moved(model: Model, rate: float) -> float:
    """What the invariant is compared with: how far ``B Bᵀ`` itself has moved, which no rate makes small."""
    backbone, _ = descend(model, rate * _stable(model), round(TIME / rate))
    before = model.backbone @ model.backbone.T
    return _norm(backbone @ backbone.T - before) / _norm(before)


def _conserved(result: Result) -> Outcome:
    return within(
        slope(result.axis("rate"), result.one("invariant")), 1.0, 0.1, what="slope of Eq. 28's drift in the rate"
    )


def _closed(result: Result) -> Outcome:
    return bound(result.one("error"), at_most=0.02, statistic="max", what="relative error of the closed form")


MEASURED: dict[str, Measured] = {
    "th-lem1-3": Measured(
        run_lemmas,
        {"a": _first_two, "b": _third, "c": _multiple},
        {
            "a": relabel({"Lemma 2": "Lemma 3 printed"}),
            "b": swap("Lemma 3 corrected", "Lemma 3 printed"),
            "c": swap("aligned", "unaligned"),
        },
    ),
    "th-prop2": Measured(
        run_trends,
        {"a": _arrows, "b": _peaks, "c": _unknown},
        {"a": swap("dot", "norm"), "b": swap("dot", "norm"), "c": swap("cos", "euc")},
    ),
    "th-eq28-31": Measured(
        run_training,
        {"a": _conserved, "b": _closed},
        {"a": swap("invariant", "weights"), "b": swap("error", "error, not lazy")},
    ),
}
