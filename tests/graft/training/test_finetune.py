"""Fine-tuning: the module is the adapted model, its gradients are the network's, and what is frozen stays."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest, toy_network
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from regraft.data import Target, scan
from regraft.errors import DataError, RecipeError
from regraft.features import Taps, plan, pool_batch
from regraft.graft import Adapted, load_artifact, save_artifact
from regraft.graft.adapted.tangent import TangentPart
from regraft.graft.adapted.view import View
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.outputs import logits
from regraft.graft.loop.train import DivergedError, Optimiser, Schedule, TrainConfig
from regraft.graft.problem import Task
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Loop, Tuning
from regraft.graft.training.depths import depths
from regraft.graft.training.finetune import finetune, grafted
from regraft.graft.training.grafted import Grafted, scaled
from regraft.graft.training.start import start
from regraft.heads import Readout
from regraft.linear import Blocks, Dense
from regraft.network import About, ArrayPreprocess, ImagePreprocess, Network

CONFIG = TrainConfig(steps=12, batch_size=10, optimiser=Optimiser(lr=0.05, weight_decay=0.0), seed=3)


class Part(nn.Module):
    """Convolution, BatchNorm, ReLU in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.norm(self.conv(x)))


class Normed(nn.Module):
    """Two blocks with BatchNorm and dropout, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.blocks = nn.ModuleList(Part() for _ in range(2))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(self.dropout(x.mean((2, 3))))


class Dropping(nn.Module):
    """A layer between a linear layer and a head; ``with_own`` leaves out by its own flag."""

    def __init__(self, layer: nn.Module, with_own: float = 0.0) -> None:
        super().__init__()
        self.flat, self.first, self.norm = nn.Flatten(), nn.Linear(108, 8), nn.BatchNorm1d(8)
        self.layer, self.with_own, self.fc = layer, with_own, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(self.flat(x)))
        if isinstance(self.layer, nn.MultiheadAttention):
            x = self.layer(x[:, None], x[:, None].repeat(1, 4, 1), x[:, None].repeat(1, 4, 1))[0][:, 0]
        elif isinstance(self.layer, nn.LSTM):
            x = self.layer(x[:, None])[0][:, 0]
        else:
            x = self.layer(x)
        return self.fc(functional.dropout(x, self.with_own, self.training))


class Path(nn.Module):
    """As of transformers' Swin: rows that are left out as a whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(len(x), 1) < 0.5) if self.training else x


@pytest.mark.parametrize(
    ("layer", "own"),
    [
        (nn.Dropout(0.5), 0.0),
        (nn.AlphaDropout(0.5), 0.0),
        (nn.LSTM(8, 8, 2, batch_first=True, dropout=0.5), 0.0),
        (nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True), 0.0),
        (Path(), 0.0),
        (nn.ReLU(), 0.5),
    ],
)
def test_dropout_of_every_kind_is_on_where_it_is_asked_for(layer, own):
    network = Network("dropping", Dropping(layer, own), ArrayPreprocess((3, 6, 6)), About("module"))
    batch = network.example(6)
    for dropout in (False, True):
        module = Grafted(start(network, toy_manifest(30)), Tuning(dropout=dropout)).train()
        assert not module.backbone.norm.training
        assert torch.equal(module(batch), module(batch)) != dropout
        assert torch.equal(module.eval()(batch), module(batch))


