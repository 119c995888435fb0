"""What stands behind a tangent: the suffix, the way its products are computed, and the cached values of all rows."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from regraft.errors import ModelError
from regraft.features.tangent.cache import Cache
from regraft.features.tangent.feed import Feed
from regraft.features.tangent.generic import Generic, Way
from regraft.features.tangent.graph import Graph, GraphError
from regraft.features.tangent.pooled import Pooled
from regraft.features.tangent.replay import Replay, check_derivatives, check_finite
from regraft.features.tangent.unfold import Unfold
from regraft.linear import all_finite
from regraft.network import Network
from regraft.network.flops import Operations
from regraft.wording import first_line, some

__all__ = ["Engine", "Product"]

Product = Literal["apply", "adjoint"]
#: Bytes of cached values that a product reads at once where it runs on no processor.
_TOGETHER = 2**28


class Engine:
    """The cache and the way in which products are computed from it; shared by all views of a tangent.

    Args:
        network: what is differentiated.
        names: the selected parameters.
        feed: the rows.
        dtype: of the arithmetic.
        batch_size: rows a pass.
        fast: whether cached activations may be used.
        memory: bytes that may be cached in memory.
    """

    def __init__(
        self,
        network: Network,
        names: Sequence[str],
        feed: Feed,
        dtype: torch.dtype,
        batch_size: int,
        fast: bool,
        memory: int,
    ) -> None:
        self.feed, self.batch_size, self.memory = feed, batch_size, memory
        self._source = network
        self.shapes = {name: tuple(network.params[name].shape) for name in names}
        few = feed.some([0, feed.rows // 2, feed.rows - 1])
        self.unfold = Unfold(network, names, dtype) if fast else None
        exact: Mapping[str, Tensor] = {}
        if self.unfold is not None:
            network, names, exact = self.unfold.network, self.unfold.names, self.unfold.exact
        self.replay = Replay(network, names, dtype, exact=exact)
        problem = self.replay.probe(few)
        if problem:
            self.replay = Replay(network, names, dtype, whole=True, exact=exact)
            if again := self.replay.probe(few):
                raise ModelError(f"{network.name} cannot be run row by row", got=again)
        outputs, recorded = self.replay.record(few)
        if outputs.ndim != 2:
            raise ModelError(
                f"the outputs of {network.name} are no vectors", expected="(rows, C)", got=str(tuple(outputs.shape))
            )
        self.outputs = outputs.shape[1]
        self.generic = Generic(self.replay, recorded, outputs)
        self._fast, self._few = fast, recorded
        self._way: Way | None = None
        self._about = (*_about_prefix(self.replay, problem), *_about_folds(self.unfold))
        self._note: tuple[str, ...] = ()
        self._cache: Cache | None = None
        self._recorded = torch.zeros(feed.rows, dtype=torch.bool)
        self._done: Counter[Product] = Counter()  # rows, by what was computed of them
        self._flops: dict[Product, int] = {}  # of a row

    @property
    def way(self) -> Way:
        """How products are computed; found at the first use, for kernels take none and a graph takes seconds."""
        if self._way is None:
            self._way = self.generic
            if self._fast:
                self._try(lambda: setattr(self, "_way", Graph(self.generic, self._few)))
            if isinstance(self._way, Graph):
                with contextlib.suppress(GraphError):  # another form is the rule, and the graph serves it
                    self._way = Pooled(self._way, self.feed.rows, self.memory)
        return self._way

    def on(self, feed: Feed) -> Engine:
        """The same products of other rows of the same form, of which nothing is cached yet."""
        self.way  # noqa: B018 - found before the copy, which then shares it
        found = copy.copy(self)
        found.feed, found._cache = feed, None
        found._recorded, found._done = torch.zeros(feed.rows, dtype=torch.bool), Counter()
        return found

    def _try(self, step: Callable[[], None]) -> None:
        """A step of the fast way; where it fails the plain way serves, and ``path`` says why."""
        try:
            step()
        except (GraphError, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError) as error:
            self._way, self._note = self.generic, (f"no graph of cached activations: {first_line(error, 160)}",)

    @property
    def path(self) -> tuple[str, ...]:
        """How each part is computed, a sentence a part."""
        of_products = self.way.path  # which may find out what is noted
        return (*self._about, *of_products, *self._note)

    @property
    def together(self) -> int:
        """Rows of a product: of a processor those of a batch, which its caches hold; elsewhere so many that what starts
        an operation is little beside it, unless nothing tells how much a row takes."""
        if self.replay.network.device.type == "cpu" or self.way is self.generic:
            return self.batch_size
        return max(self.batch_size, min(self.feed.rows, _TOGETHER // max(1, self.way.bytes_per_row)))

    @property
    def cache(self) -> Cache | None:
        """The cached values, where they are those of all rows."""
        return self._cache if self._recorded.all() else None

    def record(self, start: int, batch: Any) -> Tensor:
        """Cache the values of the rows from ``start`` on, from one pass of their batch; gives its outputs (B, C)."""
        if self._cache is None:
            rows = self.feed.rows
            self._try(lambda: self.way.prepare(min(self.batch_size, rows), min(self.together, rows)))
            shapes = [*self.way.shapes(), ((self.outputs,), self.replay.dtype)]
            self._cache = Cache(rows, shapes, self.replay.network.device, self.memory)
        outputs, recorded = self.replay.record(self._source.laid_out(batch))
        check_finite(outputs, self.replay.network.name, lambda row: self.feed.where(start + row))
        stop = start + len(outputs)
        self._cache.write(start, stop, [*self.way.values(recorded, stop - start), outputs])
        self._recorded[start:stop] = True
        return outputs

    def prepared(self, progress: Callable[[int, int], None] | None = None) -> Cache:
        """The cached values of all rows; a pass makes them at the first call, unless they were recorded before."""
        if self.cache is None:
            for start, stop, batch in self.feed.batches(min(self.batch_size, self._source.rows_at_once())):
                self.record(start, batch)
                if progress:
                    progress(stop, self.feed.rows)
        return self._cache  # type: ignore[return-value]

    def apply(self, index: Tensor | None, weights: Mapping[str, Tensor]) -> Tensor:
        """J w of some rows, or of all.

        Raises:
            ModelError: derivatives that are not finite, here as in :meth:`adjoint`.
        """
        if self.unfold is not None:
            weights = self.unfold.push(weights)
        self._count("apply", index)
        parts = [
            self.way.apply(values, rows, weights) for _, rows, values in self.prepared().read(index, self.together)
        ]
        found = torch.cat(parts) if parts else self._no_rows()
        self._check([found], index)
        return found

    def _no_rows(self) -> Tensor:
        return torch.zeros((0, self.outputs), dtype=self.replay.dtype, device=self.replay.network.device)

    def adjoint(self, index: Tensor | None, outputs: Tensor) -> dict[str, Tensor]:
        """Jᵀ y of some rows, or of all."""
        self._count("adjoint", index)
        found = self._pulled(index, outputs)
        self._check(found.values(), index)
        return found

    def _check(self, product: Iterable[Tensor], index: Tensor | None) -> None:
        """A product that is not finite is refused where the derivatives are not: else it is what it was taken of."""
        if not all_finite(torch.stack([part.sum() for part in product])):
            rows = self.feed.rows if index is None else index.numel()
            every = self._pulled(index, self._no_rows().new_ones((rows, self.outputs)))
            check_derivatives(every.values(), self._source.name)

    def _pulled(self, index: Tensor | None, outputs: Tensor) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for number, (start, rows, values) in enumerate(self.prepared().read(index, self.together)):
            parts = self.way.adjoint(values, rows, outputs[start : start + rows])
            if number < 2:  # the first sum is a tensor anew, for a part may be a view of something else
                total = {name: total[name] + part for name, part in parts.items()} if total else parts
            else:
                for name, part in parts.items():
                    total[name] += part
        if not total:
            total = {name: torch.zeros_like(value) for name, value in self.replay.params.items()}
        return total if self.unfold is None else self.unfold.pull(total)

    # --------------------------------------------------------------------------------- what it costs

    def _count(self, product: Product, index: Tensor | None) -> None:
        self._done[product] += self.feed.rows if index is None else index.numel()

    def flops(self, product: Product) -> int:
        """Floating-point operations of a product, a row: counted on the first batch (multiply and add count two)."""
        if product not in self._flops:
            _, rows, values = next(self.prepared().read(None, self.batch_size))
            with Operations() as counter:
                if product == "apply":
                    self.way.apply(values, rows, {n: torch.ones_like(p) for n, p in self.replay.params.items()})
                else:
                    like = self._no_rows()
                    self.way.adjoint(values, rows, like.new_ones((rows, self.outputs)))
            self._flops[product] = counter.total // rows
        return self._flops[product]

    @property
    def spent(self) -> int:
        """Floating-point operations of all products so far."""
        return sum(rows * self.flops(product) for product, rows in self._done.items())


def _about_folds(unfold: Unfold | None) -> tuple[str, ...]:
    if unfold is None or not unfold.folds:
        return ()
    names = some([pair.norm for pair in unfold.folds], 3)
    return (f"BatchNorm: {len(unfold.folds)} folded into the layers before them ({names})",)


def _about_prefix(replay: Replay, problem: str) -> tuple[str, ...]:
    if problem:
        return (f"prefix: none, the whole network runs at every product, for {problem}",)
    kept = len(replay.kept)
    paths = [path for path, _ in replay.calls]
    if not paths:
        return ("prefix: none, the selection reaches down to the inputs, which are kept",)
    return (
        f"prefix: {len(paths)} module calls ({some(paths, 3)}) run once, {kept} tensor{'s' * (kept != 1)} a row kept",
    )
