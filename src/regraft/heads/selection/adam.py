"""Linear models trained as Head2Toe's authors train them: Adam on batches, a cosine to zero, several side by side.

    L = (1/B) Σ_{i in batch} s_i ℓ(y_i, Wᵀx_i + b) + λ Σ_j ‖W_j‖₂

The penalty is part of the loss, not a proximal step, so no row of W becomes exactly zero. Gradients are written out:
a step is two matrix products and one fused update. Models that share a step count run together, on the same
batches, each with its own rate and λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi

import numpy as np
import torch
from torch import Tensor

from regraft.heads.response import Link

__all__ = ["BATCH", "Trained", "Training"]

BATCH = 128
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_SMALLEST = 1e-36
_TELL = 50


@dataclass(frozen=True, eq=False)
class Trained:
    """K models where their schedules stopped.

    Attributes:
        weights: (K, C, d) of the rows' dtype, Wᵀ.
        intercepts: (K, C).
    """

    weights: Tensor
    intercepts: Tensor


@dataclass(frozen=True, eq=False)
class Training:
    """Rows with labels, to train K models on.

    Attributes:
        index: (n,) the rows, of a matrix that may hold others too.
        link: softmax (cross-entropy), sigmoid (cross-entropy a label) or identity (½‖y − f‖²).
        targets: (n, C) of the rows' dtype.
        weights: (n, 1) or (n, C) of the rows' dtype, s; mean one over the rows, in each column.
        seed: of the order of the rows.
        batch: B; fewer where there are fewer rows.
    """

    index: Tensor
    link: Link
    targets: Tensor
    weights: Tensor
    seed: tuple[int, ...]
    batch: int = BATCH

    def run(
        self,
        rows: Tensor,
        steps: int,
        rates: Sequence[float],
        penalties: Sequence[float],
        tell: Callable[[int], None] | None = None,
    ) -> Trained:
        """Train K models from W = 0, b = 0.

        Adam with β = (0.9, 0.999), ε = 1e-8; the rate of step t is r ½ (1 + cos(π t / steps)). Batches are cut from one
        shuffled pass over the rows after the other.

        Args:
            rows: (N, d), float32 or float64, shared by all models, or (K, N, d), the rows of each.
            steps: of every model.
            rates: r, (K,).
            penalties: λ, (K,).
            tell: called with a number of steps when so many more are done.
        """
        models, outputs, width = len(rates), self.targets.shape[1], rows.shape[-1]
        place, shared = rows.device, rows.ndim == 2
        # W = r U: Adam's step does not depend on the scale of its parameter, so one update serves all rates, and the
        # gradient λ W_j/‖W_j‖ is that of U. Outputs come first: with few of them products run along memory.
        steep = rows.new_zeros(models, outputs, width)
        level = rows.new_zeros(models, outputs, 1)
        steep.grad, level.grad = torch.zeros_like(steep), torch.zeros_like(level)
        rate, strength = (rows.new_tensor(list(v))[:, None, None] for v in (rates, penalties))
        adam = torch.optim.Adam([steep, level], lr=1.0, betas=_BETAS, eps=_EPSILON, fused=True)
        size = min(self.batch, len(self.targets))
        x = rows.new_empty(*rows.shape[:-2], size, width)  # memory asked for anew costs more than what is done with it
        for step, index in enumerate(self._batches(steps, size, place)):
            torch.index_select(rows, rows.ndim - 2, self.index[index], out=x)
            if shared:
                logits = (steep.view(-1, width) @ x.T).view(models, outputs, -1)
            else:
                logits = steep @ x.transpose(1, 2)
            residual = self.residual((logits + level) * rate, index)
            torch.sum(residual, 2, keepdim=True, out=level.grad)
            if shared:
                torch.mm(residual.view(-1, len(index)), x, out=steep.grad.view(-1, width))
            else:
                torch.bmm(residual, x, out=steep.grad)
            if any(penalties):
                squares = steep.square().sum(1, keepdim=True)
                steep.grad.addcmul_(steep, strength * squares.clamp_min_(_SMALLEST).rsqrt_())
            adam.param_groups[0]["lr"] = 0.5 * (1 + cos(pi * step / steps))
            adam.step()
            if tell is not None and (step + 1) % _TELL == 0:
                tell(_TELL)
        if tell is not None and steps % _TELL:
            tell(steps % _TELL)
        return Trained(steep.mul_(rate), level.mul_(rate)[:, :, 0])

    def _batches(self, steps: int, size: int, place: torch.device) -> Iterator[Tensor]:
        generator, rows = np.random.default_rng(self.seed), len(self.targets)
        stream = np.empty(0, dtype=np.int64)
        for _ in range(steps):
            while len(stream) < size:
                stream = np.concatenate([stream, generator.permutation(rows)])
            yield torch.from_numpy(stream[:size]).to(place)
            stream = stream[size:]

    def residual(self, logits: Tensor, index: Tensor) -> Tensor:
        """∂L/∂logits (K, C, B) without the penalty."""
        if self.link == "softmax":
            predicted = torch.softmax(logits, 1)
        else:
            predicted = torch.sigmoid(logits) if self.link == "sigmoid" else logits
        return (predicted - self.targets[index].T) * (self.weights[index].T / len(index))
