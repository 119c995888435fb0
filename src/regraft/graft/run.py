"""`adapt`: from data and a backbone to a solved head, its scores, its cost and its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from regraft.errors import RecipeError
from regraft.files import write_bytes
from regraft.graft.adapted.artifact import embedded, save_artifact
from regraft.graft.adapted.card import model_card
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.prediction import Prediction, as_csv
from regraft.graft.build import Tangents, problems, workshop
from regraft.graft.cost.pricing import price_of_run
from regraft.graft.cost.row import RowCost
from regraft.graft.evidence.context import Context
from regraft.graft.evidence.figures import figures
from regraft.graft.evidence.findings import check
from regraft.graft.evidence.lines import prediction_rows
from regraft.graft.evidence.overlays import overlays
from regraft.graft.gradient.recipe import with_gradients
from regraft.graft.later import Later, score_on
from regraft.graft.options import Options, pick_device
from regraft.graft.preparation import Prepared, Progress, prepare, swept
from regraft.graft.protocol import evaluate
from regraft.graft.recipe import SETTINGS, Recipe
from regraft.graft.recording import record_of, versions
from regraft.memory import kept_memory
from regraft.network import Network, check_weights
from regraft.record import Ledger, Record, Score
from regraft.record.folder import BACKBONE, check_replaced, whole

__all__ = ["Options", "Progress", "Run", "adapt", "pick_device", "prepare", "versions"]


_OF_STAGES = ("mode", "theta2", *SETTINGS)  # settings of a recipe's stages
_OF_DATA = ("kind", "label", "group", "input", "ignore")


@dataclass(frozen=True, eq=False)
class Run:
    """What :func:`adapt` returns: the model, the evidence, and per-row predictions."""

    adapted: Adapted
    record: Record
    rows: list[list[Any]]

    def __repr__(self) -> str:
        record = self.record
        scored = "" if record.headline is None else f": {record.headline}"
        return f"Run({record.method} on {record.model['name']}{scored})"

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

    def score_on(self, data: Any, **options: Any) -> Later:
        """The head on labelled rows that it has not seen: see :func:`regraft.graft.score_on`; by the run's metric."""
        return score_on(self.adapted, data, **{"metric": self.score.metric, **options})

    def save(self, folder: str | Path, *, embed: bool = False, overwrite: bool = False) -> Run:
        """Write the run folder: artifact, record, model card, per-row predictions; `regraft report` writes the report,
        and one that is there is removed, for it may be another run's.

        Args:
            folder: created if need be; files of the same run made earlier are replaced once all of these are written.
            embed: keep a copy of the backbone in the artifact.
            overwrite: replace what lies there, whatever run or file it is.

        Returns:
            the same run with the paths and the artifact's size in its record.

        Raises:
            DataError: the folder holds another run, or files that this one's would replace.
        """
        folder = Path(folder)
        record = self.record
        if not overwrite:
            check_replaced(folder, record, [BACKBONE] if embed else [])
        provenance = {
            "method": record.method,
            "regraft": record.versions["regraft"],
            "data": {key: record.data[key] for key in ("name", "fingerprint")},
            "seed": record.seeds["seed"],
        }
        paths = {"run": str(folder), "artifact": str(folder / "model.safetensors")}
        kept = embedded(self.adapted).fingerprint if embed else ""
        with whole(folder) as staging:
            size = save_artifact(self.adapted, staging, provenance=provenance, embed=embed)
            record = replace(record, artifact_bytes=size, paths=paths)
            write_bytes(staging / "predictions.csv", as_csv(self.rows).encode())
            write_bytes(staging / "README.md", model_card(record, kept).encode())
            record.save(staging / "record.json")
            (folder / "report.html").unlink(missing_ok=True)  # of an earlier run: it would be read as this one's
        return replace(self, record=record)


