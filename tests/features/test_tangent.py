"""Tangents against float64 Jacobians written out by another route."""

from __future__ import annotations

import copy
import errno
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from tests.features.toy import toy_manifest, toy_network
from tests.network.zoo import Functional, Residual
from torch import Tensor, nn

from regraft.errors import DataError, ModelError, RecipeError, StoreError
from regraft.features import Tangent, form_error, ntk, ntk_within_rows
from regraft.features.tangent import graph
from regraft.features.tangent.engine import Engine
from regraft.features.tangent.graph import GraphError
from regraft.linear import Blocks, Design
from regraft.linear.testing import DesignContract
from regraft.network import ArrayPreprocess, Network, from_module


def jacobian(network: Network, names: Sequence[str], batch: Any) -> Tensor:
    """The Jacobian ``(N · C, P)`` in float64, by reverse mode on the whole network."""
    exact = copy.deepcopy(network)
    _ = exact.sites
    exact.module.double()
    batch = {k: _double(v) for k, v in batch.items()} if isinstance(batch, dict) else _double(batch)
    held = dict(exact.module.named_parameters())
    params = {name: held[name].detach() for name in names}
    with network.policy.differentiable():
        blocks = torch.func.jacrev(lambda p: exact(p, {}, batch))(params)
    flat = [blocks[name].flatten(0, 1) for name in names]
    return torch.cat([block.reshape(len(block), -1) for block in flat], dim=1)


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def made(module: nn.Module, shape: tuple[int, ...]) -> Network:
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return from_module(module, ArrayPreprocess(shape))


def residual() -> Network:
    torch.manual_seed(0)
    return made(Residual(3), (3, 5, 4))


class TestGraphContract(DesignContract):
    """In float64, through the block in which everything that can writes in place."""

    def make_design(self) -> Design:
        return residual_tangent(True)

    def dense(self, design: Design) -> Tensor:
        network = residual()
        return jacobian(network, list(design.shapes), network.example(4))


class TestTorchFuncContract(TestGraphContract):
    """The same products by the plain way."""

    def make_design(self) -> Design:
        return residual_tangent(False)


@functools.cache
def residual_tangent(fast: bool) -> Tangent:
    network = residual()
    return Tangent(network, "layer1.1.*", network.example(4), dtype=torch.float64, batch_size=3, fast=fast)


def test_two_tangents_made_alike_give_the_same_bits() -> None:
    network = residual()
    one, two = (Tangent(network, "layer1.1.*", network.example(5), batch_size=3) for _ in range(2))
    weights = Blocks({name: torch.randn(shape) for name, shape in one.shapes.items()})
    assert torch.equal(one.apply(weights), two.apply(weights))
    assert one.adjoint(torch.ones(5, 4)) == two.adjoint(torch.ones(5, 4))
    assert one.path == two.path


class TestThroughContract(DesignContract):
    """The tangents of a head on the embedding's."""

    def make_design(self) -> Design:
        network = residual()
        tangent = Tangent(network, "layer1.1.conv2.*", network.example(3), of="embedding", dtype=torch.float64)
        return tangent.through(network.params["fc.weight"])

    def dense(self, design: Design) -> Tensor:
        network = residual()
        return jacobian(network, list(design.shapes), network.example(3))


