"""Filter norms, orthogonality, and directions of one's own, against the definition written out."""

from __future__ import annotations

import pytest
import torch
from tests.diagnose.landscape.networks import objective
from torch import nn
from transformers.pytorch_utils import Conv1D

from regraft.diagnose import Objective
from regraft.diagnose.landscape import filter_norms, given_directions, normalised, random_directions, towards
from regraft.errors import DataError
from regraft.linear import Blocks
from regraft.network import ArrayPreprocess, from_module


def test_each_filter_has_the_norm_of_the_weights_filter() -> None:
    found = objective("cnn", "*")
    for vector in random_directions(found, 2, seed=3).vectors:
        for name, weight in found.point.items():
            if weight.ndim < 2:
                continue
            for moved, row in zip(vector[name], weight):
                assert float(moved.norm()) == pytest.approx(float(row.norm()), rel=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_filter_of_a_transposed_convolution_is_what_makes_one_output(groups: int) -> None:
    torch.manual_seed(0)
    up = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=groups)
    module = nn.Sequential(up, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    network = from_module(module, preprocess=ArrayPreprocess((4, 5, 5)))
    images, codes = torch.randn(7, 4, 5, 5), torch.arange(7) % 3
    found = Objective(network, images, codes, dtype=torch.float64)
    (moved,) = random_directions(found, 1, seed=3).vectors
    makes = up(images).sum((0, 2, 3))
    assert len(makes) == 6
    for channel in makes:
        (gradient,) = torch.autograd.grad(channel, up.weight, retain_graph=True)
        mine = gradient != 0
        assert int(mine.sum()) == 4 // groups * 9
        expected = float(up.weight.double()[mine].norm())
        assert float(moved["0.weight"][mine].norm()) == pytest.approx(expected, rel=1e-6)


def test_a_filter_of_gpt2s_linear_layer_is_a_column() -> None:
    layer, direction = Conv1D(3, 2), torch.tensor([[3.0, 0.0, 1.0], [4.0, 2.0, 0.0]])
    point = {"weight": torch.tensor([[1.0, 0.0, 0.0], [0.0, 3.0, 0.5]])}
    found = normalised({"weight": direction}, point, module=layer)["weight"]
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.0, 0.5], [0.8, 3.0, 0.0]]))


def test_biases_and_norms_are_left_out_or_one_filter() -> None:
    found = objective("cnn", "*")
    flat = [name for name, weight in found.point.items() if weight.ndim == 1]
    assert {"1.weight", "1.bias", "3.bias", "9.bias"} <= set(flat)
    left = random_directions(found, 1, seed=3)
    assert set(left.left_out) == set(flat)
    assert not any(bool(left.vectors[0][name].any()) for name in flat)
    whole = random_directions(found, 1, seed=3, vectors="whole")
    assert whole.left_out == ()
    for name in flat:
        moved, weight = whole.vectors[0][name], found.point[name]
        assert float(moved.norm()) == pytest.approx(float(weight.norm()), rel=1e-12)
        # Entry by entry, as one widely used library scales them, every number would move by its own size.
        assert not torch.allclose(moved.abs(), weight.abs(), rtol=1e-3)
    kept = [name for name in found.point if name not in flat]
    assert all(torch.equal(left.vectors[0][name], whole.vectors[0][name]) for name in kept)


def test_scaling_by_layer_and_zero_filters() -> None:
    point = {"w": torch.tensor([[3.0, 4.0], [0.0, 0.0]]).double(), "b": torch.tensor([2.0]).double()}
    direction = {"w": torch.tensor([[0.0, 2.0], [1.0, 1.0]]).double(), "b": torch.tensor([-7.0]).double()}
    assert torch.equal(filter_norms(point["w"]), torch.tensor([5.0, 0.0]).double())
    assert torch.equal(filter_norms(point["b"]), torch.tensor([2.0]).double())
    by_filter = normalised(direction, point, vectors="whole")
    assert torch.equal(by_filter["w"], torch.tensor([[0.0, 5.0], [0.0, 0.0]]).double())
    assert by_filter["b"].tolist() == [-2.0]
    by_layer = normalised(direction, point, by="layer")
    assert float(by_layer["w"].norm()) == pytest.approx(5.0, rel=1e-14)
    assert by_layer["b"].tolist() == [0.0]
    with pytest.raises(DataError, match="over the selected parameters"):
        normalised({"w": direction["w"]}, point)
    with pytest.raises(DataError, match="scaling of a direction"):
        normalised(direction, point, by="model")  # type: ignore[arg-type]


