"""Preprocessing: the processors' own pixels, and the journeys through pickle and JSON."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.network.zoo import save, tokenizer

from regraft.errors import DataError, ModelError
from regraft.network import ArrayPreprocess, ImagePreprocess, Network, TextPreprocess, load, preprocess_from_json
from regraft.network.loaders.timm import preprocess as from_timm
from regraft.network.loaders.torchvision import preprocess as from_torchvision
from regraft.network.loaders.transformers import ProcessorPreprocess, image_preprocess

transformers = pytest.importorskip("transformers")

SIZES = ((97, 61), (61, 97), (251, 330), (32, 32), (20, 45), (224, 224))
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTImageProcessorPil", {"size": {"height": 48, "width": 40}}),
    "mobilenet": ("MobileNetV2ImageProcessorPil", {}),
    "convnext small": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 64}}),
    "convnext large": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}}),
    "dinov2": ("BitImageProcessorPil", {"size": {"shortest_edge": 71}, "crop_size": {"height": 56, "width": 57}}),
    "crop beyond the image": ("BitImageProcessorPil", {"do_resize": False, "crop_size": {"height": 90, "width": 81}}),
    "no normalising": ("ViTImageProcessorPil", {"do_normalize": False}),
    "no scaling": ("ViTImageProcessorPil", {"do_rescale": False, "size": {"height": 30, "width": 30}}),
    "nearest": ("ViTImageProcessorPil", {"resample": 0, "size": {"height": 30, "width": 50}}),
}


def images() -> list[Image.Image]:
    generator = np.random.default_rng(3)
    return [Image.fromarray(generator.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in SIZES]


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_equal_the_processors(name: str) -> None:
    kind, options = PROCESSORS[name]
    processor = getattr(transformers, kind)(**options)
    own = image_preprocess(processor)
    assert isinstance(own, ImagePreprocess)
    for image in images():
        theirs = torch.from_numpy(processor(image, return_tensors="np")["pixel_values"][0])
        assert torch.equal(own(image), theirs.float())


def grey_model(folder: Path, mean: Any, std: Any) -> Path:
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_channels=1, **shape)
    made = {"size": {"height": 32, "width": 32}, "image_mean": mean, "image_std": std}
    return save(folder, transformers.ViTModel(config), transformers.ViTImageProcessorPil(**made))


@pytest.mark.parametrize(("mean", "std"), [([0.3] * 3, [0.2] * 3), ([0.3], [0.2]), (0.3, 0.2)])
def test_a_network_of_grey_images_reads_one_channel_of_its_processors_pixels(mean, std, tmp_path: Path) -> None:
    own = load(str(grey_model(tmp_path, mean, std))).preprocess
    assert isinstance(own, ImagePreprocess)
    processor = transformers.ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=[0.3] * 3, image_std=[0.2] * 3
    )
    for image in images():
        theirs = processor(image.convert("L").convert("RGB"), return_tensors="np")["pixel_values"][0]
        assert torch.equal(own(image), torch.from_numpy(theirs)[:1])
    assert preprocess_from_json(json.loads(json.dumps(own.to_json()))) == own


def test_a_network_of_grey_images_with_means_of_three_channels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"does not run on an example of its own.*Expected 1 but got 3"):
        load(str(grey_model(tmp_path, [0.3, 0.4, 0.5], [0.2] * 3)))


def test_unknown_options_call_the_processor_itself() -> None:
    processor = transformers.ViTImageProcessorPil(size={"longest_edge": 60, "shortest_edge": 40})
    own = image_preprocess(processor)
    assert isinstance(own, ProcessorPreprocess)
    image = images()[0]
    theirs = processor(image, return_tensors="np")["pixel_values"][0]
    assert np.array_equal(own(image).numpy(), theirs)
    again = preprocess_from_json(json.loads(json.dumps(own.to_json())))
    assert torch.equal(again(image), own(image))
    assert torch.equal(pickle.loads(pickle.dumps(own))(image), own(image))


@pytest.mark.parametrize("pack", ["mobilenet_v1_0.25_128", "mobilenet_v1_0.5_160", "mobilenet_v2_1.0_224"])
def test_pixels_of_real_photographs(pack: str, data_pack: Path) -> None:
    processor = transformers.AutoImageProcessor.from_pretrained(data_pack / "weights" / pack, use_fast=False)
    own = image_preprocess(processor)
    assert isinstance(own, ImagePreprocess)
    rows = pq.read_table(data_pack / "images/imagenet_sample200/test.parquet")["image"][::40]
    for row in rows:
        image = Image.open(io.BytesIO(row["bytes"].as_py())).convert("RGB")
        assert torch.equal(own(image), torch.from_numpy(processor(image, return_tensors="np")["pixel_values"][0]))


def test_a_processor_that_bounds_the_longer_side_is_called_itself() -> None:
    """Those of detectors: the bound is met by images more than 5/3 as long as they are high alone."""
    processor = transformers.DetrImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 80}, do_pad=False)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 50, 3), dtype=np.uint8))
    expected = processor(image, return_tensors="pt")["pixel_values"][0]
    assert tuple(expected.shape) == (3, 32, 80)
    assert torch.equal(image_preprocess(processor)(image), expected)


def test_the_formula() -> None:
    """(x/255 − mean) / std, by hand in float64."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    own = ImagePreprocess(None, None)
    expected = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(own(Image.fromarray(pixels)).numpy(), expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-6)