class Table(nn.Module):
    """Rows of a table, by the first column, which gives gradients of those alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.layer, self.fc = nn.Embedding(7, 8, sparse=True), nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer(torch.cat([self.rows(x[:, 0].long()), x[:, 1:]], 1)).tanh())


@pytest.mark.parametrize(
    "optimiser", [Optimiser(lr=0.05), Optimiser(lr=0.05, kind="adamw"), Optimiser(lr=0.05, clip=1.0)]
)
def test_tables_of_sparse_gradients_are_trained_as_others(optimiser):
    random = np.random.default_rng(0)
    x = np.concatenate([random.integers(0, 7, (40, 1)), random.normal(size=(40, 2))], 1).astype(np.float32)
    manifest, found = scan((x, np.arange(40) % 3)), []
    for sparse in (True, False):
        module = Table()
        module.rows.sparse = sparse
        network = Network("table", module, ArrayPreprocess((3,), categories=(7, 0, 0)), About("module"))
        config = replace(CONFIG, optimiser=optimiser, steps=4, batch_size=10)
        found.append(finetune(start(network, manifest), manifest, config).adapted.network.params["rows.weight"])
        assert module.rows.sparse == sparse
    assert torch.equal(*found)
    assert not torch.equal(found[0], Table().rows.weight)


class Layers(nn.Module):
    """Tokens through two wide layers, which ``run`` runs."""

    def __init__(self, run) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.fc, self.run = nn.Linear(128, 256), nn.Linear(256, 128), nn.Linear(128, 3), run

    def _layers(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.run(self._layers, x).mean(1))


def test_layers_that_are_run_again_in_the_backward_pass_train_as_those_that_are_kept():
    x = np.random.default_rng(0).normal(size=(24, 16, 128)).astype(np.float32)
    manifest = scan((x, np.arange(24) % 3))
    again = partial(checkpoint, use_reentrant=False)
    found = {}
    for name, run in (("kept", lambda layers, x: layers(x)), ("again", again)):
        network = Network(name, Layers(run), ArrayPreprocess((16, 128)), About("module"))
        config = replace(CONFIG, batch_size=12, steps=4)
        found[name] = finetune(start(network, manifest), manifest, config).adapted.network.params
    for name, value in found["kept"].items():
        torch.testing.assert_close(found["again"][name], value)


def normed(seed: int = 0, images: bool = False) -> Network:
    torch.manual_seed(seed)
    module = Normed()
    module(torch.randn(40, 3, 6, 6))  # running statistics that are none of the defaults
    preprocess = ImagePreprocess((8, 8), None) if images else ArrayPreprocess((3, 6, 6))
    return Network("normed", module, preprocess, About("module"))


def own_head(network: Network) -> Adapted:
    """The network's own last layer as a readout on its embedding."""
    wanted = plan(network, [Taps(("embedding",), (None,))])
    weight, bias = network.params["fc.weight"], network.params["fc.bias"]
    readout = Readout(Blocks({wanted.blocks[0].name: weight.T.contiguous()}), bias, "softmax")
    return Adapted(network, wanted, View("none"), readout, "multiclass", ("class 0", "class 1", "class 2"))


