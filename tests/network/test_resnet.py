"""The package's own networks: names, maps, closed forms, and the data pack's weights."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.nn import functional

from regraft.errors import ModelError
from regraft.network.architectures import build
from regraft.network.resnet import BasicBlock, PaddedShortcut, cifar_resnet, s4, small_resnet


def _maps(module: torch.nn.Module, size: int, *names: str) -> list[tuple[int, ...]]:
    """Shapes of the outputs of the named parts, without the batch."""
    shapes: list[tuple[int, ...]] = []
    hooks = [
        module.get_submodule(name).register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape[1:])))
        for name in names
    ]
    with torch.no_grad():
        module.eval()(torch.randn(2, 3, size, size))
    for hook in hooks:
        hook.remove()
    return shapes


def test_small_resnet_has_torchvisions_names_and_halves_after_the_first_stage() -> None:
    module = small_resnet((4, 8, 12), blocks=2, classes=7)
    names = [name for name, _ in module.named_parameters()]
    for name in ("conv1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer1.1.bn2.weight",
                 "layer2.0.downsample.0.weight", "layer3.1.conv2.weight", "fc.bias"):  # fmt: skip
        assert name in names
    assert "layer1.0.downsample.0.weight" not in names  # same width and stride: the identity
    assert _maps(module, 20, "layer1", "layer2", "layer3", "fc") == [(4, 20, 20), (8, 10, 10), (12, 5, 5), (7,)]


def test_stem_stride_and_single_channel() -> None:
    module = small_resnet((4, 8), classes=3, in_channels=1, stem_stride=2).eval()
    assert module(torch.zeros(2, 1, 16, 16)).shape == (2, 3)
    assert module.layer1(module.conv1(torch.zeros(1, 1, 16, 16))).shape[-2:] == (8, 8)


def test_a_block_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    block = BasicBlock(3, 3, 1, None).double().eval()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        block.bn1.running_mean.uniform_(-1, 1)
        block.bn2.running_var.uniform_(0.5, 2)
        inner = functional.conv2d(x, block.conv1.weight, padding=1) - block.bn1.running_mean[:, None, None]
        inner = torch.relu(inner / (1 + 1e-5) ** 0.5)
        outer = functional.conv2d(inner, block.conv2.weight, padding=1)
        outer = outer / (block.bn2.running_var[:, None, None] + 1e-5).sqrt()
        torch.testing.assert_close(block(x), torch.relu(outer + x), rtol=1e-12, atol=1e-12)


def test_option_a_takes_every_second_pixel_between_zero_channels() -> None:
    x = torch.arange(2 * 4 * 5.0).view(1, 2, 4, 5)
    out = PaddedShortcut(2, 4, 2)(x)
    expected = torch.zeros(1, 4, 2, 3)
    for channel in range(2):
        for row in range(2):
            for column in range(3):
                expected[0, 1 + channel, row, column] = x[0, channel, 2 * row, 2 * column]
    assert torch.equal(out, expected)


def test_s4_maps_are_32_16_8_4() -> None:
    module = s4(11)
    shapes = _maps(module, 32, "relu1", "relu2", "relu3", "relu4", "fc")
    assert shapes == [(32, 32, 32), (64, 16, 16), (128, 8, 8), (256, 4, 4), (11,)]


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (56, 853_018)])
def test_cifar_resnets_load_the_packs_weights_and_reach_their_figures(
    data_pack: Path, depth: int, parameters: int
) -> None:
    folder = data_pack / "weights" / f"cifar10_resnet{depth}"
    config = json.loads((folder / "config.json").read_text())
    module = cifar_resnet(depth)
    module.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"), strict=True)
    assert sum(p.numel() for p in module.parameters()) == parameters == config["parameters"]

    table = pq.read_table(data_pack / "images" / "cifar10_lossless200" / "test.parquet")
    pixels = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in table["image"].to_pylist()]
    inputs = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(config["input"][name]).view(3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        predicted = module.eval()((inputs - mean) / std).argmax(1)
    accuracy = 100 * float((predicted == torch.tensor(table["label"].to_pylist())).double().mean())
    assert accuracy == pytest.approx({20: 90.0, 56: 91.0}[depth], abs=1.0)


def test_what_cannot_be_built_is_said_in_a_sentence() -> None:
    with pytest.raises(ModelError, match="one of cifar_resnet, lenet, mlp, molecule_gcn, s4, small_resnet, tiny_vit"):
        build("resnet9000", {})
    with pytest.raises(ModelError, match="depth of 6 n"):
        cifar_resnet(21)
    with pytest.raises(ModelError, match="positive integers"):
        small_resnet((16, 0))
    with pytest.raises(ModelError, match="cannot be built from its options"):
        build("s4", {"width": 3})
