"""From data and a backbone, or a run, to the case that checks look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import Manifest, Target
from regraft.diagnose.checks.check import Case, Labelled, Subject
from regraft.diagnose.objective import LossName
from regraft.errors import DataError, ModelError, RecipeError
from regraft.features import Store, Taps, by_length, gathered, plan
from regraft.files import read_json
from regraft.graft.adapted import Adapted, check_modality, with_own_head
from regraft.graft.artifact import CONFIG, load_artifact
from regraft.graft.options import Options, pick_device
from regraft.graft.preparation import Prepared, Progress, prepare, swept
from regraft.graft.recipe import Recipe
from regraft.graft.stages.features import Features, Solve
from regraft.heads import Readout, solve
from regraft.heads.weights import moments
from regraft.linear import Dense, FeatureDesign
from regraft.network import Network, reinitialised, settled
from regraft.record import Finding, Ledger

__all__ = ["NONE", "RANDOM", "Looked", "Scope", "case_of_model", "case_of_run", "copies", "probing", "repeats"]

RANDOM, NONE = "random", "none"
_SCRATCH = "scratch"
_RECORD = "record.json"
_EMBEDDING, _LOGITS = "embedding", "logits"
_LOSSES: dict[str, LossName] = {
    "binary": "softmax",
    "multiclass": "softmax",
    "multilabel": "sigmoid",
    "regression": "squared",
}
_PROBE = Recipe("probe", "linear probe on the last layer", (Features(Taps((_EMBEDDING,), (None,)), ("none",)), Solve()))


@dataclass(frozen=True)
class Scope:
    """How much is looked at.

    Attributes:
        rows: of the data, on which losses are taken; drawn by the seed, classes alike.
        select: patterns of the parameters that move: ``top`` is the topmost block with the head, ``all`` every one.
        top: how many eigenvalues.
        points: of a side of a landscape.

    Raises:
        RecipeError: fewer than three rows or points, no eigenvalue, or nothing selected.
    """

    rows: int = 256
    select: tuple[str, ...] = ("top",)
    top: int = 20
    points: int = 25

    def __post_init__(self) -> None:
        if isinstance(self.select, str):
            object.__setattr__(self, "select", (self.select,))
        if self.rows < 3 or self.points < 3 or self.top < 1 or not self.select:
            got = f"rows={self.rows}, points={self.points}, top={self.top}, select={self.select!r}"
            raise RecipeError("too little is to be looked at", expected="3 rows and points, 1 eigenvalue", got=got)


@dataclass(frozen=True, eq=False)
class Looked:
    """A case, what it was made of, and what is to be said of it beside what checks say."""

    case: Case
    ready: Prepared
    notes: tuple[Finding, ...] = ()


def probing(
    data: Any, model: str | Network, options: Options, ledger: Ledger, progress: Progress | None, **columns: Any
) -> tuple[Prepared, Labelled]:
    """Rows, backbone, and in one pass the features of its last layer and the probabilities of its own classes.

    Where rows are repeated and no groups are given, the copies of one are a group.

    Raises:
        DataError: the labels are masks.
    """
    ready = prepare(data, model, method=_PROBE, options=options, ledger=ledger, progress=progress, **columns)
    if ready.manifest.target is not None and ready.manifest.target.kind == "segmentation":
        raise DataError("masks cannot be diagnosed", expected="one label a row", do="choose a column with --label")
    network = ready.network
    if network.has_logits and network.head:
        ready = replace(ready, plan=plan(network, [Taps((_EMBEDDING, _LOGITS), (None,))]))
    store, _ = swept(replace(ready, manifest=ready.fit), options, ledger, progress)
    values = _values(ready, store)
    source = values.get(_LOGITS)
    task = ready.task(ready.fit, options)
    shares = None if source is None or source.shape[1] < 2 else source.double().softmax(1)
    groups = ready.fit.hashes if task.groups is None and copies(ready.fit) else task.groups
    return ready, Labelled(values[_EMBEDDING], task.response, shares, groups)


def copies(rows: Manifest) -> int:
    """How many rows repeat another."""
    return len(rows) - len(set(rows.hashes))


def repeats(rows: Manifest) -> tuple[Finding, ...]:
    """What is said where rows are repeated."""
    if not (count := copies(rows)):
        return ()
    kept = "by the groups that were given" if rows.groups is not None else "with it"
    verb = "repeats" if count == 1 else "repeat"
    return (
        Finding(
            "repeated-rows", f"{count:,} of {len(rows):,} inputs {verb} another", "warning", count, "rows",
            detail=f"The same bytes stand in several rows. Where one is left out, its copies are left out {kept}.",
            advice="Remove them: they count as often as they stand there.",
        ),
    )  # fmt: skip


def case_of_model(
    data: Any,
    model: str | Network,
    scope: Scope,
    options: Options,
    ledger: Ledger,
    *,
    against: str = RANDOM,
    features: bool = True,
    losses: bool = True,
    origin: Any = None,
    progress: Progress | None = None,
    **columns: Any,
) -> Looked:
    """A backbone under a solved head, beside the same architecture with random weights under its own.

    Without ``losses`` its features alone; without ``features`` the rows alone, and nothing is passed.

    Raises:
        RegraftError: the user's mistakes, in a sentence. A network that cannot be given random weights stands alone,
            and the case says that it lacks them.
    """
    if against not in (RANDOM, NONE):
        raise RecipeError(f"a backbone is not compared with {against!r}", expected="random or none")
    if not features:
        ready = prepare(data, model, method=_PROBE, options=options, ledger=ledger, progress=progress, **columns)
        case = Case((), None, len(ready.fit), None, scope.top, scope.points, options.seed)
        return Looked(case, ready, repeats(ready.fit))
    ready, labelled = probing(data, model, options, ledger, progress, **columns)
    known = None if origin is None else _origin(origin, ready, options, ledger, progress, **columns)
    if not losses:
        case = Case((), labelled, len(ready.fit), known, scope.top, scope.points, options.seed)
        return Looked(case, ready, repeats(ready.fit))
    named = [("pretrained", ready, labelled)]
    notes, untrained = list(repeats(ready.fit)), None
    if against == RANDOM:
        try:
            with ledger.stage("random weights") as extra:
                network, settling = _fresh(ready, scope, options)
                fresh = replace(ready, network=network, plan=_last(ready.plan))
                within = Ledger()
                store, _ = swept(replace(fresh, manifest=fresh.fit), options, within, progress)
                extra["flops"] = sum(cost.flops for cost in within.costs)
                extra["backbone_passes"] = (store.computed_rows + settling) / len(fresh.fit)
            untrained = replace(labelled, features=_values(fresh, store)[_EMBEDDING], source=None)
            named.append(("random weights", fresh, untrained))
        except ModelError as error:
            title = "Random weights not compared"
            notes.append(Finding("random-weights", title, "not-applicable", detail=str(error)))
    with ledger.stage("solve"):
        headed = [(name, _probed(part, seen, options)) for name, part, seen in named]
    rows, unit = _drawn(ready.fit, scope.rows, options.seed), _unit(ready.fit.target)
    subjects = tuple(_subject(name, network, rows, scope, options, unit) for name, network in headed)
    case = Case(subjects, labelled, len(ready.fit), known, scope.top, scope.points, options.seed, untrained)
    return Looked(case, ready, tuple(notes))


def _fresh(ready: Prepared, scope: Scope, options: Options) -> tuple[Network, int]:
    """Random weights by the seed, BatchNorm's statistics those of the rows that losses are taken on, and how many rows
    were passed for that.

    Raises:
        ModelError: the network does not say how its weights are drawn.
    """
    network = reinitialised(ready.network, options.seed)
    inputs = _drawn(ready.fit, scope.rows, options.seed).inputs
    cut = by_length(network.preprocess, inputs, range(len(inputs)), options.batch_size)
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
    source, labelled = probing(data, ready.network, options, ledger, progress, **columns)
    if source.manifest.fingerprint == ready.manifest.fingerprint:
        raise DataError("the source is the data itself", expected="rows of another task with the same classes")
    target, own = ready.manifest.target, source.manifest.target
    if target is None or own is None or (own.kind, own.classes) != (target.kind, target.classes):
        expected, got = "labels of both", ""
        if target is not None and own is not None:
            expected, got = _told_apart(target.kind, target.classes, own.kind, own.classes)
        raise DataError(
            "the source's labels are not the target's",
            expected=expected,
            got=got,
            do="give both the same class names, for the theory has one head",
        )
    return labelled


def case_of_run(
    data: Any,
    run: Path,
    scope: Scope,
    options: Options,
    ledger: Ledger,
    *,
    against: str = NONE,
    model: str | Network | None = None,
    progress: Progress | None = None,
    **columns: Any,
) -> Looked:
    """A trained network as its run keeps it, beside that of another run.

    Raises:
        RegraftError: a run whose head reads something else than the last layer, or other classes than the data's.
    """

    def loaded(folder: Path) -> Adapted:
        if not folder.is_dir():
            raise DataError(f"{folder} does not exist", expected="the folder of a run of adapt")
        return load_artifact(folder, model=model, weights=options.weights, device=pick_device(options.device))

    if against == RANDOM:
        raise RecipeError("a run is not compared with random weights", do="name another run, such as of scratch")
    found = [("trained", run, loaded(run))]
    if against != NONE:
        found.append((Path(against).name, Path(against), loaded(Path(against))))
    backbone = found[0][2].source or found[0][2].network
    ready = prepare(data, backbone, method=_PROBE, options=options, ledger=ledger, progress=progress, **columns)
    rows, unit = _drawn(ready.fit, scope.rows, options.seed), _unit(ready.fit.target)
    subjects = []
    for name, folder, adapted in found:
        _check_classes(ready, adapted, name)
        check_modality(adapted.network, rows)
        network = _with_last_layer(adapted, folder)
        if unit is not None:
            network = network.with_head(*_last_layer(adapted.readout, unit), adapted.classes)
        subject = _subject(name, network, rows, scope, options, unit)
        subjects.append(replace(subject, start=_start(adapted, folder), rows=_trained_on(folder)))
    case = Case(tuple(subjects), None, len(ready.fit), None, scope.top, scope.points, options.seed)
    return Looked(case, ready)


def _with_last_layer(adapted: Adapted, folder: Path) -> Network:
    """The network of a run whose head is its last layer; others have none whose loss could be looked at."""
    try:
        return with_own_head(adapted)
    except RecipeError as error:
        method = ((read_json(folder / CONFIG) or {}).get("provenance") or {}).get("method", "")
        raise RecipeError(
            f"the head of the run {folder}{f' (by {method})' if method else ''} is not a last layer of its network",
            expected="a run by lp-ft, finetune or scratch, whose head reads the embedding",
            got=error.got,
            do="diagnose its backbone with --model, or name such a run",
        ) from error


def _start(adapted: Adapted, folder: Path) -> Network | None:
    """Where the training began: the pretrained backbone, or of ``scratch`` the random weights of its seed."""
    if adapted.source is None:
        return None
    provenance = (read_json(folder / CONFIG) or {}).get("provenance", {})
    if provenance.get("method") == _SCRATCH:
        return reinitialised(adapted.source, int(provenance["seed"]))
    return adapted.source


def _trained_on(folder: Path) -> int | None:
    """How many rows a run trained on, by its record."""
    rows = ((read_json(folder / _RECORD) or {}).get("task") or {}).get("rows") or {}
    return int(rows.get("train", 0)) + int(rows.get("validation", 0)) or None


def _check_classes(ready: Prepared, adapted: Adapted, name: str) -> None:
    target = ready.manifest.target
    if target is not None and (target.kind, target.classes) != (adapted.kind, adapted.classes):
        expected, got = _told_apart(adapted.kind, adapted.classes, target.kind, target.classes)
        do = "give the data that the run was made of, or other rows with the same labels"
        raise DataError(f"the labels are not those of the {name} run", expected=expected, got=got, do=do)


def _told_apart(kind: str, classes: Sequence[str], other_kind: str, others: Sequence[str]) -> tuple[str, str]:
    """Two sets of labels in words: the kinds where these differ, else the names that one has and the other has not."""
    if kind != other_kind and {kind, other_kind} != {"binary", "multiclass"}:
        return f"{kind} labels", f"{other_kind} labels"
    lacking, more = [c for c in classes if c not in others], [c for c in others if c not in classes]
    if not lacking and not more:
        return f"the labels in the order {', '.join(classes[:4])}", f"{', '.join(others[:4])}"
    said = [
        f"{what} {', '.join(names[:4])}{'…' if len(names) > 4 else ''}"
        for what, names in (("without", lacking), ("with", more))
        if names
    ]
    return f"the same {len(classes)} labels", f"{len(others)}, {' and '.join(said)}"


def _values(ready: Prepared, store: Store) -> dict[str, Tensor]:
    """What the pass computed, by kind of block: float32 in memory."""
    matrices = store.matrices()
    return {block.kind: matrices[block.name].rows(slice(0, store.rows)).float() for block in ready.plan.blocks}


def _last(whole: Any) -> Any:
    """The plan without the source's own classes."""
    return whole.only([block.name for block in whole.blocks if block.kind == _EMBEDDING])


