"""From a raw input to the tensor that a network expects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, isfinite
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from regraft.errors import DataError, ModelError

__all__ = ["FILTERS", "IMAGENET_MEAN", "IMAGENET_STD", "ArrayPreprocess", "ImagePreprocess", "Modality", "Preprocess"]

Modality = Literal["image", "text", "array"]
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # PIL's numbers
_CUT_OFF = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Preprocess(ABC):
    """A pure, picklable function from raw inputs to a batch; it goes to worker processes alone.

    Rows of a *ragged* preprocessing have lengths of their own (texts): a batch is padded to its longest row and says
    in ``attention_mask`` ``(B, L)`` what is real, so that batches of rows of like lengths cost least.
    """

    modality: ClassVar[Modality]
    libraries: ClassVar[tuple[str, ...]] = ()  # distributions of which another version may give other numbers
    ragged: ClassVar[bool] = False
    ordered: ClassVar[bool] = True  # whether the places of a row's tokens mean anything (atoms have no order)
    strict: ClassVar[bool] = False  # raw inputs have a grammar of their own, and fault() says where one breaks it

    @abstractmethod
    def __call__(self, raw: Any) -> Any:
        """One raw input to one row: a tensor, or a dict of tensors."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that is needed to make it again with :func:`regraft.network.preprocess_from_json`."""

    @abstractmethod
    def example(self, rows: int) -> Any:
        """A batch of the right form with seeded random content."""

    @property
    def limit(self) -> str:
        """The most that a row may hold, in words; empty where nothing is cut off."""
        return ""

    def length(self, raw: Any) -> int:
        """How long a row of a ragged preprocessing becomes, in any unit; 0 where all are alike."""
        return 0

    def fault(self, raw: Any) -> str:
        """Why a strict preprocessing cannot read this input; empty where it can."""
        return ""

    def canonical(self, raw: Any) -> str | None:
        """The one way of writing an input that can be written in several; ``None`` where it cannot."""
        return None

    def shortened(self, raws: Sequence[Any]) -> list[int]:
        """Which of the raw inputs are longer than what the network reads of a row: it does not see their ends."""
        return []

    def identity(self) -> dict[str, Any]:
        """What its numbers depend on: :meth:`to_json` without where it was found."""
        return self.to_json()

    def collate(self, items: Sequence[Any]) -> Any:
        """Rows to a batch: stacked along a new first axis, dicts of tensors name by name.

        Raises:
            DataError: the rows differ in shape.
        """
        if isinstance(items[0], Mapping):
            return {name: self.collate([item[name] for item in items]) for name in items[0]}
        shapes = {tuple(item.shape) for item in items}
        if len(shapes) > 1:
            raise DataError(
                "the rows of a batch differ in shape",
                expected="one shape",
                got=" and ".join(map(str, sorted(shapes))),
                do="resize the inputs to one size, or give the preprocessing a fixed size",
            )
        return torch.stack(list(items))


