"""Backbones that travel with the package, and folders that ``regraft pretrain`` saved: one format.

A folder holds ``model.safetensors`` (weights and buffers) and ``config.json``: the architecture's name and
options, the preprocessing, class names, licence, provenance and the weights' SHA-256. No code is read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from regraft.errors import ArtifactError, MissingPathError, ModelError
from regraft.files import file_digest, intact, sealed, write_bytes, write_json
from regraft.network.architectures import build
from regraft.network.loaders import weights
from regraft.network.molecule import MoleculePreprocess
from regraft.network.network import About, Network
from regraft.network.preprocess import ArrayPreprocess, ImagePreprocess, Preprocess
from regraft.wording import near, one_line

__all__ = ["FORMAT", "Stored", "config_of", "is_folder", "load", "load_folder", "names", "save", "save_folder"]

FORMAT = "regraft-backbone"
VERSION = 1
PREFIX = "regraft/"
Stored = Literal["float32", "float16"]


def names() -> tuple[str, ...]:
    """The bundled backbones, as they are asked for: ``regraft/…``."""
    root = resources.files("regraft").joinpath("bundled")
    if not root.is_dir():
        return ()
    found = [entry.name for entry in root.iterdir() if entry.joinpath("config.json").is_file()]
    return tuple(PREFIX + name for name in sorted(found))


def load(name: str) -> tuple[nn.Module, Preprocess, About]:
    """The bundled backbone ``name`` (``regraft/fashion-resnet``), in eval mode.

    Raises:
        ModelError: there is no such backbone.
        ArtifactError: its files were changed.
    """
    with _folder(name) as path:
        return load_folder(path)


@contextlib.contextmanager
def _folder(name: str) -> Iterator[Path]:
    if name not in names():
        raise ModelError(
            f"there is no bundled backbone {name!r}",
            expected="one of " + (", ".join(names()) or "none in this installation"),
            got=name,
            do=near(name, names()),
        )
    folder = resources.files("regraft").joinpath("bundled", name.removeprefix(PREFIX))
    with resources.as_file(folder) as path:
        yield path


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder of this format."""
    return weights.is_folder(path, FORMAT)


def load_folder(path: Path) -> tuple[nn.Module, Preprocess, About]:
    """The backbone saved in ``path``, float32 and in eval mode, verified against its own digest.

    Raises:
        MissingPathError: a file is not there.
        ArtifactError: the folder is of another format, torn or changed.
        ModelError: the architecture is unknown.
    """
    path = Path(path)
    config = config_of(path)
    file = path / "model.safetensors"
    if not file.is_file():
        raise MissingPathError(f"{file} is not there", do="copy the whole folder, or make it again")
    with _sound(path):
        expected = config["weights"]["sha256"]
        preprocess = _preprocess(config["preprocess"])
        classes = tuple(str(name) for name in config["classes"])
        arch, options = str(config["arch"]), dict(config["options"])
    if file_digest(file) != expected:
        raise ArtifactError(f"{file} was changed", expected=f"SHA-256 {expected[:12]}…", do="copy the folder again")
    module = _without_drawing(arch, options)
    with _sound(path):
        tensors = {name: value.float() if value.is_floating_point() else value
                   for name, value in safetensors.torch.load_file(file).items()}  # fmt: skip
        if headless := str(config.get("headless", "")):
            parent, _, leaf = headless.rpartition(".")
            setattr(module.get_submodule(parent), leaf, nn.Identity())
        module.load_state_dict(tensors)
    about = About(
        source="regraft",
        licence=str(config.get("licence", "")),
        classes=classes,
        revision=str(expected)[:12],
        parameters=sum(value.numel() for value in module.parameters()),
    )
    return module.eval(), preprocess, about


def save(network: Network, folder: Path) -> None:
    """Write ``network``, loaded by its name (``regraft/…`` or a folder), into another folder of this format."""
    name, module = network.name, network.module
    with contextlib.nullcontext(Path(name)) if is_folder(Path(name)) else _folder(name) as path:
        config = config_of(path)
    whole = _without_drawing(config["arch"], config["options"]).state_dict()
    left_out = {key.rpartition(".")[0] for key in whole.keys() - module.state_dict().keys()}
    save_folder(
        folder,
        module,
        arch=config["arch"],
        options=config["options"],
        preprocess=network.preprocess,
        classes=network.about.classes,
        licence=config.get("licence", ""),
        provenance=config.get("provenance"),
        headless=left_out.pop() if len(left_out) == 1 else "",
    )


def save_folder(
    path: Path,
    module: nn.Module,
    *,
    arch: str,
    options: Mapping[str, Any],
    preprocess: Preprocess,
    classes: Sequence[str],
    licence: str = "",
    provenance: Mapping[str, Any] | None = None,
    stored: Stored = "float32",
    headless: str = "",
) -> dict[str, Any]:
    """Save ``module`` = ``build(arch, options)`` so that :func:`load_folder` gives it back; the config. ``headless``
    is the path of the last layer, where the module is without it.

    With ``stored="float16"`` weights are rounded to half precision (about 3 digits) and half the size;
    they are float32 again once loaded. ``config.json`` is written last: a folder without it is not whole.
    """
    path = Path(path)
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in module.state_dict().items()}
    if stored == "float16":
        tensors = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    (path / "config.json").unlink(missing_ok=True)
    write_bytes(path / "model.safetensors", safetensors.torch.save(tensors))
    config = {
        "format": FORMAT,
        "version": VERSION,
        "arch": arch,
        "options": dict(options),
        "classes": list(classes),
        "preprocess": preprocess.to_json(),
        "licence": licence,
        "weights": {
            "sha256": file_digest(path / "model.safetensors"),
            "stored": stored,
            "parameters": sum(value.numel() for value in module.parameters()),
        },
        "provenance": dict(provenance or {}),
    } | ({"headless": headless} if headless else {})
    write_json(path / "config.json", sealed(config))
    return config


def config_of(path: Path) -> dict[str, Any]:
    """What ``config.json`` says of a backbone folder, verified against its own digest.

    Raises:
        MissingPathError: it is not there.
        ArtifactError: it is of another format, torn or changed.
    """
    file = path / "config.json"
    if not file.is_file():
        raise MissingPathError(f"{file} is not there", do="name a folder that `regraft pretrain` saved")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{file} is no JSON", got=str(error), do="copy the folder again") from error
    found = (config.get("format"), config.get("version")) if isinstance(config, dict) else ("", "")
    if found != (FORMAT, VERSION):
        raise ArtifactError(
            f"{path} is no backbone folder",
            expected=f"format {FORMAT}, version {VERSION}",
            got=f"format {found[0]}, version {found[1]}",
        )
    if not intact(config):
        raise ArtifactError(f"{file} was changed", do="copy the folder again, or make it again")
    return config


def _preprocess(value: Mapping[str, Any]) -> Preprocess:
    """Backbones of this format take images, arrays or molecules."""
    kinds: dict[str, type[ImagePreprocess] | type[ArrayPreprocess] | type[MoleculePreprocess]] = {
        "image": ImagePreprocess,
        "array": ArrayPreprocess,
        "molecule": MoleculePreprocess,
    }
    return kinds[value["kind"]].from_json(value)


@contextlib.contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Say what does not fit together in a folder in one sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise ArtifactError(
            f"{path} is no whole backbone folder", got=f"{type(error).__name__}: {one_line(error)}", do="copy it again"
        ) from error


def _without_drawing(arch: str, options: Mapping[str, Any]) -> nn.Module:
    """The architecture, leaving the caller's random state as it is."""
    with torch.random.fork_rng(devices=[]):
        return build(arch, options)
