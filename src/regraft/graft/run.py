"""`adapt`: from data and a backbone to a solved head, its scores, its cost and its record."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import Manifest, check_target, checked, scan
from regraft.errors import DataError, RecipeError
from regraft.features import Plan, Store, by_size, find, plan, sweep
from regraft.files import write_bytes
from regraft.graft.adapted import Adapted, check_modality
from regraft.graft.artifact import save_artifact
from regraft.graft.card import model_card
from regraft.graft.evidence import figures, prediction_rows
from regraft.graft.findings import Context, check
from regraft.graft.options import Options, check_options, choose_metric, pick_device
from regraft.graft.prediction import Prediction
from regraft.graft.problem import Problem
from regraft.graft.protocol import Evaluation, check_protocol, evaluate
from regraft.graft.recipe import Recipe, find_recipe
from regraft.network import Network, load
from regraft.record import Ledger, Record, Score

__all__ = ["Options", "Progress", "Run", "adapt", "pick_device", "prepare", "versions"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Run:
    """What :func:`adapt` returns: the model, the evidence, and per-row predictions."""

    adapted: Adapted
    record: Record
    rows: list[list[Any]]

    @property
    def score(self) -> Score:
        """The headline score with its interval."""
        score = self.record.headline
        if score is None:
            raise RecipeError("this run has no score")
        return score

    def predict(self, inputs: Any, **options: Any) -> list[Any]:
        """Labels or values for raw inputs."""
        return self.adapted.predict(inputs, **options)

    def predict_proba(self, inputs: Any, **options: Any) -> Prediction:
        """Probabilities for raw inputs."""
        return self.adapted.predict_proba(inputs, **options)

    def save(self, folder: str | Path, *, embed: bool = False) -> Run:
        """Write the run folder: artifact, record, model card, per-row predictions.

        Args:
            folder: created if need be; files of an earlier run are replaced one by one, each atomically.
            embed: keep a copy of the backbone in the artifact.

        Returns:
            the same run with the paths and the artifact's size in its record.
        """
        folder = Path(folder)
        record = self.record
        provenance = {
            "method": record.method,
            "regraft": record.versions["regraft"],
            "data": {key: record.data[key] for key in ("name", "fingerprint")},
            "seed": record.seeds["seed"],
        }
        size = save_artifact(self.adapted, folder, provenance=provenance, embed=embed)
        paths = {"run": str(folder), "artifact": str(folder / "model.safetensors")}
        record = replace(record, artifact_bytes=size, paths=paths)
        write_bytes(folder / "predictions.csv", _csv(self.rows))
        write_bytes(folder / "README.md", model_card(record).encode())
        record.save(folder / "record.json")
        return replace(self, record=record)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is known before the pass: rows, backbone, blocks."""

    recipe: Recipe
    manifest: Manifest
    unlabelled: int
    network: Network
    plan: Plan
    metric: str

    @property
    def fit(self) -> Manifest:
        """Training and validation rows."""
        return self.manifest.take(np.flatnonzero([part != "test" for part in self.manifest.split]))

    @property
    def parts(self) -> list[Manifest]:
        """What is swept: the fit rows, and the test rows if there are any."""
        return [part for part in (self.fit, self.test) if part is not None]

    @property
    def test(self) -> Manifest | None:
        """The named test split's rows."""
        rows = self.manifest.rows_of("test")
        return self.manifest.take(rows) if len(rows) else None


def prepare(
    data: Any,
    model: str | Network,
    *,
    method: str | Recipe = "all-layers",
    options: Options | None = None,
    ledger: Ledger | None = None,
    **columns: Any,
) -> Prepared:
    """Scan the rows, load the backbone, plan the blocks: everything that comes before the pass.

    ``columns`` (kind, label, group, input) go to :func:`regraft.data.scan`.

    Raises:
        DataError, MissingPathError, ModelError, TapError, RecipeError: the user's mistakes, in a sentence.
    """
    ledger = ledger or Ledger()
    options = options or Options()
    recipe = find_recipe(method)
    device = check_options(options)
    with ledger.stage("data"):
        manifest = scan(data, skip_bad=options.skip_bad, **columns)
        manifest, unlabelled = _labelled(manifest)
        if options.limit is not None:
            manifest = _limited(manifest, options.limit, options.seed)
        metric = choose_metric(options, manifest.target.kind)  # type: ignore[union-attr]
        check_protocol(manifest, metric, options.folds, options.seed)
    with ledger.stage("model"):
        network = model if isinstance(model, Network) else load(model, weights=options.weights)
        network = network.to(device)
        check_modality(network, manifest)
        wanted = plan(network, [recipe.features.taps])
    return Prepared(recipe, manifest, unlabelled, network, wanted, metric)


