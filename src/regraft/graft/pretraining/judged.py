"""What a pretrained backbone is worth on rows that it was not trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional

from regraft.data import Manifest
from regraft.graft.loop.outputs import logits
from regraft.graft.loop.rows import ImageRows
from regraft.graft.pretraining.pretext import Pretext
from regraft.heads.intervals import measure, wilson
from regraft.heads.metrics import confusion
from regraft.heads.response import Response
from regraft.network.loaders.bundled import load_folder
from regraft.record import Score
from regraft.record.protocol import TEST, VALIDATION

__all__ = ["of_classes", "of_pretext", "terms_of"]

_ROWS = {"test": TEST, "validation": VALIDATION}
_Z = 1.959963984540054  # the normal distribution's 97.5 % point


def of_classes(folder: Path, manifest: Manifest, rows: ImageRows, part: str) -> tuple[Score, dict[str, Any]]:
    """Accuracy and confusion counts of the stored weights."""
    module, _, _ = load_folder(folder)
    outputs = logits(module, rows)
    target = manifest.target
    kind, classes = (target.kind, target.classes) if target is not None else ("multiclass", ())
    response = Response.of(kind, classes, rows.labels.numpy())
    score = measure(
        "accuracy", response, functional.softmax(outputs.double(), 1), manifest.groups, protocol=_ROWS[part]
    )
    counts = confusion(rows.labels.numpy(), outputs.argmax(1).numpy(), len(classes))
    return score, {"confusion": {"classes": list(classes), "counts": counts.tolist(), "rows": part}}


def terms_of(pretext: Pretext, module: nn.Module, rows: ImageRows) -> dict[str, float]:
    """The means of a pretext's terms on some rows, by name."""
    means = logits(module, pretext.rows(rows)).double().mean(0)
    return dict(zip(pretext.terms, means.tolist()))


def of_pretext(
    pretext: Pretext, module: nn.Module, rows: ImageRows, part: str, device: str
) -> tuple[Score, dict[str, float]]:
    """The pretext's measure on some rows with its 95 % interval, and the means of all terms.

    An accuracy has Wilson's interval over rows: where a row holds several answers (four turns of one picture) its
    share of right ones varies no more than one answer would. Else the interval is that of a mean of rows.
    """
    outputs = logits(module, pretext.rows(rows), device).double()
    values, count = outputs[:, 1], len(outputs)
    value = float(values.mean())
    if pretext.measure == "accuracy":
        low, high, kind = *wilson(value * count, count), "wilson"
    elif count > 1:
        half = _Z * float(values.std()) / math.sqrt(count)
        low, high, kind = value - half, value + half, "normal over rows"
    else:
        low, high, kind = math.nan, math.nan, "unknown: one row"
    score = Score(pretext.measure, value, low, high, kind, count, protocol=_ROWS[part])
    return score, dict(zip(pretext.terms, outputs.mean(0).tolist()))
