"""The verbs that users come for: adapt, predict, report, demo."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regraft.app.console import Bars, say, show_json
from regraft.errors import DataError, MissingPathError

if TYPE_CHECKING:
    from regraft.record import Record, Score

__all__ = ["register", "summary"]

STAGES = {"sweep": "one pass of the backbone", "solve": "solving heads", "predict": "predicting"}

Data = Annotated[
    str, typer.Argument(help="Folder of class folders, CSV/TSV/parquet/npz file, or a hub id.", show_default=False)
]
Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="Backbone: a folder, timm/…, torchvision/…, org/name, regraft/… or pkg.module:callable."
    ),
]
Weights = Annotated[str | None, typer.Option("--weights", help="Safetensors file for pkg.module:callable.")]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Rows per forward pass.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=0, help="Decoding processes; chosen by the work if absent.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable inputs out and say so.")]
Kind = Annotated[
    str | None, typer.Option("--kind", help="binary, multiclass, multilabel or regression; inferred if absent.")
]
Label = Annotated[list[str] | None, typer.Option("--label", help="Label column; repeat it for several.")]
Group = Annotated[str | None, typer.Option("--group", help="Column of groups that no split or fold may cross.")]
Input = Annotated[str | None, typer.Option("--input", help="Input column.")]
Metric = Annotated[
    str | None, typer.Option("--metric", help="accuracy, balanced-accuracy, f1, roc-auc, map, r2 or rmse.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Run folder; runs/DATA-MODEL-METHOD if absent.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("adapt")(adapt)
    app.command("predict")(predict)
    app.command("report")(report)
    app.command("demo")(demo)


def adapt(
    data: Data,
    model: Model,
    method: Annotated[str, typer.Option("--method", help="probe or all-layers.")] = "all-layers",
    output: Output = None,
    weights: Weights = None,
    metric: Metric = None,
    kind: Kind = None,
    label: Label = None,
    group: Group = None,
    input_column: Input = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=2, help="Use N training rows, balanced and seeded.")
    ] = None,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Cross-validation folds.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Seed of splits, folds and bootstrap.")] = 0,
    class_weight: Annotated[
        str | None, typer.Option("--class-weight", help="'balanced' weights every class alike.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Feature storage: float32, float16 or bfloat16.")] = "float32",
    batch_size: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    embed: Annotated[bool, typer.Option("--embed", help="Keep a copy of the backbone in the run folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Adapt a backbone to labelled data: one pass, an honest score, an artifact and a report."""
    from regraft.graft import Options, estimate, prepare
    from regraft.graft import adapt as run_adapt

    options = Options(
        metric=metric, folds=folds, seed=seed, class_weight=class_weight, limit=limit, dtype=dtype,
        batch_size=batch_size, workers=workers, device=device, skip_bad=skip_bad, weights=weights,
    )  # fmt: skip
    columns = {"kind": kind, "label": _one_or_many(label), "group": group, "input": input_column}
    if dry_run:
        record = estimate(prepare(data, model, method=method, options=options, **columns), options)
        show_json(summary(record)) if as_json else _say_estimate(record)
        return
    command = shlex.join(["regraft", *sys.argv[1:]]) if Path(sys.argv[0]).name in ("regraft", "__main__.py") else ""
    with Bars(STAGES) as bars:
        run = run_adapt(data, model, method=method, options=options, progress=bars, command=command, **columns)
    folder = output or Path("runs") / _slug(run.record)
    _finish(run, folder, embed, as_json)


def _finish(run: Any, folder: Path, embed: bool, as_json: bool) -> None:
    """Save the run folder with its report and say the result."""
    from dataclasses import replace

    from regraft.app.report import write

    run = run.save(folder, embed=embed)
    record = replace(run.record, paths={**run.record.paths, "report": str(folder / "report.html")})
    record.save(folder / "record.json")
    write(record, folder / "report.html")
    show_json(summary(record)) if as_json else _say_result(record)


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder of `regraft adapt`.")],
    inputs: Annotated[list[str], typer.Argument(help="Images, a folder, or a table.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The backbone, if it moved.")] = None,
    weights: Weights = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write .csv, .parquet or .json; CSV on stdout if absent.")
    ] = None,
    input_column: Input = None,
    batch_size: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> None:
    """Predict new inputs with an adapted model."""
    from regraft.graft import load_artifact, pick_device
    from regraft.data import scan

    adapted = load_artifact(run, model=model, weights=weights, device=pick_device(device))
    manifest = scan(_inputs(inputs), labelled=False, input=input_column)
    with Bars(STAGES) as bars:
        prediction = adapted.predict_proba(
            manifest, batch_size=batch_size, workers=workers, skip_bad=skip_bad, progress=bars.stage("predict")
        )
    if output is not None:
        prediction.save(output)
    if as_json:
        paths = {"run": str(run), "predictions": None if output is None else str(output)}
        done = {"verb": "predict", "status": "done", "rows": len(prediction.ids), "paths": paths}
        show_json({**done, "predictions": prediction.table() if output is None else None})
    elif output is None:
        say(prediction.csv().rstrip("\n"))
    else:
        say(f"{len(prediction.ids)} predictions in {output}")


