"""The verbs of research: pretrain a backbone, reproduce the papers' rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regraft.app.console import Bars, Grouped, say, show_json
from regraft.app.folders import check_data, check_verb
from regraft.errors import MissingPathError
from regraft.record import Record
from regraft.record.folder import check_folder

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]

pretrain = typer.Typer(help="Train a backbone that the loaders read.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.add_typer(pretrain, name="pretrain")
    app.command("reproduce", cls=Grouped, short_help="Run rows of the papers, and say which shapes hold.")(reproduce)


def _verb(objective: str, says: str) -> None:
    """Add ``regraft pretrain OBJECTIVE``."""

    def verb(
        data: Annotated[
            str, typer.Argument(metavar="DATA", help="Folder of images or class folders, CSV, parquet or npz.")
        ],
        output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Backbone folder.")],
        arch: Annotated[
            str,
            typer.Option(
                "--arch", metavar="NAME", help="small_resnet, cifar_resnet, s4, tiny_vit (32 px), lenet or mlp (28 px)."
            ),
        ] = "small_resnet",
        epochs: Annotated[
            int | None,
            typer.Option("--epochs", metavar="N", min=1, help="Passes over the training rows; 30 if absent."),
        ] = None,
        steps: Annotated[
            int | None, typer.Option("--steps", metavar="N", min=1, help="Batches in all, instead of --epochs.")
        ] = None,
        batch_size: Annotated[int, typer.Option("--batch-size", metavar="N", min=2, help="Images a step.")] = 128,
        lr: Annotated[
            float | None, typer.Option("--lr", metavar="X", help="Learning rate; by the task if absent.")
        ] = None,
        pixels: Annotated[
            int, typer.Option("--pixels", metavar="N", min=1, help="Side that images are resized to.")
        ] = 32,
        seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of weights, order and augmentation.")] = 0,
        device: Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or mps.")] = "cpu",
        resume: Annotated[bool, typer.Option("--resume/--restart", help="Go on from the last checkpoint.")] = True,
        keep_checkpoints: Annotated[
            bool, typer.Option("--keep-checkpoints", help="Keep a loadable backbone after every epoch.")
        ] = False,
        skip_bad: Annotated[
            bool, typer.Option("--skip-bad", help="Leave images out that cannot be used, and say so.")
        ] = False,
        as_json: Json = False,
    ) -> None:
        settings = {"epochs": epochs, "steps": steps, "batch_size": batch_size, "seed": seed}
        _pretrain(
            data, output, objective, pixels, lr, settings, as_json,
            arch=arch, device=device, resume=resume, keep_checkpoints=keep_checkpoints, skip_bad=skip_bad,
        )  # fmt: skip

    pretrain.command(objective, help=says)(verb)


_verb("supervised", "Train on labelled images and save a backbone folder.")
_verb("rotation", "Train to tell which way is up, without labels, and save a backbone folder.")
_verb("jigsaw", "Train to order the pieces of images, without labels, and save a backbone folder.")
_verb("vae", "Train a variational autoencoder, without labels, and save its encoder as a backbone folder.")
_verb("bigan", "Train a bidirectional GAN, without labels, and save its encoder as a backbone folder.")


def _pretrain(
    data: str,
    output: Path,
    objective: str,
    pixels: int,
    lr: float | None,
    settings: dict[str, int | None],
    as_json: bool,
    **options: Any,
) -> None:
    check_data(data)
    from dataclasses import replace

    from regraft.app.results import summary
    from regraft.graft.options import pick_device
    from regraft.graft.pretraining.choose import pretext_of
    from regraft.graft.pretraining.folder import unfinished
    from regraft.graft.pretraining.pretrain import default_config
    from regraft.graft.pretraining.pretrain import pretrain as run_pretrain

    check_folder(output)
    check_verb(output, "pretrain", unfinished(output))
    options["device"] = pick_device(options["device"])
    config = default_config(pretext_of(objective, pixels), **settings)
    if lr is not None:
        config = replace(config, optimiser=replace(config.optimiser, lr=lr))
    with Bars({"train": "training"}) as bars:
        record = run_pretrain(
            data, output=output, objective=objective, size=pixels, config=config,
            progress=lambda step, total, _: bars("train", step, total), **options,
        )  # fmt: skip
    if as_json:
        paths = {"run": str(output), "artifact": str(output / "model.safetensors")}
        show_json(summary(replace(record, paths=paths)))
        return
    _tell(record, output)


def _tell(record: Record, output: Path) -> None:
    """What was reached, what guessing gives, what to mind, what it took, and where it is."""
    if (score := record.headline) is not None:
        say(f"{score.protocol} {score.metric} {score.value:.4f}  (95 % interval {score.spread})")
    if terms := record.figures.get("terms"):
        if terms["chance"] is not None:
            say(f"guessing  {terms['chance']:.4f}")
        for name, value in terms["after"].items():
            say(f"{name}  {terms['before'][name]:.4f} before, {value:.4f} after")
    for finding in record.findings:
        if finding.severity == "warning":
            for number, text in enumerate(filter(None, (finding.title, finding.detail, finding.advice))):
                say(f"{'' if number else 'warning':7}  {text}")
    say(f"seconds  {record.total('seconds'):.1f}")
    if fingerprint := record.model.get("fingerprint"):
        say(f"fingerprint  {fingerprint[:16]}")
    say(f"backbone  {output}")


def reproduce(
    rows: Annotated[
        list[str] | None, typer.Argument(help="Rows by id, papers (003), gates; all rows if absent.")
    ] = None,
    scale: Annotated[Literal["mini", "full"], typer.Option("--scale", help="mini or full.")] = "mini",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="The data pack; if absent REGRAFT_DATA, ./data or ../shared/data.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of result files.")] = Path("papers"),
    gates: Annotated[bool, typer.Option("--gates/--no-gates", help="Check the gates first.")] = True,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or mps; if absent cpu, and auto at full scale."),
    ] = None,
    arms: Annotated[
        Path | None,
        typer.Option("--arms", metavar="FOLDER", help="Read and keep measured arms there; if absent in the cache."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run rows of the papers' tables and figures and say which shapes hold."""
    from regraft.reproduce import reproduce as run_rows
    from regraft.reproduce.packs import pack

    if data is not None and not data.is_dir():
        raise MissingPathError(
            f"--data {data} is no folder", expected="the folder of weights and data", do="check the path"
        )
    with Bars() as bars:
        report = run_rows(
            rows or (), scale=scale, data=data or pack(), output=output, gates=gates, device=device, arms=arms,
            progress=bars,
        )  # fmt: skip
    if as_json:
        show_json(report.to_json())
    else:
        say(report.text())
