"""What a run noticed about its data, its score and its method, as coded findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from regraft.graft.evidence.advice import selection_findings
from regraft.graft.evidence.backbone_findings import BACKBONE_CHECKS
from regraft.graft.evidence.context import Context, Scanned
from regraft.graft.evidence.data_findings import DATA_CHECKS, ROW_CHECKS
from regraft.graft.evidence.guide import guide
from regraft.graft.evidence.instruments import instrument_findings
from regraft.graft.evidence.score_findings import SCORE_CHECKS, no_better_than_constant, of_one_class
from regraft.record import Finding

__all__ = ["check", "check_rows"]

_Seen = TypeVar("_Seen", bound=Scanned)


def check(context: Context) -> tuple[Finding, ...]:
    """Run every check; each says what it took."""
    return _looked(_CHECKS, context)


def check_rows(scanned: Scanned) -> tuple[Finding, ...]:
    """The checks that rows are enough for, before anything is made of them."""
    return _looked(ROW_CHECKS, scanned)


def _looked(checks: Iterable[Callable[[_Seen], Iterator[Finding]]], seen: _Seen) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for look in checks:
        began = time.perf_counter()
        results = list(look(seen))
        seconds = time.perf_counter() - began
        found += [replace(result, cost_seconds=result.cost_seconds + seconds) for result in results]
    return tuple(found)


def _own(context: Context) -> Iterator[Finding]:
    of_head, training = tuple(context.evaluation.head.findings()), context.figures.get("training", {})
    yield from of_head
    guesses = no_better_than_constant(context) or of_one_class(context)  # by which nothing is told of the features
    guesses |= any(finding.code == "one-class-chooses" for finding in of_head)
    if (chosen := context.figures.get("selection")) is not None:
        trained = any(run["kept"] for run in training.get("runs", ()))
        yield from selection_findings(chosen, trained=trained, guesses=guesses)
    if seen := training.get("instruments"):
        yield from instrument_findings(seen)
    yield from guide(context.figures, guesses=guesses)


_CHECKS: tuple[Callable[[Context], Iterator[Finding]], ...] = (*DATA_CHECKS, *BACKBONE_CHECKS, *SCORE_CHECKS, _own)
