"""Short cuts to the loss at other weights: what does not move is run once for each batch of rows.

For one linear layer z = W ∗ x + b, the output at the weights W + Σ_k c_k D_k is z_0 + Σ_k c_k z_k with z_k = D_k ∗ x,
and x does not depend on c: so a point costs two numbers an entry of z and what comes behind it. BatchNorm with running
statistics is folded into the layers before it, the moving one included (it is affine, so that z stays linear).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from regraft.diagnose.objective import Objective, use_batches
from regraft.errors import ModelError
from regraft.features.tangent.replay import Replay
from regraft.features.tangent.unfold import Unfold
from regraft.features.tangent.values import RowAxis
from regraft.linear import Blocks
from regraft.network import Network
from regraft.network.outputs import TRANSPOSED

__all__ = ["Layer", "Prefix", "Unfit", "moving", "step"]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
_BYTES = 2 * 2**20  # of the layer's output in one pass: several points of a small layer, one of a large one
_POINTS = 1024  # in one pass, at most


class Unfit(ModelError):
    """A short cut does not apply here; the reason is in the message."""


def moving(directions: Sequence[Blocks]) -> list[str]:
    """The parameters in which some direction is not zero."""
    return [name for name in directions[0] if any(bool(d[name].any()) for d in directions)]


def step(
    point: Blocks, directions: Sequence[Blocks], coordinates: Sequence[float], names: Sequence[str]
) -> dict[str, Tensor]:
    """θ + Σ_k c_k d_k, of some parameters."""
    moved = {name: point[name] for name in names}
    for value, direction in zip(coordinates, directions):
        moved = {name: block + value * direction[name] for name, block in moved.items()}
    return moved


class Prefix:
    """Modules that the moving weights do not reach are answered from a record, whatever the weights are."""

    def __init__(self, objective: Objective, directions: Sequence[Blocks]) -> None:
        self.objective, self.directions, self.names = objective, directions, moving(directions)
        self.replay = Replay(objective.source, self.names, objective.dtype)
        if objective.batchnorm == "batch":
            use_batches(self.replay.network.module)
        self.replay.record(_three(objective))
        if not self.replay.calls:
            raise Unfit("the moving weights reach every module, so that nothing can be kept")
        paths = [path for path, _ in self.replay.calls]
        shown = ", ".join(paths[:3]) + (", …" if len(paths) > 3 else "")
        self.note = f"prefix: {len(paths)} module calls ({shown}) run once, the others at every point"

    def chunk(self, rows: int) -> int:
        """One point."""
        return 1

    def batch(self, start: int, batch: Any) -> Callable[[Tensor], Tensor]:
        """See :class:`regraft.diagnose.landscape.evaluate.Way`."""
        replay, objective = self.replay, self.objective
        _, recorded = replay.record(batch)

        def losses(coordinates: Tensor) -> Tensor:
            found = []
            for row in coordinates.tolist():
                params = step(objective.point, self.directions, row, self.names)
                with torch.no_grad(), replay.policy.differentiable():
                    outputs = replay(params, _fresh(replay, recorded))
                    found.append(objective.losses(outputs, start).double().sum())
            return torch.stack(found).cpu()

        return losses


class Layer:
    """One linear layer or convolution moves: only what comes behind its output is run, from z_0 + Σ_k c_k z_k.

    Raises:
        Unfit: other weights move, the layer runs several times a pass, shares its weights, or they act elsewhere too.
    """

    def __init__(self, objective: Objective, directions: Sequence[Blocks]) -> None:
        self.objective = objective
        names = moving(directions)
        self.path = _layer_of(objective.source, names)
        network, names, exact, pushed = _folded(objective, names, directions)
        if any(name.rpartition(".")[0] != self.path for name in names):
            raise Unfit(f"other parameters than those of {self.path} move")
        self.replay = Replay(network, names, objective.dtype, exact=exact, cut=self.path)
        if objective.batchnorm == "batch":
            use_batches(self.replay.network.module)
        self.layer = copy.deepcopy(network.module.get_submodule(self.path)).to(objective.dtype)
        self.steps = [_tensors(self.layer, self.path, direction) for direction in pushed]
        self.inputs: list[Tensor] = []
        self.replay.network.module.get_submodule(self.path).register_forward_pre_hook(self._seen)
        self.slot, self.form, self.rowwise = self._prepared()
        last = isinstance(self.layer, nn.Conv2d) and objective.dtype == torch.float32
        self.last = last and objective.device.type == "cpu" and self.rowwise and self.form == RowAxis()
        if self.last:
            _channels_last(self.replay.network.module)
        self.note = f"layer: what comes behind {self.path} runs from z_0 + Σ c_k z_k at every point, the rest once"
        if not self.rowwise:
            self.note += ", one point at a time, for rows are not apart"

    def _seen(self, _layer: nn.Module, args: Any) -> None:
        self.inputs.append(args[0].detach().clone())

    def _prepared(self) -> tuple[int, RowAxis, bool]:
        """The slot of z, where it keeps its rows, and whether points can share a pass."""
        replay, few = self.replay, _three(self.objective)
        rowwise = self.objective.batchnorm == "running" and not replay.probe(few)
        _, recorded = replay.record(few)
        calls = [(place, start) for place, (_, start) in replay.calls.items() if place[0] == self.path]
        if len(calls) != 1 or len(replay.calls[calls[0][0]][0].places) != 1:
            raise Unfit(f"{self.path} runs {len(calls)} times a pass")
        slot = calls[0][1]
        if rowwise and slot not in replay.kept:
            raise Unfit(f"the output of {self.path} has no rows, or does not reach the outputs")
        leaves = {name: value.clone().requires_grad_(True) for name, value in replay.params.items()}
        with torch.enable_grad(), replay.policy.differentiable():
            if replay(leaves, _fresh(replay, recorded)).requires_grad:
                raise Unfit(f"the weights of {self.path} act elsewhere too")
        return slot, replay.slots[slot].form, rowwise

    def chunk(self, rows: int) -> int:
        """As many points as keep the layer's output small enough for the processor's cache."""
        if not self.rowwise:
            return 1
        slot = self.replay.slots[self.slot]
        entries = torch.Size(slot.shape).numel() // 3
        return max(1, min(_POINTS, _BYTES // max(1, rows * entries * self.objective.dtype.itemsize)))

    def batch(self, start: int, batch: Any) -> Callable[[Tensor], Tensor]:
        """See :class:`regraft.diagnose.landscape.evaluate.Way`."""
        self.inputs.clear()
        _, recorded = self.replay.record(batch)
        x = self.inputs[-1]
        with torch.no_grad():
            steps = [functional_call(self.layer, tensors, (x,)) for tensors in self.steps]
        first = recorded[self.slot]
        if any(z.shape != first.shape for z in steps):
            raise Unfit(f"{self.path} gives another shape on its own")
        if not self.rowwise:
            return self._one_by_one(start, recorded, steps)
        return self._together(start, recorded, steps)

    def _one_by_one(self, start: int, recorded: list[Tensor], steps: list[Tensor]) -> Callable[[Tensor], Tensor]:
        first = recorded[self.slot]

        def losses(coordinates: Tensor) -> Tensor:
            found = []
            for row in coordinates.tolist():
                z = first + sum(value * along for value, along in zip(row, steps))
                values = _fresh(self.replay, recorded)
                values[self.slot] = z
                found.append(self._losses(values, start, 1)[0])
            return torch.stack(found)

        return losses

    def _together(self, start: int, recorded: list[Tensor], steps: list[Tensor]) -> Callable[[Tensor], Tensor]:
        replay, form = self.replay, self.form
        rows = recorded[self.slot].shape[form.axis] // form.factor
        packed, place = replay.pack(recorded, rows), replay.kept.index(self.slot)
        flat = [self._flat(form.split(z, rows)) for z in (recorded[self.slot], *steps)]
        first, along, shape = flat[0].reshape(1, -1), torch.stack([z.reshape(-1) for z in flat[1:]]), flat[0].shape[1:]
        tiled: dict[int, list[Tensor]] = {}

        def losses(coordinates: Tensor) -> Tensor:
            points = len(coordinates)
            z = torch.addmm(first.expand(points, -1), coordinates.to(along), along).view(points * rows, *shape)
            if points not in tiled:
                tiled[points] = [self._tiled(value, points) for value in packed]
            kept = list(tiled[points])
            kept[place] = z.permute(0, 3, 1, 2) if self.last else z
            values = replay.unpack(kept, points * rows)
            for i, slot in enumerate(replay.slots):
                if slot.written and slot.needed and i != self.slot:
                    values[i] = values[i].clone()
            return self._losses(values, start, points)

        return losses

    def _flat(self, value: Tensor) -> Tensor:
        return value.permute(0, 2, 3, 1).contiguous() if self.last else value.contiguous()

    def _tiled(self, value: Tensor, points: int) -> Tensor:
        """The rows of a value once for each point."""
        made = value.repeat(points, *[1] * (value.ndim - 1))
        return made.contiguous(memory_format=torch.channels_last) if self.last and made.ndim == 4 else made

    def _losses(self, values: list[Tensor], start: int, points: int) -> Tensor:
        with torch.no_grad(), self.replay.policy.differentiable():
            outputs = self.replay({}, values)
            shares = self.objective.losses(outputs.view(points, -1, outputs.shape[-1]), start)
            return shares.double().sum(1).cpu()


def _three(objective: Objective) -> Any:
    """A batch of the first three rows, repeated where there are fewer."""
    _, stop, batch = next(objective.batches())
    index = [row % stop for row in range(3)]
    return pytree.tree_map(lambda v: v[index] if isinstance(v, Tensor) else v, batch)


def _fresh(replay: Replay, recorded: Sequence[Tensor]) -> list[Tensor]:
    """The values, with copies of those that the network writes into."""
    return [value.clone() if slot.written else value for slot, value in zip(replay.slots, recorded)]


def _layer_of(network: Network, names: Sequence[str]) -> str:
    """The path of the one layer that moves."""
    paths = {name.rpartition(".")[0] for name in names}
    if len(paths) != 1 or not {name.rpartition(".")[2] for name in names} <= {"weight", "bias"}:
        raise Unfit(f"the parameters of {len(paths)} modules move")
    path = paths.pop()
    layer = network.module.get_submodule(path)
    if type(layer) not in _LAYERS or layer._forward_hooks or layer._forward_pre_hooks:
        raise Unfit(f"{path or 'the network'} is no plain linear layer or convolution")
    own = {id(value) for value in layer.parameters()}
    others = [part for part in network.module.modules() if part is not layer]
    if any(id(value) in own for part in others for value in part._parameters.values()):
        raise Unfit(f"{path} shares its weights")
    return path


def _folded(
    objective: Objective, names: Sequence[str], directions: Sequence[Blocks]
) -> tuple[Network, list[str], dict[str, Tensor], list[dict[str, Tensor]]]:
    """The network without BatchNorm where it can be folded, the parameters that move in it, θ' and directions."""
    moved = [{name: direction[name] for name in names} for direction in directions]
    if objective.batchnorm == "batch":
        return objective.source, list(names), {}, moved
    unfold = Unfold(objective.source, names, objective.dtype)
    return unfold.network, list(unfold.names), dict(unfold.exact), [unfold.push(direction) for direction in moved]


def _tensors(layer: nn.Module, path: str, direction: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layer's own tensors for D ∗ x: zero where the direction has none."""
    return {name: direction.get(f"{path}.{name}", torch.zeros_like(value)) for name, value in layer.named_parameters()}


def _channels_last(module: nn.Module) -> None:
    """Put the weights of convolutions in a module of one's own with channels last, as they are fast on processors."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        if type(part) is nn.Conv2d and isinstance(old := part._parameters["weight"], nn.Parameter):
            turned = old.detach().contiguous(memory_format=torch.channels_last)
            part.weight = made.setdefault(id(old), nn.Parameter(turned, requires_grad=False))