def many_taps(network: Network, scaling: str, columns: bool, renormalised: bool = False) -> Adapted:
    """Random coefficients on several pooled taps."""
    wanted = plan(network, [Taps(("activation", "block", "embedding"), (24,))])
    random = torch.Generator().manual_seed(0)
    kept = None
    if columns:
        kept = {b.name: torch.randperm(b.width, generator=random)[: max(1, b.width // 2)].sort().values
                for b in wanted.blocks}  # fmt: skip
    widths = {b.name: b.width if kept is None else len(kept[b.name]) for b in wanted.blocks}
    weights = Blocks({name: torch.randn(width, 3, generator=random) for name, width in widths.items()})
    readout = Readout(weights, torch.randn(3, generator=random), "softmax", temperature=1.7)
    return Adapted(network, wanted, View(scaling, kept, renormalised), readout, "multiclass", ("a", "b", "c"))


# ------------------------------------------------------------------------------------------- the function


@pytest.mark.parametrize("network", [toy_network, normed])
@pytest.mark.parametrize("layout", [False, True])
def test_with_its_own_head_it_is_the_network_and_so_are_its_gradients(network, layout, monkeypatch):
    monkeypatch.setattr(Network, "channels_last", layout)
    torch.manual_seed(0)
    base = network()
    plain = copy.deepcopy(base.module).requires_grad_(True).eval()
    adapted = own_head(base) if len(base.params["fc.bias"]) == 3 else replace(
        own_head(base), classes=tuple(f"class {i}" for i in range(5)))  # fmt: skip
    module = Grafted(adapted)
    x, y = torch.randn(7, 3, 6, 6), torch.arange(7) % 3
    module.train()
    torch.testing.assert_close(module(x), plain(x), atol=1e-5, rtol=1e-5)
    functional.cross_entropy(module(x), y).backward()
    functional.cross_entropy(plain(x), y).backward()
    expected = dict(plain.named_parameters())
    torch.testing.assert_close(module.weights[0].grad, expected["fc.weight"].grad.T, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(module.intercept.grad, expected["fc.bias"].grad, atol=1e-6, rtol=1e-4)
    seen = 0
    for name, value in module.backbone.named_parameters():
        if name.startswith("fc."):
            assert value.grad is None  # the head that came with the network has no say
            continue
        torch.testing.assert_close(value.grad, expected[name].grad, atol=1e-6, rtol=1e-4)
        seen += 1
    assert seen >= 4


@pytest.mark.parametrize(("tuning", "whole"), [
    (Tuning(norms="frozen"), False),
    (Tuning(norms="trained"), True),
    (Tuning(norms="trained", freeze=("*.norm.*",)), False),
    (Tuning(norms="frozen", anew=("blocks.1",)), True),
])  # fmt: skip
def test_batches_stay_whole_where_their_statistics_normalise_them(tuning, whole):
    module = Grafted(own_head(normed()), tuning)
    assert module.at_once < 10**9  # in prediction each row is by itself
    assert (module.train().at_once > 10**9) == whole


def test_code_that_views_its_maps_is_trained_like_any_other():
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(64, 3)

        def forward(self, x):
            return self.fc(torch.relu(self.conv(x)).view(len(x), -1))

    torch.manual_seed(0)
    base = Network("viewing", Viewing(), ArrayPreprocess((3, 6, 6)), About("module"))
    module = Grafted(own_head(base))
    x = torch.randn(7, 3, 6, 6)
    torch.testing.assert_close(module(x), base.module(x), atol=1e-5, rtol=1e-5)
    module(x).sum().backward()
    assert float(module.backbone.conv.weight.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("scaling", "columns", "renormalised"),
    [
        ("none", False, False),
        ("unit", False, False),
        ("none", True, False),
        ("unit", True, False),
        ("unit", True, True),
    ],
)
def test_many_taps_and_kept_columns_are_the_views_design(scaling, columns, renormalised):
    network = toy_network()
    adapted = many_taps(network, scaling, columns, renormalised)
    x = torch.randn(9, 3, 6, 6)
    values = pool_batch(network, adapted.plan.blocks, x)
    design = adapted.view.design({name: Dense(v) for name, v in values.items()}, 3)
    expected = adapted.readout.logits(design) / adapted.readout.temperature
    torch.testing.assert_close(Grafted(adapted)(x), expected, atol=1e-5, rtol=1e-5)


def test_the_gradient_through_taps_norms_and_columns_is_that_of_finite_differences():
    adapted = many_taps(toy_network(), "unit", True, True)
    module = Grafted(adapted).double()
    x, y = torch.randn(5, 3, 6, 6, dtype=torch.float64), torch.arange(5) % 3

    def loss() -> torch.Tensor:
        return functional.cross_entropy(module(x), y)

    loss().backward()
    weight = module.backbone.conv1.weight
    direction = torch.randn_like(weight)
    slope = float((weight.grad * direction).sum())
    step = 1e-6
    with torch.no_grad():
        weight += step * direction
        up = float(loss())
        weight -= 2 * step * direction
        down = float(loss())
    assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-5)


def test_a_zero_row_has_a_zero_gradient_not_none_at_all():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3e-25, 4e-25]], requires_grad=True)
    out = scaled(rows, View("unit"), "x")
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.6, 0.8]]))
    out[:, 0].sum().backward()
    assert torch.isfinite(rows.grad[:2]).all()
    torch.testing.assert_close(rows.grad[1], torch.tensor([0.128, -0.096]))  # (1 - x²/n²)/n, -xy/n³
    torch.testing.assert_close(rows.grad[2] * 1e-25, torch.tensor([0.128, -0.096]))


