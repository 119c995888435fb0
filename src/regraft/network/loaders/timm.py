"""Models of timm, with timm's own evaluation preprocessing."""

from __future__ import annotations

import math
from typing import Any

from regraft.errors import MissingDependencyError, ModelError
from regraft.network.network import About, Network
from regraft.network.preprocess import FILTERS, ImagePreprocess
from regraft.network.seeding import seeded
from regraft.wording import first_line, near, one_line

__all__ = ["load", "of_config"]


def _timm() -> Any:
    try:
        import timm
    except (ImportError, RuntimeError, AttributeError) as error:  # a torchvision that does not load: RuntimeError
        raise MissingDependencyError(
            "timm is not installed or does not load",
            got=first_line(error),
            do="pip install 'regraft[timm]' (timm needs a torchvision that matches torch; see `regraft doctor`)",
        ) from error
    return timm


def load(name: str, architecture: str, head: bool, seed: int | None) -> Network:
    """Load ``timm/NAME`` or ``timm/NAME.TAG``; ``head=False`` leaves timm's pooled features.

    Raises:
        ModelError: timm does not know the name, or its weights cannot be fetched.
        MissingDependencyError: timm is not installed or does not load.
    """
    timm = _timm()
    if not timm.is_model(architecture):
        raise ModelError(
            f"timm knows no model {architecture!r}",
            do=near(architecture, timm.list_models()) or "see timm.list_models()",
        )
    options: dict[str, Any] = {} if head else {"num_classes": 0}
    try:
        with seeded(0 if seed is None else seed):
            module = timm.create_model(architecture, pretrained=seed is None, **options)
    except Exception as error:
        raise ModelError(
            f"{name} cannot be loaded",
            got=f"{type(error).__name__}: {one_line(error)}",
            do="check the connection, or fetch the weights into the cache first",
        ) from error
    data = timm.data.resolve_model_data_config(module)
    config = getattr(module, "pretrained_cfg", {}) or {}
    about = About("timm", str(config.get("license") or ""), _classes(timm, module, config) if head else ())
    return Network(name, module, preprocess(data), about)


def of_config(published: dict[str, Any]) -> ImagePreprocess:
    """:func:`preprocess` of the ``pretrained_cfg`` of a network that was saved."""
    return preprocess(_timm().data.resolve_data_config(pretrained_cfg=published))


def preprocess(data: dict[str, Any]) -> ImagePreprocess:
    """timm's evaluation transform: the shorter side to floor(size / crop_pct), then a centre crop.

    ``crop_mode`` ``squash`` resizes both sides to that size instead of keeping the proportions.
    """
    channels, height, width = data["input_size"]
    share, mode = float(data.get("crop_pct") or 1.0), data.get("crop_mode") or "center"
    large = (math.floor(height / share), math.floor(width / share))
    if mode not in ("center", "squash") or (mode == "center" and height != width):
        raise ModelError(f"timm's crop mode {mode!r} for {height} x {width} is not supported")
    resize: int | tuple[int, int] = large if mode == "squash" else large[0]
    filter_ = FILTERS[data.get("interpolation") or "bilinear"]
    mean, std = tuple(map(float, data["mean"])), tuple(map(float, data["std"]))
    return ImagePreprocess(resize, (height, width), filter_, mean, std, channels=channels, rounding="even")


def _classes(timm: Any, module: Any, config: dict[str, Any]) -> tuple[str, ...]:
    if labels := config.get("label_names"):
        return tuple(map(str, labels))
    try:
        subset = timm.data.infer_imagenet_subset(module)
        names = timm.data.ImageNetInfo(subset) if subset else None
    except (AssertionError, AttributeError, TypeError, ValueError):
        names = None
    return tuple(names.index_to_description(i) for i in range(names.num_classes())) if names else ()
