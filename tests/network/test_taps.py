"""Taps on every family: names, shapes, values found by other means, and that looking changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tests.network.zoo import FAMILIES, OWN, Residual, capture
from torch import Tensor, nn
from torch.nn import functional

from regraft.errors import ModelError, TapError
from regraft.network import About, ArrayPreprocess, ImagePreprocess, Network, from_module
from regraft.network.reading import first_tensor
from regraft.network.resnet import s4
from regraft.network.trace import trace

Zoo = Callable[[str], Network]

# activations, blocks, whether there are logits, and the first activation's shape
COUNTS = {
    "resnet": (7, 3, True, (8, 16, 16)),
    "mobilenet_v1": (27, 26, True, (8, 16, 16)),
    "mobilenet_v2": (35, 16, True, (8, 16, 16)),
    "convnext": (3, 3, True, (32, 8, 8)),
    "swin": (3, 3, True, (64, 32)),
    "vit": (2, 2, True, (17, 16)),
    "dinov2": (2, 2, False, (17, 16)),
    "bert": (2, 2, False, (12, 16)),
    "residual": (5, 2, True, (6, 12, 10)),
    "functional": (4, 0, True, (8,)),
    "recurrent": (2, 0, True, (5, 7)),
    "encoder": (2, 2, True, (5, 16)),
    "positions-first": (2, 2, True, (5, 16)),
}


@pytest.fixture
def any_network(zoo: Zoo, own: Zoo) -> Zoo:
    return lambda name: own(name) if name in OWN else zoo(name)


@pytest.mark.parametrize("name", [*FAMILIES, *OWN])
def test_kinds_are_found_and_looking_changes_nothing(name: str, any_network: Zoo) -> None:
    network = any_network(name)
    kinds = Counter(site.kind for site in network.sites)
    activations, blocks, logits, first = COUNTS[name]
    assert (kinds["activation"], kinds["block"], kinds["embedding"]) == (activations, blocks, 1)
    assert bool(kinds["logits"]) == logits == network.has_logits
    assert network.sites[0].shape == first

    batch = network.example(4)
    with torch.no_grad():
        plain = network.forward(batch)
    names = [site.name for site in network.sites]
    values, seen = capture(network, names, batch)
    with torch.no_grad():
        after = network.forward(batch)
    assert torch.equal(plain, seen)
    assert torch.equal(plain, after)
    assert not plain.requires_grad
    assert list(values) == names  # each once, in order of execution
    last = "logits" if logits else "embedding"
    assert torch.equal(values[last], plain)
    for site in network.sites:
        assert tuple(values[site.name].shape) == (4, *site.shape)
        assert len(site.shape) == {"map": 3, "tokens": 2, "vector": 1}[site.layout]
        assert not values[site.name].requires_grad
    again, _ = capture(network, names, batch)
    assert all(torch.equal(values[key], again[key]) for key in names)


@pytest.mark.parametrize("name", [*FAMILIES, *OWN])
def test_any_choice_of_sites_gives_the_values_of_the_whole(name: str, any_network: Zoo) -> None:
    network = any_network(name)
    batch = network.example(2)
    whole, _ = capture(network, [site.name for site in network.sites], batch)
    step = 1 + len(network.sites) // 20  # the deep ones repeat themselves
    for site in network.sites[::step]:
        alone, _ = capture(network, [site.name], batch)
        assert torch.equal(alone[site.name], whole[site.name]), site.name


@pytest.mark.parametrize("name", [*FAMILIES, *OWN])
def test_a_row_is_the_same_alone_and_in_a_batch(name: str, any_network: Zoo) -> None:
    """Axis 0 of every value counts rows: permuting the batch permutes every value."""
    network = any_network(name)
    batch = network.example(3)
    order = torch.tensor([2, 0, 1])
    shuffled = {key: v[order] for key, v in batch.items()} if isinstance(batch, dict) else batch[order]
    names = [site.name for site in network.sites]
    straight, _ = capture(network, names, batch)
    permuted, _ = capture(network, names, shuffled)
    for key in names:
        torch.testing.assert_close(permuted[key], straight[key][order], rtol=1e-4, atol=1e-5)


def test_in_place_modules_are_read_call_by_call(own: Zoo) -> None:
    network = own("residual")
    module, x = network.module, network.example(3)
    assert isinstance(module, Residual)
    names = [site.name for site in network.sites]
    assert names[:4] == ["relu", "layer1.0.relu:0", "layer1.0.relu:1", "layer1.0"]
    with torch.no_grad():  # the same network written out without a single in-place operation
        expected = {"relu": functional.relu(module.conv1(x))}
        h = expected["relu"]
        for i, block in enumerate(module.layer1):
            inner = functional.relu(block.bn1(block.conv1(h)))
            h = functional.relu(block.bn2(block.conv2(inner)) + h)
            expected |= {f"layer1.{i}.relu:0": inner, f"layer1.{i}.relu:1": h, f"layer1.{i}": h}
        expected["embedding"] = h.mean((2, 3))
        expected["logits"] = module.fc(expected["embedding"])
    values, _ = capture(network, names, x)
    assert list(expected) == names
    for key in names:
        torch.testing.assert_close(values[key], expected[key], rtol=0, atol=0)


def test_functions_are_read_call_by_call(own: Zoo) -> None:
    network = own("functional")
    module, x = network.module, network.example(3)
    with torch.no_grad():
        first = functional.relu(module.first(x))
        second = functional.gelu(module.again(first))
        third = functional.gelu(module.again(second))
        fourth = functional.relu(third + 0.1)
    values, output = capture(network, [site.name for site in network.sites], x)
    assert list(values) == ["relu():0", "gelu():0", "gelu():1", "relu():1", "embedding", "logits"]
    for key, expected in zip(values, (first, second, third, fourth, fourth)):
        torch.testing.assert_close(values[key], expected, rtol=0, atol=0)
    assert torch.equal(output, module.head(fourth))


def test_hidden_states_of_transformers_are_the_blocks(zoo: Zoo) -> None:
    for name in ("vit", "dinov2", "bert"):
        network = zoo(name)
        batch = network.example(2)
        values, _ = capture(network, network.match(["block"]), batch)
        arguments = dict(batch) if isinstance(batch, dict) else {"pixel_values": batch}
        with torch.no_grad():
            hidden = network.module(**arguments, output_hidden_states=True).hidden_states
        assert len(hidden) == 3
        assert torch.equal(values[network.blocks[0]], hidden[1])
        assert torch.equal(values[network.blocks[1]], hidden[2])


def test_channels_last_maps_are_turned(zoo: Zoo) -> None:
    """ConvNeXt computes its activation on (B, H, W, C) and its block on (B, C, H, W)."""
    network = zoo("convnext")
    batch, kept = network.example(2), {}
    handle = network.module.get_submodule("convnext.encoder.stages.0.layers.0.act").register_forward_hook(
        lambda _module, _args, out: kept.__setitem__("act", out.clone())
    )
    values, _ = capture(network, ["convnext.encoder.stages.0.layers.0.act"], batch)
    handle.remove()
    assert kept["act"].shape == (2, 8, 8, 32)
    assert torch.equal(values["convnext.encoder.stages.0.layers.0.act"], kept["act"].permute(0, 3, 1, 2))


class Turned(nn.Module):
    """Blocks on (B, H, W, C) maps, as torchvision's Swin has them; the second map is as wide as deep."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.blocks = nn.ModuleList([TurnedBlock(width), TurnedBlock(width)])
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class TurnedBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.act, self.down = nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