def report(
    run: Annotated[Path, typer.Argument(help="Run folder of `regraft adapt`.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML file; RUN/report.html if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's report again, from its record."""
    from regraft.app.report import write
    from regraft.record import Record

    path = write(Record.load(run / "record.json"), output or run / "report.html")
    if as_json:
        show_json({"verb": "report", "status": "done", "paths": {"run": str(run), "report": str(path)}})
    else:
        say(str(path))


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Run folder.")] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """Adapt the bundled backbone, which knows clothes, to real handwritten digits."""
    from regraft.graft import adapt as run_adapt
    from regraft.app.demo import digits

    with Bars(STAGES) as bars:
        run = run_adapt(digits(), "regraft/fashion-resnet", progress=bars, command="regraft demo")
    _finish(run, output, embed=False, as_json=as_json)


def summary(record: Record) -> dict[str, Any]:
    """The one JSON object of `adapt --json`."""
    full = record.to_json()
    return {
        "verb": record.verb,
        "status": record.status,
        "method": record.method,
        "task": {key: full["task"][key] for key in ("kind", "classes", "rows")},
        "scores": {name: _brief(record.scores.get(name)) for name in ("validation", "test")},
        "cost": {
            "backbone_passes": record.total("backbone_passes"),
            "flops": int(record.total("flops")),
            "seconds": {cost.stage: cost.seconds for cost in record.costs},
            "peak_bytes": max((cost.peak_bytes for cost in record.costs), default=0),
            "artifact_bytes": record.artifact_bytes,
        },
        "findings": full["findings"],
        "paths": {name: record.paths.get(name) for name in ("run", "artifact", "report")},
    }


def _brief(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {key: asdict(score)[key] for key in ("metric", "value", "low", "high", "rows", "protocol")}


def _say_result(record: Record) -> None:
    for name in ("test", "validation"):
        if (score := record.scores.get(name)) is not None:
            say(
                f"{name} {score.metric} {score.value:.4f}  (95 % interval {score.low:.4f} to {score.high:.4f}, "
                f"{score.rows} rows, {score.protocol})"
            )
    say(
        f"cost  {record.total('backbone_passes'):.2f} backbone passes, {record.total('seconds'):.1f} s, "
        f"artifact {record.artifact_bytes / 1e6:.2f} MB"
    )
    if licence := record.model["licence"]:
        say(f"backbone licence  {licence}")
    for finding in record.findings:
        if finding.severity in ("warning", "advice"):
            say(f"{finding.severity}  {finding.title} {finding.advice}")
    say(f"model   {record.paths['run']}")
    say(f"report  {record.paths['report']}")


def _say_estimate(record: Record) -> None:
    say(
        f"rows {sum(record.task['rows'].values())}, {record.model['taps']} taps, {record.model['features']} features a row"
    )
    for cost in record.costs:
        flops = f", {cost.flops:.2e} FLOPs" if cost.flops else ""
        say(
            f"{cost.stage:<8} about {cost.seconds:.1f} s, {cost.backbone_passes:.2f} passes{flops}{' (stored already)' if cost.reused else ''}"
        )
    say(
        f"disk     {record.data['store_bytes'] / 1e6:.1f} MB of features, {record.artifact_bytes / 1e6:.2f} MB of artifact"
    )


def _inputs(given: list[str]) -> Any:
    """One folder or table as it is; anything else as a list of files."""
    if len(given) == 1 and (Path(given[0]).is_dir() or Path(given[0]).suffix in (".csv", ".tsv", ".parquet", ".npz")):
        return given[0]
    missing = [name for name in given if not Path(name).exists()]
    if missing:
        raise MissingPathError(f"{missing[0]} is not there", do="check the path")
    folders = [name for name in given if Path(name).is_dir()]
    if folders:
        raise DataError(f"{folders[0]} is a folder among files", do="give one folder, or files only")
    return [Path(name) for name in given]


def _one_or_many(label: list[str] | None) -> str | list[str] | None:
    return label[0] if label and len(label) == 1 else (label or None)


def _slug(record: Record) -> str:
    words = [Path(record.data["name"]).name, record.model["name"].rstrip("/").split("/")[-1], record.method]
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.") or "data" for word in words)