def test_functions_and_repeated_modules() -> None:
    network = made(Functional(), (6,))
    batch = network.example(4)
    tangent = Tangent(network, ["again.*", "head.bias"], batch, dtype=torch.float64)
    expected = jacobian(network, tangent.names, batch).T @ torch.ones(4 * 3, dtype=torch.float64)
    found = tangent.adjoint(torch.ones(4, 3, dtype=torch.float64)).flatten()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(tangent.outputs, network.forward(batch).double(), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------- what is cached, and when


class Counting(nn.Module):
    """A linear layer that counts its passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.passes = nn.Linear(width, width), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.inner(x)


def counting() -> Network:
    torch.manual_seed(0)
    return made(nn.Sequential(Counting(4), nn.ReLU(), Counting(4), nn.ReLU(), nn.Linear(4, 2)), (4,))


@pytest.mark.parametrize("fast", [True, False])
def test_the_prefix_runs_once(fast: bool) -> None:
    network = counting()
    tangent = Tangent(network, "2.*", network.example(6), batch_size=2, fast=fast).prepare()
    private = tangent._engine.replay.network.module
    before = private[0].passes
    weights = Blocks({name: torch.ones(shape) for name, shape in tangent.shapes.items()})
    for part in (tangent, tangent.take([4, 1])):
        part.apply(weights)
        part.adjoint(torch.ones(part.n_rows, 2))
    assert private[0].passes == before
    assert any("1 tensor a row kept" in line for line in tangent.path)


class Clipping(nn.Module):
    """Numbers beyond 2 are cut off; rows do not see each other, and the first ones have no such numbers."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.part, self.top, self.head = nn.Linear(4, 5), Large(how), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        before, part = torch.tanh(x), self.part(x)
        if self.part.how == "said":
            part = x.clamp(-2, 2) if part else x
        elif self.part.how == "some rows":
            part = x.index_copy(0, self.part.rows(x), part)
        return self.head(torch.tanh(self.top(part) + before))


class Large(nn.Module):
    """What of it a module of its own gives."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def rows(self, x: Tensor) -> Tensor:
        return (x.abs() > 2).any(1).nonzero()[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        large = (x.abs() > 2).any()
        if self.how == "said":
            return large
        if self.how == "some rows":
            return x[self.rows(x)].clamp(-2, 2)
        if self.how == "handed on":
            return x.clamp(-2, 2) if large else x
        return (x.clamp_(-2, 2) if large else x) * 1


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("how", ["said", "some rows", "handed on", "written"])
def test_a_path_that_only_later_rows_take_is_refused(how: str, fast: bool) -> None:
    """What the first rows show of a record holds for all: another is read by wrong places."""
    network, x = made(Clipping(how), (4,)), 0.3 * torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    assert Tangent(network, "top.*", x, fast=fast, batch_size=3).prepare().outputs.shape == (9, 3)
    x[5] *= 30
    tangent = Tangent(network, "top.*", x, fast=fast, batch_size=3)
    assert tangent._engine.replay.calls
    with pytest.raises(ModelError, match="another path"):
        tangent.prepare()
    torch.testing.assert_close(ntk(tangent.keep()), ntk(tangent.on(x).take(range(9))))
    below = Tangent(network, "*", x, fast=fast, batch_size=3, dtype=torch.float64)
    found = below.apply(Blocks({name: torch.ones(shape).double() for name, shape in below.shapes.items()}))
    torch.testing.assert_close(found.flatten(), jacobian(network, below.names, x).sum(1))


class Skipping(nn.Module):
    """A frozen part keeps a value on itself, which what follows reads there."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.top, self.head = nn.Sequential(nn.Linear(4, 5), Keeping()), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.top(self.low(x))) + self.low[1].kept)


class Keeping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = x
        return torch.tanh(x)


@pytest.mark.parametrize("fast", [True, False])
def test_a_value_that_a_module_keeps_on_itself_is_no_other_pass_s(fast: bool) -> None:
    network = made(Skipping(), (4,))
    assert network.topmost == ("top.*",)  # found by a differentiated pass, of which no graph stays on the module
    tangent = Tangent(network, None, network.example(7), of="embedding", fast=fast, batch_size=3, dtype=torch.float64)
    assert "answering calls from the record fails" in tangent.path[0]
    found = tangent.apply(Blocks({name: torch.ones(shape).double() for name, shape in tangent.shapes.items()}))
    expected = jacobian(network.without_head(), tangent.names, network.example(7))
    torch.testing.assert_close(found.flatten(), expected.sum(1))


def passed(tangent: Tangent) -> int:
    return tangent._engine.replay.network.module[0].passes  # type: ignore[no-any-return]


@pytest.mark.parametrize("fast", [True, False])
def test_another_pass_can_serve_a_tangent(fast: bool) -> None:
    """Batches of any number of rows, in any order; what it was not handed it passes itself."""
    network = counting()
    batch, y = network.example(9), torch.randn(9, 2)
    own = Tangent(network, "2.*", batch, batch_size=2, fast=fast)
    served, partly = (Tangent(network, "2.*", batch, batch_size=2, fast=fast) for _ in range(2))
    before = passed(served)
    record = served.recorder()
    outputs = torch.cat([record(0, batch[:4]), record(7, batch[7:]), record(4, batch[4:7])])
    torch.testing.assert_close(outputs, network.forward(batch)[[0, 1, 2, 3, 7, 8, 4, 5, 6]])
    assert served.prepared
    assert passed(served) - before == 2 + 1 + 2  # two rows at a time
    torch.testing.assert_close(dict(served.adjoint(y)), dict(own.adjoint(y)))
    torch.testing.assert_close(served.outputs, network.forward(batch))
    assert passed(served) - before == 2 + 1 + 2
    partly.recorder()(0, batch[:4])
    assert not partly.prepared
    torch.testing.assert_close(dict(partly.adjoint(y)), dict(own.adjoint(y)))
    assert partly.prepared


def test_another_pass_can_serve_kernels() -> None:
    network = counting()
    batch = network.example(5)
    own, served = (Tangent(network, "2.*", batch, fast=False).keep() for _ in range(2))
    served.recorder(kernels=True)(0, batch)
    before = passed(served)
    torch.testing.assert_close(ntk(served), ntk(own))
    assert served.passed_rows == 3  # at which the tape looks
    assert own.passed_rows == 3 + 5
    assert passed(served) == before
    below = Tangent(network, "0.*", batch, fast=False).keep()  # nothing comes before it
    assert below.recorder(kernels=True) is None


def test_cost_is_known_before_the_pass() -> None:
    network = residual()
    seen: list[tuple[int, int]] = []
    tangent = Tangent(network, "layer1.1.*", network.example(5), batch_size=2)
    cost = tangent.cost
    tangent.prepare(lambda done, rows: seen.append((done, rows)))
    assert seen == [(2, 5), (4, 5), (5, 5)]
    kept = tangent._engine.prepared()._values[:-1]
    assert cost.bytes == sum(value.numel() * value.itemsize for value in kept)
    assert (cost.rows, cost.outputs, cost.coefficients) == (5, 4, tangent.n_coefficients)


def test_operations_of_products_are_counted() -> None:
    """Of Linear(4, 4), ReLU, Linear(4, 2) by the first layer's weights: 4 · 4 and 4 · 2 multiplications each way."""
    tangent = Tangent(counting(), "2.*", counting().example(6), batch_size=4)
    assert tangent.spent_flops == 0
    assert tangent.product_flops == (2 * (16 + 8), 2 * (16 + 8))
    weights = Blocks({name: torch.ones(shape) for name, shape in tangent.shapes.items()})
    tangent.apply(weights)
    tangent.take([0, 3]).adjoint(torch.ones(2, 2))
    assert tangent.spent_flops == (6 + 2) * 48
    plain = Tangent(counting(), "2.*", counting().example(6), fast=False)
    plain.adjoint(torch.ones(6, 2))  # once more through the layers before it goes back
    assert plain.spent_flops == 6 * (48 + 48)


def test_a_temporary_file_holds_what_memory_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = residual()
    inside = Tangent(network, "layer1.1.*", network.example(5), batch_size=2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outside = Tangent(network, "layer1.1.*", network.example(5), batch_size=2, memory=100).prepare()
    assert not outside._engine.prepared().in_memory
    assert not any(tmp_path.iterdir())  # it has no name, for a process that is killed deletes nothing
    y = torch.randn(5, 4)
    assert outside.adjoint(y) == inside.adjoint(y)
    assert torch.equal(outside.outputs, inside.outputs)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StoreError, match=r"cannot keep .* got No space left on device.* set TMPDIR"):
        Tangent(network, "layer1.1.*", network.example(5), batch_size=2, memory=100).prepare()


@pytest.mark.parametrize("together", [4, 7])
def test_products_may_take_more_rows_than_a_pass(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do where there is no processor, the graphs for so many rows made beforehand."""
    network, asked = residual(), []
    batch, y = network.example(7), torch.randn(7, 4)
    plain = Tangent(network, "layer1.1.*", batch, fast=False)
    monkeypatch.setattr(Engine, "together", property(lambda self: together))
    tangent = Tangent(network, "layer1.1.*", batch, batch_size=3).prepare()
    way = tangent._engine.way
    assert {3, together} <= set(way._programs)
    of_rows = way.adjoint
    monkeypatch.setattr(way, "adjoint", lambda values, rows, out: asked.append(rows) or of_rows(values, rows, out))
    torch.testing.assert_close(tangent.adjoint(y).flatten(), plain.adjoint(y).flatten(), rtol=1e-4, atol=1e-5)
    assert asked == ([7] if together == 7 else [4, 3])
    weights = Blocks({name: torch.randn(shape) for name, shape in tangent.shapes.items()})
    torch.testing.assert_close(tangent.apply(weights), plain.apply(weights), rtol=1e-4, atol=1e-5)


def test_products_on_an_accelerator_take_so_many_rows_as_fit(accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = residual().to(accelerator)
    tangent = Tangent(network, "layer1.1.*", network.example(40), batch_size=2)
    assert tangent._engine.together == 40
    monkeypatch.setattr("regraft.features.tangent.engine._TOGETHER", 9 * tangent.cost.bytes_per_row)
    assert tangent._engine.together == 9
    assert Tangent(network, "layer1.1.*", network.example(40), batch_size=2, fast=False)._engine.together == 2


def test_rare_sizes_are_padded_and_common_ones_are_not() -> None:
    network = residual()
    batch = network.example(7)
    tangent = Tangent(network, "layer1.1.*", batch, batch_size=6)
    whole = Tangent(network, "layer1.1.*", batch, fast=False)
    for rows in (range(3), range(2, 5), range(4, 7), [0], [6, 2], range(7)):
        y = torch.randn(len(rows), 4)
        found, expected = tangent.take(rows).adjoint(y), whole.take(rows).adjoint(y)
        torch.testing.assert_close(found.flatten(), expected.flatten(), rtol=1e-4, atol=1e-5)
    assert 3 in tangent._engine.way._programs


def test_a_network_is_left_as_it_was() -> None:
    network = residual()
    batch = network.example(4)
    copied, before = batch.clone(), network.fingerprint
    Tangent(network, "layer1.1.*", batch, dtype=torch.float64).prepare()
    Tangent(network, "layer1.1.*", batch).prepare()
    assert torch.equal(batch, copied)
    assert copy.deepcopy(network).fingerprint == before
    assert not any("forward" in vars(part) for part in network.module.modules())
    assert not any(p.requires_grad for p in network.module.parameters())


def test_rows_of_a_manifest() -> None:
    network, manifest = toy_network(), toy_manifest(9)
    tangent = Tangent(network, "*", manifest, batch_size=4)
    batch = network.preprocess.collate([network.preprocess(manifest.inputs.read(row)) for row in range(9)])
    y = torch.randn(9, tangent.n_outputs)
    torch.testing.assert_close(
        tangent.adjoint(y).flatten(), Tangent(network, "*", batch).adjoint(y).flatten(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("row", [0, 4])
def test_a_row_that_cannot_be_decoded_is_named(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, the middle and the last one are read before all others."""
    network, manifest = toy_network(), toy_manifest(9)
    read, odd = ArrayPreprocess.__call__, manifest.inputs.read(row)

    def failing(self: ArrayPreprocess, raw: Any) -> Tensor:
        if np.array_equal(raw, odd):
            raise ValueError("odd numbers")
        return read(self, raw)

    monkeypatch.setattr(ArrayPreprocess, "__call__", failing)
    with pytest.raises(DataError, match=rf"row {row} cannot be decoded; got odd numbers"):
        Tangent(network, "conv2.*", manifest)


def test_on_other_rows_looks_at_the_network_once() -> None:
    network, names = residual(), ["layer1.1.*", "fc.*"]
    first, second = network.example(5), 0.5 * network.example(3)
    tangent = Tangent(network, names, first, dtype=torch.float64)
    other, anew = tangent.on(second), Tangent(network, names, second, dtype=torch.float64)
    assert other.tape is tangent.tape
    assert (other.n_rows, other.n_outputs, tangent.n_rows) == (3, 4, 5)
    torch.testing.assert_close(ntk(other), ntk(anew), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(other.outputs, anew.outputs)
    y = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(other.adjoint(y).flatten(), anew.adjoint(y).flatten())
    torch.testing.assert_close(ntk(tangent), ntk(Tangent(network, names, first, dtype=torch.float64)))
    assert other._engine.way is tangent._engine.way
    assert (
        other.spent_flops == tangent.spent_flops + 3 * tangent.product_flops[1]
    )  # one adjoint, and what the tape counted
    apart = tangent.on(second, tape=False)
    assert apart.tape is not tangent.tape
    assert not apart.prepared
    torch.testing.assert_close(apart.adjoint(y).flatten(), anew.adjoint(y).flatten())
    network.module.train()
    try:
        with pytest.raises(ModelError, match="training mode"):
            tangent.on(second)
    finally:
        network.module.eval()


@pytest.mark.parametrize("step", ["check", "row_axis"])
def test_other_rows_do_not_trust_a_graph_that_failed(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, y = residual(), torch.randn(5, 4)
    tangent = Tangent(network, "layer1.1.*", network.example(6), batch_size=3)
    other = tangent.on(network.example(6)[:5])

    def failing(*_: object) -> None:
        raise GraphError("not today")

    monkeypatch.setattr(graph, step, failing)
    for each in (tangent.prepare(), other.prepare()):
        assert each.path[-1] == "no graph of cached activations: not today"
    plain = Tangent(network, "layer1.1.*", network.example(6)[:5], fast=False)
    torch.testing.assert_close(other.adjoint(y).flatten(), plain.adjoint(y).flatten())


class Chunks(nn.Module):
    """Sixteen rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.head(torch.relu(self.first(part))) for part in x.split(16)])


@pytest.mark.parametrize("together", [None, 20])
def test_more_rows_than_a_graph_serves_go_the_plain_way(together: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a pass, or where there is no processor those of a product."""
    network, batch = made(Chunks(), (4,)), torch.randn(40, 4)
    if together:
        monkeypatch.setattr(Engine, "together", property(lambda self: together))
    tangent = Tangent(network, "*", batch[:10], batch_size=8 if together else 20).prepare()
    other, plain = tangent.on(batch), Tangent(network, "*", batch, fast=False)
    y = torch.randn(40, 2)
    torch.testing.assert_close(other.adjoint(y).flatten(), plain.adjoint(y).flatten(), rtol=1e-4, atol=1e-5)
    assert other.path[-1] == "no graph of cached activations: its operations depend on the number of rows"
    torch.testing.assert_close(tangent.adjoint(y[:10]).flatten(), plain.take(range(10)).adjoint(y[:10]).flatten())


def test_on_rows_of_another_shape_looks_at_the_network_anew() -> None:
    """As texts do that are padded to another length."""
    network, y = residual(), torch.randn(6, 4)
    tangent = Tangent(network, "layer1.1.*", network.example(5), batch_size=3).prepare()
    larger = torch.randn(6, 3, 7, 9)
    other, anew = (made(larger) for made in (tangent.on, lambda rows: Tangent(network, "layer1.1.*", rows)))
    torch.testing.assert_close(other.adjoint(y).flatten(), anew.adjoint(y).flatten(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ntk(other), ntk(anew))
    assert other._engine.way is not tangent._engine.way


def test_batches_may_come_as_a_list() -> None:
    network = residual()
    batch, y = network.example(5), torch.randn(5, 4)
    parts = Tangent(network, "layer1.1.*", [batch[:2], batch[2:]])
    torch.testing.assert_close(parts.adjoint(y).flatten(), Tangent(network, "layer1.1.*", batch).adjoint(y).flatten())


def test_through_takes_any_head_without_another_pass() -> None:
    network = residual()
    batch = network.example(5)
    embedding = Tangent(network, "layer1.1.*", batch, of="embedding").prepare()
    weight = torch.randn(2, 3)
    headed = Tangent(network.with_head(weight), "layer1.1.*", batch)
    y = torch.randn(5, 2)
    for rows in (slice(None), [3, 0]):
        found = embedding.through(weight).take(rows).adjoint(y[rows])
        expected = headed.take(rows).adjoint(y[rows])
        torch.testing.assert_close(found.flatten(), expected.flatten(), rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------------- refusals


class Odd(torch.autograd.Function):
    """A function with a backward of its own and nothing else."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to remember."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1


class NoForwardRule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Odd.apply(x)


def test_without_a_forward_rule_two_backward_passes_serve() -> None:
    torch.manual_seed(0)
    network = made(nn.Sequential(nn.Linear(3, 4), NoForwardRule(), nn.Linear(4, 2)), (3,))
    batch = network.example(4)
    tangent = Tangent(network, "0.*", batch, dtype=torch.float64)
    weights = Blocks({name: torch.randn(shape, dtype=torch.float64) for name, shape in tangent.shapes.items()})
    expected = jacobian(network, tangent.names, batch) @ weights.flatten()
    torch.testing.assert_close(tangent.apply(weights).reshape(-1), expected)
    assert any("double backward" in line and "1 has no forward-mode rule" in line for line in tangent.path)


class Silent(Odd):
    """Its forward-mode rule is refused without a word."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        raise NotImplementedError


class SilentRule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Silent.apply(x)


def test_a_rule_that_fails_without_a_message_is_named_by_its_error() -> None:
    network = made(nn.Sequential(nn.Linear(3, 4), SilentRule(), nn.Linear(4, 2)), (3,))
    tangent = Tangent(network, "0.*", network.example(4))
    assert any("1 has no forward-mode rule (NotImplementedError)" in line for line in tangent.path)


def test_rows_whose_outputs_are_not_finite_are_refused_in_a_sentence() -> None:
    network = residual()
    batch = network.example(4)
    batch[3] = torch.nan
    with pytest.raises(DataError, match=r"the outputs of module; expected finite numbers; got NaN.*NaN in the inputs"):
        Tangent(network, "layer1.1.*", batch)


class Once(torch.autograd.Function):
    """A function that can be differentiated once only, backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1


class Stubborn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(x)


def test_what_cannot_be_differentiated_is_named() -> None:
    network = made(nn.Sequential(nn.Linear(3, 4), Stubborn(), nn.Linear(4, 2)), (3,))
    with pytest.raises(ModelError, match=r"^1 of module has no forward-mode derivative"):
        Tangent(network, "0.*", network.example(3))
    assert Tangent(network, "2.*", network.example(3)).adjoint(torch.ones(3, 2))["2.bias"].tolist() == [3, 3]


class Counts(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        return x.sin()


def test_a_buffer_that_is_written_into_is_told_so() -> None:
    network = made(nn.Sequential(nn.Linear(3, 4), Counts(True), nn.Linear(4, 2)), (3,))
    with pytest.raises(ModelError, match=r"writes into a tensor that it holds.* put a new tensor in its place"):
        Tangent(network, "0.*", network.example(3), fast=False)
    network = made(nn.Sequential(nn.Linear(3, 4), Counts(False), nn.Linear(4, 2)), (3,))
    assert Tangent(network, "0.*", network.example(3), fast=False).adjoint(torch.ones(3, 2))["0.bias"].shape == (4,)


def test_a_pattern_that_matches_nothing() -> None:
    network = residual()
    with pytest.raises(ModelError, match=r"no parameter of .* matches 'layer9"):
        Tangent(network, "layer9.*", network.example(2))
    with pytest.raises(ModelError, match="no parameters are selected"):
        Tangent(network, [], network.example(2))


def test_a_zero_head() -> None:
    network = residual()
    empty = network.with_head(torch.zeros(2, 3))
    with pytest.raises(RecipeError, match="the head is zero"):
        Tangent(empty, "layer1.1.*", network.example(2))
    with pytest.raises(RecipeError, match="the head is zero"):
        Tangent(network, "layer1.1.*", network.example(2), of="embedding").through(torch.zeros(2, 3))
    assert Tangent(empty, "fc.*", network.example(2)).n_coefficients == 8


def test_training_mode() -> None:
    network = made(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)), (3,))
    network.module[1].train()
    with pytest.raises(ModelError, match=r"1 \(Dropout\) is in training mode"):
        Tangent(network, "0.*", torch.ones(2, 3))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.extra = nn.Linear(3, 2), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5)), nn.Linear(5, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_refused_with_what_to_do(reentrant: bool) -> None:
    network = from_module(Checkpointed(reentrant), ArrayPreprocess((4,)))
    with pytest.raises(ModelError, match=r"switch checkpointing off"):
        Tangent(network, "body.2.*", network.example(4), of="embedding")


class WritingOver(nn.Module):
    """The sum is written over what the second activation needs; of ``codes`` no input has a derivative."""

    def __init__(self, codes: bool) -> None:
        super().__init__()
        self.first = nn.Embedding(9, 5) if codes else nn.Linear(4, 5)
        self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x[:, 0].long().abs() % 9 if isinstance(self.first, nn.Embedding) else x)
        y = torch.relu_(self.second(x))
        y += x
        return self.head(y)


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("select", ["first.*", "second.*"])
def test_what_is_written_over_and_needed_is_said_so(select: str, codes: bool) -> None:
    network = made(WritingOver(codes), (4,))
    for fast in (True, False):
        with pytest.raises(ModelError, match="module writes over values that its derivatives need"):
            Tangent(network, select, network.example(4), fast=fast)


def test_parameters_without_influence() -> None:
    network = made(Unused(), (3,))
    with pytest.raises(ModelError, match="no influence on the outputs"):
        Tangent(network, "extra.*", network.example(2))


def test_no_blocks_no_rows_no_logits() -> None:
    network = made(Unused(), (3,))
    with pytest.raises(ModelError, match="no blocks to take the topmost of"):
        Tangent(network, None, network.example(2))
    with pytest.raises(DataError, match="no rows"):
        Tangent(network, "head.*", torch.ones(0, 3))
    with pytest.raises(DataError, match="do not fit together"):
        Tangent(network, "head.*", [torch.ones(2, 3), torch.ones(2, 4)])
    batches: list[dict[str, Tensor]] = [{"x": torch.ones(2, 3)}, {"x": torch.ones(2, 3), "mask": torch.ones(2, 3)}]
    for several in (batches, batches[::-1]):
        with pytest.raises(DataError, match=r"do not fit together.*got one without 'mask'"):
            Tangent(network, "head.*", several)
    with pytest.raises(ModelError, match="the embedding does not depend on it"):
        Tangent(network, "head.*", torch.ones(2, 3), of="embedding")
    with pytest.raises(ModelError, match="has no logits"):
        Tangent(residual().without_head(), "layer1.1.*", residual().example(2))


def test_of_the_embedding_a_pattern_that_matches_others_leaves_the_heads_out() -> None:
    network = made(Rooted(), (3,))
    batch = network.example(3).abs()
    below = ("first.weight", "first.bias")
    assert Tangent(network, "*", batch, of="embedding").names == below
    assert Tangent(network, ["*.weight"], batch, of="embedding").names == below[:1]
    assert Tangent(network, "*", batch).names == (*below, "last.weight", "last.bias")
    with pytest.raises(ModelError, match=r"last.weight is the head's: the embedding does not depend on it"):
        Tangent(network, ["first.*", "last.*"], batch, of="embedding")


@pytest.mark.parametrize("module", [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2)), nn.Identity()])
def test_nothing_below_the_last_layer_is_said_to_be_so(module: nn.Module) -> None:
    network = from_module(module, ArrayPreprocess((3,)))
    with pytest.raises(ModelError, match=r"has no weights below its last layer.*such as probe"):
        Tangent(network, None, network.example(2))


class UnderInference(nn.Module):
    """A pass that keeps no graph and no count of what is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_a_pass_under_inference_mode_is_refused_in_a_sentence() -> None:
    network = made(UnderInference(), (3,))
    with pytest.raises(ModelError, match="inference_mode has no derivatives"):
        Tangent(network, "body.3.*", network.example(4)).adjoint(torch.ones(4, 2))


def test_the_topmost_block_is_the_default() -> None:
    network = residual()
    tangent = Tangent(network, None, network.example(2))
    assert tangent.names == network.select("layer1.1.*")


def test_rows_from_inference_mode_are_rows() -> None:
    network = residual()
    with torch.inference_mode():
        batch = network.example(3)
    y = torch.randn(3, 4)
    wanted = Tangent(network, "layer1.1.*", batch.clone()).adjoint(y)
    assert Tangent(network, "layer1.1.*", batch).adjoint(y) == wanted


def test_a_row_that_is_not_finite_is_refused_wherever_it_is() -> None:
    network = residual()
    batch = network.example(9)
    batch[1] = torch.nan  # neither the first, nor the middle, nor the last one
    tangent = Tangent(network, "layer1.1.*", batch)
    for use in (ntk, lambda rows: rows.adjoint(torch.ones(9, rows.n_outputs)), lambda rows: rows.rows([1])):
        with pytest.raises(DataError, match=r"expected finite numbers; got NaN or infinity"):
            use(tangent)
    with pytest.raises(DataError, match="a batch of 0 rows; expected one at least"):
        Tangent(network, "layer1.1.*", network.example(2), batch_size=0)


class Rooted(nn.Module):
    """The root of what is above zero: below it the output is finite, and its derivative 0 · ∞."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(torch.where(h > 0, h.sqrt(), torch.zeros_like(h)))


def rooted(below: int) -> tuple[Network, Tensor]:
    """Nine rows of which one is below zero."""
    network, batch = made(Rooted(), (3,)), torch.ones(9, 3)
    network.module.first.weight.data.fill_(0.5)
    network.module.first.bias.data.zero_()
    batch[below] = -1.0
    return network, batch


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("below", [0, 1])
def test_derivatives_that_are_not_finite_are_said_to_be_so_wherever_they_are(below: int, fast: bool) -> None:
    """In the first row, at which the network is looked, or in one that it is not looked at."""
    network, batch = rooted(below)
    tangent = Tangent(network, "*", batch, fast=fast)
    assert bool(torch.isfinite(tangent.outputs).all())
    y = torch.ones(9, 2)
    for use in (
        ntk,
        lambda rows: ntk(rows, rows.take([below, 8]), form="shared"),
        ntk_within_rows,
        lambda rows: form_error(rows, "shared"),
        lambda rows: rows.rows([below]),
        lambda rows: rows.adjoint(y),
        lambda rows: rows.gram().apply(torch.ones(18, 3)),
        lambda rows: rows.gram().diagonal(),
    ):
        with pytest.raises(ModelError, match=r"the derivatives of module.*NaN or infinity, of finite outputs.*root"):
            use(tangent)
    others = tangent.take([row for row in range(9) if row != below])
    assert all(bool(torch.isfinite(block).all()) for block in others.adjoint(y[1:]).values())
    above = Tangent(network, "last.*", batch)  # what is above the root has finite derivatives
    assert bool(torch.isfinite(ntk(above)).all())


def test_a_product_of_numbers_that_are_not_finite_is_not_laid_to_the_derivatives() -> None:
    network, batch = residual(), residual().example(4)
    tangent = Tangent(network, "layer1.1.*", batch)
    assert bool(tangent.adjoint(torch.full((4, tangent.n_outputs), torch.nan))["layer1.1.conv1.weight"].isnan().any())
    huge = Blocks({name: torch.full(shape, 3e38) for name, shape in tangent.shapes.items()})
    assert not bool(torch.isfinite(tangent.apply(huge)).all())


def _dense(tangent: Tangent) -> Tensor:
    return torch.cat([block.flatten(2) for block in tangent.rows(range(tangent.n_rows)).values()], 2).flatten(0, 1)


def test_parameters_come_in_order_where_some_are_folded_and_others_are_not() -> None:
    """SiLU has no graph of cached activations with BatchNorm before it."""
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 3)
    network = made(nn.Sequential(*layers), (6,))
    for fast in (True, False):
        tangent = Tangent(network, "*", network.example(7), fast=fast)
        weights = torch.randn(tangent.n_coefficients)
        wanted = (_dense(tangent) @ weights).view(7, 3)
        torch.testing.assert_close(tangent.apply(Blocks.unflatten(weights, tangent.shapes)), wanted)


def test_operations_of_a_parametrised_network_are_counted() -> None:
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    tangent = Tangent(made(module, (6,)), "*", torch.randn(5, 6))
    assert min(tangent.product_flops) > 0


class Codes(nn.Module):
    """Numbers that become indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table((x.abs() * 3).long().clamp(max=9)).mean(1))


class Held(nn.Module):
    """A layer that runs without derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.moving, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            still = self.held(x)
        return self.head(torch.tanh(self.moving(x)) + still)


@pytest.mark.parametrize("module", [Codes, Held])
def test_inputs_as_indices_and_layers_without_derivatives(module: type[nn.Module]) -> None:
    torch.manual_seed(0)
    network = made(module(), (6,))
    tangent = Tangent(network, "*", torch.randn(5, 6))
    dense = _dense(tangent)
    torch.testing.assert_close(ntk(tangent), dense @ dense.T)
    if module is Held:
        assert not dense[:, : 6 * 7].any()