@pytest.mark.parametrize("height", [8, 10])
@pytest.mark.parametrize("width", [8, 10])
def test_channels_last_even_where_sizes_coincide(height: int, width: int) -> None:
    """5 or 4 positions a side and 5 channels: axis 1, the last axis or both have the features' length."""
    network = from_module(Turned(5), ArrayPreprocess((3, height, width)))
    shapes = {site.name: site.shape for site in network.sites}
    assert shapes["blocks.0"] == shapes["blocks.1"] == (5, height // 2, width // 2)
    assert shapes["blocks.0.act"] == (10, height // 2, width // 2)


def test_one_dimensional_convolutions_give_tokens() -> None:
    module = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 3))
    network = from_module(module, ArrayPreprocess((2, 9)))
    site = network.sites[0]
    assert (site.name, site.layout, site.shape) == ("1", "tokens", (7, 6))


class Permuted(nn.Module):
    """A module's output with its axes in another order; another layer may run behind it, as a second head does."""

    def __init__(self, module: nn.Module, order: tuple[int, ...], behind: nn.Module | None = None) -> None:
        super().__init__()
        self.module, self.order, self.behind = module, order, behind

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = functional.relu(self.module(x))
        other = () if self.behind is None else (self.behind(x.flatten(2).mean(2)),)
        return (x.permute(self.order), *other)


