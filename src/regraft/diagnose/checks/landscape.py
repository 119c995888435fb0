"""What lies around the weights? A plane of the loss, and a line through all weights at once."""

from __future__ import annotations

from typing import Any

import torch

from regraft.diagnose.checks.check import Case, Check, Outcome, Subject, Tick, unlike
from regraft.diagnose.landscape.directions import Directions, random_directions
from regraft.diagnose.landscape.evaluate import evaluate
from regraft.diagnose.landscape.plane import Plane, Summary, plane, profile
from regraft.diagnose.landscape.surrogate import most_points, surrogate_plane
from regraft.diagnose.objective import Objective
from regraft.record import Finding

__all__ = ["LANDSCAPE"]

_LINE = 13  # points of the line
_TOLERANCE, _SIZES = 1e-2, (6, 9)  # of the surrogate: as much of the range as an eye sees


def _run(case: Case, tick: Tick) -> Outcome:
    planes, subjects = [], []
    each = case.points**2 + _LINE
    for number, subject in enumerate(case.subjects):
        begun = number * each

        def step(done: int, total: int, begun: int = begun) -> None:
            tick(begun + case.points**2 * done // max(total, 1), each * len(case.subjects))

        objective = subject.objective
        directions, side = random_directions(objective, seed=case.seed), case.points
        if side**2 <= most_points(_SIZES):  # then it is exact for no more than a surrogate may take in vain
            found = plane(objective, directions, points=side, progress=step)
        else:
            found = surrogate_plane(
                objective, directions, points=side, tolerance=_TOLERANCE, sizes=_SIZES, progress=step
            )
        planes.append(found)
        least = _least(objective, directions, found)
        subjects.append(_plain(subject, found) | {"least": least, "profile": _line(case, subject)})
        tick(begun + each, each * len(case.subjects))
    objective = case.subjects[0].objective
    figure = {
        "what": f"{objective.size:,} weights ({', '.join(case.subjects[0].select)})",
        "rows": objective.rows,
        "way": planes[0].way,
        "notes": list(planes[0].notes),
        "error": max((found.error for found in planes if not found.exact), default=None),
        "subjects": subjects,
    }
    return Outcome(tuple(_findings(case, planes, subjects[0]["least"])), figure)


def _least(objective: Objective, directions: Directions, found: Plane) -> float:
    """The least rise where the loss is finite. Of an approximate plane the loss itself is taken at the lowest point:
    beside a steep rise a polynomial dips below zero where no loss does."""
    losses = found.losses.where(found.losses.isfinite(), torch.inf)
    if found.exact:
        return float(losses.min()) - found.centre
    row, column = divmod(int(losses.argmin()), len(found.betas))
    lowest = torch.tensor([[found.alphas[row], found.betas[column]]], dtype=torch.float64)
    return float(evaluate(objective, directions.vectors, lowest, way="plain").losses[0]) - found.centre


def _plain(subject: Subject, found: Plane) -> dict[str, Any]:
    summary = found.summary()
    return {
        "name": subject.name, "alphas": list(found.alphas), "betas": list(found.betas),
        "losses": found.losses.tolist(), "centre": found.centre, "rise": summary.mean_rise,
        "deviation": summary.deviation, "exact": found.exact, "points": found.points,
    }  # fmt: skip


def _line(case: Case, subject: Subject) -> dict[str, Any]:
    directions = random_directions(subject.whole, 1, seed=case.seed)
    found = profile(subject.whole, directions, points=_LINE)
    return {"at": list(found.alphas), "losses": found.losses.tolist()}


def _findings(case: Case, planes: list[Plane], least: float) -> list[Finding]:
    summaries = [found.summary() for found in planes]
    own = summaries[0]
    said = []
    if len(summaries) > 1:
        name, other = case.subjects[1].name, summaries[1]
        title = f"Around the weights the loss {_moves(own)}"
        detail = f"On {case.points} × {case.points} points of one random plane, which is one draw: not an interval."
        if why := unlike(own.centre, other.centre):
            detail += f" Beside it {name}: it {_moves(other)}. {why}"
        else:
            title += f"; {name}: it {_moves(other)}"
        rise = None if own.not_finite else own.mean_rise
        said.append(Finding("landscape-rise", title, "info", rise, "", detail=detail))
    if least < -0.05 * max(own.centre, 1e-12):
        title = f"A random step lowers the loss by {-least:.3g}: the weights are no minimum"
        said.append(Finding("no-minimum", title, "info", least, "", advice="There is room for fine-tuning."))
    return said


def _moves(summary: Summary) -> str:
    if summary.not_finite:
        return f"is no finite number at {100 * summary.not_finite:.2g} % of the points"
    return f"{'rises' if summary.mean_rise >= 0 else 'falls'} by {abs(summary.mean_rise):.3g} on average"


LANDSCAPE = Check("landscape", "Landscape", _run)
