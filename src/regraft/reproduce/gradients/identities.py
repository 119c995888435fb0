"""Row gf-eq3-7: the identities of Gradients as Features, on networks and not on paper (Mu, Liang & Li 2020, Eqs. 3-7).

With F(θ₂) = ω f(θ₂, x) and a direction w₂, everything in float64 but the last:

* ω J_θ₂ f w₂ by Eqs. 6-7 (:class:`regraft.features.Tangent`: BatchNorm folded, the prefix cached, the rest a graph of
  linear operations) is the derivative of the whole network as it was loaded, by reverse mode, one output of one row
  at a time. So is the transposed product.
* F(θ₂ + r w₂) − F(θ₂) − r ω J w₂ = O(r²) where F is smooth (Eqs. 3-5): a copy whose ReLUs are replaced.
* The full model at (w₁, w₂) = (ω, 0) is ω f(x) (Eq. 2).
* Folding BatchNorm into the convolutions before it changes no output, in the network's own float32.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.features import Tangent
from regraft.graft.adapted.tangent import PREFIX
from regraft.graft.gradient.fit import Both
from regraft.linear import Blocks, Dense, FeatureDesign
from regraft.network import ArrayPreprocess, Network, fold, from_module
from regraft.network.resnet import s4
from regraft.network.seeding import seeded
from regraft.network.vit import tiny_vit
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Check, Context
from regraft.reproduce.sources import pack_network
from regraft.reproduce.words import bound, slope, within

__all__ = [
    "CHECKS",
    "DISTURB",
    "NETWORKS",
    "STEPS",
    "direction",
    "errors",
    "exact",
    "networks",
    "relative",
    "run",
    "smooth",
]

ROWS, CLASSES = 4, 5
STEPS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)  # r, where w₂ is as long as θ₂, tensor by tensor
NETWORKS = ("S4", "R20", "V1a", "attention")
#: θ₂: the two topmost layers or blocks of one, so that the second term of Eq. 6 has its part.
_TOP: Mapping[str, Callable[[Network], tuple[str, ...]]] = {
    "S4": lambda network: ("conv3.*", "bn3.*", "conv4.*", "bn4.*"),
    "R20": lambda network: (f"{network.blocks[-1]}.*",),
    "V1a": lambda network: tuple(f"{block}.*" for block in network.blocks[-2:]),
    "attention": lambda network: (f"{network.blocks[-1]}.*",),
}


def networks(data: Path, seed: int) -> dict[str, Network]:
    """S4 and a transformer drawn by the seed, their statistics too; R20 and V1a as they are in the data pack."""
    with seeded(seed):
        small, attention = s4(CLASSES), tiny_vit(CLASSES, size=32, patch=8, depth=2, width=32, heads=4)
        for part in small.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    pixels = ArrayPreprocess((3, 32, 32))
    return {
        "S4": from_module(small, pixels),
        "R20": pack_network("R20", data),
        "V1a": pack_network("V1a", data),
        "attention": from_module(attention, pixels),
    }


class _Smooth(nn.Module):
    """log(1 + eˣ), a ReLU without a kink; less log(1 + eˣ⁻⁶) where it is a ReLU6."""

    def __init__(self, top: float | None) -> None:
        super().__init__()
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        value = functional.softplus(x, threshold=40)
        return value if self.top is None else value - functional.softplus(x - self.top, threshold=40)


def smooth(network: Network) -> Network:
    """The network with every ReLU and ReLU6 replaced by a smooth function."""
    module = copy.deepcopy(network.module)
    for path, part in list(module.named_modules()):
        if isinstance(part, nn.ReLU | nn.ReLU6):
            parent, _, leaf = path.rpartition(".")
            setattr(module.get_submodule(parent), leaf, _Smooth(6.0 if isinstance(part, nn.ReLU6) else None))
    return Network(f"smooth {network.name}", module, network.preprocess, network.about, traits=network.traits)


def exact(network: Network) -> Network:
    """A copy in float64, nothing folded and nothing cached."""
    made = copy.deepcopy(network)
    _ = made.sites  # found by an example pass, which is in float32
    made.module.double()
    return made


class _Logits:
    """F(θ₂) = ω f(θ₂, x) by the whole network in float64."""

    def __init__(self, network: Network, names: Sequence[str], batch: Tensor, head: Tensor) -> None:
        self.network, self.batch, self.head = exact(network.without_head()), batch.double(), head
        self.at = {name: self.network.params[name] for name in names}
        self.policy = network.policy

    def __call__(self, params: Mapping[str, Tensor]) -> Tensor:
        return self.network(params, {}, self.batch) @ self.head.T

    def moved(self, weights: Mapping[str, Tensor], step: float) -> Tensor:
        """At θ₂ + r w₂."""
        with torch.no_grad():
            return self({name: value + step * weights[name] for name, value in self.at.items()})

    def derivatives(self, weights: Mapping[str, Tensor], outputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """J w₂ and Jᵀ y, both by reverse mode."""
        with self.policy.differentiable():
            value, pull = torch.func.vjp(lambda params: self(params), self.at)  # type: ignore[misc]
            image = torch.zeros_like(value)
            for place in range(value.numel()):
                unit = torch.zeros_like(value).view(-1)
                unit[place] = 1.0
                (row,) = pull(unit.view_as(value))
                image.view(-1)[place] = sum((row[name] * weights[name]).sum() for name in row)
            (back,) = pull(outputs)
        return image, back


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest expected number."""
    return float((found - expected).abs().max() / expected.abs().max())


