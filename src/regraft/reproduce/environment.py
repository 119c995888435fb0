"""Where a number was measured: versions, platform, processors, threads."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

__all__ = ["environment"]

_PACKAGES = ("regraft", "torch", "numpy", "scipy", "scikit-learn", "transformers", "pillow", "pyarrow")


def environment() -> dict[str, Any]:
    """Plain JSON values; a package that is not installed has the version ``null``."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
