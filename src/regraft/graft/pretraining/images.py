"""The pictures that a backbone is pretrained on: which rows, decoded once."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from regraft.data import Manifest, Target, scan
from regraft.data.split import holdout
from regraft.errors import DataError
from regraft.graft.alike import together
from regraft.graft.loop.rows import ImageRows
from regraft.graft.stages.augment import Augment
from regraft.network.preprocess import ImagePreprocess

__all__ = ["decode", "pictures"]

HELD_OUT = 0.1  # of the training rows, where the data names neither validation nor test rows


def pictures(data: Any, labelled: bool, seed: int, skip_bad: bool = False) -> Manifest:
    """The rows to train and to judge on; a tenth of the training rows is held out where all are training rows.

    Copies of an image are held out together: what was trained on judges nothing.

    Raises:
        DataError: the data are no images, none is one to train on or can be held out, or ``labelled`` and they have
            not one class each.
    """
    manifest = scan(data, labelled=labelled, skip_bad=skip_bad)
    manifest = _labelled(manifest) if labelled else manifest
    if manifest.inputs.modality != "image":
        raise DataError(f"{manifest.name} cannot be trained on", expected="images", got=manifest.inputs.modality)
    if "train" not in manifest.split:
        got = f"the parts {', '.join(sorted(set(manifest.split)))}"
        raise DataError(f"{manifest.name} has nothing to train on", expected="a train part", got=got)
    if set(manifest.split) != {"train"}:
        return manifest
    strata = manifest.target if labelled and manifest.target is not None else _alike(len(manifest))
    groups = together(None, manifest).groups
    alone = groups is not None and len(set(groups)) == 1
    if alone or not (held := holdout(strata, groups, HELD_OUT, seed)).any():
        raise DataError(
            f"no image of {manifest.name} can be held out to judge by",
            expected="classes of more than one image, copies counted once", do="add images, or name a test part",
        )  # fmt: skip
    return dataclasses.replace(manifest, split=tuple("validation" if out else "train" for out in held))


def _labelled(manifest: Manifest) -> Manifest:
    target = manifest.target
    if target is None:
        raise DataError(
            f"{manifest.name} has no labels", expected="images with one class each",
            do="label them, or pretrain by rotation, jigsaw, vae or bigan, which need none",
        )  # fmt: skip
    if manifest.inputs.modality != "image" or target.masks is not None:
        raise DataError(
            f"{manifest.name} cannot be trained on", expected="images with one class each",
            got=manifest.inputs.modality if target.masks is None else "dense labels",
        )  # fmt: skip
    if target.kind not in ("binary", "multiclass"):
        raise DataError(
            f"{manifest.name} cannot be trained on", expected="one class a row", got=f"{target.kind} labels",
            do="name a label column that holds classes",
        )  # fmt: skip
    return manifest if target.present.all() else manifest.take(np.flatnonzero(target.present))


def _alike(rows: int) -> Target:
    """Labels that say nothing, to hold out rows that have none."""
    return Target("multiclass", ("",), np.zeros(rows, dtype=np.int64))


def decode(
    manifest: Manifest, size: int, augment: Augment, labelled: bool
) -> tuple[ImagePreprocess, dict[str, ImageRows]]:
    """Every image once, as 8-bit pixels; means and deviations of the training rows, to 4 decimals."""
    resize = ImagePreprocess(resize=(size, size), crop=None, mean=(), std=(), scale=1.0)
    pixels = torch.empty(len(manifest), 3, size, size, dtype=torch.uint8)
    for row in range(len(manifest)):
        pixels[row] = resize(cast(Image.Image, manifest.inputs.read(row))).to(torch.uint8)
    mean, std = _moments(pixels[torch.from_numpy(manifest.rows_of("train"))])
    target = manifest.target if labelled else None
    labels = torch.from_numpy(np.asarray(_alike(len(manifest)).values if target is None else target.values))
    parts = {}
    for part in ("train", "validation", "test"):
        rows = torch.from_numpy(manifest.rows_of(part))
        if len(rows):
            parts[part] = ImageRows(pixels[rows], labels[rows], mean, std, augment)
    return dataclasses.replace(resize, mean=mean, std=std, scale=1 / 255), parts


def _moments(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and deviations of the channels over 255, by how often each of the 256 values comes: as floating-point
    numbers the pixels would take eight times their bytes."""
    levels = torch.arange(256, dtype=torch.float64) / 255.0
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)]).double()
    shares = counts / counts.sum(1, keepdim=True)
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
    return tuple(round(v, 4) for v in mean.tolist()), tuple(max(round(v, 4), 1e-3) for v in std.tolist())