def test_orthogonal_before_scaling_and_the_cosine_after_it() -> None:
    found = objective("residual", "*")
    made = random_directions(found, 3, seed=5)
    assert made.raw_cosine < 1e-14
    raw = random_directions(found, 3, seed=5, by="none").vectors
    assert abs(float(raw[0].dot(raw[1]))) < 1e-10 * float(raw[0].norm() * raw[1].norm())
    a, b = made.vectors[0], made.vectors[2]
    assert made.cosines[0][2] == pytest.approx(float(a.dot(b) / (a.norm() * b.norm())), rel=1e-9)
    assert 0 < abs(made.cosines[0][2]) < 0.2
    assert made.lengths[0] == pytest.approx(float(a.norm()), rel=1e-12)


def test_same_seed_same_bytes_and_the_same_in_float32() -> None:
    one, two = (random_directions(objective("vit", "*"), seed=9) for _ in range(2))
    assert one.vectors == two.vectors
    assert one.to_json() == two.to_json()
    assert random_directions(objective("vit", "*"), seed=8).vectors != one.vectors
    single = random_directions(objective("vit", "*", torch.float32), seed=9)
    for name, value in single.vectors[1].items():
        torch.testing.assert_close(value.double(), one.vectors[1][name], rtol=1e-5, atol=1e-7)


def test_directions_of_ones_own() -> None:
    found = objective("mlp", "2.*")
    _, gradient = found.gradient()
    flat = torch.arange(found.size, dtype=torch.float64)
    made = given_directions(found, {"gradient": gradient, "eigenvector": flat})
    assert made.labels == ("gradient", "eigenvector")
    assert made.vectors[0] == gradient
    assert torch.equal(made.vectors[1].flatten(), flat)
    apart = given_directions(found, {"gradient": gradient, "eigenvector": flat}, orthogonal=True)
    assert abs(apart.cosines[0][1]) < 1e-14
    near = gradient.flatten() + 1e-7 * flat  # almost the first: what rounding leaves along it is taken off once more
    apart = given_directions(found, {"gradient": gradient, "near": near}, orthogonal=True)
    assert abs(apart.cosines[0][1]) < 1e-14
    other = found.point * 3.0
    assert torch.allclose(towards(found, other).flatten(), (found.point * 2.0).flatten(), rtol=1e-14)
    assert not float(towards(found, found.source).norm())


@pytest.mark.parametrize(
    ("case", "message"),
    [("span", "their span"), ("missing", "2.bias"), ("shape", "54"), ("nan", "finite"), ("none", "at least one")],
)
def test_directions_that_cannot_be(case: str, message: str) -> None:
    found = objective("mlp", "2.*")
    flat = torch.ones(found.size, dtype=torch.float64)
    given = {
        "span": {"a": flat, "b": -2 * flat},
        "missing": {"a": Blocks({"2.weight": found.point["2.weight"]})},
        "shape": {"a": flat[1:]},
        "nan": {"a": flat * torch.nan},
        "none": {},
    }[case]
    with pytest.raises(DataError, match=message):
        given_directions(found, given, orthogonal=True)  # type: ignore[arg-type]


def test_random_directions_that_cannot_be() -> None:
    with pytest.raises(DataError, match="does not move"):
        random_directions(objective("mlp", "2.bias"))
    with pytest.raises(DataError, match="1 or more"):
        random_directions(objective("mlp", "2.*"), 0)


class Scaled(nn.Module):
    """A scale of a map, the lengths of weight normalisation, and a layer of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(1, 4), nn.Parameter(torch.randn(4, 1, 1))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 5, 1))
        self.fc = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.normed(self.scale * self.first(x)[:, :, None, None]).mean((2, 3)))


def test_one_number_an_output_is_a_filter_in_layers_of_one_input_alone() -> None:
    torch.manual_seed(0)
    network = from_module(Scaled(), ArrayPreprocess((1,)))
    made = Objective(network, network.example(6), torch.arange(6) % 3, dtype=torch.float64)
    found = random_directions(made, 1, seed=0)
    lengths = "normed.parametrizations.weight.original0"
    assert set(found.left_out) == {"scale", lengths, "first.bias", "normed.bias", "fc.bias"}
    assert torch.allclose(found.vectors[0]["first.weight"].abs(), made.point["first.weight"].abs())
    whole = random_directions(made, 1, seed=0, vectors="whole").vectors[0]
    for name in ("scale", lengths):
        ratio = (whole[name] / made.point[name]).abs()
        assert float(ratio.std()) > 0.1
        assert torch.allclose(whole[name].norm(), made.point[name].norm())
