"""Folding BatchNorm in eval mode into the convolution or linear layer before it.

BatchNorm with running statistics is affine, y = γ (x − μ) / σ + β with σ = √(var + ε), so that behind a layer
x = W ∗ a + b both are one layer, W' = (γ/σ) W and b' = β + (b − μ) γ/σ. Stride, groups, dilation, padding and its
mode concern the layer's input and stay as they are.

Paper: Mu, Liang and Li, Gradients as Features for Deep Representation Learning (2020), implementation details.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from regraft.network.hooks import Hook, hooked
from regraft.network.network import Network
from regraft.network.outputs import TRANSPOSED, as_weight, by_output
from regraft.network.policy import slow_attention
from regraft.network.reading import first_tensor, written
from regraft.network.surgery import shared_copy

__all__ = ["Fold", "Folding", "deviation", "fold", "folded_tensors"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
_AGREE = 1e-9  # in float64, where nothing but a wrong fold differs by more


@dataclass(frozen=True)
class Fold:
    """A BatchNorm that can go into a layer.

    Attributes:
        norm: path of the BatchNorm; an ``nn.Identity`` stands there afterwards.
        into: path of the layer; it has a bias afterwards.
    """

    norm: str
    into: str


@dataclass(frozen=True)
class Folding:
    """The outcome of :func:`fold`.

    Attributes:
        network: the folded network.
        folded: what was folded, in order of execution.
        kept: (path, reason) of every BatchNorm that stays.
    """

    network: Network
    folded: tuple[Fold, ...]
    kept: tuple[tuple[str, str], ...]


def fold(network: Network) -> Folding:
    """The same function with BatchNorm folded away where the layer before it can take it.

    A BatchNorm is folded if it runs once a pass, on the very output of a convolution (plain or transposed) or
    linear layer that runs once, if both share their parameters with nobody, and if the outputs agree afterwards: to
    1e-9 in float64, so that in the network's own dtype they agree to rounding, and do not change where nothing but the
    BatchNorm sees what the layer gives. All others are listed with the reason.

    Cost: a few passes of two example rows in float64, and one more for each BatchNorm that fails that check.
    """
    module = network.module
    pairs, kept = _candidates(network)
    exact = _Exact(network)
    if pairs and not exact.agrees(pairs):
        good: list[Fold] = []
        for pair in pairs:
            if exact.agrees([pair]):
                good.append(pair)
            else:
                layer = module.get_submodule(pair.into)
                own = f"{pair.into} before it is a {type(layer).__name__}, which does more than its weights say"
                kept.append(
                    (pair.norm, own if _computes(layer) else f"what {pair.into} gives is used elsewhere as well")
                )
        pairs = good if not good or exact.agrees(good) else []
    for path, part in module.named_modules():
        known = {pair.norm for pair in pairs} | {name for name, _ in kept}
        if isinstance(part, nn.modules.batchnorm._NormBase) and path not in known:
            kept.append((path, "the folded network does not agree with the unfolded one"))
    if not pairs:
        return Folding(network, (), tuple(kept))
    made = shared_copy(module)
    _put(made, pairs)
    folded = Network(network.name, made, network.preprocess, network.about, traits=network.traits)
    return Folding(folded, tuple(pairs), tuple(kept))


def folded_tensors(
    layer: Any,
    norm: Any,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """W' = (γ/σ) W and b' = β + (b − μ) γ/σ, differentiable in W, b, γ and β.

    Args:
        layer: a convolution or linear layer; says which axis of W counts outputs.
        norm: the BatchNorm behind it; gives μ, var and ε.
        weight, bias: the layer's; no bias counts as zero.
        gamma, beta: the BatchNorm's; ``None`` counts as one and zero.
    """
    scale = deviation(norm, weight.dtype) if gamma is None else deviation(norm, weight.dtype) * gamma
    shift = -norm.running_mean.to(weight.dtype) if bias is None else bias - norm.running_mean.to(weight.dtype)
    scaled = as_weight(layer, by_output(layer, weight) * scale[:, None], weight.shape)
    return scaled, shift * scale if beta is None else shift * scale + beta


def deviation(norm: Any, dtype: torch.dtype) -> Tensor:
    """1/σ = 1/√(var + ε), a number a channel."""
    return torch.rsqrt(norm.running_var.to(dtype) + norm.eps)


# ---------------------------------------------------------------------------------------- candidates


class _Watch:
    """One pass: which layer's output each BatchNorm was given, and how often each ran."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.calls: Counter[str] = Counter()
        self.given: dict[str, str] = {}
        self.rank: dict[str, int] = {}
        self._outputs: list[tuple[Tensor, int, str]] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        hooks: list[Hook] = []
        for path, part in self.module.named_modules():
            if isinstance(part, _LAYERS):
                hooks.append((part, "after", self._layer(path)))
            elif isinstance(part, nn.modules.batchnorm._NormBase):
                hooks.append((part, "before", self._norm(path)))
        with hooked(hooks):
            yield

    def _layer(self, path: str) -> Any:
        def seen(_part: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            self.calls[path] += 1
            if isinstance(output, Tensor):
                self._outputs.append((output, written(output), path))

        return seen

    def _norm(self, path: str) -> Any:
        def seen(_part: nn.Module, args: Any, kwargs: Any) -> None:
            self.calls[path] += 1
            value = first_tensor((args, kwargs))
            for output, version, layer in self._outputs:
                if value is output and written(value) == version:
                    self.given[path], self.rank[path] = layer, value.ndim

        return seen


def _candidates(network: Network) -> tuple[list[Fold], list[tuple[str, str]]]:
    module, _ = network.module, network.sites  # the example pass that finds the sites is none of those counted
    parts = dict(module.named_modules())
    norms = {path: part for path, part in parts.items() if isinstance(part, nn.modules.batchnorm._NormBase)}
    watch = _Watch(module)
    if norms:
        with torch.no_grad(), watch.watching():
            network.forward(network.example(2))
    uses = Counter(id(p) for part in parts.values() for p in part._parameters.values() if p is not None)
    taken = Counter(watch.given.values())
    pairs, kept = [], []
    for path, norm in norms.items():
        into = watch.given.get(path, "")
        reason = _obstacle(path, norm, watch)
        if not reason and into:
            if watch.calls[into] != 1 or taken[into] != 1:
                reason = f"{into} before it is used {max(watch.calls[into], taken[into])} times"
            elif not {"weight", "bias"} <= parts[into]._parameters.keys() or parts[into]._parameters["weight"] is None:
                reason = f"{into} before it computes its weights from others"
            elif _shared(parts[into], uses):
                reason = f"{into} before it shares its weights"
            elif _shared(norm, uses):
                reason = "it shares its parameters"
            elif isinstance(parts[into], nn.Linear) and watch.rank[path] != 2:
                reason = f"{into} before it keeps its outputs on another axis"
        if reason:
            kept.append((path, reason))
        else:
            pairs.append(Fold(path, into))
    order = list(watch.given)
    return sorted(pairs, key=lambda pair: order.index(pair.norm)), kept


def _computes(layer: nn.Module) -> bool:
    """Whether a layer has a pass of its own, which may standardise its weights first."""
    kind = next(kind for kind in _LAYERS if isinstance(layer, kind))
    return any(getattr(type(layer), way, None) is not getattr(kind, way, None) for way in ("forward", "_conv_forward"))


def _shared(part: nn.Module, uses: Mapping[int, int]) -> bool:
    return any(uses[id(value)] > 1 for value in part._parameters.values() if value is not None)


def _obstacle(path: str, norm: nn.Module, watch: _Watch) -> str:
    if type(norm) not in _NORMS:
        return f"a {type(norm).__name__} may do more than normalise"
    if norm.running_mean is None or norm.running_var is None:
        return "it has no running statistics"
    if watch.calls[path] != 1:
        return f"it runs {watch.calls[path]} times a pass"
    return "" if path in watch.given else "no convolution or linear layer stands right before it"


# ------------------------------------------------------------------------------------------- folding


def _put(module: nn.Module, pairs: Sequence[Fold]) -> None:
    """Fold in place, in a module tree of one's own."""
    for pair in pairs:
        layer: Any = module.get_submodule(pair.into)
        norm: Any = module.get_submodule(pair.norm)
        weight: Tensor = layer.weight
        given = [None if value is None else value.detach().double() for value in (layer.bias, norm.weight, norm.bias)]
        new_weight, new_bias = folded_tensors(layer, norm, weight.detach().double(), *given)
        layer.weight = nn.Parameter(new_weight.to(weight.dtype), requires_grad=False)
        layer.bias = nn.Parameter(new_bias.to(weight.dtype), requires_grad=False)
        parent, _, leaf = pair.norm.rpartition(".")
        setattr(module.get_submodule(parent), leaf, nn.Identity())


class _Exact:
    """The network in float64 on two example rows, to try folds on."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.module: nn.Module | None = None
        self.expected: Tensor | None = None

    def _run(self, module: nn.Module) -> Tensor | None:
        batch = self.network.example(2)
        batch = pytree.tree_map(lambda v: v.double() if v.is_floating_point() else v, batch)
        try:
            with torch.no_grad(), slow_attention():
                output = module(**batch) if isinstance(batch, Mapping) else module(batch)
                return self.network._trace.reading(output, batch)
        except Exception:  # something else reads the BatchNorm's own tensors, or the dtype
            return None

    def agrees(self, pairs: Sequence[Fold]) -> bool:
        """Whether the folded network gives the same outputs."""
        if self.module is None:
            self.module = copy.deepcopy(self.network.module).double()
            self.expected = self._run(self.module)
        if self.expected is None or not self._read_by_norms_alone(self.module, pairs):
            return False
        trial = shared_copy(self.module)
        _put(trial, pairs)
        found = self._run(trial)
        if found is None or found.shape != self.expected.shape:
            return False
        scale = max(float(self.expected.abs().max()), 1e-30)
        return float((found - self.expected).abs().max()) <= _AGREE * scale

    def _read_by_norms_alone(self, module: nn.Module, pairs: Sequence[Fold]) -> bool:
        """Whether nothing but its BatchNorm sees what a layer gives: for everything else it is NaN.

        A reader that happens to be silent on the example rows (a ReLU below zero, say) shows itself so.
        """
        true: dict[str, Tensor] = {}

        def hidden(_part: nn.Module, _args: Any, output: Tensor, into: str) -> Tensor:
            true[into] = output
            return torch.full_like(output, torch.nan)

        def shown(_part: nn.Module, args: Any, kwargs: Any, into: str) -> tuple[Any, Any]:
            put = [true[into] if isinstance(value, Tensor) else value for value in (*args, *kwargs.values())]
            return tuple(put[: len(args)]), dict(zip(kwargs, put[len(args) :]))

        with contextlib.ExitStack() as stack:
            for pair in pairs:
                layer, norm = module.get_submodule(pair.into), module.get_submodule(pair.norm)
                handle = layer.register_forward_hook(functools.partial(hidden, into=pair.into))
                stack.callback(handle.remove)
                seen = functools.partial(shown, into=pair.into)
                stack.callback(norm.register_forward_pre_hook(seen, with_kwargs=True).remove)
            found = self._run(module)
        return found is not None and self.expected is not None and torch.equal(found, self.expected)
