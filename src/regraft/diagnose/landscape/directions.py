"""Directions in the space of weights, scaled filter by filter to the weights themselves.

With θ_ij the j-th filter of the i-th parameter, a direction d is normalised to

    d_ij ← d_ij ‖θ_ij‖ / ‖d_ij‖,

so that rescaling the filters of a ReLU network, which changes nothing, changes no picture. A filter is what makes one
output of a linear layer or a convolution: a row of the first axis, or of the second of a transposed convolution.
Parameters of one axis or none (biases, the scale and shift
of norms) have no filters: their entries are single numbers, and scaling each entry to its own size would give them all
the same relative step. So are those of one number an output (the scale (C, 1, 1) of a map, the lengths of weight
normalisation) that are no weight of a layer of one input. They are left out (the direction is zero there) or taken as
one filter.

Papers: Li et al., Visualizing the Loss Landscape of Neural Nets (2018), Section 4; Towards Understanding the
Transferability of Deep Representations (2020), the appendix on the visualization of loss landscapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regraft.diagnose.objective import Objective
from regraft.errors import DataError
from regraft.linear import Blocks
from regraft.network import Network
from regraft.network.outputs import as_weight, by_output, transposed

__all__ = [
    "By",
    "Directions",
    "Vectors",
    "filter_norms",
    "given_directions",
    "normalised",
    "random_directions",
    "towards",
]

Vectors = Literal["zero", "whole"]
By = Literal["filter", "layer", "none"]
_PARALLEL = 1e-10  # of its length: what is left of a direction in the span of others is rounding


@dataclass(frozen=True, eq=False)
class Directions:
    """Directions d_1 … d_k in the space of the selected weights.

    Attributes:
        vectors: each as blocks by parameter, in the objective's dtype.
        labels: what each is.
        by: how they were scaled: ``filter``, ``layer`` (each parameter to its norm) or ``none``.
        left_out: parameters in which every direction is zero.
        lengths: ‖d_i‖₂.
        cosines: d_iᵀd_j / (‖d_i‖ ‖d_j‖): what scaling left of their being orthogonal.
        raw_cosine: the largest |cosine| of two before scaling (rounding, where they were made orthogonal).
        seed: of random directions.
    """

    vectors: tuple[Blocks, ...]
    labels: tuple[str, ...]
    by: By
    left_out: tuple[str, ...]
    lengths: tuple[float, ...]
    cosines: tuple[tuple[float, ...], ...]
    raw_cosine: float
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def to_json(self) -> dict[str, Any]:
        """Everything but the vectors, as plain values."""
        return {
            "labels": list(self.labels),
            "by": self.by,
            "left_out": list(self.left_out),
            "lengths": list(self.lengths),
            "cosines": [list(row) for row in self.cosines],
            "raw_cosine": self.raw_cosine,
            "seed": self.seed,
        }


def filter_norms(value: Tensor) -> Tensor:
    """‖θ_j‖₂ of each filter in float64: ``(F,)`` for rows of the first axis, ``(1,)`` for one axis or none."""
    rows = value.detach().double()
    return torch.linalg.vector_norm(rows.reshape(len(rows) if rows.ndim > 1 else 1, -1), dim=1)


def normalised(
    direction: Mapping[str, Tensor],
    point: Mapping[str, Tensor],
    *,
    by: By = "filter",
    vectors: Vectors = "zero",
    module: nn.Module | None = None,
) -> Blocks:
    """A direction scaled to a point, see above; a filter that is zero in either is zero in the result.

    Args:
        direction: d by parameter.
        point: θ by parameter, of the same names and shapes.
        by: ``filter``; ``layer``, d_i ← d_i ‖θ_i‖ / ‖d_i‖ for each parameter as a whole; or ``none``.
        vectors: parameters of single numbers: ``zero`` (left out) or ``whole`` (each is one filter).
        module: whose parameters they are; without it every weight's outputs are its first axis.

    Raises:
        DataError: unknown words, or names and shapes that do not fit.
    """
    if by not in get_args(By) or vectors not in get_args(Vectors):
        expected = f"by one of {', '.join(get_args(By))}, vectors one of {', '.join(get_args(Vectors))}"
        raise DataError("the scaling of a direction", expected=expected, got=f"{by!r} and {vectors!r}")
    if list(direction) != list(point) or any(direction[name].shape != point[name].shape for name in point):
        expected = ", ".join(f"{name} {tuple(value.shape)}" for name, value in list(point.items())[:3])
        got = ", ".join(f"{name} {tuple(value.shape)}" for name, value in list(direction.items())[:3])
        raise DataError("a direction over the selected parameters", expected=expected, got=got)
    found = {}
    for name, value in point.items():
        layer = None if module is None else transposed(module, name)
        if layer is None:
            found[name] = _scaled(direction[name], value, by, vectors, _single(name, value, module))
        else:
            matrices = by_output(layer, direction[name]), by_output(layer, value)
            found[name] = as_weight(layer, _scaled(*matrices, by, vectors, False), value.shape)
    return Blocks(found)


def _single(name: str, value: Tensor, module: nn.Module | None) -> bool:
    """Whether the entries are single numbers, of which there is one an output or fewer; the weight of a layer of one
    input is one of filters nonetheless."""
    if value.ndim < 2 or not value.numel():
        return value.ndim < 2
    path, _, leaf = name.rpartition(".")
    layer = None if module is None or leaf != "weight" else module.get_submodule(path)
    return value[0].numel() == 1 and not isinstance(layer, nn.Linear | nn.modules.conv._ConvNd)


def _scaled(direction: Tensor, value: Tensor, by: By, vectors: Vectors, single: bool) -> Tensor:
    if single and vectors == "zero":
        return torch.zeros_like(value)
    moved = direction.detach().to(device=value.device).double()
    if by == "none":
        return moved.to(value.dtype)
    rows = len(value) if not single and by == "filter" else 1
    wanted, found = filter_norms(value), filter_norms(moved)
    if rows == 1:
        wanted, found = wanted.norm()[None], found.norm()[None]
    factor = torch.where(found > 0, wanted / found.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    return (moved.reshape(rows, -1) * factor[:, None]).view(value.shape).to(value.dtype)


def random_directions(
    objective: Objective, count: int = 2, *, seed: int = 0, by: By = "filter", vectors: Vectors = "zero"
) -> Directions:
    """Gaussian directions over the objective's selection, made orthogonal to each other and then scaled.

    Args:
        objective: L; its selection is what moves.
        count: k, at least 1.
        seed: same seed, same bytes (drawn in float64 on the CPU, parameter after parameter).
        by, vectors: see :func:`normalised`.

    Raises:
        DataError: ``count`` is not positive, or nothing of the selection moves.
    """
    if count < 1:
        raise DataError("the number of random directions", expected="1 or more", got=str(count))
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        Blocks({name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in
                objective.shapes.items()})
        for _ in range(count)
    ]  # fmt: skip
    return _directions(objective, drawn, [f"random {i + 1}" for i in range(count)], by, vectors, True, seed)


def given_directions(
    objective: Objective,
    given: Mapping[str, Mapping[str, Tensor] | Tensor],
    *,
    by: By = "none",
    vectors: Vectors = "whole",
    orthogonal: bool = False,
) -> Directions:
    """Directions of one's own: a gradient, eigenvectors, the way to another checkpoint (:func:`towards`).

    Args:
        objective: L; its selection is what moves.
        given: direction by label: blocks by parameter (others than the selected are passed over), or one flat vector
            of ``objective.size`` entries in the order of ``objective.shapes``.
        by, vectors: see :func:`normalised`; as they are by default.
        orthogonal: subtract from each its projections on those before it, before scaling.

    Raises:
        DataError: a selected parameter is missing, shapes do not fit, entries are not finite, or nothing moves.
    """
    if not given:
        raise DataError("directions of one's own", expected="at least one", got="none")
    blocks = [_blocks(objective, label, value) for label, value in given.items()]
    return _directions(objective, blocks, list(given), by, vectors, orthogonal, None)


def towards(objective: Objective, other: Network | Mapping[str, Tensor]) -> Blocks:
    """θ' − θ for the selected parameters: α = 0 is the objective's point and α = 1 the other one's.

    Raises:
        DataError: the other one lacks a selected parameter, or has it in another shape.
    """
    params = other.params if isinstance(other, Network) else other
    found = _blocks(objective, "the other weights", params)
    return Blocks({name: (found[name] - value.double()).to(value.dtype) for name, value in objective.point.items()})


def _blocks(objective: Objective, label: str, value: Mapping[str, Tensor] | Tensor) -> Blocks:
    """In float64 on the objective's device."""
    if isinstance(value, Tensor):
        if tuple(value.shape) != (objective.size,):
            raise DataError(f"direction {label!r}", expected=f"({objective.size},)", got=str(tuple(value.shape)))
        value = Blocks.unflatten(value, objective.shapes)
    for name, shape in objective.shapes.items():
        if name not in value or tuple(value[name].shape) != shape:
            got = str(tuple(value[name].shape)) if name in value else "nothing of that name"
            raise DataError(f"direction {label!r}", expected=f"{name} of shape {shape}", got=got)
    found = Blocks({name: value[name].detach().to(objective.device).double() for name in objective.shapes})
    if not all(bool(torch.isfinite(block).all()) for block in found.values()):
        raise DataError(f"direction {label!r}", expected="finite numbers", got="NaN or infinity")
    return found


