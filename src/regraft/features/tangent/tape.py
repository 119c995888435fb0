"""What layers were given and the gradients of what they returned, for batches of rows, one output at a time.

From these two the derivatives by a layer's parameters follow (:mod:`regraft.features.tangent.rules`), so a pass
forward and one backward an output give the whole Jacobian of a batch without a pass for each row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from regraft.errors import ModelError
from regraft.features.tangent.feed import length, take
from regraft.features.tangent.replay import Kept, cast, check_derivatives, check_finite, private_copy
from regraft.features.tangent.rules import derivatives, is_flat
from regraft.network import Network
from regraft.network.flops import Operations
from regraft.network.policy import grad
from regraft.record import counted
from regraft.wording import some

__all__ = ["Layer", "Seen", "Tape"]

Found = Literal["rule", "tiled", "rows", "singly"]
_AGREE = {torch.float64: 1e-8, torch.float32: 1e-3}
_LEAST = 1e-3  # of the network's largest derivative: what is less may be rounding


@dataclass(frozen=True, eq=False)
class Layer:
    """Chosen parameters whose derivatives are found together.

    Attributes:
        path: of the module.
        names: the parameters, by their names inside the module.
        shapes: theirs.
        found: how. By a ``rule``; ``tiled``: the network takes one of them a row in its stead, for it is added or
            concatenated along an axis of length one; by a pass of their own of all ``rows`` or of each ``singly``.
            Parameters without a rule are in one layer a way, by their full names.
        flat: whether the derivative is an outer product, once a row.
        tried: whether its rule was seen to hold.
    """

    path: str
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    found: Found = "rule"
    flat: bool = False
    tried: bool = False

    @property
    def ruled(self) -> bool:
        """Whether there is a rule."""
        return self.found == "rule"

    @property
    def size(self) -> int:
        """How many numbers the derivative of one output of one row has."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())


@dataclass(frozen=True, eq=False)
class Seen:
    """One layer, one output, one batch.

    Attributes:
        layer: which.
        output: which, c.
        module: the layer's own.
        given: what the module was given, one tensor a call.
        gradient: ∂f_c/∂z of each call.
        explicit: derivatives that are known already (of parameters without a rule).
    """

    layer: Layer
    output: int
    module: nn.Module
    given: tuple[Tensor, ...]
    gradient: tuple[Tensor, ...]
    explicit: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, Tensor]:
        """``{inner name: (B, *shape)}``: the sum over the calls."""
        if self.explicit:
            return dict(self.explicit)
        total: dict[str, Tensor] = {}
        for a, g in zip(self.given, self.gradient):
            for name, value in derivatives(self.module, a, g).items():
                total[name] = total[name] + value if name in total else value
        return {name: total[name] for name in self.layer.names}


