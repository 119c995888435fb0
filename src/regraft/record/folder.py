"""What lies in a run folder, and what must not be replaced there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regraft.errors import ArtifactError, DataError, MissingPathError
from regraft.record.record import Record

__all__ = [
    "BACKBONE",
    "CONFIG",
    "RUN_FILES",
    "check_config",
    "check_other_file",
    "check_replaced",
    "record_in",
    "refuse",
    "unlike",
]

CONFIG, BACKBONE = "config.json", "backbone"
RUN_FILES = frozenset(("README.md", CONFIG, "model.safetensors", "predictions.csv", "record.json", "report.html"))


def check_config(folder: Path) -> None:
    """Refuse a folder that no model was saved in.

    Raises:
        MissingPathError: it holds no ``config.json``.
    """
    if not (folder / CONFIG).is_file():
        raise MissingPathError(
            f"{folder} holds no artifact", expected=f"a {CONFIG}", do="name a run folder of `regraft adapt`"
        )


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
            expected="a file for new predictions",
            do="choose another name",
        )


def record_in(folder: Path) -> Record | None:
    """The record of what was done there, if there is one that can be read."""
    try:
        return Record.load(folder / "record.json")
    except (MissingPathError, ArtifactError):
        return None


def check_replaced(folder: Path, record: Record, also: Sequence[str] = ()) -> None:
    """Refuse a folder in which a run's files would replace those of another run, or files that are no run's.

    A run on data of one name with the same classes, of the same backbone and by the same method is made again. ``also``
    are names beside :data:`RUN_FILES` that are written.

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
    found = unlike(
        there,
        name=record.data.get("name"),
        classes=record.task.get("classes"),
        fingerprint=record.model.get("fingerprint"),
        method=record.method,
    )
    refuse(folder, there, found, do="choose another folder, or pass overwrite=True")


def unlike(there: Record, *, name: Any, classes: Any, fingerprint: Any, method: str) -> list[str]:
    """In what another run differs from one on data of this name with these classes, of the backbone with this
    fingerprint, by this method: in words."""
    same = {
        "other data": (there.data.get("name"), there.task.get("classes")) == (name, classes),
        "another backbone": there.model.get("fingerprint") == fingerprint,
        "another method": there.method == method,
    }
    return [what for what, kept in same.items() if not kept]


def refuse(folder: Path, there: Record, found: Sequence[str], do: str) -> None:
    """Refuse to replace what lies there, if it differs in anything.

    Raises:
        DataError: it does.
    """
    if found:
        raise DataError(
            f"{folder} holds another run",
            expected="none, or one on the same data and classes, of the same backbone and by the same method",
            got=f"{there.method or there.verb} on {there.data.get('name')}: {', '.join(found)}",
            do=do,
        )