@pytest.mark.parametrize(
    ("module", "shape", "positions"),
    [
        (nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU()), (2, 9), (2,)),
        (nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU()), (2, 8), (2,)),  # as many positions as features
        (Permuted(nn.Conv1d(2, 6, 3), (0, 2, 1)), (2, 9), (1,)),
        (Permuted(nn.Conv2d(2, 6, 3), (0, 2, 3, 1)), (2, 9, 6), (1, 2)),
        (nn.Sequential(nn.Conv2d(2, 6, 3), nn.Flatten(2)), (2, 9, 6), (2,)),
        (Permuted(nn.Conv2d(2, 6, 3), (0, 1, 2, 3), nn.Linear(6, 4)), (2, 9, 6), (2, 3)),
        (nn.Sequential(nn.Conv3d(2, 6, 3), nn.ReLU()), (2, 5, 6, 7), (2, 3, 4)),
        (Permuted(nn.Conv3d(2, 6, 3), (0, 2, 3, 4, 1)), (2, 5, 6, 7), (1, 2, 3)),
    ],
)
def test_the_embedding_is_the_mean_of_positions_whichever_way_they_lie(
    module: nn.Module, shape: tuple[int, ...], positions: tuple[int, ...]
) -> None:
    network = from_module(module, ArrayPreprocess(shape))
    assert network.sites[-1].shape == (6,)
    x = network.example(4)
    out = first_tensor(network.module(x))
    torch.testing.assert_close(network.forward(x), out.mean(positions))
    weight = torch.randn(3, 6)
    torch.testing.assert_close(network.with_head(weight).forward(x), out.mean(positions) @ weight.T)


def test_sequences_of_a_length_of_their_own_give_no_site_where_rows_are_padded() -> None:
    """A tokenised row's padding is known of its tokens alone: not of every other one, nor of an axis of states."""

    class Shortened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer, self.states = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 6)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            x = functional.relu(self.layer(self.embed(input_ids))) * attention_mask[..., None]
            functional.gelu(self.layer(x[:, ::2]))
            (functional.silu(self.states(x)).mT @ x).sigmoid()
            return functional.relu(self.layer(x).sum(1))

    module, ids = Shortened(), torch.arange(30).view(3, 10) % 9
    run = lambda: module(ids, torch.ones_like(ids))  # noqa: E731
    every, kept = (
        [tap.site.name for tap in trace(module, run, 3, 0, True, None, tokens).taps if tap.site.layout == "tokens"]
        for tokens in (None, 10)
    )
    assert every == ["relu():0", "gelu()", "silu()", "sigmoid()"]
    assert kept == ["relu():0", "silu()"]


def test_prefix_tokens_and_the_headless_embedding(zoo: Zoo) -> None:
    vit, dinov2, bert, swin = (zoo(name) for name in ("vit", "dinov2", "bert", "swin"))
    for network in (vit, dinov2, bert):
        assert {site.prefix_tokens for site in network.sites if site.layout == "tokens"} == {1}
    assert {site.prefix_tokens for site in swin.sites} == {0}
    batch = dinov2.example(2)
    with torch.no_grad():
        hidden = dinov2.module(batch).last_hidden_state
        assert torch.equal(dinov2.forward(batch), hidden[:, 0])
        words = bert.module(**bert.example(2)).last_hidden_state
        torch.testing.assert_close(bert.forward(bert.example(2)), words.mean(1))  # the pooler is left out


def test_register_tokens_are_counted() -> None:
    class Registers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.register_tokens = nn.Parameter(torch.zeros(1, 3, 4))
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            front = torch.cat([self.cls_token, self.register_tokens], 1).expand(len(x), -1, -1)
            return functional.relu(self.layer(torch.cat([front, x], 1)))

    network = from_module(Registers(), ArrayPreprocess((6, 4)))
    assert (network.sites[0].shape, network.sites[0].prefix_tokens) == ((10, 4), 4)
    x = network.example(2)
    with torch.no_grad():
        assert torch.equal(network.forward(x), network.module(x)[:, 0])


