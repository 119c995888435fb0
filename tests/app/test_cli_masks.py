"""Masks on the command line: adapt, predict, the report, and what is refused."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

MODEL = "regraft/fashion-resnet"


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey pixels and a mask: brightness says the class, a strip has no label."""
    rng = np.random.default_rng(seed)
    mask = np.full((52, 68), rng.integers(3))
    for _ in range(2):
        top, left = 4 * rng.integers(0, 7), 4 * rng.integers(0, 8)
        mask[top : top + 26, left : left + 34] = rng.integers(3)
    pixels = np.array([20, 120, 230])[mask] + rng.integers(-10, 11, mask.shape)
    mask[:3] = 255
    return pixels.astype(np.uint8), mask.astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pairs of images and masks, in parts, with the classes named."""
    root = tmp_path_factory.mktemp("scenes")
    for part, count, seed in (("train", 12, 0), ("test", 5, 100)):
        for i in range(count):
            pixels, mask = scene(seed + i)
            for role, values in (("images", pixels), ("masks", mask)):
                (root / part / role).mkdir(parents=True, exist_ok=True)
                Image.fromarray(values).save(root / part / role / f"{i}.png")
    (root / "classes.txt").write_text("night\ndusk\nday\n")
    return root


TRAINED = ("--tau", "3", "--steps", "8", "--lr", "0.01")


@pytest.mark.parametrize(
    ("method", "more"), [("probe", ()), ("finetune", TRAINED), ("finetune", (*TRAINED, "--head", "aspp"))]
)
def test_adapt_and_predict(regraft, folder, tmp_path, method, more):
    place = tmp_path / "run"
    code, out, err = regraft("adapt", folder, "-m", MODEL, "--method", method, *more, "-o", place, "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["task"] == {
        "kind": "segmentation", "classes": ["night", "dusk", "day"], "rows": {"train": 12, "validation": 0, "test": 5}
    }  # fmt: skip
    assert said["scores"]["test"]["metric"] == "miou"
    assert said["scores"]["test"]["value"] > (0.85 if method == "probe" else 0.5)
    page = (place / "report.html").read_text()
    assert "Mean IoU" in page
    assert "its mask" in page
    assert page.count("data:image/jpeg") == 9
    assert "labelled pixels" in page
    code, out, err = regraft("score", place, folder, "--json")  # whose test part the run has scored
    assert code == 0, err
    again = json.loads(out)
    for key in ("value", "low", "high"):
        assert again["scores"]["miou"][key] == pytest.approx(said["scores"]["test"][key])
    assert [finding["code"] for finding in again["findings"]] == ["own-rows"]
    assert again["outputs"][2]["name"] == "day"
    given = folder / "test" / "images"
    code, out, err = regraft("predict", place, given, "-o", tmp_path / "out.csv")
    assert code == 0, err
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["mask"] for row in rows] == [f"{i}.png" for i in range(5)]
    mask = np.asarray(Image.open(tmp_path / "out" / "3.png"))
    assert mask.shape == (52, 68)
    assert float(rows[3]["share(day)"]) == pytest.approx((mask == 2).mean())
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "0.png").write_bytes(b"true")
    code, out, err = regraft("predict", place, given, "-o", tmp_path / "masks.csv")  # beside the true ones
    assert (code, out) == (2, "")
    assert "would write its masks among the files in" in err
    assert (tmp_path / "masks" / "0.png").read_bytes() == b"true"
    assert regraft("predict", place, given, "-o", tmp_path / "out.csv")[0] == 0  # its own are made again
    code, out, err = regraft("predict", place, given / "0.png", "--json")
    assert code == 0, err
    assert json.loads(out)["predictions"][0]["width"] == 68


def test_the_value_without_a_label_is_remembered(regraft, folder, tmp_path):
    """A run that was told which value says nothing scores later masks by it, and counts pixels as such."""
    for part in ("first", "later"):
        for role in ("images", "masks"):
            (tmp_path / part / role).mkdir(parents=True)
        for i in range(5):
            pixels, mask = scene(i + (500 if part == "later" else 0))
            Image.fromarray(pixels).save(tmp_path / part / "images" / f"{i}.png")
            Image.fromarray(np.where(mask == 255, 0, mask + 1).astype(np.uint8)).save(
                tmp_path / part / "masks" / f"{i}.png"
            )
    run = tmp_path / "run"
    assert regraft("adapt", tmp_path / "first", "-m", MODEL, "--method", "probe", "--ignore", 0, "-o", run)[0] == 0
    code, out, err = regraft("score", run, tmp_path / "later")
    assert code == 0, err
    said = regraft("score", run, tmp_path / "later", "--ignore", 0)[1]
    assert out == said
    assert "pixels)" in out
    assert "the run said " in out  # the value without a label is no class that these rows leave out
    code, out, err = regraft("score", run, tmp_path / "later", "--ignore", 1)
    assert code == 0, err
    assert "is a mean over other classes, and not compared" in " ".join(out.split())  # which a class of the run is


def test_dry_run(regraft, folder):
    for method in ("probe", "finetune"):
        code, out, err = regraft("adapt", folder, "-m", MODEL, "--method", method, "--dry-run", "--json")
        assert code == 0, err
        assert json.loads(out)["status"] == "dry-run"


def test_what_does_not_apply_is_one_sentence(regraft, folder, tmp_path):
    for arguments, sentence in (
        (("--method", "all-layers"), "method 'all-layers' does not apply to masks"),
        (("--method", "finetune", "--partial", "1"), "blocks are not drawn anew for a head on masks"),
        (("--method", "probe", "--ignore", "2"), "the value 255 is none of the 2 classes"),
        (("--method", "probe", "--kind", "multilabel"), "a mask column with kind 'multilabel'"),
    ):
        code, _, err = regraft("adapt", folder, "-m", MODEL, *arguments, "-o", tmp_path / "run")
        assert code != 0
        assert sentence in " ".join(err.split())
        assert not (tmp_path / "run").exists()


def test_a_class_of_the_test_part_alone_is_told(regraft, tmp_path):
    for part, count in (("train", 8), ("test", 5)):
        for i in range(count):
            pixels, mask = scene(i + (500 if part == "test" else 0))
            if part == "test":
                mask[40:, 50:] = 3
            for role, values in (("images", pixels), ("masks", mask)):
                (tmp_path / part / role).mkdir(parents=True, exist_ok=True)
                Image.fromarray(values).save(tmp_path / part / role / f"{i}.png")
    code, out, err = regraft("adapt", tmp_path, "-m", MODEL, "--method", "probe", "-o", tmp_path / "run", "--json")
    assert code == 0, err
    found = {item["code"]: item for item in json.loads(out)["findings"]}
    assert (found["classes-unlearnt"]["value"], found["classes-unlearnt"]["severity"]) == (1, "warning")
    assert found["classes-unlearnt"]["detail"].endswith(": 3.")
    assert "classes-never-right" not in found
