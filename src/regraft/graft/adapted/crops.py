"""Predictions averaged over random crops of each image, as *Gradients as Features* scores its models."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from regraft.data import Manifest, checked, scan
from regraft.errors import DataError
from regraft.features import Progress, gathered, in_order
from regraft.graft.adapted.model import Adapted, answered, check_modality
from regraft.graft.adapted.prediction import Prediction
from regraft.graft.options import check_counts
from regraft.network import ImagePreprocess, Preprocess

__all__ = ["predict_over_crops"]

#: The shorter side before cropping, over the crop's: 256 to 224.
_MARGIN = 8 / 7


@dataclass(frozen=True)
class _Cropped(Preprocess):
    """One seeded random crop: its place is a function of (seed, crop, the image's numbers)."""

    whole: ImagePreprocess
    size: tuple[int, int]
    seed: int
    crop: int
    modality: ClassVar[Literal["image"]] = "image"

    def __call__(self, raw: Any) -> Tensor:
        pixels = self.whole(raw)
        mark = zlib.crc32(pixels.numpy().tobytes(), zlib.crc32(f"{self.seed} {self.crop}".encode()))
        generator = torch.Generator().manual_seed(mark)  # of 32 bits, for more of a seed is not read
        at = [
            int(torch.randint(max(0, have - want) + 1, (), generator=generator))
            for have, want in zip(pixels.shape[1:], self.size)
        ]
        return pixels[:, at[0] : at[0] + self.size[0], at[1] : at[1] + self.size[1]].contiguous()

    def to_json(self) -> dict[str, Any]:
        return {**self.whole.to_json(), "random_crop": [*self.size, self.seed, self.crop]}

    def example(self, rows: int) -> Tensor:
        return self.whole.example(rows)[..., : self.size[0], : self.size[1]]


def predict_over_crops(
    adapted: Adapted,
    inputs: Any,
    *,
    crops: int = 10,
    seed: int = 0,
    batch_size: int = 32,
    workers: int | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Prediction:
    """The mean of the probabilities (or values) over random crops of the size that the backbone reads.

    Each image is resized so that its shorter side is 8/7 of the crop's, or as much more as the preprocessing's own
    resize gives, and cut at random places (Mu, Liang & Li 2020, Table 4: ten crops). Costs as many passes as crops.
    Where the model knows the deviations s_k of targets about its values m_k, those of the crops' equal mixture are
    kept: s² = mean of s_k² + variance of m_k; of classes, whose s_k are of the function behind the probabilities,
    s² = mean of s_k².

    Args:
        adapted: a model that reads images.
        inputs: as :meth:`regraft.graft.Adapted.predict_proba` takes them.
        crops: of each image.
        seed: of the places; the same image, seed and crop give the same place.
        batch_size, workers: of each pass.
        skip_bad: leave inputs out that cannot be read or have no finite answer, instead of refusing all.
        progress: called with (crops of rows done, of all).

    Raises:
        DataError: the backbone reads no images, its answers are masks, fewer than one crop, or inputs that
            cannot be read or have no finite answer.
        RecipeError: counts that are none.
    """
    check_counts(batch_size=batch_size, workers=workers)
    plain = adapted.network.preprocess
    if not isinstance(plain, ImagePreprocess):
        if plain.modality == "image":
            raise DataError(f"{adapted.network.name} resizes images its own way, so that no crops of them can be taken")
        raise DataError(f"{adapted.network.name} reads no images, so there is nothing to crop")
    if adapted.kind == "segmentation":
        raise DataError("a mask is of the whole image", got="crops of it", do="predict without crops")
    if crops < 1:
        raise DataError("the crops of a prediction", expected="at least 1", got=str(crops))
    manifest = inputs if isinstance(inputs, Manifest) else scan(inputs, labelled=False)
    check_modality(adapted.network, manifest, chosen=True)
    manifest = checked(replace(manifest, target=None), skip_bad=skip_bad)
    size = plain.crop or plain.resize
    if size is None:
        raise DataError(f"the preprocessing of {adapted.network.name} fixes no size to crop to")
    wanted = (size, size) if isinstance(size, int) else size
    whole = replace(plain, crop=None, resize=_larger(plain, wanted))
    spans = in_order(len(manifest), batch_size)
    means = torch.zeros(len(manifest), len(adapted.classes), dtype=torch.float64)
    squares, variances = torch.zeros_like(means), torch.zeros_like(means)
    for crop in range(crops):
        one = _Cropped(whole, wanted, seed, crop)
        for rows, batch in zip(spans, gathered(one, manifest.inputs, spans, workers)):
            found, spread = adapted.predicted(batch)
            here = slice(rows.start, rows.stop)
            away = found - means[here]  # Welford's: of large values the difference of two squares would be rounding
            means[here] += away / (crop + 1)
            squares[here] += away * (found - means[here])
            if spread is not None:
                variances[here] += spread**2
            if progress:
                progress(crop * len(manifest) + rows.stop, crops * len(manifest))
    if adapted.kind == "regression":
        variances += squares  # of the mixture of the crops' own
    bars = None if adapted.posterior is None else (variances / crops).sqrt().numpy()
    said = Prediction(
        manifest.ids, means.numpy(), adapted.kind, adapted.classes, spread=bars, label_type=adapted.label_type
    )
    return answered(manifest, said, skip_bad)[1]


def _larger(plain: ImagePreprocess, wanted: tuple[int, int]) -> int | tuple[int, int]:
    """The size before cropping: the shorter side at least 8/7 of the crop's longer one; where a resize gives both
    sides, each at least 8/7 of the crop's."""
    if isinstance(plain.resize, tuple):
        height, width = plain.resize
        return max(height, round(wanted[0] * _MARGIN)), max(width, round(wanted[1] * _MARGIN))
    return max(plain.resize or 0, round(max(wanted) * _MARGIN))
