"""A saved head on labelled rows that it has not seen: what it scores there, and whether that is what its run said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import Manifest, checked, scan
from regraft.errors import DataError
from regraft.features import Progress
from regraft.graft.adapted import Adapted, check_modality, readable
from regraft.graft.options import check_counts
from regraft.graft.scored import Scored, scored
from regraft.heads import Response, default_metric, difference, higher_is_better
from regraft.heads.metrics import confusion
from regraft.record import Finding, Record, Score

__all__ = ["Later", "beside", "score_on"]


@dataclass(frozen=True, eq=False)
class Later:
    """What a head scores on rows.

    Attributes:
        rows: the rows that were scored.
        scored: their predictions beside their labels, and every score.
        fingerprint: of all rows of the data, scored or not.
    """

    rows: Manifest
    scored: Scored
    fingerprint: str

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
        label, group, input, ignore: columns, and the value of unlabelled pixels. Columns named like the head's outputs
            are taken where no label is named.
        skip_bad: leave out rows that cannot be read, have no label, or one that the head does not know.
        seed: of the resamples behind the intervals.
        batch_size, workers, progress: as in :meth:`Adapted.predict_proba`.

    Raises:
        DataError: rows that cannot be read, labels that the head does not know, or a metric that is undefined on them.
    """
    check_counts(batch_size=batch_size, workers=workers)
    manifest = scan(
        data, kind=adapted.kind, classes=adapted.classes, label=label, group=group, input=input, ignore=ignore,
        skip_bad=skip_bad,
    )  # fmt: skip
    fingerprint = manifest.fingerprint
    if len(manifest.rows_of("test")):
        manifest = manifest.part("test")
    check_modality(adapted.network, manifest, chosen=True)
    rows = readable(adapted.network, checked(manifest, skip_bad=skip_bad), skip_bad)
    prediction = adapted.predict_rows(rows, batch_size=batch_size, workers=workers, progress=progress)
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
        metric or default_metric(adapted.kind),
        Response.of(target.kind, target.classes, target.values),
        probabilities,
        rows=np.arange(len(rows)),
        groups=rows.groups,
        seed=seed,
        protocol=f"{rows.name}, its test split" if "test" in rows.split else rows.name,
        spread=spread,
    )
    return Later(rows, found, fingerprint)


def beside(later: Later, record: Record) -> Iterator[Finding]:
    """What the scores say of those that the run gave: whether the rows are its own, or how far the headline is from
    the run's, with the interval of two independent scores (:func:`regraft.heads.difference`); a warning where all of
    that is a loss."""
    if later.fingerprint == record.data.get("fingerprint"):
        if "test" in later.rows.split:
            yield Finding("own-rows", "this is the test split that the run was scored on")
            return
        yield Finding(
            "own-rows",
            "these are the rows that the run was adapted to",
            "warning",
            detail="The head has learnt from them: the score says nothing of new rows.",
            advice="score rows that were not there, or read the run's own score",
        )
        return
    said, now = record.headline, later.score
    if said is None or said.metric != now.metric:
        return
    value, low, high = difference(said, now)
    if math.isnan(low):
        return
    worse = high < 0 if higher_is_better(now.metric) else low > 0
    title = f"the run said {said.value:.4f}: {value:+.4f} from there, 95 % interval {low:+.4f} to {high:+.4f}"
    if not worse:
        yield Finding("beside-the-run", title, "info", value, now.metric, low, high)
        return
    yield Finding(
        "beside-the-run", title, "warning", value, now.metric, low, high,
        detail="Chance alone hardly makes such a loss: these rows are unlike those that the run was scored on.",
        advice="look at the wrong ones (--output FILE), and adapt again with some of these rows",
    )  # fmt: skip