@kept_memory()
def adapt(
    data: Any,
    model: str | Network,
    *,
    method: str | Recipe = "all-layers",
    options: Options | None = None,
    progress: Progress | None = None,
    command: str = "",
    before: Callable[[Prepared], None] | None = None,
    after: Callable[[Run], Run] | None = None,
    **settings: Any,
) -> Run:
    """Graft a task onto a backbone, frozen or trained with the head.

    One pass of the backbone over the rows gives every tap that the method needs; the head's form and
    penalty are chosen by cross-validation inside the training rows; the score comes from rows that had
    no part in the choice (see :mod:`regraft.graft.protocol`). Methods that train choose how on held-out
    rows; an interrupted training goes on, bit for bit, when the same call is made again.

    Args:
        data: all that :func:`regraft.data.scan` reads: a folder of class folders or of images and masks, a table, an
            ``.npz`` file, ``(X, y)`` arrays, a ``datasets`` object or id, or a Manifest.
        model: a backbone by name or folder, or a loaded Network.
        method: a name of :data:`regraft.graft.METHODS`, or a Recipe.
        options: all run options at once; or give their fields as keywords.
        progress: called with (stage, done, total).
        command: kept in the record as how to reproduce the run.
        before: called once rows and backbone are checked, before the pass; what it raises ends the run.
        after: saves the run and gives it back. It is called before the checkpoints of trainings are deleted: where it
            fails, the same call goes on from them.
        **settings: fields of :class:`Options`; ``kind``, ``label``, ``group``, ``input``, ``ignore`` for the data; and
            ``mode``, ``theta2`` and the fields of :class:`regraft.graft.Changes` (``tau``, ``steps``,
            ``batchnorm``, …) for the recipe's stages.

    Returns:
        the adapted model with its record; :meth:`Run.save` writes the run folder.

    Raises:
        RegraftError: a mistake of the user's, in one sentence.
    """
    columns = {k: settings.pop(k) for k in _OF_DATA if k in settings}
    stages = {k: settings.pop(k) for k in _OF_STAGES if k in settings}
    known = [field.name for field in fields(Options)]
    if wrong := [name for name in settings if name not in known]:
        named = ", ".join(sorted([*known, *_OF_DATA, *_OF_STAGES]))
        raise RecipeError(f"adapt has no setting {wrong[0]!r}", expected=f"one of {named}")
    if not isinstance(options, Options | None):
        do = "give Options(…), or its fields as arguments of adapt"
        raise RecipeError("the options", expected="Options", got=type(options).__name__, do=do)
    for name, called in (("progress", progress), ("before", before), ("after", after)):
        if called is not None and not callable(called):  # said now: the last is called when all is done
            raise RecipeError(f"{name} of adapt", expected="a function", got=repr(called))
    options = replace(options or Options(), **settings)
    check_weights(model, options.weights)
    method = with_gradients(method, stages.pop("mode", None), stages.pop("theta2", None)).altered(**stages)
    ledger = Ledger()
    ready = prepare(data, model, method=method, options=options, ledger=ledger, progress=progress, **columns)
    if before is not None:
        before(ready)
    tangents = Tangents(ready, options)
    stores = swept(ready, options, ledger, progress, tangents.passing)
    fit_rows, test_rows = ready.fit, ready.test
    stage = "solve" if ready.recipe.train is None else "train"
    tick = None if progress is None else lambda done, total: progress(stage, done, total)
    with ledger.stage(stage) as extra:
        work = workshop(ready, options, tick)
        fit, test = problems(ready, stores, options, work, tangents)
        evaluation = evaluate(fit, fit_rows.rows_of("validation"), test, progress=None if fit.dear else tick)
        products = fit.flops + (0 if test is None else test.flops)
        passed = work.rows + fit.passed + (0 if test is None else test.passed)
        extra.update(backbone_passes=passed / len(ready.manifest), flops=work.flops + products)
    adapted = evaluation.head.adapted(fit.task, ready.network, ready.plan)
    target = fit.task.target
    adapted = replace(adapted, label_type=target.label_type, ignore=target.ignore, columns=ready.manifest.columns)
    with ledger.stage("evidence"):
        main = evaluation.main
        scored = (test_rows if main.part == "test" else fit_rows).take(main.rows)  # type: ignore[union-attr]
        pictures = figures(evaluation, fit, scored, ready.plan)
        if seen := overlays(adapted, scored):
            pictures["overlays"] = seen
        pictures["floor_seconds"] = len(ready.manifest) * RowCost.of([store for store in stores if store]).seconds
        findings = check(Context(ready.manifest, ready.unlabelled, fit, evaluation, pictures, ready.network))
    pictures["price"] = price_of_run(ready, stores, adapted, options, ledger)
    record = record_of(ready, evaluation, options, ledger, command)
    record = replace(record, figures=pictures, findings=(*findings, *work.findings()))
    parts = [(evaluation.validation, fit_rows)]
    if evaluation.test is not None and test_rows is not None:
        parts.append((evaluation.test, test_rows))
    run = Run(adapted, record, prediction_rows(*parts))
    if after is not None:
        run = after(run)
    work.clear()
    return run
