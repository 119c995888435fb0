"""The tasks of the page: up to 1,000 labelled training rows by seed, and at most 2,000 test rows.

=============== ============ ====================================================================================
task            kind         what it is
=============== ============ ====================================================================================
flowers5        near         the pack's train and test parts
vww             near         a person in the picture or not (600 training rows: all of them, for every seed)
tiny20          near         the 20 classes of tiny_imagenet whose names come first (400 rows: all, for every seed)
cifar10         near         cifar10_jpeg75
camvid-crop     near         the class of most labelled pixels in each 60-pixel crop of a frame; official parts
mnist … fashion characters   mnist, usps, fashion_mnist of the pack; digits of scikit-learn, 1,000 / 797 by seed
pos-x, orient,  structured   rendered, see :mod:`regraft.data.rendered`; the test rows are drawn with a seed of
count                        their own
camvid-mAP      near         multilabel: which classes are in the frame; those in 5 to 95 % of the train frames
=============== ============ ====================================================================================

Training rows are drawn by seed and balanced by class as far as the rows go (:meth:`Manifest.limit`). Test rows are
the same for all seeds (those of digits excepted); where there are more than 2,000, 2,000 are drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from regraft.data import Manifest, PixelImages, Target, joined, rendered, scan
from regraft.data.hashing import hash_rows
from regraft.data.rendered import RenderedTask
from regraft.errors import DataError
from regraft.reproduce.packs import DATA

__all__ = ["KINDS", "ROWS", "T6", "T12", "TEST_ROWS", "classes_of", "kind_of", "some_classes", "task"]

ROWS = 1000
TEST_ROWS = 2000
RENDERED_TEST_SEED = 1_000_000

T12: tuple[str, ...] = (
    *("flowers5", "vww", "tiny20", "cifar10", "camvid-crop"),
    *("mnist", "usps", "digits", "fashion"),
    *("pos-x", "orient", "count"),
)
T6: tuple[str, ...] = ("flowers5", "cifar10", "mnist", "usps", "pos-x", "count")
KINDS: dict[str, str] = {
    **dict.fromkeys(T12[:5], "near"),
    **dict.fromkeys(T12[5:9], "characters"),
    **dict.fromkeys(T12[9:], "structured"),
    "camvid-mAP": "near",
}

_PACKS = {
    "flowers5": "flowers5",
    "vww": "vww",
    "cifar10": "cifar10_jpeg75",
    "mnist": "mnist",
    "usps": "usps",
    "fashion": "fashion_mnist",
}
_RENDERED: dict[str, RenderedTask] = {"pos-x": "position-x", "orient": "orientation", "count": "count"}
_CROP = 60
_FEWEST_CROPS = 20  # of a class in training: five folds need some each
_DIGITS_TEST = 797


def kind_of(name: str) -> str:
    """``near``, ``characters`` or ``structured``.

    Raises:
        DataError: no such task.
    """
    if name not in KINDS:
        raise DataError(f"no task is called {name!r}", expected=", ".join(KINDS))
    return KINDS[name]


@lru_cache(maxsize=8)
def task(name: str, data: Path, seed: int, rows: int = ROWS) -> Manifest:
    """The rows of a task: part ``train`` drawn with ``seed``, part ``test``.

    Args:
        name: a key of :data:`KINDS`.
        data: the data pack's folder.
        seed: of the training rows.
        rows: training rows, or all where there are fewer; digits have no other number than the page's.

    Raises:
        DataError: no such task, or no such number of rows of it.
        MissingPathError: the pack does not hold its data.
    """
    kind_of(name)
    if name in _RENDERED:
        parts = {
            "train": rendered(_RENDERED[name], rows, seed),
            "test": _rendered_test(name),
        }
        return joined(parts, name)
    if name == "digits":
        if rows != ROWS:
            raise DataError("digits have no other number of rows", expected=str(ROWS), got=str(rows))
        return _digits(seed)
    whole = _whole(name, data)
    return joined({"train": whole.part("train").limit(rows, seed), "test": whole.part("test")}, name)


@lru_cache(maxsize=8)
def _rendered_test(name: str) -> Manifest:
    return rendered(_RENDERED[name], TEST_ROWS, RENDERED_TEST_SEED)


@lru_cache(maxsize=4)
def _whole(name: str, data: Path) -> Manifest:
    """All training rows and the test rows, before a seed draws."""
    if name == "tiny20":
        whole = classes_of(scan(data / DATA["tiny_imagenet"]), 20)
    elif name == "camvid-crop":
        whole = _crops(scan(data / DATA["camvid"]))
    elif name == "camvid-mAP":
        whole = _present(scan(data / DATA["camvid"]))
    else:
        whole = scan(data / DATA[_PACKS[name]])
    test = whole.rows_of("test")
    if len(test) > TEST_ROWS:
        test = np.sort(np.random.default_rng(0).permutation(test)[:TEST_ROWS])
    return whole.take(np.concatenate([whole.rows_of("train"), test]))


def classes_of(manifest: Manifest, count: int) -> Manifest:
    """The rows of the ``count`` classes whose names come first in alphabetical order.

    Raises:
        DataError: no labels.
    """
    names = manifest.labels.classes
    return some_classes(manifest, [names.index(name) for name in sorted(names)[:count]])


def some_classes(manifest: Manifest, codes: Sequence[int]) -> Manifest:
    """The rows of some classes, which are counted anew in the order of ``codes``.

    Raises:
        DataError: no labels.
    """
    target = manifest.labels
    rows = np.flatnonzero(np.isin(target.values, list(codes)))
    number = {code: place for place, code in enumerate(codes)}
    values = np.array([number[int(value)] for value in target.values[rows]], dtype=np.int64)
    names = tuple(target.classes[code] for code in codes)
    return replace(manifest.take(rows), target=Target("multiclass", names, values))


def _crops(frames: Manifest) -> Manifest:
    """Square crops of every frame side by side, labelled by the class that most of their labelled pixels have.

    Crops of which more than half is unlabelled are left out, and so are classes of few training crops. All crops
    of a frame are one group.
    """
    if frames.target is None or frames.target.masks is None:
        raise DataError(f"{frames.name} has no masks")
    pixels, codes, ids, split, groups = [], [], [], [], []
    for row in range(len(frames)):
        if frames.split[row] == "validation":
            continue
        picture = np.asarray(frames.inputs.read(row))
        mask = np.asarray(frames.target.masks.read(row))
        for top in range(0, mask.shape[0] - _CROP + 1, _CROP):
            for left in range(0, mask.shape[1] - _CROP + 1, _CROP):
                inside = (slice(top, top + _CROP), slice(left, left + _CROP))
                labelled = mask[inside][mask[inside] != frames.target.ignore]
                if 2 * labelled.size < _CROP * _CROP:
                    continue
                pixels.append(picture[inside])
                codes.append(int(np.bincount(labelled).argmax()))
                ids.append(f"{frames.ids[row]} ({top}, {left})")
                split.append(frames.split[row])
                groups.append(frames.ids[row])
    train = np.array([part == "train" for part in split])
    counts = np.bincount(np.array(codes)[train], minlength=len(frames.target.classes))
    kept = [code for code, count in enumerate(counts) if count >= _FEWEST_CROPS]
    rows = np.flatnonzero(np.isin(codes, kept))
    inputs = PixelImages(np.stack([pixels[row] for row in rows]), "camvid crops")
    names = tuple(ids[row] for row in rows)
    return Manifest(
        "camvid-crop",
        inputs,
        names,
        hash_rows(inputs, names),
        Target(
            "multiclass",
            tuple(frames.target.classes[code] for code in kept),
            np.array([kept.index(codes[row]) for row in rows], dtype=np.int64),
        ),
        tuple(split[row] for row in rows),
        tuple(groups[row] for row in rows),
    )


def _present(frames: Manifest) -> Manifest:
    """Which classes have a pixel in each frame, of those that 5 to 95 % of the train frames show."""
    if frames.target is None or frames.target.masks is None:
        raise DataError(f"{frames.name} has no masks")
    classes = len(frames.target.classes)
    seen = np.zeros((len(frames), classes), dtype=np.float32)
    for row in range(len(frames)):
        found = np.unique(np.asarray(frames.target.masks.read(row)))
        seen[row, found[(found >= 0) & (found < classes)]] = 1.0
    share = seen[frames.rows_of("train")].mean(axis=0)
    kept = np.flatnonzero((share >= 0.05) & (share <= 0.95))
    target = Target("multilabel", tuple(frames.target.classes[code] for code in kept), seen[:, kept])
    return replace(frames, target=target)


def _digits(seed: int) -> Manifest:
    """The 1,797 digits of scikit-learn, 797 drawn for the test by the seed."""
    loaded = load_digits()
    grey = np.rint(loaded.images * (255.0 / 16.0)).astype(np.uint8)
    order = np.random.default_rng(seed).permutation(len(grey))
    inputs = PixelImages(grey, "digits")
    ids = tuple(f"row {row}" for row in range(len(grey)))
    split = np.full(len(grey), "train", dtype=object)
    split[order[:_DIGITS_TEST]] = "test"
    target = Target("multiclass", tuple(str(digit) for digit in range(10)), loaded.target.astype(np.int64))
    return Manifest("digits", inputs, ids, hash_rows(inputs, ids), target, tuple(split))
