"""The verb for labels that come later: score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regraft.app.console import Bars, Grouped, show_json, table
from regraft.app.folders import check_artifact, check_data, check_predictions
from regraft.app.options import (
    RESULT,
    Backbone,
    Batch,
    Data,
    Device,
    Ignore,
    Input,
    Json,
    Label,
    RunFolder,
    Seed,
    SkipBad,
    Weights,
    Workers,
    one_or_many,
)
from regraft.errors import DataError
from regraft.record import counted, figure
from regraft.wording import some

if TYPE_CHECKING:
    from regraft.graft import Later
    from regraft.record import Finding

__all__ = ["register"]

_WORST = 3  # classes that are named
_MEAN = ("average_precision", "r2")  # over labels or numbers, which rows may leave undefined
_BY = {"iou": "intersection over union", "recall": "recall", "average_precision": "average precision", "r2": "R²"}


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("score", cls=Grouped, short_help="Score an adapted model on labelled rows that came later.")(score)


def score(
    run: RunFolder,
    data: Data,
    model: Backbone = None,
    weights: Weights = None,
    label: Label = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="COLUMN", rich_help_panel="Data",
            help="Rows with the same value here (one patient, one scene) are no independent evidence.",
        ),
    ] = None,
    input_column: Input = None,
    ignore: Ignore = None,
    skip_bad: SkipBad = False,
    metric: Annotated[
        str | None,
        typer.Option("--metric", metavar="NAME", rich_help_panel="Choice and score", help="The run's if absent."),
    ] = None,
    seed: Seed = 0,
    batch_size: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", rich_help_panel=RESULT,
            help="A .csv file for a line a row: truth, predicted, confidence, p(CLASS).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Score an adapted model on labelled rows that it has not seen, beside what its run said.

    The rows may lack classes. Where the data names a test part, that part alone is scored.
    """
    if output is not None:
        if output.suffix.lower() != ".csv":
            raise DataError(f"cannot write scored rows as {output.name}", expected="a .csv file")
        check_predictions(output, [data])
    check_artifact(run)
    check_data(data)
    from regraft.files import write_bytes
    from regraft.graft import load_artifact, pick_device, score_on
    from regraft.graft.adapted.prediction import as_csv
    from regraft.graft.evidence.beside import beside
    from regraft.graft.evidence.lines import prediction_rows
    from regraft.graft.evidence.outputs import by_output
    from regraft.record import Record

    adapted = load_artifact(run, model=model, weights=weights, device=pick_device(device))
    record = Record.load(run) if (run / "record.json").is_file() else None
    said = None if record is None else record.headline
    with Bars({"predict": "predicting"}) as bars:
        later = score_on(
            adapted, data, metric=metric or (said.metric if said else None), label=one_or_many(label), group=group,
            input=input_column, ignore=ignore, skip_bad=skip_bad, seed=seed, batch_size=batch_size, workers=workers,
            progress=bars.stage("predict"),
        )  # fmt: skip
    if output is not None:
        write_bytes(output, as_csv(prediction_rows((later.scored, later.rows))).encode())
    findings = [] if record is None else list(beside(later, record))
    outputs = by_output(later.scored)
    if as_json:
        show_json(_summary(later, findings, outputs, run, output))
    else:
        _say(later, findings, outputs, output)


def _summary(
    later: Later, findings: list[Finding], outputs: list[dict[str, Any]], run: Path, output: Path | None
) -> dict[str, Any]:
    """The one JSON object."""
    from dataclasses import asdict

    from regraft.files import plain

    found = later.scored
    scores = {one.metric: asdict(one) for one in (found.headline, *found.others)}
    whole: dict[str, Any] = plain(
        {
            "verb": "score",
            "status": "done",
            "headline": found.headline.metric,
            "rows": len(later.rows),
            "scores": scores,
            "undefined": dict(found.undefined),
            "outputs": outputs,
            "findings": [asdict(finding) for finding in findings],
            "skipped": [{"id": bad.where, "reason": bad.reason} for bad in later.rows.skipped],
            "paths": {"run": str(run), "predictions": None if output is None else str(output)},
        }
    )
    return whole


def _say(later: Later, findings: list[Finding], outputs: list[dict[str, Any]], output: Path | None) -> None:
    found, headline = later.scored, later.scored.headline
    lines = [("score", headline.stated), ("", f"{counted(headline.rows, 'row')} of {headline.protocol}")]
    if found.others:
        lines.append(("also", ", ".join(f"{one.metric} {figure(one.value, one.metric)}" for one in found.others)))
    lines += [("", f"{why.split(';')[0]}") for _, why in found.undefined]
    key, what = next(((key, what) for key, what in _BY.items() if outputs and key in outputs[0]), ("", ""))
    known = sorted((row for row in outputs if key and row[key] is not None), key=lambda row: row[key])
    if len(known) > 1:
        unit = "pixel" if key == "iou" else "row"
        worst = ", ".join(f"{row['name']} {row[key]:.2f} ({counted(row['rows'], unit)})" for row in known[:_WORST])
        lines.append(("lowest", f"{what} of {worst}"))
    if key in _MEAN and (lost := [row["name"] for row in outputs if row[key] is None]):
        lines.append(("", f"{what} of {some(lost)} is not defined on these rows"))
    for finding in findings:
        word = "beside" if finding.severity == "info" else finding.severity
        lines += [(word, finding.title), *(("", text) for text in (finding.detail, finding.advice) if text)]
    if skipped := later.rows.skipped:
        named = some([f"{bad.where}: {bad.reason}" for bad in skipped], _WORST, "; ")
        lines.append(("left out", f"{counted(len(skipped), 'row')}: {named}"))
    if output is not None:
        lines.append(("rows", str(output)))
    table(lines)
