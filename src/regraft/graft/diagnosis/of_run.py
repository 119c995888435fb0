"""From data and a run to the case: the network as its training left it, beside that of another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regraft.data import with_columns
from regraft.diagnose.checks.check import Case
from regraft.errors import ArtifactError, DataError, RecipeError
from regraft.files import read_json
from regraft.graft.adapted.artifact import load_training
from regraft.graft.adapted.model import Adapted, check_modality, with_own_head
from regraft.graft.diagnosis.case import NONE, RANDOM, Looked, Scope, drawn, subject_of, told_apart, unit_of
from regraft.graft.diagnosis.probing import looked_at
from regraft.graft.options import Options, pick_device
from regraft.graft.preparation import Prepared, Progress
from regraft.network import Network, reinitialised
from regraft.record import Ledger, Record
from regraft.record.folder import CONFIG

__all__ = ["case_of_run"]

_SCRATCH = "scratch"


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
        RegraftError: a run whose head reads something else than the last layer, other classes than the data's, masks,
            or a run without its record, which says where its training began.
    """

    def loaded(folder: Path) -> Adapted:
        if not folder.is_dir():
            raise DataError(f"{folder} does not exist", expected="the folder of a run of adapt")
        return load_training(folder, model=model, weights=options.weights, device=pick_device(options.device))

    if against == RANDOM:
        raise RecipeError("a run is not compared with random weights", do="name another run, such as of scratch")
    found = [("trained", run, loaded(run))]
    if against != NONE:
        other = Path(against)
        if other.resolve() == run.resolve():
            raise RecipeError("a run is not compared with itself", got=f"{run} twice", do="name another run, or none")
        try:
            found.append((other.name, other, loaded(other)))
        except ArtifactError as error:  # of two runs and one --model
            what = f"the run {other}: {error.what}"
            raise ArtifactError(what, expected=error.expected, got=error.got, do=error.do) from error
    backbone = found[0][2].source or found[0][2].network
    ready = looked_at(data, backbone, options, ledger, progress, read=found[0][2].columns, **columns)
    rows, unit = drawn(ready.fit, scope.rows, options.seed), unit_of(ready.fit.target)
    subjects = []
    for name, folder, adapted in found:
        _check_classes(ready, adapted, name)
        check_modality(adapted.network, rows)
        network = _with_last_layer(adapted, folder, unit)
        own, record = with_columns(rows, adapted.columns), Record.load(folder)
        subject = subject_of(name, network, own, scope, options, unit)
        start, lost = _start(adapted, folder, record, network), _is_lost(adapted, record)
        subjects.append(replace(subject, start=start, lost=lost, rows=_trained_on(record)))
    case = Case(tuple(subjects), None, len(ready.fit), None, scope.top, scope.points, options.seed)
    return Looked(case, ready)


def _with_last_layer(adapted: Adapted, folder: Path, unit: tuple[Tensor, Tensor] | None) -> Network:
    """The network of a run whose head is its last layer; others have none whose loss could be looked at."""
    try:
        return with_own_head(adapted, unit)
    except RecipeError as error:
        method = ((read_json(folder / CONFIG) or {}).get("provenance") or {}).get("method", "")
        raise RecipeError(
            f"the head of the run {folder}{f' (by {method})' if method else ''} is not a last layer of its network",
            expected="a run by lp-ft, finetune or scratch, whose head reads the embedding",
            got=error.got,
            do="diagnose its backbone with --model, or name such a run",
        ) from error


def _start(adapted: Adapted, folder: Path, record: Record, trained: Network) -> Network | None:
    """Where the training began: the pretrained backbone; all of ``scratch``, and of ``--partial`` the blocks that were
    drawn anew, with the random weights of the run's seed. Without a head it is put under that of the ``trained``
    network, so that weights have the same names in both."""
    start = adapted.source
    if start is None:
        return None
    provenance = (read_json(folder / CONFIG) or {}).get("provenance", {})
    anew = record.figures.get("training", {}).get("anew")
    if anew or provenance.get("method") == _SCRATCH:
        start = reinitialised(start, int(provenance["seed"]), anew or None)
    return start if start.head else start.with_head(trained.params[f"{trained.head}.weight"])


def _is_lost(adapted: Adapted, record: Record) -> bool:
    """Whether the backbone was trained, and where that began is not found."""
    return adapted.source is None and record.model.get("fingerprint") not in (None, adapted.network.fingerprint)


def _trained_on(record: Record) -> int | None:
    """How many rows the network of a run was trained on; of records that do not say it, all but the test split."""
    if (known := record.figures.get("training", {}).get("rows")) is not None:
        return int(known)
    rows = record.task["rows"]
    return int(rows.get("train", 0)) + int(rows.get("validation", 0)) or None


def _check_classes(ready: Prepared, adapted: Adapted, name: str) -> None:
    target = ready.manifest.target
    if target is not None and (target.kind, target.classes) != (adapted.kind, adapted.classes):
        expected, got = told_apart(adapted.kind, adapted.classes, target.kind, target.classes)
        do = "give the data that the run was made of, or other rows with the same labels"
        raise DataError(f"the labels are not those of the {name} run", expected=expected, got=got, do=do)
