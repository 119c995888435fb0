"""Dense labels: a mask per image, found beside the images, checked against them, counted by class.

A mask is one channel of class values. One value may say "not labelled"; it is the one that is asked for, else the one
that the file's metadata name (``ignore_index``), else the place of a class called void, unlabelled or the like, else
255, as in Pascal VOC and Cityscapes, where no class has it: not where names, or larger values, say that it is a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from regraft.data.folder import find_files
from regraft.data.manifest import BadRow, Target
from regraft.data.pixels import open_image
from regraft.data.rows import PART_NAMES, Dense, Rows
from regraft.data.source import FileImages, Masks, Source, file_text
from regraft.data.threads import thread_map
from regraft.errors import DataError, RegraftError
from regraft.wording import printable, some

__all__ = ["CLASS_NAMES", "dense_target", "has_masks", "image_size", "mask_rows"]

IMAGES, MASKS = "images", "masks"
_ROLES = {IMAGES: IMAGES, "image": IMAGES, MASKS: MASKS, "mask": MASKS}
CLASS_NAMES = "classes.txt"
VOID = ("void", "unlabelled", "unlabeled", "ignore", "ignored", "unknown")
CONVENTION = 255
_FEW = 20


def has_masks(root: Path) -> bool:
    """Whether a folder holds images and masks side by side: ``images/`` and ``masks/``, in it or in its parts."""
    roles = {"": _roles(root)}  # by part, which may be written in several ways: Train/Images with train/masks
    for child in _folders(root):
        if (part := child.name.lower()) in PART_NAMES:
            roles[part] = roles.get(part, set()) | _roles(child)
    return any(found == {IMAGES, MASKS} for found in roles.values())


def _roles(place: Path) -> set[str]:
    """Of images and masks what a folder has a folder of."""
    return {_ROLES[name] for child in _folders(place) if (name := child.name.lower()) in _ROLES}


def _folders(place: Path) -> list[Path]:
    """The folders in a folder; none where it cannot be read, as others will say."""
    try:
        return [child for child in place.iterdir() if child.is_dir()]
    except OSError:
        return []


def mask_rows(root: Path, *, labelled: bool) -> Rows:
    """``images/NAME.jpg`` with ``masks/NAME.png``, or ``image`` and ``mask``, in small letters or capitals; parts as
    folders above or below, as in ``train/images/`` or ``images/train/``. Names of classes may stand in ``classes.txt``,
    one a line, that of value 0 first. A mask without an image is left out and named.

    Args:
        root: the folder.
        labelled: False: the images alone.

    Raises:
        DataError: no image, images without a mask, two masks of one name, or names that are not UTF-8.
    """
    images: dict[tuple[str, ...], Path] = {}
    masks: dict[tuple[str, ...], Path] = {}
    folders: dict[tuple[str, ...], tuple[str, ...]] = {}  # of an image, as they are written
    for path in find_files(root):
        at = next((at for at, name in enumerate(path[:-1]) if name.lower() in _ROLES), None)
        if at is None:
            continue
        role = _ROLES[path[at].lower()]
        within = (*path[:at], *path[at + 1 : -1])
        key = (*(name.lower() if name.lower() in PART_NAMES else name for name in within), Path(path[-1]).stem)
        held = images if role == IMAGES else masks
        if key in held:
            raise DataError(f"{root}: two files in {role} are called {key[-1]}", do="keep one of them")
        held[key] = root.joinpath(*path)
        if role == IMAGES:
            folders[key] = within
    keys = sorted(images, key=lambda key: (*folders[key], key[-1]))
    if not keys:
        raise DataError(f"{root / IMAGES}: no image in this folder", do="check the path")
    split = [next((PART_NAMES[name] for name in key[:-1] if name in PART_NAMES), "train") for key in keys]
    ids = ["/".join((*folders[key], images[key].name)) for key in keys]
    source = FileImages(images[key] for key in keys)
    if not labelled:
        return Rows(source, ids, [], split)
    if gone := [name for key, name in zip(keys, ids) if key not in masks]:
        which = "1 image has" if len(gone) == 1 else f"{len(gone)} images have"
        raise DataError(
            f"{root}: {which} no mask, such as {gone[0]}",
            expected=f"a file of the same name in {MASKS}",
            do="add the masks, or take the images away",
        )
    names: tuple[str, ...] = ()
    if (root / CLASS_NAMES).is_file():
        text = file_text(root / CLASS_NAMES).rstrip()
        names = tuple(line.strip() for line in text.split("\n")) if text else ()
        if "" in names:
            raise DataError(
                f"{root / CLASS_NAMES}: line {names.index('') + 1} is blank",
                expected="a name on each line, that of value 0 first",
            )
    dense = Dense(Masks(FileImages(masks[key] for key in keys)), names)
    alone = sorted(printable(str(path)) for key, path in masks.items() if key not in images)
    skipped = [BadRow(path, "it has no image", f"put one of its name into {IMAGES}") for path in alone]
    return Rows(source, ids, [], split, dense=dense, skipped=skipped)


def image_size(inputs: Source, row: int) -> tuple[int, int]:
    """(height, width) of an image, of an encoded one from its header.

    Raises:
        DataError: it is none, or cannot be read.
    """
    found = open_image(inputs.content(row), inputs.where(row)) if inputs.encoded else inputs.read(row)
    if not isinstance(found, Image.Image):
        raise DataError(f"{inputs.where(row)}: masks belong to images", got=f"{inputs.modality} inputs")
    return found.height, found.width


@dataclass(frozen=True)
class _Seen:
    """What a mask holds: its values and how many pixels have each; or why it cannot be used."""

    values: np.ndarray
    counts: np.ndarray
    fault: str = ""


def dense_target(
    dense: Dense, inputs: Source, ignore: int | None = None, *, later: bool = False
) -> tuple[Target, list[tuple[int, BadRow]]]:
    """The labels of all rows, and the rows whose masks cannot be used.

    Args:
        dense: masks, and what the file says of them.
        inputs: the images, whose sizes the masks must have.
        ignore: the value that says "not labelled"; found by the rules above if ``None``.
        later: whether the masks come after those that a head was solved on, and need not hold what these held.

    Raises:
        DataError: two classes of one name; no names of classes, and of the values up to the largest most do not occur:
            levels of grey; no pixel of the value that says "not labelled", which would not be taken for it unasked.
    """
    classes = dense.classes
    if twice := sorted({name for name in classes if classes.count(name) > 1}):
        raise DataError(f"two classes of masks are called {twice[0]!r}", do="rename one")
    seen = thread_map(lambda row: _look(dense.masks, inputs, row), len(dense.masks))
    values = sorted({int(value) for one in seen for value in one.values})
    most = max(values, default=-1)
    void = _void(dense, ignore, most)
    if values and void not in values and not later and void not in (-1, _void(dense, None, most)):
        what = f"no pixel of the masks has the value {void} that --ignore names"
        raise DataError(what, expected="a value of theirs", got=some(values), do="correct it, or leave it out")
    if not classes:
        used = [value for value in values if value != void and value >= 0]
        top = used[-1] if used else -1
        if top > _FEW and 2 * len(used) <= top:
            raise DataError(
                f"the masks hold {len(used)} values up to {top}: {some(used)}",
                expected="classes 0, 1, 2, … of which most occur",
                do=f"number the classes from 0, or name all {top + 1} in {CLASS_NAMES}, beside {IMAGES}/ and {MASKS}/",
            )
        classes = tuple(str(value) for value in range(top + 1))
    elif void == len(classes) - 1:
        classes = classes[:-1]
    counts = np.zeros((len(seen), len(classes)), dtype=np.int64)
    bad: list[tuple[int, BadRow]] = []
    for row, one in enumerate(seen):
        fault = one.fault
        known = one.values != void
        inside = known & (one.values >= 0) & (one.values < len(classes))
        counts[row, one.values[inside]] = one.counts[inside]
        if (beyond := one.values[known & ~inside]).size:
            fault = f"the value {int(beyond[0])} is none of the {len(classes)} classes (0 to {len(classes) - 1})"
            counts[row] = 0
        if fault:
            do = "mend the mask, name the value of unlabelled pixels with --ignore, or leave the row out"
            bad.append((row, BadRow(dense.masks.where(row), fault, do)))
    return Target("segmentation", classes, counts, dense.masks, void), bad


def _void(dense: Dense, asked: int | None, most: int) -> int:
    """The value of pixels without a label, -1 for none; ``most`` is the largest that the masks hold."""
    if asked is not None:
        return asked
    if dense.ignore >= 0:
        return dense.ignore
    named: Sequence[str] = [name.lower() for name in dense.classes]
    found = next((named.index(word) for word in VOID if word in named), -1)
    if found >= 0:
        return found
    free = len(named) <= CONVENTION if named else most <= CONVENTION
    return CONVENTION if free else -1


def _look(masks: Source, inputs: Source, row: int) -> _Seen:
    nothing = np.zeros(0, dtype=np.int64)
    try:
        mask = np.asarray(masks.read(row))
        wanted = image_size(inputs, row)
    except RegraftError as error:
        return _Seen(nothing, nothing, error.what.removeprefix(f"{masks.where(row)}: "))
    if mask.shape != wanted:
        sizes = f"{mask.shape[1]}×{mask.shape[0]} pixels, its image {wanted[1]}×{wanted[0]}"
        return _Seen(nothing, nothing, f"the mask has {sizes}")
    values, counts = np.unique(mask, return_counts=True)
    return _Seen(values, counts)
