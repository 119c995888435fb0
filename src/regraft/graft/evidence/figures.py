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
from regraft.graft.evidence.outputs import by_output, counted_pairs
from regraft.graft.problem import Problem
from regraft.graft.protocol import Evaluation
from regraft.graft.scored import Scored
from regraft.heads import NINETY, reliability

__all__ = ["figures"]

_MISTAKES = 12
_THUMBNAIL = 160  # as large as a page shows it
_SCATTER_POINTS = 2000


def figures(evaluation: Evaluation, fit: Problem, scored_rows: Manifest, plan: Plan) -> dict[str, Any]:
    """Every picture that this task and this kind of head have: see the keys below, and
    :meth:`regraft.graft.problem.Head.figures`.

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
        found["scatter_rows"] = (
            int(main.response.mask[:, 0].sum()) if main.response.mask is not None else len(main.rows)
        )
        found["errors"] = _largest_errors(main, scored_rows)
    if outputs := by_output(main):
        found["classes"] = outputs
    if kind in ("binary", "multiclass", "segmentation"):
        rows = "pixels" if kind == "segmentation" else "test" if main.part == "test" else "out-of-fold"
        found["confusion"] = {"classes": list(target.classes), "counts": counted_pairs(main).tolist(), "rows": rows}
    if kind in ("binary", "multiclass"):
        found["mistakes"] = _mistakes(main, scored_rows)
    if kind not in ("segmentation", "regression"):
        bins = reliability(main.probabilities, main.response)
        found["reliability"] = {
            "bins": bins,
            "ece": next((s.value for s in main.others if s.metric == "ece"), None),
        }
    return found


def _codes(scored: Scored) -> np.ndarray:
    return scored.response.codes.numpy()  # type: ignore[union-attr]


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
