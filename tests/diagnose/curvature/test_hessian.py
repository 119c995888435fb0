"""Hessian and Gauss-Newton products against dense matrices by torch.func in float64."""

from __future__ import annotations

import pytest
import torch
from tests.diagnose.curvature.curved import case, dense_ggn, dense_hessian, rows_loss, targets
from torch import Tensor, nn

from regraft.diagnose import Hessian, Objective, ggn
from regraft.errors import ModelError
from regraft.linear import Tag
from regraft.network import ArrayPreprocess, from_module

LOSSES = ("softmax", "sigmoid", "squared")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["tanh", "relu", "conv"])
def test_the_hessian_is_that_of_torch(kind: str, loss: str) -> None:
    module, network, x = case(kind)
    y = targets(loss)
    objective = Objective(network, x, y, loss=loss, dtype=torch.float64, batch_size=13)  # type: ignore[arg-type]
    hessian = Hessian(objective)
    wanted = dense_hessian(module, x, y, loss, list(objective.point))
    torch.testing.assert_close(hessian.dense(), wanted, rtol=1e-8, atol=1e-12)
    assert Tag.SYMMETRIC in hessian.tags
    assert hessian.loss == pytest.approx(float(rows_loss(loss, module(x.double()).detach(), y).mean()), rel=1e-12)
    torch.testing.assert_close(hessian.gradient, objective.gradient()[1].flatten(), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(hessian.adjoint(wanted[0]), wanted @ wanted[0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["tanh", "conv"])
def test_the_gauss_newton_matrix_is_that_of_torch(kind: str, loss: str) -> None:
    module, network, x = case(kind)
    objective = Objective(network, x, targets(loss), loss=loss, dtype=torch.float64, batch_size=13)  # type: ignore[arg-type]
    matrix = ggn(objective)
    torch.testing.assert_close(matrix.dense(), dense_ggn(module, x, loss), rtol=1e-7, atol=1e-11)
    assert list(matrix.shapes) == list(objective.shapes)
    assert Tag.POSITIVE_SEMIDEFINITE in matrix.tags


@pytest.mark.parametrize("select", ["5.*", ["0.weight", "5.bias"], "*.bias"])
def test_any_selection_of_parameters(select: str | list[str]) -> None:
    module, network, x = case("tanh")
    y = targets("softmax")
    objective = Objective(network, x, y, select=select, dtype=torch.float64, batch_size=16)
    wanted = dense_hessian(module, x, y, "softmax", list(objective.point))
    torch.testing.assert_close(Hessian(objective).dense(), wanted, rtol=1e-8, atol=1e-12)


def test_the_hessian_of_a_linear_network_s_head_is_its_gauss_newton_matrix() -> None:
    _, network, x = case("tanh")
    objective = Objective(network, x, targets("softmax"), select="5.*", dtype=torch.float64)
    torch.testing.assert_close(Hessian(objective).dense(), ggn(objective).dense(), rtol=1e-9, atol=1e-13)


def test_batches_and_memory_change_nothing_but_rounding() -> None:
    _, network, x = case("conv")
    y = targets("softmax")
    found: list[Tensor] = []
    for size, memory in ((40, 2**31), (7, 2**31), (7, 0), (7, 200_000)):
        objective = Objective(network, x, y, dtype=torch.float64, batch_size=size)
        hessian = Hessian(objective, memory=memory)
        vectors = torch.randn(objective.size, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        found.append(hessian.apply(vectors))
        if memory == 0:
            assert hessian.kept == 1
        elif size == 7 and memory < 2**31:
            assert 1 <= hessian.kept < 6
            assert hessian.bytes <= 200_000 or hessian.kept == 1
        else:
            assert hessian.kept == -(-40 // size)
        assert torch.equal(found[-1], hessian.apply(vectors))  # bit for bit
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-10, atol=1e-14)
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[1], found[3])


def test_weights_of_rows_count() -> None:
    _, network, x = case("tanh")
    y, half = targets("softmax"), torch.zeros(40)
    half[:20] = 1 / 20
    whole = Objective(network, x, y, weights=half, dtype=torch.float64)
    part = Objective(network, x[:20], y[:20], dtype=torch.float64)
    torch.testing.assert_close(Hessian(whole).dense(), Hessian(part).dense(), rtol=1e-6, atol=1e-8)


class _Unused(nn.Module):
    """A parameter that leads nowhere, and one that enters linearly."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(2))
        self.top = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(x) + self.shift


def test_parameters_that_the_loss_does_not_touch_have_rows_of_zeros() -> None:
    network = from_module(_Unused().eval(), preprocess=ArrayPreprocess((3,)))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    objective = Objective(network, x, torch.arange(8) % 2, dtype=torch.float64)
    hessian = Hessian(objective).dense()
    rows = list(objective.point).index("idle") * 3
    assert rows == 0
    assert not bool(hessian[:3].any())
    assert not bool(hessian[:, :3].any())
    assert bool(hessian[3:].any())
    with pytest.raises(ModelError, match="depend differentiably"):
        Hessian(Objective(network, x, torch.arange(8) % 2, select="idle"))


class _Twice(torch.autograd.Function):
    """Something that can be differentiated once."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def,override]
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def,override]
        return 2 * ctx.saved_tensors[0] * gradient


class _Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.low, self.top, self.kind = nn.Linear(3, 4), nn.Linear(4, 2), kind

    def forward(self, x: Tensor) -> Tensor:
        found = self.low(x)
        if self.kind == "once":
            found = _Twice.apply(found)
        found = self.top(found)
        if self.kind == "detached":
            return found.detach()
        if self.kind == "rounded":
            return found.long()
        return found


@pytest.mark.parametrize(
    ("kind", "message"),
    [("detached", "depend differentiably"), ("rounded", "floating tensor"), ("once", "differentiated twice")],
)
def test_outputs_that_cannot_be_differentiated_are_refused_in_a_sentence(kind: str, message: str) -> None:
    network = from_module(_Odd(kind).eval(), preprocess=ArrayPreprocess((3,)))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ModelError, match=message) as caught:
        Hessian(Objective(network, x, torch.arange(8) % 2)).dense()
    assert caught.value.expected
    assert caught.value.got
    if kind == "once":  # the parameters above it have a Hessian, and the Gauss-Newton matrix is there for all
        top = Hessian(Objective(network, x, torch.arange(8) % 2, select="top.*"))
        assert bool(torch.isfinite(top.dense()).all())


