"""The settings of the process in which passes run: what is off inside, and back afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from tests.network.processes import in_own_process
from torch import nn
from torch.autograd import forward_ad
from torch.backends import cudnn

from regraft.network.policy import Policy, as_compiled, full_precision, grad

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def settings() -> tuple[bool, bool, bool, bool]:
    fast = torch.backends.mha.get_fastpath_enabled()
    return fast, cudnn.allow_tf32, cudnn.enabled, torch.backends.mkldnn.enabled  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _all_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings()
    assert before[1:3] == (True, True)  # what torch comes with
    yield
    assert settings() == before


@pytest.mark.parametrize(
    ("module", "device", "running", "differentiable"),
    [
        (nn.Conv2d(1, 1, 1), CPU, (True, True, True), (False, True, True)),
        (nn.Conv2d(1, 1, 1), CUDA, (True, False, True), (False, False, True)),
        (nn.TransformerEncoderLayer(4, 2), CUDA, (False, False, True), (False, False, True)),
        (nn.Sequential(nn.LSTM(2, 2)), CPU, (True, True, True), (False, True, True)),
        (nn.Sequential(nn.LSTM(2, 2)), CUDA, (True, False, False), (False, False, False)),
    ],
)
def test_what_is_off_inside(module, device, running, differentiable) -> None:
    policy = Policy.of(module, device)
    with torch.enable_grad():
        with policy.running():
            assert settings()[:3] == running
        with policy.differentiable():
            assert settings()[:3] == differentiable
            assert settings()[3] is not policy.recurrent
            with policy.running(), full_precision(device):  # nested, and left in turn
                assert settings()[:3] == differentiable
            assert settings()[:3] == differentiable
    with torch.no_grad(), policy.running():
        assert settings()[2]  # the fused kernel serves where nothing is differentiated


def test_what_was_off_before_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.allow_tf32 = False
    with full_precision(CUDA):
        assert not cudnn.allow_tf32
    assert not cudnn.allow_tf32
    cudnn.allow_tf32 = True


def test_settings_come_back_after_an_error() -> None:
    with contextlib.suppress(KeyError), Policy.of(nn.LSTM(2, 2), CUDA).differentiable():
        raise KeyError


def test_gradients_are_autograds() -> None:
    x = torch.randn(3, requires_grad=True)
    first = grad((x**3).sum(), [x], create_graph=True)[0]
    torch.testing.assert_close(first, 3 * x**2)
    torch.testing.assert_close(grad([first], [x], [torch.ones(3)], allow_unused=True)[0], 6 * x)


def test_passes_as_compiled() -> None:
    with contextlib.suppress(KeyError), as_compiled():
        with as_compiled():
            assert torch.compiler.is_compiling()
        assert torch.compiler.is_compiling()
        raise KeyError
    assert not torch.compiler.is_compiling()


_ENDS = """
import torch
from torch import nn
from regraft.network.policy import Policy

module, float64 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16).double()
policy = Policy.of(module, torch.device("cpu"))
for size in (5, 1):
    rows, along = torch.rand(2, 16, size, size), torch.rand(2, 16, size, size)
    with {context}:
        found = module(rows.contiguous(memory_format=torch.channels_last))
    gradients = torch.autograd.grad(found, [module.weight, module.bias], along)
    expected = torch.autograd.grad(float64(rows.double()), [float64.weight, float64.bias], along.double())
    torch.testing.assert_close([g.double() for g in gradients], list(expected), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.parametrize("context", ["policy.running()", "policy.differentiable()"])
def test_a_group_normalisation_behind_frozen_layers_gives_its_gradients(tmp_path: Path, context: str) -> None:
    """In a process of its own: without the policy torch's kernel ends it."""
    in_own_process(_ENDS.format(context=context), tmp_path)


def test_a_group_normalisation_has_its_derivatives_of_all_modes() -> None:
    norm = nn.GroupNorm(2, 4)
    policy, rows = Policy.of(norm, CPU), torch.rand(3, 4, 2, 2)
    weights = {name: value.detach() for name, value in norm.named_parameters()}

    def total(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(norm, given, (rows,)).square().sum()

    expected = torch.func.grad(total)(weights)
    _, slope = torch.func.jvp(total, (weights,), (weights,))
    with policy.differentiable():
        torch.testing.assert_close(torch.func.grad(total)(weights), expected)
        torch.testing.assert_close(torch.func.jvp(total, (weights,), (weights,))[1], slope)
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(norm(forward_ad.make_dual(rows, rows))).tangent
        assert tangent is not None
        assert norm(rows).requires_grad
        norm.requires_grad_(False)
        assert not norm(rows).requires_grad