def _directions(
    objective: Objective,
    raw: Sequence[Blocks],
    labels: Sequence[str],
    by: By,
    vectors: Vectors,
    orthogonal: bool,
    seed: int | None,
) -> Directions:
    point = objective.point
    module = objective.network.module
    kept = [_left_out(blocks.to(objective.device), vectors, module) for blocks in raw]
    if orthogonal:
        kept = _orthogonal(kept, labels)
    made = tuple(normalised(blocks, point, by=by, vectors=vectors, module=module) for blocks in kept)
    for label, blocks in zip(labels, made):
        if not float(blocks.norm()):
            raise DataError(
                f"direction {label!r} does not move",
                expected="a direction that is not zero in the selected parameters",
                got="zero in every filter",
                do="select weights of two or more axes, or pass vectors='whole' to move biases and norms as well",
            )
    raw_cosines, cosines = _cosines(kept), _cosines([blocks.to(torch.float64) for blocks in made])
    return Directions(
        made,
        tuple(labels),
        by,
        tuple(name for name in point if not any(bool(blocks[name].any()) for blocks in made)),
        tuple(float(blocks.to(torch.float64).norm()) for blocks in made),
        cosines,
        max((abs(row[j]) for i, row in enumerate(raw_cosines) for j in range(i)), default=0.0),
        seed,
    )


