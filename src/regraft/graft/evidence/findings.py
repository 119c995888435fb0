"""What a run noticed about its data, its score and its method, as coded findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from regraft.graft.evidence.advice import selection_findings
from regraft.graft.evidence.backbone_findings import BACKBONE_CHECKS
from regraft.graft.evidence.context import Context
from regraft.graft.evidence.data_findings import DATA_CHECKS
from regraft.graft.evidence.guide import guide
from regraft.graft.evidence.instruments import instrument_findings
from regraft.graft.evidence.score_findings import SCORE_CHECKS, no_better_than_constant
from regraft.record import Finding

__all__ = ["check"]


def check(context: Context) -> tuple[Finding, ...]:
    """Run every check; each says what it took."""
    found: list[Finding] = []
    for look in _CHECKS:
        began = time.perf_counter()
        results = list(look(context))
        seconds = time.perf_counter() - began
        found += [replace(result, cost_seconds=result.cost_seconds + seconds) for result in results]
    return tuple(found)


def _own(context: Context) -> Iterator[Finding]:
    yield from context.evaluation.head.findings()
    guesses, training = no_better_than_constant(context), context.figures.get("training", {})
    if (chosen := context.figures.get("selection")) is not None:
        trained = any(run["kept"] for run in training.get("runs", ()))
        yield from selection_findings(chosen, trained=trained, guesses=guesses)
    if seen := training.get("instruments"):
        yield from instrument_findings(seen)
    yield from guide(context.figures, guesses=guesses)


_CHECKS: tuple[Callable[[Context], Iterator[Finding]], ...] = (*DATA_CHECKS, *BACKBONE_CHECKS, *SCORE_CHECKS, _own)
