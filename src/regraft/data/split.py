"""Folds and hold-outs: stratified, seeded, and never through a group; repeated rows across parts."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from regraft.data.manifest import PARTS, Manifest, Target
from regraft.data.source import array_content
from regraft.errors import DataError

__all__ = ["duplicates", "fold_count", "folds", "holdout"]

_BINS = 10  # quantile bins of a regression target, where groups forbid the exact split


def fold_count(target: Target, groups: Sequence[str] | np.ndarray | None, k: int) -> int:
    """How many folds :func:`folds` makes where ``k`` are wanted.

    Raises:
        DataError: fewer than 2 folds, rows or groups.
    """
    rows = len(target)
    if k < 2:
        raise DataError(f"{k} folds", expected="at least 2", do="raise the number of folds")
    if rows < 2:
        raise DataError(f"{rows} rows cannot be split into folds", expected="at least 2")
    k = min(k, rows)
    if (codes := _group_codes(groups, rows)) is not None:
        k = min(k, int(codes.max()) + 1)
    if _is_classes(target):
        k = max(2, min(k, int(np.bincount(target.values[target.values >= 0], minlength=1).max())))
    return k


def folds(target: Target, groups: Sequence[str] | np.ndarray | None, k: int, seed: int = 0) -> np.ndarray:
    """The fold ``0 … k-1`` of each row, int64 ``(N,)``.

    * Binary and multiclass: stratified; without groups, the folds' counts of every class differ by at most one.
    * Multilabel: iterative stratification, which places the rows of the rarest label first
      (Sechidis, Tsoumakas and Vlahavas, ECML 2011).
    * Regression: rows sorted by the mean standardised output; every k neighbours go to k different folds.
    * Dense labels: at random.

    With groups, all rows of a group share a fold and the balance is as good as the groups allow. ``k`` is lowered
    to the number of groups, and to the rows of the largest class (at least 2). A rare class does not lower it: its
    rows lie in as many folds as there are, so that every training part has one of them, unless it has one row.

    Args:
        target: the labels.
        groups: the group of each row, or ``None``.
        k: the number of folds wanted.
        seed: the same seed gives the same folds.

    Raises:
        DataError: fewer than 2 folds, rows or groups.
    """
    rows = len(target)
    k, codes = fold_count(target, groups, k), _group_codes(groups, rows)
    rng = np.random.default_rng(seed)
    if target.kind == "multilabel":
        return _iterative(target.values, codes, np.full(k, 1.0 / k), rng)
    strata = _strata(target, rng)
    if codes is not None:
        return _grouped(strata, codes, k, seed)
    if _is_classes(target) and np.bincount(strata + 1).max() >= k:
        from sklearn.model_selection import StratifiedKFold

        return _numbered(StratifiedKFold(k, shuffle=True, random_state=seed), strata, None)
    order = rng.permutation(rows)
    order = order[np.argsort(strata[order], kind="stable")]
    result = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, k):
        block = order[start : start + k]
        result[block] = rng.permutation(k)[: len(block)]
    return result


def holdout(target: Target, groups: Sequence[str] | np.ndarray | None, fraction: float, seed: int = 0) -> np.ndarray:
    """Which rows are held out, bool ``(N,)``: about ``fraction`` of them, stratified as in :func:`folds`.

    Without groups every class gives ``fraction`` of its rows, to within one, and keeps at least one for
    training; classes of one row are never held out. With groups, whole groups are held out, and every class that
    several groups have keeps one of them for training; so does every label of several rows (or groups).

    Raises:
        DataError: a fraction outside (0, 1), fewer than 2 rows or groups.
    """
    rows = len(target)
    if not 0.0 < fraction < 1.0:
        raise DataError(f"a held-out fraction of {fraction}", expected="a number between 0 and 1")
    if rows < 2:
        raise DataError(f"{rows} rows cannot be split", expected="at least 2")
    codes = _group_codes(groups, rows)
    rng = np.random.default_rng(seed)
    if codes is not None or target.kind == "multilabel":
        share = min(fraction, 1.0 - fraction)
        units = rows if codes is None else int(codes.max()) + 1
        labels = _indicators(target, int(units * share + 1e-9))
        if _is_classes(target):  # of classes of as many rows the first in line would always be placed first
            labels = labels[:, np.random.default_rng([seed, 1]).permutation(labels.shape[1])]
        held: np.ndarray = _iterative(labels, codes, np.array([1.0 - fraction, fraction]), rng) == 1
        named = target.kind == "multilabel" or _is_classes(target)
        return _leaving_each(held, labels, codes, fraction, rng) if named else held
    return _systematic(_strata(target, rng), _is_classes(target), fraction, rng)


def duplicates(manifest: Manifest) -> dict[str, Any]:
    """Rows whose content is repeated, by hash, as plain JSON values.

    Returns:
        ``within``: ``{part: [[row, …], …]}``, sets of equal rows inside each part; ``across``: ``[[row, …], …]``, sets
        that stand in more than one part (a leak); ``conflicting``: sets whose labels differ, missing ones aside;
        ``rows_within``, ``rows_across``: how many rows repeat an earlier row of their part, and how many rows of
        validation and test also stand in training; ``ungrouped``: how many sets are not held together by
        groups (all, where there are none); ``crossing_groups``: groups with rows in several parts. Row
        numbers are those of ``manifest``.
    """
    rows_of: dict[str, list[int]] = {}
    for row, value in enumerate(manifest.hashes):
        rows_of.setdefault(value, []).append(row)
    sets = [rows for rows in rows_of.values() if len(rows) > 1]
    within: dict[str, list[list[int]]] = {part: [] for part in PARTS}
    across, conflicting, ungrouped, leaked = [], [], 0, 0
    for rows in sets:
        counts = Counter(manifest.split[row] for row in rows)
        if len(counts) > 1:
            across.append(rows)
            leaked += sum(count for part, count in counts.items() if part != "train") if counts["train"] else 0
        for part in counts:
            if counts[part] > 1:
                within[part].append([row for row in rows if manifest.split[row] == part])
        if manifest.target is not None and _differ(manifest.target, rows):
            conflicting.append(rows)
        if manifest.groups is None or len({manifest.groups[row] for row in rows}) > 1:
            ungrouped += 1
    return {
        "within": within,
        "across": across,
        "conflicting": conflicting,
        "rows_within": sum(len(rows) - 1 for part in PARTS for rows in within[part]),
        "rows_across": leaked,
        "ungrouped": ungrouped,
        "crossing_groups": _crossing(manifest),
    }


def _crossing(manifest: Manifest) -> list[str]:
    parts: dict[str, set[str]] = {}
    for group, part in zip(manifest.groups or (), manifest.split):
        parts.setdefault(group, set()).add(part)
    return [group for group, found in parts.items() if len(found) > 1]


def _differ(target: Target, rows: Sequence[int]) -> bool:
    present = target.present
    rows = [row for row in rows if present[row]]
    if target.masks is not None:
        return len({array_content(target.mask(row)) for row in rows}) > 1  # two files may hold the same classes
    if len(rows) < 2:
        return False
    values = target.values[rows]
    return bool((np.fmin.reduce(values) < np.fmax.reduce(values)).any())  # both pass over single columns' gaps


def _is_classes(target: Target) -> bool:
    return target.kind in ("binary", "multiclass") and target.masks is None


def _group_codes(groups: Sequence[str] | np.ndarray | None, rows: int) -> np.ndarray | None:
    """Groups numbered in order of appearance, so that their names do not matter."""
    if groups is None:
        return None
    if len(groups) != rows:
        raise DataError("groups and labels differ in length", expected=f"{rows}", got=f"{len(groups)}")
    number: dict[Any, int] = {}
    codes = np.array([number.setdefault(group, len(number)) for group in groups], dtype=np.int64)
    if len(number) == 1:
        raise DataError("all rows are in one group", expected="at least 2 groups", do="choose another --group column")
    return codes


def _strata(target: Target, rng: np.random.Generator) -> np.ndarray:
    """What a split should balance, one number a row: the class, or the mean standardised output."""
    if _is_classes(target):
        return target.values
    if target.masks is not None:
        return rng.permutation(len(target)).astype(np.float64)
    values = target.values
    gaps = np.isnan(values)
    filled = np.where(gaps, 0.0, values)
    count = np.maximum((~gaps).sum(axis=0), 1)
    mean = filled.sum(axis=0) / count
    centred = np.where(gaps, 0.0, values - mean)
    scale = np.sqrt((centred**2).sum(axis=0) / count)
    standardised: np.ndarray = (centred / np.where(scale > 0, scale, 1.0)).mean(axis=1)
    # equal values in an order of chance, not in the file's
    return standardised + rng.random(len(values)) * 1e-9


def _indicators(target: Target, most: int) -> np.ndarray:
    """0/1 columns ``(N, C)`` whose sums a split should balance; of numbers ``most`` bins, of which each then has a unit
    to hold out, or ten."""
    if target.kind == "multilabel":
        return target.values
    if _is_classes(target):
        return (target.values[:, None] == np.arange(len(target.classes))).astype(np.float64)
    bins = max(1, min(most, _BINS))
    return (_bins(_strata(target, np.random.default_rng(0)), bins)[:, None] == np.arange(bins)).astype(np.float64)


def _bins(strata: np.ndarray, bins: int = _BINS) -> np.ndarray:
    rank = np.argsort(np.argsort(strata, kind="stable"), kind="stable")
    return rank * bins // len(strata)


def _grouped(strata: np.ndarray, codes: np.ndarray, k: int, seed: int) -> np.ndarray:
    # loaded where folds are made: it takes five times as long as all else here, and mistakes in the data come before
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    classes = strata if strata.dtype.kind == "i" else _bins(strata)
    if np.bincount(classes - classes.min()).max() >= k:
        result = _numbered(StratifiedGroupKFold(k, shuffle=True, random_state=seed), classes, codes)
        if len(np.unique(result)) == k:
            return result
    # its greedy choice can leave a fold empty when a few groups are large; this one never does
    return _numbered(GroupKFold(k, shuffle=True, random_state=seed), classes, codes)


def _numbered(splitter: Any, strata: np.ndarray, codes: np.ndarray | None) -> np.ndarray:
    result = np.full(len(strata), -1, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes smaller than k are expected and documented above
        for fold, (_, held) in enumerate(splitter.split(np.zeros(len(strata)), strata, codes)):
            result[held] = fold
    return result


def _systematic(strata: np.ndarray, classes: bool, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Rows in random order, sorted by stratum: every (1/fraction)-th is held out."""
    order = rng.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    held = np.zeros(len(strata), dtype=bool)
    if not classes:
        held[order] = _every(len(order), fraction, rng.random())
        if held.all() or not held.any():
            held[order[0]] = not held[order[0]]
        return held
    counts = np.bincount(strata[order] + 1)
    splittable = order[counts[strata[order] + 1] > 1]
    held[splittable] = _every(len(splittable), fraction, rng.random())
    for code in np.unique(strata[splittable]):
        mine = splittable[strata[splittable] == code]
        if held[mine].all():
            held[mine[0]] = False
    if not held.any() and len(splittable):
        held[splittable[rng.integers(len(splittable))]] = True
    return held


