"""Pretraining by jigsaw puzzles: in which order do the pieces lie?"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.errors import RecipeError
from regraft.graft.pretraining.pretext import Pretext
from regraft.graft.stages.augment import Augment, uniforms

__all__ = ["Jigsaw", "cut", "permutations"]

SMALLEST = 8  # pixels of a piece's side


@lru_cache(maxsize=8)
def permutations(pieces: int, count: int) -> tuple[tuple[int, ...], ...]:
    """``count`` orders of ``pieces`` pieces that differ in as many places as a greedy choice can reach.

    The first is the identity; each next one is the order whose smallest Hamming distance to those chosen is
    largest, the first in lexical order where several are (Noroozi and Favaro, 2016, Algorithm 1, with the
    smallest distance in place of the mean one).

    Raises:
        RecipeError: fewer than 2 orders, or more than there are.
    """
    every = np.array(list(itertools.permutations(range(pieces))), dtype=np.int8)
    if not 2 <= count <= len(every):
        raise RecipeError(
            f"{count} orders of {pieces} pieces", expected=f"2 to {len(every)}", do="choose another number of orders"
        )
    chosen = [0]
    nearest = (every != every[0]).sum(1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, (every != every[chosen[-1]]).sum(1))
    return tuple(tuple(int(piece) for piece in every[index]) for index in chosen)


def cut(images: Tensor, grid: int, side: int, offsets: Tensor) -> Tensor:
    """A piece of ``side`` pixels out of every cell of a ``grid`` x ``grid`` raster, row by row.

    Args:
        images: ``(B, C, S, S)``; cells are ``S // grid`` pixels wide, and what is left over is left out evenly.
        grid: cells a side.
        side: of a piece.
        offsets: ``(B, grid², 2)`` integers: how far down and across each piece begins in its cell.

    Returns:
        ``(B, grid², C, side, side)``.
    """
    size = images.shape[-1]
    cell = size // grid
    corner = (size - grid * cell) // 2 + cell * torch.arange(grid)
    down, across = corner.repeat_interleave(grid) + offsets[..., 0], corner.repeat(grid) + offsets[..., 1]
    reach = torch.arange(side)
    batch = torch.arange(len(images))[:, None, None, None, None]
    channel = torch.arange(images.shape[1])[None, None, :, None, None]
    rows = (down[..., None] + reach)[:, :, None, :, None]
    return images[batch, channel, rows, (across[..., None] + reach)[:, :, None, None, :]]


@dataclass(frozen=True)
class Jigsaw(Pretext):
    """Pieces of a picture in one of some known orders: ``−log softmax(g(f(piece_1), …, f(piece_n)))_order``.

    The backbone sees each piece alone; its outputs are a code of the piece, and a small perceptron g on all codes
    names the order. A piece is smaller than its cell and lies anywhere in it, so that edges that go on give nothing
    away, and has mean 0 and deviation 1 of its own over all channels, so that neither do light and contrast.

    Attributes:
        grid: cells a side.
        orders: how many orders there are to tell apart.
        width: of a piece's code.
        hidden: of the perceptron.

    Paper: Noroozi and Favaro, Unsupervised learning of visual representations by solving jigsaw puzzles (ECCV 2016).

    Raises:
        RecipeError: a grid of other than 2 or 3 cells a side, or more orders than there are.
    """

    grid: int = 2
    orders: int = 24
    width: int = 64
    hidden: int = 256

    name: ClassVar[str] = "jigsaw"
    terms: ClassVar[tuple[str, ...]] = ("cross-entropy", "accuracy")
    measure: ClassVar[str] = "accuracy"
    citation: ClassVar[str] = (
        "Noroozi and Favaro, Unsupervised Learning of Visual Representations by Solving Jigsaw Puzzles, ECCV 2016"
    )
    calibrated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.grid not in (2, 3):
            raise RecipeError(f"a jigsaw of {self.grid} x {self.grid} pieces", expected="2 x 2 or 3 x 3")
        permutations(self.grid**2, self.orders)

    @staticmethod
    def of(size: int) -> Jigsaw:
        """3 x 3 pieces in 64 orders from 48 pixels on, else 2 x 2 in all their 24 orders."""
        return Jigsaw(3, 64) if size >= 48 else Jigsaw()

    @property
    def classes(self) -> tuple[str, ...]:
        """None: the outputs are a code."""
        return ()

    @property
    def chance(self) -> float | None:
        """One of the orders."""
        return 1 / self.orders

    def side(self, size: int) -> int:
        """Pixels of a piece's side: four fifths of its cell's."""
        cell = size // self.grid
        return cell - max(1, cell // 5)

    def least(self) -> int:
        """Pieces have at least 8 pixels a side."""
        return next(size for size in itertools.count(1) if self.side(size) >= SMALLEST)

    def views(self, images: Tensor, rows: np.ndarray, epoch: int, seed: int) -> Mapping[str, Tensor]:
        """``pieces`` ``(B, grid², C, side, side)`` as they lie, and ``order`` ``(B,)``."""
        cells, side = self.grid**2, self.side(images.shape[-1])
        play = images.shape[-1] // self.grid - side
        draws = torch.from_numpy(uniforms(rows, epoch, seed, 1 + 2 * cells))
        order = (draws[:, 0] * self.orders).long()
        pieces = cut(images, self.grid, side, (draws[:, 1:] * (play + 1)).long().view(-1, cells, 2))
        lying = torch.tensor(permutations(cells, self.orders))[order]
        pieces = pieces[torch.arange(len(pieces))[:, None], lying]
        deviation, mean = torch.std_mean(pieces, (2, 3, 4), correction=0, keepdim=True)
        return {"pieces": (pieces - mean) / deviation.clamp_min(0.05), "order": order}

    def augment(self, size: int) -> Augment:
        """None: the black that a shift brings in would show which pieces lie at an edge, and places in the cells are
        drawn anyway."""
        return Augment()

    def module(self, backbone: nn.Module, head: str, size: int) -> nn.Module:
        """See the class."""
        return _Puzzle(backbone, self)


class _Puzzle(nn.Module):
    def __init__(self, backbone: nn.Module, jigsaw: Jigsaw) -> None:
        super().__init__()
        self.backbone = backbone
        self.solver = nn.Sequential(
            nn.ReLU(),
            nn.Linear(jigsaw.grid**2 * jigsaw.width, jigsaw.hidden),
            nn.ReLU(),
            nn.Linear(jigsaw.hidden, jigsaw.orders),
        )

    def forward(self, views: Mapping[str, Tensor]) -> Tensor:
        pieces, order = views["pieces"], views["order"]
        codes = self.backbone(pieces.flatten(0, 1))
        outputs = self.solver(codes.reshape(len(pieces), -1)).float()
        losses = functional.cross_entropy(outputs, order, reduction="none")
        return torch.stack([losses, (outputs.argmax(1) == order).float()], 1)