@pytest.mark.parametrize("columns", [{"x": [0], "logits": [0, 1]}, {"logits": [0]}])
def test_what_is_unscaled_keeps_its_length_over_kept_columns(columns):
    view = View("unit", {name: torch.tensor(index) for name, index in columns.items()}, True, ("logits",))
    values = {"x": torch.tensor([[3.0, 1.0], [-0.2, 2.0]]), "logits": torch.tensor([[3.0, 0.5], [-0.2, 0.01]])}
    found = view.design({name: Dense(value) for name, value in values.items()}, 1).matrices
    assert torch.equal(found["logits"].rows(slice(0, 2)), values["logits"][:, columns["logits"]])
    for name in columns:
        torch.testing.assert_close(scaled(values[name], view, name), found[name].rows(slice(0, 2)))


def test_roots_are_refused():
    with pytest.raises(RecipeError, match="slope at zero is infinite"):
        Grafted(many_taps(toy_network(), "root", False))


def test_derivatives_that_a_training_would_drop_are_refused():
    adapted = start(normed(), toy_manifest(30))
    tangent = TangentPart(torch.ones(3, 2), Blocks({"fc.weight": torch.ones(1)}))
    with pytest.raises(RecipeError, match=r"what derivatives add .* would be lost"):
        Grafted(replace(adapted, tangent=tangent))


# --------------------------------------------------------------------------------------------- training


def test_it_is_ordinary_fine_tuning():
    """The same steps as a plain loop over the network with a new last layer."""
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest, seed=4)
    tuned = finetune(adapted, manifest, replace(CONFIG, schedule=Schedule("constant")))
    plain = copy.deepcopy(adapted.network.module).requires_grad_(True).eval()
    plain.fc.weight.data = adapted.readout.coefficients["embedding"].T.clone().contiguous()
    plain.fc.bias.data = adapted.readout.intercept.float()
    rows = ManifestRows.of(adapted.network, manifest)
    from regraft.graft.loop.rows import order

    sgd = torch.optim.SGD(plain.parameters(), 0.05, 0.9, nesterov=True)
    for step in range(12):
        epoch, position = divmod(step, 3)
        batch = order(30, 3, epoch, 3)[position]
        sgd.zero_grad()
        functional.cross_entropy(plain(rows.inputs(batch)), rows.labels[batch]).backward()
        sgd.step()
    for name, value in plain.named_parameters():
        if name.startswith("fc."):
            continue
        torch.testing.assert_close(tuned.adapted.network.params[name], value.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        tuned.adapted.readout.coefficients["embedding"], plain.fc.weight.detach().T, atol=1e-5, rtol=1e-4
    )
    assert tuned.outcome.status == "completed"
    assert tuned.passes == 120


def test_frozen_statistics_stay_and_trained_ones_follow():
    manifest = toy_manifest(30)
    base = normed()
    adapted = start(base, manifest)
    frozen = finetune(adapted, manifest, CONFIG).adapted.network
    trained = finetune(adapted, manifest, CONFIG, tuning=Tuning(norms="trained")).adapted.network
    for name, value in base.buffers.items():
        assert torch.equal(frozen.buffers[name], value)
        assert not torch.equal(trained.buffers[name], value)
    assert not torch.equal(frozen.params["blocks.0.norm.weight"], base.params["blocks.0.norm.weight"])
    assert torch.equal(base.params["stem.weight"], normed().params["stem.weight"])  # the source is untouched


def test_frozen_patterns_and_layer_decay():
    manifest = toy_manifest(30)
    base = normed()
    adapted = start(base, manifest)
    tuned = finetune(adapted, manifest, CONFIG, tuning=Tuning(freeze=("stem.*", "blocks.0.*"))).adapted.network
    same = {name for name, value in base.params.items() if torch.equal(value, tuned.params[name])}
    assert same == {n for n in base.params if n.startswith(("stem.", "blocks.0.", "fc."))}
    assert {n: d for n, d in depths(base).items() if n.endswith("weight")} == {
        "stem.weight": 0, "blocks.0.conv.weight": 1, "blocks.0.norm.weight": 1, "blocks.1.conv.weight": 2,
        "blocks.1.norm.weight": 2, "fc.weight": 3,
    }  # fmt: skip
    scales = Grafted(adapted).scales(0.5)
    assert scales["backbone.stem.weight"] == 0.125
    assert scales["backbone.blocks.1.conv.weight"] == 0.5
    one = replace(CONFIG, steps=1, optimiser=Optimiser(lr=0.1, momentum=0.0, weight_decay=0.0))
    whole = finetune(adapted, manifest, one).adapted.network
    less = finetune(adapted, manifest, replace(one, optimiser=replace(one.optimiser, layer_decay=0.5)))
    moved = (whole.params["stem.weight"] - base.params["stem.weight"]) * 0.125
    torch.testing.assert_close(
        less.adapted.network.params["stem.weight"] - base.params["stem.weight"], moved, atol=1e-7, rtol=1e-3
    )
    with pytest.raises(Exception, match="no parameter of normed"):
        Grafted(adapted, Tuning(freeze=("nothing.*",)))