def test_tuples_mappings_and_dataclasses_are_read() -> None:
    @dataclass
    class Answer:
        note: str
        logits: Tensor

    class Wrapped(nn.Module):
        def __init__(self, wrap: Callable[[Tensor], object]) -> None:
            super().__init__()
            self.layer, self.wrap = nn.Linear(4, 3), wrap

        def forward(self, x: Tensor) -> object:
            return self.wrap(self.layer(x))

    forms: list[Callable[[Tensor], object]] = [
        lambda y: (y, None),
        lambda y: [torch.zeros(1, dtype=torch.long), y],
        lambda y: {"aux": y * 0, "logits": y},
        lambda y: Answer("fine", y),
    ]
    for form in forms:
        network = from_module(Wrapped(form), ArrayPreprocess((4,)))
        x = network.example(2)
        assert network.head == "layer"
        assert torch.equal(network.forward(x), network.module.layer(x))


@pytest.mark.parametrize(
    ("output", "unread"),
    [
        (lambda y, h: y, ()),
        (lambda y, h: (y, None, [h.long()]), ()),  # what holds no floats was never in question
        (lambda y, h: (y, h), ((4,),)),
        (lambda y, h: {"main": y, "aux": [h, h.mean()]}, ((4,), ())),
        (lambda y, h: {"aux": h, "logits": y}, ()),
        (lambda y, h: {"aux": y, "last_hidden_state": h}, ()),
    ],
)
def test_outputs_behind_the_first_are_known_where_no_name_chose(output, unread) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> object:
            hidden = self.body(x)
            return output(self.head(hidden), hidden)

    assert from_module(Several(), ArrayPreprocess((4,))).unread == unread


class Ended(nn.Module):
    """Two linear layers, the last one's outputs given on through ``end``."""

    def __init__(self, end: Callable[[Tensor], Tensor], width: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, width)
        self.end = end
        self.register_buffer("spread", torch.rand(width) + 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first(x))
        return self.end(self.last(hidden)) if self.end is not _added else _added(self.last(hidden), hidden)


def _added(out: Tensor, hidden: Tensor) -> Tensor:
    return out + hidden


_OF_SCORES: list[Callable[[Tensor], Tensor]] = [
    lambda y: functional.softmax(y, 1),
    nn.Softmax(1),
    lambda y: y.log_softmax(-1),
    lambda y: y.sigmoid_(),
    lambda y: (y / 0.07 + 1).double(),
    lambda y: y.mul_(torch.arange(1.0, 4.0)).softmax(1).log(),
]


@pytest.mark.parametrize("end", _OF_SCORES)
def test_features_are_what_the_last_layer_reads_whatever_is_made_of_its_scores(end) -> None:
    network = from_module(Ended(end), ArrayPreprocess((4,)))
    batch = network.example(5)
    values, output = capture(network, ["embedding"], batch)
    assert torch.equal(values["embedding"], functional.relu(network.module.first(batch)))
    assert (network.head, network.has_logits, tuple(output.shape)) == ("", True, (5, 3))


@pytest.mark.parametrize("layer", [nn.Linear(6, 3), nn.Conv2d(6, 3, 1)])
def test_the_features_of_a_network_that_is_its_last_layer_alone_are_its_input(layer: nn.Module) -> None:
    network = from_module(layer, ArrayPreprocess((6,) if isinstance(layer, nn.Linear) else (6, 1, 1)))
    batch = network.example(5)
    values, output = capture(network, ["embedding", "logits"], batch)
    assert torch.equal(values["embedding"].flatten(1), batch.flatten(1))
    assert torch.equal(values["logits"], output)
    with torch.no_grad():
        assert torch.equal(output, layer(batch).flatten(1))
    assert network.with_head(torch.ones(2, 6)).forward(batch).shape == (5, 2)


_OF_FEATURES: list[Callable[..., Tensor]] = [
    functional.relu,
    nn.ReLU(inplace=True),
    lambda y: functional.normalize(y, dim=1),
    lambda y: y / y.norm(dim=1, keepdim=True),
    nn.LayerNorm(6),
    nn.BatchNorm1d(6),
    _added,
]


