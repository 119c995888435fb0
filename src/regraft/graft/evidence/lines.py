"""The table of scored rows: what the head said of each, beside the truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from regraft.data import Manifest
from regraft.data.labels import SEPARATOR
from regraft.graft.adapted.prediction import predicted_names
from regraft.graft.scored import Scored

__all__ = ["prediction_rows"]


def prediction_rows(*parts: tuple[Scored, Manifest]) -> list[list[Any]]:
    """One line per scored row of some parts, each with the rows that its numbers count; the first being the header.

    Columns: id, part, outer fold, truth, predicted, confidence. A truth that is not known is an empty cell.
    Images with masks have the commonest class and predicted class of their labelled pixels, and the share of these
    that is right in place of a confidence; where inner folds score, of the map's positions instead of pixels.
    Classes and labels have a column ``p(NAME)`` each, so that any score can be computed again, and with error bars
    ``std``. Several regression outputs give a pair ``truth NAME``, ``predicted NAME`` each, with error bars ``std`` or
    ``std NAME`` beside it. Multilabel rows list the labels known to hold, ``|`` alone where none does, and in a
    column ``unknown`` those of which nothing is known; their confidence is that of the least sure of their labels.
    Where rows have groups, ``group`` comes last.
    """
    last, manifest = parts[-1]
    grouped = manifest.groups is not None
    lines: list[list[Any]] = [["id", "part", "fold", *_header(last), *["group"] * grouped]]
    for scored, rows in parts:
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
    held = SEPARATOR.join(c for c, t, k in zip(classes, truth, known) if k and t > 0.5)
    return [
        held or (SEPARATOR if all(known) else ""),
        SEPARATOR.join(predicted_names(classes, row)) or SEPARATOR,
        float(np.maximum(row, 1 - row).min()),
        SEPARATOR.join(c for c, k in zip(classes, known) if not k),
        *row.tolist(),
        *bars,
    ]
