"""The verbs that look instead of adapting: diagnose and rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regraft.app.console import Bars, Grouped, command_line, duration, show_json, table
from regraft.app.folders import check_data, check_verb, slug
from regraft.app.options import (
    Batch,
    Data,
    Device,
    Group,
    Input,
    Json,
    Kind,
    Label,
    Limit,
    Output,
    Seed,
    SkipBad,
    Weights,
    Workers,
    one_or_many,
)
from regraft.errors import RecipeError
from regraft.record.folder import check_folder

if TYPE_CHECKING:
    from regraft.record import Record

__all__ = ["register"]

_WHAT, _SCOPE = "What is looked at", "How much is looked at"
_STAGES = {
    "inspect": "checking inputs",
    "sweep": "one pass of the backbone",
    "transfer": "scores of the features",
    "feasibility": "feasibility",
    "curvature": "curvature",
    "landscape": "landscape",
    "gradients": "gradients",
    "deviation": "deviation",
    "solve": "linear head",
    "train": "training from random weights",
    "rank": "backbones",
}


_Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        rich_help_panel=_WHAT,
        help="A backbone, as of adapt; with --run where its backbone is, if it moved.",
    ),
]
_Run = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="RUN",
        rich_help_panel=_WHAT,
        help="Instead: the run folder of a training (lp-ft, finetune, scratch), seen where it ended.",
    ),
]
_Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="WHAT",
        rich_help_panel=_WHAT,
        help="random (of a model, the default where a check takes losses), none, or another run folder (of a run).",
    ),
]
_Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="DATA",
        rich_help_panel=_WHAT,
        help="Rows of another task with the same classes: would training on it first help?",
    ),
]
_Check = Annotated[
    list[str] | None,
    typer.Option(
        "--check",
        metavar="NAME",
        rich_help_panel=_SCOPE,
        help="transfer, feasibility, curvature, landscape, gradients or deviation, all of these if absent; or "
        "affinity, which trains the network from random weights; repeat it.",
    ),
]
_Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="PATTERN",
        rich_help_panel=_SCOPE,
        help="Parameters that curvature and landscapes move: top (the topmost block and the head, the default), "
        "all, or patterns such as 'layer4.*'; repeat it for several.",
    ),
]
_Points = Annotated[
    int,
    typer.Option("--points", metavar="N", min=3, rich_help_panel=_SCOPE, help="Of a side of the landscape."),
]
_Models = Annotated[
    str,
    typer.Option(
        "--models",
        "-m",
        metavar="A,B,…",
        show_default=False,
        rich_help_panel=_WHAT,
        help="Backbones by name or folder, by commas; or one folder of checkpoints.",
    ),
]
_Score = Annotated[
    str | None,
    typer.Option(
        "--score",
        metavar="NAME",
        rich_help_panel=_WHAT,
        help="What orders them: loo-accuracy, loo-r2, logme, …; loo-accuracy of classes, loo-r2 otherwise, if absent.",
    ),
]
_Rows = Annotated[
    int, typer.Option("--rows", metavar="N", min=3, rich_help_panel=_SCOPE, help="Rows that losses are taken on.")
]
_Top = Annotated[int, typer.Option("--top", metavar="K", min=1, rich_help_panel=_SCOPE, help="Eigenvalues.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("diagnose", cls=Grouped, short_help="Measure why a backbone fits a task, or what training did.")(
        diagnose
    )
    app.command("rank", cls=Grouped, short_help="Order backbones by how well they should transfer.")(rank)


def diagnose(
    data: Data,
    model: _Model = None,
    weights: Weights = None,
    run: _Run = None,
    against: _Against = None,
    source: _Source = None,
    check: _Check = None,
    rows: _Rows = 256,
    select: _Select = None,
    top: _Top = 20,
    points: _Points = 25,
    kind: Kind = None,
    label: Label = None,
    group: Group = None,
    input_column: Input = None,
    limit: Limit = None,
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    batch_size: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
    output: Output = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure why a backbone fits a task, or what a training made of it.

    Of a backbone: scores of its features, and curvature, landscape and gradients where fine-tuning would begin, beside
    the same network with random weights. Of a run: the same where its training ended, and how far the weights went. A
    check that does not apply says why, and the others go on.
    """
    check_data(data)
    from regraft.graft import Options, Scope
    from regraft.graft import diagnose as run_diagnose

    scope = Scope(rows, tuple(select or ("top",)), top, points)
    options = Options(
        seed=seed,
        limit=limit,
        batch_size=batch_size,
        workers=workers,
        device=device,
        skip_bad=skip_bad,
        weights=weights,
    )
    check_folder(output or Path("runs"))
    check_verb(output, "diagnose")
    with Bars(_STAGES) as bars:
        record = run_diagnose(
            data, model, run=run, against=against, source=source, checks=tuple(check or ()), scope=scope,
            options=options, progress=bars, command=command_line(), kind=kind, label=one_or_many(label), group=group,
            input=input_column,
        )  # fmt: skip
    _finish(record, output, as_json)


