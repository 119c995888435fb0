"""What lies in a run folder, and what must not be replaced there."""

from __future__ import annotations

from pathlib import Path

from regraft.errors import ArtifactError, DataError, MissingPathError
from regraft.record.record import Record

__all__ = ["RUN_FILES", "check_replaced", "record_in"]

RUN_FILES = frozenset(
    ("README.md", "config.json", "model.safetensors", "predictions.csv", "record.json", "report.html")
)


def record_in(folder: Path) -> Record | None:
    """The record of what was done there, if there is one that can be read."""
    try:
        return Record.load(folder / "record.json")
    except (MissingPathError, ArtifactError):
        return None


def check_replaced(folder: Path, record: Record) -> None:
    """Refuse a folder in which a run's files would replace those of another run, or files that are no run's.

    A run on data of one name with the same classes, of the same backbone and by the same method is made again.

    Raises:
        DataError: what lies there is something else.
    """
    there = record_in(folder)
    if there is None:
        if taken := sorted(name for name in RUN_FILES if (folder / name).exists()):
            raise DataError(
                f"{folder} holds files that the run's would replace",
                expected="a folder without them, or one with a run",
                got=", ".join(taken),
                do="choose another folder, or pass overwrite=True",
            )
        return
    same = {
        "another verb": there.verb == record.verb,
        "other data": _task(there) == _task(record),
        "another backbone": any(there.model.get(key) == record.model.get(key) for key in ("fingerprint", "path")),
        "another method": there.method == record.method,
    }
    if other := [what for what, kept in same.items() if not kept]:
        raise DataError(
            f"{folder} holds another run",
            expected="none, or one on the same data and classes, of the same backbone and by the same method",
            got=f"{there.method or there.verb} on {there.data.get('name')}: {', '.join(other)}",
            do="choose another folder, or pass overwrite=True",
        )


def _task(record: Record) -> tuple[object, object]:
    return record.data.get("name"), record.task.get("classes")
