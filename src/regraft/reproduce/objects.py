"""VOC2007 and COCO 2014 as they are published, for the question which objects an image shows (several labels a row).

``VOC2007`` is the folder of the development kit, with the archives of trainval and of test unpacked into it:
``JPEGImages/000005.jpg`` and, for each of 20 classes, ``ImageSets/Main/dog_trainval.txt`` and ``dog_test.txt`` of lines
``000005 -1``: 1 shows one, -1 shows none, 0 shows only ones that are hard to see, which the benchmark neither rewards
nor punishes (Everingham et al., The PASCAL Visual Object Classes Challenge, 2010, §4.1): a missing label here.

COCO's folder holds ``train2014``, ``val2014`` and ``annotations/instances_train2014.json``, ``instances_val2014.json``.
An image shows a category where an annotation of it says so, crowds too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import Manifest, Target
from regraft.data.hashing import hash_rows
from regraft.data.source import FileImages
from regraft.errors import DataError, MissingPathError

__all__ = ["SIZES", "coco2014", "voc2007"]

SIZES: Mapping[str, tuple[int, int, int]] = {"VOC07": (5_011, 4_952, 20), "COCO2014": (82_783, 40_504, 80)}
"""Training rows, test rows and classes, as the benchmarks state them."""
_AGAIN = "unpack its archives anew, those of the test part too"


def voc2007(folder: Path) -> Manifest:
    """The images of trainval (part ``train``) and of test, labelled by the 20 classes; NaN where only hard ones show.

    Raises:
        MissingPathError: the folder, a list or an image is not there.
        DataError: a list is torn, or the counts are not the benchmark's.
    """
    lists = folder / "ImageSets" / "Main"
    classes = sorted(path.name.removesuffix("_trainval.txt") for path in lists.glob("*_trainval.txt"))
    if not classes:
        raise MissingPathError(f"VOC2007 absent: {lists}", expected="lists such as dog_trainval.txt", do=_AGAIN)
    parts = []
    for part in ("trainval", "test"):
        columns = [_voc_list(lists / f"{name}_{part}.txt") for name in classes]
        ids = tuple(columns[0])
        if any(tuple(column) != ids for column in columns):
            raise DataError(f"VOC2007: the lists of {part} do not name the same images", do=_AGAIN)
        values = np.array([[_VOC[column[name]] for column in columns] for name in ids], dtype=np.float32)
        parts.append((tuple(f"JPEGImages/{name}.jpg" for name in ids), values))
    return _manifest("VOC07", folder, tuple(classes), parts)


_VOC: Mapping[str, float] = {"1": 1.0, "-1": 0.0, "0": float("nan")}


def _voc_list(path: Path) -> dict[str, str]:
    """The image and the mark of each line."""
    pairs = [line.split() for line in _text(path).splitlines() if line.strip()]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2 or pair[1] not in _VOC:
            raise DataError(f"{path}, line {number}", expected="an image and 1, 0 or -1", got=" ".join(pair)[:80])
    return dict(pairs)


def coco2014(folder: Path) -> Manifest:
    """The images of train2014 (part ``train``) and val2014 (``test``), labelled by the 80 categories.

    Raises:
        MissingPathError: the folder, a file of annotations or an image is not there.
        DataError: a file of annotations is torn, or the counts are not the benchmark's.
    """
    parts: list[tuple[tuple[str, ...], np.ndarray]] = []
    classes: tuple[str, ...] = ()
    for part in ("train2014", "val2014"):
        path = folder / "annotations" / f"instances_{part}.json"
        try:
            found = json.loads(_text(path))
            names, files, values = _coco_labels(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is torn", got=repr(error), do=_AGAIN) from error
        if classes and names != classes:
            raise DataError("COCO 2014: the parts have not the same categories", do=_AGAIN)
        classes = names
        parts.append((tuple(f"{part}/{file}" for file in files), values))
    return _manifest("COCO2014", folder, classes, parts)


def _coco_labels(found: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Categories, files by the images' ids, and which shows which."""
    categories = {each["id"]: each["name"] for each in sorted(found["categories"], key=lambda each: int(each["id"]))}
    images = {each["id"]: each["file_name"] for each in sorted(found["images"], key=lambda each: int(each["id"]))}
    column = {key: number for number, key in enumerate(categories)}
    row = {key: number for number, key in enumerate(images)}
    values = np.zeros((len(images), len(categories)), dtype=np.float32)
    for each in found["annotations"]:
        values[row[each["image_id"]], column[each["category_id"]]] = 1.0
    return tuple(categories.values()), tuple(images.values()), values


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingPathError(f"{path} is not there", do=_AGAIN) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read", got=str(error), do=_AGAIN) from error


def _manifest(
    name: str, folder: Path, classes: tuple[str, ...], parts: list[tuple[tuple[str, ...], np.ndarray]]
) -> Manifest:
    (train, _), (test, _) = parts
    if (got := (len(train), len(test), len(classes))) != SIZES[name]:
        rows = "{} training rows, {} test rows, {} classes"
        raise DataError(f"{name} in {folder}", expected=rows.format(*SIZES[name]), got=rows.format(*got), do=_AGAIN)
    ids = train + test
    inputs = FileImages(folder / path for path in ids)
    if absent := next((path for path in inputs.paths if not Path(path).is_file()), None):
        raise MissingPathError(f"{absent} is not there", do=_AGAIN)
    target = Target("multilabel", classes, np.concatenate([values for _, values in parts]))
    split = ("train",) * len(train) + ("test",) * len(test)
    return Manifest(name, inputs, ids, hash_rows(inputs, ids), target, split)
