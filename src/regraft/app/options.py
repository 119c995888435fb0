"""The arguments and options of the verbs, each with the heading that its help stands under."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regraft.errors import MissingPathError

__all__ = [
    "PASS",
    "RESULT",
    "Backbone",
    "Batch",
    "ClassWeight",
    "Data",
    "Device",
    "DryRun",
    "Dtype",
    "Embed",
    "Folds",
    "Group",
    "Ignore",
    "Input",
    "Instruments",
    "Json",
    "Kind",
    "Label",
    "Limit",
    "Method",
    "Metric",
    "Mode",
    "Model",
    "Output",
    "RunFolder",
    "RunFolders",
    "Seed",
    "SkipBad",
    "Solver",
    "Theta2",
    "Tolerance",
    "Weights",
    "Workers",
    "one_or_many",
]

PASS, RESULT = "The pass", "Result"
_BACKBONE, _DATA, _SCORE = "Backbone and method", "Data", "Choice and score"

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A folder of class folders (or train/ and test/ with class folders) or of images/ and masks/, a CSV, TSV, "
        "JSON lines, parquet or npz file, or a hub id.",
        show_default=False,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", metavar="NAME", show_default=False, rich_help_panel=_BACKBONE,
        help="Backbone: regraft/fashion-resnet (bundled), a folder made by save_pretrained, org/name of the hub, "
        "timm/NAME, torchvision/NAME, or package.module:callable.",
    ),
]  # fmt: skip
Backbone = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", rich_help_panel=_BACKBONE, help="The backbone, if it moved."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", metavar="FILE", rich_help_panel=_BACKBONE, help="Safetensors file for package.module:callable."
    ),
]
Method = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="NAME",
        rich_help_panel=_BACKBONE,
        help="all-layers, probe (the last layer alone), head2toe (few features of all layers), gradient (the last "
        "layer and derivatives of the topmost block), or tangent-gp (the same with error bars). Methods "
        "that train the backbone: finetune, lp-ft, scratch, head2toe-ft, head2toe-ft-plus, finetune-refit, "
        "finetune-refit-head2toe.",
    ),
]
Instruments = Annotated[
    str,
    typer.Option(
        "--instruments", metavar="LEVEL", rich_help_panel="Methods that train",
        help="What looks on at a training and changes nothing of it: none, cheap (energy, drift, changes of weights) "
        "or all (the backbone's kernel and the features' tracks too).",
    ),
]  # fmt: skip
Solver = Annotated[
    str | None,
    typer.Option(
        "--solver", metavar="NAME", rich_help_panel=_BACKBONE,
        help="Of head2toe's search: fast (the default), reference (the paper's own) or exact (the group lasso). Of "
        "gradient: auto (the default), newton, lbfgs, dual, or the paper's adam or sgd.",
    ),
]  # fmt: skip
Tolerance = Annotated[
    float | None,
    typer.Option(
        min=0, rich_help_panel=_BACKBONE, metavar="ERRORS",
        help="Of head2toe: standard errors by which a smaller head may be under the best one; 0 takes the best. "
        "0.5 if absent. Of more than 4,000 rows the best is taken.",
    ),
]  # fmt: skip
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="NAME", rich_help_panel=_BACKBONE,
        help="Of gradient: full (the last layer and gradients, the default), gradient, or activation; of tangent-gp: "
        "full or activation.",
    ),
]  # fmt: skip
Theta2 = Annotated[
    list[str] | None,
    typer.Option(
        "--theta2", metavar="PATTERN", rich_help_panel=_BACKBONE,
        help="Of gradient and tangent-gp: the parameters whose derivatives are features, such as 'layer4.*', or '*' "
        "for all; the topmost block if absent; repeat it for several.",
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", rich_help_panel=RESULT, help="Print exactly one JSON object on stdout.")]
Batch = Annotated[int, typer.Option("--batch-size", metavar="N", min=1, rich_help_panel=PASS, help="Rows per batch.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=0, rich_help_panel=PASS, help="Decoding processes; by the work if absent."
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", rich_help_panel=PASS, help="auto, cpu, cuda or mps.")]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", rich_help_panel=_DATA, help="Leave rows out that cannot be used, and say so."),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind", metavar="KIND", rich_help_panel=_DATA,
        help="binary, multiclass, multilabel, regression or segmentation; by the labels if absent.",
    ),
]  # fmt: skip
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="COLUMN", rich_help_panel=_DATA, help="Label column, or a pattern; repeat it."),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="COLUMN", rich_help_panel=_DATA,
        help="Rows with the same value here (one patient, one scene) stay on one side of every split.",
    ),
]  # fmt: skip
Ignore = Annotated[
    int | None,
    typer.Option(
        "--ignore", metavar="VALUE", min=0, rich_help_panel=_DATA,
        help="Of masks: the value of pixels without a label; 255, or what the data or the run says, if absent.",
    ),
]  # fmt: skip
Input = Annotated[
    str | None,
    typer.Option("--input", metavar="COLUMN", rich_help_panel=_DATA, help="Input column; found by itself if absent."),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric", metavar="NAME", rich_help_panel=_SCORE,
        help="accuracy, balanced-accuracy, f1, roc-auc, map, miou, r2 or rmse; by the kind of labels if absent.",
    ),
]  # fmt: skip
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", metavar="N", min=2, rich_help_panel=_DATA, help="Use N training rows, balanced and seeded."
    ),
]
Folds = Annotated[
    int | None,
    typer.Option(
        "--folds", metavar="K", min=2, rich_help_panel=_SCORE,
        help="Cross-validation folds; 5 if absent, and from 10,000 rows on a held-out fifth scores. Methods that train "
        "choose how and score on held-out fifths.",
    ),
]  # fmt: skip
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", rich_help_panel=_SCORE, help="Of all that is drawn: rows, folds, intervals."),
]
ClassWeight = Annotated[
    str | None,
    typer.Option(
        "--class-weight", metavar="balanced", rich_help_panel=_SCORE, help="Let every class count alike in the fit."
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="TYPE", rich_help_panel=PASS, help="Stored features: float32, float16 or bfloat16."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        rich_help_panel=RESULT,
        help="Run folder; if absent one in runs/, named after data, model and method (of diagnose and rank the verb).",
    ),
]
Embed = Annotated[
    bool,
    typer.Option("--embed", rich_help_panel=RESULT, help="Keep a copy of the backbone in the run folder."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        rich_help_panel=RESULT,
        help="Say what it would cost, from one timed batch or the store; write nothing.",
    ),
]


def _named(runs: Path | list[Path]) -> Path | list[Path]:
    """The folders as they are; a blank name would be told as what lies in a folder that nobody sees."""
    if not all(str(run).strip() for run in (runs if isinstance(runs, list) else [runs])):
        raise MissingPathError("the name of the run folder is blank", do="name a folder that `regraft adapt` wrote")
    return runs


RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", show_default=False, callback=_named, help="Run folder that `regraft adapt` wrote."),
]
RunFolders = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", show_default=False, callback=_named,
        help="Folders that `regraft adapt`, `diagnose` or `rank` wrote.",
    ),
]  # fmt: skip


def one_or_many(label: list[str] | None) -> str | list[str] | None:
    """One label column as it is, several as a list."""
    return label[0] if label and len(label) == 1 else (label or None)
