"""Linear layers by oneDNN: the numbers of torch's own, where they are taken over, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import conv2d, linear

from regraft.network import onednn
from regraft.network.flops import Operations
from regraft.network.onednn import LINEAR, wide_linear

needs_it = pytest.mark.skipif(LINEAR is None, reason="this torch has no linear layer of oneDNN")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """On any processor: the calls that oneDNN is given."""
    calls: list[Any] = []

    def counted(*given: Any) -> Tensor:
        calls.append(given)
        found: Tensor = LINEAR(*given)
        return found

    monkeypatch.setattr(onednn, "_faster", lambda: True)
    monkeypatch.setattr(onednn, "LINEAR", counted)
    return calls


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


WEIGHT, BIAS = drawn(96, 256), drawn(96)
LARGE = drawn(256, 256)
INPUTS = {
    "rows": LARGE,
    "tokens": LARGE.view(4, 64, 256),
    "a map of tokens": LARGE.view(2, 2, 64, 256),
    "turned": LARGE.T.contiguous().T,
    "every other column": drawn(256, 512)[:, ::2],
    "one row many times": LARGE[:1].expand(256, 256),
}


@needs_it
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("bias", [BIAS, None])
@pytest.mark.parametrize("weight", [WEIGHT, WEIGHT.T.contiguous().T, nn.Parameter(WEIGHT)])
def test_it_is_the_linear_layer(taken: list[Any], name: str, bias: Tensor | None, weight: Tensor) -> None:
    values = INPUTS[name]
    with torch.no_grad(), wide_linear():
        found = linear(values, weight, bias)
        named = linear(input=values, weight=weight, bias=bias)
    exact = linear(values.double(), weight.double(), None if bias is None else bias.double())
    assert len(taken) == 2
    assert torch.equal(found, named)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


def left_alone() -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
    return {
        "few rows": (LARGE[:4], WEIGHT, BIAS),
        "no rows": (LARGE[:0], WEIGHT, BIAS),
        "one row, of one axis": (drawn(5000), drawn(5000, 5000)[:900], None),
        "double": (LARGE.double(), WEIGHT.double(), None),
        "half": (LARGE.bfloat16(), WEIGHT.bfloat16(), None),
        "one output, without an axis": (LARGE.repeat(70, 1), drawn(256), None),
    }


@needs_it
@pytest.mark.parametrize("name", left_alone())
def test_what_it_does_not_do_is_left_to_torch(taken: list[Any], name: str) -> None:
    values, weight, bias = left_alone()[name]
    with torch.no_grad(), wide_linear():
        found = linear(values, weight, bias)
    assert not taken
    assert torch.equal(found, linear(values, weight, bias))


@needs_it
@pytest.mark.parametrize("frozen", ["nothing", "rows", "weight", "bias"])
@pytest.mark.parametrize("name", INPUTS)
def test_its_gradients_are_those_of_the_layer(taken: list[Any], name: str, frozen: str) -> None:
    pull = drawn(*INPUTS[name].shape[:-1], 96)

    def gradients(dtype: torch.dtype) -> list[Tensor | None]:
        given = {"rows": INPUTS[name], "weight": WEIGHT, "bias": BIAS}
        leaves = {key: value.to(dtype).detach().requires_grad_(key != frozen) for key, value in given.items()}
        (linear(*leaves.values()) * pull.to(dtype)).sum().backward()
        return [leaf.grad for leaf in leaves.values()]

    with wide_linear():
        found = gradients(torch.float32)
    products = 3 - (frozen in ("rows", "weight"))
    assert len(taken) == products
    for ours, exact in zip(found, gradients(torch.float64)):
        assert (ours is None) is (exact is None)
        if ours is not None and exact is not None:
            torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-3)


@needs_it
def test_what_is_differentiated_otherwise_is_left_to_torch(taken: list[Any]) -> None:
    weight = WEIGHT.clone().requires_grad_()
    with wide_linear():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert linear(LARGE, WEIGHT).dtype == torch.bfloat16
        _, tangent = torch.func.jvp(lambda w: linear(LARGE, w), (WEIGHT,), (WEIGHT,))
        slope = torch.func.grad(lambda w: linear(LARGE, w).sum())(WEIGHT)
        many = torch.func.vmap(lambda row: linear(row.expand(256, 256), WEIGHT))(LARGE[:3])
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(linear(forward_ad.make_dual(LARGE, LARGE), WEIGHT))
        assert not taken
        (first,) = torch.autograd.grad(linear(LARGE, weight).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()
    torch.testing.assert_close(slope, LARGE.sum(0).expand(96, 256))
    torch.testing.assert_close(tangent, linear(LARGE, WEIGHT))
    torch.testing.assert_close(dual.tangent, linear(LARGE, WEIGHT))
    assert many.shape == (3, 256, 96)


MAPS = drawn(4, 64, 24, 24).to(memory_format=torch.channels_last)
PIXEL_WEIGHT, PIXEL_BIAS = drawn(48, 64, 1, 1), drawn(48)
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sides": {"stride": (1, 1), "padding": [0, 0]},
    "valid": {"padding": "valid"},
    "same": {"padding": "same"},
    "dilated": {"dilation": 3},
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@needs_it
@pytest.mark.parametrize("how", ONE_BY_ONE)
@pytest.mark.parametrize("bias", [PIXEL_BIAS, None])
def test_it_is_the_one_by_one_convolution(taken: list[Any], one_thread: None, how: str, bias: Tensor | None) -> None:
    pull = drawn(4, 48, 24, 24)

    def results(dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.to(dtype).detach().requires_grad_() for t in (MAPS, PIXEL_WEIGHT, bias) if t is not None]
        found = conv2d(*leaves, **ONE_BY_ONE[how])
        (found * pull.to(dtype)).sum().backward()
        return [found, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    with wide_linear():
        ours = results(torch.float32)
        assert len(taken) == 3  # the maps, and the gradients of the input and the weight
        with torch.no_grad():
            same = conv2d(MAPS, PIXEL_WEIGHT, bias, **ONE_BY_ONE[how])
    assert torch.equal(same, ours[0])
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    exact = results(torch.float64)
    assert len(ours) == len(exact) == (3 if bias is None else 4)
    for mine, true in zip(ours, exact):
        torch.testing.assert_close(mine.double(), true, rtol=1e-4, atol=2e-3)


def convolved_otherwise() -> dict[str, tuple[Tensor, Tensor, dict[str, Any]]]:
    last = torch.channels_last
    return {
        "many images": (drawn(16, 64, 16, 16).to(memory_format=last), PIXEL_WEIGHT, {}),
        "channels first": (MAPS.contiguous(), PIXEL_WEIGHT, {}),
        "one image": (MAPS[0], PIXEL_WEIGHT, {}),
        "every other pixel": (MAPS, PIXEL_WEIGHT, {"stride": 2}),
        "every other pixel of one side": (MAPS, PIXEL_WEIGHT, {"stride": (1, 2)}),
        "a margin": (MAPS, PIXEL_WEIGHT, {"padding": 1}),
        "groups": (MAPS, drawn(48, 32, 1, 1), {"groups": 2}),
        "neighbours": (MAPS, drawn(48, 64, 3, 3), {}),
        "few pixels": (MAPS[:1, :, :4, :4].contiguous(memory_format=last), PIXEL_WEIGHT, {}),
        "double": (MAPS.double(), PIXEL_WEIGHT.double(), {}),
    }


@needs_it
@pytest.mark.parametrize("name", convolved_otherwise())
def test_convolutions_that_are_no_such_layers_are_left_to_torch(taken: list[Any], one_thread: None, name: str) -> None:
    values, weight, how = convolved_otherwise()[name]
    with torch.no_grad(), wide_linear():
        found = conv2d(values, weight, **how)
    assert not taken
    assert torch.equal(found, conv2d(values, weight, **how))


@needs_it
def test_on_several_threads_torch_takes_onednn_itself(taken: list[Any]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad(), wide_linear():
            conv2d(MAPS, PIXEL_WEIGHT)
    finally:
        torch.set_num_threads(before)
    assert not taken


@needs_it
def test_its_operations_are_counted() -> None:
    with torch.no_grad(), Operations() as ours:
        LINEAR(LARGE.view(4, 64, 256), WEIGHT, BIAS, "none", [], "")
    with torch.no_grad(), Operations() as torchs:
        linear(LARGE, WEIGHT, BIAS)
    assert ours.total == torchs.total == 2 * 256 * 256 * 96


def test_on_an_accelerator_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_faster", lambda: True)
    assert isinstance(wide_linear(), onednn._Linear)
    assert isinstance(wide_linear(torch.device("cpu")), onednn._Linear)
    assert not isinstance(wide_linear("cuda"), onednn._Linear)


def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "avx512_of_amd", lambda: False)
    onednn._faster.cache_clear()
    try:
        assert not onednn._faster()
    finally:
        onednn._faster.cache_clear()


def test_a_layer_of_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "avx512_of_amd", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for wrong in (lambda rows, weight, *_: linear(rows, weight), _broken):
        monkeypatch.setattr(onednn, "LINEAR", wrong)
        onednn._faster.cache_clear()
        assert not onednn._faster()
    onednn._faster.cache_clear()


def _broken(*_: Any) -> Tensor:
    raise RuntimeError("no such layout")


@needs_it
@pytest.mark.parametrize(
    "layer",
    [
        lambda w: linear(drawn(4, 64, 256), w).mul_(2).relu_(),
        lambda w: linear(drawn(4, 64, 256), w).view(4, 64, 8, -1).add_(1).square(),
        lambda w: conv2d(
            drawn(8, 256, 16, 16).contiguous(memory_format=torch.channels_last), w[..., None, None]
        ).relu_(),
    ],
)
def test_results_may_be_changed_in_place(taken: list[Any], layer: Any) -> None:
    """As by residual additions and activations that save memory."""
    weight = drawn(96, 256).requires_grad_(True)
    with wide_linear():
        found = torch.autograd.grad(layer(weight).square().sum(), weight)[0]
    assert taken
    expected = torch.autograd.grad(layer(weight).square().sum(), weight)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
