"""Feature maps for dense labels: which tap, at which size of the input, and its positions as rows.

A map ``(C, h, w)`` of each image is swept like any other block, flattened and not pooled; a head reads it position by
position, so that ``N`` images are ``N h w`` rows of C features.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from regraft.errors import ModelError
from regraft.features.plan import Block, Plan, Taps, plan
from regraft.network import ImagePreprocess, Network, Site

__all__ = ["POSITIONS", "STRIDE", "grid_of", "map_plan", "maps", "positions", "upsampled", "whole_images"]

#: Positions along the longer side of a map: those of DeepLabV3 at 257 pixels and a stride of 16, as in Ren et al. 2023.
POSITIONS = 17
#: The map that is read is the last one of at most this many pixels a position.
STRIDE = 16
_EVERY = 2**60  # a target size that no window is larger than one position for


def whole_images(network: Network, height: int, width: int) -> Network:
    """The network reading whole images, resized and not cropped: a mask has labels up to the edges.

    The longer side becomes ``POSITIONS`` times the stride of the late map, the shorter one the multiple of the stride
    that keeps the proportions best. All images are brought to this one size.

    Args:
        network: reads images by a convolutional path.
        height, width: of the images whose proportions are kept.

    Raises:
        ModelError: no images are read, there is no feature map, or the network does not run at this size.
    """
    preprocess = network.preprocess
    if not isinstance(preprocess, ImagePreprocess):
        raise ModelError(
            f"{network.name} resizes images its own way"
            if preprocess.modality == "image"
            else f"{network.name} reads {preprocess.modality} inputs",
            expected="images of any size",
            do="take another backbone for masks",
        )
    stride = _stride(network, _late(network))
    long = max(height, width)
    down, across = (max(1, round(POSITIONS * side / long)) * stride for side in (height, width))
    found = network.reading(replace(preprocess, resize=(down, across), crop=None))
    _late(found)  # refuses a network that does not run at this size
    return found


def map_plan(network: Network) -> Plan:
    """The late map as the one block of a plan, every position kept: ``C h w`` features."""
    site = _late(network)
    found = plan(network, [Taps((site.name,), (_EVERY,))])
    return Plan(tuple(block for block in found.blocks if block.site == site.name))


def _late(network: Network) -> Site:
    maps = [site for site in network.sites if site.layout == "map" and not site.same_as]
    if not maps:
        raise ModelError(
            f"{network.name} has no feature maps",
            expected="a convolutional network",
            do="choose one for masks, such as a ResNet or a MobileNet",
        )
    fine = [site for site in maps if _stride(network, site) <= STRIDE and min(site.shape[1:]) > 1]
    return fine[-1] if fine else maps[0]


def _stride(network: Network, site: Site) -> int:
    """Pixels of the input to a position, along the longer side."""
    sides = tuple(network.example(1).shape[-2:])
    axis = 0 if sides[0] >= sides[1] else 1
    return max(1, round(sides[axis] / site.shape[1 + axis]))


def grid_of(block: Block) -> tuple[int, int]:
    """(h, w) of a block of :func:`map_plan`."""
    height, width = block.pooling.windows
    return height, width


def positions(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """Flattened maps ``(B, C h w)`` as rows ``(B h w, C)``."""
    count = grid[0] * grid[1]
    rows = values.reshape(len(values), -1, count).transpose(1, 2)
    return rows.reshape(len(values) * count, -1)


def maps(rows: Tensor, grid: tuple[int, int]) -> Tensor:
    """Rows ``(B h w, C)`` as maps ``(B, C, h, w)``."""
    return rows.reshape(-1, *grid, rows.shape[1]).permute(0, 3, 1, 2)


def upsampled(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps ``(B, C, h, w)`` at another size, bilinearly between the centres of positions."""
    return functional.interpolate(logits, size=size, mode="bilinear", align_corners=False)
