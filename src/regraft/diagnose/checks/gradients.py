"""What do gradients see? Their size by layer, their way down, what steps along them do, where the weights lie."""

from __future__ import annotations

import math
from typing import Any

from scipy.special import stdtrit

from regraft.diagnose.checks.check import Case, Check, Outcome, Subject, Tick, unlike
from regraft.diagnose.gradients.magnitude import magnitudes
from regraft.diagnose.gradients.projection import projections
from regraft.diagnose.gradients.scaling import scaling
from regraft.diagnose.gradients.variation import variation
from regraft.errors import RegraftError
from regraft.files import plain
from regraft.record import Finding, Severity

__all__ = ["GRADIENTS"]

_PLACES = 5  # of fewer a slope says little
_STEPS, _SIZE = 10, 0.01  # of the variation: fewer than the paper's hundred, for each is a pass over the rows


def _run(case: Case, tick: Tick) -> Outcome:
    subjects = []
    for number, subject in enumerate(case.subjects):
        subjects.append(_measured(subject))
        tick(number + 1, len(case.subjects))
    return Outcome(
        tuple(_findings(subjects, case.labelled is not None)), {"subjects": subjects, "steps": _STEPS, "size": _SIZE}
    )


def _measured(subject: Subject) -> dict[str, Any]:
    whole = subject.whole
    found = magnitudes(whole)
    layers = [{"name": part.name, "norm": part.norm, "relative": part.relative} for part in found.layers]
    said: dict[str, Any] = {"name": subject.name, "loss": found.loss, "norm": found.norm, "layers": layers}
    skipped = said["skipped"] = []
    try:
        flow = scaling(whole)
        said["flow"] = [{"site": site.name, "norm": site.norm} for site in flow.sites]
        said["slope"] = {"value": flow.slope, "error": flow.error}
    except RegraftError as error:  # of a network with few places
        skipped.append(_why("gradient-scale", "How the gradient scales from place to place", error))
    try:
        along = variation(whole, size=_SIZE, steps=_STEPS)
        said["variation"] = plain({"changes": along.changes, "largest": along.maximum, "error": along.error})
    except RegraftError as error:  # of a gradient that is zero
        skipped.append(_why("variation", "Change of the loss along its gradient", error))
    try:
        said["decile"] = projections(whole).top
    except RegraftError as error:
        skipped.append(_why("projection", "Weights along their gradients", error))
    return said


def _why(code: str, title: str, error: RegraftError) -> dict[str, str]:
    """Why a part is left out; what to do is said to those who call it, and no option of a diagnosis."""
    why = str(RegraftError(error.what, expected=error.expected, got=error.got))
    return {"code": code, "title": f"{title} not measured", "why": why}


def _findings(subjects: list[dict[str, Any]], untrained: bool) -> list[Finding]:
    """Advice is for what is yet to be trained."""
    said = []
    own = subjects[0]
    if slope := own.get("slope"):
        value, error = slope["value"], slope["error"]
        half = float(stdtrit(len(own["flow"]) - 2, 0.975)) * error
        places, way = len(own["flow"]), "grows" if value < 0 else "fades"
        told = abs(value) > half
        steep = untrained and places >= _PLACES and -value > max(0.3, half)  # what fades harms no training
        title = f"From each layer to the one below it the gradient {way} by {100 * abs(math.expm1(-value)):.0f} %"
        detail = f"Slope of log ‖∂L/∂x‖ over {places} places: {value:.3g} ± {error:.2g}."
        if not told:
            title = f"Whether the gradient grows or fades from layer to layer is not told by {places} places"
            detail = f"{detail[:-1]} (95 % interval {value - half:.3g} to {value + half:.3g})."
        if len(subjects) > 1 and (other := subjects[1].get("slope")):
            detail += f" Beside it {subjects[1]['name']}: {other['value']:.3g} ± {other['error']:.2g}."
        advice = "Fix a lower rate (--lr) where a training does not hold." if steep else ""
        severity: Severity = "advice" if steep else "info"
        said.append(Finding("gradient-scale", title, severity, value if told else None, "per place",
                            value - half, value + half, detail, advice))  # fmt: skip
    if len(subjects) > 1 and all("variation" in subject for subject in subjects[:2]):
        first, second = (subject["variation"] for subject in subjects[:2])
        largest = first["largest"]
        way = "lead to no finite loss" if largest is None else f"change the loss by {largest:.3g} at most"
        title = f"{_STEPS} steps along the gradient {way}"
        detail = f"On one line through all weights; a step is {_SIZE:g} of the gradient."
        most = second["largest"]
        beside = f"{subjects[1]['name']}: {'to no finite loss' if most is None else f'by {most:.3g}'}"
        if why := unlike(subjects[0]["loss"], subjects[1]["loss"]):
            detail += f" Beside it {beside}. {why}"
        else:
            title += f"; {beside}"
        said.append(Finding("variation", title, "info", largest, "", detail=detail))
    left_out = (Finding(part["code"], part["title"], "not-applicable", detail=part["why"]) for part in own["skipped"])
    return [*said, *left_out]


GRADIENTS = Check("gradients", "Gradients", _run)
