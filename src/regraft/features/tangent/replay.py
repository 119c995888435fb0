"""Running only the part of a network that chosen parameters reach.

A *clean* call of a module holds no chosen parameter and is given nothing that depends on one. The first pass
finds the largest clean calls (autograd tells what depends on what), later passes answer them from a record and
run the rest: so the cut may lie anywhere, inside a residual block or between tuples, and glue code runs as written.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointError

from regraft.errors import DataError, ModelError
from regraft.features.tangent.values import Pass, Slot, Tree, alike, row_axis, slots_of
from regraft.linear import all_finite
from regraft.network import Network
from regraft.network.policy import no_derivatives
from regraft.wording import some

__all__ = ["Kept", "Replay", "cast", "check_derivatives", "check_finite", "private_copy"]

_AGREE = {torch.float64: 1e-9, torch.float32: 1e-4}


class _AgainError(Exception):
    """A call that seemed clean cannot be answered from a record; the pass starts anew without it."""


class Replay:
    """A private copy of a network that answers clean calls from a record.

    Args:
        network: what is copied; its tensors are shared unless ``dtype`` is another.
        names: the chosen parameters.
        dtype: of the arithmetic.
        whole: answer nothing: every pass runs the whole network.
        exact: parameters to be set in ``dtype``, where it is another than the network's.
        cut: path of a module with chosen parameters whose output is recorded too: later passes begin behind it.
        run: what runs on a batch in the network's place, with its own parameters as they are then; the network itself
            is wrapped, and not a copy of it.
        busy: modules without chosen parameters whose calls are no clean ones all the same, for later passes run them in
            another mode: nor are those inside of them, and what they return counts as dependent on a chosen parameter.
    """

    def __init__(
        self,
        network: Network,
        names: Sequence[str],
        dtype: torch.dtype,
        *,
        whole: bool = False,
        exact: Mapping[str, Tensor] | None = None,
        cut: str = "",
        run: Callable[[Any], Tensor] | None = None,
        busy: Sequence[str] = (),
    ) -> None:
        self.names, self.dtype, self.whole, self.cut = tuple(names), dtype, whole, cut
        self.network = private_copy(network, dtype) if run is None else network
        self._function = run
        for name, value in (exact or {}).items():
            self.network.module.get_parameter(name).data = value.clone()
        module = self.network.module
        self.params = {name: value.detach() for name, value in module.named_parameters() if name in set(names)}
        self.policy = network.policy
        self.slots: list[Slot] = []
        self.calls: dict[tuple[str, int], tuple[Tree, int]] = {}  # → form, first slot
        self.trail: list[str] = []
        self._inputs, self._start = Tree(None, (), ()), 0
        self._given: list[Tensor] = []
        self._mode, self._pass, self._inside = "plain", Pass(), 0
        self._counts: Counter[str] = Counter()
        self._probed = False
        self._lock = threading.RLock()
        chosen = {id(p) for name, p in module.named_parameters() if name in self.params}
        self._reached = {
            path
            for path, part in module.named_modules()
            if any(id(p) in chosen for p in part.parameters())
            or any(_holds(path, other) or _holds(other, path) for other in busy)
        }
        self._busy = set(busy)
        for path, part in module.named_modules():
            if path and not isinstance(part, torch.jit.ScriptModule):
                part.forward = self._wrapped(path, part.forward)

    # ------------------------------------------------------------------------------- one module's call

    def _wrapped(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._mode == "plain" or self._inside:
                return forward(*args, **kwargs)
            count = self._counts[path]
            self._counts[path] += 1
            if self._mode == "replay" and (path, count) in self.calls:
                tree, start = self.calls[path, count]
                return tree.fill(self._given[start:])
            if self._mode == "record" and self._is_clean(path, args, kwargs):
                return self._recorded(path, count, forward, args, kwargs)
            self.trail.append(path)
            out = forward(*args, **kwargs)
            self.trail.pop()
            return self._unsettled(path, out) if self._mode == "record" and path in self._busy else out

        return call

    def _unsettled(self, path: str, out: Any) -> Any:
        """What a busy module returned, as something that autograd finds in all that is made of it."""
        found = Tree.of(out)
        if found is None or not all(_may_depend(leaf) for leaf in found[1]):
            raise ModelError(
                f"what follows {path} of {self.network.name} cannot be told from what does not",
                expected="a module that returns floating tensors, alone or nested",
                got=type(out).__name__,
                do="run the whole network",
            )
        tree, leaves = found
        for leaf in leaves:
            if not leaf.requires_grad:  # it may be the very tensor that was given, and be written into
                increment_version(leaf)
        return tree.fill([v if v.requires_grad else v.detach().requires_grad_().clone() for v in leaves])

    def _is_clean(self, path: str, args: Any, kwargs: Any) -> bool:
        if path == self.cut or self.whole or path in self._reached:
            return path == self.cut
        given = pytree.tree_leaves((args, kwargs))
        return not any(isinstance(value, Tensor) and value.requires_grad for value in given)

    def _recorded(self, path: str, count: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._inside += 1
        try:
            out = forward(*args, **kwargs)
        finally:
            self._inside -= 1
        found = Tree.of(out)
        if found is None or (path != self.cut and any(leaf.requires_grad for leaf in found[1])):
            self._reached.add(path)
            raise _AgainError
        self._pass.calls.append((path, count, found[0]))
        self._keep(found[1])
        return out

    def _keep(self, leaves: Sequence[Tensor]) -> None:
        for leaf in leaves:
            if leaf.is_inference():
                raise ModelError(
                    "a forward pass under torch.inference_mode has no derivatives",
                    do="let it run without that, or use a method that takes none, such as probe",
                )
            index = len(self._pass.values)
            slot = self.slots[index] if index < len(self.slots) else Slot(written=True)
            self._pass.versions.append((leaf, leaf._version))
            self._pass.values.append(leaf.clone() if slot.needed and slot.written else leaf)

    # ----------------------------------------------------------------------------------------- passes

    def record(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        """Run the whole network: (outputs ``(B, C)``, one value a slot).

        Raises:
            ModelError: this batch took another path through the modules than the first one.
        """
        with self._lock, self.policy.differentiable():
            seen, inputs, out = self._seen(self.cast(batch))
        if not out.requires_grad and not self.slots:
            raise ModelError(
                "the selected parameters have no influence on the outputs",
                expected="parameters that the forward pass uses",
                got=", ".join(self.names[:3]),
                do="name others; where torch.utils.checkpoint hides these, switch checkpointing off",
            )
        calls, start = {}, inputs
        for path, number, tree in seen.calls:
            calls[path, number] = (tree, start)
            start += len(tree.places)
        if not self.slots:
            self.calls, self._start = calls, inputs
            self.slots = slots_of(seen.versions)
        elif calls != self.calls:
            raise ModelError(
                f"{self.network.name} took another path through its modules for some rows",
                expected=f"the {len(self.calls)} calls of the first rows",
                got=f"{len(calls)}",
                do="select parameters of modules that run for every row alike",
            )
        elif (other := self._other(seen)) is not None:
            raise ModelError(
                f"{other} of {self.network.name} took another path for some rows",
                expected="the shapes, copies and writes of the first rows",
                got="others",
                do="select parameters below it, so that it runs with them, or use a method without tangents, as probe",
            )
        return out.detach(), [value.detach() for value in seen.values]

    def _other(self, seen: Pass) -> str | None:
        """The first call whose values do not lie where those of the first rows do, by which later passes read them."""
        rows, values = len(seen.values[0]), seen.values
        for i, (slot, value, (leaf, version)) in enumerate(zip(self.slots, values, seen.versions)):
            fits = slot.written or not slot.needed or leaf._version == version
            if fits and self._probed:
                twin = slot.shared if slot.same < 0 else values[slot.same]
                fits = tuple(value.shape) == slot.of(rows) and value.dtype == slot.dtype
                fits = fits and (twin is None or not slot.needed or alike(value, twin))
            if not fits:
                places = self.calls.items()
                return next((path for (path, _), (_, start) in reversed(places) if start <= i), "the input")
        return None

    def _seen(self, batch: Any) -> tuple[Pass, int, Tensor]:
        """One recording pass: what it saw, how many tensors the inputs are, and the outputs."""
        found = Tree.of(batch)
        if found is None:
            raise ModelError("a batch for tangents", expected="tensors, alone or by name", got=type(batch).__name__)
        self._inputs, leaves = found
        while True:
            self._pass = Pass()
            given = [leaf if i < len(self.slots) and not self.slots[i].written else leaf.clone()
                     for i, leaf in enumerate(leaves)]  # fmt: skip
            self._keep(given)
            params = {name: value.detach().requires_grad_(True) for name, value in self.params.items()}
            try:
                with torch.enable_grad():
                    out = self._run("record", params, self._inputs.fill(given))
                break
            except _AgainError:
                continue
        seen, self._pass = self._pass, Pass()
        return seen, len(leaves), out

    def __call__(self, params: Mapping[str, Tensor], values: Sequence[Tensor]) -> Tensor:
        """The outputs ``(B, C)`` for other chosen parameters, from one value a slot; differentiable in both."""
        with self._lock:
            self._given = list(values)
            return self._run("replay", params, self._inputs.fill(self._given[: self._start]))

    def _run(self, mode: str, params: Mapping[str, Tensor], batch: Any) -> Tensor:
        self._counts.clear()
        self.trail.clear()
        self._mode = mode
        try:
            if self._function is not None:
                return self._function(batch)
            return self.network(params, {}, batch) if params else self.network.forward(batch)  # swapping takes long
        finally:
            self._mode, self._inside = "plain", 0

    def cast(self, batch: Any) -> Any:
        """The batch on the network's device, floats in the dtype of the arithmetic."""
        return cast(self.network, batch, self.dtype)

    # ------------------------------------------------------------------------------- values row by row

    @property
    def kept(self) -> list[int]:
        """The slots whose values later passes need, one a row."""
        return [i for i, slot in enumerate(self.slots) if slot.needed and slot.form.axis >= 0 and slot.same < 0]

    def pack(self, values: Sequence[Tensor], rows: int) -> list[Tensor]:
        """The kept values of one pass, rows first."""
        return [self.slots[i].form.split(values[i], rows) for i in self.kept]

    def unpack(self, packed: Sequence[Tensor], rows: int) -> list[Tensor]:
        """One value a slot from kept values; what is not needed has the right shape and holds zeros."""
        given = iter(packed)
        values: list[Tensor] = []
        for slot in self.slots:
            if slot.shared is not None:
                values.append(slot.shared)
            elif slot.same >= 0:
                values.append(values[slot.same])
            elif slot.needed:
                values.append(slot.form.join(next(given)))
            else:
                zero = torch.zeros((), dtype=slot.dtype, device=self.network.device).expand(slot.of(rows))
                values.append(zero.clone() if slot.written else zero)
        return values

    def behind(self, params: Mapping[str, Tensor], packed: Sequence[Tensor], rows: int) -> Tensor:
        """The outputs from kept values, which are not written to."""
        return self(params, [v.clone() if s.written else v for s, v in zip(self.slots, self.unpack(packed, rows))])

    # ------------------------------------------------------------------------------------------ probe

    def probe(self, batch: Any) -> str:
        """Find the slots' forms, and which are needed, from three rows; returns what failed, or nothing.

        Raises:
            DataError: outputs that are not finite.
        """
        two = pytree.tree_map(lambda v: v[:2] if isinstance(v, Tensor) else v, batch)
        outputs, values = self.record(batch)
        check_finite(outputs, self.network.name)
        outputs_two, values_two = self.record(two)
        for slot, a, b in zip(self.slots, values, values_two):
            form = row_axis(a.shape, b.shape)
            if form is None:
                return f"a value of shape {tuple(a.shape)} before the cut does not keep its rows on one axis"
            slot.form, slot.shape, slot.dtype = form, tuple(a.shape), a.dtype
            if form.axis < 0:
                if not torch.equal(a, b):
                    return "a value before the cut has no axis of rows and depends on them"
                slot.shared = a
        try:
            return self._agreed(values, outputs, outputs_two)
        except (RuntimeError, IndexError, ValueError) as error:
            if self.whole or isinstance(error, CheckpointError):
                raise  # else: what a module keeps on itself is still of another pass
            return "answering calls from the record fails"

    def _agreed(self, values: list[Tensor], outputs: Tensor, outputs_two: Tensor) -> str:
        """See :meth:`probe`: of three rows' values, whose forms are known, and the outputs of three and of two."""
        if outputs.ndim == 2 and not self._same(self._two_rows(values), outputs_two):
            return "the values before the cut, taken row by row, give other outputs"
        unused = self._unused(values)
        for slot, idle in zip(self.slots, unused):
            slot.needed = not idle
        if any(unused) and not self._idle(values, outputs):
            for slot in self.slots:
                slot.needed = True
        self._probed = self._same(self._with_nan(values), outputs)
        return "" if self._probed else "answering calls from the record fails"

    def _unused(self, values: list[Tensor]) -> list[bool]:
        """Which floating slots have no path to the outputs."""
        places = [i for i, value in enumerate(values) if value.is_floating_point()]
        free = [value.clone() for value in values]
        roots = [free[i].requires_grad_(True) for i in places]
        given = [value * 1 if i in set(places) else value for i, value in enumerate(free)]  # no leaf is written into
        with self.policy.differentiable(), torch.enable_grad(), no_derivatives(self.network.name):
            out = self(self.params, given)
            found = (
                torch.autograd.grad(out.sum(), roots, allow_unused=True) if out.requires_grad else [None] * len(roots)
            )
        unused = [False] * len(values)
        for i, grad in zip(places, found):
            unused[i] = grad is None
        for i, slot in enumerate(self.slots):  # what is needed under another name is needed
            if slot.same >= 0 and not unused[i]:
                unused[slot.same] = False
        return unused

    def _idle(self, values: list[Tensor], outputs: Tensor) -> bool:
        """Whether NaN in the slots that seem idle changes nothing: it may fail too, where numbers become indices."""
        try:
            return self._same(self._with_nan(values), outputs)
        except (IndexError, RuntimeError, ValueError):
            return False

    def _with_nan(self, values: list[Tensor]) -> Tensor:
        return self._plain([v if s.needed else torch.full_like(v, torch.nan) for s, v in zip(self.slots, values)])

    def _two_rows(self, values: list[Tensor]) -> Tensor:
        cut = [
            value if slot.form.axis < 0 else slot.form.join(slot.form.split(value, 3)[:2])
            for slot, value in zip(self.slots, values)
        ]
        return self._plain(cut)

    def _plain(self, values: list[Tensor]) -> Tensor:
        with self.policy.differentiable(), torch.no_grad():
            return self(self.params, [v.clone() if s.written else v for s, v in zip(self.slots, values)])

    def _same(self, found: Tensor, expected: Tensor) -> bool:
        if found.shape != expected.shape or not bool(torch.isfinite(found).all()):
            return False
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        return float((found - expected).abs().max()) <= _AGREE.get(self.dtype, 5e-2) * max(scale, 1e-6)


