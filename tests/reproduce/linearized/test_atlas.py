"""Maps: where the cells of a raster lie, what has no value, and tables of the same."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from regraft.errors import DataError, MissingPathError
from regraft.reproduce.linearized.atlas import read_map

CELLS = np.array([[0.1, 0.2, np.nan], [-9999.0, 0.5, 0.6]], dtype=np.float32)


def raster(path, cells=CELLS, tie=(0.0, 0.0, 0.0, 10.0, 50.0, 0.0), scale=(0.5, 2.0, 0.0), nothing="-9999"):
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    for code, kind, value in ((33550, 12, scale), (33922, 12, tie), (42113, 2, nothing)):
        if value is not None:
            tags[code] = value
            tags.tagtype[code] = kind
    Image.fromarray(cells).save(path, tiffinfo=tags)
    return path


def test_cells_lie_where_the_file_says_and_empty_ones_are_left_out(tmp_path):
    places, values = read_map(raster(tmp_path / "a.tif"))
    np.testing.assert_allclose(values, [0.1, 0.2, 0.5, 0.6], rtol=1e-6)
    np.testing.assert_allclose(places, [[10.25, 49], [10.75, 49], [10.75, 47], [11.25, 47]])


@pytest.mark.parametrize("corner", [(0, 0), (1, 2)])
def test_any_raster_point_may_be_the_known_one(tmp_path, corner):
    i, j = corner  # column and row of the point that lies at (X, Y)
    tie = (float(i), float(j), 0.0, 10.0 + 0.5 * i, 50.0 - 2.0 * j, 0.0)
    moved = read_map(raster(tmp_path / "b.tiff", tie=tie))
    plain = read_map(raster(tmp_path / "a.tif"))
    for a, b in zip(moved, plain):
        np.testing.assert_allclose(a, b)


def test_a_table_says_the_same(tmp_path):
    places, values = read_map(raster(tmp_path / "a.tif"))
    lines = [f"{v},{x},{y},kept" for (x, y), v in zip(places, values)]
    text = "\n".join(["value,longitude,latitude,note", *lines, ",1,2,empty"])
    (tmp_path / "a.csv").write_text(text)
    again = read_map(tmp_path / "a.csv")
    np.testing.assert_allclose(again[0], places)
    np.testing.assert_allclose(again[1], values)


def test_what_is_no_map_is_refused(tmp_path):
    with pytest.raises(MissingPathError, match="is not there"):
        read_map(tmp_path / "a.tif")
    (tmp_path / "a.png").touch()
    with pytest.raises(DataError, match=r"expected a \.tif, \.tiff or \.csv"):
        read_map(tmp_path / "a.png")
    (tmp_path / "broken.tif").write_bytes(b"II*\0 and no more")
    with pytest.raises(DataError, match="cannot be read as a GeoTIFF"):
        read_map(tmp_path / "broken.tif")
    with pytest.raises(DataError, match="where its cells lie"):
        read_map(raster(tmp_path / "plain.tif", tie=None))
    with pytest.raises(DataError, match="several bands"):
        read_map(raster(tmp_path / "bands.tif", np.zeros((4, 5, 3), np.uint8)))
    with pytest.raises(DataError, match="no place with a value"):
        read_map(raster(tmp_path / "empty.tif", np.full((2, 2), np.nan, np.float32)))
    (tmp_path / "a.csv").write_text("lon,lat,value\n1,2,3")
    with pytest.raises(DataError, match="no column longitude"):
        read_map(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("longitude,latitude,value\n1,2,three")
    with pytest.raises(DataError, match="no numbers"):
        read_map(tmp_path / "b.csv")
    (tmp_path / "b.csv").write_text("longitude,latitude,value\n1,2,2020-01-01")
    with pytest.raises(DataError, match="no numbers"):
        read_map(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("")
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_map(tmp_path / "c.csv")