def _probed(ready: Prepared, labelled: Labelled, options: Options) -> Network:
    """The network with a solved linear head: logistic for classes and labels, least squares for numbers.

    Numbers are standardised under it: outputs and targets are in standard deviations of the training rows.
    """
    task = ready.task(ready.fit, options)
    design = FeatureDesign({_EMBEDDING: Dense(labelled.features)}, task.target.outputs)
    forms = ("ridge",) if task.kind == "regression" else ("logistic",)
    found = solve(design, task.response, forms=forms, folds=task.fold_ids(), metric=task.metric).readout
    return ready.network.with_head(*_last_layer(found, _unit(task.target)), task.target.classes)


def _last_layer(readout: Readout, unit: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Weight ``(C, D)`` and bias of the head; of numbers those of standardised ones."""
    (block,) = readout.coefficients.values()
    weight, bias = block.T.double(), readout.intercept.double()
    if unit is not None:
        shift, spread = unit
        weight, bias = weight / spread[:, None], (bias - shift) / spread
    return weight.float().contiguous(), bias.float()


def _unit(target: Target | None) -> tuple[Tensor, Tensor] | None:
    """Mean and deviation of each column of numbers, ``(C,)``; ``None`` for other labels."""
    if target is None or target.kind != "regression":
        return None
    values = torch.as_tensor(np.asarray(target.values), dtype=torch.float64).reshape(len(target), -1)
    return moments(values.nan_to_num(), (~values.isnan()).double())


def _drawn(rows: Manifest, count: int, seed: int) -> Manifest:
    """So many rows whose labels are all there, classes alike."""
    if rows.target is None:
        raise DataError(f"{rows.name} has no labels")
    values = np.asarray(rows.target.values, dtype=np.float64).reshape(len(rows), -1)
    known = np.isfinite(values).all(1) & ((values >= 0).all(1) | (rows.target.kind == "regression"))
    whole = rows.take(np.flatnonzero(known))
    least = rows.target.outputs if rows.target.kind in ("binary", "multiclass") else 2
    if count < least:
        raise RecipeError(
            "too few rows to take losses on", expected=f"--rows {least} or more, one a class", got=f"{count}"
        )
    return replace(whole, split=("train",) * len(whole)).limit(count, seed)


def _subject(
    name: str, network: Network, rows: Manifest, scope: Scope, options: Options, unit: tuple[Tensor, Tensor] | None
) -> Subject:
    target = rows.target
    if target is None:
        raise DataError(f"{rows.name} has no labels")
    values = torch.as_tensor(np.asarray(target.values))
    if unit is not None:
        values = (values.double().reshape(len(rows), -1) - unit[0]) / unit[1]
    select = _patterns(network, scope.select)
    return Subject(name, network, rows, values, _LOSSES[target.kind], select, batch_size=options.batch_size)


def _patterns(network: Network, asked: Sequence[str]) -> tuple[str, ...]:
    """What of the parameters moves: ``top`` and ``all`` are words, the others patterns."""
    found: list[str] = []
    for pattern in asked:
        if pattern == "all":
            found.append("*")
        elif pattern == "top":
            found += [*network.topmost, f"{network.head}.*"]
        else:
            found.append(pattern)
    return tuple(found)
