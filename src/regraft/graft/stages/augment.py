"""The augmentation of images in training, as a function of row, epoch and seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regraft.errors import RecipeError
from regraft.graft.stages.config import is_number, is_whole
from regraft.network import ImagePreprocess, Preprocess

__all__ = ["Augment", "check_shift", "not_augmented", "uniforms"]


def uniforms(rows: np.ndarray, epoch: int, seed: int, count: int) -> np.ndarray:
    """Uniform numbers in [0, 1), ``(len(rows), count)`` float64: a pure function of (row, epoch, seed).

    Counter-based: the splitmix64 finaliser (Steele et al., 2014) over the four numbers in turn, so a
    row's draws depend neither on its batch nor on what was drawn before.
    """
    state = _mix(np.full(1, seed % 2**64, dtype=np.uint64))
    state = _mix(state ^ np.uint64(epoch))
    each = _mix(state ^ rows.astype(np.uint64))
    bits = _mix(each[:, None] ^ np.arange(count, dtype=np.uint64)[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: np.ndarray) -> np.ndarray:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True)
class Augment:
    """Random shift by up to ``shift`` pixels each way (black comes in), resized crop, and horizontal flip.

    Attributes:
        shift: in pixels.
        flip: at odds of 1/2.
        crop: a window of a share of the image's area drawn uniformly from [crop, 1], of a proportion whose
            logarithm is uniform between 3/4 and 4/3, at a uniform place, resized back bilinearly (Szegedy et al.,
            CVPR 2015); 1 leaves it out.

    Raises:
        RecipeError: a crop outside (0, 1], a shift that is negative or no whole number.
    """

    shift: int = 0
    flip: bool = False
    crop: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.crop) and 0 < self.crop <= 1 and is_whole(self.shift, 0)):
            raise RecipeError(
                "the augmentation is out of range",
                expected="a crop above 0, at most 1, and a shift of 0 or more whole pixels",
                got=f"crop={self.crop!r}, shift={self.shift!r}",
            )

    @staticmethod
    def parse(text: str) -> Augment:
        """``flip,shift=4,crop=0.5``: any of the three, in any order.

        Raises:
            RecipeError: it says something else.
        """
        found: dict[str, bool | int | float] = {}
        for word in text.split(","):
            name, _, value = word.strip().partition("=")
            try:
                if word.strip() != "flip" and name not in ("shift", "crop"):
                    raise ValueError(word)
                found[name] = True if name == "flip" else int(value) if name == "shift" else float(value)
            except ValueError as error:
                raise RecipeError(
                    f"the augmentation {text!r} cannot be read", expected="such as flip,shift=4,crop=0.5", got=word
                ) from error
        return Augment(**found)  # type: ignore[arg-type]

    def __call__(self, pixels: Tensor, rows: Tensor, epoch: int, seed: int) -> Tensor:
        """``(B, C, H, W)`` to the same shape; row b's change depends on ``(rows[b], epoch, seed)`` alone."""
        return self._changed(pixels, rows, epoch, seed, "bilinear", 0)

    def masks(self, masks: Tensor, rows: Tensor, epoch: int, seed: int) -> Tensor:
        """Masks ``(B, H, W)`` of the same images, changed as these are: by the nearest pixel, -1 where black
        comes in."""
        return self._changed(masks[:, None], rows, epoch, seed, "nearest", -1)[:, 0]

    def _changed(
        self, pixels: Tensor, rows: Tensor, epoch: int, seed: int, mode: Literal["bilinear", "nearest"], empty: int
    ) -> Tensor:
        if not self.shift and not self.flip and self.crop == 1:
            return pixels
        draws = torch.from_numpy(uniforms(rows.numpy(), epoch, seed, 7))
        if self.crop < 1:
            pixels = _resized_crop(pixels, draws[:, 3:], self.crop, mode)
        height, width = pixels.shape[-2:]
        offsets = (draws[:, :2] * (2 * self.shift + 1)).long()
        down = offsets[:, :1] + torch.arange(height)
        across = torch.arange(width).expand(len(rows), width)
        if self.flip:
            across = torch.where(draws[:, 2:3] < 0.5, across.flip(1), across)
        across = across + offsets[:, 1:2]
        padded = functional.pad(pixels, (self.shift,) * 4, value=empty)
        batch = torch.arange(len(rows))[:, None, None, None]
        channel = torch.arange(pixels.shape[1])[None, :, None, None]
        return padded[batch, channel, down[:, None, :, None], across[:, None, None, :]]


def _resized_crop(pixels: Tensor, draws: Tensor, least: float, mode: str) -> Tensor:
    """Windows by four uniform numbers a row (area, proportion, down, across), resized back; whole numbers stay so."""
    area = least + (1 - least) * draws[:, 0]
    widest = (-area.log()).clamp(max=math.log(4 / 3))  # so that the window keeps its area inside the image
    proportion = torch.exp((2 * draws[:, 1] - 1) * widest)
    width, height = (area * proportion).sqrt(), (area / proportion).sqrt()
    zero = torch.zeros_like(area)
    across = (2 * draws[:, 3] - 1) * (1 - width)
    down = (2 * draws[:, 2] - 1) * (1 - height)
    theta = torch.stack([torch.stack([width, zero, across], 1), torch.stack([zero, height, down], 1)], 1).float()
    grid = functional.affine_grid(theta, list(pixels.shape), align_corners=False)
    out = functional.grid_sample(pixels.float(), grid, mode=mode, padding_mode="border", align_corners=False)
    return out if pixels.dtype.is_floating_point else out.round_().to(pixels.dtype)


def check_shift(augment: Augment, height: int, width: int) -> None:
    """Refuse shifts that can leave nothing of an image.

    Raises:
        RecipeError: they are as long as a side.
    """
    if augment.shift >= min(height, width):
        raise RecipeError(
            f"images of {height} x {width} pixels would be shifted out of sight",
            expected=f"a shift below {min(height, width)}",
            got=f"shift={augment.shift}",
            do="name fewer pixels with --augment",
        )


def not_augmented(preprocess: Preprocess) -> str:
    """Why what a preprocessing reads cannot be augmented; empty where it can: pixels are changed, then made numbers."""
    if preprocess.modality != "image":
        return f"{preprocess.modality} inputs"
    if isinstance(preprocess, ImagePreprocess) and preprocess.by_pixels:
        return ""
    return f"{type(preprocess).__name__}, which makes numbers of images its own way"
