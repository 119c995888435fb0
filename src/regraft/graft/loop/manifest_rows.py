"""The rows of a manifest for training: decoded once, kept small, given out by the network's own preprocessing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import Manifest, Target
from regraft.errors import DataError
from regraft.features import each_decoded, gathered, in_order
from regraft.files import canonical_json, digest
from regraft.graft.stages.augment import Augment, not_augmented
from regraft.network import ImagePreprocess, Network, Preprocess
from regraft.network.fingerprint import reading

__all__ = ["ManifestRows"]

_CHUNK = 64


@dataclass(frozen=True, eq=False)
class ManifestRows:
    """Inputs and labels of some rows, ready to be trained on; parts share what was decoded.

    An image is decoded, resized and cropped once and kept as 8-bit pixels: ``3 H W`` bytes a row, such as 49 kB at
    128 x 128 pixels (0.5 GB for 10,000 rows). Texts are kept as tokens and arrays as they are. What is given out
    equals what the sweep and a prediction compute, bit for bit, and an augmentation is a function of (row, epoch,
    seed), the row counted in the whole manifest.

    Attributes:
        preprocess: of the network.
        held: the decoded rows of the whole manifest: uint8 ``(M, C, H, W)``, or a list of preprocessed rows.
        index: which of them are these rows, ``(N,)``.
        labels: ``(N,)`` codes or ``(N, C)`` values, NaN where there is none; of segmentation int16 masks ``(N, H, W)``
            of the size that the network reads, by the nearest pixel, -1 where there is none.
        hashes: of the contents of the whole manifest's rows.
        augment: of images, in training alone.
        kept: what frozen layers make of the whole manifest's rows, by what decides it; ``None`` where nothing can be.
    """

    preprocess: Preprocess
    held: Tensor | list[Any]
    index: Tensor
    labels: Tensor
    hashes: tuple[str, ...]
    augment: Augment = field(default_factory=Augment)
    kept: dict[str, list[Tensor] | None] = field(default_factory=dict)

    @staticmethod
    def of(
        network: Network, manifest: Manifest, augment: Augment | None = None, workers: int | None = None
    ) -> ManifestRows:
        """Decode a manifest's rows.

        Raises:
            DataError: a row cannot be decoded or has changed since the manifest was read, rows of other shapes than the
                first, no labels, or an augmentation of what is no image.
        """
        target = manifest.labels
        preprocess = network.preprocess
        if augment is not None and augment != Augment() and (why := not_augmented(preprocess)):
            raise DataError("only images can be augmented", got=why, do="leave it out")
        held: Tensor | list[Any]
        if isinstance(preprocess, ImagePreprocess) and preprocess.by_pixels:
            held = _pixels(preprocess, manifest, workers)
        else:
            held = each_decoded(preprocess, manifest.inputs, manifest.hashes)
        return ManifestRows(
            preprocess, held, torch.arange(len(manifest)), _labels(target, held), manifest.hashes, augment or Augment()
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def key(self) -> str:
        """Everything that decides the rows' values: contents, preprocessing, labels, augmentation, places."""
        place = self.index.tolist()
        view = [reading(self.preprocess), dataclasses.asdict(self.augment), [self.hashes[i] for i in place], place]
        return digest(canonical_json(view), self.labels.numpy().tobytes())

    def take(self, rows: np.ndarray | Tensor) -> ManifestRows:
        """Some of these rows."""
        chosen = torch.as_tensor(rows, dtype=torch.long)
        return dataclasses.replace(self, index=self.index[chosen], labels=self.labels[chosen])

    def whole(self) -> ManifestRows:
        """All rows that were decoded, to be read."""
        return dataclasses.replace(self, index=torch.arange(len(self.held)))

    def plain(self) -> ManifestRows:
        """The same rows, not augmented."""
        return dataclasses.replace(self, augment=Augment())

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Any:
        """The network's batch of the rows ``index``; augmented only where an ``epoch`` is given."""
        rows = self.index[index]
        if not isinstance(self.held, Tensor) or not isinstance(self.preprocess, ImagePreprocess):
            return self.preprocess.collate([self.held[i] for i in rows.tolist()])
        pixels = self.held[rows]
        if epoch is not None:
            pixels = self.augment(pixels, rows, epoch, seed)
        return self.preprocess.values(pixels)

    def targets(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """Labels of the rows ``index``; masks are changed as their images are where an ``epoch`` is given."""
        labels = self.labels[index]
        if epoch is None or labels.ndim < 3:
            return labels
        return self.augment.masks(labels, self.index[index], epoch, seed)


def _pixels(preprocess: ImagePreprocess, manifest: Manifest, workers: int | None) -> Tensor:
    spans = in_order(len(manifest), _CHUNK)
    held: Tensor | None = None
    for rows, batch in zip(spans, gathered(preprocess.pixels(), manifest.inputs, spans, workers, manifest.hashes)):
        if held is None:
            held = torch.empty((len(manifest), *batch.shape[1:]), dtype=torch.uint8)
        if batch.shape[1:] != held.shape[1:]:
            raise DataError(
                "the images differ in shape after the preprocessing",
                expected=str(tuple(held.shape[1:])),
                got=str(tuple(batch.shape[1:])),
                do="use a backbone whose preprocessing crops to a fixed size",
            )
        held[rows.start : rows.stop] = batch.to(torch.uint8)
    return torch.empty(0, dtype=torch.uint8) if held is None else held


def _labels(target: Target, held: Tensor | list[Any]) -> Tensor:
    if target.kind == "segmentation" and len(held):
        size = held[0].shape[-2:]
        masks = torch.full((len(target), *size), -1, dtype=torch.int16)
        for row in range(len(target)):
            mask = target.mask(row)
            down, across = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for new, old in zip(size, mask.shape))
            masks[row] = torch.from_numpy(mask[down[:, None], across[None, :]].astype(np.int16))
        return masks
    values = torch.from_numpy(np.array(target.values))
    if target.kind in ("binary", "multiclass"):
        return values.long()
    return values.double() if target.kind == "regression" else values.float()  # numbers may lie far from zero
