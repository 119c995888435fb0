"""One pass for what all verbs that judge a backbone look at: features of its last layer, its own classes, copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from regraft.data import Manifest
from regraft.diagnose.checks.check import Labelled
from regraft.errors import DataError
from regraft.features import Store, Taps, plan
from regraft.graft.alike import contents
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, Progress, prepare, swept
from regraft.graft.recipe import Recipe
from regraft.graft.row_findings import equal_rows, few_levels
from regraft.graft.stages.features import Features, Solve
from regraft.network import Network, Preprocess
from regraft.record import Finding, Ledger
from regraft.wording import some

__all__ = ["EMBEDDING", "PROBE", "looked_at", "passed", "probing", "remarks", "values_of"]

EMBEDDING, LOGITS = "embedding", "logits"
PROBE = Recipe("probe", "linear probe on the last layer", (Features(Taps((EMBEDDING,), (None,)), ("none",)), Solve()))


def looked_at(
    data: Any, model: str | Network, options: Options, ledger: Ledger, progress: Progress | None, **given: Any
) -> Prepared:
    """Rows and backbone, before any pass.

    Raises:
        DataError: the labels are masks.
    """
    ready = prepare(data, model, method=PROBE, options=options, ledger=ledger, progress=progress, **given)
    if ready.manifest.target is not None and ready.manifest.target.kind == "segmentation":
        raise DataError(
            "masks are neither diagnosed nor ranked by",
            expected="labels of whole images",
            do="adapt every backbone with --method probe and compare the scores, or choose other labels with --label",
        )
    return ready


def probing(
    data: Any,
    model: str | Network,
    options: Options,
    ledger: Ledger,
    progress: Progress | None,
    reader: Preprocess | None = None,
    **columns: Any,
) -> tuple[Prepared, Labelled]:
    """Rows, backbone, and what one pass of them gives: see :func:`passed`.

    Where rows are repeated and no groups are given, the copies of one are a group; ``reader`` says which are copies,
    by default the backbone's own preprocessing.

    Raises:
        DataError: as :func:`looked_at`.
    """
    return passed(
        looked_at(data, model, options, ledger, progress, reader=reader, **columns), options, ledger, progress
    )


def passed(ready: Prepared, options: Options, ledger: Ledger, progress: Progress | None) -> tuple[Prepared, Labelled]:
    """In one pass the features of the backbone's last layer and the probabilities of its own classes."""
    network, needed = ready.network, ready.plan  # infinite logits of classes that a network leaves out are no fault
    if network.has_logits and network.head:
        ready = replace(ready, plan=plan(network, [Taps((EMBEDDING, LOGITS), (None,))]))
    store, _ = swept(replace(ready, manifest=ready.fit), options, ledger, progress, needed=needed)
    values = values_of(ready, store)
    source = values.get(LOGITS)
    task = ready.task(ready.fit, options)
    shares = None if source is None or source.shape[1] < 2 else source.double().softmax(1)
    return ready, Labelled(values[EMBEDDING], task.response, shares, task.groups)


def remarks(ready: Prepared, reader: Preprocess | None = None) -> tuple[Finding, ...]:
    """What is said of the rows that scores of features rest on: some are repeated, lack labels, or are dark."""
    rows = ready.fit
    return (*_repeats(rows, reader or ready.network.preprocess), *_partly_labelled(rows), *few_levels(rows))


def _repeats(rows: Manifest, reader: Preprocess) -> tuple[Finding, ...]:
    """What is said where rows are repeated, molecules in whatever way they are written."""
    names = contents(reader, rows)
    if not (count := len(rows) - len(set(names))):
        return ()
    if equal := tuple(equal_rows(names, rows)):
        return equal
    verb = "repeats" if count == 1 else "repeat"
    same = "same bytes stand" if names == rows.hashes else "same inputs, however written, stand"
    return (
        Finding(
            "repeated-rows", f"{count:,} of {len(rows):,} inputs {verb} another", "warning", count, "rows",
            detail=f"The {same} in several rows. Where one is left out, its copies are left out with it.",
            advice="Remove them: they count as often as they stand there.",
        ),
    )  # fmt: skip


def _partly_labelled(rows: Manifest) -> Iterator[Finding]:
    """Of several labels or numbers: how many rows have all, and which columns do not vary among these."""
    target = rows.target
    if target is None or target.kind not in ("multilabel", "regression"):
        return
    values = target.values.reshape(len(rows), -1)
    whole = ~np.isnan(values).any(1)
    alike = [n for n, column in zip(target.classes, values[whole].T) if len(column) and (column == column[0]).all()]
    if whole.all() and not alike:
        return
    detail = "The scores of the features rest on these alone."
    if alike:
        detail += f" {some(alike)}: the same in all of these, and left out."
    yield Finding(
        "partly-labelled", f"{whole.sum():,} of {len(rows):,} rows have all their labels", "warning",
        int(whole.sum()), "rows", detail=detail,
        advice="Choose the columns that matter with --label, or compare backbones by adapting to each.",
    )  # fmt: skip


def values_of(ready: Prepared, store: Store) -> dict[str, Tensor]:
    """What the pass computed, by kind of block: float32 in memory."""
    matrices = store.matrices()
    return {block.kind: matrices[block.name].rows(slice(0, store.rows)).float() for block in ready.plan.blocks}
