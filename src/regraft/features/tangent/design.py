"""The network's Jacobian as a design: Φ = J_θ₂ f.

Rows are the inputs, outputs those of the network, coefficient blocks the selected parameters θ₂ by name:
``apply`` is a Jacobian-vector product (forward mode), ``adjoint`` a vector-Jacobian product (reverse mode).
What does not depend on θ₂ is computed in one pass over the rows and kept.

Paper: Mu, Liang and Li, Gradients as Features for Deep Representation Learning (2020), Eqs. 3-7.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from regraft.data import Manifest
from regraft.errors import DataError, ModelError, RecipeError
from regraft.features.batching import in_order
from regraft.features.tangent.engine import Engine
from regraft.features.tangent.feed import Feed, length, take
from regraft.features.tangent.replay import Kept
from regraft.features.tangent.tape import Tape
from regraft.features.tangent.weights import Of, check_modes, selected
from regraft.linear import Blocks, Design
from regraft.linear.design import take_of
from regraft.network import Network

__all__ = ["Part", "Tangent", "TangentCost", "Through"]


@dataclass(frozen=True)
class TangentCost:
    """What a tangent costs, known before the pass over the rows.

    Attributes:
        rows, outputs, coefficients: N, C and P.
        bytes_per_row: cached for each row.
        bytes: cached for all rows.
    """

    rows: int
    outputs: int
    coefficients: int
    bytes_per_row: int
    bytes: int


@final
class Tangent(Design):
    """Φ[i, c] = ∂f_c(θ, x_i)/∂θ₂ for the selected parameters θ₂.

    The constructor looks at three rows: it finds what can be cached and how products are computed (``path``
    says it), and what that costs (``cost``). The pass over all rows runs at the first use, or in :meth:`prepare`.

    Args:
        network: f; frozen, in eval mode.
        select: shell-style patterns over parameter names; ``None`` for the topmost block
            (:attr:`regraft.network.Network.topmost`). Of the embedding a pattern that matches others leaves the head's
            out.
        inputs: a Manifest, a preprocessed batch (rows on the first axis), or a list of batches.
        of: ``logits``, the network's outputs, or ``embedding``, those of the network without its head.
        dtype: of coefficients, outputs and arithmetic; by default the parameters'.
        batch_size: rows a pass.
        fast: whether the products may be computed from cached activations; else ``torch.func`` computes them.
        memory: bytes that may be cached in memory; more than that goes to a temporary file.

    Raises:
        ModelError: a pattern matches nothing, the parameters have no influence on the outputs, a module is in
            training mode or cannot be differentiated, or the outputs are not one vector a row.
        RecipeError: the head is zero, so that every derivative below it is.
        DataError: there are no rows, or outputs of those looked at are not finite.
    """

    def __init__(
        self,
        network: Network,
        select: str | Sequence[str] | None,
        inputs: Manifest | Any,
        *,
        of: Of = "logits",
        dtype: torch.dtype | None = None,
        batch_size: int = 64,
        fast: bool = True,
        memory: int = 4 * 2**30,
    ) -> None:
        if batch_size < 1:
            raise DataError(f"a batch of {batch_size} rows", expected="one at least")
        self.names = selected(network, select, of)
        check_modes(network)
        _check_head(network, of, self.names)
        first = next(iter(network.params[name] for name in self.names))
        self.network, self.of, self.batch_size, self._fast, self._memory = network, of, batch_size, fast, memory
        self.feed, self._read = Feed(network, inputs), 0
        try:
            self._engine = self._new_engine(dtype or first.dtype, fast)
        except CheckpointError as error:
            raise ModelError(
                f"{network.name} runs parts of itself anew for derivatives, which cannot be followed",
                got="torch.utils.checkpoint",
                do="switch checkpointing off in this module",
            ) from error
        shapes = {name: tuple(network.params[name].shape) for name in self.names}
        super().__init__(shapes, self.feed.rows, self._engine.outputs, dtype or first.dtype, device=network.device)

    def _new_engine(self, dtype: torch.dtype, fast: bool) -> Engine:
        return Engine(self._source, self.names, self.feed, dtype, self.batch_size, fast, self._memory)

    @cached_property
    def _engine(self) -> Engine:
        return self._new_engine(self.dtype, self._fast)

    @property
    def _source(self) -> Network:
        """What is differentiated."""
        return self.network.without_head() if self.of == "embedding" else self.network

    def on(self, inputs: Manifest | Any, *, tape: bool = True) -> Tangent:
        """The same tangent on other rows.

        How products are computed is shared where these rows have the same shape, so that the network is looked at once,
        and so is the tape; what products cache is of the rows, and is made anew when a product is asked for.

        Args:
            inputs: as of the constructor.
            tape: share the tape, and what it counts; else the other rows have one of their own.

        Raises:
            ModelError: a module was put into training mode since.
            DataError: there are no rows.
        """
        check_modes(self.network)
        if tape:
            self.tape  # noqa: B018 - made before the copy, which then shares it
        found = copy.copy(self)
        for of_rows in ("_engine", "_keeper", "_before", *(() if tape else ("tape",))):
            vars(found).pop(of_rows, None)
        found._read = 0
        found.feed = Feed(self.network, inputs)
        if found.feed.form == self.feed.form:
            found._engine = self._engine.on(found.feed)
        Design.__init__(found, self.shapes, found.feed.rows, self.n_outputs, self.dtype, device=self.device)
        return found

    @property
    def path(self) -> tuple[str, ...]:
        """How each part is computed, a sentence a part."""
        return self._engine.path

    @cached_property
    def tape(self) -> Tape:
        """The Jacobian layer by layer, of the network as it is (no BatchNorm folded)."""
        # spread over the rows: what the first ones do (a branch, a padded token) need not be what all do
        few = self.feed.some(sorted({0, self.n_rows // 2, self.n_rows - 1}))
        return Tape(self._source, self.names, few, self.dtype)

    @cached_property
    def _keeper(self) -> Engine | None:
        """Can hold what comes before θ₂, of all rows, where the tape can go on from there and that fits into memory."""
        if not all(layer.ruled for layer in self.tape.layers):
            return None
        engine = self._new_engine(self.dtype, False) if self._fast else self._engine
        fits = engine.way.bytes_per_row * self.n_rows <= self._memory
        return engine if engine.replay.calls and fits else None

    @cached_property
    def _before(self) -> Engine | None:
        """The keeper with its values, but of rows that take another path through the modules than the first ones."""
        engine = self._keeper
        if engine is not None and engine.cache is None:
            try:
                with self.tape.passing(self.n_rows):
                    engine.prepared()
            except ModelError:
                return None
        return engine

    def passing(self, index: Tensor | None, size: int) -> Iterator[tuple[int, int, Any]]:
        """(start, stop, batch for the tape) of some rows, or of all.

        Where rows are read again (or :meth:`keep` says so beforehand, or they are prepared for products), what comes
        before θ₂ is kept: one pass of the whole network, from then on the rest of it.
        """
        count = self.n_rows if index is None else index.numel()
        self._read += count
        if (self._read > self.n_rows or self.prepared) and self._before is not None:
            for start, rows, values in self._before.prepared().read(index, size):
                yield start, start + rows, Kept(self._before.replay, values, rows)
        elif index is None:
            for start, stop, batch in self.feed.batches(size):
                yield start, stop, self.tape.place(batch)
        else:
            start = 0
            for part in index.split(size) if count else ():
                yield start, start + len(part), self.tape.place(self.feed.some(part.tolist()))
                start += len(part)

    @property
    def cost(self) -> TangentCost:
        """What it costs; known before the pass over the rows."""
        per_row = self._engine.way.bytes_per_row
        return TangentCost(self.n_rows, self.n_outputs, self.n_coefficients, per_row, per_row * self.n_rows)

    @cached_property
    def product_flops(self) -> tuple[int, int]:
        """Floating-point operations of J w and of Jᵀ y, for each row; counted on one batch, after the pass.

        As :meth:`regraft.network.Network.flops` counts: matrix products and convolutions, multiply and add two.
        """
        return self._engine.flops("apply"), self._engine.flops("adjoint")

    @property
    def spent_flops(self) -> int:
        """Floating-point operations of all products so far, those of its parts and under heads among them.

        The pass over the rows and a head's own product (2 D C a row) are not in it; the passes of kernels are.
        """
        return self._engine.spent + (self.tape.flops if "tape" in vars(self) else 0)

    @property
    def passed_rows(self) -> int:
        """Rows that kernels of it have run through the whole network so far."""
        return self.tape.rows if "tape" in vars(self) else 0

    @property
    def outputs(self) -> Tensor:
        """f(θ, x), ``(N, C)``, at the parameters that the derivative is taken at."""
        return self._engine.prepared().outputs

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> Tangent:
        """Run the pass over the rows, if it has not run; ``progress(rows done, rows in all)``."""
        self._engine.prepared(progress)
        return self

    @property
    def prepared(self) -> bool:
        """Whether the values that products need are those of all rows."""
        engine = vars(self).get("_engine")  # which is made, in a while, when a product is asked for
        return engine is not None and engine.cache is not None

    def keep(self) -> Tangent:
        """Keep what comes before θ₂ from the first kernel on, where it fits: its rows will be read more than once.

        Without it the first kernel of all rows keeps nothing, for it may be the only one.
        """
        self._read = self.n_rows
        return self

    def recorder(self, *, kernels: bool = False) -> Callable[[int, Any], Tensor] | None:
        """What another pass over the rows may hand their batches to, so that this tangent needs none of its own.

        It takes (first row, preprocessed batch of the rows from there on), runs the network on them once, keeps what
        products need (or ``kernels``), and gives the outputs ``(B, C)``. ``None`` where rows go together by their
        lengths, or where kernels would keep nothing.
        """
        if self.feed.preprocess.ragged:
            return None
        engine = self._keeper if kernels else self._engine
        if engine is None:
            return None
        most = min(self.batch_size, self._source.rows_at_once())

        def record(start: int, batch: Any) -> Tensor:
            spans = in_order(length(batch), most)
            return torch.cat(
                [engine.record(start + rows.start, take(batch, slice(rows.start, rows.stop))) for rows in spans]
            )

        return record

    def through(self, weight: Tensor) -> Design:
        """The tangents of the logits W h(x) of a head W ``(C, D)`` on this embedding's: rows ``(N, C)``.

        Everything cached is shared, so heads may change (be solved in each fold) without another pass.

        Raises:
            ModelError: this is no embedding's tangent, or the head does not fit.
            RecipeError: the head is zero.
        """
        if self.of != "embedding":
            raise ModelError("a head on a tangent", expected='Tangent(…, of="embedding")', got=f"of={self.of!r}")
        return Through(self, weight)

    def _apply(self, coefficients: Blocks) -> Tensor:
        return self._engine.apply(None, coefficients)

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        return self._engine.adjoint(None, outputs)


@final
class Part(Design):
    """Some rows of a tangent: only these are computed."""

    def __init__(self, whole: Tangent, index: Tensor) -> None:
        super().__init__(whole.shapes, index.numel(), whole.n_outputs, whole.dtype, device=whole.device)
        self.whole, self.index = whole, index

    def _apply(self, coefficients: Blocks) -> Tensor:
        return self.whole._engine.apply(self.index, coefficients)

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        return self.whole._engine.adjoint(self.index, outputs)


@final
class Through(Design):
    """(I ⊗ W) Φ: the tangents of a linear head's outputs."""

    def __init__(self, design: Design, weight: Tensor) -> None:
        weight = weight.detach().to(device=design.device, dtype=design.dtype).clone()  # a copy: ω stays as it is
        if weight.ndim != 2 or weight.shape[1] != design.n_outputs:
            raise ModelError("a head on a tangent", expected=f"(C, {design.n_outputs})", got=str(tuple(weight.shape)))
        if not bool(weight.any()):
            raise _zero_head()
        super().__init__(design.shapes, design.n_rows, weight.shape[0], design.dtype, device=design.device)
        self.design, self.weight = design, weight

    def _apply(self, coefficients: Blocks) -> Tensor:
        return self.design.apply(coefficients) @ self.weight.T

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        return self.design.adjoint(outputs @ self.weight)


