"""The verbs of research: pretrain a backbone, reproduce the papers' rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from regraft.app.console import Bars, Grouped, say, show_json

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]

pretrain = typer.Typer(help="Train a backbone that the loaders read.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.add_typer(pretrain, name="pretrain")
    app.command("reproduce", cls=Grouped, short_help="Run rows of the papers, and say which shapes hold.")(reproduce)


@pretrain.command("supervised")
def supervised(
    data: Annotated[str, typer.Argument(help="Folder of class folders, CSV, parquet or npz.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Backbone folder.")],
    arch: Annotated[str, typer.Option("--arch", help="Architecture.")] = "small_resnet",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training rows.")] = 30,
    seed: Annotated[int, typer.Option("--seed", help="Of weights, order and augmentation.")] = 0,
    resume: Annotated[bool, typer.Option("--resume/--restart", help="Go on from the last checkpoint.")] = True,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep a loadable backbone after every epoch.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train on labelled images and save a backbone folder."""
    from regraft.app.results import summary
    from regraft.graft.training.pretrain import pretrain as run_pretrain

    with Bars({"train": "training"}) as bars:
        record = run_pretrain(
            data,
            output=output,
            arch=arch,
            epochs=epochs,
            seed=seed,
            resume=resume,
            keep_checkpoints=keep_checkpoints,
            progress=lambda step, total, _: bars("train", step, total),
        )
    if as_json:
        show_json(summary(record))
        return
    if (score := record.headline) is not None:
        say(f"{score.protocol} {score.metric} {score.value:.4f}  (95 % interval {score.spread})")
    say(f"backbone  {output}")


def reproduce(
    rows: Annotated[list[str] | None, typer.Argument(help="Rows by id; all if absent.")] = None,
    scale: Annotated[Literal["mini", "full"], typer.Option("--scale", help="mini or full.")] = "mini",
    data: Annotated[Path, typer.Option("--data", help="The data pack.")] = Path("../shared/data"),
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of result files.")] = Path("papers"),
    gates: Annotated[bool, typer.Option("--gates/--no-gates", help="Check the gates first.")] = True,
    as_json: Json = False,
) -> None:
    """Run rows of the papers' tables and figures and say which shapes hold."""
    from regraft.reproduce import reproduce as run_rows

    with Bars() as bars:
        report = run_rows(rows or (), scale=scale, data=data, output=output, gates=gates, progress=bars)
    if as_json:
        show_json(report.to_json())
    else:
        say(report.text())
