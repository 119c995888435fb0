"""The networks, sources and data sets that rows name, and where the data pack keeps them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["DATA", "T6", "T12", "TRAINED", "VARIABLE", "WEIGHTS", "absence", "missing", "pack"]

VARIABLE = "REGRAFT_DATA"
_PLACES = (Path("data"), Path("../shared/data"))

WEIGHTS: dict[str, str] = {
    "V1a": "weights/mobilenet_v1_0.25_128",
    "V1b": "weights/mobilenet_v1_0.5_160",
    "V2": "weights/mobilenet_v2_1.0_224",
    "BIRD": "weights/mobilenet_v2_1.0_224_inat_bird",
    "R20": "weights/cifar10_resnet20",
    "R56": "weights/cifar10_resnet56",
    "GCN": "weights/gcn_chem_supervised",
}
"""Networks that come with the data pack."""

DATA: dict[str, str] = {
    "flowers5": "images/flowers5",
    "vww": "images/vww",
    "tiny_imagenet": "images/tiny_imagenet",
    "cifar10_jpeg75": "images/cifar10_jpeg75",
    "camvid": "images/camvid_240x180",
    "mnist": "images/mnist",
    "usps": "images/usps",
    "fashion_mnist": "images/fashion_mnist",
    "imagenet_sample200": "images/imagenet_sample200",
    "power-plant": "tabular/power-plant.parquet",
    "kin8nm": "tabular/kin8nm.parquet",
    "tox21": "molecules/tox21.parquet",
}
"""Data sets of the pack; what is drawn or computed (rendered sets, digits, sinusoids) needs no pack."""

T6: tuple[str, ...] = ("flowers5", "cifar10_jpeg75", "mnist", "usps")
T12: tuple[str, ...] = (
    "flowers5",
    "vww",
    "tiny_imagenet",
    "cifar10_jpeg75",
    "camvid",
    "mnist",
    "usps",
    "fashion_mnist",
)
"""The packs behind the six and the twelve tasks; the remaining tasks are drawn, or ship with scikit-learn."""

TRAINED: dict[str, tuple[str, ...]] = {
    "S4-rot": ("tiny_imagenet",),
    "S4-jig": ("tiny_imagenet",),
    **{f"{name} of F": ("fashion_mnist",) for name in ("S4-sup", "S4-vae", "S4-bigan")},
    **{f"{name} of M": ("mnist",) for name in ("S4-sup", "S4-vae", "S4-bigan")},
    **{f"{name} of C": ("cifar10_jpeg75",) for name in ("S4-sup", "S4-vae", "S4-bigan")},
    "LeNet": ("mnist", "fashion_mnist"),
    "MLP4": ("mnist",),
    "TViT": ("tiny_imagenet",),
}
"""Networks that the harness trains once per seed and keeps, and the data sets that they are trained on."""


def pack() -> Path:
    """The folder that :data:`VARIABLE` names; else the first of ``data`` and ``../shared/data`` that is there."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return next((place for place in _PLACES if place.is_dir()), _PLACES[0])


def missing(needs: Sequence[str], data: Path) -> tuple[str, ...]:
    """The parts of the data pack (paths below ``data``) that ``needs`` name and that are not there."""
    wanted: list[str] = []
    for need in needs:
        sets = TRAINED.get(need, (need,))
        wanted += [{**WEIGHTS, **DATA}[name] for name in sets]
    return tuple(path for path in dict.fromkeys(wanted) if not (data / path).exists())


def absence(paths: Sequence[str], data: Path) -> str:
    """What is said of parts of the data pack that are not there."""
    return f"data pack absent: {', '.join(paths)} not in {data}; name its folder with --data or {VARIABLE}"
