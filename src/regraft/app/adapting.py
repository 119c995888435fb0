"""The verbs that users come for: adapt, predict, report, demo."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regraft.app.console import Bars, Grouped, command_line, say, show_json
from regraft.app.folders import Place, check_artifact, check_data, check_predictions, check_run
from regraft.app.options import (
    PASS,
    RESULT,
    Backbone,
    Batch,
    ClassWeight,
    Data,
    Device,
    DryRun,
    Dtype,
    Embed,
    Folds,
    Group,
    Ignore,
    Input,
    Instruments,
    Json,
    Kind,
    Label,
    Limit,
    Method,
    Metric,
    Mode,
    Model,
    Output,
    RunFolder,
    RunFolders,
    Seed,
    SkipBad,
    Solver,
    Theta2,
    Tolerance,
    Weights,
    Workers,
    one_or_many,
)
from regraft.app.results import say_estimate, say_result, summary
from regraft.app.training_options import with_training
from regraft.errors import DataError, MissingPathError, RecipeError
from regraft.record import Record, counted
from regraft.record.folder import check_folder, check_other_file, whole
from regraft.wording import some

if TYPE_CHECKING:
    from regraft.data import Manifest
    from regraft.graft import Run
    from regraft.network import Preprocess

__all__ = ["register"]

STAGES = {
    "inspect": "checking inputs",
    "sweep": "one pass of the backbone",
    "solve": "solving heads",
    "train": "training",
    "predict": "predicting",
}
_TABLES = (".csv", ".parquet", ".json")
_NAMED = 5  # inputs that are named where more were left out


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    for verb, short in (
        (with_training(adapt), "Adapt a backbone to labelled data."),
        (predict, "Predict new inputs with an adapted model."),
        (report, "Write a run's report again, from its record."),
        (demo, "Adapt the bundled backbone to handwritten digits."),
    ):
        app.command(verb.__name__, cls=Grouped, short_help=short)(verb)


def adapt(
    data: Data,
    model: Model,
    weights: Weights = None,
    method: Method = "all-layers",
    solver: Solver = None,
    tolerance: Tolerance = None,
    mode: Mode = None,
    theta2: Theta2 = None,
    instruments: Instruments = "cheap",
    kind: Kind = None,
    label: Label = None,
    group: Group = None,
    input_column: Input = None,
    ignore: Ignore = None,
    limit: Limit = None,
    skip_bad: SkipBad = False,
    metric: Metric = None,
    folds: Folds = None,
    seed: Seed = 0,
    class_weight: ClassWeight = None,
    dtype: Dtype = "float32",
    batch_size: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
    output: Output = None,
    embed: Embed = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    training: dict[str, Any] | None = None,
) -> None:
    """Adapt a backbone to labelled data: an honest score, an artifact and a report.

    Most methods train nothing of the backbone, and each input crosses it once; those that train it say
    so. A split named test is used for the final score alone. Without one a split named validation scores, and
    without either the score is cross-validated, or for methods that train and from 10,000 rows on measured on a
    held-out fifth. What was computed is kept in the cache, so that the same command goes on where it stopped.
    """
    check_data(data)
    from regraft.graft import Options, estimate, joined, prepare, with_gradients
    from regraft.graft import adapt as run_adapt
    from regraft.graft.evidence.findings import check_rows
    from regraft.graft.preparation import check_pass

    recipe = with_gradients(method, mode, theta2).altered(**_settings(training or {}))
    options = Options(
        metric=metric, folds=folds, seed=seed, class_weight=class_weight, limit=limit, dtype=dtype,
        batch_size=batch_size, workers=workers, device=device, skip_bad=skip_bad, weights=weights, solver=solver,
        tolerance=tolerance, instruments=instruments,  # type: ignore[arg-type]
    )  # fmt: skip
    columns: dict[str, Any] = {
        "kind": kind, "label": one_or_many(label), "group": group, "input": input_column, "ignore": ignore
    }  # fmt: skip
    check_folder(output or Path("runs"))
    if dry_run:
        with Bars(STAGES) as bars:
            ready = prepare(data, model, method=recipe, options=options, progress=bars, **columns)
            check_run(output, ready)
            check_pass(ready, options, bars)
        record = replace(estimate(ready, options), findings=check_rows(ready))
        show_json(summary(record)) if as_json else say_estimate(record)
        return
    place = Place(output)
    with joined(device) as team, Bars(STAGES, silent=not team.first) as bars:
        run = run_adapt(
            data, model, method=recipe, options=options, progress=bars, command=command_line(), before=place.check,
            after=lambda run: _saved(run, place.folder(run.record), embed) if team.first else run, **columns,
        )  # fmt: skip
    if team.first:
        _tell(run.record, as_json, weights)


def _saved(run: Run, folder: Path, embed: bool) -> Run:
    """The run in its folder with its report, whole or not at all; the same run with its paths."""
    from regraft.app.report import write

    with whole(folder) as staging:
        run = run.save(staging, embed=embed)
        names = {"run": "", "artifact": "model.safetensors", "report": "report.html"}
        record = replace(run.record, paths={key: str(folder / name) for key, name in names.items()})
        record.save(staging / "record.json")
        write(record, staging / "report.html")
    return replace(run, record=record)


def _tell(record: Record, as_json: bool, weights: Path | str | None = None) -> None:
    show_json(summary(record)) if as_json else say_result(record, weights)


def predict(
    run: RunFolder,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...", show_default=False,
            help="Image or .txt files, one folder, one table, or the texts themselves.",
        ),
    ],
    model: Backbone = None,
    weights: Weights = None,
    input_column: Input = None,
    skip_bad: SkipBad = False,
    batch_size: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
    crops: Annotated[
        int | None,
        typer.Option(
            "--crops", metavar="N", min=1, rich_help_panel=PASS,
            help="Average over N random crops of each image: N passes. Its own view if absent.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", rich_help_panel=RESULT,
            help="A .csv, .parquet or .json file; CSV on stdout if absent.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Predict new inputs with an adapted model.

    One row per input: its name, the prediction, its probability, and the probability of every class. Masks are
    written as indexed PNG into a folder beside the --output file, named like it.
    """
    if output is not None:
        if output.suffix.lower() not in _TABLES:
            raise DataError(f"cannot write predictions as {output.name}", expected="a .csv, .parquet or .json file")
        check_predictions(output, inputs)
    check_artifact(run)
    _check_inputs(inputs)
    from regraft.data import scan
    from regraft.graft import load_artifact, pick_device, predict_over_crops
    from regraft.graft.adapted.prediction import check_masks

    adapted = load_artifact(run, model=model, weights=weights, device=pick_device(device))
    given = _inputs(inputs, adapted.network.preprocess)
    if output is not None and adapted.kind == "segmentation":
        check_masks(output)
    manifest = scan(given, labelled=False, input=input_column, read=adapted.columns)
    how: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "skip_bad": skip_bad}
    with Bars(STAGES) as bars:
        how["progress"] = bars.stage("predict")
        if crops is None:
            prediction = adapted.predict_proba(manifest, **how)
        else:
            prediction = predict_over_crops(adapted, manifest, crops=crops, **how)
    if output is not None:
        prediction.save(output)
    elif adapted.kind == "segmentation":
        say("masks are written with --output FILE alone, into a folder beside it", error=True)
    skipped = _left_out(manifest, prediction.ids, adapted.network.preprocess)
    if skipped and not as_json:
        names = some([f"{row['id']}: {row['reason']}" for row in skipped], _NAMED, "; ")
        say(f"{counted(len(skipped), 'input was', 'inputs were')} left out: {names}", error=True)
    if as_json:
        paths = {"run": str(run), "predictions": None if output is None else str(output)}
        done = {"verb": "predict", "status": "done", "rows": len(prediction.ids), "paths": paths}
        show_json({**done, "predictions": prediction.table() if output is None else None, "skipped": skipped})
    elif output is None:
        say(prediction.csv().rstrip("\n"))
    else:
        say(f"{counted(len(prediction.ids), 'prediction')} in {output}")


