"""How sharp is the loss? Its largest eigenvalues, certified, and the density of all."""

from __future__ import annotations

from typing import Any

import torch

from regraft.diagnose.checks.check import Case, Check, Outcome, Subject, Tick
from regraft.diagnose.curvature.spectrum import Spectrum, curvature
from regraft.record import Finding

__all__ = ["CURVATURE"]

_PROBES, _STEPS = 3, 20  # of the density
_GRID = 60  # points at which it is drawn
_DECADES = 6  # below the largest eigenvalue
_NOTHING = 1e-12  # a share that is rounding
_LIKE = 1.2  # losses that differ by more are not alike
_SAME = 1.05  # a ratio of curvatures that is not worth a word


def _run(case: Case, tick: Tick) -> Outcome:
    found = []
    for number, subject in enumerate(case.subjects):
        step = _after(tick, number, len(case.subjects))
        objective, top = subject.objective, case.top
        found.append(curvature(objective, k=top, probes=_PROBES, steps=_STEPS, seed=case.seed, progress=step))
    first = found[0]
    figure = {
        "matrix": first.matrix,
        "parameters": first.parameters,
        "rows": first.rows,
        "subjects": [_plain(subject, spectrum) for subject, spectrum in zip(case.subjects, found)],
    }
    return Outcome(tuple(_findings(case, found)), figure)


def _after(tick: Tick, number: int, count: int) -> Tick:
    """Progress in hundredths of all subjects."""
    return lambda done, total: tick(100 * number + 100 * done // max(total, 1), 100 * count)


def _plain(subject: Subject, spectrum: Spectrum) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": subject.name,
        "loss": spectrum.loss,
        "gradient": spectrum.gradient_norm,
        "eigenvalues": spectrum.values.tolist(),
        "bounds": spectrum.bounds.tolist(),
        "converged": spectrum.top.converged,
        "message": spectrum.top.message,
        "products": spectrum.products,
        "seconds": spectrum.seconds,
    }
    if spectrum.trace is not None:
        found["trace"] = {"value": spectrum.trace.value, "error": spectrum.trace.error}
    if spectrum.density is not None and (most := float(spectrum.density.nodes.max())) > 0:
        at = most * torch.logspace(-_DECADES, 0, _GRID, dtype=torch.float64)
        below, error = spectrum.density.cumulative(at)
        share = torch.where(below < 1 - _NOTHING, 1 - below, torch.zeros_like(below))
        found["above"] = {"at": at.tolist(), "share": share.tolist(), "error": error.tolist()}
        negative, error = spectrum.density.cumulative(torch.tensor([-most * 10.0**-_DECADES], dtype=torch.float64))
        found["negative"] = {"share": float(negative), "error": float(error)}
    return found


def _findings(case: Case, found: list[Spectrum]) -> list[Finding]:
    first, sharpest = found[0], float(found[0].values[0]) if len(found[0].values) else 0.0
    said = []
    if len(found) > 1:
        said.append(_beside(case, found))
    if sharpest > 0:
        rate = 2 / sharpest
        detail = f"The largest eigenvalue is {sharpest:.3g} ± {float(first.bounds[0]):.1g}; momentum and decay move it."
        title = f"Plain gradient descent is stable below a learning rate of {rate:.2g} on these weights"
        said.append(Finding("stable-rate", title, "info", rate, "2 / λ", detail=detail))
    if not first.top.converged:
        said.append(Finding("curvature-bounds", "Some eigenvalues are known within wide bounds", "info",
                            detail=first.top.message))  # fmt: skip
    return said


def _beside(case: Case, found: list[Spectrum]) -> Finding:
    """Sums of the largest eigenvalues of the first two, with the interval that their bounds allow."""
    own, other = (float(spectrum.values.sum()) for spectrum in found[:2])
    slack = [float(spectrum.bounds.sum()) for spectrum in found[:2]]
    name = case.subjects[1].name
    detail = (
        f"Sum of the {len(found[0].values)} largest eigenvalues: {case.subjects[0].name} {own:.3g}, "
        f"{name} {other:.3g}, on the same rows, each under its own head."
    )
    low, high = sorted((found[0].loss, found[1].loss))
    if high > _LIKE * low or not (own > 0 and other > 0):
        losses = f"the losses are {found[0].loss:.3g} and {found[1].loss:.3g}"
        title = f"Curvature does not compare with that of {name}: {losses}"
        detail += (
            " What fits less bends less: only trainings to a like loss (--run, --against) tell which place is flatter."
        )
        return Finding("flatness", title, "info", detail=detail)
    ratio = other / own
    least = max(other - slack[1], 0.0) / (own + slack[0])
    most = (other + slack[1]) / (own - slack[0]) if own > slack[0] else None
    word, size = ("flatter", ratio) if ratio > 1 else ("sharper", 1 / ratio)
    than = f"{size:.2g} × {word} than" if size > _SAME else "about as sharp as"
    return Finding("flatness", f"The loss is {than} that of {name}", "info", ratio, "×", least, most, detail)


CURVATURE = Check("curvature", "Curvature", _run)
