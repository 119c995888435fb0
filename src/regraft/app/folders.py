"""Run folders: named after what was done, refused before anything is computed, and written whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regraft.errors import DataError

if TYPE_CHECKING:
    from regraft.record import Record

__all__ = ["check_folder", "slug", "whole"]


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A staging folder to fill; it becomes ``folder`` at the end, or is gone after an error.

    It lies inside ``folder`` where that exists, for ``folder`` may be a disk of its own, onto which nothing can
    be renamed from beside it; else beside it. Files of an earlier run are replaced one by one; others that lie in
    ``folder`` stay. A reader that comes in between is told by the artifact's checksums.
    """
    inside = folder.is_dir()
    staging = (folder if inside else folder.absolute().parent) / f".{folder.name}.{uuid.uuid4().hex[:12]}.part"
    try:
        staging.mkdir(parents=True)
        yield staging
        if not inside:
            staging.rename(folder)
            return
        for item in sorted(staging.iterdir()):
            if (there := folder / item.name).is_dir():
                shutil.rmtree(there)
            os.replace(item, there)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written before anything is computed for it."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise DataError(
            f"cannot write into {folder}", got=f"{there} is a file", do="choose another place with --output"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise DataError(
            f"cannot write into {folder}", got=f"no right to write in {there}", do="choose another place with --output"
        )


def slug(record: Record) -> str:
    """``DATA-MODEL-METHOD``, or with the verb where there is no method."""
    last = record.method or record.verb
    words = [Path(record.data["name"]).name, record.model["name"].rstrip("/").split("/")[-1], last]
    # Letters and digits of every script stay, composed: two data sets must not share a folder for want of Latin names.
    plain = [unicodedata.normalize("NFC", word) for word in words]
    return "-".join(re.sub(r"[^\w.]+", "-", word).strip("-.") or "data" for word in plain)