def _left_out(manifest: Manifest, predicted: tuple[str, ...], preprocess: Preprocess) -> list[dict[str, str]]:
    """Which inputs were not predicted, and why: ``predicted`` are the names of the others, in their order."""
    from regraft.data import inspect
    from regraft.graft.adapted.model import NO_ANSWER

    if len(predicted) == len(manifest):
        return []
    kept, lost = iter((*predicted, None)), list[int]()
    name = next(kept)
    for row, own in enumerate(manifest.ids):
        if own == name:
            name = next(kept)
        else:
            lost.append(row)
    inputs = manifest.inputs.take(lost)
    reasons = {row: bad.reason for row, bad in inspect(inputs)}
    for row in range(len(lost)):
        if row not in reasons:  # it can be read, and has another grammar than what the backbone reads, or no answer
            reasons[row] = preprocess.fault(inputs.read(row)) or NO_ANSWER
    return [{"id": manifest.ids[row], "reason": reasons[i]} for i, row in enumerate(lost)]


def report(
    runs: RunFolders,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", rich_help_panel=RESULT, help="RUN/report.html if absent."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run's report again, from its record.

    Of several runs on the same rows it also says by how much each is better than the others (of runs on other rows why
    it cannot), and of Head2Toe runs how far the features that they chose overlap.
    """
    from regraft.app.comparing import compared, paired, say_compared, say_paired
    from regraft.app.report import check_page, write

    if twice := [run for place, run in enumerate(runs) if run.resolve() in {one.resolve() for one in runs[:place]}]:
        raise DataError(f"the run {twice[0]} is named twice", expected="different runs", do="name each once")
    if output is not None:
        if len(runs) > 1:
            raise DataError("--output names one file", got=f"{len(runs)} runs", do="leave it out, or name one run")
        if output.parent.resolve() != runs[0].resolve():
            check_other_file(output)
        check_page(output)
        check_folder(output.parent)
    records = [Record.load(run / "record.json") for run in runs]
    for run, record in zip(runs, records):
        if record.verb == "pretrain":
            raise DataError(f"{run} has no report", expected="what adapt, diagnose or rank left", got="a pretraining")
    chosen, overlaps = compared(runs) if len(runs) > 1 else ([], {})
    differences, apart = paired(runs) if len(runs) > 1 else ([], [])
    written = [write(record, output or run / "report.html") for run, record in zip(runs, records)]
    if as_json:
        paths = [{"run": str(run), "report": str(path)} for run, path in zip(runs, written)]
        several = {"paths": paths, "chosen": overlaps, "paired": differences, "not_comparable": apart}
        found: dict[str, Any] = {"paths": paths[0]} if len(runs) == 1 else several
        show_json({"verb": "report", "status": "done", **found})
        return
    for path in written:
        say(str(path))
    say_paired(differences, apart)
    say_compared(chosen, overlaps)


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", rich_help_panel=RESULT, help="Run folder.")
    ] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """Adapt the bundled backbone, which knows clothes, to real handwritten digits."""
    check_folder(output)
    from regraft.app.demo import digits
    from regraft.graft import adapt as run_adapt

    place = Place(output)
    with Bars(STAGES) as bars:
        run = run_adapt(
            digits(), "regraft/fashion-resnet", progress=bars, command="regraft demo",
            before=place.check, after=lambda run: _saved(run, place.folder(run.record), embed=False),
        )  # fmt: skip
    _tell(run.record, as_json)


def _check_inputs(given: list[str]) -> None:
    """Refuse what cannot be predicted whatever the backbone reads: blanks, files that are not there, a folder among
    files."""
    if not all(name.strip() for name in given):
        raise DataError("an input is blank", expected="a file, a folder or a text", do="name it, or leave it out")
    if len(given) > 1 and (folders := [name for name in given if os.path.isdir(name)]):
        raise DataError(f"{folders[0]} is a folder among files", do="give one folder, or files only")
    if missing := [name for name in given if _is_file_name(name) and not os.path.exists(name)]:
        raise _missing(missing[0])


def _inputs(given: list[str], preprocess: Preprocess) -> Any:
    """One folder or table as it is; other names as files, or where none of them is one as texts, if these are read."""
    from regraft.data import DATA_SUFFIXES

    if len(given) == 1 and (os.path.isdir(given[0]) or Path(given[0]).suffix.lower() in DATA_SUFFIXES):
        return given[0]
    missing = [name for name in given if not os.path.exists(name)]
    for name in missing:
        if why := _no_text(name, preprocess):
            raise _missing(name, why)
    if missing and len(missing) < len(given):
        there = next(name for name in given if os.path.exists(name))
        raise DataError(f"{there} is a file among texts", do="give files alone, or texts alone")
    return given if missing else [Path(name) for name in given]


def _is_file_name(name: str) -> bool:
    from regraft.data import DATA_SUFFIXES
    from regraft.data.loose import TEXT_SUFFIX
    from regraft.data.pixels import IMAGE_SUFFIXES

    return name.lower().endswith((*DATA_SUFFIXES, *IMAGE_SUFFIXES, TEXT_SUFFIX))


def _no_text(name: str, preprocess: Preprocess) -> str:
    """Why a backbone does not read this as it is: by its grammar, or one word alone may be a mistyped name."""
    if preprocess.modality != "text":
        return "check the path"
    if preprocess.strict:
        return f"check the path; as an input: {fault}" if (fault := preprocess.fault(name)) else ""
    return "" if len(name.split()) > 1 else "check the path; a text has more words than one"


def _missing(name: str, do: str = "check the path") -> MissingPathError:
    from regraft.data.forms import meant

    return MissingPathError(f"{name} is not there", do=meant(Path(name)) or do)


def _settings(training: dict[str, Any]) -> dict[str, Any]:
    """What is asked of training, with τ as a number where it is one."""
    tau = training.get("tau")
    if tau is None or tau == "auto":
        return training
    if not tau.isdecimal():
        raise RecipeError(f"--tau {tau}", expected="a whole number of epochs, or auto")
    return {**training, "tau": int(tau)}
