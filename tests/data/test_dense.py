"""Masks as labels: where they are found, what is counted, what is refused."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from regraft.data import check_target, duplicates, folds, holdout, scan
from regraft.errors import DataError


def encoded(pixels) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(sink, "PNG")
    return sink.getvalue()


def table(masks, metadata=None, **columns) -> pa.Table:
    """Images of the masks' sizes, and the masks."""
    images = [encoded(np.full((*np.shape(m), 3), 7 * i)) for i, m in enumerate(masks)]
    cell = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    made = {
        "image": pa.array([{"bytes": b, "path": None} for b in images], cell),
        "mask": pa.array([{"bytes": encoded(m), "path": None} for m in masks], cell),
        **columns,
    }
    return pa.table(made).replace_schema_metadata(metadata)


def test_a_mask_column_is_counted_by_class():
    m = scan(table([[[0, 1]], [[2, 255]], [[1, 1]]]))
    assert (m.target.kind, m.target.classes, m.target.ignore) == ("segmentation", ("0", "1", "2"), 255)
    assert m.target.values.tolist() == [[1, 1, 0], [0, 0, 1], [0, 2, 0]]
    assert m.take([1]).target.mask(0).tolist() == [[2, -1]]
    assert m.take([1]).target.masks.read(0).tolist() == [[2, 255]]
    assert m.target.take([0, 1, 2]).fingerprint == m.target.fingerprint != m.target.take([1, 0, 2]).fingerprint


@pytest.mark.parametrize(
    ("metadata", "ignore", "classes", "value"),
    [
        ({"ignore_index": "2"}, None, ("0", "1"), 2),
        ({"mask_classes": '["sky", "road", "dust"]', "ignore_index": "2"}, None, ("sky", "road"), 2),
        ({"mask_classes": '["sky", "road", "Void"]'}, None, ("sky", "road"), 2),
        ({"mask_classes": '["Unlabelled", "road", "sky"]'}, None, ("Unlabelled", "road", "sky"), 0),
        ({"mask_classes": '["sky", "road", "dust"]'}, 1, ("sky", "road", "dust"), 1),
        ({"mask_classes": '["sky", "road", "dust"]'}, None, ("sky", "road", "dust"), 255),
    ],
)
def test_the_value_without_a_label(metadata, ignore, classes, value):
    masks = [[[0, 1, 2, 2]], [[1, 0, 0, 2]], [[0, 0, 1, 1]]]
    m = scan(table(masks, metadata), ignore=ignore)
    assert (m.target.classes, m.target.ignore) == (classes, value)
    expected = [[sum(v == c for v in row[0]) if c != value else 0 for c in range(len(classes))] for row in masks]
    assert m.target.values.tolist() == expected


@pytest.mark.parametrize("other", [{"mask_classes": '["road", "sky"]'}, {"ignore_index": "7"}, {}, None])
def test_parts_whose_masks_disagree_are_refused(tmp_path, other):
    masks, names = [[[0, 1]], [[1, 0]]], {"mask_classes": '["sky", "road"]'}
    pq.write_table(table(masks, names), tmp_path / "train.parquet")
    pq.write_table(table(masks, names), tmp_path / "test.parquet")
    assert scan(tmp_path).target.classes == ("sky", "road")
    test = table(masks, {**names, **(other or {})} if other else other)
    if other is None:
        test = test.drop_columns(["mask"]).append_column("label", [["a", "b"]])
    pq.write_table(test, tmp_path / "test.parquet")
    with pytest.raises(
        DataError, match=r"the parts name the classes of masks, or the value .*; got sky, road; -1 and "
    ):
        scan(tmp_path)


@pytest.mark.parametrize(
    "metadata", [{"mask_classes": "sky, road"}, {"mask_classes": '"sky"'}, {"ignore_index": "None"}]
)
def test_metadata_of_masks_that_cannot_be_read_are_refused(metadata):
    with pytest.raises(
        DataError, match=r"table: what the metadata say of masks cannot be read; expected mask_classes such"
    ):
        scan(table([[[0, 1]], [[1, 0]]], metadata))


