"""How sharp is the loss? Its largest eigenvalues, certified, and the density of all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regraft.diagnose.checks.check import Case, Check, Outcome, Subject, Tick, unlike
from regraft.diagnose.curvature.spectrum import Spectrum, curvature
from regraft.linear import Density
from regraft.record import Finding

__all__ = ["CURVATURE"]

_PROBES, _STEPS = 3, 20  # of the density
_GRID = 60  # points at which it is drawn
_DECADES = 4  # below the largest eigenvalue: in float32 that many steps do not tell what is smaller from zero
_NOTHING = 1e-12  # a share that is rounding
_GUESS = 0.9  # of a guess's loss: a head that has more has learnt next to nothing
_SHARPEST, _ENOUGH = 5e-2, 30  # bound and products of the one eigenvalue of all weights, each a pass through them all
_SAME = 1.05  # a ratio of curvatures that is not worth a word


def _run(case: Case, tick: Tick) -> Outcome:
    found = []
    for number, subject in enumerate(case.subjects):
        step = _after(tick, number, len(case.subjects))
        objective, top = subject.objective, case.top
        # a linear layer's outputs, where they are numbers, have the same eigenvalues each
        copies = subject.loss == "squared" and objective.outputs_width > 1
        more: dict[str, Any] = {"copies": copies, "seed": case.seed, "progress": step}
        found.append(curvature(objective, k=top, probes=_PROBES, steps=_STEPS, **more))
    first = found[0]
    figure = {
        "matrix": first.matrix,
        "parameters": first.parameters,
        "rows": first.rows,
        "subjects": [_plain(subject, spectrum) for subject, spectrum in zip(case.subjects, found)],
    }
    return Outcome(tuple(_findings(case, found)), figure)


def _sharpest(case: Case, selected: Spectrum) -> tuple[float, float]:
    """The largest eigenvalue when all weights move, and its bound."""
    subject = case.subjects[0]
    if subject.objective.size == subject.whole.size:
        top = selected
    else:
        top = curvature(subject.whole, k=1, tol=_SHARPEST, max_products=_ENOUGH, seed=case.seed)
    return float(top.values[0]), float(top.bounds[0])


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
        found["above"] = {"at": at.tolist(), **_shares(spectrum, spectrum.density, at)}
        below, _ = spectrum.density.cumulative(-at[:1])
        (low,), (high,) = spectrum.density.within(-at[:1])
        found["negative"] = {"share": float(below), "low": float(low), "high": float(high)}
    return found


def _shares(spectrum: Spectrum, density: Density, at: Tensor) -> dict[str, list[float]]:
    """The shares of eigenvalues above, and between what they are. The largest ones are known one by one, and need no
    density."""
    below, _ = density.cumulative(at)
    found = {"share": 1 - below, **dict(zip(("high", "low"), (1 - end for end in density.within(at))))}
    counted = (spectrum.values > at[:, None]).double().sum(1) / spectrum.parameters
    known = (at >= spectrum.values[-1]) & spectrum.top.converged
    for name, share in found.items():
        share = torch.where(known, counted, torch.maximum(share, counted))
        found[name] = torch.where(share > _NOTHING, share, torch.zeros_like(share))
    return {name: share.tolist() for name, share in found.items()}


def _findings(case: Case, found: list[Spectrum]) -> list[Finding]:
    first, said = found[0], []
    if len(found) > 1:
        said.append(_beside(case, found))
    largest, bound = _sharpest(case, first)
    if largest > 0:
        share = case.subjects[0].training_share
        largest, bound, own = share * largest, share * bound, share * float(first.values[0])
        rate = 2 / largest
        detail = f"λ = {largest:.3g} ± {bound:.1g} is the largest eigenvalue; momentum and decay move the rate."
        if share != 1:
            detail = f"Of the loss that training lowers, {share:.3g} of this one, {detail}"
        if first.parameters < case.subjects[0].whole.size and own > 0:
            detail += f" If only {', '.join(case.subjects[0].select)} move, it is {2 / own:.2g}."
        title = f"Plain gradient descent on all weights is stable below a learning rate of {rate:.2g}"
        said.append(Finding("stable-rate", title, "info", rate, "2/λ", detail=detail))
    if not first.top.converged:
        why = f"{first.top.message.partition(';')[0]}."  # what follows no option of a diagnosis does
        said.append(Finding("curvature-bounds", "Some eigenvalues are known within wide bounds", "info",
                            detail=why, advice="Ask for fewer with --top."))  # fmt: skip
    return said


def _beside(case: Case, found: list[Spectrum]) -> Finding:
    """Sums of the largest eigenvalues of the first two."""
    own, other = (float(spectrum.values.sum()) for spectrum in found[:2])
    slack = [float(spectrum.bounds.sum()) for spectrum in found[:2]]
    name = case.subjects[1].name
    detail = (
        f"Sum of the {len(found[0].values)} largest eigenvalues: {case.subjects[0].name} {own:.3g}, "
        f"{name} {other:.3g}, on the same rows, each under its own head."
    )
    guess = case.subjects[0].guess
    nothing = min(found[0].loss, found[1].loss) > _GUESS * guess
    if nothing:
        detail += f" A guess has a loss of {guess:.3g}: a head that says nothing bends nothing."
    else:
        detail += f" Their bounds: ± {slack[0]:.1g} and ± {slack[1]:.1g}."
    why = unlike(found[0].loss, found[1].loss)
    if nothing or why or not (own > 0 and other > 0):
        title = f"Curvature does not compare with that of {name}"
        title += ": neither fits much better than a guess" if nothing else ""
        detail += (
            f" {why} Only trainings to a like loss (`--run`, `--against`) tell which place is flatter." if why else ""
        )
        return Finding("flatness", title, "not-applicable", detail=detail)
    ratio = other / own
    word, size = ("flatter", ratio) if ratio > 1 else ("sharper", 1 / ratio)
    than = f"{size:.2g} × {word} than" if size > _SAME else "about as sharp as"
    return Finding("flatness", f"The loss is {than} that of {name}", "info", ratio, "×", detail=detail)


CURVATURE = Check("curvature", "Curvature", _run)