def test_grey_palette_and_transparent_images_are_converted() -> None:
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    own = ImagePreprocess((8, 8), None, mean=(), std=(), scale=1.0)
    assert torch.equal(own(grey), own(grey.convert("RGB")))
    assert torch.equal(own(grey.convert("P")), own(grey))
    single = ImagePreprocess((8, 8), None, mean=(0.5,), std=(0.5,), channels=1)
    assert single(grey).shape == (1, 8, 8)
    assert single.example(2).shape == (2, 1, 8, 8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("mode", "dtype"), [("I;16", np.uint16), ("I", np.int32), ("F", np.float32)])
def test_pixels_of_more_than_eight_bits_are_refused(channels: int, mode: str, dtype: Any) -> None:
    image = Image.fromarray(np.linspace(0, 60000, 64).reshape(8, 8).astype(dtype))
    assert image.mode == mode
    with pytest.raises(DataError, match=f"mode {mode} have no 8-bit form"):
        ImagePreprocess(None, None, mean=(), std=(), channels=channels)(image)


def test_crops_round_as_their_libraries_do() -> None:
    """transformers starts at (h − c) // 2, torchvision at round((h − c) / 2) with halves to even."""
    ramp = Image.fromarray(np.repeat(np.arange(13, dtype=np.uint8)[:, None], 13, 1))
    starts = {}
    for rounding in ("down", "even"):
        for size in (10, 8, 6):
            own = ImagePreprocess(None, (size, 13), mean=(), std=(), scale=1.0, rounding=rounding)
            starts[rounding, size] = int(own(ramp)[0, 0, 0])
    assert starts == {("down", 10): 1, ("down", 8): 2, ("down", 6): 3, ("even", 10): 2, ("even", 8): 2, ("even", 6): 4}


def test_timm_and_torchvision_settings_are_read() -> None:
    data = {"input_size": (3, 224, 224), "crop_pct": 0.95, "interpolation": "bicubic", "mean": (0.5,) * 3}
    own = from_timm({**data, "std": (0.5,) * 3, "crop_mode": "center"})
    assert (own.resize, own.crop, own.resample, own.rounding) == (235, (224, 224), 3, "even")
    squashed = from_timm({**data, "std": (0.5,) * 3, "crop_mode": "squash", "crop_pct": 1.0})
    assert squashed.resize == (224, 224)
    with pytest.raises(ModelError, match="crop mode 'border'"):
        from_timm({**data, "std": (0.5,) * 3, "crop_mode": "border"})

    class Preset:
        resize_size, crop_size, mean, std = [232], [224], [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]

        class interpolation:
            value = "bilinear"

    preset = from_torchvision(Preset())
    assert (preset.resize, preset.crop, preset.resample, preset.mean) == (232, (224, 224), 2, (0.1, 0.2, 0.3))
    with pytest.raises(ModelError, match="no classification preset"):
        from_torchvision(object())


@pytest.mark.parametrize(
    "own",
    [
        ImagePreprocess(256, (224, 200), 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), rounding="even"),
        ImagePreprocess((32, 30), None, mean=(), std=()),
        ArrayPreprocess((3, 4)),
        ArrayPreprocess((2,), (1.0, 2.0), (3.0, 4.0)),
        ArrayPreprocess((2,), categories=(0, 7)),
    ],
)
def test_json_and_pickle_bring_it_back(own: Any) -> None:
    assert preprocess_from_json(json.loads(json.dumps(own.to_json()))) == own
    assert pickle.loads(pickle.dumps(own)) == own
    assert torch.equal(own.example(2), own.example(2))
    assert own.example(2).shape[0] == 2