@dataclass(frozen=True)
class ImagePreprocess(Preprocess):
    """Resize, centre crop, scale and normalise a PIL image: (scale · x − mean) / std.

    Resizing is PIL's, on 8-bit pixels. Scaling rounds to float32 from float64, then normalising runs in
    float32, so that the pixels equal those of the PIL processors of transformers. As there are only 256
    pixel values, both are one table per channel.

    Attributes:
        resize: length of the shorter side (the longer one is cut to an integer), ``(height, width)``
            whatever the proportions, or ``None``.
        crop: ``(height, width)`` of the centre crop; what is missing is filled with zeros. Or ``None``.
        resample: PIL's filter number (0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic).
        mean, std: per channel; empty leaves normalising out.
        scale: factor before normalising, 1/255 as a rule.
        channels: 3 (RGB) or 1 (grey).
        rounding: of half pixels in the crop's offset: ``down`` (transformers) or ``even`` (torchvision).

    Raises:
        ModelError: sides, a filter or channels that are none, or a mean and std that do not fit them.
    """

    modality: ClassVar[Modality] = "image"
    libraries: ClassVar[tuple[str, ...]] = ("pillow",)
    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    resample: int = 2
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    scale: float = 1 / 255
    channels: int = 3
    rounding: Literal["down", "even"] = "down"

    def __post_init__(self) -> None:
        _make_tuples(self, "resize", "crop", "mean", "std")
        if self.channels not in (1, 3) and type(self).__call__ is ImagePreprocess.__call__:
            raise ModelError("the preprocessing's channels", expected="3 (RGB) or 1 (grey)", got=str(self.channels))
        if self.resize is not None and not _is_side(self.resize) and not _is_size(self.resize):
            expected = "the shorter side, (height, width) or None"
            raise ModelError("the preprocessing's resize", expected=expected, got=repr(self.resize))
        if self.crop is not None and not _is_size(self.crop):
            raise ModelError("the preprocessing's crop", expected="(height, width) or None", got=repr(self.crop))
        if self.resample not in FILTERS.values():
            expected = ", ".join(f"{number} ({name})" for name, number in FILTERS.items())
            raise ModelError("the preprocessing's resample", expected=expected, got=repr(self.resample))
        _check_normal(self.mean, self.std, (self.channels,), "channels", f"{self.channels} numbers each")
        for name in ("resize", "crop"):  # plain numbers, as JSON gives them back
            value = getattr(self, name)
            plain = tuple(map(int, value)) if isinstance(value, Sequence) else None if value is None else int(value)
            object.__setattr__(self, name, plain)

    def __call__(self, raw: Image.Image) -> Tensor:
        """``(channels, H, W)`` float32 of one image of 8 bits a channel or fewer.

        Raises:
            DataError: an empty image, or one in a mode that Pillow cuts off at 255: 16-bit and 32-bit grey, floats.
        """
        if raw.mode in _CUT_OFF:
            raise DataError(
                f"pixels in mode {raw.mode} have no 8-bit form of their own",
                expected="an image of 8 bits a channel, such as in mode RGB or L",
                do="bring them to 0 to 255 first, from 16 bits by dividing by 257, as files of 16 bits are read",
            )
        mode = "RGB" if self.channels == 3 else "L"
        image = raw if raw.mode == mode else raw.convert(mode)
        if 0 in image.size:
            raise DataError("the image is empty", expected="at least 1 x 1 pixels", got=f"{image.size}")
        if self.resize is not None:
            height, width = self._size(image.height, image.width)
            image = image.resize((width, height), resample=Image.Resampling(self.resample))
        pixels = np.asarray(image)
        if self.crop is not None:
            pixels = _centre_crop(pixels, self.crop, self.rounding)
        pixels = pixels.reshape(*pixels.shape[:2], self.channels)
        return self._values(pixels.transpose(2, 0, 1))

    @property
    def by_pixels(self) -> bool:
        """Whether a call is :meth:`values` of :meth:`pixels`, as it need not be in a subclass."""
        ways = ("__call__", "pixels", "values")
        return all(getattr(type(self), way) is getattr(ImagePreprocess, way) for way in ways)

    def pixels(self) -> ImagePreprocess:
        """The same geometry alone: 8-bit pixels as float32, whose :meth:`values` are this preprocessing's numbers."""
        return replace(self, mean=(), std=(), scale=1.0)

    def values(self, pixels: Tensor) -> Tensor:
        """The numbers of 8-bit pixels ``(…, channels, H, W)``: scaled and normalised, float32."""
        return self._values(pixels.numpy())

    def _values(self, pixels: np.ndarray) -> Tensor:
        table = self._table()
        out = np.empty(pixels.shape, dtype=np.float32)
        for channel in range(self.channels):
            np.take(table[channel], pixels[..., channel, :, :], out=out[..., channel, :, :], mode="clip")
        return torch.from_numpy(out)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.resize, int):
            return self.resize  # type: ignore[return-value]
        if width <= height:
            return int(self.resize * height / width), self.resize
        return self.resize, int(self.resize * width / height)

    def _table(self) -> np.ndarray:
        """The value of every 8-bit pixel, ``(channels, 256)`` float32."""
        values = (np.arange(256).astype(np.float64) * self.scale).astype(np.float32)
        table = np.repeat(values[None], self.channels, 0)
        if self.mean:
            mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            table = (table - mean[:, None]) / std[:, None]
        return table

    def example(self, rows: int) -> Tensor:
        """``(rows, channels, H, W)`` of standard normal numbers; 224 pixels where no size is fixed."""
        size = self.crop or self.resize or 224
        height, width = (size, size) if isinstance(size, int) else size
        generator = torch.Generator().manual_seed(0)
        return torch.randn(rows, self.channels, height, width, generator=generator)

    def to_json(self) -> dict[str, Any]:
        """All fields, as plain JSON."""
        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        return {"kind": "image", **fields}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ImagePreprocess:
        """The inverse of :meth:`to_json`."""
        fields: dict[str, Any] = {}
        for name, entry in value.items():
            if name != "kind":
                fields[name] = tuple(entry) if isinstance(entry, list) else entry
        return cls(**fields)


def _make_tuples(preprocess: Preprocess, *names: str) -> None:
    """Arrays, tensors and lists among these fields as the tuples that they stand for."""
    for name in names:
        if isinstance(value := getattr(preprocess, name), np.ndarray | Tensor):
            object.__setattr__(preprocess, name, tuple(value.reshape(-1).tolist()))
        elif isinstance(value, list):
            object.__setattr__(preprocess, name, tuple(value))


def _is_side(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) > 0


def _is_size(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_is_side, value))


