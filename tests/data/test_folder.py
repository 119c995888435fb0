from __future__ import annotations

import os

import pytest

from regraft.data import scan
from regraft.errors import DataError, MissingPathError

from .helpers import put, tree


def test_flat_class_folders(tmp_path):
    root = tree(tmp_path / "photos", {"tulip": 2, "rose": 3})
    (root / "tulip" / "notes.txt").write_text("not an image")
    put(root / ".hidden" / "x.png")
    put(root / "rose" / "._x.png")
    put(root / "__MACOSX" / "x.png")
    m = scan(root)
    assert m.name == "photos"
    assert m.target.classes == ("rose", "tulip")
    assert m.ids == ("rose/000.png", "rose/001.png", "rose/002.png", "tulip/000.png", "tulip/001.png")
    assert m.target.values.tolist() == [0, 0, 0, 1, 1]
    assert set(m.split) == {"train"}
    assert scan(str(root)).fingerprint == m.fingerprint


def test_class_folders_without_an_image_are_named(tmp_path):
    root = tree(tmp_path / "flat", {"tulip": 2, "rose": 3})
    for name in ("lily/deep", ".git", "__MACOSX", "notes"):
        (root / name).mkdir(parents=True)
    (root / "notes" / "a.txt").touch()
    assert scan(root).empty == ("lily/", "notes/")
    parted = tree(tmp_path / "parted", {"train/a": 2, "train/b": 2, "val/b": 1})
    for name in ("train/c", "val/a", "val/d", "test/a", "docs"):  # of a there are images, and docs names no part
        (parted / name).mkdir(parents=True)
    m = scan(parted)
    assert m.empty == m.take([0, 2]).empty == ("test/", "train/c/", "val/d/")
    assert scan(tree(tmp_path / "full", {"a": 1, "b": 1})).empty == ()
    alone = tree(tmp_path / "alone", {"a": 2})
    (alone / "b").mkdir()
    with pytest.raises(
        DataError, match=r"a single class, 'a'; expected at least two class folders; got no image in b/"
    ):
        scan(alone)


@pytest.mark.parametrize("word", ["val", "valid", "validation", "dev"])
def test_part_folders(tmp_path, word):
    m = scan(tree(tmp_path, {"train/a": 2, "train/b": 2, f"{word}/a": 1, "test/b": 1}))
    assert [len(m.part(p)) for p in ("train", "validation", "test")] == [4, 1, 1]
    assert m.target.classes == ("a", "b")
    assert m.part("test").ids == ("test/b/000.png",)


def test_numbers_as_folder_names_are_classes_in_order_of_their_names(tmp_path):
    m = scan(tree(tmp_path, {"0": 2, "1": 2, "10": 2, "2": 2}))
    assert m.target.classes == ("0", "1", "10", "2")
    assert m.target.kind == "multiclass"
    assert [m.target.classes[c] + "/" for c in m.target.values] == [i[: i.index("/") + 1] for i in m.ids]


def test_a_class_may_be_called_train(tmp_path):
    m = scan(tree(tmp_path, {"train": 2, "bus": 2}))
    assert m.target.classes == ("bus", "train")


def test_white_space_around_the_name_of_a_class_folder_is_no_part_of_it(tmp_path):
    m = scan(tree(tmp_path / "p", {"train/cat ": 2, "train/\u00a0dog\n": 2, "test/cat ": 1}))
    assert (m.target.classes, m.target.values.tolist()) == (("cat", "dog"), [0, 0, 0, 1, 1])
    for names in (("cat", "cat ", "dog"), (" ", "dog")):
        with pytest.raises(DataError, match=rf"white space is no part .* got {names[0]!r}"):
            scan(tree(tmp_path / str(len(names)), dict.fromkeys(names, 2)))


def test_images_in_deeper_folders_belong_to_their_class(tmp_path):
    m = scan(tree(tmp_path, {"a/monday": 1, "a/tuesday": 1, "b": 2}))
    assert m.target.values.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("folders", "do"),
    [
        (("val", "test"), "rename the one to learn from to train"),
        (("Validation", "seg_test"), "rename them"),
        (("TestImages", "TrainImages"), "rename them"),
        (("testset", "trainset"), "rename them"),
        (("fold1", "fold2"), "list them in a table whose column of folds --group names"),
        (("Fold_0", "batch-3"), "into one folder a class"),
    ],
)
def test_parts_without_one_to_learn_from_are_not_taken_for_classes(tmp_path, folders, do):
    root = tree(tmp_path, {f"{part}/{name}": 2 for part in folders for name in "ab"})
    with pytest.raises(DataError, match=rf"seem to be parts.*both hold a, b.*{do}"):
        scan(root)