def _limited(manifest: Manifest, rows: int, seed: int) -> Manifest:
    kept = manifest.limit(rows, seed)
    try:
        check_target(kept)
    except DataError as error:
        raise DataError(
            f"{error.what}, after --limit {rows}", expected=error.expected, got=error.got, do="raise --limit"
        ) from error
    return kept


def _labelled(manifest: Manifest) -> tuple[Manifest, int]:
    target = manifest.target
    if target is None:
        raise DataError(f"{manifest.name} has no labels", do="name the label column with --label")
    if target.masks is not None:
        raise RecipeError(
            f"{manifest.name} has a mask per image; the methods here need one label per row",
            do="choose a column of labels with --label",
        )
    present = target.present
    if not present.any():
        raise DataError(f"no row of {manifest.name} has a label", do="name the label column with --label")
    return manifest.take(np.flatnonzero(present)), int((~present).sum())


def adapt(
    data: Any,
    model: str | Network,
    *,
    method: str | Recipe = "all-layers",
    options: Options | None = None,
    progress: Progress | None = None,
    command: str = "",
    **settings: Any,
) -> Run:
    """Graft a task onto a frozen backbone.

    One pass of the backbone over the rows gives every tap that the method needs; the head's form and
    penalty are chosen by cross-validation inside the training rows; the score comes from rows that had
    no part in the choice (see :mod:`regraft.graft.protocol`).

    Args:
        data: a folder of class folders, a CSV/TSV/parquet file, a folder of parquet files, an ``.npz``
            file, ``(X, y)`` arrays, a ``datasets`` object or id, or a Manifest.
        model: a backbone by name or folder, or a loaded Network.
        method: ``probe``, ``all-layers``, ``head2toe`` or a Recipe.
        options: all run options at once; or give their fields as keywords.
        progress: called with (stage, done, total).
        command: kept in the record as how to reproduce the run.
        **settings: fields of :class:`Options`, and ``kind``, ``label``, ``group``, ``input`` for the
            data.

    Returns:
        the adapted model with its record; :meth:`Run.save` writes the run folder.

    Raises:
        RegraftError: a mistake of the user's, in one sentence.
    """
    columns = {k: settings.pop(k) for k in ("kind", "label", "group", "input") if k in settings}
    options = replace(options or Options(), **settings)
    ledger = Ledger()
    ready = prepare(data, model, method=method, options=options, ledger=ledger, **columns)
    ready, fit_store, test_store = _sweep(ready, options, ledger, progress)
    fit_rows, test_rows = ready.fit, ready.test
    with ledger.stage("solve"):
        fit = _problem(ready, fit_rows, fit_store, options)
        test = None if test_rows is None else _problem(ready, test_rows, test_store, options)
        tick = None if progress is None else lambda done, total: progress("solve", done, total)
        evaluation = evaluate(fit, fit_rows.rows_of("validation"), test, progress=tick)
    target = fit.target
    adapted = Adapted(
        ready.network, _read_by(evaluation, ready.plan), evaluation.head.view, evaluation.head.solution.readout,
        target.kind, target.classes,
    )  # fmt: skip
    with ledger.stage("evidence"):
        main = evaluation.main
        scored = (test_rows if main.part == "test" else fit_rows).take(main.rows)  # type: ignore[union-attr]
        pictures = figures(evaluation, fit, scored, ready.plan.blocks)
        pictures["floor_seconds"] = fit_store.pass_seconds + (test_store.pass_seconds if test_store else 0.0)
        findings = check(Context(ready.manifest, ready.unlabelled, fit, evaluation))
    record = _record(ready, evaluation, options, ledger, command)
    record = replace(record, figures=pictures, findings=findings)
    lines = prediction_rows(evaluation, fit_rows.ids, test_rows.ids if test_rows else ())
    return Run(adapted, record, lines)


