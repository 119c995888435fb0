"""What is needed of a Jacobian row by row: covariances within rows, and products with several directions at once.

The rows are read once, a batch at a time, or as many of its rows as have derivatives that may be written out at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.features.tangent.kernel import Side
from regraft.features.tangent.sums import Sums
from regraft.features.tangent.tape import Layer

__all__ = ["Projected", "adjoints", "blocks", "jacobian", "project"]

_BYTES = 2**28  # of derivatives at once


@dataclass(frozen=True, eq=False)
class Projected:
    """Rows of Φ = J D^½ seen in two ways.

    Attributes:
        within: Φ_i Φ_iᵀ, ``(N, C, C)``.
        along: Φ_i qₖ of every direction, ``(N, C, k)``.
        sums: S Φ_i, ``(N, C, m)``; m is 0 where none were asked for.
    """

    within: Tensor
    along: Tensor
    sums: Tensor


def project(
    side: Side,
    prior: Mapping[str, float],
    directions: Mapping[str, Tensor] | None = None,
    sums: Sums | None = None,
    *,
    within: bool = True,
) -> Projected:
    """Covariances within rows, products with directions, and random sums.

    Args:
        side: the rows.
        prior: standard deviation by parameter.
        directions: qₖ by parameter, ``(k, *shape)``; none if ``None``.
        sums: S; none if ``None``.
        within: whether covariances are wanted, C products a derivative and row; zeros if not.
    """
    like, count = side.tape.like, 0
    if directions is not None:
        count = len(next(iter(directions.values())))
    inside = like.new_zeros((side.rows, side.outputs, side.outputs))
    along = like.new_zeros((side.rows, side.outputs, count))
    summed = like.new_zeros((side.rows, side.outputs, 0 if sums is None else sums.count))
    for start, stop, layer, j in _blocks(side, prior, _BYTES):
        if within:
            inside[start:stop] += torch.bmm(j, j.mT)
        if directions is not None:
            along[start:stop] += j @ _flat(layer, directions).to(j).T
        if sums is not None:
            for name, block in zip(layer.names.values(), j.split(_sizes(layer), dim=2)):
                sums.add(summed[start:stop], name, block)
    return Projected(inside, along, summed)


def jacobian(side: Side) -> dict[str, Tensor]:
    """J written out, by parameter ``(N, C, *shape)``."""
    shape, ones = (side.rows, side.outputs), dict.fromkeys(side.tape.names, 1.0)
    found = {name: side.tape.like.new_empty((*shape, torch.Size(own).numel())) for name, own in _shapes(side)}
    for start, stop, layer, j in _blocks(side, ones, _BYTES):
        for name, part in zip(layer.names.values(), j.split(_sizes(layer), dim=2)):
            found[name][start:stop] = part
    return {name: found[name].view(*shape, *own) for name, own in _shapes(side)}


def adjoints(side: Side, prior: Mapping[str, float], vectors: Tensor) -> dict[str, Tensor]:
    """Φᵀ V for V ``(N, C, k)``, by parameter ``(k, *shape)``."""
    total = {name: vectors.new_zeros((vectors.shape[2], torch.Size(shape).numel())) for name, shape in _shapes(side)}
    for start, stop, layer, j in _blocks(side, prior, _BYTES):
        found = vectors[start:stop].flatten(0, 1).T @ j.flatten(0, 1).to(vectors)
        for name, part in zip(layer.names.values(), found.split(_sizes(layer), dim=1)):
            total[name] += part
    return {name: total[name].view(-1, *shape) for name, shape in _shapes(side)}


def blocks(side: Side, nbytes: int) -> Iterator[tuple[slice, str, Tensor]]:
    """(rows, parameter, J's numbers ``(B, C, p)``), of so many bytes of derivatives at a time."""
    for start, stop, layer, j in _blocks(side, dict.fromkeys(side.tape.names, 1.0), nbytes):
        for name, part in zip(layer.names.values(), j.split(_sizes(layer), dim=2)):
            yield slice(start, stop), name, part


def _blocks(side: Side, prior: Mapping[str, float], nbytes: int) -> Iterator[tuple[int, int, Layer, Tensor]]:
    """(start, stop, layer, derivatives ``(B, C, p)`` times the prior) of every batch and layer."""
    layers = side.tape.layers
    row = side.outputs * sum(layer.size for layer in layers) * side.tape.like.itemsize
    for start, stop, batch in replace(side, batch_size=max(1, min(side.batch_size, nbytes // row))).batches():
        held = {layer: side.tape.like.new_empty((stop - start, side.outputs, layer.size)) for layer in layers}
        for seen in side.tape.read(batch, side.vectors, layers):
            places = held[seen.layer][:, seen.output].split(_sizes(seen.layer), dim=1)
            for (inner, value), place in zip(seen.rows.items(), places):
                torch.mul(value.reshape(stop - start, -1), prior[seen.layer.names[inner]], out=place)
        for layer in layers:
            yield start, stop, layer, held.pop(layer)


def _sizes(layer: Layer) -> list[int]:
    return [torch.Size(shape).numel() for shape in layer.shapes.values()]


def _shapes(side: Side) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, layer.shapes[inner]) for layer in side.tape.layers for inner, name in layer.names.items()]


def _flat(layer: Layer, directions: Mapping[str, Tensor]) -> Tensor:
    """``(k, p)`` of one layer."""
    return torch.cat([directions[name].reshape(len(directions[name]), -1) for name in layer.names.values()], dim=1)
