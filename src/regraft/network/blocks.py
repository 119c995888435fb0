"""Structure read off the module tree: residual and transformer blocks, class tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["find_blocks", "members", "prefix_tokens", "top_layers"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
_PREFIX = re.compile(r"(^|\.)(cls|class|dist|distillation|reg|register)_(token|tokens|embedding)$")


def find_blocks(module: nn.Module) -> tuple[str, ...]:
    """Paths of the residual or transformer blocks, in order of registration.

    A block is an element of a ``Sequential``, ``ModuleList`` or ``ModuleDict`` that is itself no such
    container, has children and parameters, and contains no other block. Two conditions keep its *parts*
    from being taken for it: it holds at least two weight layers (a convolution with its normalisation and
    activation is no block, unless the whole network has nothing larger, as MobileNetV1), and its class
    occurs twice among its siblings or is the only one there that has children (a squeeze-and-excitation
    unit amid convolutions is a part).
    """
    elements: dict[str, int] = {}
    for path, parent in module.named_modules():
        if not isinstance(parent, _CONTAINERS):
            continue
        children = [(name, child) for name, child in parent.named_children() if _has_parts(child)]
        classes = Counter(type(child) for _, child in children)
        for name, child in children:
            if isinstance(child, _CONTAINERS) or next(child.parameters(), None) is None:
                continue
            if classes[type(child)] > 1 or len(classes) == 1:
                weighted = sum(isinstance(part, _WEIGHTED) for part in child.modules())
                elements[f"{path}.{name}" if path else name] = weighted
    large = [path for path, weighted in elements.items() if weighted >= 2]
    return _innermost(large or list(elements))


def _has_parts(module: nn.Module) -> bool:
    """Whether it holds modules, other than those that make its own weights of others (weight normalisation, say)."""
    return any(module.children()) and not is_parametrized(module)


def _innermost(paths: list[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if not any(other.startswith(path + ".") for other in paths))


def members(module: nn.Module, path: str) -> tuple[str, ...]:
    """Paths of the modules that make up a block: itself, and what stands beside its list under the same number.

    Networks such as graph networks keep the parts of their layers in lists side by side (``gnns`` and ``batch_norms``)
    and go along them together. A ``ModuleList`` of the same parent with as many elements, none of which is or holds a
    block, belongs to the blocks of the list that was registered last before it.

    Args:
        module: the network.
        path: of a block; of any other module it stands alone.
    """
    blocks = find_blocks(module)
    above, _, number = path.rpartition(".")
    if path not in blocks or not isinstance(module.get_submodule(above), nn.ModuleList):
        return (path,)
    outer, _, name = above.rpartition(".")
    inside = f"{outer}." if outer else ""
    found, nearest = [path], ""
    for other, part in module.get_submodule(outer).named_children():
        if not isinstance(part, nn.ModuleList):
            continue
        if any(block.startswith(f"{inside}{other}.") for block in blocks):
            nearest = other
        elif nearest == name and len(part) == len(module.get_submodule(above)):  # type: ignore[arg-type]
            found.append(f"{inside}{other}.{number}")
    return tuple(found)


def top_layers(
    module: nn.Module, order: Sequence[str], head: str, used: Collection[str], count: int = 1
) -> tuple[str, ...]:
    """Paths of the topmost layers with a weight of two axes or more, and of what has parameters and runs behind them.

    Args:
        module: the network.
        order: paths of its modules in order of execution.
        head: the path of the layer that gives the logits, which counts for nothing here; empty if none.
        used: names of the parameters that the logits depend on; layers without any count for nothing either.
        count: of the layers with such a weight; where there are fewer, all of them.
    """
    holders = {_owner(name) for name in used}
    matrices = {_owner(name) for name, value in module.named_parameters(remove_duplicate=False) if value.ndim > 1}
    last = reversed(dict.fromkeys(reversed(order)))  # by their last calls
    own = [path for path in last if path in holders and path]
    own = [path for path in own if not (head and f"{path}.".startswith(f"{head}."))]  # nor what it is made of
    weighted = [n for n, path in enumerate(own) if path in matrices]
    return tuple(own[weighted[-count:][0] :]) if weighted else ()


def _owner(name: str) -> str:
    """The path of the module that a parameter belongs to: of one that a weight is made of (weight normalisation, say),
    that of the module with the weight."""
    path, *made_of = re.split(r"(?:^|\.)parametrizations\.", name, maxsplit=1)
    return path if made_of else name.rpartition(".")[0]


def prefix_tokens(module: nn.Module) -> int:
    """Leading tokens that are no patches: the sizes of parameters named as class or register tokens.

    ``cls_token`` of shape (1, 1, D) counts one, ``register_tokens`` (1, R, D) counts R, a class embedding
    of shape (D,) counts one.
    """
    count = 0
    for name, parameter in module.named_parameters():
        if _PREFIX.search(name):
            count += parameter.shape[-2] if parameter.ndim > 1 else 1
    return count