def _check_normal(mean: Sequence[float], std: Sequence[float], fit: Sequence[int], what: str, expected: str) -> None:
    """Refuse what a row cannot be normalised by: other lengths than those that fit, one alone, a std of zero.

    Raises:
        ModelError: it cannot.
    """
    if len(mean) != len(std) or len(mean) not in (0, *fit):
        got = f"{len(mean)} and {len(std)}"
        raise ModelError(f"the preprocessing's mean and std do not fit its {what}", expected=expected, got=got)
    if 0 in std:
        raise ModelError("the preprocessing's std holds a zero", expected="positive numbers")
    if not all(map(isfinite, (*mean, *std))) or any(value < 0 for value in std):
        got = f"{tuple(mean)} and {tuple(std)}"
        raise ModelError("the preprocessing's mean and std", expected="finite numbers, positive in std", got=got)


def _centre_crop(pixels: np.ndarray, size: tuple[int, int], rounding: str) -> np.ndarray:
    """Cut or fill each side to ``size``; fractions of a pixel by ``rounding``."""
    for axis in (0, 1):
        have, want = pixels.shape[axis], size[axis]
        if have < want:
            # transformers fills one pixel more before than after, torchvision the other way round
            before = ceil((want - have) / 2) if rounding == "down" else (want - have) // 2
            widths = [(0, 0)] * pixels.ndim
            widths[axis] = (before, want - have - before)
            pixels = np.pad(pixels, widths)
        elif have > want:
            start = (have - want) // 2 if rounding == "down" else round((have - want) / 2.0)
            pixels = pixels[start : start + want] if axis == 0 else pixels[:, start : start + want]
    return pixels


@dataclass(frozen=True)
class ArrayPreprocess(Preprocess):
    """Float arrays of one fixed shape, normalised if wanted: (x − mean) / std.

    Attributes:
        shape: of one row.
        mean, std: broadcast against a row from the last axis; empty leaves normalising out.
        categories: of columns, (d,): how many categories each has, whose codes 0, 1, … are not normalised, or 0 for
            numbers; empty where all are numbers.

    Raises:
        ModelError: a shape that is none; categories, or a mean and std, that do not fit it.
    """

    modality: ClassVar[Modality] = "array"
    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    categories: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _make_tuples(self, "shape", "mean", "std", "categories")
        if not isinstance(self.shape, tuple) or not all(map(_is_side, self.shape)):
            raise ModelError("the shape of a row", expected="whole numbers, such as (3,)", got=repr(self.shape))
        if self.categories and (self.shape != (len(self.categories),) or min(self.categories) < 0):
            raise ModelError(
                "the categories of columns",
                expected=f"a count for each of the columns of {self.shape}, 0 for numbers",
                got=str(self.categories),
            )
        fit, last = ((1, self.shape[-1]), self.shape[-1]) if self.shape else ((), 0)
        _check_normal(self.mean, self.std, fit, f"shape {self.shape}", f"1 number each, or {last}" if last else "none")

    def __call__(self, raw: Any) -> Tensor:
        """One row as float32 of ``shape``.

        Raises:
            DataError: another shape, or what is no code of a category.
        """
        row: Any = np.ascontiguousarray(raw, dtype=np.float32)
        if row.shape != self.shape:
            do = "leave out what is no input of the network, such as a column of row numbers"
            if row.size < np.prod(self.shape):
                do = "give all that the network reads"
            raise DataError("a row has the wrong shape", expected=str(self.shape), got=str(row.shape), do=do)
        plain, given = row, np.array(self.categories)
        if self.mean:
            row = (row - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        if self.categories:
            row = np.where(given > 0, plain, row).astype(np.float32)
            bad = (given > 0) & ~((row >= 0) & (row < given) & (row == np.floor(row)))
            if bad.any():
                column = int(bad.argmax())
                raise DataError(
                    f"column {column} of a row holds no code of a category",
                    expected=f"a whole number from 0 to {given[column] - 1}",
                    got=f"{row[column]:g}",
                    do="number the categories as the network learnt them",
                )
        return torch.from_numpy(row.copy() if row is raw else row)

    def example(self, rows: int) -> Tensor:
        """``(rows, *shape)`` of standard normal numbers, and of codes where there are categories."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(rows, *self.shape, generator=generator)
        for column, count in enumerate(self.categories):
            if count:
                drawn[:, column] = torch.randint(count, (rows,), generator=generator).to(drawn)
        return drawn

    def to_json(self) -> dict[str, Any]:
        """All fields, as plain JSON; categories where there are some."""
        fields = {"kind": "array", "shape": list(self.shape), "mean": list(self.mean), "std": list(self.std)}
        return {**fields, "categories": list(self.categories)} if self.categories else fields

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ArrayPreprocess:
        """The inverse of :meth:`to_json`."""
        shape, mean, std = (tuple(value[key]) for key in ("shape", "mean", "std"))
        return cls(shape, mean, std, tuple(value.get("categories", ())))