@dataclass(frozen=True, eq=False)
class Kept:
    """A batch of which everything before the chosen parameters is known.

    Attributes:
        replay: runs the rest.
        values: as :meth:`Replay.pack` gives them.
        rows: B.
    """

    replay: Replay
    values: Sequence[Tensor]
    rows: int


def _holds(path: str, other: str) -> bool:
    """Whether a module is, or holds, another."""
    return not path or f"{other}.".startswith(f"{path}.")


def _may_depend(value: Tensor) -> bool:
    """Whether autograd can tell what depends on a tensor."""
    return (value.is_floating_point() or value.is_complex()) and not value.is_inference()


def check_finite(outputs: Tensor, name: str, where: Callable[[int], str] | None = None) -> None:
    """Refuse rows whose outputs (B, …) are NaN or infinite, for nothing could be told from their derivatives; ``where``
    names them.

    Raises:
        DataError: there is one.
    """
    if not all_finite(outputs):
        bad = (~outputs.isfinite().flatten(1).all(1)).nonzero().squeeze(1).tolist()
        rows = "" if where is None else f" for {some([where(row) for row in bad])}"
        raise DataError(
            f"the outputs of {name}{rows}", expected="finite numbers", got="NaN or infinity",
            do="look for NaN in the inputs, or take a wider dtype",
        )  # fmt: skip


