"""Which normalisation would see one value of a channel, against what torch refuses to normalise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regraft.network.gcn import MoleculeGCN
from regraft.network.norms import lone_norms

LAYERS: dict[str, nn.Module] = {
    "none": nn.Conv2d(2, 3, 3),
    "map": nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)),
    "mean": nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3)),
    "vector": nn.Sequential(nn.Flatten(), nn.Linear(50, 4), nn.BatchNorm1d(4, affine=False)),
    "sequence": nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(2)),
    "row": nn.Sequential(nn.Flatten(), nn.LayerNorm(50)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_they_are_those_that_torch_does_not_train_on_one_row(name: str) -> None:
    module, row = LAYERS[name].train(), torch.randn(1, 2, 5, 5)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    found = lone_norms(module, row, module)
    assert module.training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    if found:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            module(row)
        assert found == {str(len(module) - 1)}  # type: ignore[arg-type]
    else:
        module(row)


def test_rows_of_any_length_may_have_one_value() -> None:
    module = MoleculeGCN(2, 4)
    assert lone_norms(module, {"atoms": torch.zeros(1, 5)}, module) == {"batch_norms.0", "batch_norms.1"}