def test_folds_that_hold_no_same_folders_are_classes(tmp_path):
    root = tree(tmp_path, {"fold1/monday": 2, "fold2/tuesday": 2, "testudo/a": 1, "testudo/b": 1, "c": 1})
    assert scan(root).target.classes == ("c", "fold1", "fold2", "testudo")
    for names in (("strain_a", "strain_b"), ("invalid", "valid"), ("tested", "untested"), ("part1", "part2")):
        root = tree(tmp_path / names[0], {f"{name}/{inner}": 1 for name in names for inner in ("front", "back")})
        assert scan(root).target.classes == names


@pytest.mark.parametrize("folders", [("JPEGImages", "SegmentationClass"), ("images", "labels"), ("gt", "imgs")])
@pytest.mark.parametrize("part", ["", "train/"])
def test_pictures_beside_masks_of_other_names_are_no_classes(tmp_path, folders, part):
    root = tree(tmp_path / "p", {f"{part}{name}": 3 for name in folders})
    with pytest.raises(DataError, match=r"hold files of the same names, as pictures and masks do.*to masks"):
        scan(root)
    both = tree(tmp_path / "both", {f"{part}{name}": 3 for name in ("img", "image")})
    assert scan(both).target.classes == ("image", "img")
    for name, counts in (("q", (3, 2)), ("r", (3, 3))):  # other names, or none of pictures
        names = folders if name == "q" else ("cats", "dogs")
        scan(tree(tmp_path / name, {f"{part}{one}": count for one, count in zip(names, counts)}))


def test_parts_inside_the_classes_are_not_learnt_from(tmp_path):
    root = tree(tmp_path / "p", {"a/train": 2, "a/test": 1, "b/Train": 2, "b/val": 1, "c": 2})
    with pytest.raises(DataError, match=r"folders of parts.*inside a, b; expected the classes inside.*as in train.a"):
        scan(root)
    for name, folders in (("q", {"a/train": 2, "b/train": 2}), ("r", {"a/train": 2, "a/test": 1, "b": 2})):
        assert scan(tree(tmp_path / name, folders)).target.classes == ("a", "b")  # sessions, or vehicles


def test_parts_in_other_words_are_not_taken_for_classes(tmp_path):
    root = tree(tmp_path / "p", {"seg_train/a": 2, "seg_train/b": 2, "seg_test/a": 1, "seg_test/b": 1})
    with pytest.raises(DataError, match=r"seg_test and seg_train seem to be parts.*both hold a, b.*rename them"):
        scan(root)
    apart = tree(tmp_path / "q", {"test-tube/left": 1, "test-tube/right": 1, "flask/left": 1, "flask/right": 1})
    assert scan(apart).target.classes == ("flask", "test-tube")  # one of them alone is no split


def test_a_folder_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    root = tree(tmp_path / "p", {"a": 2, "b": 2, "c": 2})
    plain = os.scandir

    def guarded(path):
        if os.fspath(path).endswith("c"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(DataError, match=r"the folder .*c cannot be read; got Permission denied"):
        scan(root)


def test_linked_folders_are_followed_once(tmp_path):
    root = tree(tmp_path / "p", {"a": 2, "b": 2})
    os.symlink(root, root / "a" / "loop")
    assert len(scan(root)) == 4


def test_the_fingerprint_does_not_depend_on_the_place(tmp_path):
    one, two = tree(tmp_path / "x", {"a": 2, "b": 2}), tree(tmp_path / "y/z", {"a": 2, "b": 2})
    assert scan(one).fingerprint == scan(two).fingerprint


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "no image and no text in this folder"),
        ({"a": 0, "b": 0}, "no image and no text in this folder"),
        ({"a": 3}, "a single class, 'a'"),
        ({"set/a": 2, "set/b": 2}, r"a single class, 'set' \(the folders in it: a, b\).*use .*set/"),
        ({".": 2}, "2 images outside any class folder"),
        ({"a": 2, "b": 2, ".": 1}, r"1 image outside any class folder \(such as 000.png\)"),
        ({"train/a": 2, "train/b": 2, "extra/a": 1}, "beside train there are images in extra"),
        ({"train/a": 2, "train/b": 2, "test/c": 1}, "the class 'c' occurs in the test part but not in training"),
        ({"train/a": 2, "test/a": 2}, "a single class, 'a'"),
        ({"train": 2, "test": 2}, "4 images outside any class folder"),
    ],
)
def test_folders_that_cannot_be_used_say_why(tmp_path, counts, message):
    with pytest.raises(DataError, match=message):
        scan(tree(tmp_path, counts))


def test_a_missing_folder_names_its_neighbours(tmp_path):
    tree(tmp_path / "photos", {"a": 1})
    with pytest.raises(MissingPathError, match="did you mean photos"):
        scan(tmp_path / "photo")
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "deep" / "down")


def test_images_beside_the_classes_can_be_skipped(tmp_path):
    found = scan(tree(tmp_path, {"a": 2, "b": 2, ".": 1}), skip_bad=True)
    assert len(found) == 4
    assert [(bad.where, bad.reason) for bad in found.skipped] == [
        (str(tmp_path / "000.png"), "it lies outside any class folder")
    ]


