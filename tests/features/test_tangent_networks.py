"""Tangents of every architecture in float32, against Jacobians in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.features.test_tangent import jacobian, made
from tests.network.zoo import OWN, build, save
from torch import Tensor, nn

from regraft.features import Tangent, ntk
from regraft.linear import Blocks
from regraft.network import Network, load

TOLERANCE = 1e-5  # relative to the largest entry


class Convolutions(nn.Module):
    """Grouped, dilated, strided, depthwise and transposed convolutions; GroupNorm; ReLU's relatives."""

    def __init__(self, padding: str = "reflect") -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 8, 3, groups=2, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.dilated = nn.Conv2d(8, 8, 3, dilation=2, padding=2, padding_mode=padding)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2, output_padding=1)
        self.batch_norm = nn.BatchNorm2d(6)
        self.down = nn.Conv2d(6, 5, 3, stride=3, bias=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.hardswish(self.stem(x))
        x = nn.functional.relu6(self.norm(self.grouped(x)))
        x = nn.functional.max_pool2d(nn.functional.leaky_relu(self.dilated(x)), 2, 1) + self.depthwise(x)[..., 1:, 1:]
        x = self.down(torch.relu(self.batch_norm(self.up(x))))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Graphs(nn.Module):
    """Two rounds of messages over a fixed graph, by scattered addition."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("source", torch.tensor([0, 1, 2, 3, 0, 4]))
        self.register_buffer("target", torch.tensor([1, 2, 0, 0, 4, 3]))
        self.embed = nn.Linear(3, 6)
        self.messages = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.selves = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for message, own in zip(self.messages, self.selves):
            sent = torch.zeros_like(x).index_add_(1, self.target, message(x)[:, self.source])
            x = torch.relu(sent + own(x))
        places = self.source[:5].view(1, 5, 1).expand_as(x)
        return self.head(torch.zeros_like(x).scatter_add(1, places, x).mean(1))


def check(network: Network, select: str | None, batch: object, fast: bool, *, graph: bool) -> Tangent:
    of = "logits" if network.has_logits else "embedding"
    tangent = Tangent(network, select, batch, of=of, batch_size=2, fast=fast)
    matrix = jacobian(network, tangent.names, batch)
    made_up = torch.Generator().manual_seed(0)
    weights = torch.randn(tangent.n_coefficients, generator=made_up)
    outputs = torch.randn((tangent.n_rows, tangent.n_outputs), generator=made_up)
    weights, outputs = weights.to(network.device), outputs.to(network.device)
    image, back = tangent.apply(Blocks.unflatten(weights, tangent.shapes)), tangent.adjoint(outputs)
    close(image.reshape(-1), matrix @ weights.double())
    close(back.flatten(), matrix.T @ outputs.reshape(-1).double())
    identity = torch.dot(image.double().reshape(-1), outputs.double().reshape(-1))
    gap = identity - torch.dot(weights.double(), back.flatten().double())
    assert abs(float(gap)) <= TOLERANCE * float(image.double().norm() * outputs.double().norm())
    rows = tangent.rows([2, 0])
    found = torch.cat([block.flatten(0, 1).flatten(1) for block in rows.values()], dim=1)
    close(found, matrix.view(tangent.n_rows, tangent.n_outputs, -1)[[2, 0]].flatten(0, 1))
    assert any("cached activations (" in line for line in tangent.path) == graph, tangent.path
    close(ntk(tangent), matrix @ matrix.T)
    close(
        ntk(tangent, tangent.take([2, 0])),
        (matrix @ matrix.T).unflatten(1, (-1, tangent.n_outputs))[:, [2, 0]].flatten(1),
    )
    return tangent


def close(found: Tensor, expected: Tensor) -> None:
    assert float((found.double() - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Network]:
    pytest.importorskip("transformers")

    def network(family: str) -> Network:
        torch.manual_seed(0)
        model, processor = build(family)
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.5, 2)
            for parameter in part.parameters(recurse=False):
                if parameter.ndim > 1:  # as large as trained weights, so that derivatives are no mere rounding
                    nn.init.normal_(parameter, std=0.3)
        return load(str(save(Path(tmp_path_factory.mktemp(family)), model, processor)))

    return network


SLOW = {"mobilenet_v1", "dinov2", "swin", "convnext", "recurrent", "encoder", "positions-first"}


def named(names: list[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.mark.parametrize(
    "family", named(["resnet", "mobilenet_v1", "mobilenet_v2", "convnext", "swin", "vit", "dinov2"])
)
def test_families_by_graph(family: str, zoo: Callable[[str], Network], device: str) -> None:
    network = zoo(family).to(device)
    check(network, None, network.example(3), True, graph=True)


@pytest.mark.parametrize("family", ["resnet", "mobilenet_v2", "convnext", "swin", "vit", "bert"])
def test_families_by_torch_func(family: str, zoo: Callable[[str], Network], device: str) -> None:
    network = zoo(family).to(device)
    check(network, None, network.example(3), False, graph=False)


OWN_SELECT = {
    "residual": None,
    "functional": "again.*",
    "recurrent": "lstm.*",
    "encoder": None,
    "positions-first": None,
}


@pytest.mark.parametrize("name", named(list(OWN)))
def test_own_modules(name: str, device: str) -> None:
    make, shape = OWN[name]
    network = made(make(), shape).to(device)
    graph = name != "recurrent" or device == "cpu"  # whose kernel on CUDA has no forward-mode rule
    check(network, OWN_SELECT[name], network.example(4), True, graph=graph)
    check(network, OWN_SELECT[name], network.example(4), False, graph=False)


@pytest.mark.parametrize(("padding", "fast"), [("reflect", True), ("reflect", False), ("circular", True)])
@pytest.mark.parametrize("select", ["*", "grouped.*", "[dun]*", "batch_norm.*", "up.bias", "head.*"])
def test_convolutions(padding: str, fast: bool, select: str, device: str) -> None:
    torch.manual_seed(0)
    network = made(Convolutions(padding), (3, 8, 8)).to(device)
    check(network, select, network.example(3), fast, graph=fast)


@pytest.mark.parametrize(("which", "select"), [("weight", "*"), ("weight", "3.*"), ("bias", "*")])
def test_norms_that_share_a_parameter(which: str, select: str, device: str) -> None:
    first, second = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    setattr(second, which, nn.init.uniform_(getattr(first, which), 0.5, 2))
    layers = nn.Conv2d(3, 4, 3), first, nn.ReLU(), nn.Conv2d(4, 4, 3), second, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    network = made(nn.Sequential(*layers), (3, 6, 6)).to(device)
    check(network, select, network.example(3), True, graph=True)


@pytest.mark.parametrize("fast", [True, False])
def test_messages_on_a_graph(fast: bool, device: str) -> None:
    torch.manual_seed(0)
    network = made(Graphs(), (5, 3)).to(device)
    tangent = check(network, "*.1.*", network.example(3), fast, graph=fast)
    assert tangent.names == ("messages.1.weight", "messages.1.bias", "selves.1.weight", "selves.1.bias")


def test_embeddings_and_every_parameter_of_a_text_network(zoo: Callable[[str], Network], device: str) -> None:
    network = zoo("bert").to(device)
    batch = network.place(
        network.preprocess.collate([network.preprocess(text) for text in ("a good film", "bad", "it is not very good")])
    )
    tangent = check(network, "embeddings.*", batch, False, graph=False)
    assert "embeddings.word_embeddings.weight" in tangent.shapes


def test_rows_that_go_together_by_their_lengths_are_passed_by_the_tangent_itself(zoo: Callable[[str], Network]) -> None:
    for family, text in (("bert", True), ("resnet", False)):
        network = zoo(family)
        tangent = Tangent(network, network.topmost, network.example(3), of="embedding")
        assert (tangent.recorder() is None) == text


def test_texts_with_and_without_padding(zoo: Callable[[str], Network], device: str) -> None:
    """Transformers leave the mask out of a batch without padding, which no trace can follow; the cut batches here are
    two rows with padding, two without, and one."""
    network = zoo("bert").to(device)
    texts = ("bad", "a good film", "it is not very good", "it is not very bad", "it is a film")
    batch = network.place(network.preprocess.collate([network.preprocess(text) for text in texts]))
    assert batch["attention_mask"].all(1).tolist() == [False, False, True, True, False]
    check(network, None, batch, True, graph=True)
    assert not torch.compiler.is_compiling()


class Top(nn.Module):
    """One convolution, ReLU and average pool above a stem."""

    def __init__(self, bias: bool, norm: bool, **options: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 6, 3, padding=1, bias=bias, **options)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norm(self.conv(torch.relu(self.stem(x))))).mean((2, 3)))


@pytest.mark.parametrize("select", ["conv.weight", "[cn]o*"])
@pytest.mark.parametrize(
    ("bias", "norm", "options"),
    [(False, True, {}), (True, False, {"groups": 2}), (True, True, {"stride": 2, "dilation": 2})],
)
def test_pooled_outer_products(bias: bool, norm: bool, options: dict[str, int], select: str, device: str) -> None:
    torch.manual_seed(0)
    network = made(Top(bias, norm, **options), (3, 18, 19)).to(device)
    tangent = check(network, select, network.example(5), True, graph=False)
    assert any("pooled outer products of conv.weight" in line for line in tangent.path)
    graph = check(network, select, network.example(5), False, graph=False)
    y = torch.randn(5, 3).to(device)
    close(tangent.adjoint(y).flatten(), graph.adjoint(y).flatten().double())


class Gated(Top):
    """Every channel under one gate for each position, a convolution of one output."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(torch.relu(self.stem(x))))
        return self.fc((x * torch.relu(self.norm(x))).mean((2, 3)))


def test_a_gate_of_all_channels_is_no_pooled_outer_product(device: str) -> None:
    torch.manual_seed(0)
    module = Gated(True, False)
    module.norm = nn.Conv2d(6, 1, 3, padding=1)
    network = made(module, (3, 9, 9)).to(device)
    check(network, "norm.*", network.example(5), True, graph=True)
    embedding = Tangent(network, "norm.*", network.example(5), of="embedding").prepare()
    assert "cached activations" in embedding.path[-2]


def test_pooled_outer_products_only_where_they_pay(device: str) -> None:
    torch.manual_seed(0)
    network = made(Top(True, False), (3, 7, 7)).to(device)
    assert "cached activations" in Tangent(network, "conv.*", network.example(3)).path[-2]
    wide = made(Top(True, False), (3, 18, 18))
    assert "pooled outer" in Tangent(wide, "conv.*", wide.example(3)).path[-1]
    assert "cached activations" in Tangent(wide, ["stem.*", "conv.*"], wide.example(3)).path[-2]
    assert "cached activations" in Tangent(wide, "conv.*", wide.example(3), memory=100).path[-2]
