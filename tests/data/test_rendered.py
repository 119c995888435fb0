from __future__ import annotations

import numpy as np
import pytest

from regraft.data import rendered
from regraft.data.rendered import _SHAPES, SHAPES, TASKS, _cover, _members, _places
from regraft.errors import DataError


@pytest.mark.parametrize("task", TASKS)
def test_labels_are_balanced_bytes_repeat_and_more_rows_begin_the_same(task):
    m = rendered(task, 50, seed=3, test=10)
    counts = np.bincount(m.part("train").target.values, minlength=m.target.outputs)
    assert np.ptp(counts) <= 1
    assert m.fingerprint == rendered(task, 50, seed=3, test=10).fingerprint
    assert rendered(task, 60, seed=3).hashes[:50] == m.hashes[:50]
    assert not set(m.hashes) & set(rendered(task, 50, seed=4).hashes)
    assert not set(m.part("test").hashes) & set(rendered(task, 60, seed=3).hashes)
    assert m.split == ("train",) * 50 + ("test",) * 10
    assert m.inputs.read(0).size == (64, 64)
    assert m.target.classes == tuple(map(str, range(3, 9) if task == "count" else range(16)))


@pytest.mark.parametrize("task", ["position-x", "orientation"])
def test_one_white_shape_on_black(task):
    pixels = rendered(task, 64).inputs.pixels
    assert (pixels[..., 0] == pixels[..., 1]).all()
    assert (pixels[:, [0, -1]] == 0).all()
    assert (pixels[:, :, [0, -1]] == 0).all()
    assert (pixels.reshape(64, -1).max(axis=1) == 255).all()
    assert len(np.unique(pixels)) > 10  # anti-aliased


def test_the_x_bin_can_be_read_off_the_picture():
    m = rendered("position-x", 320, seed=1)
    white = m.inputs.pixels[..., 0] > 0
    columns = white.any(axis=1)
    centre = (columns.argmax(axis=1) + 64 - columns[:, ::-1].argmax(axis=1)) / 2
    want = 12 + 40 / 31 * (2 * m.target.values + 0.5)
    assert np.abs(centre - want).max() < 8  # a shape's box is not centred on its circle: within a radius
    assert np.corrcoef(centre, m.target.values)[0, 1] > 0.97


def test_bins_take_all_values_of_a_factor_once():
    for values in (32, 40):
        members = [_members(b, values) for b in range(16)]
        np.testing.assert_array_equal(np.concatenate(members), np.arange(values))
        assert {len(m) for m in members} == ({2} if values == 32 else {2, 3})


@pytest.mark.parametrize("shape", SHAPES)
def test_covered_area_is_the_area_of_the_polygons(shape):
    def area(polygon):  # shoelace
        x, y = np.array(polygon).T
        return 0.5 * abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))

    want = sum(area(polygon) for polygon in _SHAPES[shape]) * 11**2
    for angle in (0.0, 0.7, 3.0):
        assert _cover(shape, (31.3, 30.8), 11.0, angle).sum() == pytest.approx(want, rel=0.03)
    assert max(np.hypot(*point) for polygon in _SHAPES[shape] for point in polygon) <= 1.0


@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_looks_the_same_after_a_turn(shape):
    still = _cover(shape, (32.0, 32.0), 11.0, 0.0)
    for step in range(1, 40):
        turned = _cover(shape, (32.0, 32.0), 11.0, 2 * np.pi * step / 40)
        assert np.abs(turned - still).sum() > 0.05 * still.sum()


def test_a_quarter_turn_turns_the_pixels():
    still = _cover("flag", (32.0, 32.0), 10.0, 0.0)
    np.testing.assert_allclose(_cover("flag", (32.0, 32.0), 10.0, np.pi / 2), np.rot90(still, -1), atol=0.13)


def test_counted_shapes_do_not_touch_and_stay_inside():
    for count in range(3, 9):
        for seed in range(5):
            places = np.array(_places(count, np.random.default_rng(seed)))
            assert len(places) == count
            centres, radii = places[:, :2], places[:, 2]
            assert (centres - radii[:, None] >= 0).all()
            assert (centres + radii[:, None] <= 64).all()
            gaps = np.hypot(*(centres[:, None] - centres[None]).transpose(2, 0, 1)) - radii[:, None] - radii[None]
            assert gaps[~np.eye(count, dtype=bool)].min() >= 1.0


def test_the_count_can_be_read_off_the_picture():
    from scipy import ndimage

    m = rendered("count", 60, seed=0)
    found = []
    for pixels in m.inputs.pixels.astype(float):
        ground = np.median(pixels.reshape(-1, 3), axis=0)
        smooth = ndimage.uniform_filter(pixels, size=(3, 3, 1))
        far = np.abs(smooth - ground).max(axis=2) > 22
        labels, _ = ndimage.label(far, structure=np.ones((3, 3)))
        found.append((np.bincount(labels.reshape(-1))[1:] >= 6).sum())
    assert np.mean(np.abs(np.array(found) - (m.target.values + 3)) <= 1) > 0.85
    assert np.corrcoef(found, m.target.values)[0, 1] > 0.85


def test_unknown_tasks_and_no_rows_are_refused():
    with pytest.raises(DataError, match="unknown rendered task 'position-y'"):
        rendered("position-y", 5)
    with pytest.raises(DataError, match="0 rendered rows"):
        rendered("count", 0)