@pytest.mark.parametrize("end", _OF_FEATURES)
def test_a_last_layer_whose_outputs_are_normalised_or_rectified_gives_features(end) -> None:
    network = from_module(Ended(end, width=6), ArrayPreprocess((4,)))
    batch = network.example(5)
    values, output = capture(network, ["embedding"], batch)
    assert torch.equal(values["embedding"], output)
    assert not network.has_logits


@pytest.mark.parametrize("key", ["image_embeds", "last_hidden_state"])
def test_embeddings_that_a_last_layer_gives_are_those(key: str) -> None:
    """As of CLIP's projections."""
    network = from_module(Ended(lambda y: {key: y}), ArrayPreprocess((4,)))  # type: ignore[arg-type,return-value]
    assert [site.shape for site in network.sites if site.name == "embedding"] == [(3,)]
    assert not network.has_logits


@pytest.mark.parametrize(("classes", "width"), [((), 7), (tuple("abcdefg"), 6)])
def test_outputs_that_are_named_are_scores(classes: tuple[str, ...], width: int) -> None:
    """A SqueezeNet ends with scores of pixels, rectified and averaged."""
    squeeze = nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 7, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    )
    network = Network("squeeze", squeeze, ImagePreprocess((8, 8), None), About("module", classes=classes))
    assert next(site.shape[0] for site in network.sites if site.name == "embedding") == width