class Sides(nn.Module):
    """The layers of :class:`Normed` in two lists side by side, convolutions and their normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.convs = nn.ModuleList(Deep() for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(2))
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms):
            x = norm(conv(x))
        return self.fc(x.mean((2, 3)))


class Deep(nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def sides() -> Network:
    torch.manual_seed(0)
    return Network("sides", Sides(), ArrayPreprocess((3, 6, 6)), About("module"))


def test_a_normalisation_beside_its_block_is_as_deep_and_as_new_as_the_block():
    network = sides()
    assert network.blocks == ("convs.0", "convs.1")
    found = {name.rpartition(".")[0]: depth for name, depth in depths(network).items()}
    assert found == {"stem": 0, "convs.0.first": 1, "convs.0.second": 1, "convs.1.first": 2, "convs.1.second": 2,
                     "norms.0": 1, "norms.1": 2, "fc": 3}  # fmt: skip
    adapted = start(network, toy_manifest(30))
    assert Grafted(adapted).scales(0.5)["backbone.norms.0.weight"] == 0.25
    module = Grafted(adapted, Tuning(norms="frozen", anew=network.blocks[-1:])).train()
    assert [norm.training for norm in module.backbone.norms] == [False, True]


class Mixing(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


class Disordered(nn.Module):
    """What acts before the blocks, between and behind them is registered elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.after = nn.Linear(6, 3), nn.LayerNorm(6)
        self.blocks = nn.ModuleList(Mixing() for _ in range(2))
        self.stem, self.table, self.before = nn.Linear(108, 6), nn.Embedding(1, 6), nn.LayerNorm(6)
        self.between, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.recurrent = nn.LSTM(6, 6, batch_first=True)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1)) + self.before(self.table.weight)  # as DeBERTa's table, whose module is never run
        x = self.blocks[0](x)
        x = self.blocks[1](self.between(x) * self.scale)
        return self.fc(self.recurrent(self.after(x)[:, None])[0][:, 0])


