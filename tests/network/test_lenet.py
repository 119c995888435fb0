"""LeNet: its layers by hand, its size, saved and loaded, what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regraft.errors import ModelError
from regraft.network import ImagePreprocess, load
from regraft.network.architectures import build
from regraft.network.lenet import lenet
from regraft.network.loaders import bundled


def test_it_is_two_convolutions_and_three_linear_layers() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, images = lenet(4), torch.randn(2, 3, 28, 28)
    value = images
    for layer in (module.conv1, module.conv2):
        value = functional.max_pool2d(functional.conv2d(value, layer.weight, layer.bias).clamp_min(0), 2)
    value = value.reshape(2, 256)
    for linear in (module.fc1, module.fc2):
        value = (value @ linear.weight.T + linear.bias).clamp_min(0)
    torch.testing.assert_close(module(images), value @ module.fc3.weight.T + module.fc3.bias)
    assert sum(p.numel() for p in lenet(10, in_channels=1).parameters()) == 44_426


def test_it_is_saved_and_loaded_like_any_backbone(tmp_path) -> None:
    module = build("lenet", {"classes": 3})
    view = ImagePreprocess(resize=(28, 28), crop=None)
    bundled.save_folder(tmp_path / "net", module, arch="lenet", options={"classes": 3}, preprocess=view, classes="abc")
    network = load(str(tmp_path / "net"))
    assert torch.equal(network.params["conv2.weight"], module.conv2.weight)
    assert network.head == "fc3"
    assert next(site.shape for site in network.sites if site.name == "embedding") == (84,)


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(ModelError, match="lenet cannot be built"):
        lenet(0)
