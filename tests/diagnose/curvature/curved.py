"""Small networks and their dense Hessians, by torch.func alone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.network import ArrayPreprocess, Network, from_module

ROWS = 40


def perceptron(activation: type[nn.Module] = nn.Tanh, outputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 9), activation(), nn.Dropout(0.5), nn.Linear(9, 7), activation(), nn.Linear(7, outputs)]
    return nn.Sequential(*layers).eval()


def convolution() -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 5, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4),
    ).eval()  # fmt: skip
    module[1].running_mean.normal_()  # type: ignore[union-attr,operator]
    module[1].running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr,operator]
    return module


def case(kind: str) -> tuple[nn.Module, Network, Tensor]:
    """(module in float64, network, rows)."""
    generator = torch.Generator().manual_seed(1)
    if kind == "conv":
        module, shape = convolution(), (2, 6, 6)
    else:
        module, shape = perceptron({"tanh": nn.Tanh, "relu": nn.ReLU}[kind]), (6,)
    network = from_module(copy.deepcopy(module), preprocess=ArrayPreprocess(shape))
    return module.double(), network, torch.randn(ROWS, *shape, generator=generator)


def targets(loss: str, width: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if loss == "softmax":
        return torch.randint(0, width, (ROWS,), generator=generator)
    if loss == "sigmoid":
        return torch.randint(0, 2, (ROWS, width), generator=generator).double()
    return torch.randn(ROWS, width, generator=generator, dtype=torch.float64)


def rows_loss(loss: str, outputs: Tensor, y: Tensor) -> Tensor:
    """The losses of rows, in torch's own words."""
    if loss == "softmax":
        return functional.cross_entropy(outputs, y, reduction="none")
    if loss == "sigmoid":
        return functional.binary_cross_entropy_with_logits(outputs, y.to(outputs), reduction="none").sum(1)
    return 0.5 * (outputs - y.to(outputs)).square().sum(1)


def dense_hessian(module: nn.Module, x: Tensor, y: Tensor, loss: str, names: list[str]) -> Tensor:
    """∇²L by torch.func.hessian in float64, ``(P, P)``."""
    point = {name: value.detach() for name, value in module.named_parameters() if name in names}
    fixed = {name: value.detach() for name, value in module.named_parameters() if name not in names}

    def value(flat: Tensor) -> Tensor:
        pieces = flat.split([part.numel() for part in point.values()])
        moved = {name: piece.view_as(part) for (name, part), piece in zip(point.items(), pieces)}
        outputs = torch.func.functional_call(module, {**fixed, **moved}, (x.double(),))
        return rows_loss(loss, outputs, y).mean()

    return torch.func.hessian(value)(torch.cat([part.reshape(-1) for part in point.values()]))


def dense_ggn(module: nn.Module, x: Tensor, loss: str) -> Tensor:
    """(1/N) Σ JᵀHJ by torch.func in float64, H of the loss by torch.func too."""
    point = {name: value.detach() for name, value in module.named_parameters()}

    def outputs(params: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, params, (x.double(),))

    jacobian = torch.cat([part.flatten(2) for part in torch.func.jacrev(outputs)(point).values()], dim=2)
    zeros = torch.zeros(len(x), dtype=torch.long) if loss == "softmax" else torch.zeros(len(x), jacobian.shape[1])
    inner = torch.stack([
        torch.func.hessian(lambda f, y=y: rows_loss(loss, f[None], y[None]).sum())(f)
        for f, y in zip(outputs(point).detach(), zeros)
    ])  # fmt: skip
    return torch.einsum("ncp,ncd,ndq->pq", jacobian, inner, jacobian) / len(x)
