"""Which normalisation has no batch to take statistics of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["lone_norms"]


def lone_norms(module: nn.Module, batch: Any, run: Callable[[Any], object]) -> set[str]:
    """Paths of the BatchNorm layers that see a single value of each channel in a batch of one row: normalised by its
    own statistics it would be zero whatever it was.

    A convolution's map has many values a row, the mean of a map has one. Rows that have lengths of their own may have a
    single atom or word, so there every BatchNorm is named.

    Args:
        module: in whatever mode; nothing of it changes.
        batch: one row, a tensor, or a mapping of tensors where rows have lengths of their own.
        run: what passes the batch through the module.
    """
    norms = {path: part for path, part in module.named_modules() if isinstance(part, _BatchNorm)}
    if isinstance(batch, Mapping) or not norms:
        return set(norms)
    found: set[str] = set()

    def note(path: str, part: nn.Module, given: tuple[Any, ...]) -> None:
        if given and given[0].numel() <= part.num_features:
            found.add(path)

    hooks = [part.register_forward_pre_hook(partial(note, path)) for path, part in norms.items()]
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            run(batch)
    finally:
        for hook in hooks:
            hook.remove()
        for part, mode in modes.items():
            part.training = mode
    return found