def check_derivatives(values: Iterable[Tensor], name: str) -> None:
    """Refuse derivatives that are NaN or infinite, as those may be of outputs that are not.

    Raises:
        ModelError: one of them is; ``name`` says whose they are.
    """
    if not all(all_finite(value) for value in values):
        raise ModelError(
            f"the derivatives of {name}",
            expected="finite numbers",
            got="NaN or infinity, of finite outputs",
            do="look for a root, a logarithm or a quotient at zero, also in what torch.where or a mask leaves out",
        )


def private_copy(network: Network, dtype: torch.dtype) -> Network:
    """A copy with modules of its own; tensors are shared where the dtype is the same."""
    tensors = [*network.module.parameters(), *network.module.buffers()]
    same = all(t.dtype == dtype for t in tensors if t.is_floating_point())
    made = copy.deepcopy(network, {id(t): t for t in tensors} if same else {})
    _ = made.sites  # seen in an example pass of the original dtype
    if not same:
        made.module.to(dtype)
    for part in made.module.modules():
        if isinstance(part, nn.Embedding):
            part.padding_idx = None  # training leaves that row as it is; the output depends on it all the same
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):  # a bag leaves padding out of its output too
            part.scale_grad_by_freq = part.sparse = False  # gradients of another size, or form, than the derivative
    if callable(choose := getattr(made.module, "set_attn_implementation", None)):
        choose("eager")  # the others leave out the mask, or not, by looking at the numbers of a batch
    return made


def cast(network: Network, batch: Any, dtype: torch.dtype) -> Any:
    """The batch on the network's device, floats in the dtype of the arithmetic."""
    return pytree.tree_map(
        lambda v: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v, network.place(batch)
    )
