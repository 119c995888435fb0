"""How far did the weights go? The deviation of a training, layer by layer, beside that of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regraft.diagnose.checks.check import Case, Check, Outcome, Subject, Tick
from regraft.diagnose.deviation import Deviation, deviation
from regraft.errors import DataError
from regraft.record import Finding

__all__ = ["DEVIATION"]


def _run(case: Case, tick: Tick) -> Outcome:
    moved = [subject for subject in case.subjects if subject.start is not None]
    if not moved:
        raise _why(any(subject.lost for subject in case.subjects))
    rows = [subject.rows or case.rows for subject in moved]
    found = [_of(subject, n) for subject, n in zip(moved, rows)]
    tick(1, 1)
    plain = [_plain(subject, part, n) for subject, part, n in zip(moved, found, rows)]
    whose = "" if moved[0] is case.subjects[0] else f" of {moved[0].name}"
    return Outcome((*_findings(moved, found, whose), *_others(case)), {"subjects": plain})


def _why(lost: bool) -> DataError:
    """Why a network has not gone anywhere, as far as is known."""
    if lost:
        return DataError(
            "the run was saved with --embed, which keeps the trained backbone alone",
            do="say with --model where the backbone is that it was trained from; a run of an earlier version does not "
            "know that one: adapt again",
        )
    return DataError("nothing was trained here", do="name a run that trained the backbone with --run")


def _others(case: Case) -> Iterator[Finding]:
    """The networks that are left out beside those that were trained."""
    for subject in case.subjects:
        if subject.start is None:
            title = f"Deviation of {subject.name} not measured"
            yield Finding("deviation", title, "not-applicable", detail=str(_why(subject.lost)))


def _of(subject: Subject, rows: int) -> Deviation:
    """Of what both networks have: the head is the task's own, and had no start."""
    start = {} if subject.start is None else subject.start.params
    after = subject.network.params
    heads = {f"{network.head}." for network in (subject.network, subject.start) if network is not None and network.head}
    shared = [name for name in start if name in after and not name.startswith(tuple(heads))]
    return deviation({name: start[name] for name in shared}, {name: after[name] for name in shared}, rows)


def _plain(subject: Subject, found: Deviation, rows: int) -> dict[str, Any]:
    layers = [{"name": name, "value": value} for name, value in found.values.items()]
    return {"name": subject.name, "rows": rows, "total": found.total, "relative": found.relative, "layers": layers}


def _findings(moved: list[Subject], found: list[Deviation], whose: str) -> list[Finding]:
    first = found[0]
    values = first.values
    most = max(values, key=lambda name: values[name])
    detail = f"{100 * first.relative:.3g} % of the weights' norm; most in {most}."
    title = f"Training moved the weights{whose} by {first.total:.3g}"
    if len(found) > 1:
        title += f", {moved[1].name} by {found[1].total:.3g}"
        detail += " In the paper smaller deviations go with smaller errors (rank correlation 0.7 to 0.8): no ordering."
    return [Finding("deviation", title, "info", first.total, "(1/√n) Σ ‖W − W⁰‖", detail=detail)]


DEVIATION = Check("deviation", "Deviation", _run)
