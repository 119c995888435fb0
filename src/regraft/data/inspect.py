"""Find every row that cannot be read, before anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from regraft.data.checks import check_target
from regraft.data.manifest import BadRow, Manifest
from regraft.data.pixels import DECODER_ERRORS, open_image, reason_of, to_rgb, unreadable_mode
from regraft.data.source import Source
from regraft.data.threads import thread_map
from regraft.errors import DataError, RegraftError
from regraft.wording import some

__all__ = ["checked", "drop", "inspect", "without"]

_SHOWN, _REASONS = 8, 5  # rows of a reason that an error names, and reasons; the rest are counted


def inspect(source: Source, *, progress: Callable[[int, int], None] | None = None) -> tuple[tuple[int, BadRow], ...]:
    """All rows that cannot be used, with the reason, in order.

    Images: missing, empty, of unknown format, of 0×0 pixels, in a mode without an RGB form, truncated. A PNG's
    checksums are verified without decoding it; a JPEG is decoded at an eighth of its size, which reads all
    of its data and so sees a truncation; other formats are decoded. Arrays: numbers that are not finite in float32.
    Texts: nothing but white space.

    Args:
        source: the inputs.
        progress: called in this thread with (rows done, rows in all).
    """
    found = thread_map(lambda row: _inspect_row(source, row), len(source), progress=progress)
    return tuple((row, bad) for row, bad in enumerate(found) if bad is not None)


def drop(manifest: Manifest, bad: Sequence[tuple[int, BadRow]]) -> Manifest:
    """The manifest without the bad rows, which are recorded in ``skipped``; a class that loses all rows goes, too.

    Raises:
        DataError: too little is left: no row, one training row, one class.
    """
    if not bad:
        return manifest
    keep = np.ones(len(manifest), dtype=bool)
    keep[[row for row, _ in bad]] = False
    kept = manifest.take(np.flatnonzero(keep))
    kept = dataclasses.replace(kept, skipped=(*manifest.skipped, *(item for _, item in bad)))
    kept = _without_empty_classes(kept)
    check_target(kept)
    return kept


def checked(
    manifest: Manifest,
    *,
    skip_bad: bool | None = False,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """The manifest with readable rows only: inspects inputs and masks, then refuses or drops the bad rows.

    Raises:
        DataError: bad rows (by reason, eight of each by name) unless ``skip_bad``; or too little is left.
    """
    bad = dict(inspect(manifest.inputs, progress=progress))
    if manifest.target is not None and manifest.target.masks is not None:
        bad = {**dict(inspect(manifest.target.masks)), **bad}
    return without(manifest, sorted(bad.items()), skip_bad=skip_bad)


def without(
    manifest: Manifest, bad: Sequence[tuple[int, BadRow]], *, skip_bad: bool | None, do: str = "mend or remove them"
) -> Manifest:
    """The manifest without the bad rows, or refused for their sake, saying what to ``do``; ``skip_bad`` is ``None``
    where there is no such choice.

    Raises:
        DataError: bad rows (by reason, eight of each by name) unless ``skip_bad``; or too little is left.
    """
    if bad and not skip_bad:
        where = "" if manifest.name == "inputs" else f" in {manifest.name}"
        raise DataError(
            f"{len(bad)} of the inputs{where} cannot be used: {_listed([item for _, item in bad])}",
            do=do + ", or pass --skip-bad to go on without them" * (skip_bad is not None),
        )
    return drop(manifest, bad)


def _listed(bad: Sequence[BadRow]) -> str:
    """The rows by reason, in the order of the first of each."""
    by_reason: dict[str, list[str]] = {}
    for item in bad:
        by_reason.setdefault(item.reason, []).append(item.where)
    parts = [f"{some(rows, _SHOWN)}: {reason}" for reason, rows in list(by_reason.items())[:_REASONS]]
    others = sum(len(rows) for rows in list(by_reason.values())[_REASONS:])
    return "; ".join([*parts, f"{others} more for other reasons"] if others else parts)


def _without_empty_classes(manifest: Manifest) -> Manifest:
    """Classes whose every row was left out are no classes of the task any more."""
    target = manifest.target
    if target is None or target.scores_only or target.kind not in ("binary", "multiclass"):
        return manifest
    used = np.unique(target.values[target.values >= 0])
    if len(used) == len(target.classes):
        return manifest
    codes = np.append(np.searchsorted(used, np.arange(len(target.classes))), -1)  # -1 stays -1
    classes = tuple(target.classes[code] for code in used)
    return dataclasses.replace(
        manifest, target=dataclasses.replace(target, classes=classes, values=codes[target.values])
    )


def _inspect_row(source: Source, row: int) -> BadRow | None:
    where = source.where(row)
    try:
        if source.modality == "text":
            if not str(source.read(row)).strip():
                return BadRow(where, "the text is empty", "write it or leave the row out")
            return None
        if source.modality == "array":
            values = source.read(row)
            if isinstance(values, np.ndarray) and not np.isfinite(values).all():
                reason = "numbers that are NaN, infinite or beyond float32 (3.4e38)"
                return BadRow(where, reason, "fill in or scale them, or leave the row out")
            return None
        if getattr(source, "encoded", False):
            return _inspect_image(source.content(row), where)
        source.read(row)
    except RegraftError as error:
        return BadRow(where, error.what.removeprefix(f"{where}: "), error.do or "leave the row out")
    return None


def _inspect_image(content: bytes, where: str) -> BadRow | None:
    image = open_image(content, where)
    redo = "export it again as JPEG or PNG, or leave it out"
    if 0 in image.size:
        return BadRow(where, f"{image.size[0]}×{image.size[1]} pixels", redo)
    if reason := unreadable_mode(image):
        return BadRow(where, reason, redo)
    try:
        if image.format == "PNG":
            image.verify()
        elif image.format == "JPEG":
            image.draft(image.mode, (max(1, image.width // 8), max(1, image.height // 8)))
            image.load()
        else:
            to_rgb(image)  # decodes, and refuses integers that have no 8 bits
    except DECODER_ERRORS as error:
        return BadRow(where, f"cannot be decoded ({reason_of(error)})", redo)
    return None
