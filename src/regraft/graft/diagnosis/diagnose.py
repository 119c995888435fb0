"""`diagnose`: instruments pointed at a backbone and a task, or at what a training made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regraft.diagnose.checks.all import CHECKS
from regraft.diagnose.checks.check import Check, examine
from regraft.diagnose.checks.feasibility import FEASIBILITY
from regraft.errors import DataError, ModelError, RecipeError
from regraft.graft.diagnosis.affinity import AFFINITY, SOURCE, measured
from regraft.graft.diagnosis.case import NONE, Scope
from regraft.graft.diagnosis.of_model import case_of_model
from regraft.graft.diagnosis.of_run import case_of_run
from regraft.graft.network_findings import first_output
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, Progress
from regraft.graft.recording import backbone_of, data_of, task_of, versions
from regraft.network import Network, check_weights
from regraft.record import Finding, Ledger, Record, now
from regraft.wording import near

__all__ = ["chosen", "diagnose"]

CITATION = "Liu, Long, Wang, Jordan, Towards Understanding the Transferability of Deep Representations, 2019."


def diagnose(
    data: Any,
    model: str | Network | None = None,
    *,
    run: str | Path | None = None,
    against: str | None = None,
    source: Any = None,
    checks: str | Sequence[str] = (),
    scope: Scope | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    command: str = "",
    **columns: Any,
) -> Record:
    """Measure why a backbone fits a task, or what training made of it: findings, figures and what each check cost.

    With ``model``, the backbone gets a solved linear head in one pass, and so does the same architecture with random
    weights beside it; curvature, landscapes and gradients are taken where fine-tuning would begin. With ``run``, they
    are taken where a training ended, beside another run's, and how far the weights went is measured.

    Args:
        data: as :func:`regraft.graft.adapt` takes it.
        model: a backbone by name or folder, or a loaded Network.
        run: a run folder instead; ``model`` then says where its backbone is, if that moved or is code of your own.
        against: ``random`` (of a model, the default where a check takes losses), another run folder (of a run), or
            ``none`` (its default).
        source: rows of a source task with the same classes, of a model, for ``feasibility``.
        checks: of ``transfer``, ``feasibility``, ``curvature``, ``landscape``, ``gradients`` and ``deviation``; all by
            default. And, of a model, ``affinity``: it trains the network from random weights, so it must be asked for.
        scope: how many rows, which parameters, how many eigenvalues and points.
        options: of the pass and the head.
        progress: called with (stage, done, total).
        command: kept in the record as how to do it again.
        **columns: ``kind``, ``label``, ``group``, ``input``, ``ignore`` for the data.

    Returns:
        a Record whose figures are named after the checks; it holds no score.

    Raises:
        RegraftError: a mistake of the user's, in one sentence. A check that does not apply raises nothing: its finding
            says why.
    """
    wanted, trains = chosen(checks)
    scope, options, ledger = scope or Scope(), options or Options(), Ledger()
    common: dict[str, Any] = {"progress": progress, **columns}
    if run is not None:
        _check_of_run(trains, source)
        common |= {"against": NONE if against is None else against, "model": model}
        looked = case_of_run(data, Path(run), scope, options, ledger, **common)
    elif model is not None:
        check_weights(model, options.weights)
        if source is not None and FEASIBILITY not in wanted:
            do = "add --check feasibility, or leave --source out"
            raise RecipeError("a source task is asked about by feasibility alone", do=do)
        losses = any(check.losses for check in wanted)
        common |= {"against": against, "origin": source, "losses": losses, "features": bool(wanted)}
        looked = case_of_model(data, model, scope, options, ledger, **common)
    else:
        raise RecipeError("nothing is named to be diagnosed", expected="--model NAME or --run RUN")
    findings, figures = examine(looked.case, wanted, ledger, progress)
    ready, subjects = looked.ready, looked.case.subjects
    if trains:
        findings = (*findings, *_affinity(ready, options, ledger, progress, figures))
    figures["subjects"] = [subject.name for subject in subjects]
    if subjects and len(subjects[0].targets):
        figures["rows"] = len(subjects[0].targets)
        figures["parameters"] = {"select": list(scope.select), "count": subjects[0].moved}
    return Record(
        verb="diagnose",
        status="done",
        method="",
        task={**task_of(ready), "title": "diagnosis"},
        model=backbone_of(ready.network),
        data=data_of(ready),
        scores={"validation": None, "test": None},
        costs=ledger.summed,
        findings=(*findings, *looked.notes, *first_output(ready.network.unread)),
        figures=figures,
        seeds={"seed": options.seed},
        versions=versions(),
        command=command,
        citations=(CITATION, SOURCE) if trains else (CITATION,),
        created=now(),
    )


def _check_of_run(trains: bool, source: Any) -> None:
    """Refuse of a run what is asked of a backbone alone."""
    if trains:
        raise RecipeError("domain affinity is a backbone's, not a run's", do="give --model, not --run")
    if source is not None:
        raise RecipeError("a source task is asked about before training", do="give the backbone, not a run")


def _affinity(
    ready: Prepared, options: Options, ledger: Ledger, progress: Progress | None, figures: dict[str, Any]
) -> tuple[Finding, ...]:
    """What domain affinity came to, and its figure among the others; or why it does not apply."""
    try:
        said, figures[AFFINITY] = measured(ready, options, ledger, progress)
    except (DataError, ModelError, RecipeError) as error:
        return (Finding(AFFINITY, "Domain affinity not measured", "not-applicable", detail=str(error)),)
    return said


def chosen(names: str | Sequence[str]) -> tuple[tuple[Check, ...], bool]:
    """Checks by name, in the order in which they run, all that train nothing for none; and whether affinity is asked.

    Raises:
        RecipeError: a name is none.
    """
    known, names = {check.name: check for check in CHECKS}, [names] if isinstance(names, str) else names
    if unknown := [name for name in names if name not in {*known, AFFINITY}]:
        every = [*known, AFFINITY]
        raise RecipeError(f"no check is called {unknown[0]!r}", expected=", ".join(every), do=near(unknown[0], every))
    return tuple(check for check in CHECKS if not names or check.name in names), AFFINITY in names
