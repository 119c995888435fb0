"""The loss of a network on fixed rows, as a function of its parameters: what curvature and landscapes are taken of.

    L(θ) = Σ_i w_i ℓ(y_i, f(θ, x_i)),      w_i = 1/N by default,

=========  =========================  ===========================
loss       ℓ(y, f)                    targets
=========  =========================  ===========================
softmax    log Σ_c exp f_c − f_y      codes (N,) or shares (N, C)
sigmoid    Σ_c log(1+exp f_c) − y f   (N, C) in [0, 1]
squared    ½ ‖f − y‖²                 (N, C)
=========  =========================  ===========================
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from regraft.errors import DataError, ModelError
from regraft.features.tangent.feed import Feed
from regraft.features.tangent.replay import cast, private_copy
from regraft.features.tangent.weights import check_modes, selected
from regraft.heads.losses import LOSSES
from regraft.linear import Blocks
from regraft.network import Network
from regraft.network.policy import grad

__all__ = ["LossName", "Objective", "Statistics", "row_weights", "use_batches"]

LossName = Literal["softmax", "sigmoid", "squared"]
Statistics = Literal["running", "batch"]


class Objective:
    """L(θ) over fixed rows, read and preprocessed once and held; deterministic.

    Args:
        network: f, with a head that fits the targets; stays as it is. Dropout is off.
        inputs: a Manifest, a preprocessed batch, or a list of batches.
        targets: y, see the table above; nothing missing.
        loss: ``softmax``, ``sigmoid`` or ``squared``.
        select: shell-style patterns over parameter names: the θ that moves; all of them by default.
        weights: w, ``(N,)``, finite and not negative; 1/N by default.
        dtype: of the arithmetic; by default the parameters'.
        batch_size: rows at a time.
        batchnorm: ``running`` (the network's statistics) or ``batch`` (of each batch of ``batch_size`` rows, so that
            the loss depends on that size; the running statistics stay as they are).

    Attributes:
        source: f as it was given.
        network: a private copy of f in ``dtype``.
        point: θ, the selected parameters by name.
        outputs_width: C.

    Raises:
        DataError: no rows, unknown losses, or targets and weights that do not fit or are missing.
        ModelError: a pattern matches nothing, a module is in training mode, or the outputs are not one vector a row.
    """

    def __init__(
        self,
        network: Network,
        inputs: Any,
        targets: Tensor,
        *,
        loss: LossName = "softmax",
        select: str | Sequence[str] = "*",
        weights: Tensor | None = None,
        dtype: torch.dtype | None = None,
        batch_size: int = 64,
        batchnorm: Statistics = "running",
    ) -> None:
        if loss not in get_args(LossName):
            raise DataError("the loss of an objective", expected=", ".join(get_args(LossName)), got=repr(loss))
        names = selected(network, select)
        check_modes(network)
        self.dtype = dtype or network.params[names[0]].dtype
        self.loss, self.batch_size = loss, max(1, int(batch_size))
        self.source, self.policy = network, network.policy
        self.network = private_copy(network, self.dtype)
        self._move(names)
        self._batches = [
            (start, stop, cast(self.network, batch, self.dtype))
            for start, stop, batch in Feed(network, inputs).batches(self.batch_size)
        ]
        self.rows = self._batches[-1][1]
        if batchnorm == "batch":
            use_batches(self.network.module)
        elif batchnorm != "running":
            raise DataError("the statistics of BatchNorm", expected="running or batch", got=repr(batchnorm))
        self.batchnorm = batchnorm
        with torch.no_grad():
            self.start = torch.cat([self.forward(self.point, batch) for _, _, batch in self._batches])
        if not self.start.is_floating_point() or self.start.ndim != 2:
            got = f"{tuple(self.start.shape)} of {self.start.dtype}"
            raise ModelError("the outputs of a network", expected="(N, C) of a floating dtype", got=got)
        self.outputs_width = self.start.shape[1]
        self.targets = _targets(targets, self.start, loss)
        self.weights = row_weights(weights, self.start)

    @property
    def device(self) -> torch.device:
        """Where the arithmetic is done."""
        return self.network.device

    def batches(self) -> Iterator[tuple[int, int, Any]]:
        """(start, stop, batch) in order. Networks may write into a batch: clone it before a pass of your own."""
        yield from self._batches

    def _move(self, names: Sequence[str]) -> None:
        self.point = Blocks({name: self.network.params[name] for name in names})
        self.shapes = {name: tuple(value.shape) for name, value in self.point.items()}
        self.size = sum(prod(shape) for shape in self.shapes.values())

    def moving(self, select: str | Sequence[str]) -> Objective:
        """The same loss as a function of other parameters: rows, outputs and network are shared, nothing is run again.

        Raises:
            ModelError: a pattern matches nothing.
        """
        found = copy.copy(self)
        found._move(selected(self.source, select))
        return found

    def split(self) -> tuple[tuple[float, Objective], ...]:
        """(share, L_b) of each batch by itself, with ``L(θ) = Σ_b share_b L_b(θ)``.

        The weights of each batch are scaled to the sum of all, so that each L_b is a mean where L is one; the network
        is shared. Batches without weight are left out.

        Raises:
            DataError: no row has a weight.
        """
        total, found = self.weights.double().sum(), []
        for start, stop, batch in self._batches:
            share = float(self.weights[start:stop].double().sum() / total)
            if not share > 0:
                continue
            part = copy.copy(self)
            part._batches, part.rows = [(0, stop - start, batch)], stop - start
            part.start, part.targets = self.start[start:stop], self.targets[start:stop]
            part.weights = self.weights[start:stop] / share
            found.append((share, part))
        if not found:
            raise DataError("the batches of an objective", expected="rows with a weight above 0", got="none")
        return tuple(found)

    def forward(self, point: Mapping[str, Tensor], batch: Any) -> Tensor:
        """f of a batch, ``(n, C)``, at a point; of a copy of it, for networks may write into what they are given."""
        given = pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, batch)
        with self.policy.differentiable():
            return self.network(point, {}, given)

    def losses(self, outputs: Tensor, start: int = 0) -> Tensor:
        """w_i ℓ(y_i, f_i), ``(…, n)``, of the outputs ``(…, n, C)`` of the rows from ``start`` on; differentiable."""
        rows = slice(start, start + outputs.shape[-2])
        problems = outputs.reshape(-1, outputs.shape[-1])[:, :, None]  # a row is a problem of its own
        targets = self.targets[rows].expand_as(outputs).reshape(-1, outputs.shape[-1])[:, :, None]
        weights = self.weights[rows].expand(outputs.shape[:-1]).reshape(-1, 1)
        return LOSSES[self.loss].value(problems, targets, weights).view(outputs.shape[:-1])

    def outputs(self, point: Mapping[str, Tensor] | None = None) -> Tensor:
        """f(θ, x), ``(N, C)``, at a point (names left out keep their values)."""
        if point is None:
            return self.start
        with torch.no_grad():
            return torch.cat([self.forward(point, batch) for _, _, batch in self._batches])

    def value(self, point: Mapping[str, Tensor] | None = None) -> float:
        """L(θ), added up in float64."""
        with torch.no_grad():
            return float(self.losses(self.outputs(point)).double().sum())

    def gradient(self, point: Mapping[str, Tensor] | None = None) -> tuple[float, Blocks]:
        """(L(θ), ∇L(θ)) in one pass forth and back over the rows."""
        total, found = 0.0, Blocks({name: torch.zeros_like(value) for name, value in (point or self.point).items()})
        for loss, leaves in self.graphs(point):
            parts = grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            total, found = total + float(loss.detach()), found + Blocks(dict(zip(leaves, parts, strict=True)))
        return total, found

    def graphs(self, point: Mapping[str, Tensor] | None = None, *, first: int = 0) -> Iterator[tuple[Tensor, Blocks]]:
        """(the batch's share of L(θ), θ as leaves) for each batch: a graph to differentiate as often as one likes.

        Batches before the ``first`` are left out.

        Raises:
            ModelError: nothing leads from the parameters to the outputs.
        """
        for start, _, batch in self._batches[first:]:
            leaves = Blocks({k: v.detach().clone().requires_grad_(True) for k, v in (point or self.point).items()})
            loss = self.losses(self.forward(leaves, batch), start).sum()
            if not loss.requires_grad:
                raise ModelError(
                    "the gradient of a loss",
                    expected="outputs that depend differentiably on the selected parameters",
                    got="outputs without a gradient",
                    do="select parameters that reach the outputs, and give logits: no classes, nothing detached",
                )
            yield loss, leaves


def row_weights(weights: Tensor | None, outputs: Tensor) -> Tensor:
    """One finite number >= 0 a row, in the outputs' dtype and place; 1/N where none are given.

    Raises:
        DataError: they do not fit.
    """
    rows = len(outputs)
    if weights is None:
        return torch.full((rows,), 1.0 / rows, dtype=outputs.dtype, device=outputs.device)
    weights = torch.as_tensor(weights)
    if tuple(weights.shape) != (rows,):
        raise DataError("weights of rows", expected=f"({rows},)", got=str(tuple(weights.shape)))
    if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise DataError("weights of rows", expected="finite numbers >= 0", got=f"{float(weights.min()):.3g} among them")
    return weights.to(device=outputs.device, dtype=outputs.dtype)


def _targets(targets: Tensor, outputs: Tensor, loss: str) -> Tensor:
    """(N, C) in the outputs' dtype and place; codes become rows of one 1."""
    rows, width = outputs.shape
    targets = torch.as_tensor(targets).to(outputs.device)
    if loss == "softmax" and targets.ndim == 1:
        codes = targets.long()
        if len(codes) != rows or int(codes.min()) < 0 or int(codes.max()) >= width or bool((codes != targets).any()):
            low, high = (float(targets.min()), float(targets.max())) if len(codes) else (0, -1)
            expected = f"({rows},) whole codes from 0 to {width - 1}"
            got = f"{tuple(codes.shape)} of {targets.dtype} from {low:g} to {high:g}"
            raise DataError("the targets of an objective", expected=expected, got=got)
        return functional.one_hot(codes, width).to(outputs.dtype)
    if tuple(targets.shape) != (rows, width):
        raise DataError("the targets of an objective", expected=str((rows, width)), got=str(tuple(targets.shape)))
    if not bool(torch.isfinite(targets).all()):
        raise DataError(
            "the targets of an objective", expected="finite numbers", got="NaN: a missing label, or infinity"
        )
    shares = targets.double()
    if loss == "sigmoid" and (float(shares.min()) < 0 or float(shares.max()) > 1):
        got = f"{float(shares.min()):.3g} to {float(shares.max()):.3g}"
        raise DataError("the targets of an objective", expected="numbers from 0 to 1", got=got)
    if loss == "softmax" and (float(shares.min()) < 0 or float((shares.sum(1) - 1).abs().max()) > 1e-3):
        got = f"{float(shares.min()):.3g} to {float(shares.max()):.3g}, rows that sum to {float(shares.sum(1)[0]):.3g}"
        raise DataError("the targets of an objective", expected="shares of classes, 1 in all for each row", got=got)
    return targets.to(outputs.dtype)


def use_batches(module: nn.Module) -> None:
    """Make BatchNorm normalise by the batch; its running statistics are taken from this module, not written to."""
    found = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if not found:
        raise ModelError("statistics of batches", expected="a network with BatchNorm", got="none in it")
    for part in found:
        part.running_mean = part.running_var = part.num_batches_tracked = None
        part.track_running_stats = False
