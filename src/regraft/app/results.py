"""What a run comes to: the JSON object, and the lines for people."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.app.console import duration, size, table
from regraft.record import counted
from regraft.wording import passes

if TYPE_CHECKING:
    from regraft.record import Record

__all__ = ["say_estimate", "say_result", "summary"]

_DETAIL = 200  # characters of what a warning is about
NAMED = 6  # classes that are named in a line


def summary(record: Record) -> dict[str, Any]:
    """The one JSON object of `adapt --json`."""
    full = record.to_json()
    return {
        "verb": record.verb,
        "status": record.status,
        "method": record.method,
        "task": {key: full["task"][key] for key in ("kind", "classes", "rows")},
        "scores": {name: _brief(full["scores"].get(name)) for name in ("validation", "test")},
        "cost": {
            "backbone_passes": record.total("backbone_passes"),
            "flops": int(record.total("flops")),
            "seconds": {cost.stage: cost.seconds for cost in record.costs},
            "peak_bytes": max((cost.peak_bytes for cost in record.costs), default=0),
            "artifact_bytes": record.artifact_bytes,
            "alternatives": record.figures.get("price", {}).get("rows", [])[1:],
        },
        "findings": full["findings"],
        "paths": {name: record.paths.get(name) for name in ("run", "artifact", "report")},
    }


def _brief(score: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if score is None else {key: score[key] for key in ("metric", "value", "low", "high")}


def say_result(record: Record, weights: Path | str | None = None) -> None:
    """What an adapted model can do, what it cost, what to mind, and where it lies."""
    lines = [("adapted", _what(record)), ("task", _task(record))]
    for name in ("test", "validation"):
        if (score := record.scores.get(name)) is not None:
            lines += [
                (name, score.stated),
                ("", f"{counted(score.rows, 'row')}, {score.protocol}"),
            ]
    spent = f"{_passes(record.total('backbone_passes'))}, {duration(record.total('seconds'))}"
    lines.append(("cost", f"{spent}, artifact {size(record.artifact_bytes)}"))
    lines += _beside(record) + _kept(record)
    if licence := record.model["licence"]:
        lines.append(("licence", f"{licence} (the backbone's)"))
    lines += [
        *_to_mind(record),
        ("model", record.paths["run"]),
        ("report", record.paths["report"]),
        ("next", f"regraft predict {shlex.quote(record.paths['run'])} NEW_INPUTS{_backbone(record, weights)}"),
    ]
    table(lines)


def _backbone(record: Record, weights: Path | str | None) -> str:
    """The options that name a backbone which no artifact may name: code of the user's own."""
    if record.model.get("source") != "module":
        return ""
    named = f" --model {shlex.quote(record.model['path'])}"
    return named if weights is None else f"{named} --weights {shlex.quote(str(weights))}"


def say_estimate(record: Record) -> None:
    """What a run would cost, and what is to be minded of the rows."""
    taps, features = record.model["taps"], record.model["features"]
    lines = [("would adapt", _what(record)), ("task", _task(record))]
    for cost in record.costs:
        about = duration(cost.seconds)
        about = about if about.startswith("under") else f"about {about}"
        if cost.reused:
            about = "stored already"
        elif cost.stage == "sweep" or cost.backbone_passes:
            about = f"{about}, {_passes(cost.backbone_passes)}"
        flops = f", {cost.flops:.2e} floating-point operations" if cost.flops else ""
        lines.append((cost.stage, about + flops))
    most = "at most " if _selects(record) else ""
    lines += [
        ("features", f"{features} a row from {counted(taps, 'tap')}, {size(record.data['store_bytes'])} of disk"),
        ("artifact", f"{most}{size(record.artifact_bytes)} of numbers, beside the configuration"),
    ]
    table(lines + _beside(record) + _to_mind(record))


def _to_mind(record: Record) -> list[tuple[str, str]]:
    """What is wrong, or could be better."""
    lines = []
    for finding in record.findings:
        if finding.severity in ("warning", "advice"):
            about = finding.detail if finding.severity == "warning" else ""
            more = [textwrap.shorten(about, _DETAIL, placeholder=" …"), finding.advice]
            lines += [(finding.severity, finding.title), *(("", text) for text in more if text)]
    return lines


def _selects(record: Record) -> bool:
    """Whether features are chosen, by a search whose largest cell is counted."""
    return any(stage["stage"] == "Select" for stage in record.task["recipe"])


def _beside(record: Record) -> list[tuple[str, str]]:
    """What a probe and fine-tuning would cost, counted."""
    price = record.figures.get("price", {})
    rows = {row["name"]: row for row in price.get("rows", [])}
    lines = []
    if probe := rows.get("probe"):
        lines.append(f"a linear probe: 1 backbone pass, {size(probe['stored_bytes'])}")
    if tuned := rows.get("finetune"):
        took = f", about {duration(tuned['seconds'])} of the backbone" if tuned["seconds"] else ""
        steps = f"{counted(price['finetune']['steps'], 'step')} of {counted(price['finetune']['batch'], 'row')}"
        work = f"{_passes(tuned['passes'])} forward and back"
        lines.append(f"fine-tuning by {steps}: {work}{took}, {size(tuned['stored_bytes'])} (counted)")
    return [("" if i else "beside", line) for i, line in enumerate(lines)]


def _kept(record: Record) -> list[tuple[str, str]]:
    """What was chosen of how much, and where it lies."""
    chosen = record.figures.get("selection")
    if chosen is None:
        return []
    used, layers = sum(layer["kept"] > 0 for layer in chosen["layers"]), counted(len(chosen["layers"]), "layer")
    lines = [
        f"{chosen['kept']:,} of {chosen['width']:,} features, from {used} of {layers}, "
        f"at {100 * chosen['depth']:.0f} % of the depth on average"
    ]
    if folds := chosen["folds"]:
        lines.append(
            f"two folds agree on {100 * folds['overlap']:.0f} % of them, {100 * folds['chance']:.1f} % by chance"
        )
    return [("" if i else "kept", line) for i, line in enumerate(lines)]


def _what(record: Record) -> str:
    return f"{record.model['name']} to {record.data['name']} by {record.method}"


def _task(record: Record) -> str:
    """What the labels were taken for, and how many rows there are, such as ``2 classes (cat, dog), 96 rows``."""
    kind, names = record.task["kind"], record.task["classes"]
    shown = ", ".join([*names[:NAMED], *(["…"] if len(names) > NAMED else [])])
    of = {
        "regression": f"{counted(len(names), 'number')} a row",
        "multilabel": f"any of {counted(len(names), 'label')}",
        "segmentation": f"masks of {counted(len(names), 'class', 'classes')}",
    }.get(kind, counted(len(names), "class", "classes"))
    return f"{of} ({shown}), {_rows(record)}"


def _rows(record: Record) -> str:
    """Such as ``96 rows (48 train, 48 test)``."""
    parts = {part: count for part, count in record.task["rows"].items() if count}
    named = f" ({', '.join(f'{count:,} {part}' for part, count in parts.items())})" if len(parts) > 1 else ""
    return f"{counted(sum(parts.values()), 'row')}{named}"


def _passes(number: float) -> str:
    return passes(number) + ("" if number else " (features were stored)")
