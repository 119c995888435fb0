"""Models of torchvision, with the transforms that belong to their weights."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from regraft.errors import MissingDependencyError, ModelError
from regraft.network.network import About, Network
from regraft.network.preprocess import FILTERS, ImagePreprocess
from regraft.network.seeding import seeded
from regraft.wording import first_line, near, one_line

__all__ = ["load"]

_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def _models() -> Any:
    try:
        from torchvision import models
    except (ImportError, RuntimeError, AttributeError) as error:
        # Beside a torch of another build: "operator torchvision::nms does not exist", a RuntimeError.
        raise MissingDependencyError(
            "torchvision is not installed or does not load beside this torch",
            got=first_line(error),
            do="install torch and torchvision of matching versions and builds (see `regraft doctor`)",
        ) from error
    return models


def load(name: str, architecture: str, seed: int | None) -> Network:
    """Load ``torchvision/NAME`` with its default weights.

    Raises:
        ModelError: torchvision does not know the name, or its weights cannot be fetched.
        MissingDependencyError: torchvision is not installed or does not load.
    """
    models = _models()
    known = models.list_models(module=models)
    if architecture not in known:
        raise ModelError(f"torchvision knows no model {architecture!r}", do=near(architecture, known))
    weights = models.get_model_weights(architecture).DEFAULT
    try:
        with seeded(0 if seed is None else seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of changes to come in initial values that are replaced anyway
            if seed is None:
                with _tensors_alone():
                    module = models.get_model(architecture, weights=weights)
            else:
                module = models.get_model(architecture, weights=None, **_of_weights(architecture, weights))
    except Exception as error:
        raise ModelError(
            f"{name} cannot be loaded",
            got=f"{type(error).__name__}: {one_line(error)}",
            do="check the connection, or fetch the weights into torch's hub cache first",
        ) from error
    classes = tuple(map(str, weights.meta.get("categories", ())))
    return Network(name, module, preprocess(weights.transforms()), About("torchvision", "BSD-3-Clause", classes))


@contextlib.contextmanager
def _tensors_alone() -> Iterator[None]:
    """Inside, ``torch.load`` refuses what holds more than tensors, though the builders ask it not to, for a pickle may
    run code; and that a file is fetched is said on stderr."""
    before = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if before is None:
            del os.environ[_FORCED]
        else:
            os.environ[_FORCED] = before


def _of_weights(architecture: str, weights: Any) -> dict[str, Any]:
    """The settings that torchvision's builders take from the weights, and without them leave at other values."""
    if architecture == "googlenet":
        return {"transform_input": True, "aux_logits": False}
    if architecture == "inception_v3":
        return {"transform_input": True}
    return {"image_size": weights.meta["min_size"][0]} if architecture.startswith("vit_") else {}


def preprocess(transforms: Any) -> ImagePreprocess:
    """From torchvision's classification preset: resize the shorter side, centre crop, normalise."""
    try:
        (resize,), (crop,) = transforms.resize_size, transforms.crop_size
        mean, std = tuple(map(float, transforms.mean)), tuple(map(float, transforms.std))
        filter_ = FILTERS[transforms.interpolation.value]
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise ModelError("these torchvision transforms are no classification preset", got=repr(transforms)) from error
    return ImagePreprocess(int(resize), (int(crop), int(crop)), filter_, mean, std, rounding="even")