def _every(count: int, fraction: float, start: float) -> np.ndarray:
    """Bool ``(count,)`` with floor or ceil of ``m · fraction`` True among any m in a row."""
    marks = np.floor(np.arange(count + 1) * fraction + start)
    return np.diff(marks) > 0


def _leaving_each(
    held: np.ndarray, labels: np.ndarray, codes: np.ndarray | None, fraction: float, rng: np.random.Generator
) -> np.ndarray:
    """``held`` with no label that several units (rows or groups) have held out whole: one of them goes to training,
    and units whose labels training has elsewhere come for it as long as that brings the share nearer."""
    unit = np.arange(len(labels)) if codes is None else codes
    size = np.bincount(unit).astype(np.float64)
    has = np.zeros((len(size), labels.shape[1]), dtype=bool)
    np.logical_or.at(has, unit, np.nan_to_num(labels) > 0)
    out = np.zeros(len(size), dtype=bool)
    out[unit] = held
    whole = np.flatnonzero((has.sum(axis=0) > 1) & ~has[~out].any(axis=0))
    for label in whole:
        if not has[~out, label].any():  # else it came with another label's unit
            out[rng.choice(np.flatnonzero(has[:, label]))] = False
    while len(whole):
        lacking = fraction * size.sum() - size[out].sum()
        alone = has[~out].sum(axis=0) == 1
        spare = np.flatnonzero(~out & ~(has & alone).any(axis=1) & (size < 2 * lacking))
        if not len(spare):
            break
        gap = np.abs(lacking - size[spare])
        out[rng.choice(spare[gap == gap.min()])] = True
    return out[unit]