class Tape:
    """Jacobians of batches, layer by layer.

    Every parameter's rule is compared with plain differentiation on a few rows when the tape is made; what has no
    rule, or disagrees (a weight that is also used elsewhere), is differentiated without: in the same pass where the
    network takes one for each row (the token and the positions of a vision transformer), else all rows of a batch at
    once where ``torch.vmap`` can run the network, else row by row.

    Args:
        network: what is differentiated; a private copy runs, with hooks on its modules.
        names: the chosen parameters.
        few: a preprocessed batch of at most three rows.
        dtype: of the arithmetic.

    Attributes:
        rows: that were run through the whole network so far.
        flops: floating-point operations of these passes and of those backward, those of parameters without a rule among
            them; rules and kernels are not in it.
    """

    def __init__(self, network: Network, names: Sequence[str], few: Any, dtype: torch.dtype) -> None:
        self.network, self.names, self._policy = private_copy(network, dtype), tuple(names), network.policy
        self._copies = False
        self.rows, self.flops = 0, 0
        self._pace: dict[object, int] = {}  # FLOPs of a row: forward, backward for one output, of a layer's own passes
        params = dict(self.network.module.named_parameters())
        self._params = {name: params[name].detach().requires_grad_(True) for name in names}
        self.layers: tuple[Layer, ...] = self._modules()
        self.layers = self._checked(self.place(few))

    def _modules(self) -> tuple[Layer, ...]:
        """Every module that holds chosen parameters itself."""
        found = []
        for path, module in self.network.module.named_modules():
            start = f"{path}." if path else ""
            own = {inner: f"{start}{inner}" for inner, _ in module.named_parameters(recurse=False)}
            own = {inner: name for inner, name in own.items() if name in self._params}
            if own:
                found.append(Layer(path, own, {inner: tuple(self._params[n].shape) for inner, n in own.items()}))
        return tuple(found)

    def _checked(self, few: Any) -> tuple[Layer, ...]:
        """The layers whose rules give what plain differentiation gives; one more for everything else."""
        alone = length(few) == 1
        if alone:  # beside one row a value that has no rows, such as a table of positions, looks like that row's own
            few = take(few, [0, 0])
        outputs = self._forward(few)[0].shape[1]
        probe = torch.randn((1, outputs), generator=torch.Generator().manual_seed(0)).to(self.like)
        wanted = self._one_by_one(few, probe, self.names)
        for name, value in wanted.items():
            check_derivatives([value], f"{self.network.name} by {name}")
        good: list[Layer] = []
        for seen in self.read(few, probe, self.layers):
            own = {inner: wanted[name][0] for inner, name in seen.layer.names.items()}
            if self._agrees(seen, own, self._limit(wanted, seen.layer.names.values())):
                flat = len(seen.given) == 1 and is_flat(seen.module, seen.given[0])
                good.append(replace(seen.layer, flat=flat, tried=True))
        covered = {name for layer in good for name in layer.names.values()}
        rest = [name for name in self.names if name not in covered]
        first = [name for name in rest if self._params[name].ndim > 1 and len(self._params[name]) == 1]
        if first and not alone and self._agree(self._tiled, few, probe, wanted, first):
            good.append(self._unruled(first, "tiled"))
            rest = [name for name in rest if name not in first]
        if rest:
            together = self._agree(self._all_at_once, few, probe, wanted, rest)
            good.append(self._unruled(rest, "rows" if together else "singly"))
        return tuple(good)

    def _unruled(self, names: Sequence[str], found: Found) -> Layer:
        shapes = {name: tuple(self._params[name].shape) for name in names}
        return Layer("", {name: name for name in names}, shapes, found)

    def _agree(
        self,
        way: Callable[[Any, Tensor, Sequence[str]], Mapping[str, Tensor]],
        few: Any,
        probe: Tensor,
        wanted: Mapping[str, Tensor],
        names: Sequence[str],
    ) -> bool:
        """Whether the network runs with parameters of its own for every row, and gives the same derivatives."""
        try:
            found = way(few, probe, names)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError):
            return False  # what vmap, or the network, cannot do
        same, limit = all(found[name].shape == wanted[name].shape for name in names), self._limit(wanted, names)
        return same and all(float((found[name] - wanted[name]).abs().max()) <= limit for name in names)

    def _limit(self, wanted: Mapping[str, Tensor], names: Iterable[str]) -> float:
        """By how much they may differ: of their own size, for others may be a thousand times as large."""
        own, largest = (max(float(wanted[name].abs().max()) for name in some) for some in (names, wanted))
        return _AGREE.get(self.like.dtype, 5e-2) * max(own, _LEAST * largest, 1e-30)

    def _tiled(self, few: Any, probe: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        (seen,) = self.read(few, probe, [self._unruled(names, "tiled")])
        return {name: value[None] for name, value in seen.rows.items()}

    @staticmethod
    def _agrees(seen: Seen, wanted: Mapping[str, Tensor], limit: float) -> bool:
        """Whether the layer has a rule that gives what plain differentiation does."""
        try:
            found = seen.rows
        except (RuntimeError, IndexError, KeyError, ValueError):  # no rule, or positions come before rows
            return False
        if any(found[inner].shape != value.shape for inner, value in wanted.items()):
            return False
        return all(float((found[inner] - value).abs().max()) <= limit for inner, value in wanted.items())

    @property
    def like(self) -> Tensor:
        """A tensor of the arithmetic's dtype and device."""
        return next(iter(self._params.values()))

    def place(self, batch: Any) -> Any:
        """A copy of the batch, which the network may write into, on its device and in the dtype of the arithmetic."""
        return pytree.tree_map(torch.clone, cast(self.network, batch, self.like.dtype))

    @property
    def path(self) -> tuple[str, ...]:
        """How the derivatives are found, a sentence a way."""
        flat = sum(layer.flat for layer in self.layers)
        ruled = [layer for layer in self.layers if layer.ruled]
        found = [f"kernel: {counted(len(ruled), 'layer')} by rules, {flat} of them outer products"]
        found.extend(
            f"kernel: no rule for {some(layer.names, 3)}: differentiated {_HOW[layer.found]}"
            for layer in self.layers
            if not layer.ruled
        )
        return tuple(found)

    # ------------------------------------------------------------------------------------- reading batches

    def read(self, batch: Any, vectors: Tensor | None, layers: Sequence[Layer]) -> Iterator[Seen]:
        """What a batch shows of some layers, output by output.

        Args:
            batch: preprocessed rows, as the network takes them, or with what comes before the parameters known; the
                latter where all layers have rules.
            vectors: ``(C, D)``: row c gives the output v_c · f(x); the D outputs themselves if ``None``.
            layers: which.

        Raises:
            ModelError: a layer with a rule is not given every row, or derivatives are not finite.
            DataError: outputs that are not finite.
        """
        kept = isinstance(batch, Kept)
        ruled, rows = [layer for layer in layers if layer.ruled], batch.rows if kept else length(batch)
        tiled = [name for layer in layers if layer.found == "tiled" for name in layer.names]
        own = {name: self._own(name, rows) for name in tiled}
        with self._counted(("forward", kept), rows):
            outputs, calls = self._forward(batch, [layer.path for layer in ruled], own)
        self.rows += 0 if kept else rows
        check_finite(outputs, self.network.name)
        for layer in ruled:
            if layer.tried:
                self._check_rows(layer, [len(a) for a, _ in calls[layer.path]], rows)
        if vectors is None:
            vectors = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        modules = dict(self.network.module.named_modules())
        results = [*(z for layer in ruled for _, z in calls[layer.path]), *own.values()]
        moving = [z for z in results if z.requires_grad]  # not what ran under no_grad
        for c, vector in enumerate(vectors if results else ()):
            more = c + 1 < len(vectors)
            with self._counted("backward", rows):
                shown = vector.expand_as(outputs)
                found = iter(grad(outputs, moving, shown, retain_graph=more, allow_unused=True) if moving else ())
            known = [next(found) if z.requires_grad else None for z in results]
            back = iter([torch.zeros_like(z) if g is None else g for g, z in zip(known, results)])
            for layer in ruled:
                given = tuple(a for a, _ in calls[layer.path])
                gradient = tuple(next(back) for _ in given)
                if layer.tried:  # else its derivatives may be made of something else
                    self._check(layer, gradient if c or set(layer.names) == {"bias"} else (*given, *gradient))
                yield Seen(layer, c, modules[layer.path], given, gradient)
            for layer in layers:
                if layer.found == "tiled":
                    explicit = {name: next(back).unsqueeze(1) for name in layer.names}
                    self._check(layer, explicit.values())
                    yield Seen(layer, c, self.network.module, (), (), explicit)
        for layer in layers:
            if layer.found in ("rows", "singly"):
                for c, explicit in enumerate(self._apart(layer, batch, vectors)):
                    self._check(layer, explicit.values())
                    yield Seen(layer, c, self.network.module, (), (), explicit)

    def _check(self, layer: Layer, values: Iterable[Tensor]) -> None:
        """What derivatives are made of is finite."""
        check_derivatives(values, f"{self.network.name} by {layer.path or some(layer.names, 3)}")

    def _check_rows(self, layer: Layer, given: Sequence[int], rows: int) -> None:
        """A rule takes what a layer is given for that of each row: once, where it is kept as an outer product."""
        if set(given) != {rows} or (layer.flat and len(given) > 1):
            raise ModelError(
                f"{layer.path} of {self.network.name} took another path for some rows",
                expected=f"a call with all {rows} rows",
                got=", ".join(map(str, given)) or "none",
                do="select parameters of modules that run for every row alike",
            )

    def _apart(self, layer: Layer, batch: Any, vectors: Tensor) -> Iterator[dict[str, Tensor]]:
        """Of a layer with passes of its own: its derivatives, output by output."""
        way = self._all_at_once if layer.found == "rows" else self._one_by_one
        rows, names, which = length(batch), list(layer.names), (layer, len(vectors))
        if which not in self._pace:  # one row is passed for this alone, for counting takes time
            with self._counted(which, 1):
                way(take(batch, [0]), vectors, names)
        with self._counted(which, rows):
            found = way(batch, vectors, names)
        self.rows += rows
        for c in range(len(vectors)):
            yield {name: value[c] for name, value in found.items()}

    @contextlib.contextmanager
    def passing(self, rows: int) -> Iterator[None]:
        """Count a pass of so many rows through the whole network that runs inside."""
        with self._counted(("forward", False), rows):
            yield
        self.rows += rows

    @contextlib.contextmanager
    def _counted(self, which: object, rows: int) -> Iterator[None]:
        """Add the operations of what runs inside; a row's are counted the first time only, for that takes time."""
        if which in self._pace:
            yield
        else:
            with Operations() as counter:
                yield
            self._pace[which] = counter.total // rows
        self.flops += rows * self._pace[which]

    def _own(self, name: str, rows: int) -> Tensor:
        """A parameter of length one, once for each row."""
        value = self._params[name].detach()
        return value.expand(rows, *value.shape[1:]).requires_grad_(True)

    def _forward(
        self, batch: Any, paths: Sequence[str] | None = None, own: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """The outputs and every call of some modules; what is written into later is copied first.

        Args:
            batch: as :meth:`read` takes it.
            paths: of the modules; all layers' if ``None``.
            own: parameters in place of the network's.
        """
        wanted = [layer.path for layer in self.layers] if paths is None else paths
        calls: dict[str, list[Any]] = {path: [] for path in wanted}
        versions: list[tuple[Tensor, int]] = []

        def keep(path: str) -> Callable[..., Any]:
            def hook(module: nn.Module, args: Any, out: Any) -> Any:
                if not args or not isinstance(args[0], Tensor) or not isinstance(out, Tensor):
                    return None
                a = args[0].detach()
                if self._copies:
                    a, z = a.clone(), out
                    calls[path].append((a, z))
                    return out.clone()
                versions.extend([(a, a._version), (out, out._version)])
                calls[path].append((a, out))
                return None

            return hook

        kept = batch if isinstance(batch, Kept) else None
        module = self.network.module if kept is None else kept.replay.network.module
        params = {**self._params, **(own or {})}
        hooks = [module.get_submodule(path).register_forward_hook(keep(path)) for path in calls]
        try:
            with torch.enable_grad(), self._policy.differentiable():
                if kept is None:
                    outputs = self.network(params, {}, batch)
                else:
                    outputs = kept.replay.behind(params, kept.values, kept.rows)
        finally:
            for hook in hooks:
                hook.remove()
        if any(value._version != version for value, version in versions):
            self._copies = True
            return self._forward(batch, paths, own)
        return outputs, calls

    def _one_by_one(self, batch: Any, vectors: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """``(C, B, *shape)`` by plain differentiation of every row."""
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        params = [self._params[name] for name in names]
        rows = length(batch)
        for row in range(rows):
            outputs = self._forward(take(batch, [row]), [])[0]
            for vector in vectors:
                back = grad(outputs, params, vector[None], retain_graph=True, allow_unused=True)
                for name, param, value in zip(names, params, back):
                    found[name].append(torch.zeros_like(param) if value is None else value)
        shape = (rows, len(vectors))
        return {name: torch.stack(parts).unflatten(0, shape).transpose(0, 1) for name, parts in found.items()}

    def _all_at_once(self, batch: Any, vectors: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """The same as :meth:`_one_by_one` from one pass in which every row has parameters of its own."""
        rows = length(batch)
        own = {name: self._params[name].detach().expand(rows, *self._params[name].shape) for name in names}
        own = {name: value.requires_grad_(True) for name, value in own.items()}
        fixed = {name: value.detach() for name, value in self._params.items() if name not in own}

        def one(params: Mapping[str, Tensor], row: Any) -> Tensor:
            return self.network({**fixed, **params}, {}, pytree.tree_map(lambda value: value[None], row))[0]

        with torch.enable_grad(), self._policy.differentiable():
            outputs = torch.vmap(one)(own, batch)
        leaves, found = list(own.values()), []
        for vector in vectors:
            back = grad(outputs, leaves, vector.expand_as(outputs), retain_graph=True, allow_unused=True)
            found.append([torch.zeros_like(p) if value is None else value for p, value in zip(leaves, back)])
        return {name: torch.stack(values) for name, values in zip(names, zip(*found))}


_HOW: Mapping[Found, str] = {"tiled": "in the same pass", "rows": "by vmap", "singly": "row by row"}
