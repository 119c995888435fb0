"""Kernels of tangents: the Gram matrix and what predictions need of it, and the operator that never writes it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import final

import torch
from torch import Tensor

from regraft.errors import ModelError
from regraft.features.tangent.design import Part, Tangent, Through
from regraft.features.tangent.kernel import Form, Outer, Side, check_form, kernel_between, outer_layers
from regraft.features.tangent.rowwise import Projected, adjoints, blocks, jacobian, project
from regraft.features.tangent.sums import Sums
from regraft.linear import Blocks, Design, Operator, Tag, mirror
from regraft.linear.design import deviations_of, gram_of, operator_of, row_blocks_of, rows_of
from regraft.linear.operator import dense, diagonal

__all__ = ["NTK", "form_error", "ntk", "ntk_adjoints", "ntk_project", "ntk_within_rows"]

Progress = Callable[[int, int], None]
MEMORY = 2**31
_HELD = 2**28  # bytes of coefficients of the products that are taken together
_PRODUCTS = 2
"""So many products cost what the derivatives of one output do: about two, of a ResNet-20 and 64 rows."""


def ntk(
    rows: Design,
    other: Design | None = None,
    *,
    form: Form = "full",
    prior: Mapping[str, float] | float = 1.0,
    memory: int = MEMORY,
    progress: Progress | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The finite neural tangent kernel K[(i, c), (j, d)] = Σ_k s_k² ∂f_c(x_i)/∂θ_k ∂f_d(x'_j)/∂θ_k.

    Exact, some layers at a time: a pass forward and C backward over the rows for every ``memory`` bytes of derivatives.
    Of one set of rows half the products are computed; of a head that tangents are seen through, those of as many
    vectors as are independent in it. Where only like outputs meet, they are taken some at a time if that takes fewer
    passes: so many parameters more are then held at once.

    Args:
        rows: a Tangent, rows taken from one, or one seen through a head.
        other: another of the same parameters; ``None`` for the kernel of ``rows`` with itself.
        form: ``full``: all outputs with all, ``(N·C, M·C)``, row-major over (row, output). ``per-output``:
            each output with itself, ``(C, N, M)``: outputs are taken to be independent. ``shared``: the mean of these,
            ``(N, M)``: one kernel for all outputs. The last two are approximations for C > 1:
            :func:`form_error` measures them.
        prior: standard deviations s, one for all parameters, or by name or pattern as
            :meth:`regraft.linear.Design.scaled` takes them (1 where not named).
        memory: bytes of derivatives held at a time.
        progress: ``progress(rows done, rows in all)`` over all passes.
        dtype: of the products and of K; the tangent's if ``None``. Of derivatives in float32 that are much alike in all
            rows the rounding of K hides what tells rows apart: float64 is then worth its time.

    Raises:
        ModelError: a design that is no tangent's, two of different parameters, two networks whose derivatives are found
            in different ways, or another form.

    Paper: Maddox et al. (2021), Section 3.
    """
    left, right = _side(rows), None if other is None else _side(other)
    if other is not None and other.shapes != rows.shapes:
        raise ModelError("a kernel between two tangents", expected="the same parameters", got="others")
    if right is not None:
        _check_alike(left, right)
    if form != "full":
        return kernel_between(left, right, deviations_of(rows, prior), form, memory, progress, dtype)
    left, mixed = _independent(left)
    right, mixed_too = (None, mixed) if right is None else _independent(right)
    found = kernel_between(left, right, deviations_of(rows, prior), form, memory, progress, dtype)
    found = _mixed(_mixed(found, mixed).T, mixed_too).T
    return mirror(found) if right is None and mixed is not None else found


def ntk_within_rows(rows: Design, *, prior: Mapping[str, float] | float = 1.0) -> Tensor:
    """The kernel of every row with itself, ``(N, C, C)``: the prior covariance of its outputs.

    A pass forward and C backward over the rows; see :func:`ntk` for the arguments and errors.
    """
    return project(_side(rows), deviations_of(rows, prior)).within


def ntk_project(
    rows: Design,
    directions: Mapping[str, Tensor] | None,
    *,
    prior: Mapping[str, float] | float,
    sums: int = 0,
) -> Projected:
    """Covariances within rows, Φ qₖ of directions qₖ ``(k, *shape)`` by parameter, and so many random sums of Φ.

    Φ = J D^½. A pass forward and C backward over the rows, for all of it at once, and no derivatives but some rows' in
    memory. The sums (:mod:`regraft.features.tangent.sums`) are the same for the same parameters; products of their
    rows are those of Φ's, up to about √(2 / sums).
    """
    wanted = Sums.of(rows.shapes, sums) if sums else None
    return project(_side(rows), deviations_of(rows, prior), directions, wanted)


