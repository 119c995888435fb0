"""Numbers on a map: the cells of a GeoTIFF, or a table of longitude, latitude and value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from pyarrow import ArrowException, ArrowInvalid, csv

from regraft.errors import DataError, MissingPathError

__all__ = ["read_map"]

_SCALE, _TIE, _NOTHING = 33550, 33922, 42113  # ModelPixelScale, ModelTiepoint and GDAL_NODATA of a GeoTIFF
_COLUMNS = ("longitude", "latitude", "value")


def read_map(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The places of a map that have a value, and the values.

    The cell in row r and column c of a GeoTIFF whose raster point (i, j) lies at (X, Y) has its centre at
    (X + (c + ½ − i) s_x, Y − (r + ½ − j) s_y). Cells that are NaN or the file's "no data" value are left out, and so
    are a table's rows without one of the three numbers.

    Args:
        path: a ``.tif`` or ``.tiff`` of one band, north up; or a ``.csv`` with the columns ``longitude``, ``latitude``
            and ``value``.

    Returns:
        coordinates ``(N, 2)`` as longitude and latitude, and values ``(N,)``, float64.

    Raises:
        MissingPathError: the file is not there.
        DataError: it is no map, or has no place with a value.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingPathError(f"the map {path} is not there", do="check the path")
    readers = {".tif": _raster, ".tiff": _raster, ".csv": _table}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} is no map", expected="a .tif, .tiff or .csv file")
    places, values = readers[path.suffix.lower()](path)
    there = np.isfinite(values) & np.isfinite(places).all(1)
    if not there.any():
        raise DataError(f"the map {path} has no place with a value")
    return places[there], values[there]


def _raster(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with Image.open(path) as image:
            tags = getattr(image, "tag_v2", {})
            scale, tie, nothing = (tags.get(code) for code in (_SCALE, _TIE, _NOTHING))
            cells = np.asarray(image).astype(np.float64)
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a GeoTIFF", got=str(error)) from error
    if scale is None or tie is None or len(scale) < 2 or len(tie) != 6:
        raise DataError(
            f"{path} does not say where its cells lie",
            expected="a GeoTIFF with ModelPixelScale and one ModelTiepoint",
            do="write it as longitude, latitude and value to a .csv",
        )
    if cells.ndim != 2:
        raise DataError(f"{path} has several bands", expected="one", got=str(cells.shape))
    if nothing is not None:
        cells[np.isclose(cells, float(str(nothing).strip("\0 ")), rtol=1e-6)] = np.nan
    rows, columns = np.indices(cells.shape)
    east = tie[3] + (columns + 0.5 - tie[0]) * scale[0]
    north = tie[4] - (rows + 0.5 - tie[1]) * scale[1]
    return np.stack([east.ravel(), north.ravel()], axis=1), cells.ravel()


def _table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        table = csv.read_csv(path)
    except (ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as a table", got=str(error)) from error
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path} has no column {missing[0]}", expected=", ".join(_COLUMNS), got=", ".join(table.column_names)
        )
    try:
        numbers = [table[name].cast("float64").to_numpy() for name in _COLUMNS]
    except ArrowException as error:
        raise DataError(f"the columns {', '.join(_COLUMNS)} of {path} are no numbers", got=str(error)) from error
    return np.stack(numbers[:2], axis=1), numbers[2]
