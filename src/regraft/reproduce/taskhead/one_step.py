"""Row th-eq2: one step of gradient descent moves the features by kernel × direction × energy (Eqs. 2-10), up to O(γ²).

For every input j,

    z_{t+1}(j) − z_t(j) = γ/N Σ_n κ(j, n) (∇_z q(n))ᵀ ε(n) + O(γ²),   κ(j, n) = (∇_B z(j)) (∇_B z(n))ᵀ,

with the energy ``ε = e_y − p`` of cross-entropy and ``ε = y − q`` of the squared error. Both sides are computed apart:
the left one by a step of ``torch.optim.SGD`` on the loss of the whole network, the right one from its three parts.
Smooth networks in float64, for at a kink of a ReLU no order holds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap
from torch.nn import functional

from regraft.network.resnet import s4
from regraft.network.seeding import seeded
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, relabel
from regraft.reproduce.row import Context
from regraft.reproduce.words import slope, within

__all__ = ["LOSSES", "MEASURED", "RATES", "predicted", "residuals", "split"]

RATES = tuple(2.0**-k for k in range(4, 13))
ROWS, CLASSES, HIDDEN = 6, 4, 16

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: Mapping[str, tuple[Loss, Callable[[Tensor, Tensor], Tensor]]] = {
    "CE": (
        lambda outputs, codes: functional.cross_entropy(outputs, codes),
        lambda outputs, codes: functional.one_hot(codes, CLASSES) - outputs.softmax(1),
    ),
    "MSE": (
        lambda outputs, codes: 0.5 * (outputs - functional.one_hot(codes, CLASSES)).square().sum(1).mean(),
        lambda outputs, codes: functional.one_hot(codes, CLASSES) - outputs,
    ),
}
"""The mean loss of (outputs ``(N, C)``, codes ``(N,)``), and the energy ``−∂ loss_n / ∂q`` of each row (Eq. 7)."""


def split(name: str, seed: int) -> tuple[nn.Module, nn.Module, Tensor]:
    """A backbone, a head and inputs, float64, in eval mode, drawn by the seed: ``MLP`` (its head has a hidden layer, so
    that its direction is another for each row) or ``S4`` (the page's, its ReLUs softplus, its head linear)."""
    with seeded(seed):
        if name == "S4":
            whole = s4(CLASSES)
            for path, part in [*whole.named_children()]:
                if isinstance(part, nn.ReLU):
                    setattr(whole, path, nn.Softplus())
            head: nn.Module = copy.deepcopy(whole.fc)
            whole.fc = nn.Identity()  # type: ignore[assignment]
            backbone: nn.Module = whole
            inputs = torch.randn(ROWS, 3, 16, 16)
        else:
            backbone = nn.Sequential(nn.Linear(8, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
            head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
            inputs = torch.randn(ROWS, 8)
    return backbone.double().eval(), head.double().eval(), inputs.double()


def predicted(backbone: nn.Module, head: nn.Module, inputs: Tensor, codes: Tensor, loss: str) -> Tensor:
    """``1/N Σ_n κ(j, n) (∇_z q(n))ᵀ ε(n)`` for every j, ``(N, h)``: the first-order change of the features over γ.

    The kernel is applied, not written out: ``(∇_B z)ᵀ`` by reverse mode, then ``∇_B z`` by forward mode.
    """
    weights = {name: value.detach() for name, value in backbone.named_parameters()}
    fixed = {name: value.detach() for name, value in head.named_parameters()}

    def features(tensors: dict[str, Tensor]) -> Any:
        return functional_call(backbone, tensors, (inputs,))

    value, pull = vjp(features, weights)  # type: ignore[misc]
    outputs = functional_call(head, fixed, (value,))
    directions = vmap(jacrev(lambda z: functional_call(head, fixed, (z,))))(value)  # (N, C, h)
    energies = LOSSES[loss][1](outputs, codes)  # (N, C)
    (moved,) = pull(torch.einsum("nch,nc->nh", directions, energies) / len(inputs))
    change: Tensor = jvp(features, (weights,), (moved,))[1]
    return change


def residuals(name: str, loss: str, seed: int) -> dict[str, list[float]]:
    """By rate: the root mean square over inputs of what the prediction misses (``residual``), and of the whole change.

    Both are relative to the features' own size.
    """
    backbone, head, inputs = split(name, seed)
    codes = torch.arange(len(inputs)) % CLASSES
    before = backbone(inputs).detach()
    ahead = predicted(backbone, head, inputs, codes, loss)
    out: dict[str, list[float]] = {"residual": [], "change": []}
    for rate in RATES:
        body, top = copy.deepcopy(backbone), copy.deepcopy(head)
        step = torch.optim.SGD([*body.parameters(), *top.parameters()], lr=rate)
        LOSSES[loss][0](top(body(inputs)), codes).backward()
        step.step()
        change = body(inputs).detach() - before
        out["residual"].append(float((change - rate * ahead).norm() / before.norm()))
        out["change"].append(float(change.norm() / before.norm()))
    return out


def run(context: Context) -> Result:
    """Both networks with both losses, every seed."""
    arms: dict[str, dict[str, list[list[float]]]] = {"residual": {}, "change": {}}
    for name in ("MLP", "S4"):
        for loss in LOSSES:
            found = [residuals(name, loss, seed) for seed in context.seeds]
            for arm, table in arms.items():
                table[f"{name} {loss}"] = [each[arm] for each in found]
    notes = {
        "networks": "MLP 8-16-16 with tanh and a head 16-16-4; S4 as it is drawn, softplus, 16 px; float64",
        "unit": "of the features' norm",
    }
    return Result(arms, {"γ": list(RATES)}, context.seeds, seeds_gate(context.seeds), notes)


def _second_order(result: Result) -> Outcome:
    axis = result.axis("γ")
    return all_of(
        [
            within(slope(axis, result.arm("residual", [task])[0]), 2.0, 0.1, what=f"slope of the residual, {task}")
            for task in result.arms["residual"]
        ]
    )


MEASURED: dict[str, Measured] = {
    "th-eq2": Measured(run, {"": _second_order}, {"": relabel({"residual": "change"})}),
}