def _iterative(
    labels: np.ndarray, codes: np.ndarray | None, shares: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Iterative stratification of rows, or of whole groups, into parts of the given shares.

    Repeatedly takes the label with the fewest unplaced rows, and gives each unit (row or group) that has it to the
    part that still wants most of that label, then to the part that wants most rows, then by chance. A group goes to
    no part without room for half of it while another has that: parts would follow the labels' shares far from their
    own. Units without a label come last. No part stays empty.
    """
    ones = np.nan_to_num(np.asarray(labels, dtype=np.float64), nan=0.0)
    unit = np.arange(len(ones)) if codes is None else codes
    units = int(unit.max()) + 1
    amount = np.zeros((units, ones.shape[1]))
    np.add.at(amount, unit, ones)
    size = np.bincount(unit, minlength=units).astype(np.float64)
    want = amount.sum(axis=0)[:, None] * shares  # (labels, parts)
    room = size.sum() * shares
    every = np.arange(len(shares))
    place = np.full(units, -1, dtype=np.int64)
    shuffled = rng.permutation(units)
    # large groups first: they are hardest to place
    shuffled = shuffled[np.argsort(-size[shuffled], kind="stable")]

    def put(item: int, wish: np.ndarray) -> None:
        fits = every if codes is None else every[room >= size[item] / 2]
        fits = fits if len(fits) else every
        best = fits[wish[fits] >= wish[fits].max() - 1e-9]
        best = best[room[best] >= room[best].max() - 1e-9]
        part = int(best[0] if len(best) == 1 else rng.choice(best))
        place[item] = part
        want[:, part] -= amount[item]
        room[part] -= size[item]

    while True:
        left = amount[place < 0].sum(axis=0)
        if not (left > 0).any():
            break
        label = int(np.argmin(np.where(left > 0, left, np.inf)))
        for item in shuffled[(place[shuffled] < 0) & (amount[shuffled, label] > 0)]:
            put(int(item), want[label])
    for item in shuffled[place[shuffled] < 0]:
        put(int(item), room)
    for part in np.flatnonzero(np.bincount(place, minlength=len(shares)) == 0):
        donor = int(np.argmax(np.bincount(place, minlength=len(shares))))
        smallest = shuffled[place[shuffled] == donor][-1]
        place[smallest] = part
    return place[unit]