@pytest.mark.parametrize(("value", "message"), [({"kind": "sound"}, "unknown"), ({"kind": "array"}, "torn")])
def test_json_that_is_none_of_ours(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        preprocess_from_json(value)


def test_arrays() -> None:
    own = ArrayPreprocess((2,), (1.0, 2.0), (3.0, 4.0))
    assert own(np.array([4.0, 10.0])).tolist() == [1.0, 2.0]
    raw = np.zeros(2, np.float32)
    out = ArrayPreprocess((2,))(raw)
    raw[:] = 7
    assert out.tolist() == [0.0, 0.0]
    with pytest.raises(DataError, match=r"wrong shape; expected \(2,\); got \(3,\)"):
        own(np.zeros(3))


def test_what_cannot_be_preprocessed() -> None:
    own = ImagePreprocess(None, None)
    with pytest.raises(DataError, match="differ in shape"):
        own.collate([own(image) for image in images()[:2]])
    with pytest.raises(ModelError, match="mean and std do not fit"):
        ImagePreprocess(None, None, channels=1)
    with pytest.raises(ModelError, match="holds a zero"):
        ImagePreprocess(None, None, std=(0.0, 1.0, 1.0))
    with pytest.raises(DataError, match="empty"):
        own(Image.new("RGB", (0, 4)))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: ImagePreprocess(32, 28), r"crop; expected \(height, width\) or None; got 28"),
        (lambda: ImagePreprocess(32, (0, 28)), "crop; expected"),
        (lambda: ImagePreprocess((32,), None), r"resize; expected the shorter side, \(height, width\) or None"),
        (lambda: ImagePreprocess(0, None), "resize; expected"),
        (lambda: ImagePreprocess(32.5, None), "resize; expected"),
        (lambda: ImagePreprocess(32, None, 9), r"resample; expected 0 \(nearest\)"),
        (lambda: ImagePreprocess(32, None, mean=(), std=(), channels=4), r"channels; expected 3 \(RGB\) or 1"),
        (lambda: ImagePreprocess(32, None, std=(1.0, -1.0, 1.0)), "positive in std"),
        (lambda: ImagePreprocess(32, None, mean=(float("nan"), 0.0, 0.0)), "finite numbers"),
        (lambda: ArrayPreprocess((3,), (1.0, 2.0, 3.0)), r"do not fit its shape \(3,\); .* or 3; got 3 and 0"),
        (lambda: ArrayPreprocess((3,), std=(2.0,) * 3), "do not fit its shape"),
        (lambda: ArrayPreprocess((3,), (1.0, 2.0), (1.0, 2.0)), "got 2 and 2"),
        (lambda: ArrayPreprocess((2, 3), (1.0, 2.0), (1.0, 2.0)), "got 2 and 2"),
        (lambda: ArrayPreprocess((), (1.0,), (2.0,)), "expected none; got 1 and 1"),
        (lambda: ArrayPreprocess(4), r"the shape of a row; expected whole numbers, such as \(3,\); got 4"),
        (lambda: ArrayPreprocess((2.5,)), r"the shape of a row.* got \(2.5,\)"),
        (lambda: ArrayPreprocess((3,), (0.0,) * 3, (1.0, 0.0, 1.0)), "holds a zero"),
    ],
)
def test_values_are_checked_when_it_is_made(made: Any, message: str) -> None:
    """And not by the first row, nor by numbers that are none."""
    with pytest.raises(ModelError, match=message):
        made()


def test_values_that_numpy_gives_are_taken() -> None:
    pixels = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    own = ImagePreprocess([np.int64(6), 4], [4, np.int64(2)])
    assert own(pixels).shape == (3, 4, 2)
    assert preprocess_from_json(json.loads(json.dumps(own.to_json()))) == own
    assert ImagePreprocess(np.int64(6), None)(pixels).shape == (3, 6, 6)
    assert ArrayPreprocess((2, 3), (1.0,), (2.0,))(np.ones((2, 3))).tolist() == [[0.0] * 3] * 2


def test_texts_are_padded_cut_and_reloaded(zoo: Callable[[str], Network], folders: Callable[[str], Path]) -> None:
    own = zoo("bert").preprocess
    assert isinstance(own, TextPreprocess)
    rows = [own("a good film"), own("it was not very good"), own("bad " * 100)]
    assert rows[0]["input_ids"].tolist() == [2, 5, 6, 8, 3]
    assert rows[2]["input_ids"].shape == (own.max_length,) == (32,)
    batch = own.collate(rows[:2])
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0], [1] * 7]
    assert batch["input_ids"][0, 5:].tolist() == [0, 0]
    again = preprocess_from_json(json.loads(json.dumps(own.to_json())))
    assert again("a bad film")["input_ids"].tolist() == own("a bad film")["input_ids"].tolist()
    assert pickle.loads(pickle.dumps(own))("a")["input_ids"].tolist() == own("a")["input_ids"].tolist()
    assert "source" not in own.identity()


