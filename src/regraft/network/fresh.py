"""The same architecture with weights drawn anew, in whole or in part."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regraft.errors import ModelError, RegraftError
from regraft.network.blocks import members
from regraft.network.load import load
from regraft.network.network import Network
from regraft.network.seeding import seeded

__all__ = ["reinitialised", "settled"]

#: Torch's own module that draws its weights by a method of another name.
_RESETS = {nn.MultiheadAttention: "_reset_parameters"}


def reinitialised(network: Network, seed: int, parts: Sequence[str] | None = None) -> Network:
    """The network with the weights of some of its modules drawn anew, by their own ``reset_parameters``.

    Weights that a module holds without that (class tokens, position tables, layer scales) are those of the same
    architecture loaded by the network's name with random weights. The draws are a function of the seed and the
    architecture. Running statistics begin anew too.

    Args:
        network: stays as it is.
        seed: of the draws.
        parts: paths of modules, such as the last of ``network.blocks``, with all that is inside them and what makes up
            a block with them (:func:`regraft.network.blocks.members`); everything if ``None``.

    Raises:
        ModelError: a path is none of this network's, or a module holds weights without saying how to draw them and
            the network's name does not lead to its architecture with random weights.
    """
    module = copy.deepcopy(network.module).cpu()  # a GPU draws other numbers
    held = dict(module.named_modules())
    for path in parts or ():
        if path not in held:
            raise ModelError(f"{network.name} has no module {path!r}", do="choose among `network.blocks`")
    if parts is not None:
        parts = [member for path in parts for member in members(module, path)]
    bare: dict[str, nn.Module] = {}
    with seeded(seed), torch.no_grad():
        # attention after the layer inside it, whose bias it sets to zero
        for path, part in sorted(held.items(), key=lambda item: isinstance(item[1], nn.MultiheadAttention)):
            if parts is not None and not any(path == p or path.startswith(f"{p}.") for p in parts):
                continue
            reset = getattr(part, _RESETS.get(type(part), "reset_parameters"), None)
            if callable(reset):
                reset()
            else:
                own = (name for name, _ in part.named_parameters(recurse=False))
                bare |= {f"{path}.{name}" if path else name: part for name in own}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    bare = {name: part for name, part in bare.items() if name in tensors}  # a tied one is drawn where it is named first
    drawn = {**tensors, **(_loaded_anew(network, seed, bare) if bare else {})}
    return network.with_params({name: tensor.to(network.device) for name, tensor in drawn.items()})


def _loaded_anew(network: Network, seed: int, bare: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Weights of these names and shapes from the architecture that the network's name stands for."""
    name, part = next(iter(bare.items()))
    why = f"has no reset_parameters, and {network.name} leads to no such architecture"
    with contextlib.suppress(RegraftError):
        for head in (True, False):
            params = load(network.name, head=head, random=seed).params
            if all(name in params and params[name].shape == network.params[name].shape for name in bare):
                # of another seed too: the network itself may have been drawn by this one
                if not (_own(network, params) and _own(network, load(network.name, head=head, random=seed + 1).params)):
                    return {name: params[name].to(network.device) for name in bare}
                why = f"has no reset_parameters, and what {network.name} leads to brings weights of its own"
                break
    raise ModelError(
        f"{network.name} cannot be given random weights: {name.rpartition('.')[0] or 'its root'} "
        f"({type(part).__name__}) {why}",
        got=f"its weight {name.rpartition('.')[2]!r}",
        do="give the module a method reset_parameters that draws them",
    )


def _own(network: Network, params: Mapping[str, Tensor]) -> bool:
    """Whether most of its tensors, but for constants, are those of the network: they were loaded, and not drawn."""
    held = {name: value.cpu() for name, value in network.params.items() if name in params}
    told = [name for name, value in held.items() if value.numel() > 1 and bool((value != value.flatten()[0]).any())]
    return 2 * sum(torch.equal(params[name], held[name]) for name in told) > len(told)


def settled(network: Network, batches: Iterable[Any], parts: Sequence[str] | None = None) -> Network:
    """The network with running statistics of BatchNorm that are the means of those of these batches.

    Drawn anew, a network's running statistics are 0 and 1 whatever comes in, so that in evaluation mode activations
    grow or fade by a factor a layer. Training would settle them; one pass of some rows does too.

    Args:
        network: stays as it is; itself where it has no running statistics.
        batches: preprocessed; each gives one mean and one variance, which count alike.
        parts: paths of the normalisations, other modules among them; all if ``None``.
    """
    module = copy.deepcopy(network.module)
    chosen = [part for path, part in module.named_modules() if parts is None or path in parts]
    norms = [part for part in chosen if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats]
    if not norms:
        return network
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
        norm.train()
    with torch.no_grad():
        for batch in batches:
            given = network.place(batch)
            module(**given) if isinstance(given, dict) else module(given)
    names = {name for name, _ in network.module.named_buffers()}
    return network.with_params({name: value for name, value in module.named_buffers() if name in names})
