"""A folder with a network's tensors and the name that its architecture goes by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from regraft.errors import ArtifactError, ModelError
from regraft.files import read_json, write_bytes, write_json
from regraft.network.network import Network

__all__ = ["FORMAT", "is_folder", "read", "save"]

FORMAT = "regraft-weights"
_LIBRARIES = ("timm/", "torchvision/")  # whose architectures are built by name, from installed code alone


def is_folder(path: Path, form: str = FORMAT) -> bool:
    """Whether ``path`` is a folder of a format, by default of this one."""
    config = read_json(Path(path) / "config.json")
    return isinstance(config, dict) and config.get("format") == form


def save(network: Network, folder: Path) -> None:
    """Write every parameter and buffer, the architecture's name and the preprocessing; of own modules also what
    :func:`regraft.network.loaders.module.load` reads beside their weights."""
    tensors = {**network.params, **network.buffers}
    content = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    write_bytes(folder / "model.safetensors", safetensors.torch.save(content))
    about, preprocess = network.about, network.preprocess
    config: dict[str, Any] = {"format": FORMAT, "name": about.architecture or network.name, "source": about.source}
    if about.source == "module":  # whose name alone need not tell these
        config |= {"classes": list(about.classes), "licence": about.licence}
    if type(preprocess).__module__.startswith("regraft."):
        config["preprocess"] = preprocess.to_json()
    write_json(folder / "config.json", config)


def read(folder: Path) -> tuple[str, dict[str, Tensor], dict[str, Any] | None]:
    """The architecture's name, the tensors, and the preprocessing's JSON, which earlier versions did not write.

    Raises:
        ModelError: the architecture is code of the user's, which is only ever run on their word.
        ArtifactError: the tensors are not there, or torn.
    """
    config: dict[str, Any] = read_json(folder / "config.json") or {}
    name = str(config.get("name", ""))
    if not name.startswith(_LIBRARIES):  # the name itself decides: what else the file says, anyone can write
        raise ModelError(
            f"the architecture of {folder} is your own {name}, and loading runs no code",
            do=f"name it yourself: --model {name} --weights {folder / 'model.safetensors'}",
        )
    file = folder / "model.safetensors"
    try:
        tensors = safetensors.torch.load(file.read_bytes())  # a mapped file that is written to would change them
    except (safetensors.SafetensorError, OSError) as error:
        raise ArtifactError(f"{file} cannot be read", got=str(error), do="copy the whole folder again") from error
    return name, tensors, config.get("preprocess")