def test_values_that_are_not_of_single_rows_give_no_site() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Parameter(torch.randn(7, 7)), nn.Linear(7, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(functional.relu(x @ torch.sigmoid(self.table)))

    network = from_module(Biased(), ArrayPreprocess((7,)))
    assert [site.name for site in network.sites] == ["relu()", "embedding", "logits"]
    values, _ = capture(network, ["relu()"], network.example(2))
    assert torch.equal(values["relu()"], functional.relu(network.example(2) @ torch.sigmoid(network.module.table)))


class Gated(nn.Module):
    """Learnt gates of three branches are as many as the example has rows; so are the prototypes of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 8) for _ in range(3))
        self.gates, self.prototypes = nn.Parameter(torch.ones(3)), nn.Parameter(torch.randn(3, 8))
        self.first, self.project, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        gates = torch.relu(self.gates)
        x = torch.relu(sum(gate * branch(x) for gate, branch in zip(gates, self.branches)))
        return self.act(self.first(x)) @ self.act(self.project(self.prototypes)).T


def test_values_as_long_as_the_example_has_rows_are_none_of_its_rows() -> None:
    network = from_module(Gated(), ArrayPreprocess((6,)))
    assert [site.name for site in network.sites] == ["relu()", "act", "embedding"]
    assert "module:project" not in [site.name for site in network.all_sites]
    values, _ = capture(network, ["relu()", "act"], network.example(5))
    assert all(value.shape == (5, 8) for value in values.values())


def test_position_tables_of_three_heads_give_no_site() -> None:
    """Swin's second version makes the biases of its positions in a small network, one number a head and pair."""
    hub = pytest.importorskip("transformers")
    config = hub.Swinv2Config(image_size=32, embed_dim=12, depths=[1, 1], num_heads=[3, 6], window_size=4, num_labels=5)
    torch.manual_seed(0)
    network = from_module(hub.Swinv2ForImageClassification(config), ImagePreprocess((32, 32), None))
    names = network.match(["activation"])
    assert len(names) == 2
    values, _ = capture(network, names, network.example(5))
    assert all(len(value) == 5 for value in values.values())


def test_the_axis_of_rows_is_the_one_that_follows_their_number() -> None:
    """Three positions, first: the second axis counts the rows."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.layer(x.transpose(0, 1))).mean(0))

    network = from_module(First(), ArrayPreprocess((3, 4)))
    batch = network.example(5)
    values, _ = capture(network, ["relu()"], batch)
    torch.testing.assert_close(values["relu()"], torch.relu(network.module.layer(batch)))


def test_squeeze_and_excitation_is_no_block() -> None:
    class Squeeze(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))

    class Unit(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            normed = [nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width)) for _ in range(2)]
            self.block = nn.Sequential(normed[0], Squeeze(width), normed[1])

        def forward(self, x: Tensor) -> Tensor:
            return x + self.block(x)

    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(Unit(4)), nn.Sequential(Unit(4), Unit(4)))
    network = from_module(module, ArrayPreprocess((3, 5, 6)))
    assert network.blocks == ("1.0", "2.0", "2.1")
    assert network.topmost == ("2.1.*",)
    gate = next(site for site in network.sites if site.name == "1.0.block.1.sigmoid()")
    assert (gate.layout, gate.shape) == ("vector", (4,))


def test_a_block_that_is_its_last_activation_is_taken_once(zoo: Zoo) -> None:
    network = zoo("resnet")
    block = "resnet.encoder.stages.0.layers.0"
    assert next(site for site in network.sites if site.name == block).same_as == block + ".activation"
    assert block in network.match(["block"])
    both = network.match(["activation", "block"])
    assert block not in both
    assert block + ".activation" in both
    values, _ = capture(network, [block, block + ".activation"], network.example(2))
    assert torch.equal(values[block], values[block + ".activation"])
    assert not any(site.same_as for site in zoo("vit").sites)


def test_patterns(own: Zoo) -> None:
    network = own("residual")
    assert network.match(["logits", "layer1.0.*"]) == ("layer1.0.relu:0", "layer1.0.relu:1", "logits")
    assert network.match(["layer1.1.relu"]) == ("layer1.1.relu:0", "layer1.1.relu:1")
    assert network.match("embedding") == ("embedding",)
    with pytest.raises(TapError, match=r"no tap matches 'layer1\.0\.rely'.*did you mean layer1\.0\.relu"):
        network.match(["layer1.0.rely"])
    headless = from_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ArrayPreprocess((4,)))
    assert headless.match(["activation", "block", "embedding", "logits"]) == ("1", "embedding")
    with pytest.raises(TapError, match="select no tap"):
        headless.match(["logits"])
    with pytest.raises(TapError, match="no tap of this network"), network.observe(["nowhere"], lambda *_: None):
        pass


def test_a_network_that_takes_another_path_is_refused() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = nn.Linear(4, 4), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            return self.act(x) if x.shape[0] < 5 else functional.silu(functional.relu(x))

    network = from_module(Moody(), ArrayPreprocess((4,)))
    capture(network, ["act"], network.example(4))
    with pytest.raises(TapError, match="another path"):
        capture(network, ["act"], network.example(5))


def test_a_function_inside_the_callback_is_not_the_networks(own: Zoo) -> None:
    network = own("functional")
    x = network.example(2)
    expected, _ = capture(network, ["relu():0", "relu():1"], x)
    values = {}
    with (
        torch.no_grad(),
        network.observe(
            ["relu():0", "relu():1"], lambda name, value: values.__setitem__(name, torch.sigmoid(torch.tanh(value)))
        ),
    ):
        network.forward(x)
        torch.relu(x)
        network.forward(x)  # a second pass counts from the start
    assert all(torch.equal(values[key], torch.sigmoid(torch.tanh(expected[key]))) for key in expected)


def test_a_raw_value_is_the_tensor_that_the_network_goes_on_with(own: Zoo) -> None:
    network = own("positions-first")
    site = next(name for name in network.match(["block"]))
    seen: dict[bool, Tensor] = {}
    for raw in (False, True):
        with (
            torch.no_grad(),
            network.observe([site], lambda _, value, raw=raw: seen.update({raw: value.clone()}), raw=raw),
        ):
            network.forward(network.example(3))
    assert seen[False].shape[0] == 3
    assert torch.equal(seen[True].movedim(1, 0), seen[False])


def test_hooks_are_gone_afterwards_even_after_an_error(own: Zoo) -> None:
    network = own("residual")
    x = network.example(2)

    def fail(_name: str, _value: Tensor) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), network.observe(["relu", "embedding"], fail):
        network.forward(x)
    for part in network.module.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.Flatten(0)), "no axis of rows"),
        (nn.Bilinear(4, 4, 2), "does not run on an example"),
    ],
)
def test_networks_that_cannot_be_used(module: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        _ = from_module(module, ArrayPreprocess((4,))).sites


@pytest.mark.parametrize("error", [ValueError, AssertionError])
def test_a_module_that_refuses_its_input_in_a_way_of_its_own(error: type[Exception]) -> None:
    class Strict(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error("size 4 is not 7")

    with pytest.raises(ModelError, match=rf"does not run on an example .*; got {error.__name__}: size 4 is not 7\."):
        _ = from_module(Strict(), ArrayPreprocess((4,))).sites


def test_outputs_that_are_no_tensors() -> None:
    class Word(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "fine"

    with pytest.raises(ModelError, match=r"outputs are no tensors; expected .*; got str\."):
        _ = from_module(Word(), ArrayPreprocess((4,))).sites


@pytest.mark.parametrize("kind", ["dropout", "statistics"])
def test_eval_mode_that_is_not_is_refused(kind: str) -> None:
    class Drops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(x)

    module = Drops() if kind == "dropout" else nn.BatchNorm1d(4, track_running_stats=False)
    with pytest.raises(ModelError, match="dropout or batch statistics are active in eval mode"):
        _ = from_module(module, ArrayPreprocess((4,))).sites


def test_a_pass_that_writes_into_its_input_is_told_so() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sub_(1).sum(1, keepdim=True)

    with pytest.raises(ModelError, match="writes into its input; expected a forward pass that leaves"):
        _ = from_module(Writes(), ArrayPreprocess((4,))).sites


class Winding(nn.Module):
    """Layers that run in another order than they are registered in, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.norm, self.last = nn.LayerNorm(4), nn.Linear(4, 4)
        self.twice, self.between = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(self.between(self.twice(x)))
        return self.head(self.norm(self.last(x)))


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (s4(5), (3, 32, 32), ("conv4.*", "bn4.*")),
        (Winding(), (4,), ("last.*", "norm.*")),
        (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)), (4,), ("2.*",)),
        (nn.Sequential(nn.Linear(4, 2)), (4,), ()),
    ],
)
def test_without_blocks_the_topmost_layer_and_what_normalises_it_are_the_top(module, shape, expected):
    assert from_module(module, ArrayPreprocess(shape)).topmost == expected


