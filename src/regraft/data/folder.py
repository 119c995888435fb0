"""Trees of images, or of texts where these are most: ``class/…/file`` flat, or ``train/class/…``, ``val/class/…``,
``test/class/…``."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from regraft.data.cells import Column
from regraft.data.loose import TEXT_SUFFIX, FileTexts
from regraft.data.manifest import BadRow
from regraft.data.piece import JSON_LINES
from regraft.data.pixels import IMAGE_SUFFIXES
from regraft.data.rows import PART_NAMES, Rows
from regraft.data.source import FileImages
from regraft.errors import DataError, MissingPathError
from regraft.wording import printable, some

__all__ = ["find_files", "folder_rows", "part_files"]

_WORD = re.compile(r"[a-z]+")
_SPLIT = {*PART_NAMES, "eval", "evaluation"}
# train, train-1, train-00000-of-00002, and with a hash behind it, as Hugging Face writes tables in pieces
_PIECE = re.compile(r"([a-z]+)(?:-[0-9]+(?:-of-[0-9]+(?:-[0-9a-f]+)?)?)?")
_BEGINS = re.compile(r"([a-z]+)[-.]")
# TrainImages, testset, fold1, batch_2: parts, where two such folders hold the same folders
_LIKE_PART = re.compile(r"(train|test|valid|eval)(set|data|images?|imgs?)?[-_ ]?[0-9]*|(fold|split|batch)[-_ ]?[0-9]+")
_PICTURES = {"images", "image", "imgs", "img", "jpegimages"}


def find_files(root: Path, endings: tuple[str, ...] = IMAGE_SUFFIXES) -> list[tuple[str, ...]]:
    """Paths of all files below ``root`` that end so, as tuples of names, sorted.

    Hidden files and folders and ``__MACOSX`` are passed over; linked folders are followed once.

    Raises:
        DataError: a folder cannot be read.
        MissingPathError: a link that may be to a folder leads to what is not there.
    """
    found: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for folder, children, files in os.walk(root, onerror=_unreadable, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back
            children.clear()
            continue
        seen.add(real)
        children[:] = sorted(filter(_looked_into, children))
        _refuse_lost_links(folder, files)
        inner = Path(folder).relative_to(root).parts
        found += [(*inner, name) for name in files if not name.startswith(".") and name.lower().endswith(endings)]
    return sorted(found)


def _refuse_lost_links(folder: str, files: Sequence[str]) -> None:
    """Links to folders that are not there, as of a disk that is not mounted, by names without an ending: they may be
    classes or parts."""
    for name in sorted(filter(_looked_into, files)):
        path = Path(folder) / name
        if not path.suffix and path.is_symlink() and not path.exists():
            raise MissingPathError(
                f"{path} is a link to {os.readlink(path)}, which is not there", do="mend or remove it"
            )


def _unreadable(error: OSError) -> None:
    raise DataError(
        f"the folder {error.filename} cannot be read", got=error.strerror or type(error).__name__,
        do="allow reading it, or move it away",
    )  # fmt: skip


def part_files(root: Path) -> list[tuple[str, Path]]:
    """Tables in a folder that are named after parts, such as ``train.parquet``, ``train-1.parquet`` and
    ``test-00000-of-00002.parquet``, the latter also with a hash at its end.

    They may lie in ``root`` or in its folder ``data``, as in Hugging Face's repositories. Training comes first. A part
    that is there in several forms is read in the first of parquet, CSV, TSV and JSON lines.

    Raises:
        DataError: others begin like a part's, such as ``train-old.csv``: they may be of the part or not.
    """
    for folder in (root, root / "data"):
        if not folder.is_dir():
            continue
        named: list[tuple[str, Path]] = []
        for suffix in (".parquet", ".csv", ".tsv", *JSON_LINES):
            files, there = list(folder.glob(f"*{suffix}")), {part for part, _ in named}
            found = [(part, path) for path in files if (part := _part_of(_PIECE.fullmatch(path.stem.lower())))]
            named += [(part, path) for part, path in found if part not in there]
            known = {path for _, path in found}
            begun = ((path, _part_of(_BEGINS.match(path.stem.lower()))) for path in files if path not in known)
            _refuse_unclear(folder, sorted(path.name for path, part in begun if part and part not in there))
        if named:
            order = ("train", "validation", "test")
            return sorted(named, key=lambda item: (order.index(item[0]), item[1].name))
    return []


def _part_of(match: re.Match[str] | None) -> str:
    """The part whose name was found, or nothing."""
    return PART_NAMES.get(match[1], "") if match else ""


def _refuse_unclear(folder: Path, names: Sequence[str]) -> None:
    if names:
        verb = "begins" if len(names) == 1 else "begin"
        raise DataError(
            f"{folder}{os.sep}: {some(names)} {verb} like a file named after a part",
            expected="names such as train.csv, train-1.csv or train-00000-of-00002.csv",
            do="rename or move what is no part of the data",
        )


def folder_rows(root: Path, *, labelled: bool, skip_bad: bool, scores_only: bool = False) -> Rows:
    """The rows of a tree of images, or of texts where these are more than twice as many.

    A row's id is its path below ``root``.

    Args:
        root: the folder.
        labelled: False: every file below ``root``, whatever the folders; they name parts where all files lie in
            folders such as train and test.
        skip_bad: leave out files that lie beside the class folders instead of refusing them.
        scores_only: there may be one class alone, and parts without train.

    Raises:
        DataError: no image and no text, or folders that cannot be understood as classes.
    """
    files = find_files(root, (*IMAGE_SUFFIXES, TEXT_SUFFIX))
    of_text = [path[-1].lower().endswith(TEXT_SUFFIX) for path in files]
    text = 3 * sum(of_text) > 2 * len(files)  # beside images there may be a note on each
    what = "text" if text else "image"
    paths = [path for path, is_text in zip(files, of_text) if is_text == text]
    source = FileTexts if text else FileImages
    if not paths:
        images = f"{', '.join(IMAGE_SUFFIXES[:2])} or {IMAGE_SUFFIXES[4]}"
        raise DataError(
            f"{root}{os.sep}: no image and no text in this folder",
            expected=f"files such as {images}, or {TEXT_SUFFIX}" + " in one folder per class" * labelled,
            do="check the path",
        )
    if not labelled:
        return _rows(root, paths, source, _parts_of(paths), [])
    in_parts = _in_parts(root, paths, what, alone=scores_only)
    depth = 1 if in_parts else 0  # where the class stands in a path
    loose = [path for path in paths if len(path) < depth + 2]
    if loose and (not skip_bad or len(loose) == len(paths)):
        several = "s" * (len(loose) > 1)
        raise DataError(
            f"{root}{os.sep}: {len(loose)} {what}{several} outside any class folder (such as {'/'.join(loose[0])})",
            expected="one folder per class",
            do="move them into class folders, or use a CSV with path,label",
        )
    paths = [path for path in paths if len(path) >= depth + 2]
    classes = sorted({path[depth] for path in paths})
    if len(classes) == 2:
        _refuse_masks(root, paths, depth)
    empty = _empty(root, {path[0] for path in paths} if in_parts else set(), classes)
    if len(classes) == 1 and not scores_only:
        inner = sorted({path[depth + 1] for path in paths if len(path) > depth + 2})
        there = f" (the folders in it: {', '.join(inner[:4])})" if len(inner) > 1 else ""
        raise DataError(
            f"{root}{os.sep}: a single class, {classes[0]!r}{there}",
            expected="at least two class folders",
            got=f"no {what} in {', '.join(empty[:5])}" if empty else "",
            do=f"use {root / classes[0]}{os.sep}" if there and not in_parts else f"add {what}s of another class",
        )
    split = [PART_NAMES[path[0].lower()] if in_parts else "train" for path in paths]
    names = _class_names(root, classes)
    rows = _rows(root, paths, source, split, [names[path[depth]] for path in paths])
    mend = "move it into a class folder"
    skipped = [BadRow(printable(str(root.joinpath(*path))), "it lies outside any class folder", mend) for path in loose]
    return replace(rows, empty=[printable(name) for name in empty], skipped=skipped)


def _class_names(root: Path, folders: Sequence[str]) -> dict[str, str]:
    """What the class of each folder is called: printable, and without white space around it, as labels in tables.

    Raises:
        DataError: nothing is left of a name, or two become one.
    """
    names = {folder: printable(folder).strip() for folder in folders}
    times = Counter(names.values())
    if bad := [folder for folder, name in names.items() if not name or times[name] > 1]:
        raise DataError(
            f"{root}{os.sep}: white space is no part of a class's name",
            expected="names of folders that differ without it",
            got=some([repr(folder) for folder in bad]),
            do="rename them, or put the files of one class into one folder",
        )
    return names


def _empty(root: Path, parts: set[str], classes: Sequence[str]) -> list[str]:
    """Folders without a file where a class or a part is expected, named from ``root`` on; no class that has some in
    another part."""
    if not parts:
        return [f"{name}/" for name in _folders(root) if name not in classes]
    named = [f"{name}/" for name in _folders(root) if name not in parts and name.lower() in PART_NAMES]
    inner = [f"{part}/{name}/" for part in sorted(parts) for name in _folders(root / part) if name not in classes]
    return named + inner


def _folders(root: Path) -> list[str]:
    """The names of the folders that files are looked for in."""
    return sorted(path.name for path in root.iterdir() if _looked_into(path.name) and path.is_dir())


def _looked_into(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _rows(
    root: Path,
    paths: Sequence[tuple[str, ...]],
    source: type[FileImages] | type[FileTexts],
    split: Sequence[str],
    labels: Sequence[str],
) -> Rows:
    # names are given so that classes called "0" and "007" stay texts
    columns = [Column("folder", labels, tuple(sorted(set(labels))))] if labels else []
    return Rows(source(root.joinpath(*path) for path in paths), ["/".join(path) for path in paths], columns, split)


def _in_parts(root: Path, paths: Sequence[tuple[str, ...]], what: str, *, alone: bool = False) -> bool:
    """Whether the first folders are parts (train, val, test …) and not classes; ``alone``: also without train, where
    there are folders in all of them."""
    heads = {path[0] for path in paths if len(path) > 1}
    parts = {head for head in heads if head.lower() in PART_NAMES}
    if alone and parts and parts == heads and all(len(path) > 2 for path in paths):
        return True
    train = any(PART_NAMES[head.lower()] == "train" for head in parts)
    _refuse_parts_in_other_words(root, paths, heads - parts if train else heads)
    if not train:
        _refuse_parts_in_classes(root, paths)
        return False
    if parts == heads:
        return True
    deep = all(len(path) > 2 for path in paths if path[0] in parts)
    if deep:  # train/ with class folders inside, but something else beside it
        others = ", ".join(sorted(heads - parts))
        raise DataError(
            f"{root}{os.sep}: beside {', '.join(sorted(parts))} there are {what}s in {others}",
            expected="only train, validation and test folders, or only class folders",
            do="move the other folders away",
        )
    return False  # "train" is one class among others


def _refuse_parts_in_other_words(root: Path, paths: Sequence[tuple[str, ...]], heads: set[str]) -> None:
    """Refuse folders such as ``seg_train`` and ``seg_test``, ``fold1`` and ``fold2``, or ``val`` and ``test`` without
    ``train``, that hold the same folders: parts, not classes.

    Raises:
        DataError: there are such.
    """
    inside: dict[str, set[str]] = {}
    for path in paths:
        name = path[0].lower()
        if len(path) > 2 and path[0] in heads and (_SPLIT & set(_WORD.findall(name)) or _LIKE_PART.fullmatch(name)):
            inside.setdefault(path[0], set()).add(path[1])
    for first, second in combinations(sorted(inside), 2):
        if len(inside[first] & inside[second]) > 1:
            shared = ", ".join(sorted(inside[first] & inside[second])[:3])
            named = first.lower() in PART_NAMES and second.lower() in PART_NAMES
            do = "rename the one to learn from to train" if named else "rename them (to test or train or validation)"
            if first[-1].isdigit() and second[-1].isdigit():
                do = "put all into one folder a class, or list them in a table whose column of folds --group names"
            raise DataError(
                f"{root}{os.sep}: {first} and {second} seem to be parts, not classes: both hold {shared}",
                expected="folders train and test with the classes in them",
                do=do,
            )


def _refuse_masks(root: Path, paths: Sequence[tuple[str, ...]], depth: int) -> None:
    """Refuse, of two folders, ``images`` beside one with files of the same names, such as ``labels``: masks, no class.

    Raises:
        DataError: there are such.
    """
    names: dict[str, set[tuple[str, ...]]] = {}
    for path in paths:
        inner = (*path[:depth], *path[depth + 1 : -1])
        names.setdefault(path[depth], set()).add((*inner, Path(path[-1]).stem))
    others = [name for name in names if name.lower() not in _PICTURES]
    if len(others) == 1 and len({frozenset(each) for each in names.values()}) == 1:
        raise DataError(
            f"{root}{os.sep}: {' and '.join(sorted(names))} hold files of the same names, as pictures and masks do",
            expected="masks in a folder masks beside images, or one folder per class",
            do=f"rename {others[0]} to masks and the other to images; if they are classes, rename the other too",
        )


def _refuse_parts_in_classes(root: Path, paths: Sequence[tuple[str, ...]]) -> None:
    """Refuse ``CLASS/train`` and ``CLASS/test``: as folders inside the classes they would all be learnt from.

    Raises:
        DataError: two classes or more hold a folder to learn from and another part, and nothing beside them.
    """
    inside: dict[str, set[str]] = {}
    for path in paths:
        if len(path) > 1:
            inside.setdefault(path[0], set()).add(PART_NAMES.get(path[1].lower(), "") if len(path) > 2 else "")
    divided = [
        name for name, parts in sorted(inside.items()) if "train" in parts and len(parts) > 1 and "" not in parts
    ]
    if len(divided) > 1:
        raise DataError(
            f"{root}{os.sep}: there are folders of parts, such as train and test, inside {some(divided, 3)}",
            expected="the classes inside folders train and test",
            do=f"turn them over, as in {os.path.join('train', divided[0])}",
        )


def _parts_of(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Parts of files without labels: by their first folders if all of these are parts and train is among them."""
    named = [PART_NAMES.get(path[0].lower(), "") if len(path) > 1 else "" for path in paths]
    return named if all(named) and "train" in named else ["train"] * len(paths)