def test_a_changed_tokeniser_is_refused(tmp_path: Path) -> None:
    first = tokenizer()
    first.save_pretrained(tmp_path)
    own = TextPreprocess.of(str(tmp_path), first, 16)
    changed = tokenizer()
    changed.add_tokens(["new"])
    changed.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has changed"):
        preprocess_from_json(own.to_json())


def test_padding_does_not_touch_a_rows_embedding(zoo: Callable[[str], Network]) -> None:
    network = zoo("bert")
    own = network.preprocess
    short, long = own("a good film"), own("it was the very bad film it was not good")
    with torch.no_grad():
        alone = network.forward(own.collate([short]))
        beside = network.forward(own.collate([short, long]))[:1]
    torch.testing.assert_close(beside, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pack", "top1"), [("mobilenet_v1_0.25_128", 49.5), ("mobilenet_v1_0.5_160", 72.0), ("mobilenet_v2_1.0_224", 88.0)]
)
def test_published_accuracy_on_real_photographs(pack: str, top1: float, data_pack: Path) -> None:
    """The figures of the data pack; its classes are label + 1, as 0 is the background."""
    network = load(str(data_pack / "weights" / pack))
    table = pq.read_table(data_pack / "images/imagenet_sample200/test.parquet")
    hits = 0
    for start in range(0, len(table), 20):
        part = table.slice(start, 20)
        rows = [Image.open(io.BytesIO(row["bytes"].as_py())) for row in part["image"]]
        with torch.no_grad():
            guess = network.forward(network.preprocess.collate([network.preprocess(row) for row in rows])).argmax(1)
        hits += int((guess == torch.tensor(part["label"].to_pylist()) + 1).sum())
    assert 100 * hits / len(table) == pytest.approx(top1, abs=0.01)


def test_codes_of_categories_are_checked_drawn_and_not_normalised() -> None:
    own = ArrayPreprocess((3,), (0.0, 1.0, 2.0), (1.0, 2.0, 4.0), categories=(5, 0, 2))
    assert own(np.array([4, 5.0, 1])).tolist() == [4.0, 2.0, 1.0]
    drawn = own.example(200)
    assert torch.equal(drawn[:, 0].unique(), torch.arange(5.0))
    assert torch.equal(drawn[:, 2].unique(), torch.arange(2.0))
    assert len(drawn[:, 1].unique()) == 200
    for wrong, got in ([5, 0, 0], "5"), ([0, 0, -1], "-1"), ([1.5, 0, 0], "1.5"), ([np.nan, 0, 0], "nan"):
        column, last = (2, 1) if got == "-1" else (0, 4)
        match = rf"column {column} of a row holds no code.*whole number from 0 to {last}; got {got}"
        with pytest.raises(DataError, match=match):
            own(np.array(wrong, float))
    for shape, categories in ((2,), (1,)), ((2, 2), (1, 1)), ((2,), (3, -1)):
        with pytest.raises(ModelError, match="categories of columns"):
            ArrayPreprocess(shape, categories=categories)


def test_json_without_categories_is_what_it_was() -> None:
    assert ArrayPreprocess((2,)).to_json() == {"kind": "array", "shape": [2], "mean": [], "std": []}


def test_dicts_of_tensors_become_a_batch_name_by_name() -> None:
    class Parts(ArrayPreprocess):
        def __call__(self, raw: Any) -> dict[str, torch.Tensor]:
            row = super().__call__(raw)
            return {"left": row[:1], "right": row[1:]}

    batch = Parts((3,)).collate([Parts((3,))(row) for row in ([1, 2, 3], [4, 5, 6])])
    assert {name: value.tolist() for name, value in batch.items()} == {"left": [[1], [4]], "right": [[2, 3], [5, 6]]}


def test_arrays_stand_for_tuples() -> None:
    plain = ImagePreprocess((4, 6), (4, 4), mean=(0.5,) * 3, std=(0.25,) * 3)
    given = ImagePreprocess(np.array([4, 6]), np.array([4, 4]), mean=torch.full((3,), 0.5), std=np.full(3, 0.25))
    assert given == plain
    assert given.to_json() == plain.to_json()
    assert ArrayPreprocess((2,), np.zeros(2), np.ones(2)) == ArrayPreprocess((2,), (0.0, 0.0), (1.0, 1.0))
    assert ArrayPreprocess([2], [0.0, 0.0], [1.0, 1.0]) == ArrayPreprocess((2,), (0.0, 0.0), (1.0, 1.0))
