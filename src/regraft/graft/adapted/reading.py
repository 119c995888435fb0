"""An artifact's own files, verified: every file's checksum, and that of what names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from regraft.errors import ArtifactError
from regraft.files import file_digest, intact, read_json
from regraft.record.folder import CONFIG, check_config

__all__ = ["FORMAT", "TENSORS", "VERSION", "complete", "read_config", "read_tensors"]

FORMAT = "regraft-artifact"
VERSION = 9
# the first had no trained backbones, the second no gradient features, the third no error bars, the fourth plain
# indices, the fifth error bars of another form, the sixth none of sums of derivatives, the seventh those of the best
# scale and noise, and a scaling of every block, the eighth norms over what is kept of unscaled blocks too
READABLE = (1, 2, 3, 4, 5, 6, 7, 8, 9)
TENSORS = "model.safetensors"


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a run folder, after every file that it names has its checksum.

    Raises:
        MissingPathError: there is none.
        ArtifactError: it is of another format or version, or a file was changed, is gone or lies elsewhere.
    """
    path = folder / CONFIG
    check_config(folder)
    config = read_json(path)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ArtifactError(f"{path} is no regraft artifact", do="name a run folder of `regraft adapt`")
    if config.get("version") not in READABLE:
        raise ArtifactError(
            f"{path} has another format",
            expected=f"version {READABLE[0]} to {READABLE[-1]}",
            got=str(config.get("version")),
            do="use the regraft version that wrote it",
        )
    if config.get("digest") is None or not intact(config):
        raise ArtifactError(f"{path} was changed after it was written", do="run `regraft adapt` again")
    with complete(path):
        files = {TENSORS: config["files"][TENSORS], **config["files"]}
    for name, expected in files.items():
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise ArtifactError(f"{path} names a file outside its folder", got=name)
        if not (folder / name).is_file():
            raise ArtifactError(f"{folder / name} is gone", do="restore it, or run `regraft adapt` again")
        if file_digest(folder / name) != expected:
            raise ArtifactError(
                f"{folder / name} was changed after it was written",
                expected=f"SHA-256 {expected[:12]}…",
                do="restore it, or run `regraft adapt` again",
            )
    return config


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by name.

    Raises:
        ArtifactError: it is no safetensors file.
    """
    try:
        return load_tensors(path.read_bytes())
    except SafetensorError as error:
        raise ArtifactError(f"{path} is torn", got=str(error), do="run `regraft adapt` again") from error


@contextlib.contextmanager
def complete(path: Path) -> Iterator[None]:
    """Say of an artifact that lacks something what that is: whoever writes one can give it a right checksum."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} is not complete",
            got=f"{type(error).__name__}: {error}",
            do="use the regraft version that wrote it, or run `regraft adapt` again",
        ) from error
