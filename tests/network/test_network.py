"""Network as a value: fingerprint, pure calls, changes that leave the original alone, policy, cost."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.network.zoo import FAMILIES, OWN, Functional, Residual
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.network import About, ArrayPreprocess, ImagePreprocess, Network, from_module, load
from regraft.network.fingerprint import fingerprint
from regraft.network.network import Traits

Zoo = Callable[[str], Network]


def test_fingerprint_is_the_same_in_another_process(folders: Callable[[str], Path], zoo: Zoo) -> None:
    families = ("vit", "bert")
    script = "import sys; from regraft.network import load\n"
    script += "for folder in sys.argv[1:]: n = load(folder); n.sites; print(n.fingerprint)"
    command = [sys.executable, "-c", script, *(str(folders(family)) for family in families)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [zoo(family).fingerprint for family in families]
    assert done.stderr == ""  # loading says nothing


def test_fingerprint_changes_with_everything_it_is_about(own: Zoo) -> None:
    network = own("residual")
    assert own("residual").fingerprint == network.fingerprint
    assert len(network.fingerprint) == 64

    weight = network.params["layer1.0.conv1.weight"].clone()
    weight.view(-1)[5] = torch.nextafter(weight.view(-1)[5], torch.tensor(9.0))
    mean = network.buffers["layer1.0.bn1.running_mean"] + 1e-6
    other = [
        network.with_params({"layer1.0.conv1.weight": weight}),
        network.with_params({"layer1.0.bn1.running_mean": mean}),
        from_module(network.module, ArrayPreprocess((3, 12, 10), (0.0,), (2.0,))),
        from_module(network.module, ArrayPreprocess((3, 12, 11))),
    ]
    stride = copy.deepcopy(network.module)
    stride.layer1[0].conv1.padding_mode = "reflect"
    epsilon = copy.deepcopy(network.module)
    epsilon.layer1[0].bn1.eps = 1e-3
    switch = copy.deepcopy(network.module)
    switch.temperature = 2.0
    renamed = copy.deepcopy(network.module)
    renamed.layer1[0].relu = nn.ReLU6(inplace=True)
    other += [from_module(module, network.preprocess) for module in (stride, epsilon, switch, renamed)]
    prints = [network.fingerprint, *(one.fingerprint for one in other)]
    assert len(set(prints)) == len(prints)
    assert network.with_params({}).fingerprint == network.fingerprint
    assert network.with_params({"fc.bias": network.params["fc.bias"]}).fingerprint == network.fingerprint


def test_fingerprint_sees_how_positions_become_one_vector(own: Zoo) -> None:
    module = own("residual").module
    told = [Traits(), Traits(pool="mean"), Traits(pool="last"), Traits(prefix_tokens=1), Traits(pooler=False)]
    networks = [Network("own", module, ArrayPreprocess((3, 12, 10)), About("module"), traits=each) for each in told]
    assert len({network.fingerprint for network in networks}) == len(told)
    assert networks[1].with_params({}).fingerprint == networks[1].fingerprint


def test_fingerprint_sees_the_configuration_of_a_published_model(zoo: Zoo) -> None:
    network = zoo("vit")
    traits = replace(network.traits, config={**(network.traits.config or {}), "num_attention_heads": 4})
    other = Network("other", copy.deepcopy(network.module), network.preprocess, network.about, traits=traits)
    assert other.fingerprint != network.fingerprint
    same = Network("same", copy.deepcopy(network.module), network.preprocess, network.about, traits=network.traits)
    assert same.fingerprint == network.fingerprint
    used = copy.deepcopy(network.module)
    used(network.example(1), output_hidden_states=True)  # after which hooks stay
    assert any(part._forward_hooks for part in used.modules())
    again = Network("used", used, network.preprocess, network.about, traits=network.traits)
    assert again.fingerprint == network.fingerprint


def test_fingerprint_does_not_depend_on_order_or_layout() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    preprocess = ImagePreprocess((8, 8), None)
    straight = from_module(module, preprocess)
    turned = from_module(module.to(memory_format=torch.channels_last), preprocess)
    assert straight.fingerprint == turned.fingerprint


def test_tensors_of_the_same_bytes_are_told_apart_by_name_shape_and_type() -> None:
    line = torch.arange(6, dtype=torch.int32)
    others: list[dict[str, Tensor]] = [
        {"a": line},
        {"b": line},
        {"a": line.view(2, 3)},
        {"a": line.view(3, 2)},
        {"a": line.view(torch.float32)},
        {"a": line[:3], "b": line[3:]},
        {"a": line, "b": line[:0]},
    ]
    assert len({fingerprint(tensors, "", {}) for tensors in others}) == len(others)


@pytest.mark.parametrize("name", [*FAMILIES, *OWN])
def test_the_pure_call_equals_the_module(name: str, zoo: Zoo, own: Zoo) -> None:
    network = own(name) if name in OWN else zoo(name)
    batch = network.example(2)
    with torch.no_grad():
        expected = network.forward(batch)
    assert torch.equal(network(network.params, network.buffers, batch), expected)
    assert torch.equal(network({}, {}, batch), expected)


def test_the_pure_call_differentiates_in_its_tensors() -> None:
    """d/dθ of f(θ) = W₂ relu(W₁ x) against central differences in float64."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()

    class Doubled(ArrayPreprocess):
        def example(self, rows: int) -> Tensor:
            return super().example(rows).double()

    network = Network("module", module, Doubled((3,)), About("module"))
    x, params = network.example(4), dict(network.params)
    direction = {name: torch.randn_like(value) for name, value in params.items()}
    _, jvp = torch.func.jvp(lambda p: network(p, {}, x), (params,), (direction,))
    step = 1e-6
    ahead, behind = (
        network({name: params[name] + sign * step * direction[name] for name in params}, {}, x) for sign in (1, -1)
    )
    torch.testing.assert_close(jvp, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)
    assert all(not value.requires_grad for value in network.params.values())


