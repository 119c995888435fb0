"""A few images with their masks and predicted masks, as pictures for the report."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from regraft.data import Manifest
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.prediction import palette

__all__ = ["overlays"]

_SHOWN = 3
_SIDE = 240
_SHARE = 0.55  # of the mask's colour in a pixel


def overlays(adapted: Adapted, rows: Manifest) -> list[dict[str, Any]]:
    """Three evenly spaced images, each as it is, under its mask and under the predicted mask, as JPEG data URIs.

    Args:
        adapted: the model whose masks are shown.
        rows: images with masks.

    Returns:
        ``id``, ``image``, ``truth``, ``predicted`` and the ``classes`` that occur, each with its ``name`` and
        ``colour``.
    """
    if rows.target is None or rows.target.masks is None:
        return []
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(_SHOWN, len(rows))).round().astype(int))
    shown = rows.take(chosen)
    colours = palette(len(adapted.classes))
    found = []
    for i, said in enumerate(adapted.predict_proba(shown, workers=0).masks):
        picture, truth = shown.inputs.read(i), shown.labels.mask(i)
        pixels = np.asarray(picture, dtype=np.float64)
        there = np.union1d(np.unique(truth[truth >= 0]), np.unique(said))
        found.append(
            {
                "id": shown.ids[i],
                "image": _uri(pixels),
                "truth": _uri(_laid_over(pixels, truth, colours)),
                "predicted": _uri(_laid_over(pixels, said, colours)),
                "classes": [
                    {"name": adapted.classes[c], "colour": "#{:02x}{:02x}{:02x}".format(*colours[c])} for c in there
                ],
            }
        )
    return found


def _laid_over(pixels: np.ndarray, mask: np.ndarray, colours: list[tuple[int, int, int]]) -> np.ndarray:
    """The classes' colours over an image; pixels without a label stay as they are."""
    there = (mask >= 0)[..., None]
    colour = np.array(colours, dtype=np.float64)[np.maximum(mask, 0)]
    return np.where(there, (1 - _SHARE) * pixels + _SHARE * colour, pixels)


def _uri(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
    image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