def ntk_adjoints(rows: Design, vectors: Tensor, *, prior: Mapping[str, float] | float = 1.0) -> Blocks:
    """Φᵀ V for V ``(N, C, k)``: blocks ``(k, *shape)``, Φ = J D^½; a pass forward and C backward for all k."""
    found = adjoints(_side(rows), deviations_of(rows, prior), vectors)
    return Blocks({name: found[name] for name in rows.shapes})


def form_error(rows: Design, form: Form, *, prior: Mapping[str, float] | float = 1.0, sample: int = 64) -> float:
    """What an approximate form leaves out: ‖K − K̃‖_F / ‖K‖_F on the first ``sample`` rows, K̃ the form written as K.

    ``per-output`` leaves out the products between outputs, ``shared`` (K̃ = K̄ ⊗ I) also what tells outputs apart.
    """
    check_form(form)
    few = rows.take(torch.arange(min(sample, rows.n_rows)))
    full = ntk(few, prior=prior).double().view(few.n_rows, few.n_outputs, few.n_rows, few.n_outputs)
    own = full.diagonal(dim1=1, dim2=3)  # (N, M, C)
    kept = own.mean(2, keepdim=True).expand_as(own) if form == "shared" else own
    between = full * (1 - torch.eye(few.n_outputs, dtype=full.dtype, device=full.device)[None, :, None, :])
    rest = between.square().sum() + (own - kept).square().sum()
    return 0.0 if form == "full" else float((rest / full.square().sum().clamp(min=1e-30)).sqrt())


def _side(rows: Design, index: Tensor | None = None, vectors: Tensor | None = None) -> Side:
    if isinstance(rows, Through):
        if vectors is not None:
            raise ModelError("a kernel of a tangent", expected="one head on it", got="a head on a head")
        return _side(rows.design, index, rows.weight)
    if isinstance(rows, Part):
        return _side(rows.whole, rows.index if index is None else rows.index[index], vectors)
    if not isinstance(rows, Tangent):
        raise ModelError(
            "a kernel of tangents",
            expected="a Tangent, its rows, or one seen through a head",
            got=type(rows).__name__,
            do="use design.gram() for other designs",
        )
    outputs = rows.n_outputs if vectors is None else len(vectors)
    return Side(rows.tape, rows, index, vectors, outputs, rows.batch_size)


def _network(side: Side) -> tuple[int, str] | int:
    """Which function of the parameters a side's tangent is of."""
    source = side.source
    return (id(source.network), source.of) if isinstance(source, Tangent) else id(side.tape)


def _check_alike(left: Side, right: Side) -> None:
    """Two sides are read by the layers of one: those of the other must be of the same kind."""
    if _network(right) == _network(left):  # of other rows the same layers may be found in another way
        return
    ways, others = (
        {name: (layer.path, layer.found, layer.flat) for layer in side.tape.layers for name in layer.names.values()}
        for side in (left, right)
    )
    if other := next((name for name in ways if ways[name] != others[name]), None):
        raise ModelError(
            "a kernel between two tangents",
            expected="derivatives that are found alike",
            got=f"another of {other}",
            do="multiply their rows",
        )


def _independent(side: Side) -> tuple[Side, Tensor | None]:
    """The rows through as many vectors as are independent in their head, and what mixes these into it, (C, r) float64.

    A head of classes that was solved under a penalty has rows that sum to zero: of two classes one vector is enough.
    """
    if side.vectors is None:
        return side, None
    left, values, right = torch.linalg.svd(side.vectors.double(), full_matrices=False)
    rank = int((values > side.outputs * torch.finfo(side.vectors.dtype).eps * values[0]).sum())
    if rank == side.outputs:
        return side, None
    return replace(side, vectors=right[:rank].to(side.vectors), outputs=rank), left[:, :rank] * values[:rank]


def _mixed(kernel: Tensor, mix: Tensor | None) -> Tensor:
    """Rows (N·r, …) of a kernel mixed to (N·C, …)."""
    if mix is None:
        return kernel
    return torch.einsum("ca,nam->ncm", mix.to(kernel), kernel.unflatten(0, (-1, mix.shape[1]))).flatten(0, 1)