def direction(at: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """w₂ at random, as long as θ₂ in every tensor; of length 1 where that is zero."""
    found = {}
    for name, value in at.items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        length = float(value.norm()) or 1.0
        found[name] = noise * (length / float(noise.norm()))
    return found


def errors(network: Network, select: Sequence[str], seed: int) -> dict[str, float | list[float]]:
    """The errors of every identity on one network, relative to the largest number that it speaks of.

    Args:
        network: in float32, with or without a head of its own; the identities are of its embedding under a random ω.
        select: patterns of θ₂.
        seed: of inputs, ω and w₂.

    Returns:
        ``jvp``, ``adjoint``; ``without a tensor``: of the JVP whose first tensor of w₂ is left out. ``remainder`` and
        ``change``: ‖F(θ₂ + r w₂) − F(θ₂) − r ω J w₂‖ and ‖F(θ₂ + r w₂) − F(θ₂)‖ of the smooth copy by :data:`STEPS`;
        ``remainder with ReLU``: of the network itself. ``still``: of the full model at w₂ = 0, and ``moved``, at the
        drawn w₂. Where there is BatchNorm: ``folded``, and ``no statistics``, with mean 0 and variance 1 in it.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn((ROWS, *network.example(1).shape[1:]), generator=generator)
    names = [name for name in network.params if any(fnmatch.fnmatchcase(name, each) for each in select)]
    width = next(site.shape[0] for site in network.sites if site.name == "embedding")
    head = torch.randn((CLASSES, width), generator=generator, dtype=torch.float64)
    outputs = torch.randn((ROWS, CLASSES), generator=generator, dtype=torch.float64)
    whole = _Logits(network, names, batch, head)
    weights = direction(whole.at, generator)
    tangent = Tangent(network, list(select), batch, of="embedding", dtype=torch.float64)
    design = tangent.through(head)
    image, back = whole.derivatives(weights, outputs)
    found, pulled = design.apply(Blocks(weights)), design.adjoint(outputs)
    less = Blocks({**weights, names[0]: torch.zeros_like(weights[names[0]])})
    remainder, change = _remainders(smooth(network), names, batch, head, weights)
    value = whole.moved(weights, 0.0)
    return {
        "jvp": relative(found, image),
        "adjoint": relative(pulled.flatten(), torch.cat([back[name].flatten() for name in pulled])),
        "without a tensor": relative(design.apply(less), image),
        "remainder": remainder,
        "change": change,
        "remainder with ReLU": _remainders(network, names, batch, head, weights)[0],
        "still": relative(_full(tangent, head, {name: torch.zeros_like(w) for name, w in weights.items()}), value),
        "moved": relative(_full(tangent, head, weights), value),
        **_folding(network, batch),
    }


def _remainders(
    network: Network, names: Sequence[str], batch: Tensor, head: Tensor, weights: dict[str, Tensor]
) -> tuple[list[float], list[float]]:
    tangent = Tangent(network, list(names), batch, of="embedding", dtype=torch.float64)
    first = tangent.through(head).apply(Blocks(weights))
    whole = _Logits(network, names, batch, head)
    start = whole.moved(weights, 0.0)
    moved = [whole.moved(weights, step) - start for step in STEPS]
    return [float((m - step * first).norm()) for m, step in zip(moved, STEPS)], [float(m.norm()) for m in moved]


def _full(tangent: Tangent, head: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """g(x) = ω f(x) + ω J w₂ by the design that the method solves on."""
    features = FeatureDesign({"embedding": Dense(tangent.outputs)}, len(head))
    design = Both(features, tangent, torch.arange(tangent.n_rows), "full").design(head)
    return design.apply(Blocks({"embedding": head.T, **{PREFIX + name: w for name, w in weights.items()}}))


def _folding(network: Network, batch: Tensor) -> dict[str, float]:
    """Of the folded network, and of the network whose normalisations forget their statistics."""
    fresh = {
        **{name: torch.zeros_like(value) for name, value in network.buffers.items() if name.endswith("running_mean")},
        **{name: torch.ones_like(value) for name, value in network.buffers.items() if name.endswith("running_var")},
    }
    if not fresh:
        return {}
    with torch.no_grad():
        expected = network.forward(batch)
        folded = relative(fold(network).network.forward(batch), expected)
        return {"folded": folded, "no statistics": relative(network.with_params(fresh).forward(batch), expected)}


# ------------------------------------------------------------------------------------------- the row

_ARMS = {
    "JVP error": "jvp",
    "adjoint error": "adjoint",
    "JVP error without a tensor": "without a tensor",
    "remainder": "remainder",
    "change": "change",
    "error at w2 = 0": "still",
    "error at another w2": "moved",
    "folding error": "folded",
    "error without statistics": "no statistics",
}


def run(context: Context) -> Result:
    """Every network and seed; the seed draws inputs, ω and w₂, and the networks that no pack holds."""
    found: dict[str, list[dict[str, float | list[float]]]] = {name: [] for name in NETWORKS}
    for number, seed in enumerate(context.seeds):
        for name, network in networks(context.data, seed).items():
            found[name].append(errors(network, _TOP[name](network), seed))
        if context.progress:
            context.progress(number + 1, len(context.seeds))
    arms = {
        arm: {name: [each[key] for each in rows] for name, rows in found.items() if key in rows[0]}
        for arm, key in _ARMS.items()
    }
    notes = {
        "networks": f"S4 and the transformer (two blocks of width 32) are drawn by the seed; {ROWS} rows of noise, "
        f"{CLASSES} outputs of a random head, the two topmost layers or the topmost block",
        "remainder of the networks as they are": {
            name: [each["remainder with ReLU"] for each in rows] for name, rows in found.items()
        },
    }
    return Result(arms, {"r": list(STEPS)}, context.seeds, seeds_gate(context.seeds), notes)


def _products(result: Result) -> Outcome:
    return all_of(
        [
            bound(result.arm(arm), at_most=1e-10, statistic="max", what=f"largest relative {arm}")
            for arm in ("JVP error", "adjoint error")
        ]
    )


def _second_order(result: Result) -> Outcome:
    steps = result.axis("r")
    return all_of(
        [
            within(slope(steps, result.arm("remainder", [name])[0]), 2, 0.1, what=f"slope of {name}'s remainder in r")
            for name in result.arms["remainder"]
        ]
    )


def _at_zero(result: Result) -> Outcome:
    return bound(result.arm("error at w2 = 0"), at_most=1e-12, statistic="max", what="largest relative error at w2 = 0")


def _folds(result: Result) -> Outcome:
    return bound(result.arm("folding error"), at_most=1e-5, statistic="max", what="largest relative folding error")


CHECKS: dict[str, Check] = {"a": _products, "b": _second_order, "c": _at_zero, "d": _folds}
DISTURB = {
    "a": swap("JVP error", "JVP error without a tensor"),
    "b": swap("remainder", "change"),
    "c": swap("error at w2 = 0", "error at another w2"),
    "d": swap("folding error", "error without statistics"),
}