def _left_out(blocks: Blocks, vectors: Vectors, module: nn.Module) -> Blocks:
    """Zero where the direction is left out, so that what is orthogonal is what moves."""
    if vectors != "zero":
        return blocks
    return Blocks({n: torch.zeros_like(block) if _single(n, block, module) else block for n, block in blocks.items()})


def _orthogonal(vectors: Sequence[Blocks], labels: Sequence[str]) -> list[Blocks]:
    """Gram-Schmidt, each projection subtracted twice, so that rounding is all that remains."""
    found: list[Blocks] = []
    for label, vector in zip(labels, vectors):
        length = float(vector.norm())
        for _ in range(2):
            for earlier in found:
                square = float(earlier.dot(earlier))
                vector = vector - earlier * (float(vector.dot(earlier)) / square) if square else vector
        if found and float(vector.norm()) < _PARALLEL * length:
            raise DataError(
                f"direction {label!r}",
                expected="a direction that those before it do not span",
                got="one in their span",
                do="give another, or select more weights than there are directions",
            )
        found.append(vector)
    return found


def _cosines(vectors: Sequence[Blocks]) -> tuple[tuple[float, ...], ...]:
    lengths = [float(vector.norm()) for vector in vectors]

    def cosine(i: int, j: int) -> float:
        scale = lengths[i] * lengths[j]
        return float(vectors[i].dot(vectors[j])) / scale if scale else 0.0

    return tuple(tuple(cosine(i, j) for j in range(len(vectors))) for i in range(len(vectors)))
