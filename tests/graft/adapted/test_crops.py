"""Predictions over random crops: the mean of what each crop says, at seeded places."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import regraft
from regraft.app.demo import digits
from regraft.data import Target
from regraft.errors import DataError, ModelError, RecipeError
from regraft.features.maps import whole_images
from regraft.graft.adapted.crops import _Cropped, _larger, predict_over_crops
from regraft.graft.stages.augment import not_augmented
from regraft.network import ImagePreprocess, from_module
from regraft.network.loaders.transformers import image_preprocess


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    data = digits().limit(40, 0)
    run = regraft.adapt(data, "regraft/fashion-resnet", method="probe", folds=2, cache=tmp_path_factory.mktemp("c"))
    return run.adapted, data.take(data.rows_of("test")[:12])


def test_the_mean_over_crops_is_seeded_and_lies_near_the_plain_prediction(model) -> None:
    adapted, some = model
    ten = predict_over_crops(adapted, some, crops=4)
    np.testing.assert_allclose(ten.probabilities.sum(1), 1.0, atol=1e-6)
    again = predict_over_crops(adapted, some, crops=4, batch_size=5)
    np.testing.assert_allclose(again.probabilities, ten.probabilities, atol=1e-6)
    other = predict_over_crops(adapted, some, crops=4, seed=1)
    assert np.abs(other.probabilities - ten.probabilities).max() > 1e-4
    one = [predict_over_crops(adapted, some, crops=n).probabilities for n in (1, 2)]
    assert np.abs(one[0] - one[1]).max() > 1e-4


def test_a_crop_is_a_piece_of_the_larger_image() -> None:
    plain = ImagePreprocess(resize=32, crop=(28, 28), mean=(), std=())
    assert _larger(plain, (28, 28)) == 32
    assert _larger(ImagePreprocess(resize=(28, 28), crop=None), (28, 28)) == (32, 32)
    assert _larger(ImagePreprocess(resize=None, crop=(28, 14)), (28, 14)) == 32  # and the other in proportion
    whole = ImagePreprocess(resize=32, crop=None, mean=(), std=())
    image = Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 50, 3), dtype=np.uint8))
    large, piece = whole(image), _Cropped(whole, (28, 28), 0, 3)(image)
    assert piece.shape == (3, 28, 28)
    places = [
        (i, j)
        for i in range(large.shape[1] - 27)
        for j in range(large.shape[2] - 27)
        if torch.equal(large[:, i : i + 28, j : j + 28], piece)
    ]
    assert len(places) == 1


def test_error_bars_over_crops_are_those_of_their_mixture(tmp_path) -> None:
    data = digits().limit(40, 0)
    numbers = Target("regression", ("y",), data.target.values[:, None].astype(float))
    data = replace(data, target=numbers)
    adapted = regraft.adapt(data, "regraft/fashion-resnet", method="tangent-gp", folds=2, cache=tmp_path).adapted
    some = data.take(data.rows_of("test")[:5])
    plain, size = adapted.network.preprocess, (32, 32)
    assert (plain.crop, plain.resize) == (None, size)
    whole = replace(plain, resize=_larger(plain, size))
    means, deviations = [], []
    for crop in range(3):
        piece = _Cropped(whole, size, 0, crop)
        mean, deviation = adapted.predicted(torch.stack([piece(some.inputs.read(i)) for i in range(5)]))
        means.append(mean.numpy())
        deviations.append(deviation.numpy())
    calls = []
    found = predict_over_crops(adapted, some, crops=3, progress=lambda done, rows: calls.append((done, rows)))
    np.testing.assert_allclose(found.probabilities, np.mean(means, 0), rtol=1e-5)
    mixture = np.mean(np.square(deviations), 0) + np.var(means, 0)
    np.testing.assert_allclose(found.spread, np.sqrt(mixture), rtol=1e-4)
    assert calls == [(5, 15), (10, 15), (15, 15)]


def test_what_has_no_crops_is_refused(model) -> None:
    adapted, some = model
    with pytest.raises(DataError, match="at least 1"):
        predict_over_crops(adapted, some, crops=0)
    for wrong in ({"batch_size": 0}, {"batch_size": -3}, {"workers": -1}):
        with pytest.raises(RecipeError, match="out of range"):
            predict_over_crops(adapted, some, **wrong)
    with pytest.raises(DataError, match="mask is of the whole image"):
        predict_over_crops(replace(adapted, kind="segmentation"), some)


def test_what_a_processor_of_its_own_way_excludes_is_said_as_it_is(model) -> None:
    """It reads images: what cannot be done is to cut, to change or to resize them otherwise."""
    hub = pytest.importorskip("transformers")
    own = image_preprocess(hub.ViTImageProcessorPil(size={"longest_edge": 60, "shortest_edge": 40}))
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = from_module(nn.Sequential(*layers), own)
    assert not_augmented(own) == "ProcessorPreprocess, which makes numbers of images its own way"
    with pytest.raises(ModelError, match="resizes images its own way; expected images of any size"):
        whole_images(network, 40, 40)
    adapted, some = model
    with pytest.raises(DataError, match="resizes images its own way, so that no crops"):
        predict_over_crops(replace(adapted, network=network), some)