def test_a_network_is_not_changed_by_what_is_made_of_it(own: Zoo) -> None:
    network = own("residual")
    x, before = network.example(3), network.fingerprint
    expected = network.forward(x)
    new = network.with_params({"fc.weight": torch.zeros(4, 6), "layer1.0.bn1.running_var": torch.ones(6)})
    drawn = torch.get_rng_state()
    headed = network.with_head(torch.ones(2, 6), torch.tensor([0.0, 1.0]), classes=("no", "yes"))
    assert torch.equal(torch.get_rng_state(), drawn)
    bare = network.without_head()
    assert torch.equal(new.forward(x), network.params["fc.bias"].expand(3, -1))
    values: dict[str, Tensor] = {}
    with network.observe(["embedding"], lambda name, value: values.__setitem__(name, value.clone())):
        network.forward(x)
    embedding = values["embedding"]
    torch.testing.assert_close(headed.forward(x)[:, 1] - 1, embedding.sum(1))
    assert headed.about.classes == ("no", "yes")
    assert headed.head == "fc"
    assert torch.equal(bare.forward(x), embedding)
    assert not bare.has_logits
    assert torch.equal(network.forward(x), expected)
    assert (network.fingerprint, own("residual").fingerprint) == (before, before)
    assert len({before, new.fingerprint, headed.fingerprint, bare.fingerprint}) == 4
    shared = new.params["conv1.weight"].data_ptr()
    assert shared == network.params["conv1.weight"].data_ptr()  # unchanged tensors are not copied


def test_own_module_stays_trainable() -> None:
    module = Residual().train()
    network = from_module(module, ArrayPreprocess((3, 8, 8)))
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    before = network.fingerprint
    with torch.no_grad():
        module.fc.weight.add_(1)
    fresh = Network("again", copy.deepcopy(network.module), network.preprocess, network.about)
    assert fresh.fingerprint == before


def test_a_head_on_a_headless_network(zoo: Zoo) -> None:
    for family in ("dinov2", "bert"):
        network = zoo(family)
        weight, bias = torch.randn(3, 8), torch.randn(3)
        headed = network.with_head(weight, bias)
        batch = network.example(2)
        torch.testing.assert_close(headed.forward(batch), network.forward(batch) @ weight.T + bias)
        assert (headed.head, headed.has_logits) == ("head", True)
        assert [s.kind for s in headed.sites][-2:] == ["embedding", "logits"]
        with pytest.raises(ModelError, match=r"expected \(C, 8\)"):
            network.with_head(torch.zeros(3, 9))


def test_a_convolutional_head_is_replaced() -> None:
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(5, 4, 1), nn.Flatten())
    network = from_module(module, ArrayPreprocess((3, 6, 6)))
    assert network.head == "3"
    weight = torch.randn(2, 5)
    headed = network.with_head(weight)
    x = network.example(2)
    torch.testing.assert_close(headed.forward(x), network.without_head().forward(x) @ weight.T)


