"""From data and a backbone to the case: the backbone under a solved head, beside one with random weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regraft.diagnose.checks.check import Case, Labelled
from regraft.errors import DataError, ModelError, RecipeError
from regraft.features import Plan, by_length, gathered
from regraft.graft.diagnosis.case import (
    NONE,
    RANDOM,
    Looked,
    Scope,
    drawn,
    last_layer,
    patterns,
    subject_of,
    told_apart,
    unit_of,
)
from regraft.graft.diagnosis.probing import EMBEDDING, looked_at, passed, probing, remarks, values_of
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, Progress, swept
from regraft.heads import solve
from regraft.linear import Dense, FeatureDesign
from regraft.network import Network, reinitialised, settled
from regraft.record import Finding, Ledger

__all__ = ["case_of_model"]


def case_of_model(
    data: Any,
    model: str | Network,
    scope: Scope,
    options: Options,
    ledger: Ledger,
    *,
    against: str | None = None,
    features: bool = True,
    losses: bool = True,
    origin: Any = None,
    progress: Progress | None = None,
    **columns: Any,
) -> Looked:
    """A backbone under a solved head, beside the same architecture with random weights under its own.

    Without ``losses`` its features alone, beside those of random weights if ``against`` names them; without
    ``features`` the rows alone, and nothing is passed.

    Raises:
        RegraftError: the user's mistakes, in a sentence. A network that cannot be given random weights stands alone,
            and the case says that it lacks them.
    """
    if against not in (RANDOM, NONE, None):
        raise RecipeError(f"a backbone is not compared with {against!r}", expected="random or none")
    ready = looked_at(data, model, options, ledger, progress, **columns)
    case = Case((), None, len(ready.fit), None, scope.top, scope.points, options.seed)
    if not features:
        return Looked(case, ready, remarks(ready))
    lacking = _lacking(ready.network) if losses else ""
    losses = losses and not lacking
    if losses:
        _check_select(ready, scope)
    ready, labelled = passed(ready, options, ledger, progress)
    known = None if origin is None else _origin(origin, ready, options, ledger, progress, **columns)
    named, notes, untrained = [("pretrained", ready, labelled)], list(remarks(ready)), None
    if against == RANDOM or (against is None and losses):
        try:
            fresh, untrained = _untrained(ready, labelled, scope, options, ledger, progress)
            named.append(("random weights", fresh, untrained))
        except (DataError, ModelError) as error:
            title = "Random weights not compared"
            notes.append(Finding("random-weights", title, "not-applicable", detail=str(error)))
    case = replace(case, labelled=labelled, origin=known, untrained=untrained, lacking=lacking)
    if losses:
        with ledger.stage("solve"):
            headed = [(name, _probed(part, seen, options)) for name, part, seen in named]
        rows, unit = drawn(ready.fit, scope.rows, options.seed), unit_of(ready.fit.target)
        subjects = (subject_of(name, network, rows, scope, options, unit) for name, network in headed)
        case = replace(case, subjects=tuple(subjects))
    return Looked(case, ready, tuple(notes))


def _lacking(network: Network) -> str:
    """Why no head can be put on a network; empty where one can."""
    if network.head or not network.has_logits:
        return ""
    return (
        f"{network.name} has logits that no single layer gives, in whose place the task's head could stand: "
        "let it return what its last layer gives"
    )


def _check_select(ready: Prepared, scope: Scope) -> None:
    """Refuse before the pass patterns that no parameter of the network under its head has.

    Raises:
        ModelError: there is one.
    """
    outputs = ready.manifest.labels.outputs
    patterns(ready.network.with_head(torch.zeros(outputs, ready.plan.width), torch.zeros(outputs)), scope.select)


def _untrained(
    ready: Prepared, labelled: Labelled, scope: Scope, options: Options, ledger: Ledger, progress: Progress | None
) -> tuple[Prepared, Labelled]:
    """The network with random weights, and its features of the same rows.

    Raises:
        ModelError: the network does not say how its weights are drawn.
    """
    with ledger.stage("random weights") as extra:
        network, settling = _fresh(ready, scope, options)
        fresh = replace(ready, network=network, plan=_last(ready.plan))
        within = Ledger()
        store, _ = swept(replace(fresh, manifest=fresh.fit), options, within, progress)
        extra["flops"] = sum(cost.flops for cost in within.costs)
        extra["backbone_passes"] = (store.computed_rows + settling) / len(fresh.fit)
    return fresh, replace(labelled, features=values_of(fresh, store)[EMBEDDING], source=None)


def _fresh(ready: Prepared, scope: Scope, options: Options) -> tuple[Network, int]:
    """Random weights by the seed, BatchNorm's statistics those of the rows that losses are taken on, mixed lest a batch
    be of one class, and how many rows were passed for that.

    Raises:
        ModelError: the network does not say how its weights are drawn.
    """
    network = reinitialised(ready.network, options.seed)
    inputs = drawn(ready.fit, scope.rows, options.seed).inputs
    order = np.random.default_rng(options.seed).permutation(len(inputs)).tolist()
    cut = by_length(network.preprocess, inputs, order, options.batch_size)
    whole = [rows for rows in cut if len(rows) > 1]  # of one row no variance is known
    found = settled(network, gathered(network.preprocess, inputs, whole, options.workers))
    return found, 0 if found is network else sum(map(len, whole))


def _origin(
    data: Any, ready: Prepared, options: Options, ledger: Ledger, progress: Progress | None, **columns: Any
) -> Labelled:
    """Features of a source task under the same backbone.

    Raises:
        DataError: other classes than the target's, for the theory has one head.
    """
    read = ready.manifest.inputs.columns  # of another task, whose texts and pictures may have another name
    source, labelled = probing(data, ready.network, options, ledger, progress, read=read, **columns)
    if source.manifest.fingerprint == ready.manifest.fingerprint:
        raise DataError("the source is the data itself", expected="rows of another task with the same classes")
    target, own = ready.manifest.target, source.manifest.target
    if target is None or own is None or (own.kind, own.classes) != (target.kind, target.classes):
        expected, got = "labels of both", ""
        if target is not None and own is not None:
            expected, got = told_apart(target.kind, target.classes, own.kind, own.classes)
        raise DataError(
            "the source's labels are not the target's",
            expected=expected,
            got=got,
            do="give both the same class names, for the theory has one head",
        )
    return labelled


def _last(whole: Plan) -> Plan:
    """The plan without the source's own classes."""
    return whole.only([block.name for block in whole.blocks if block.kind == EMBEDDING])


def _probed(ready: Prepared, labelled: Labelled, options: Options) -> Network:
    """The network with a solved linear head: logistic for classes and labels, least squares for numbers.

    Numbers are standardised under it: outputs and targets are in standard deviations of the training rows.
    """
    task = ready.task(ready.fit, options)
    design = FeatureDesign({EMBEDDING: Dense(labelled.features)}, task.target.outputs)
    forms = ("ridge",) if task.kind == "regression" else ("logistic",)
    found = solve(design, task.response, forms=forms, folds=task.fold_ids(), metric=task.metric).readout
    return ready.network.with_head(*last_layer(found, unit_of(task.target)), task.target.classes)
