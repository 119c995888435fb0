"""The model card that lies beside the artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regraft.record import Record, Score, counted, figure
from regraft.wording import passes

__all__ = ["model_card"]


#: What to predict, by what the rows are, on the command line and in Python; a table otherwise.
_NEW = {"image": ("new/*.jpg", '["new/a.jpg"]'), "array": ("new.npz", '"new.npz"')}
#: What a solved head reads, by the mode of the recipe's gradients.
_READ = {
    "full": "activations and gradients of the frozen backbone",
    "gradient": "gradients of the frozen backbone",
    "activation": "frozen features",
}


def model_card(record: Record, embedded: str = "") -> str:
    """A README in Markdown: what it is, how good, on which rows, what it cost, how to use it, whose licence.
    ``embedded`` is the fingerprint of the backbone that lies beside it, where one does."""
    task, model, data = record.task, record.model, record.data
    file, live = _NEW.get(data.get("modality", "image"), ("new.csv", '"new.csv"'))
    lines = [
        f"# {record.method} head on {model['name']}",
        "",
        f"A {task['kind']} head with {counted(len(task['classes']), 'output')}, {_made(record)}.",
        "",
        "## Scores",
        "",
        "| rows | metric | value | 95 % interval | protocol |",
        "|---|---|---|---|---|",
    ]
    for score in record.scores.values():
        if score is not None:
            lines.append(_row(score))
            lines += [_row(s) for s in record.other_scores.get(_name(record, score), ())]
    lines += [
        "",
        "## Use",
        "",
        "```bash",
        f"regraft predict THIS_FOLDER {file}{_own(model)}",
        "```",
        "",
        "```python",
        f'import regraft; regraft.load("THIS_FOLDER"{_named(model)}).predict({live})',
        "```",
        "",
        "## Facts",
        "",
        f"- Backbone: {_kept(model, embedded)}{model['path']}, fingerprint `{model['fingerprint'][:16]}`, licence: "
        f"{model['licence'] or 'not stated: check its source before you pass this on'}.",
        f"- Data: {data['name']}, fingerprint `{data['fingerprint'][:16]}`, "
        + ", ".join(f"{n} {part}" for part, n in task["rows"].items() if n)
        + " rows.",
        f"- Cost: {passes(record.total('backbone_passes'))}, {record.total('seconds'):.1f} s.",
        f"- Seed {record.seeds.get('seed', 0)}; made with "
        + ", ".join(f"{k} {v}" for k, v in record.versions.items())
        + ".",
    ]
    notes = [f for f in record.findings if f.severity in ("warning", "advice")]
    if notes:
        lines += ["", "## Mind", ""] + [f"- {f.title} {f.advice}".rstrip() for f in notes]
    return "\n".join(lines) + "\n"


def _own(model: Mapping[str, Any]) -> str:
    """The options that name a backbone which is code of the user's own: no artifact may name that."""
    return f" --model {model['path']}  # and --weights FILE, if it has one" if model.get("source") == "module" else ""


def _named(model: Mapping[str, Any]) -> str:
    return f', model="{model["path"]}"' if model.get("source") == "module" else ""


def _kept(model: Mapping[str, Any], embedded: str) -> str:
    """What of the backbone lies beside the artifact."""
    if not embedded:
        return ""
    if embedded == model["fingerprint"]:
        return "in `backbone/`, a copy of "
    return f"in `backbone/`, fingerprint `{embedded[:16]}`, trained from "


def _made(record: Record) -> str:
    runs = record.figures.get("training", {}).get("runs", ())  # none is kept where the backbone stays as it is
    if "training" in record.figures and not (runs and all(run.get("kept") is False for run in runs)):
        return "trained by regraft together with the backbone's weights"
    modes = [stage["mode"] for stage in record.task.get("recipe", ()) if stage["stage"] == "Gradients"]
    return f"solved by regraft on {_READ[modes[0] if modes else 'activation']}"


def _name(record: Record, score: Score) -> str:
    return next(name for name, value in record.scores.items() if value is score)


def _row(score: Score) -> str:
    return (
        f"| {score.rows} | {score.metric} | {figure(score.value, score.metric)} | {score.spread} | {score.protocol} |"
    )
