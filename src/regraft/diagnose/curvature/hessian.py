"""The Hessian of an Objective as an operator, and its Gauss-Newton matrix."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from regraft.diagnose.fisher import Fisher
from regraft.diagnose.objective import Objective
from regraft.errors import ModelError
from regraft.features import Tangent
from regraft.linear import Operator, Tag
from regraft.network.policy import grad
from regraft.wording import first_line

__all__ = ["Hessian", "ggn"]


_SYMMETRIC = {torch.float64: 1e-6, torch.float32: 1e-4}  # of the norms
_DO = "take matrix='ggn', or leave out the parameters below that operation with select"


@final
class Hessian(Operator):
    """∇²L(θ), ``(P, P)`` over the flattened selected parameters: exact, symmetric, indefinite in general.

    H v = ∇_θ (∇L(θ)ᵀ v), reverse mode over reverse mode (Pearlmutter, 1994). The graph of ∇L is made once for each
    batch and kept: then a product is one pass back through it, 1.3 to 2.6 gradients long. Batches whose graphs do not
    fit in ``memory`` have theirs made anew at every product, at about twice the price. Batches are added up in order,
    so equal calls give equal bits. At a kink (ReLU) the second derivative is that of the piece that autograd takes.

    Args:
        objective: L; its ``point`` is θ. Parameters that L does not depend on have rows of zeros.
        memory: bytes that graphs may keep; the first one is always kept.

    Attributes:
        loss: L(θ).
        gradient: ∇L(θ), ``(P,)``.
        kept: how many batches have their graphs kept.
        bytes: about how much that takes; 0 where one batch is all.

    Raises:
        ModelError: the outputs cannot be differentiated, or not twice, or torch has second derivatives of theirs wrong.
    """

    def __init__(self, objective: Objective, *, memory: int = 2**31) -> None:
        super().__init__((objective.size,) * 2, objective.dtype, tags=(Tag.SYMMETRIC,), device=objective.device)
        self.objective, self.shapes = objective, dict(objective.shapes)
        count = len(list(objective.batches()))
        each = _bytes(objective) if count > 1 else 0
        self.kept = count if not each else max(1, min(count, memory // each))
        self.bytes = each * self.kept
        self._graphs: list[_Graph] = []
        self.loss, self.gradient = 0.0, torch.zeros(objective.size, dtype=self.dtype, device=self.device)
        for loss, leaves in objective.graphs():
            graph = _Graph(loss, list(leaves.values()))
            if not len(self._graphs):
                graph.check()
                self._check_symmetric(graph)
            self.loss += float(loss.detach())
            self.gradient += torch.cat([part.detach().reshape(-1) for part in graph.gradient])
            if len(self._graphs) < self.kept:
                self._graphs.append(graph)

    def _check_symmetric(self, graph: _Graph) -> None:
        """Refuses second derivatives that torch has wrong: uᵀ H v = vᵀ H u of two random vectors, for one batch."""
        made = torch.Generator().manual_seed(0)
        u, v = torch.randn((2, self.shape[0]), generator=made, dtype=torch.float64).to(self.device, self.dtype)
        found = torch.zeros(2, self.shape[0], dtype=self.dtype, device=self.device)
        graph.add([u, v], found)
        scale = float(found[0].norm() * v.norm() + found[1].norm() * u.norm())
        gap = abs(float(found[0].double() @ v.double() - found[1].double() @ u.double()))
        if gap > _SYMMETRIC.get(self.dtype, 0.05) * scale:
            raise ModelError(
                "the Hessian of a network",
                expected="second derivatives that are symmetric",
                got=f"uᵀHv and vᵀHu apart by {gap / scale:.1e} of their norms: torch has some wrong, as of weight_norm",
                do=_DO,
            )

    def _apply(self, vectors: Tensor) -> Tensor:
        columns = [column.contiguous() for column in vectors.T]
        found = torch.zeros(len(columns), self.shape[0], dtype=self.dtype, device=self.device)
        for graph in self._graphs:
            graph.add(columns, found)
        for loss, leaves in self.objective.graphs(first=self.kept):
            _Graph(loss, list(leaves.values())).add(columns, found)
        return found.T

    _adjoint = _apply


class _Graph:
    """∇L of one batch, with its graph."""

    def __init__(self, loss: Tensor, leaves: list[Tensor]) -> None:
        self.leaves = leaves
        self.gradient = grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True)

    def check(self) -> None:
        """Refuses what autograd knows to be differentiable only once: asked for some leaves, it skips that silently."""
        waiting = [part.grad_fn for part in self.gradient if part.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if node.name() == "torch::autograd::Error":
                raise _only_once("an operation that is marked as differentiable once")
            found = {following for following, _ in node.next_functions if following is not None} - seen
            seen |= found
            waiting.extend(found)

    def add(self, columns: list[Tensor], found: Tensor) -> None:
        """Adds H v of every column v to the rows of ``found``."""
        curved = [place for place, part in enumerate(self.gradient) if part.requires_grad]
        if not curved:  # the loss is linear in the parameters
            return
        gradient, sizes = [self.gradient[place] for place in curved], [leaf.numel() for leaf in self.leaves]
        for row, column in enumerate(columns):
            pieces = column.split(sizes)
            given = [pieces[place].view_as(self.leaves[place]) for place in curved]
            try:
                parts = grad(gradient, self.leaves, given, retain_graph=True, allow_unused=True, materialize_grads=True)
            except RuntimeError as error:
                raise _only_once(first_line(error)) from error
            found[row] += torch.cat([part.reshape(-1) for part in parts])


def _only_once(got: str) -> ModelError:
    return ModelError(
        "the Hessian of a network",
        expected="a network that can be differentiated twice",
        got=got,
        do=_DO,
    )


def ggn(objective: Objective, *, fast: bool = True) -> Fisher:
    """Σ_i w_i J_iᵀ H_i J_i, ``(P, P)``, of the same rows, loss and parameters: see :func:`regraft.diagnose.fisher`.

    The Hessian without the curvature of the network itself; positive semi-definite, and for these losses the Fisher
    matrix. Near a minimum that fits its targets the two agree.

    Args:
        objective: L, with BatchNorm by its running statistics.
        fast: whether activations are kept, for products of about 1.3 gradients.

    Raises:
        ModelError: an objective whose rows depend on each other (``batchnorm="batch"``), a network that was changed
            since the objective was made, or as ``fisher`` does.
    """
    if objective.batchnorm != "running":
        expected, do = "BatchNorm by its running statistics", "leave batchnorm='batch' out, or take matrix='hessian'"
        raise ModelError("a Gauss-Newton matrix", expected=expected, got="rows that depend on their batch", do=do)
    tangent = Tangent(
        objective.source,
        list(objective.point),
        [batch for _, _, batch in objective.batches()],
        dtype=objective.dtype,
        batch_size=objective.batch_size,
        fast=fast,
    )
    start = objective.start
    off = float((tangent.outputs - start).abs().max())
    if not off <= 1e3 * torch.finfo(start.dtype).eps * max(1.0, float(start.abs().max())):
        expected = "the network that the objective was made from"
        raise ModelError("a Gauss-Newton matrix", expected=expected, got=f"outputs that differ by {off:.1e}")
    return Fisher(tangent, tangent.outputs, objective.loss, objective.weights)


def _bytes(objective: Objective) -> int:
    """What the graph of the first batch keeps."""
    seen: dict[int, int] = {}

    def pack(value: Tensor) -> Any:
        storage = value.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return value.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        loss, leaves = next(objective.graphs())
        _Graph(loss, list(leaves.values()))
    return sum(seen.values())
