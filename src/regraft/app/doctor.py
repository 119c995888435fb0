"""What is installed, what each extra gives, which device there is, and what is broken."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from regraft.record import counted
from regraft.wording import first_line

__all__ = ["examine"]

_EXTRAS = (
    ("transformers", "hub", "backbones saved by save_pretrained, and the Hugging Face hub"),
    ("rdkit", "graph", "molecules, read from SMILES"),
    ("timm", "timm", "timm/… backbones"),
    ("torchvision", "timm", "torchvision/… backbones"),
    ("datasets", "data", "Hugging Face data sets by id"),
)


def examine() -> list[dict[str, Any]]:
    """Every check as ``{"name", "state": "ok" | "absent" | "broken", "detail", "do"}``."""
    found = [_line("python", "ok", platform.python_version()), _line("regraft", "ok", version("regraft"))]
    found.append(_torch())
    found += [_extra(*extra) for extra in _EXTRAS]
    found += [_device(), _cache(), _bundled()]
    return found


def _line(name: str, state: str, detail: str, do: str = "") -> dict[str, Any]:
    return {"name": name, "state": state, "detail": detail, "do": do}


def _torch() -> dict[str, Any]:
    import torch

    return _line("torch", "ok", f"{torch.__version__}, {counted(torch.get_num_threads(), 'thread')}")


def _extra(package: str, extra: str, gives: str) -> dict[str, Any]:
    try:
        installed = version(package)
    except PackageNotFoundError:
        return _line(package, "absent", f"gives {gives}", f"pip install 'regraft[{extra}]'")
    try:
        importlib.import_module(package)
    except Exception as error:  # a broken wheel can raise anything: that is what this verb is for
        return _line(
            package, "broken", f"{installed} is installed and does not load: {first_line(error, 120)}",
            f"install the {package} build that matches your torch",
        )  # fmt: skip
    return _line(package, "ok", f"{installed}: {gives}")


def _device() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return _line("device", "ok", f"cuda: {torch.cuda.get_device_name(0)}")
    if torch.backends.mps.is_available():
        return _line("device", "ok", "mps")
    return _line("device", "ok", f"cpu, {counted(os.cpu_count() or 1, 'core')}")


def _cache() -> dict[str, Any]:
    from regraft.features import cache_root

    root = cache_root()
    there = root
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free / 1e9
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return _line("cache", "broken", f"{root}: {error.strerror}", "set REGRAFT_CACHE to a folder that you can write")
    return _line("cache", "ok", f"{root}, {free:.1f} GB free")


def _bundled() -> dict[str, Any]:
    from regraft.network.loaders import bundled

    names = ", ".join(bundled.names())
    return _line(
        "bundled", "ok" if names else "broken", names or "no bundled backbone", "" if names else "reinstall regraft"
    )
