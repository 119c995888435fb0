"""What makes up a block where its parts stand in lists side by side."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from regraft.network import ArrayPreprocess, from_module
from regraft.network.blocks import find_blocks, members
from regraft.network.gcn import MoleculeGCN


def _pair(width: int = 4) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 1, width)


class Lists(nn.Module):
    """Two lists of blocks and three of normalisations, one of another length, as some language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.ModuleList(nn.LayerNorm(4) for _ in range(3))
        self.attentions = nn.ModuleList(_pair() for _ in range(3))
        self.norms1 = nn.ModuleList(nn.LayerNorm(4) for _ in range(3))
        self.forwards = nn.ModuleList(_pair() for _ in range(3))
        self.norms2 = nn.ModuleList(nn.LayerNorm(4) for _ in range(3))
        self.outputs = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.stages = nn.ModuleList(nn.Sequential(_pair(), _pair()) for _ in range(3))


@pytest.mark.parametrize("prefix", ["", "encoder."])
def test_a_list_belongs_to_the_blocks_before_it(prefix: str) -> None:
    module: nn.Module = Lists()
    if prefix:
        whole = nn.Module()
        whole.encoder = module
        module = whole
    found = {block.removeprefix(prefix): members(module, block) for block in find_blocks(module)}
    for number in range(3):
        assert found[f"attentions.{number}"] == (f"{prefix}attentions.{number}", f"{prefix}norms1.{number}")
        assert found[f"forwards.{number}"] == (f"{prefix}forwards.{number}", f"{prefix}norms2.{number}")
        assert found[f"stages.{number}.0"] == (f"{prefix}stages.{number}.0",)  # of a Sequential, which runs by itself
    for path in (f"{prefix}norms1.1", f"{prefix}outputs", f"{prefix}attentions"):
        assert members(module, path) == (path,)


def test_the_normalisation_of_a_graph_convolution_is_part_of_its_block() -> None:
    module = MoleculeGCN(3, 8)
    assert find_blocks(module) == ("gnns.0", "gnns.1", "gnns.2")
    assert members(module, "gnns.1") == ("gnns.1", "batch_norms.1")


def test_blocks_of_one_list_have_no_other_parts() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"layers": nn.ModuleList([_pair(), _pair()])}))
    assert {members(module, block) for block in find_blocks(module)} == {("1.layers.0",), ("1.layers.1",)}


@pytest.mark.parametrize("normalised", [[4], [0, 4]])
def test_layers_whose_weights_are_made_of_others_are_layers(normalised: list[int]) -> None:
    """The parts of a weight normalisation make no block of a layer, and those of the head's are the head's."""
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    for layer in normalised:
        weight_norm(module[layer])
    network = from_module(module, ArrayPreprocess((6,)))
    assert network.blocks == ()
    assert (network.head, network.topmost) == ("4", ("2.*",))
