"""Hugging Face ``datasets``: objects in memory and ``org/name`` ids. The only file that needs that package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from regraft.data.piece import Piece
from regraft.data.rows import PART_NAMES
from regraft.errors import DataError, MissingDependencyError, MissingPathError
from regraft.wording import first_line

__all__ = ["fetch", "is_dataset", "is_saved", "looks_like_id", "pieces", "saved"]

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")
_SEVERAL = re.compile(r"[Cc]onfig name is missing.*?\[(.*?)\]", re.DOTALL)


def looks_like_id(text: str) -> bool:
    """Whether a string has the form ``org/name`` or ``org/name:configuration``."""
    return bool(_ID.fullmatch(text))


def is_dataset(data: Any) -> bool:
    """Whether an object comes from the package ``datasets``, which is not imported to find out."""
    return any(kind.__module__.split(".")[0] == "datasets" for kind in type(data).__mro__)


def fetch(name: str) -> Any:
    """The data set ``org/name`` from Hugging Face (or its cache), all parts.

    One of several configurations, the tasks of a benchmark say, is ``org/name:configuration``.

    Raises:
        DataError: it has several configurations and none is named.
        MissingDependencyError: the package ``datasets`` is not installed.
        MissingPathError: no such data set, or no connection.
    """
    datasets = _package(f"{name}: no such path here, and", "check the path, or ")
    repository, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(repository, *([configuration] if configuration else []))
    except Exception as error:  # the package raises its own kinds, requests' and OSError
        if several := _SEVERAL.search(str(error)):
            names = several[1].replace("'", "")
            first = names.split(",")[0].strip()
            raise DataError(
                f"{name}: a data set of several configurations", expected=f"one of {names}",
                do=f"name one, such as {name}:{first}",
            ) from error  # fmt: skip
        raise MissingPathError(
            f"{name}: no such path here, and no data set of that name could be fetched from Hugging Face "
            f"({first_line(error)})",
            do="check the path or the name, and the connection",
        ) from error


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``."""
    one = all((folder / name).is_file() for name in ("state.json", "dataset_info.json"))
    return one or (folder / "dataset_dict.json").is_file()


def saved(folder: Path) -> Any:
    """What ``save_to_disk`` wrote.

    Raises:
        MissingDependencyError: the package ``datasets`` is not installed.
        DataError: it cannot be read.
    """
    datasets = _package(f"{folder} was written by save_to_disk, and")
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:  # as above
        raise DataError(f"{folder}: no data set that can be read ({error})", do="save it again") from error


def _package(why: str, before: str = "") -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            f"{why} Hugging Face data sets need the package 'datasets'", do=f"{before}pip install 'regraft[data]'"
        ) from error
    module: ModuleType = datasets
    return module


def pieces(data: Any, name: str) -> list[Piece]:
    """The tables of a ``Dataset`` or ``DatasetDict``; images stay encoded.

    Raises:
        DataError: a streaming data set, one with a transform of its own, an unknown part name, or no rows.
    """
    if isinstance(data, dict):
        named = []
        for key, value in data.items():
            part = PART_NAMES.get(str(key).lower())
            if part is None:
                raise DataError(
                    f"{name}: unknown part {key!r}", expected=", ".join(PART_NAMES), do="rename or select the parts"
                )
            named.append((part, str(key), value))
        order = ("train", "validation", "test")
        named.sort(key=lambda item: order.index(item[0]))
        return [_piece(value, key, part) for part, key, value in named]
    return [_piece(data, name, "")]


def _piece(data: Any, name: str, part: str) -> Piece:
    if not hasattr(data, "with_format") or not hasattr(data, "num_rows"):
        raise DataError(
            f"{name}: a streaming data set",
            expected="one with a known number of rows",
            do="load it with streaming=False",
        )
    if getattr(data, "format", {}).get("type") == "custom":
        raise DataError(
            f"{name}: a data set with a transform of its own (set_transform, with_transform)",
            expected="rows as they are",
            do="apply it with map(), or take it off with data.with_format(None)",
        )
    table = data.with_format("arrow")[:]  # applies shuffles and selections, decodes nothing
    names = {key: _names(feature) for key, feature in data.features.items()}
    features = {key: {"names": value} for key, value in names.items() if value}
    metadata = dict(table.schema.metadata or {})
    metadata[b"huggingface"] = json.dumps({"info": {"features": features}}).encode()
    return Piece(table.replace_schema_metadata(metadata), name, part)


def _names(feature: Any) -> list[str]:
    """Class names of a ``ClassLabel``, or of the ``ClassLabel`` inside a list."""
    if isinstance(feature, list):
        feature = feature[0] if feature else None
    inner = getattr(feature, "feature", None)
    names = getattr(feature if inner is None else inner, "names", None)
    return [str(item) for item in names] if names else []
