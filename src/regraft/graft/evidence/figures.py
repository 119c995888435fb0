"""The data of the report's pictures, as plain JSON values."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image

from regraft.data import Manifest, Source
from regraft.errors import RegraftError
from regraft.features import Plan
from regraft.graft.evidence.outputs import by_output
from regraft.graft.prediction import predicted_names
from regraft.graft.problem import Problem
from regraft.graft.protocol import Evaluation
from regraft.graft.scored import Scored
from regraft.heads import NINETY, reliability
from regraft.heads.metrics import confusion

__all__ = ["figures", "prediction_rows"]

_MISTAKES = 12
_THUMBNAIL = 160  # as large as a page shows it
_SCATTER_POINTS = 2000


def figures(evaluation: Evaluation, fit: Problem, scored_rows: Manifest, plan: Plan) -> dict[str, Any]:
    """Every picture that this task and this kind of head have: see the keys below, and :meth:`Head.figures`.

    Args:
        evaluation: scores and final head.
        fit: the problem that the final head was solved on.
        scored_rows: the rows of ``evaluation.main``, in its order.
        plan: the blocks of the sweep.
    """
    main, target = evaluation.main, fit.task.target
    kind = target.kind
    found: dict[str, Any] = {
        **evaluation.head.figures(fit, plan),
        "varied": dict(zip(("letter", "name"), evaluation.head.varied)),
    }
    if kind == "regression":
        found["scatter"] = _scatter(main)
        found["errors"] = _largest_errors(main, scored_rows)
    if outputs := by_output(main):
        found["classes"] = outputs
    if kind in ("binary", "multiclass"):
        counts = confusion(_codes(main), main.probabilities.argmax(1).numpy(), len(target.classes))
        found["confusion"] = {
            "classes": list(target.classes),
            "counts": counts.tolist(),
            "rows": "test" if main.part == "test" else "out-of-fold",
        }
        found["classes"] = _per_class(target.classes, counts)
        found["mistakes"] = _mistakes(main, scored_rows)
    if kind == "segmentation":
        counts = main.probabilities.sum(0).long().numpy()
        found["confusion"] = {"classes": list(target.classes), "counts": counts.tolist(), "rows": "pixels"}
        found["classes"] = [
            {**row, "iou": iou} for row, iou in zip(_per_class(target.classes, counts), _intersections(counts))
        ]
    elif kind != "regression":
        bins = reliability(main.probabilities, main.response)
        found["reliability"] = {
            "bins": bins,
            "ece": next((s.value for s in main.others if s.metric == "ece"), None),
        }
    return found


def _codes(scored: Scored) -> np.ndarray:
    return scored.response.codes.numpy()  # type: ignore[union-attr]


def _per_class(classes: tuple[str, ...], counts: np.ndarray) -> list[dict[str, Any]]:
    right = np.diag(counts).astype(float)
    rows, said = counts.sum(1), counts.sum(0)
    return [
        {
            "name": name,
            "rows": int(rows[i]),
            "recall": right[i] / rows[i] if rows[i] else None,
            "precision": right[i] / said[i] if said[i] else None,
        }
        for i, name in enumerate(classes)
    ]


def _intersections(counts: np.ndarray) -> list[float | None]:
    """Intersection over union of each class; ``None`` for one that nothing is and nothing is said to be."""
    right, union = np.diag(counts), counts.sum(1) + counts.sum(0) - np.diag(counts)
    return [float(hits / whole) if whole else None for hits, whole in zip(right, union)]


def _mistakes(scored: Scored, rows: Manifest) -> list[dict[str, Any]]:
    """The wrong predictions that the head was surest of."""
    truth, predicted = _codes(scored), scored.probabilities.argmax(1).numpy()
    confidence = scored.probabilities.max(1).values.numpy()
    wrong = np.flatnonzero(truth != predicted)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")][:_MISTAKES]
    classes = scored.response.classes
    return [
        {
            "truth": classes[truth[i]],
            "predicted": classes[predicted[i]],
            "confidence": float(confidence[i]),
            **_input(rows, int(i)),
        }
        for i in worst
    ]


def _largest_errors(scored: Scored, rows: Manifest) -> list[dict[str, Any]]:
    """The rows that are furthest off: of several numbers each at the one whose error is the largest multiple of that
    number's root mean square error, for their units differ."""
    response = scored.response
    truth, predicted = response.values.numpy(), scored.probabilities.numpy()
    known = np.ones(truth.shape, dtype=bool) if response.mask is None else response.mask.numpy()
    errors = np.abs(np.where(known, predicted - truth, 0.0))
    typical = np.sqrt((errors**2).sum(0) / np.maximum(known.sum(0), 1))
    relative = errors / np.where(typical > 0, typical, np.inf)
    worst = np.argsort(-relative.max(1), kind="stable")[:_MISTAKES]
    return [
        {
            "output": response.classes[j] if response.n_outputs > 1 else "",
            "truth": float(truth[i, j]),
            "predicted": float(predicted[i, j]),
            **_input(rows, int(i)),
        }
        for i, j in zip(worst, relative[worst].argmax(1))
        if relative[i, j] > 0
    ]


