"""Kernels from random features in the three forms, and what they mean over row-major (row, output)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FORMS = ("shared", "per-output", "full")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(form: str, rows: int, outputs: int, width: int = 30, seed: int = 0) -> Tensor:
    features = normal(rows, outputs, width, seed=seed) / math.sqrt(width)
    if form == "shared":
        return features[:, 0] @ features[:, 0].T
    if form == "per-output":
        return torch.einsum("icp,jcp->cij", features, features)
    return features.reshape(-1, width) @ features.reshape(-1, width).T


def entries(form: str, rows: Tensor, outputs: int) -> Tensor:
    return (rows[:, None] * outputs + torch.arange(outputs)).reshape(-1) if form == "full" else rows


def part(gram: Tensor, form: str, left: Tensor, right: Tensor, outputs: int) -> Tensor:
    """The kernel between some rows."""
    return gram[..., entries(form, left, outputs)[:, None], entries(form, right, outputs)]


def dense(gram: Tensor, form: str, outputs: int) -> Tensor:
    """The kernel over row-major (row, output)."""
    if form == "full":
        return gram
    if form == "shared":
        return torch.kron(gram, torch.eye(outputs, dtype=torch.float64))
    rows, others = gram.shape[1:]
    out = torch.zeros(rows, outputs, others, outputs, dtype=torch.float64)
    for c in range(outputs):
        out[:, c, :, c] = gram[c]
    return out.reshape(rows * outputs, -1)