def _read_by(evaluation: Evaluation, wanted: Plan) -> Plan:
    """The blocks that the head reads: what a prediction must compute."""
    return wanted.only(list(evaluation.head.solution.readout.coefficients))


def _sweep(
    ready: Prepared, options: Options, ledger: Ledger, progress: Progress | None
) -> tuple[Prepared, Store, Store | None]:
    """The pass over the fit rows and the test rows, or what the store has of it."""
    with ledger.stage("sweep") as extra:
        stores = _stored(ready, options)
        if not all(stores):
            # What was swept before was readable then; only rows that are new are looked at before the pass. With
            # skip_bad the scan has looked at all of them.
            if not options.skip_bad:
                checked(ready.manifest, progress=_stage(progress, "inspect"))
            check_protocol(ready.manifest, ready.metric, options.folds, options.seed)
            stores = _swept(ready, options, progress)
        extra["backbone_passes"] = sum(store.computed_rows for store in stores if store) / len(ready.manifest)
        extra["flops"] = sum(store.flops for store in stores if store)
        extra["reused"] = all(store.reused for store in stores if store)
    fit, test = (*stores, None)[:2]
    return ready, fit, test  # type: ignore[return-value]


def _stored(ready: Prepared, options: Options) -> list[Store | None]:
    """The store of each part that is complete already."""
    where = {"cache": options.cache, "dtype": options.dtype}
    return [find(ready.network, part, ready.plan, **where) for part in ready.parts]  # type: ignore[arg-type]


def _swept(ready: Prepared, options: Options, progress: Progress | None) -> list[Store | None]:
    total, before = len(ready.manifest), 0
    stores: list[Store | None] = []
    for part in ready.parts:
        tick = None if progress is None else lambda n, _, done=before: progress("sweep", done + n, total)
        stores.append(
            sweep(
                ready.network,
                part,
                ready.plan,
                cache=options.cache,
                dtype=options.dtype,
                batch_size=options.batch_size,
                workers=options.workers,
                progress=tick,
            )
        )
        before += len(part)
    return stores


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)


def _problem(ready: Prepared, rows: Manifest, store: Store | None, options: Options) -> Problem:
    target = rows.target
    if target is None or store is None:
        raise DataError(f"{rows.name} has no labels")
    return Problem(
        store.matrices(),
        target,
        rows.groups,
        ready.metric,
        ready.recipe.features.scalings,
        ready.recipe.solve,
        options.seed,
        options.folds,
        "balanced" if options.class_weight else None,
        ready.recipe.select,
        by_size(ready.network, ready.recipe.features.taps) if ready.recipe.select else {},
    )


def _record(ready: Prepared, evaluation: Evaluation, options: Options, ledger: Ledger, command: str) -> Record:
    target, network = ready.manifest.target, ready.network
    scored = {"validation": evaluation.validation, "test": evaluation.test}
    return Record(
        verb="adapt",
        status="done",
        method=ready.recipe.name,
        task={
            "kind": target.kind,  # type: ignore[union-attr]
            "classes": list(target.classes),  # type: ignore[union-attr]
            "rows": {part: len(ready.manifest.rows_of(part)) for part in ("train", "validation", "test")},
            "metric": ready.metric,
            "title": ready.recipe.title,
        },
        model={
            "name": Path(network.name).name if Path(network.name).is_dir() else network.name,
            "path": network.name,
            "source": network.about.source,
            "revision": network.about.revision,
            "licence": network.about.licence,
            "fingerprint": network.fingerprint,
            "parameters": network.about.parameters,
            "taps": len(ready.plan.blocks),
            "features": ready.plan.width,
        },
        data={
            "name": ready.manifest.name,
            "fingerprint": ready.manifest.fingerprint,
            "modality": ready.manifest.inputs.modality,
            "grouped": ready.manifest.groups is not None,
        },
        scores={name: None if part is None else part.headline for name, part in scored.items()},
        other_scores={name: part.others for name, part in scored.items() if part is not None},
        candidates=evaluation.head.solution.candidates,
        costs=ledger.costs,
        seeds={"seed": options.seed},
        versions=versions(),
        command=command,
        citations=(ready.recipe.citation,) if ready.recipe.citation else (),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def versions() -> dict[str, str]:
    """The versions that a run's numbers depend on."""
    packages = ("regraft", "torch", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _csv(rows: list[list[Any]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()
