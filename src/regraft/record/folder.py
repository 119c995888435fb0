"""What lies in a run folder, what must not be replaced there, and how it is written: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regraft.errors import ArtifactError, DataError, MissingPathError
from regraft.record.marks import unpacked
from regraft.record.record import Record

__all__ = [
    "BACKBONE",
    "CONFIG",
    "RUN_FILES",
    "check_config",
    "check_folder",
    "check_other_file",
    "check_replaced",
    "check_same",
    "record_in",
    "refuse",
    "unlike",
    "whole",
]

CONFIG, BACKBONE, RECORD = "config.json", "backbone", "record.json"
RUN_FILES = frozenset(("README.md", CONFIG, "model.safetensors", "predictions.csv", RECORD, "report.html"))
_STALE_SECONDS = 3600


def check_config(folder: Path) -> None:
    """Refuse a folder that no model was saved in.

    Raises:
        MissingPathError: it holds no ``config.json``.
    """
    if not (folder / CONFIG).is_file():
        raise MissingPathError(
            f"{folder} holds no artifact", expected=f"a {CONFIG}", do="name a run folder of `regraft adapt`"
        )


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written before anything is computed for it.

    Raises:
        DataError: it cannot.
    """
    if folder.is_symlink() and not folder.exists():
        raise _cannot_write(folder, "a link to nothing")
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise _cannot_write(folder, f"{there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _cannot_write(folder, f"no right to write in {there}")
    try:  # some places let nobody write whatever their rights say, and names may be too long
        trial = _staging(there, folder.name)
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise _cannot_write(folder, error.strerror or str(error)) from error


def check_other_file(path: Path) -> None:
    """Refuse a file that a run folder consists of, its record or its scored rows, say, as one to write into. Capitals
    make no other file on some disks.

    Raises:
        DataError: it is one.
    """
    folder = path.parent
    if path.name.lower() not in {name.lower() for name in RUN_FILES}:
        return
    if (folder / CONFIG).is_file() or record_in(folder) is not None:  # a diagnosis has no artifact
        raise DataError(
            f"{path} is a file of the run in {folder}",
            expected="a file of no run",
            do="choose another name",
        )


def record_in(folder: Path) -> Record | None:
    """The record of what was done there, if there is one that can be read."""
    try:
        return Record.load(folder / RECORD)
    except (MissingPathError, ArtifactError):
        return None


def check_replaced(folder: Path, record: Record, also: Sequence[str] = ()) -> None:
    """Refuse a folder in which a run's files would replace those of another run, or files that are no run's.

    A run on data of one name with the same classes and label columns, in the same place or with rows in common, of the
    same backbone and by the same method is made again: weights that are drawn from the seed make no other backbone.
    ``also`` are names beside :data:`RUN_FILES` that are written.

    Raises:
        DataError: what lies there is something else.
    """
    there = record_in(folder)
    if there is None:
        if taken := sorted(name for name in (*RUN_FILES, *also) if (folder / name).exists()):
            raise DataError(
                f"{folder} holds files that the run's would replace",
                expected="a folder without them, or one with a run",
                got=", ".join(taken),
                do="choose another folder, or pass overwrite=True",
            )
        return
    check_same(folder, there, record, do="choose another folder, or pass overwrite=True")


def check_same(folder: Path, there: Record, record: Record, do: str) -> None:
    """Refuse to replace what lies in a folder by what is of another run.

    Raises:
        DataError: on other data or classes, of another backbone or by another method.
    """
    found = unlike(
        there,
        data=record.data,
        classes=record.task.get("classes"),
        model=record.model,
        drawn=any(stage.get("stage") == "Reinitialise" for stage in record.task.get("recipe", ())),
        method=record.method,
    )
    refuse(folder, there, found, do)


def unlike(
    there: Record, *, data: Mapping[str, Any], classes: Any, model: Mapping[str, Any], drawn: bool, method: str
) -> list[str]:
    """In what another run differs from one on these data with these classes, of the backbone with this fingerprint, or
    this path where its weights are ``drawn``, by this method: in words.

    ``data`` are a record's: ``name``, ``place`` (where they lie), ``labels`` (the label columns) and ``seen`` (marks of
    the rows). More or fewer rows are no other data, for labels are added and runs made again, nor are others in the
    same place, of another limit or converted; data of one name in another place that share no row are.
    """
    known = "path" if drawn else "fingerprint"
    same = {
        "other data": (there.data.get("name"), there.task.get("classes")) == (data.get("name"), classes)
        and (there.data.get("place", "") == data.get("place", "") or _share_rows(there.data, data)),
        "another label": there.data.get("labels", data.get("labels")) == data.get("labels"),
        "another backbone": there.model.get(known) == model.get(known),
        "another method": there.method == method,
    }
    return [what for what, kept in same.items() if not kept]


def _share_rows(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether any row is in both; so it is where one does not say which it has."""
    rows = [[unpacked(value) for value in dict(data.get("seen") or {}).values()] for data in (first, second)]
    one, other = (frozenset[bytes]().union(*each) for each in rows)
    return not one or not other or bool(one & other)


def refuse(folder: Path, there: Record, found: Sequence[str], do: str) -> None:
    """Refuse to replace what lies there, if it differs in anything.

    Raises:
        DataError: it does.
    """
    if found:
        raise DataError(
            f"{folder} holds another run",
            expected="none, or one on the same data and labels, of the same backbone and by the same method",
            got=f"{there.method or there.verb} on {there.data.get('name')}: {', '.join(found)}",
            do=do,
        )


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A staging folder to fill; it becomes ``folder`` at the end, or is gone after an error.

    It lies inside ``folder`` where that exists, for ``folder`` may be a disk of its own, onto which nothing can
    be renamed from beside it; else beside it. Files of an earlier run that are written again go before one is put in
    their place, so that where this is cut none is read beside one of another run: without the artifact's nothing
    is predicted, without the rows' nothing compared. Others that lie in ``folder`` stay. What killed writers left more
    than an hour ago is removed.

    Raises:
        DataError: the folder cannot be written.
    """
    inside = folder.is_dir()
    place = folder if inside else folder.absolute().parent
    filled = _staging(place, folder.name)
    try:
        try:
            filled.mkdir(parents=True)
        except OSError as error:
            raise _cannot_write(folder, error.strerror or str(error)) from error
        yield filled
        if not inside:
            try:
                filled.rename(folder)
                return
            except OSError:
                if not folder.is_dir():  # else the same command beside this one was faster
                    raise
        _replace(folder, filled)
    finally:
        shutil.rmtree(filled, ignore_errors=True)
        _clear({folder, folder.absolute().parent}, folder.name)


def _staging(place: Path, name: str) -> Path:
    """Where what becomes the folder of this name is filled first."""
    return place / f".{name}.{uuid.uuid4().hex[:12]}.part"


def _replace(folder: Path, filled: Path) -> None:
    """Put what lies in ``filled`` into ``folder``: the record first, by which it is known as a run's."""
    names = sorted((item.name for item in filled.iterdir()), key=lambda name: name != RECORD)
    if CONFIG in names and BACKBONE not in names:
        shutil.rmtree(folder / BACKBONE, ignore_errors=True)  # an earlier run's copy, which this artifact does not read
    for name in names:
        if (there := folder / name).is_dir():
            shutil.rmtree(there)
        elif name != RECORD:
            there.unlink(missing_ok=True)
    for name in names:
        os.replace(filled / name, folder / name)


def _clear(places: Iterable[Path], name: str) -> None:
    """Remove staging folders of ``name`` that killed writers left; those of live ones are young."""
    own = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{12}}\.part")
    for place in places:
        with contextlib.suppress(OSError):
            for left in place.iterdir():
                if own.fullmatch(left.name) and time.time() - left.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)


def _cannot_write(folder: Path, why: str) -> DataError:
    """The error of a folder that cannot be written, and why."""
    return DataError(f"cannot write into {folder}", got=why, do="choose another place with --output")