def test_copies_of_an_image_have_one_mask_however_it_is_written():
    masks = [[[0, 1, 2]], [[0, 1, 2]], [[1, 0, 2]], [[1, 0, 2]]]
    rows = table(masks)
    sink = io.BytesIO()
    Image.fromarray(np.array(masks[0], dtype=np.uint8)).save(sink, "TIFF")
    cells = [sink.getvalue(), *map(encoded, masks[1:])]
    rows = rows.set_column(0, "image", [[encoded(np.zeros((1, 3, 3)))] * 4]).set_column(1, "mask", [cells])
    m = scan(rows)
    assert duplicates(m)["conflicting"] == [[0, 1, 2, 3]]
    assert duplicates(m.take([0, 1]))["conflicting"] == []


def test_255_is_a_class_where_larger_values_are(tmp_path):
    """300 classes in 16-bit masks without names: the pixels of class 255 count like all others."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for i in range(2):
        Image.fromarray(np.full((3, 100, 3), i, dtype=np.uint8)).save(tmp_path / "images" / f"{i}.png")
        values = np.arange(300, dtype=np.uint16).reshape(3, 100)
        Image.fromarray(values).save(tmp_path / "masks" / f"{i}.png")
    target = scan(tmp_path).target
    assert (len(target.classes), target.ignore) == (300, -1)
    assert target.values.tolist() == [[1] * 300] * 2
    assert scan(tmp_path, classes=target.classes).target.ignore == -1
    assert scan(tmp_path, ignore=255).target.values[:, 255].tolist() == [0, 0]


def test_faults_are_named_row_by_row():
    names = {"mask_classes": '["sky", "road"]'}
    wrong = table([[[0, 1]], [[0, 9]], [[1, 1]]], names)
    with pytest.raises(DataError, match=r"table row 1 \(mask\): the value 9 is none of the 2 classes \(0 to 1\)"):
        scan(wrong)
    left = scan(wrong, skip_bad=True)
    assert len(left) == 2
    assert [bad.where for bad in left.skipped] == ["table row 1 (mask)"]
    sink = io.BytesIO()
    Image.fromarray(np.array([[1, -1]], dtype=np.int32)).save(sink, "TIFF")
    cells = [encoded([[0, 1]]), sink.getvalue(), encoded([[1, 1]])]
    signed = wrong.set_column(1, "mask", pa.array(cells, pa.binary()))
    with pytest.raises(DataError, match=r"row 1 \(mask\): the value -1 is none of the 2 classes"):
        scan(signed)
    assert scan(signed, ignore=-1).target.values.tolist() == [[1, 1], [0, 1], [0, 2]]
    other = table([[[0, 1]], [[0, 1]], [[1, 1]]])
    small = other.set_column(1, "mask", table([[[0, 1]], [[0, 1, 1]], [[1, 1]]])["mask"])
    with pytest.raises(DataError, match=r"row 1 \(mask\): the mask has 3×1 pixels, its image 2×1"):
        scan(small)
    with pytest.raises(DataError, match="1 of 3 rows has no labelled pixel: row 2"):
        scan(table([[[0, 1]], [[0, 1]], [[255, 255]]]))
    assert len(scan(table([[[0, 1]], [[0, 1]], [[255, 255]]]), skip_bad=True)) == 2
    with pytest.raises(
        DataError,
        match=r"fewer than two classes.*pixels of value 255 count as unlabelled.*write the classes as 0, 1, 2",
    ):
        scan(table([[[0, 0]], [[0, 0]]], names))
    with pytest.raises(DataError, match="a mask column with kind 'regression'"):
        scan(table([[[0, 1]], [[0, 1]]]), kind="regression")
    with pytest.raises(DataError, match="segmentation needs a mask per image"):
        scan((np.zeros((4, 2)), [0, 1, 0, 1]), kind="segmentation")
    with pytest.raises(DataError, match=r"no pixel of the masks has the value 300 that --ignore names; .*got 0, 1"):
        scan(table([[[0, 1]], [[0, 1]]]), ignore=300)
    assert scan(table([[[0, 1]], [[0, 1]]]), ignore=255).target.ignore == 255  # as without it
    later = scan(table([[[0, 1]], [[0, 1]]]), ignore=300, kind="segmentation", classes=("a", "b"))
    assert later.target.ignore == 300  # what the masks of a head had these need not have
    with pytest.raises(DataError, match="--ignore is about masks"):
        scan((np.zeros((4, 2)), [0, 1, 0, 1]), ignore=1)


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(pixels))


@pytest.mark.parametrize("inner", [False, True])
def test_folders_of_images_and_masks(tmp_path, inner):
    for part, count in (("train", 3), ("val", 2)):
        for i in range(count):
            here = {role: f"{part}/{role}" if inner else f"{role}/{part}" for role in ("images", "masks")}
            write(tmp_path / here["images"] / f"{i}.png", np.full((2, 3, 3), i))
            write(tmp_path / here["masks"] / f"{i}.png", [[0, 1, i], [0, 1, 255]])
    m = scan(tmp_path)
    assert m.target.kind == "segmentation"
    assert m.split == ("train",) * 3 + ("validation",) * 2
    assert m.target.values.tolist() == [[3, 2, 0], [2, 3, 0], [2, 2, 1], [3, 2, 0], [2, 3, 0]]
    assert np.asarray(m.inputs.read(2)).max() == 2
    assert scan(tmp_path, labelled=False).ids == m.ids
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n")
    assert scan(tmp_path).target.classes == ("sky", "road", "tree")
    (tmp_path / "classes.txt").write_text("sky\n\nroad\n")
    with pytest.raises(DataError, match=r"classes\.txt: line 2 is blank"):
        scan(tmp_path)
    (tmp_path / "classes.txt").write_text("sky\nroad\nsky\n")
    with pytest.raises(DataError, match="two classes of masks are called 'sky'"):
        scan(tmp_path)
    (tmp_path / "classes.txt").write_bytes("Bäume\nStraße\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"classes\.txt: not UTF-8 \(byte 1\)"):
        scan(tmp_path)


@pytest.mark.parametrize("inner", [False, True])
def test_folders_in_capital_letters_hold_masks_too(tmp_path, inner):
    for role in ("Images", "Masks"):
        for i in range(3):
            pixels = [[0, 1, i]] if role == "Masks" else np.full((1, 3, 3), i)
            write(tmp_path / (f"Train/{role}" if inner else f"{role}/Train") / f"{i}.png", pixels)
    m = scan(tmp_path)
    assert (m.target.kind, m.split) == ("segmentation", ("train",) * 3)
    assert m.target.values.tolist() == [[2, 1, 0], [1, 2, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("images", "masks", "ids"),
    [
        ("image", "mask", ["0.png", "1.png", "2.png"]),
        ("Image", "masks", ["0.png", "1.png", "2.png"]),
        ("Train/Images", "train/masks", ["Train/0.png", "Train/1.png", "Train/2.png"]),
        ("images/TRAIN", "Mask/Train", ["TRAIN/0.png", "TRAIN/1.png", "TRAIN/2.png"]),
    ],
)
def test_images_and_masks_in_folders_of_other_ways_of_writing(tmp_path, images, masks, ids):
    for i in range(3):
        write(tmp_path / images / f"{i}.png", np.full((1, 3, 3), i))
        write(tmp_path / masks / f"{i}.png", [[0, 1, i]])
    m = scan(tmp_path)
    assert (m.target.kind, list(m.ids), m.split) == ("segmentation", ids, ("train",) * 3)
    assert m.target.values.tolist() == [[2, 1, 0], [1, 2, 0], [1, 1, 1]]


def test_one_name_in_two_folders_of_images_is_refused(tmp_path):
    for images, masks in (("train/images", "train/masks"), ("Train/images", "Train/masks")):
        write(tmp_path / images / "a.png", np.zeros((1, 3, 3)))
        write(tmp_path / masks / "a.png", [[0, 1, 1]])
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("this disk does not tell train from Train")
    with pytest.raises(DataError, match="two files in images are called a"):
        scan(tmp_path)


@pytest.mark.parametrize(("values", "said"), [((0, 100, 200), "3 values up to 200: 0, 100, 200"), ((1, 30), "1, 30")])
def test_levels_of_grey_are_no_classes_unless_they_are_named(tmp_path, values, said):
    for i, value in enumerate(values):
        write(tmp_path / "images" / f"{i}.png", np.full((2, 3, 3), i))
        write(tmp_path / "masks" / f"{i}.png", [[value, values[0], 255], [value, value, value]])
    with pytest.raises(DataError, match=f"{said}.*number the classes from 0, or name all {values[-1] + 1}"):
        scan(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(f"level {k}" for k in range(values[-1] + 1)))
    assert scan(tmp_path).target.values.shape[1] == values[-1] + 1


def test_a_few_values_that_do_not_occur_are_classes_too(tmp_path):
    for i, value in enumerate((0, 2, 20)):
        write(tmp_path / "images" / f"{i}.png", np.full((2, 3, 3), i))
        write(tmp_path / "masks" / f"{i}.png", np.full((2, 3), value))
    assert scan(tmp_path).target.values.shape[1] == 21


def test_images_without_a_mask_are_named(tmp_path):
    for i in range(3):
        write(tmp_path / f"images/{i}.png", np.full((2, 2, 3), i))
        if i:
            write(tmp_path / f"masks/{i}.png", [[0, 1], [1, 1]])
    with pytest.raises(DataError, match=r"1 image has no mask, such as 0\.png"):
        scan(tmp_path)
    write(tmp_path / "masks/0.png", [[0, 1], [1, 1]])
    write(tmp_path / "masks/0.bmp", [[0, 1], [1, 1]])
    with pytest.raises(DataError, match="two files in masks are called 0"):
        scan(tmp_path)
    (tmp_path / "masks/0.bmp").rename(tmp_path / "masks/4.bmp")
    m = scan(tmp_path)
    assert [(bad.where, bad.reason) for bad in m.skipped] == [(str(tmp_path / "masks/4.bmp"), "it has no image")]
    assert m.ids == ("0.png", "1.png", "2.png")


def test_no_group_is_divided(tmp_path):
    rng = np.random.default_rng(0)
    films = [f"film {i // 4}" for i in range(40)]
    made = table(list(rng.integers(0, 3, (40, 5, 6))), film=pa.array(films))
    pq.write_table(made, tmp_path / "train.parquet")
    m = scan(tmp_path, group="film")
    check_target(m)
    place = folds(m.target, m.groups, 5, 0)
    out = holdout(m.target, m.groups, 0.2, 0)
    for film in set(films):
        mine = np.array(m.groups) == film
        assert len(set(place[mine])) == 1
        assert len(set(out[mine])) == 1
    assert 0 < out.sum() < 40


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_bytes_that_are_no_images_are_labels_or_refused(kind):
    pictures = [encoded(np.full((1, 2, 3), i)) for i in range(4)]
    words = ["cat", "chaton né", "cat", "chaton né"]
    rows = scan(
        pa.table({"image": pictures, "label": pa.array([word.encode() for word in words], pa.binary()).cast(kind)})
    )
    assert (rows.target.kind, rows.target.classes) == ("binary", ("cat", "chaton né"))
    latin = pa.array([word.encode("latin-1") for word in words], pa.binary()).cast(kind)
    with pytest.raises(DataError, match=r"table: the column 'label' holds bytes that are no image; .* got b'cat'. To"):
        scan(pa.table({"image": pictures, "label": latin}))


def test_a_column_of_masks_may_begin_with_one_that_cannot_be_read():
    masks = [b"no image", *(encoded([[i, 1 - i]]) for i in (0, 1, 0))]
    pictures = [encoded(np.full((1, 2, 3), i)) for i in range(4)]
    rows = scan(pa.table({"image": pictures, "mask": pa.array(masks, pa.binary())}), skip_bad=True)
    assert (len(rows), rows.target.kind) == (3, "segmentation")
