"""BatchNorm folded away: the same function, checked on every kind of layer that can take it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regraft.network import ArrayPreprocess, Network, from_module
from regraft.network.fold import fold

Zoo = Callable[[str], Network]


def network(module: nn.Module, shape: tuple[int, ...]) -> Network:
    torch.manual_seed(3)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.normal_()
            part.running_var.uniform_(0.3, 3)
            if part.weight is not None:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return from_module(module, ArrayPreprocess(shape))


def assert_equal(folded: Network, whole: Network, rows: int = 5) -> None:
    """Equal to the rounding of float32, relative to the largest output."""
    batch = whole.example(rows)
    expected = whole.forward(batch)
    error = (folded.forward(batch) - expected).abs().max() / expected.abs().max()
    assert float(error) < 2e-6


def norms(net: Network) -> int:
    return sum(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in net.module.modules())


LAYERS: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, ...]]] = {
    "stride": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), 6, (4, 7, 6)),
    "no bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), 6, (4, 7, 6)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), 6, (4, 7, 6)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), 8, (4, 7, 6)),
    "dilation": (lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=2), 6, (4, 7, 6)),
    "reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), 6, (4, 7, 6)),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", groups=2), 6, (4, 7, 6)),
    "same": (lambda: nn.Conv2d(4, 6, 3, padding="same"), 6, (4, 7, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), 6, (4, 5, 4)),
    "transposed groups": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False), 6, (4, 5, 4)),
    "1-d": (lambda: nn.Conv1d(4, 6, 3, groups=2), 6, (4, 9)),
    "transposed 1-d": (lambda: nn.ConvTranspose1d(6, 4, 3, groups=2), 4, (6, 9)),
    "3-d": (lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1)), 4, (2, 4, 5, 3)),
    "linear": (lambda: nn.Linear(5, 6), 6, (5,)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("affine", [True, False])
def test_layers(kind: str, affine: bool) -> None:
    make, width, shape = LAYERS[kind]
    torch.manual_seed(0)
    layer = make()
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}[len(shape)]
    module = nn.Sequential(layer, norm(width, affine=affine, eps=1e-3), nn.ReLU(), nn.Flatten())
    whole = network(module, shape)
    found = fold(whole)
    assert [(pair.norm, pair.into) for pair in found.folded] == [("1", "0")]
    assert found.kept == ()
    assert norms(found.network) == 0
    assert_equal(found.network, whole)
    new, old = found.network.module[0], whole.module[0]
    for name in ("stride", "padding", "dilation", "groups", "padding_mode", "output_padding"):
        assert getattr(new, name, None) == getattr(old, name, None)
    assert norms(whole) == 1, "the network itself was changed"


@pytest.mark.parametrize("family", ["resnet", "mobilenet_v1", "mobilenet_v2"])
def test_families(family: str, zoo: Zoo) -> None:
    whole = zoo(family)
    found = fold(whole)
    assert found.kept == ()
    assert len(found.folded) == norms(whole) > 0
    assert norms(found.network) == 0
    assert_equal(found.network, whole)
    assert found.network.fingerprint != whole.fingerprint


class Awkward(nn.Module):
    """BatchNorm in all the places where it cannot be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.first = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)
        self.twice, self.norm_twice = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.shared, self.after_shared = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.skip, self.after_skip = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.tied, self.tie, self.after_tied = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.tie.weight = self.tied.weight
        self.bound, self.after_bound = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.after_bound.bias = self.first.bias
        self.good, self.after_good = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(self.before(x)))
        x = self.norm_twice(self.twice(x))
        x = self.norm_twice(torch.relu(x))
        x = self.after_shared(self.shared(x)) + self.shared(x)
        y = self.skip(x)
        x = self.after_skip(y) * 0.5 + y
        x = self.after_tied(self.tied(x)) + self.tie(x)
        x = self.after_bound(self.bound(x))
        return self.after_good(self.good(x)).mean((2, 3))


def test_what_cannot_be_folded_stays_and_is_listed() -> None:
    torch.manual_seed(0)
    whole = network(Awkward(), (3, 5, 4))
    found = fold(whole)
    assert [(pair.norm, pair.into) for pair in found.folded] == [("after_good", "good")]
    kept = dict(found.kept)
    assert sorted(kept) == ["after_bound", "after_shared", "after_skip", "after_tied", "before", "norm_twice"]
    assert "no convolution or linear layer" in kept["before"]
    assert "2 times" in kept["norm_twice"]
    assert "shared before it" in kept["after_shared"]
    assert "elsewhere" in kept["after_skip"]
    assert "tied before it shares its weights" in kept["after_tied"]
    assert "it shares its parameters" in kept["after_bound"]
    assert_equal(found.network, whole)


def test_a_subclass_stays() -> None:
    class Louder(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(super().forward(x))

    whole = network(nn.Sequential(nn.Conv2d(2, 3, 1), Louder(3), nn.Flatten()), (2, 3, 3))
    found = fold(whole)
    assert found.folded == ()
    assert "Louder" in dict(found.kept)["1"]
    assert found.network is whole


def test_nothing_to_fold() -> None:
    whole = network(nn.Sequential(nn.Linear(3, 2)), (3,))
    assert fold(whole).network is whole
    assert fold(whole).folded == fold(whole).kept == ()


class Gate(nn.Module):
    """A second reader of the layer's output that is silent near zero: far from it, it is not."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.b, self.h = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.c(x)
        return self.h(torch.relu(self.b(z)) + torch.relu(z - 30))


def test_a_layer_with_a_reader_that_is_silent_on_the_example_keeps_its_norm() -> None:
    net = network(Gate(), (5,))
    done = fold(net)
    assert not done.folded
    assert "used elsewhere" in dict(done.kept)["b"]
    far = 100 * torch.randn(50, 5)
    torch.testing.assert_close(done.network.forward(far), net.forward(far))


def test_a_layer_whose_weight_is_computed_keeps_its_norm() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))
    net = network(nn.Sequential(layer, nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), (5,))
    done = fold(net)
    assert not done.folded
    assert "computes its weights" in dict(done.kept)["1"]


class Strict(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        return super().forward(x)


def test_a_module_that_takes_one_dtype_alone_keeps_its_norm() -> None:
    net = network(Strict(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), (5,))
    done = fold(net)
    assert done.network is net
    assert [norm for norm, _ in done.kept] == ["1"]


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / self.weight.std((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


def test_a_layer_that_changes_its_weights_first_is_the_reason() -> None:
    net = network(nn.Sequential(Standardised(2, 3, 1), nn.BatchNorm2d(3), nn.Flatten()), (2, 3, 3))
    done = fold(net)
    assert not done.folded
    assert dict(done.kept)["1"] == "0 before it is a Standardised, which does more than its weights say"
