"""VTAB-1k: nineteen tasks of 1,000 training images, from folders of its usual layout or from Hugging Face.

A folder holds one folder for each task (``cifar``, ``caltech101`` …), and that one four lists beside its images:

    train800.txt  val200.txt  train800val200.txt  test.txt

Each line is ``path label``: the image's path from the task's folder, and a class from 0 to C − 1. Sizes, classes and
the parts' separation are checked against the benchmark (Zhai et al., A Large-scale Study of Representation Learning
with the Visual Task Adaptation Benchmark, 2019, Table 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regraft.data import hub
from regraft.data.hashing import hash_rows
from regraft.data.labels import read_target
from regraft.data.manifest import Manifest, Target, joined
from regraft.data.rows import Wish
from regraft.data.source import FileImages
from regraft.data.table import read_pieces
from regraft.errors import DataError, MissingPathError

__all__ = ["TRAIN", "VALIDATION", "VTAB", "VtabTask", "vtab"]

TRAIN, VALIDATION = 800, 200
_LISTS: Mapping[str, tuple[str, int]] = {
    "train": ("train800.txt", TRAIN),
    "validation": ("val200.txt", VALIDATION),
    "both": ("train800val200.txt", TRAIN + VALIDATION),
    "test": ("test.txt", 0),
}


@dataclass(frozen=True)
class VtabTask:
    """One task: its group in the paper, its classes, and the rows of its official test part."""

    group: str
    classes: int
    test: int


VTAB: Mapping[str, VtabTask] = {
    "caltech101": VtabTask("natural", 102, 6_084),
    "cifar": VtabTask("natural", 100, 10_000),
    "dtd": VtabTask("natural", 47, 1_880),
    "oxford_flowers102": VtabTask("natural", 102, 6_149),
    "oxford_iiit_pet": VtabTask("natural", 37, 3_669),
    "sun397": VtabTask("natural", 397, 21_750),
    "svhn": VtabTask("natural", 10, 26_032),
    "patch_camelyon": VtabTask("specialized", 2, 32_768),
    "eurosat": VtabTask("specialized", 10, 5_400),
    "resisc45": VtabTask("specialized", 45, 6_300),
    "diabetic_retinopathy": VtabTask("specialized", 5, 42_670),
    "clevr_count": VtabTask("structured", 8, 15_000),
    "clevr_dist": VtabTask("structured", 6, 15_000),
    "dmlab": VtabTask("structured", 6, 22_735),
    "dsprites_loc": VtabTask("structured", 16, 73_728),
    "dsprites_ori": VtabTask("structured", 16, 73_728),
    "kitti": VtabTask("structured", 4, 711),
    "smallnorb_azi": VtabTask("structured", 18, 12_150),
    "smallnorb_ele": VtabTask("structured", 9, 12_150),
}
"""The nineteen tasks by the names of their folders, in the groups of the paper."""


def vtab(name: str, source: str | Path, *, validation: bool = False, tasks: Mapping[str, VtabTask] = VTAB) -> Manifest:
    """The rows of a VTAB-1k task.

    Args:
        name: a key of :data:`VTAB`.
        source: the folder of all tasks; or, with ``{name}`` in it, the Hugging Face id of each task's data set
            (``org/vtab_{name}``) with parts train (1,000 rows, or 800 beside validation's 200) and test. That needs
            the package ``datasets``.
        validation: keep the 200 rows as a part of their own; else ``train`` has all 1,000.
        tasks: their sizes, for tests.

    Returns:
        parts ``train``, ``validation`` if asked for, and ``test``; classes ``0`` … ``C − 1``, or the data set's names.

    Raises:
        DataError: an unknown task; a list that is torn; counts or classes that are not the benchmark's; a file that is
            in training and in test.
        MissingPathError: the folder, a list or an image is not there.
        MissingDependencyError: a Hugging Face id without the package ``datasets``.
    """
    if name not in tasks:
        raise DataError(f"VTAB has no task {name!r}", expected=", ".join(tasks))
    shape = tasks[name]
    if "{name}" in str(source):
        manifest = _published(name, str(source).format(name=name), shape)
    else:
        manifest = _from_lists(name, Path(source), shape)
    _check_sizes(name, manifest, shape)
    if validation:
        if not len(manifest.rows_of("validation")):
            raise DataError(f"VTAB {name}: the data set has no validation part", do="leave validation=True out")
        return manifest
    fit = manifest.take(np.concatenate([manifest.rows_of("train"), manifest.rows_of("validation")]))
    return joined({"train": fit, "test": manifest.part("test")}, f"vtab {name}")


def _published(name: str, repository: str, shape: VtabTask) -> Manifest:
    """Not by :func:`regraft.data.scan`, which refuses test rows of classes that 1,000 training rows may lack."""
    rows = read_pieces(hub.pieces(hub.fetch(repository), repository), Wish())
    ids = tuple(rows.ids)
    target = read_target(rows.columns, "binary" if shape.classes == 2 else "multiclass", ids)
    return Manifest(f"vtab {name}", rows.inputs, ids, hash_rows(rows.inputs, ids), target, tuple(rows.split))


def _from_lists(name: str, root: Path, shape: VtabTask) -> Manifest:
    folder = root / name
    if not folder.is_dir():
        raise MissingPathError(
            f"VTAB folder absent: {folder}",
            expected=f"a folder {name} with {', '.join(file for file, _ in _LISTS.values())}",
            do="unpack VTAB-1k there, or name its place",
        )
    lists = {part: _read(folder / file, name, shape.classes) for part, (file, _) in _LISTS.items()}
    for part, (file, rows) in _LISTS.items():
        if rows and len(lists[part]) != rows:
            raise DataError(f"VTAB {name}: {file} has {len(lists[part])} rows", expected=str(rows), do=_AGAIN)
    if sorted(lists["both"]) != sorted(lists["train"] + lists["validation"]):
        raise DataError(f"VTAB {name}: train800val200.txt is not train800.txt and val200.txt together", do=_AGAIN)
    seen = {path for path, _ in lists["both"]}
    if shared := [path for path, _ in lists["test"] if path in seen]:
        raise DataError(f"VTAB {name}: {shared[0]} is in training and in test", expected="no shared file", do=_AGAIN)
    parts = {part: _rows(name, folder, lists[part], shape.classes) for part in ("train", "validation", "test")}
    return joined(parts, f"vtab {name}")


_AGAIN = "unpack VTAB-1k anew"


def _read(path: Path, name: str, classes: int) -> list[tuple[str, int]]:
    """The lines of a list: image and class."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise MissingPathError(f"VTAB {name}: {path} is not there", do=_AGAIN) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"VTAB {name}: {path} cannot be read", got=str(error), do=_AGAIN) from error
    found: list[tuple[str, int]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        image, _, label = line.strip().rpartition(" ")
        if not image or not label.isdecimal() or int(label) >= classes:
            raise DataError(
                f"VTAB {name}: line {number} of {path.name} is {line.strip()[:80]!r}",
                expected=f"an image and a class from 0 to {classes - 1}",
                do=_AGAIN,
            )
        found.append((image, int(label)))
    repeated = len(found) - len({image for image, _ in found})
    if repeated or not found:
        what = f"names {repeated} images twice" if repeated else "is empty"
        raise DataError(f"VTAB {name}: {path.name} {what}", expected="every image once", do=_AGAIN)
    return found


def _rows(name: str, folder: Path, rows: list[tuple[str, int]], classes: int) -> Manifest:
    inputs = FileImages(folder / image for image, _ in rows)
    absent = next((path for path in inputs.paths if not Path(path).is_file()), None)
    if absent is not None:
        raise MissingPathError(f"VTAB {name}: {absent} is not there", do=_AGAIN)
    ids = tuple(image for image, _ in rows)
    codes = np.array([label for _, label in rows], dtype=np.int64)
    target = Target("binary" if classes == 2 else "multiclass", tuple(str(code) for code in range(classes)), codes)
    return Manifest(f"vtab {name}", inputs, ids, hash_rows(inputs, ids), target, ("train",) * len(rows))


def _check_sizes(name: str, manifest: Manifest, shape: VtabTask) -> None:
    """Counts and classes, whatever the rows come from."""
    counts = {part: len(manifest.rows_of(part)) for part in ("train", "validation", "test")}
    if (counts["train"], counts["validation"]) not in ((TRAIN, VALIDATION), (TRAIN + VALIDATION, 0)):
        got = f"{counts['train']} and {counts['validation']}"
        raise DataError(f"VTAB {name}: the training and validation rows", expected="800 and 200, or 1000", got=got)
    if counts["test"] != shape.test:
        raise DataError(f"VTAB {name}: the test rows", expected=f"{shape.test}", got=f"{counts['test']}")
    classes = 0 if manifest.target is None else manifest.target.outputs
    if classes != shape.classes:
        raise DataError(f"VTAB {name}: the classes", expected=f"{shape.classes}", got=f"{classes}")