class Backwards(nn.Module):
    """Blocks that run in the other order than they are registered, as those of feature pyramids."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(108, 6), nn.ModuleList(Mixing() for _ in range(3))
        self.post, self.fc = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1))
        for block in reversed(self.blocks):
            x = block(x)
        return self.fc(self.post(x))


def test_blocks_count_in_the_order_in_which_they_run():
    network = Network("backwards", Backwards(), ArrayPreprocess((3, 6, 6)), About("module"))
    found = {name.removesuffix(".weight"): depth for name, depth in depths(network).items() if "bias" not in name}
    assert found == {
        "stem": 0, "blocks.2.first": 1, "blocks.2.second": 1, "blocks.1.first": 2, "blocks.1.second": 2,
        "blocks.0.first": 3, "blocks.0.second": 3, "post": 4, "fc": 4,
    }  # fmt: skip


def test_layers_are_as_deep_as_they_act_and_not_as_they_are_registered():
    network = Network("disordered", Disordered(), ArrayPreprocess((3, 6, 6)), About("module"))
    found = depths(network)
    by_part = {name.rpartition(".")[0] or name: depth for name, depth in found.items()}
    assert by_part == {
        "stem": 0, "table": 0, "before": 0, "blocks.0.first": 1, "blocks.0.second": 1, "between": 1, "scale": 1,
        "blocks.1.first": 2, "blocks.1.second": 2, "after": 3, "recurrent": 3, "fc": 3, "idle": 3,
    }  # fmt: skip


def test_kept_columns_stay_kept(tmp_path):
    manifest = toy_manifest(30)
    adapted = replace(many_taps(normed(), "unit", True, True), classes=manifest.target.classes)
    tuned = finetune(adapted, manifest, CONFIG).adapted
    assert tuned.view is adapted.view
    assert {n: v.shape for n, v in tuned.readout.coefficients.items()} == {
        n: v.shape for n, v in adapted.readout.coefficients.items()
    }
    before = {n: v.clone() for n, v in adapted.readout.coefficients.items()}
    assert all(not torch.equal(v, before[n]) for n, v in tuned.readout.coefficients.items())


def test_the_result_predicts_what_the_module_gives():
    manifest = toy_manifest(30)
    task = Task(manifest.target, None, "accuracy")
    adapted = replace(many_taps(normed(), "none", False), classes=manifest.target.classes)
    module = grafted(adapted, task)
    rows = ManifestRows.of(adapted.network, manifest)
    expected = torch.softmax(logits(module, rows).double(), 1)
    found = module.result().predict_proba(manifest).probabilities
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_a_trained_artifact_predicts_bit_for_bit_and_holds_what_changed(tmp_path):
    manifest = toy_manifest(30)
    base = normed()
    tuned = finetune(start(base, manifest), manifest, CONFIG, tuning=Tuning(freeze=("stem.*",))).adapted
    assert set(tuned.changed) == {n for n in base.params if n.startswith("blocks.")}
    save_artifact(tuned, tmp_path, provenance={})
    loaded = load_artifact(tmp_path, model=base, device="cpu")
    assert loaded.network.fingerprint == tuned.network.fingerprint != base.fingerprint
    live, again = tuned.predict_proba(manifest), loaded.predict_proba(manifest)
    assert np.array_equal(live.probabilities, again.probabilities)
    again_saved = tmp_path / "again"
    save_artifact(loaded, again_saved, provenance={})
    assert (again_saved / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(Exception, match="not the backbone that this head was solved on"):
        load_artifact(tmp_path, model=normed(seed=5))


class Counting(nn.Module):
    """It counts its calls, and makes a table in the first of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fc = nn.Linear(108, 8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("table", torch.empty(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        if not len(self.table):
            self.table = torch.arange(8.0)
        return self.fc(torch.relu(self.layer(x.flatten(1))) + self.table)


def test_a_backbone_that_counts_its_calls_is_trained_saved_and_loaded(tmp_path):
    manifest, (first, second) = toy_manifest(30), (
        Network("counting", Counting(), ArrayPreprocess((3, 6, 6)), About("module")) for _ in range(2)
    )  # fmt: skip
    tuned = finetune(start(first, manifest), manifest, CONFIG).adapted
    assert set(tuned.changed) == {"layer.weight", "layer.bias"}
    save_artifact(tuned, tmp_path, provenance={})
    loaded = load_artifact(tmp_path, model=second, device="cpu")
    assert np.array_equal(loaded.predict_proba(manifest).probabilities, tuned.predict_proba(manifest).probabilities)


def test_it_resumes_bit_for_bit(tmp_path):
    class Stop(Exception):
        pass

    def interrupt(step, total, loss):
        if step == 7:
            raise Stop

    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    tuning = Tuning(norms="trained", dropout=True)
    config = replace(CONFIG, optimiser=replace(CONFIG.optimiser, kind="adamw", lr=1e-2))
    expected = finetune(adapted, manifest, config, tuning=tuning).adapted
    with pytest.raises(Stop):
        finetune(adapted, manifest, config, tuning=tuning, checkpoint=tmp_path, progress=interrupt)
    found = finetune(adapted, manifest, config, tuning=tuning, checkpoint=tmp_path)
    assert found.outcome.resumed == 6
    assert found.passes == 60
    assert found.adapted.network.fingerprint == expected.network.fingerprint
    assert torch.equal(found.adapted.readout.intercept, expected.readout.intercept)


def test_a_checkpoint_of_a_head_that_reads_otherwise_is_refused(tmp_path):
    """The same weights, but rows brought to unit norm, or other columns kept."""
    manifest, adapted = toy_manifest(30), start(normed(), toy_manifest(30))
    (block,) = adapted.plan.blocks
    halved = replace(adapted.readout, coefficients=Blocks({block.name: adapted.readout.coefficients[block.name][:3]}))
    kept = [View("none", {block.name: torch.tensor(columns)}) for columns in ([0, 1, 2], [0, 1, 3])]
    for name, one, other in (
        ("scaling", adapted, replace(adapted, view=View("unit"))),
        ("columns", *(replace(adapted, view=view, readout=halved) for view in kept)),
    ):
        finetune(one, manifest, CONFIG, checkpoint=tmp_path / name)
        with pytest.raises(RecipeError, match=r"belongs to another run.*in Python resume=False"):
            finetune(other, manifest, CONFIG, checkpoint=tmp_path / name)
        assert finetune(other, manifest, CONFIG, checkpoint=tmp_path / name, resume=False).outcome.resumed == 0


def test_divergence_says_so():
    manifest = toy_manifest(30)
    config = replace(CONFIG, optimiser=Optimiser(lr=1e6))
    with pytest.raises(DivergedError, match="try a lower learning rate"):
        finetune(start(normed(), manifest), manifest, config)


def test_a_last_step_that_goes_too_far_is_seen_without_validation_rows():
    """Its loss is of the weights before it, and the weights after it are numbers still; what they give is none."""
    manifest = toy_manifest(30)
    config = TrainConfig(steps=1, batch_size=30, optimiser=Optimiser(1e30, weight_decay=0.0))
    with pytest.raises(DivergedError, match="an output is no longer finite at step 1 of 1"):
        finetune(start(normed(), manifest), manifest, config)


# ------------------------------------------------------------------------------------------- other kinds


def test_regression_is_trained_in_the_targets_own_spread_and_answers_in_its_unit():
    """Targets of another unit: the same steps, the predictions in that unit."""
    base = toy_manifest(40)
    random = np.random.default_rng(0)
    y = random.normal(size=(40, 1))
    found = {}
    for unit in (1.0, 1000.0):
        manifest = replace(base, target=Target("regression", ("y",), unit * (y + 3)))
        tuned = finetune(start(normed(), manifest), manifest, CONFIG)
        found[unit] = tuned.adapted.predict_proba(manifest).probabilities
        assert tuned.outcome.history[-1].train_score is None
    np.testing.assert_allclose(found[1000.0] / 1000, found[1.0], rtol=1e-3, atol=1e-3)
    assert abs(found[1.0].mean() - 3) < 1


def test_multilabel_with_gaps_leaves_out_what_is_not_known():
    base = toy_manifest(30)
    values = np.tile(np.array([[1.0, 0.0, np.nan], [0.0, 1.0, 1.0], [0.0, np.nan, 0.0]]), (10, 1)).astype(np.float32)
    manifest = replace(base, target=Target("multilabel", ("a", "b", "c"), values))
    tuned = finetune(start(normed(), manifest), manifest, replace(CONFIG, steps=60))
    assert tuned.outcome.history[-1].loss < tuned.outcome.history[0].loss
    assert tuned.adapted.predict_proba(manifest).probabilities.shape == (30, 3)


def test_labels_that_the_head_does_not_have_are_refused():
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    other = replace(manifest, target=Target("multiclass", ("x", "y", "z"), manifest.target.values))
    with pytest.raises(DataError, match="the head does not fit the task"):
        finetune(adapted, other, CONFIG)
    with pytest.raises(
        DataError, match=r"the head does not fit the validation rows; expected class 0, .*; got x, y, z"
    ):
        finetune(adapted, manifest, CONFIG, validation=other)
    x, y = toy_arrays(30)
    fewer = scan((x[y != "class 0"], y[y != "class 0"]))  # whose codes begin at another class
    with pytest.raises(DataError, match="the head does not fit the validation rows"):
        finetune(adapted, manifest, CONFIG, validation=fewer)
    with pytest.raises(DataError, match="reads array inputs; got image inputs"):
        finetune(adapted, manifest, CONFIG, validation=scan((np.zeros((30, 20, 16, 3), np.uint8), y)))
    gaps = replace(manifest, target=replace(manifest.target, values=np.where(np.arange(30) < 2, -1, 0)))
    with pytest.raises(DataError, match=r"a class for every row; got 2 rows without one.*out of the task"):
        finetune(adapted, gaps, CONFIG)


# ------------------------------------------------------------------------------------------------- rows


def test_rows_are_what_the_preprocessing_gives_and_parts_keep_their_draws():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 255, (12, 20, 16, 3), dtype=np.uint8), np.arange(12) % 3
    manifest = scan((x, y))
    network = normed(images=True)
    rows = ManifestRows.of(network, manifest, Augment(shift=1, flip=True, crop=0.5))
    assert rows.held.dtype == torch.uint8
    direct = torch.stack([network.preprocess(manifest.inputs.read(i)) for i in range(12)])
    assert torch.equal(rows.inputs(torch.arange(12)), direct)
    part = rows.take(np.array([7, 2]))
    assert torch.equal(part.inputs(torch.tensor([0, 1])), direct[[7, 2]])
    assert torch.equal(part.inputs(torch.tensor([0]), 3, 9), rows.inputs(torch.tensor([7]), 3, 9))
    assert not torch.equal(rows.inputs(torch.arange(12), 3, 9), rows.inputs(torch.arange(12), 4, 9))
    assert len({rows.key, part.key, ManifestRows.of(network, manifest).key}) == 3
    with pytest.raises(DataError, match="only images can be augmented"):
        ManifestRows.of(normed(), toy_manifest(6), Augment(flip=True))


def test_a_resized_crop_is_a_window_of_the_image():
    """On an image that is linear in both coordinates, a bilinear window is linear too, within the image's range."""
    height = width = 32
    ramp = torch.linspace(0, 1, width).expand(1, 2, height, width).clone()
    ramp[:, 1] = torch.linspace(0, 1, height)[:, None]
    out = Augment(crop=0.3)(ramp.repeat(20, 1, 1, 1), torch.arange(20), 0, 1)
    inner = out[:, :, 2:-2, 2:-2]
    widths, heights = inner[:, 0].diff(dim=2), inner[:, 1].diff(dim=1)
    assert (widths - widths.mean((1, 2), keepdim=True)).abs().max() < 1e-4
    share = widths.mean((1, 2)) * heights.mean((1, 2)) * 31**2
    assert 0.28 < share.min() < 0.5
    assert 0.8 < share.max() <= 1.01
    assert inner.min() >= 0
    assert inner.max() <= 1
    large = Augment(crop=0.9)(ramp.repeat(60, 1, 1, 1), torch.arange(60), 0, 1)[:, :, 2:-2, 2:-2]
    share = large[:, 0].diff(dim=2).mean((1, 2)) * large[:, 1].diff(dim=1).mean((1, 2)) * 31**2
    assert share.min() > 0.9 - 1e-3


class Causal(nn.Module):
    """Attention of every position to those before it, by a mask of zeros and infinities."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mixed, self.fc = nn.Linear(18, 8), nn.Linear(8, 24), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.transpose(1, 2).flatten(2))
        q, k, v = self.mixed(x).chunk(3, -1)
        return self.fc((x + (q @ k.transpose(1, 2) + self.mask).softmax(-1) @ v).mean(1))


def test_a_mask_of_infinities_is_trained_with_averaged_and_kept(tmp_path):
    source, manifest = Network("causal", Causal(), ArrayPreprocess((3, 6, 6)), About("module")), toy_manifest(30)
    head = own_head(source)
    plain = finetune(head, manifest, CONFIG, checkpoint=tmp_path / "training")
    again = finetune(head, manifest, CONFIG, checkpoint=tmp_path / "training")
    averaged = finetune(head, manifest, replace(CONFIG, loop=Loop(average=0.5)))
    assert plain.outcome.steps == again.outcome.resumed == 12
    for tuned in (plain.adapted, again.adapted, averaged.adapted):
        assert torch.equal(tuned.network.buffers["mask"], source.buffers["mask"])
        assert "mask" not in tuned.changed
    save_artifact(averaged.adapted, tmp_path / "saved", provenance={})
    loaded = load_artifact(tmp_path / "saved", model=source, device="cpu")
    expected = averaged.adapted.predict_proba(manifest).probabilities
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(loaded.predict_proba(manifest).probabilities, expected)