def test_a_module_at_two_paths_is_left_as_it_was() -> None:
    shared = nn.Linear(3, 3)
    tied = nn.Linear(3, 3)
    tied.weight = shared.weight
    network = from_module(nn.Sequential(shared, nn.Tanh(), shared, tied), ArrayPreprocess((3,)))
    before, x = {name: value.clone() for name, value in network.params.items()}, network.example(4)
    wanted = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    for layer, bias in zip(wanted, ("0.bias", "0.bias", "3.bias")):
        layer.load_state_dict({"weight": 2 * before["0.weight"], "bias": before[bias]})
    tanh = torch.tanh(wanted[0](x))
    for name in ("0.weight", "2.weight", "3.weight"):  # whatever the tensor is called
        out = network({name: 2 * before["0.weight"]}, {}, x)
        torch.testing.assert_close(out, wanted[2](wanted[1](tanh)))
    assert all(torch.equal(value, network.module.get_parameter(name)) for name, value in before.items())
    assert torch.equal(copy.deepcopy(network).forward(x), network.forward(x))


def test_tied_parameters_change_together() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.relu(self.one(x)))

    network = from_module(Tied(), ArrayPreprocess((4,)))
    assert list(network.params) == ["one.weight"]
    new = network.with_params({"one.weight": torch.eye(4)})
    x = network.example(2)
    assert torch.equal(new.forward(x), torch.relu(x))
    assert new.module.one.weight is new.module.two.weight
    assert list(new.params) == ["one.weight"]


def test_select_and_unknown_names(own: Zoo) -> None:
    network = own("residual")
    assert network.select("layer1.1.conv?.weight") == ("layer1.1.conv1.weight", "layer1.1.conv2.weight")
    with pytest.raises(ModelError, match=r"no parameter of residual matches 'layer1\.0\.conv3\.weight'.*did you mean"):
        network.select("layer1.0.conv3.weight")
    with pytest.raises(ModelError, match=r"no parameter 'fc\.wait'.*did you mean fc\.weight"):
        network.with_params({"fc.wait": torch.zeros(1)})
    with pytest.raises(ModelError, match=r"does not fit; expected \(4, 6\); got \(4, 7\)"):
        network.with_params({"fc.weight": torch.zeros(4, 7)})
    with pytest.raises(ModelError, match=r"did you mean 'layer1\.\*'"):
        network.select("layer1")


def test_operations_are_counted() -> None:
    """Two per multiplication and addition: 2·B·(6·8 + 2·8·8 + 8·3) for the functional network."""
    network = from_module(Functional(), ArrayPreprocess((6,)))
    assert network.flops(network.example(5)) == 2 * 5 * (6 * 8 + 2 * 8 * 8 + 8 * 3)


@pytest.mark.parametrize("name", ["residual", "recurrent", "encoder"])
def test_policy_allows_forward_mode_and_restores_the_settings(name: str, own: Zoo) -> None:
    network = own(name)
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    assert network.policy.recurrent == (name == "recurrent")
    tangents = {key: torch.randn_like(value) for key, value in network.params.items()}
    batch = network.example(2)

    def value(params: dict[str, Tensor]) -> Tensor:
        return network(params, network.buffers, batch)

    with network.policy.differentiable():
        forward, jvp = torch.func.jvp(value, (dict(network.params),), (tangents,))
        _, pullback = torch.func.vjp(value, dict(network.params))
        (gradient,) = pullback(torch.ones_like(forward))
    inner = sum(float((gradient[key] * tangents[key]).sum()) for key in gradient)
    assert inner == pytest.approx(float(jvp.sum()), rel=1e-3, abs=1e-4)
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled) == before


def test_the_bundled_format_without_weights_is_reproducible(folders: Callable[[str], Path]) -> None:
    first, again, other = (load(str(folders("vit")), random=seed) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_network_that_moves_keeps_what_its_example_passes_showed() -> None:
    network = from_module(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), ArrayPreprocess((4,)))
    assert "_trace" not in network.to("meta").__dict__  # no pass was run yet
    before = network.sites
    moved = network.to("meta")
    moved.module.register_forward_pre_hook(lambda *_: pytest.fail("a pass"))
    assert moved.sites == before
    assert moved.device.type == moved._trace.output.device.type == "meta"
