"""What a training costs: floating-point operations and rows' worth of whole passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.rows import Rows, place, portions
from regraft.graft.training.behind import KeptRows
from regraft.graft.training.grafted import Grafted
from regraft.network.flops import Operations

__all__ = ["Price", "price", "spaced", "step_flops"]

_FEW = 16  # rows of differing size that stand for all


@dataclass(frozen=True)
class Price:
    """What training costs a row, in floating-point operations.

    Attributes:
        step: forward and back.
        whole: the same through the whole network, where a step begins behind what stays; else the same number.
        rows: that passed through the whole network to find what reaches the rest; 0 where each step is whole.
    """

    step: int
    whole: int
    rows: int = 0

    def of(self, steps: int) -> tuple[int, int]:
        """(rows' worth of whole passes, operations) of so many rows' steps."""
        if not steps:
            return 0, 0
        share = self.step / self.whole if self.whole else 1.0
        return self.rows + round(steps * share), steps * self.step + self.rows * self.whole // 3


def price(module: Grafted, rows: ManifestRows, given: Rows) -> Price:
    """Of training on ``rows`` as they are ``given``: themselves, or what is kept of them."""
    whole = step_flops(module, rows)
    if not isinstance(given, KeptRows):
        return Price(whole, whole)
    return Price(step_flops(module, given), whole, given.recorded)


def spaced(rows: int, count: int) -> Tensor:
    """The places of at most so many rows that stand for all, evenly spaced: texts and graphs differ in size, and a file
    may have them in order."""
    return torch.linspace(0, rows - 1, min(count, rows), dtype=torch.float64).round().long()


def step_flops(module: Grafted, rows: Rows) -> int:
    """Floating-point operations of one row's forward and backward pass, counted on some; in eval mode, for running
    statistics must not follow the rows that are only counted."""
    few = spaced(len(rows), _FEW if module.network.preprocess.ragged else 2)
    module.eval()
    batches = [place(rows.inputs(part), str(module.network.device)) for part in portions(module, few, rows)]
    with Operations() as counter:
        for batch in batches:
            module(batch).sum().backward()
    module.zero_grad(set_to_none=True)
    return int(counter.total) // len(few)