@take_of.register
def _(design: Tangent, index: Tensor) -> Design:
    return Part(design, index)


@take_of.register
def _(design: Part, index: Tensor) -> Design:
    return Part(design.whole, design.index[index])


@take_of.register
def _(design: Through, index: Tensor) -> Design:
    return Through(design.design.take(index), design.weight)


# --------------------------------------------------------------------------------------------- checks


def _check_head(network: Network, of: Of, names: Sequence[str]) -> None:
    if of not in ("logits", "embedding"):
        raise ModelError("tangents are of the logits or of the embedding", got=repr(of))
    if of == "embedding":
        if network.has_logits and not network.head:
            raise ModelError(f"{network.name} has logits that no single linear layer gives", do='use of="logits"')
        return
    if not network.has_logits:
        raise ModelError(f"{network.name} has no logits", do='give it a head (with_head), or use of="embedding"')
    weight = network.params.get(f"{network.head}.weight") if network.head else None
    below = [name for name in names if not name.startswith(network.head + ".")]
    if weight is not None and below and not bool(weight.any()):
        raise _zero_head()


def _zero_head() -> RecipeError:
    return RecipeError(
        "the head is zero, so every derivative below it is exactly zero",
        expected="a solved head before tangents are taken",
        do="solve a head first and set it (with_head); where the last layer tells no rows apart that is zero too: use "
        "all-layers",
    )
