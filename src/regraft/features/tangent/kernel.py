"""The finite neural tangent kernel K = J D Jᵀ of a network, some layers at a time.

K is a sum over parameters, K = Σ_ℓ J_ℓ D_ℓ J_ℓᵀ, so no more of the Jacobian is ever in memory than a given room holds,
the blocks of several layers ℓ or a part of one; of two sets of rows those of the smaller one, past which the other's
rows go a batch at a time. Of a linear layer with one position a row not even that: with inputs A and gradients G of
what it returned, K_ℓ = (s_W² A Aᵀ + s_b²) ∘ (G Gᵀ).

Paper: Maddox, Tang, Moreno, Wilson, Damianou, "Fast Adaptation with Linearized Neural Networks", AISTATS 2021,
Section 3 (there by Jacobian-vector products alone); Jacot, Gabriel, Hongler (2018) for the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from regraft.errors import ModelError
from regraft.features.tangent.tape import Layer, Seen, Tape
from regraft.linear import mirror
from regraft.linear.products import add_symmetric

__all__ = ["Form", "Outer", "Side", "check_form", "kernel_between", "outer_layers"]

Form = Literal["full", "per-output", "shared"]
_TILE = 128
"""Rows of a symmetric product that are taken at a time: only the tiles on and above the diagonal are computed."""


class Rows(Protocol):
    """Rows that a tape can read."""

    n_rows: int

    def passing(self, index: Tensor | None, size: int) -> Iterator[tuple[int, int, Any]]:
        """(start, stop, batch for the tape) of some rows, or of all."""
        ...


@dataclass(frozen=True, eq=False)
class Side:
    """Rows on one side of a kernel.

    Attributes:
        tape: gives their derivatives.
        source: all rows.
        index: which of them, in order; all if ``None``.
        vectors: ``(C, D)``, a linear head on the outputs; the outputs themselves if ``None``.
        outputs: C.
        batch_size: rows a pass.
    """

    tape: Tape
    source: Rows
    index: Tensor | None
    vectors: Tensor | None
    outputs: int
    batch_size: int

    @property
    def rows(self) -> int:
        """N."""
        return self.source.n_rows if self.index is None else self.index.numel()

    def batches(self) -> Iterator[tuple[int, int, Any]]:
        """(start, stop, batch for the tape)."""
        return self.source.passing(self.index, self.batch_size)


# --------------------------------------------------------------------------------- one layer's derivatives


class Outer:
    """A flat layer: A ``(N, d)`` and G ``(N, C, o)``, never their product."""

    def __init__(self, part: _Part, rows: int, outputs: int, prior: Mapping[str, float], like: Tensor) -> None:
        layer = part.layer
        out, into = layer.shapes.get("weight", (next(iter(layer.shapes.values()))[0], 0))
        self.a, self.g = like.new_empty((rows, into)), like.new_empty((rows, outputs, out))
        self.deviations = [prior[layer.names[inner]] if inner in layer.names else 0.0 for inner in ("weight", "bias")]

    def write(self, seen: Seen, start: int, stop: int) -> None:
        """Keep what some rows show of one output."""
        if seen.output == 0 and self.a.shape[1]:
            self.a[start:stop] = seen.given[0]
        self.g[start:stop, seen.output] = seen.gradient[0]

    def add_to(self, total: Tensor, other: Outer, form: Form) -> None:
        """Add this layer's part of the kernel, a tile beside the total at a time; of a symmetric one half. The shared
        form is a sum over outputs here."""
        weight, bias = self.deviations
        c, o = self.g.shape[1:]
        for start in range(0, len(self.a), _TILE):
            stop, first = min(start + _TILE, len(self.a)), start if other is self else 0
            inner = (self.a[start:stop] @ other.a[first:].T) * weight**2 + bias**2
            g, h = self.g[start:stop], other.g[first:]
            if form == "full":
                outer = (g.reshape(-1, o) @ h.reshape(-1, o).T).view(len(g), c, *h.shape[:2])
                outer *= inner[:, None, :, None]
                total[start * c : stop * c, first * h.shape[1] :] += outer.flatten(2).flatten(0, 1)
            elif form == "shared":
                total[start:stop, first:] += inner * (g.flatten(1) @ h.flatten(1).T)
            else:
                total[:, start:stop, first:] += inner * (g.transpose(0, 1) @ h.permute(1, 2, 0))

    def times(self, vector: Tensor) -> Tensor:
        """K_ℓ v for v ``(N, C)``, by W = Σ_jd v_jd g_jd a_jᵀ: no product of all pairs of rows."""
        weight, bias = self.deviations
        moved = torch.einsum("nco,nc->no", self.g, vector)
        back = self.a @ (self.a.T @ moved) * weight**2 + moved.sum(0) * bias**2
        return torch.einsum("nco,no->nc", self.g, back)


class _Explicit:
    """Any layer: a span of J D^½ written out, ``(N, C, p)``."""

    def __init__(self, part: _Part, rows: int, outputs: int, prior: Mapping[str, float], like: Tensor) -> None:
        self.span = part.span
        self.j = like.new_empty((rows, outputs, part.stop - part.start))
        self.deviations = {inner: prior[name] for inner, name in part.layer.names.items()}

    def write(self, seen: Seen, start: int, stop: int) -> None:
        place, (low, high) = 0, self.span
        for inner, value in seen.rows.items():
            flat = value.reshape(stop - start, -1)
            first, last = max(low - place, 0), min(high - place, flat.shape[1])
            if first < last:
                held = self.j[start:stop, seen.output, place + first - low : place + last - low]
                torch.mul(flat[:, first:last], self.deviations[inner], out=held)
            place += flat.shape[1]

    def add_to(self, total: Tensor, other: _Explicit, form: Form) -> None:
        if form == "full":
            _add_product(total, self.j.flatten(0, 1), other.j.flatten(0, 1), other is self)
        elif form == "shared":
            _add_product(total, self.j.flatten(1), other.j.flatten(1), other is self)
        else:
            for c in range(self.j.shape[1]):
                _add_product(total[c], self.j[:, c], other.j[:, c], other is self)


@dataclass(frozen=True)
class _Part:
    """A layer, or as many of its parameters as are held at a time."""

    layer: Layer
    start: int
    stop: int

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.stop

    def hold(self, rows: int, outputs: int, prior: Mapping[str, float], like: Tensor) -> Any:
        """Room for its derivatives."""
        return (Outer if self.layer.flat else _Explicit)(self, rows, outputs, prior, like)


def _groups(layers: Sequence[Layer], most: int) -> list[list[_Part]]:
    """Parts of layers that are held at a time, so many parameters at most: each group costs a pass over the rows."""
    groups: list[list[_Part]] = [[]]
    room = most
    for layer in layers:
        if layer.flat:  # at most as much as A and G take; a matrix of out rows never counts for more than its sum
            takes = [(0, layer.size, min(layer.size, sum(layer.shapes.get("weight", (layer.size,)))))]
        else:
            takes = [(low, min(low + most, layer.size), 0) for low in range(0, layer.size, most)]
        for low, high, flat in takes:
            needed = flat or high - low
            if needed > room and groups[-1]:
                groups.append([])
                room = most
            groups[-1].append(_Part(layer, low, high))
            room -= needed
    return groups


def _add_product(total: Tensor, left: Tensor, right: Tensor, symmetric: bool) -> None:
    """total += L Rᵀ; of a symmetric one what is on and above the diagonal, for :func:`mirror`."""
    if symmetric:
        add_symmetric(total, left)
    else:
        total.addmm_(left, right.T)


# ------------------------------------------------------------------------------------------- the kernels


def check_form(form: str) -> None:
    """Refuse what is no :data:`Form`."""
    if form not in get_args(Form):
        raise ModelError("the form of a kernel", expected=" or ".join(get_args(Form)), got=repr(form))


def kernel_between(
    left: Side,
    right: Side | None,
    prior: Mapping[str, float],
    form: Form,
    memory: int,
    progress: Callable[[int, int], None] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """K of two sides' rows, or of one side's with itself.

    Args:
        left, right: the rows; ``None`` for the left ones again, of which only half the products are computed.
        prior: the standard deviation of each parameter, by name: D = diag(prior²).
        form: ``full`` ``(N·C, M·C)``, row-major over (row, output); ``per-output`` ``(C, N, M)``, every output
            with itself; ``shared`` ``(N, M)``, the mean of these over outputs.
        memory: bytes of derivatives held at a time, of two sides those of the smaller one and a batch of the other;
            layers beyond that are left for another pass over the rows.
        progress: ``progress(rows done, rows in all)``, over all passes.
        dtype: of the products and of K; that of the derivatives if ``None``.

    Raises:
        ModelError: another form, or one of like outputs for sides that have not equally many.
    """
    check_form(form)
    other = left if right is None else right
    like = left.tape.like.to(dtype)
    n, m, c, d = left.rows, other.rows, left.outputs, other.outputs
    if form != "full" and c != d:
        raise ModelError("a kernel of like outputs", expected=f"{c} outputs on both sides", got=str(d))
    shape = {"full": (n * c, m * d), "per-output": (c, n, m), "shared": (n, m)}[form]
    total = torch.zeros(shape, dtype=like.dtype, device=like.device)
    kept, passing = (left, right) if right is None or n * c <= m * d else (right, left)
    numbers = kept.rows * kept.outputs  # of each parameter
    if passing is not None:
        numbers += min(passing.batch_size, passing.rows) * passing.outputs
    most = memory // (like.itemsize * max(1, numbers))  # parameters, of all outputs
    together, groups = (c, _groups(left.tape.layers, max(1, most))) if form == "full" else _turns(left, most)
    turns = [slice(start, min(start + together, c)) for start in range(0, c, together)]
    told = _Told(progress, len(turns) * len(groups) * (n if right is None else n + m))
    for turn in turns:
        sides = [side if together == c else _some_outputs(side, turn) for side in (kept, passing) if side is not None]
        place = total[turn] if form == "per-output" else total
        for group in groups:
            held = {part: part.hold(sides[0].rows, sides[0].outputs, prior, like) for part in group}
            for start, stop, batch in sides[0].batches():
                _write(sides[0], batch, held, start, stop)
                told(stop - start)
            if passing is None:
                for part in group:
                    mine = held.pop(part)
                    mine.add_to(place, mine, form)
            else:
                _pass_by(place, held, sides[1], passing is right, prior, form, told)
                held.clear()  # before there is room for the next
    if form == "shared":
        total /= c
    if right is None:
        for matrix in total if total.ndim == 3 else [total]:
            mirror(matrix)
    return total


def _turns(side: Side, most: int) -> tuple[int, list[list[_Part]]]:
    """How many outputs are taken at a time where like ones meet alone, and the parts of layers that are held with them.

    With c of C outputs as much room takes C/c times the parameters; of the ways through all of them the one with the
    fewest passes, forward and backward, is taken, and of equals that with the most outputs.

    Args:
        side: one of both, for they have the same layers and equally many outputs.
        most: parameters that are held of all C outputs.
    """
    outputs, found = side.outputs, []
    for together in range(outputs, 0, -1):
        groups = _groups(side.tape.layers, max(1, most * outputs // together))
        found.append((len(groups) * -(-outputs // together) * (1 + together), together, groups))
        if len(groups) == 1:  # fewer outputs at a time are more passes forward, and no fewer backward
            break
    _, together, groups = min(found, key=lambda way: way[0])
    return together, groups


def _some_outputs(side: Side, which: slice) -> Side:
    """The side with some of its outputs."""
    all_of_them = side.vectors
    if all_of_them is None:
        all_of_them = torch.eye(side.outputs, dtype=side.tape.like.dtype, device=side.tape.like.device)
    some = all_of_them[which]
    return replace(side, vectors=some, outputs=len(some))


def _pass_by(
    total: Tensor,
    held: Mapping[_Part, Any],
    side: Side,
    on_the_right: bool,
    prior: Mapping[str, float],
    form: Form,
    told: _Told,
) -> None:
    """Add what one side's rows, a batch at a time, have in common with what is held of the other's."""
    step = side.outputs if form == "full" else 1
    axis = (form == "per-output") + on_the_right
    for start, stop, batch in side.batches():
        here = {part: part.hold(stop - start, side.outputs, prior, total) for part in held}
        _write(side, batch, here, 0, stop - start)
        place = total.narrow(axis, start * step, (stop - start) * step)
        for part, theirs in held.items():
            mine = here.pop(part)
            first, second = (theirs, mine) if on_the_right else (mine, theirs)
            first.add_to(place, second, form)
        told(stop - start)


class _Told:
    """Rows done of all, over all passes."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, rows: int) -> None:
        self.done += rows
        if self.progress:
            self.progress(self.done, self.total)


def _write(side: Side, batch: Any, held: Mapping[_Part, Any], start: int, stop: int) -> None:
    """Derivatives of a batch, into rows ``start`` to ``stop`` of what holds them."""
    wanted: dict[Layer, list[Any]] = {}
    for part, holder in held.items():
        wanted.setdefault(part.layer, []).append(holder)
    for seen in side.tape.read(batch, side.vectors, list(wanted)):
        for holder in wanted[seen.layer]:
            holder.write(seen, start, stop)


def outer_layers(side: Side, prior: Mapping[str, float]) -> list[Outer] | None:
    """A and G of every layer where all are flat, from one pass over the rows; ``None`` where one is not."""
    if not all(layer.flat for layer in side.tape.layers):
        return None
    parts = [_Part(layer, 0, layer.size) for layer in side.tape.layers]
    held = {part: part.hold(side.rows, side.outputs, prior, side.tape.like) for part in parts}
    for start, stop, batch in side.batches():
        _write(side, batch, held, start, stop)
    return list(held.values())