def _input(rows: Manifest, row: int) -> dict[str, Any]:
    """What a reader knows a row by."""
    return {"id": rows.ids[row], "thumbnail": _thumbnail(rows.inputs, row), "text": _excerpt(rows.inputs, row)}


def _thumbnail(source: Source, row: int) -> str | None:
    if source.modality != "image":
        return None
    try:
        image = source.read(row)
    except (OSError, RegraftError):
        return None
    if not isinstance(image, Image.Image):
        return None
    if max(image.size) < _THUMBNAIL:  # a digit of 8 × 8 pixels is shown as such, not as a blur
        factor = _THUMBNAIL // max(image.size)
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _excerpt(source: Source, row: int) -> str | None:
    return str(source.read(row))[:200] if source.modality == "text" else None


def _scatter(scored: Scored) -> list[dict[str, float]]:
    """Truth against prediction of the first output, and half its 90 % interval where known; at most 2,000 points."""
    response = scored.response
    there = torch.arange(len(response)) if response.mask is None else response.mask[:, 0].nonzero()[:, 0]
    chosen = there[:: max(1, -(-len(there) // _SCATTER_POINTS))]
    columns = {"truth": response.values[chosen, 0], "predicted": scored.probabilities[chosen, 0]}
    if scored.spread is not None:
        columns["half"] = NINETY * scored.spread[chosen, 0]  # of the 90 % interval
    return [dict(zip(columns, row)) for row in zip(*(values.tolist() for values in columns.values()))]


def prediction_rows(evaluation: Evaluation, fit: Manifest, test: Manifest | None) -> list[list[Any]]:
    """One line per scored row, the first being the header.

    Columns: id, part, outer fold, truth, predicted, confidence. A truth that is not known is an empty cell.
    Images with masks have the commonest class and predicted class of their labelled pixels, and the share of these
    that is right in place of a confidence.
    Classes and labels have a column ``p(NAME)`` each, so that any score can be computed again, and with error bars
    ``std``. Several regression outputs give a pair ``truth NAME``, ``predicted NAME`` each, with error bars ``std`` or
    ``std NAME`` beside it. Multilabel rows list the labels known to hold, and in a column ``unknown`` those of which
    nothing is known; their confidence is that of the least sure of their labels. Where rows have groups, ``group``
    comes last.
    """
    grouped = fit.groups is not None
    lines: list[list[Any]] = [["id", "part", "fold", *_header(evaluation.main), *["group"] * grouped]]
    for scored, rows in ((evaluation.validation, fit), (evaluation.test, test)):
        if scored is None or rows is None:
            continue
        for i, row in enumerate(scored.rows):
            group = [rows.groups[row]] if rows.groups is not None else []
            lines.append([rows.ids[row], scored.part, int(scored.fold[i]), *_line(scored, i), *group])
    return lines


def _header(scored: Scored) -> list[str]:
    response = scored.response
    bars = ["std"] * (scored.spread is not None)
    if response.kind == "regression":
        several = [f" {name}" for name in response.classes] if response.n_outputs > 1 else [""]
        return [f"{what}{name}" for name in several for what in ("truth", "predicted", *bars)]
    if response.kind == "segmentation":
        return ["truth", "predicted", "pixel accuracy"]
    unknown = ["unknown"] * (response.kind == "multilabel")
    return ["truth", "predicted", "confidence", *unknown, *(f"p({name})" for name in response.classes), *bars]


def _line(scored: Scored, i: int) -> list[Any]:
    response, row = scored.response, scored.probabilities[i].numpy()
    classes = response.classes
    if response.kind == "segmentation":
        right = float(np.trace(row) / row.sum()) if row.sum() else ""
        return [classes[int(row.sum(1).argmax())], classes[int(row.sum(0).argmax())], right]
    spread = [] if scored.spread is None else scored.spread[i].tolist()
    bars = [] if scored.spread is None else [float(scored.spread[i].mean())]
    if response.codes is not None:
        code = int(response.codes[i])
        named = ["" if code < 0 else classes[code], classes[int(row.argmax())]]
        return [*named, float(row.max()), *row.tolist(), *bars]
    truth = response.values[i].tolist()
    known = [True] * len(truth) if response.mask is None else response.mask[i].tolist()
    if response.kind == "regression":
        numbers = zip(truth, known, row.tolist())
        return [cell for j, (t, k, p) in enumerate(numbers) for cell in (t if k else "", p, *spread[j : j + 1])]
    return [
        "|".join(c for c, t, k in zip(classes, truth, known) if k and t > 0.5),
        "|".join(predicted_names(classes, row)),
        float(np.maximum(row, 1 - row).min()),
        "|".join(c for c, k in zip(classes, known) if not k),
        *row.tolist(),
        *bars,
    ]
