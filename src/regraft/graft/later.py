"""A saved head on labelled rows that came later: what it scores there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import Manifest, checked, scan, with_columns
from regraft.errors import DataError
from regraft.features import Progress
from regraft.graft.adapted.model import Adapted, answered, check_modality, readable
from regraft.graft.alike import contents, together
from regraft.graft.options import check_counts, check_seed
from regraft.graft.scored import Scored, scored
from regraft.heads import Response, default_metric, fitting
from regraft.heads.metrics import confusion
from regraft.record import Score

__all__ = ["Later", "score_on"]


@dataclass(frozen=True, eq=False)
class Later:
    """What a head scores on rows.

    Attributes:
        rows: the rows that were scored.
        scored: their predictions beside their labels, and every score.
        names: what tells the rows apart, such as the canonical way of writing a molecule.
    """

    rows: Manifest
    scored: Scored
    names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Later({self.score})"

    @property
    def score(self) -> Score:
        """The score to quote."""
        return self.scored.headline


def score_on(
    adapted: Adapted,
    data: Any,
    *,
    metric: str | None = None,
    label: str | Sequence[str] | None = None,
    group: str | None = None,
    input: str | None = None,
    ignore: int | None = None,
    skip_bad: bool = False,
    seed: int = 0,
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Later:
    """Predict labelled rows and score the predictions, with intervals.

    Where the data names a test part, its rows alone are scored, for the head may have learnt from the others.

    Args:
        adapted: network and head.
        data: labelled rows, as :func:`regraft.data.scan` reads them; they may lack classes.
        metric: the one to quote; by the kind of labels if ``None``, as in ``adapt``.
        label, group, input, ignore: columns, and the value of unlabelled pixels, by default that of the masks that the
            head was solved on. Columns named like the head's outputs are taken where no label is named.
        skip_bad: leave out rows that cannot be read, have no label, or one that the head does not know, or of which
            the network's output is NaN or infinite.
        seed: of the resamples behind the intervals.
        batch_size, workers, progress: as in :meth:`Adapted.predict_proba`.

    Raises:
        RecipeError: a batch size, workers or a seed out of range.
        DataError: rows that cannot be read or have no finite answer, labels that the head does not know, or a metric
            that is undefined on them.
    """
    check_counts(batch_size=batch_size, workers=workers)
    check_seed(seed)
    metric = metric or default_metric(adapted.kind)
    if metric not in fitting(adapted.kind):
        raise DataError(f"the metric {metric!r} of {adapted.kind} labels", expected=", ".join(fitting(adapted.kind)))
    if ignore is None and adapted.ignore >= 0:
        ignore = adapted.ignore
    manifest = scan(
        data, kind=adapted.kind, classes=adapted.classes, label=label, group=group, input=input, ignore=ignore,
        skip_bad=skip_bad, read=adapted.columns,
    )  # fmt: skip
    if len(manifest.rows_of("test")):
        manifest = manifest.part("test")
    check_modality(adapted.network, manifest, chosen=True)
    manifest = with_columns(manifest, adapted.columns)
    if not skip_bad:  # with it the scan has looked at all of them
        manifest = checked(manifest)
    rows = together(adapted.network.preprocess, readable(adapted.network, manifest, skip_bad))
    prediction = adapted.predict_rows(rows, batch_size=batch_size, workers=workers, progress=progress)
    rows, prediction = answered(rows, prediction, skip_bad)
    target = rows.target
    if target is None:  # scan() with classes gives labels
        raise DataError(f"{rows.name}: rows without labels score nothing")
    probabilities = torch.from_numpy(prediction.probabilities)
    if prediction.masks:
        pairs = [confusion(target.mask(i), mask, target.outputs) for i, mask in enumerate(prediction.masks)]
        probabilities = torch.from_numpy(np.stack(pairs)).double()
    spread: Tensor | None = None if prediction.spread is None else torch.from_numpy(prediction.spread)
    found = scored(
        "test",
        metric,
        Response.of(target.kind, target.classes, target.values),
        probabilities,
        rows=np.arange(len(rows)),
        groups=rows.groups,
        seed=seed,
        protocol=f"{rows.name}, its test split" if "test" in rows.split else rows.name,
        spread=spread,
    )
    return Later(rows, found, contents(adapted.network.preprocess, rows))
