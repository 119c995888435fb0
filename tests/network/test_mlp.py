"""The perceptron: its layers by hand, saved and loaded, what it refuses."""

from __future__ import annotations

import pytest
import torch

from regraft.errors import ModelError
from regraft.network import ImagePreprocess, load
from regraft.network.architectures import build
from regraft.network.loaders import bundled
from regraft.network.mlp import mlp

SMALL = {"classes": 3, "size": 4, "width": 5, "depth": 2}


def test_it_is_layers_of_relus_over_all_pixels() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, images = mlp(**SMALL), torch.randn(2, 3, 4, 4)
    value = images.reshape(2, 48)
    for layer in (module.linear1, module.linear2):
        value = (value @ layer.weight.T + layer.bias).clamp_min(0)
    torch.testing.assert_close(module(images), value @ module.fc.weight.T + module.fc.bias)
    assert sum(p.numel() for p in mlp(10, in_channels=1).parameters()) == 785 * 128 + 3 * 129 * 128 + 129 * 10


def test_it_is_saved_and_loaded_like_any_backbone(tmp_path) -> None:
    module = build("mlp", SMALL)
    view = ImagePreprocess(resize=(4, 4), crop=None)
    bundled.save_folder(tmp_path / "mlp", module, arch="mlp", options=SMALL, preprocess=view, classes="abc")
    network = load(str(tmp_path / "mlp"))
    assert torch.equal(network.params["linear2.weight"], module.linear2.weight)
    assert network.head == "fc"
    assert next(site.shape for site in network.sites if site.name == "embedding") == (5,)
    assert network.match(["activation"]) == ("relu1", "relu2")


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(ModelError, match="mlp cannot be built"):
        mlp(3, depth=0)
