"""What a module says of rows, without training it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regraft.graft.loop.rows import AT_ONCE, Rows, place, portions

__all__ = ["logits"]

_DENSE_BATCH = 32
"""Images with masks at once, which are larger; of others :data:`AT_ONCE`, so that what trains can be judged."""


@torch.no_grad()
def logits(module: nn.Module, rows: Rows, device: str = "cpu") -> Tensor:
    """Eval-mode outputs, ``(N, C)`` or maps ``(N, C, h, w)``, of un-augmented rows, on the CPU;
    the module's mode is put back."""
    was_training = module.training
    module.eval()
    try:
        spans = torch.arange(len(rows)).split(_DENSE_BATCH if rows.labels.ndim > 2 else AT_ONCE)
        few = [part for span in spans for part in portions(module, span, rows)]
        return torch.cat([module(place(rows.inputs(part), device)).cpu() for part in few])
    finally:
        module.train(was_training)
