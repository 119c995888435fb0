"""Run folders: named after what was done, and refused before anything is computed."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regraft.errors import ArtifactError, DataError
from regraft.record import Record
from regraft.record.folder import (
    BACKBONE,
    RUN_FILES,
    check_config,
    check_folder,
    check_other_file,
    record_in,
    refuse,
    unlike,
)
from regraft.wording import some

if TYPE_CHECKING:
    from regraft.graft.preparation import Prepared

__all__ = [
    "Place",
    "check_artifact",
    "check_data",
    "check_predictions",
    "check_run",
    "check_verb",
    "slug",
]


def check_artifact(folder: Path) -> None:
    """Refuse, as something to predict with, what a verb left that makes no model, and a folder without one."""
    there = record_in(folder)
    if there is not None and there.verb != "adapt":
        raise ArtifactError(
            f"{folder} holds nothing to predict with",
            expected="a run of adapt",
            got=f"what {there.verb} left of {there.data.get('name')}",
            do="name the run folder of an adapted model, or make one with `regraft adapt`",
        )
    check_config(folder)


def check_data(data: str) -> None:
    """Refuse a mistyped path before what takes seconds to load."""
    from regraft.data import check_there

    check_there(data)


def check_predictions(path: Path, inputs: Sequence[str]) -> None:
    """Refuse a file for predictions that a run folder holds already (its scored rows, say, or its record), and one of
    the inputs themselves: a table, or one of a folder's tables."""
    if path.exists() and path.resolve() in _tables(inputs):
        raise DataError(
            f"{path} is one of the inputs",
            expected="a file for new predictions",
            do="choose another name with --output",
        )
    check_other_file(path)
    check_folder(path.parent)


def _tables(inputs: Sequence[str]) -> set[Path]:
    """The files among the inputs, and those that name the rows of folders among them."""
    from regraft.data.folder import part_files

    files = [Path(name) for name in inputs if os.path.isfile(name)]  # a text may be too long for a name
    folders = [Path(name) for name in inputs if os.path.isdir(name)]
    return {path.resolve() for path in (*files, *(path for folder in folders for _, path in part_files(folder)))}


def _check_files(folder: Path, unfinished: Collection[str] = ()) -> None:
    """Refuse a folder that holds files of something else: data in which a run would be read as data, say.

    ``unfinished`` are names that a run which was stopped leaves there.
    """
    if not folder.is_dir() or record_in(folder) is not None:
        return
    mine = {"lost+found", *unfinished}  # the first is that of a disk of its own
    if (folder / "record.json").is_file():  # one that cannot be read: a torn run's, if only a run's files lie there
        mine |= {*RUN_FILES, BACKBONE}
    names = sorted(item.name for item in folder.iterdir() if item.name not in mine)
    if others := [name for name in names if not name.startswith(".")]:
        raise DataError(
            f"{folder} holds other files",
            expected="a new or an empty folder, or one with a run",
            got=some(others, 3),
            do="choose another place with --output",
        )


def check_run(output: Path | None, ready: Prepared) -> None:
    """Refuse, before the pass, a folder with a run on other data or for other labels, of another backbone or by another
    method, which would be lost: see :func:`regraft.record.folder.unlike`."""
    from regraft.graft.recording import data_of, short_name
    from regraft.graft.seen import marks

    folder = output or Path("runs") / _slug(ready.manifest.name, short_name(ready.network), ready.recipe.name)
    check_folder(folder)
    _check_files(folder)
    there = record_in(folder)
    if there is None:
        return
    target = ready.manifest.target
    found = unlike(
        there,
        data={**data_of(ready), "seen": marks(ready.manifest)},
        classes=None if target is None else list(target.classes),
        model={"path": ready.network.name, "fingerprint": ready.network.fingerprint},
        drawn=ready.origin is not None,
        method=ready.recipe.name,
    )
    refuse(folder, there, found, do="choose another place with --output, or delete this one")


class Place:
    """Where a run goes: checked before the pass, and when it is saved, for another command may have written there
    meanwhile."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._ready: Prepared | None = None

    def check(self, ready: Prepared) -> None:
        """:func:`check_run` of what is about to be run."""
        self._ready = ready
        check_run(self._output, ready)

    def folder(self, record: Record) -> Path:
        """The folder of what has been run, checked again."""
        if self._ready is not None:
            check_run(self._output, self._ready)
        return self._output or Path("runs") / slug(record)


def check_verb(output: Path | None, verb: str, unfinished: Collection[str] = ()) -> None:
    """Refuse a named folder with what another verb left, such as a run: its record and report would be lost.

    ``unfinished`` are names of files that this verb itself leaves where it is stopped.
    """
    if output is None:
        return
    _check_files(output, unfinished)
    there = record_in(output)
    if there is not None and there.verb != verb:
        raise DataError(
            f"{output} holds another run",
            expected=f"none, or what {verb} left",
            got=f"what {there.verb} left of {there.data.get('name')}",
            do="choose another place with --output",
        )


def slug(record: Record) -> str:
    """``DATA-MODEL-METHOD``, or with the verb where there is no method."""
    return _slug(record.data["name"], record.model["name"], record.method or record.verb)


def _slug(data: str, model: str, last: str) -> str:
    words = [Path(data).name, model.rstrip("/").split("/")[-1], last]
    # Letters and digits of every script stay, composed: two data sets must not share a folder for want of Latin names.
    plain = [unicodedata.normalize("NFC", word) for word in words]
    return "-".join(re.sub(r"[^\w.]+", "-", word).strip("-.") or "data" for word in plain)