@final
class NTK(Operator):
    """K = J D Jᵀ, ``(N·C, N·C)`` over row-major outputs, without writing it out.

    Products are an adjoint and an apply of the tangent, of many vectors at once those of its operator; of networks
    whose chosen layers are all linear with one position a row they are matrix products with the layers' inputs A and
    gradients G, kept after the first: (K v)_ic = Σ_ℓ g_ic · (s_W² W_ℓ a_i + s_b² b_ℓ) with W_ℓ = Σ_jd v_jd g_jd a_jᵀ
    and b_ℓ = Σ_jd v_jd g_jd.
    ``dense()`` and ``diagonal()`` go layer by layer, as :func:`ntk` does.
    """

    def __init__(self, rows: Design, prior: Mapping[str, float]) -> None:
        size = rows.n_rows * rows.n_outputs
        super().__init__((size, size), rows.dtype, tags=(Tag.POSITIVE_SEMIDEFINITE,), device=rows.device)
        self.rows, self.prior = rows, dict(prior)

    @cached_property
    def outers(self) -> list[Outer] | None:
        """A and G of every layer, where all are linear with one position a row."""
        return outer_layers(_side(self.rows), self.prior)

    def _apply(self, vectors: Tensor) -> Tensor:
        some = max(1, _HELD // (self.rows.n_coefficients * self.dtype.itemsize))
        return torch.cat([self._products(part) for part in vectors.split(some, dim=1)], dim=1)

    def _products(self, vectors: Tensor) -> Tensor:
        if self.outers is not None:
            columns = vectors.T.reshape(-1, self.rows.n_rows, self.rows.n_outputs)
            found = [torch.stack([layer.times(v) for layer in self.outers]).sum(0) for v in columns]
            return torch.stack(found).flatten(1).T
        flat = self.rows.operator()
        squares = [
            vectors.new_full((prod(shape), 1), self.prior[name] ** 2) for name, shape in self.rows.shapes.items()
        ]
        return flat.apply(torch.cat(squares) * flat.adjoint(vectors))

    _adjoint = _apply


@dense.register
def _(operator: NTK) -> Tensor:
    return ntk(operator.rows, prior=operator.prior)


@diagonal.register
def _(operator: NTK) -> Tensor:
    return ntk_within_rows(operator.rows, prior=operator.prior).diagonal(dim1=1, dim2=2).reshape(-1)


@final
class _Directions(Operator):
    """Φ between flat vectors, ``(N·C, P)``: many at once from the derivatives of rows, few in a product each."""

    def __init__(self, rows: Design) -> None:
        super().__init__((rows.n_rows * rows.n_outputs, rows.n_coefficients), rows.dtype, device=rows.device)
        self.rows, self.few = rows, operator_of.dispatch(Design)(rows)
        self.ones = dict.fromkeys(rows.shapes, 1.0)

    def _side_for(self, count: int) -> Side | None:
        """The rows, where their derivatives cost less than so many products."""
        if count <= _PRODUCTS * self.rows.n_outputs:
            return None
        side = _side(self.rows)
        return side if all(layer.found in ("rule", "tiled") for layer in side.tape.layers) else None

    def _apply(self, vectors: Tensor) -> Tensor:
        if (side := self._side_for(vectors.shape[1])) is None:
            return self.few.apply(vectors)
        parts = vectors.T.split([prod(shape) for shape in self.rows.shapes.values()], dim=1)
        directions = dict(zip(self.rows.shapes, parts))
        return project(side, self.ones, directions, within=False).along.flatten(0, 1)

    def _adjoint(self, vectors: Tensor) -> Tensor:
        if (side := self._side_for(vectors.shape[1])) is None:
            return self.few.adjoint(vectors)
        found = adjoints(side, self.ones, vectors.unflatten(0, (self.rows.n_rows, self.rows.n_outputs)))
        return torch.cat([found[name].flatten(1) for name in self.rows.shapes], dim=1).T


@operator_of.register(Tangent)
@operator_of.register(Part)
@operator_of.register(Through)
def _(design: Design) -> Operator:
    return _Directions(design)


@rows_of.register(Tangent)
@rows_of.register(Part)
@rows_of.register(Through)
def _(design: Design, index: Tensor) -> Blocks:
    found = jacobian(_side(design, index))
    return Blocks({name: found[name] for name in design.shapes})


@row_blocks_of.register(Tangent)
@row_blocks_of.register(Part)
@row_blocks_of.register(Through)
def _(design: Design, nbytes: int) -> Iterator[tuple[slice, str, Tensor]]:
    return blocks(_side(design), nbytes)


@gram_of.register(Tangent)
@gram_of.register(Part)
@gram_of.register(Through)
def _(design: Design, deviations: Mapping[str, float]) -> Operator:
    return NTK(design, deviations)
