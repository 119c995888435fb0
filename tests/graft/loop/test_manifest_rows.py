"""What is trained on is what the network's own preprocessing makes of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import regraft
from regraft.data import Manifest, scan
from regraft.errors import DataError, RecipeError
from regraft.features import Tangent
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.stages.augment import Augment
from regraft.network import ArrayPreprocess, ImagePreprocess, Network, from_module


class Inverted(ImagePreprocess):
    def __call__(self, raw: Any) -> Tensor:
        return 1 - super().__call__(raw)


class Halved(ImagePreprocess):
    def values(self, pixels: Tensor) -> Tensor:
        return super().values(pixels) / 2


def images(rows: int = 24) -> Manifest:
    rng = np.random.default_rng(0)
    return scan((rng.integers(0, 256, (rows, 10, 8, 3), dtype=np.uint8), [f"class {row % 2}" for row in range(rows)]))


def network(preprocess: ImagePreprocess) -> Network:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    return from_module(nn.Sequential(*layers), preprocess)


@pytest.mark.parametrize("kind", [ImagePreprocess, Inverted, Halved])
def test_rows_are_those_of_the_preprocessing_whatever_class_it_is(kind: type[ImagePreprocess]) -> None:
    """A subclass need not be a table of values over the pixels that a resized image has."""
    preprocess, manifest = kind((6, 6), None, 2, (0.5,) * 3, (0.2,) * 3), images()
    rows = ManifestRows.of(network(preprocess), manifest)
    expected = torch.stack([preprocess(manifest.inputs.read(row)) for row in (3, 0, 7)])
    assert torch.equal(rows.inputs(torch.tensor([3, 0, 7])), expected)
    other = ManifestRows.of(network(ImagePreprocess((6, 6), None, 2, (0.5,) * 3, (0.2,) * 3)), manifest)
    assert (rows.key == other.key) == (kind is ImagePreprocess)  # a checkpoint of one is none of the other


def test_rows_that_changed_since_they_were_read_are_not_trained_on(tmp_path) -> None:
    """What they lead to is kept under the hashes that they had."""
    for row in range(4):
        folder = tmp_path / f"class {row % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 60 * row, np.uint8)).save(folder / f"{row}.png")
    preprocess = ImagePreprocess((8, 8), None, 2, (0.5,) * 3, (0.2,) * 3)
    manifest, given = scan(tmp_path), network(preprocess)
    ManifestRows.of(given, manifest), Tangent(given, "*", manifest).prepare()
    Image.fromarray(np.full((8, 8, 3), 7, np.uint8)).save(tmp_path / "class 1/3.png")
    with pytest.raises(DataError, match=r"3\.png has changed since it was first read"):
        ManifestRows.of(given, manifest)
    with pytest.raises(DataError, match=r"3\.png has changed since it was first read"):
        Tangent(given, "*", manifest).prepare()


def test_numbers_that_changed_since_they_were_read_are_not_trained_on() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    manifest = scan((x, ["a", "b", "a", "b"]))
    given = from_module(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), ArrayPreprocess((3,)))
    ManifestRows.of(given, manifest)
    manifest.inputs.read(2)[...] = -1.0
    with pytest.raises(DataError, match="has changed since it was first read"):
        ManifestRows.of(given, manifest)


def test_a_preprocessing_of_its_own_way_is_not_augmented(tmp_path) -> None:
    """Augmentation changes pixels before they are made numbers, which such a one does in one."""
    given = network(Inverted((6, 6), None, 2, (), ()))
    with pytest.raises(DataError, match="only images can be augmented; got Inverted, which makes numbers"):
        ManifestRows.of(given, images(), Augment(flip=True))
    with pytest.raises(RecipeError, match="only images can be augmented; got Inverted, which makes numbers"):
        regraft.adapt(images(), given, method="finetune", augment="flip", cache=tmp_path, steps=2, tau=1)