def rank(
    data: Data,
    models: _Models,
    score: _Score = None,
    kind: Kind = None,
    label: Label = None,
    group: Group = None,
    input_column: Input = None,
    limit: Limit = None,
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    batch_size: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
    output: Output = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Order backbones by how well they should transfer: one pass of each, nothing trained.

    Says which differences the rows can tell apart, and how well the score's order agreed with measured accuracies
    where these are known.
    """
    check_data(data)
    from regraft.graft import Options
    from regraft.graft import rank as run_rank

    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise RecipeError("no backbone is named", expected="--models A,B,…", got=models)
    options = Options(seed=seed, limit=limit, batch_size=batch_size, workers=workers, device=device, skip_bad=skip_bad)
    check_folder(output or Path("runs"))
    check_verb(output, "rank")
    with Bars(_STAGES) as bars:
        record = run_rank(
            data, names, score=score, options=options, progress=bars, command=command_line(), kind=kind,
            label=one_or_many(label), group=group, input=input_column,
        )  # fmt: skip
    _finish(record, output, as_json)


def _finish(record: Record, output: Path | None, as_json: bool) -> None:
    """Save the record with its report, whole or not at all, and say what was found."""
    from dataclasses import replace

    from regraft.app.report import write
    from regraft.record.folder import whole

    check_verb(output, record.verb)  # again, for another command may have written there meanwhile
    folder = output or Path("runs") / slug(record)
    with whole(folder) as staging:
        record = replace(record, paths={"run": str(folder), "report": str(folder / "report.html")})
        record.save(staging / "record.json")
        write(record, staging / "report.html")
    if as_json:
        full = record.to_json()
        kept = ("verb", "status", "task", "figures", "findings", "paths")
        show_json({key: full[key] for key in kept} | {"seconds": {c.stage: c.seconds for c in record.costs}})
        return
    lines = [(finding.severity, _said(finding)) for finding in record.findings]
    took = sum(cost.seconds for cost in record.costs)
    table([*_ranked(record), *lines, ("cost", duration(took)), ("report", record.paths["report"])])


def _said(finding: Any) -> str:
    if finding.severity == "not-applicable":
        return f"{finding.title}: {finding.detail}"
    return f"{finding.title}.{' ' + finding.advice if finding.advice else ''}"


def _ranked(record: Record) -> list[tuple[str, str]]:
    rows = record.figures.get("ranking", {}).get("models", [])
    width = max((len(row["name"]) for row in rows), default=0)
    return [
        (
            row["standing"],
            f"{row['name']:<{width}}  {row['value']:.4g}  {row['low']:.4g} to {row['high']:.4g}  "
            f"({row['parameters']:,} parameters)",
        )
        for row in rows
    ]