def test_a_folder_has_no_columns(tmp_path):
    with pytest.raises(DataError, match="a folder of files has no columns"):
        scan(tree(tmp_path, {"a": 2, "b": 2}), group="patient")
    with pytest.raises(DataError, match="a folder of files has no columns"):
        scan(tmp_path, label="kind")


def texts(root, counts):
    """Text files by folder, each with words of its own."""
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / folder / f"{number}.txt").write_text(f" {folder} says {number}\n")
    return root


def test_folders_of_texts_are_read_like_those_of_images(tmp_path):
    root = texts(tmp_path / "films", {"train/pos": 2, "train/neg": 1, "test/pos": 1, "test/neg": 1})
    m = scan(root)
    assert (m.name, m.target.classes, m.inputs.modality) == ("films", ("neg", "pos"), "text")
    assert m.ids == ("test/neg/0.txt", "test/pos/0.txt", "train/neg/0.txt", "train/pos/0.txt", "train/pos/1.txt")
    assert m.split == ("test", "test", "train", "train", "train")
    assert [m.inputs.read(row) for row in (0, 4)] == ["test/neg says 0", "train/pos says 1"]
    flat = scan(texts(tmp_path / "flat", {"a": 2, "b": 1}))
    assert flat.target.values.tolist() == [0, 0, 1]
    assert scan(tmp_path / "flat", labelled=False).ids == ("a/0.txt", "a/1.txt", "b/0.txt")
    with pytest.raises(DataError, match=r"a single class, 'pos'.*add texts of another class"):
        scan(texts(tmp_path / "alone", {"pos": 2}))
    with pytest.raises(DataError, match=r"2 texts outside any class folder \(such as 0.txt\)"):
        scan(texts(tmp_path / "loose", {".": 2}))
    put(tmp_path / "flat" / "b" / "0.png")  # a picture among texts is no row
    assert scan(tmp_path / "flat", labelled=False).inputs.modality == "text"
    put(tmp_path / "flat" / "a" / "0.png")  # nor are notes on pictures
    assert scan(tmp_path / "flat", labelled=False).ids == ("a/0.png", "b/0.png")


def test_unlabelled_folders_lists_and_single_images(tmp_path):
    root = tree(tmp_path, {"a": 2, "b/c": 1, ".": 1})
    m = scan(root, labelled=False)
    assert m.target is None
    assert m.ids == ("000.png", "a/000.png", "a/001.png", "b/c/000.png")
    paths = [root / "a/001.png", str(root / "000.png")]
    m = scan(paths, labelled=False)
    assert m.ids == tuple(map(str, paths))
    assert len(scan(tuple(paths), labelled=False)) == 2
    assert len(scan(root / "000.png", labelled=False)) == 1
    with pytest.raises(MissingPathError, match=r"no such file: .*gone\.png"):
        scan([*paths, root / "gone.png"], labelled=False)
    with pytest.raises(MissingPathError, match=r"no such file: .*did you mean 000\.png"):
        scan([*paths, root / "00O.png"], labelled=False)
    assert len(scan([*paths, root / "gone.png"], labelled=False, skip_bad=True)) == 2
    with pytest.raises(DataError, match="no inputs"):
        scan([], labelled=False)
    with pytest.raises(DataError, match="has no labels"):
        scan(paths)


def test_without_labels_folders_name_parts_where_all_images_lie_in_them(tmp_path):
    for name in ("train/a/1.png", "train/2.png", "test/b/3.png", "val/4.png"):
        put(tmp_path / name)
    rows = scan(tmp_path, labelled=False)
    assert dict(zip(rows.ids, rows.split)) == {
        "test/b/3.png": "test", "train/2.png": "train", "train/a/1.png": "train", "val/4.png": "validation",
    }  # fmt: skip
    put(tmp_path / "5.png")
    assert set(scan(tmp_path, labelled=False).split) == {"train"}


def test_an_empty_name_is_not_the_working_folder():
    with pytest.raises(DataError, match="name of the data is blank"):
        scan("")


@pytest.mark.parametrize(("link", "inside"), [("3", "."), ("test", "."), ("4", "train")])
def test_a_folder_that_is_a_link_to_nothing_is_not_passed_over(tmp_path, link, inside):
    root = tmp_path / "parts" if inside != "." else tmp_path / "classes"
    for name in ("a", "b"):
        put(root / inside / name / "1.png")
    place = root / inside / link
    place.symlink_to(tmp_path / "not mounted")
    with pytest.raises(MissingPathError, match=rf"{link} is a link to .*not mounted, which is not there"):
        scan(str(root))
    place.unlink()
    (root / inside / "readme.lnk").symlink_to(tmp_path / "not mounted")  # no folder has an ending
    assert len(scan(str(root))) == 2
