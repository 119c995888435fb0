"""What is to be said of rows whatever is made of them: copies of an input, rows that were left out, dark images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from regraft.data import Manifest, duplicates, largest_grey
from regraft.graft.alike import are_copies, contents, numbers
from regraft.network.preprocess import Preprocess
from regraft.record import Finding, counted
from regraft.wording import some

__all__ = ["copies", "equal_rows", "few_levels", "left_out"]

_SIXTEEN, _FEW = 65535, 14  # bits that are few of 16: a quarter of the range, 64 levels of 256


def copies(preprocess: Preprocess | None, manifest: Manifest, more: str = "") -> Iterator[Finding]:
    """What is to be said of inputs that stand in several rows; ``more`` ends the advice about those within one part."""
    names = contents(preprocess, manifest)
    equal = tuple(equal_rows(names, manifest))
    yield from equal
    if equal:  # cases with the same values are in several splits, and have several labels, by their nature
        names = tuple(map(str, range(len(manifest))))
    seen = duplicates(replace(manifest, hashes=names))
    written = names != manifest.hashes  # in one of several ways
    same = "inputs, however written," if written else "bytes"
    if seen["across"]:
        yield Finding(
            "duplicate-rows-across-splits",
            f"{counted(len(seen['across']), 'input appears', 'inputs appear')} in more than one split.",
            "warning",
            len(seen["across"]),
            "inputs",
            detail=f"The same {same} are in rows of several splits: {_few(manifest, seen['across'])}",
            advice="Remove them from all splits but the one that scores: they make the score look better than it is.",
        )
    copied = manifest.groups == names
    if seen["crossing_groups"] and not (copied and seen["across"]):
        groups = seen["crossing_groups"]
        yield Finding(
            "groups-across-splits",
            f"{counted(len(groups), 'group has', 'groups have')} rows in more than one split.",
            "warning",
            len(groups),
            "groups",
            detail="Such as " + some(groups),
            advice="Split by group: rows of one group are alike, and the score profits from that.",
        )
    if seen["conflicting"]:
        yield Finding(
            "label-conflict",
            f"{counted(len(seen['conflicting']), 'input carries', 'inputs carry')} different labels in different rows.",
            "warning",
            len(seen["conflicting"]),
            "inputs",
            detail=f"Identical {same.rstrip(',')}, different labels: {_few(manifest, seen['conflicting'])}",
            advice="Look at them and keep the right label.",
        )
    if repeated := sorted(rows for sets in seen["within"].values() for rows in sets):  # copies within a split
        yield Finding(
            "rows-kept-together",
            f"{counted(len(repeated), 'input stands', 'inputs stand')} in several rows; no fold parts them.",
            "info",
            len(repeated),
            "inputs",
            detail="Copies: " + _few(manifest, repeated),
            advice="Remove the copies if they are mistakes: each counts as a row." + more,
        )


def equal_rows(names: Sequence[str], manifest: Manifest) -> Iterator[Finding]:
    """That equal rows of numbers are too common to be copies; ``names`` tell the rows apart."""
    repeats = len(names) - len(set(names))
    row = numbers(manifest)
    if not repeats or row is None or are_copies(names, row):
        return
    yield Finding(
        "equal-rows",
        f"{repeats:,} of {len(names):,} rows of numbers {'equals' if repeats == 1 else 'equal'} another; "
        "folds may part them.",
        "info",
        repeats,
        "rows",
        detail="Fewer than nine in ten differ, and by no one column alone: they count as cases with the same values, "
        "not as copies of one.",
        advice="If they are copies, remove them, or name a column that tells which belong together with --group.",
    )


def _few(manifest: Manifest, repeated: Sequence[Sequence[int]]) -> str:
    shown = [" = ".join(manifest.ids[row] for row in rows[:3]) for rows in repeated[:3]]
    return "; ".join(shown) + ("; …" if len(repeated) > 3 else "")


def left_out(manifest: Manifest) -> Iterator[Finding]:
    """Which inputs could not be used, and why."""
    if skipped := manifest.skipped:
        yield Finding(
            "skipped-rows",
            f"{counted(len(skipped), 'input was', 'inputs were')} left out.",
            "warning",
            len(skipped),
            "rows",
            detail=some([f"{row.where}: {row.reason}" for row in skipped], separator="; "),
            advice="Mend or remove them: a score without them says nothing about inputs like them.",
        )


def few_levels(manifest: Manifest) -> Iterator[Finding]:
    """16-bit grey images whose values end far below the range's end: of 256 levels a backbone sees few."""
    largest, count = largest_grey(manifest.inputs)
    bits = largest.bit_length()
    if not largest or bits > _FEW:
        return
    levels = (largest + 128) // 257 + 1
    yield Finding(
        "few-grey-levels",
        f"16-bit images use values up to {largest:,} of {_SIXTEEN:,}: the backbone sees {counted(levels, 'level')} of "
        "grey of 256.",
        "warning",
        levels,
        "levels",
        detail=f"Seen in {counted(count, 'image')} of {len(manifest):,}. All values are divided by 257.",
        advice=f"Multiply the values of all images by {2 ** (16 - bits)}, also of those to be predicted, or "
        "save them with 8 bits.",
    )