def test_a_network_in_training_mode_is_refused_and_statistics_of_batches_are_the_hessian_s_alone() -> None:
    _, network, x = case("conv")
    batch = Objective(network, x, targets("softmax"), dtype=torch.float64, batchnorm="batch", batch_size=20)
    matrix = Hessian(batch).dense()
    torch.testing.assert_close(matrix, matrix.T, rtol=1e-9, atol=1e-12)
    with pytest.raises(ModelError, match="depend on their batch"):
        ggn(batch)
    network.module.train()
    with pytest.raises(ModelError, match="training"):
        Objective(network, x, targets("softmax"))


def test_a_network_that_was_changed_since_has_no_gauss_newton_matrix() -> None:
    _, network, x = case("tanh")
    objective = Objective(network, x, targets("softmax"), select="0.*")
    ggn(objective)
    with torch.no_grad():
        list(network.module.parameters())[-1].add_(1e-2)
    with pytest.raises(ModelError, match="outputs that differ"):
        ggn(objective)


def test_curvlinops_agrees() -> None:
    library = pytest.importorskip(
        "curvlinops", reason="curvlinops is not installed: pip install curvlinops-for-pytorch"
    )
    module, network, x = case("tanh")
    y = targets("softmax")
    objective = Objective(network, x, y, dtype=torch.float64, batch_size=13)
    module = module.requires_grad_(True)
    chosen = list(module.parameters())
    data = [(x[:25].double(), y[:25]), (x[25:].double(), y[25:])]
    vector = torch.randn(objective.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for ours, name in ((Hessian(objective), "HessianLinearOperator"), (ggn(objective), "GGNLinearOperator")):
        peer = getattr(library, name)(module, nn.CrossEntropyLoss(), chosen, data)
        torch.testing.assert_close(ours.apply(vector), (peer @ vector).detach(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives_that_torch_has_wrong_are_refused(dtype: torch.dtype) -> None:
    """Of ``weight_norm`` they are not symmetric."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))
    network = from_module(module, ArrayPreprocess((4,)))
    objective = Objective(network, torch.randn(7, 4), torch.randint(3, (7,)), dtype=dtype)
    with pytest.raises(ModelError, match=r"second derivatives that are symmetric; got .* weight_norm.*matrix='ggn'"):
        Hessian(objective)