class Twofold(nn.Module):
    """A second head, which runs before the last layer and after it."""

    def __init__(self, part: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.trunk, self.body, self.aside, self.head = nn.Linear(4, 6), part(), part(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(self.trunk(x).tanh())
        return {"before": self.aside(x), "logits": self.head(x), "after": self.aside(2 * x)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x).tanh())


@pytest.mark.parametrize(
    ("part", "expected"), [(lambda: nn.Linear(6, 6), "body.*"), (lambda: nn.Sequential(Block(), Block()), "body.1.*")]
)
def test_what_the_logits_do_not_depend_on_is_not_the_top(part: Callable[[], nn.Module], expected: str):
    assert from_module(Twofold(part), ArrayPreprocess((4,))).topmost == (expected,)


def test_a_layer_counts_where_it_runs_last():
    module = Winding()
    module.last = nn.Identity()
    assert from_module(module, ArrayPreprocess((4,))).topmost == ("twice.*", "norm.*")


class Crossed(nn.Module):
    """A U-Net in the order that many are registered in: down, up, and what lies between them last."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.mid = (nn.ModuleList(Block() for _ in range(n)) for n in (2, 2, 1))
        self.idle, self.head = nn.ModuleList([Block()]), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips += [x]
        x = self.mid[0](x)
        for block in self.up:
            x = block(x + skips.pop())
        return self.head(x)


def test_the_topmost_block_is_the_one_that_runs_last():
    network = from_module(Crossed(), ArrayPreprocess((6,)))
    assert network.blocks[-1] == "idle.0"
    assert network.topmost == ("up.1.*",)
    assert [network.top_blocks(count) for count in (0, 1, 3)] == [(), ("up.1",), ("mid.0", "up.0", "up.1")]
    assert network.top_blocks(6) == ("idle.0", "down.0", "down.1", "mid.0", "up.0", "up.1")


@pytest.mark.parametrize("width", [3, 16])  # weights that are, and are not, as long as the example has rows
def test_layers_whose_weights_are_made_of_others_may_be_the_top(width: int):
    made = nn.utils.parametrizations.weight_norm
    module = nn.Sequential(
        made(nn.Linear(6, 16)),
        nn.ReLU(),
        made(nn.Linear(16, width)),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, 4),
    )
    network = from_module(module, ArrayPreprocess((6,)))
    assert network.topmost == ("2.*", "3.*")
    assert network.top_layers(2) == ("0", "2", "3")
    assert set(network.select("2.*")) == {
        "2.bias", "2.parametrizations.weight.original0", "2.parametrizations.weight.original1"
    }  # fmt: skip
