"""From a network to a folder that :func:`regraft.network.load` reads without any hub."""

from __future__ import annotations

from pathlib import Path

from regraft.network.loaders import bundled, transformers, weights
from regraft.network.network import Network

__all__ = ["save"]


def save(network: Network, folder: str | Path) -> tuple[Path, ...]:
    """Write a copy of ``network`` into ``folder``, in the form of the library that it came from.

    Networks of transformers are written by ``save_pretrained``, with their processor or tokeniser; those
    of ``regraft pretrain`` in its own form; all others as tensors beside the name of their architecture
    (timm and torchvision must then be installed where it is loaded).

    Returns:
        the files written, in order of their names.

    Raises:
        StoreError: the folder cannot be written.
        ModelError: the network's processor can no longer be read.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if network.about.source == "transformers":
        transformers.save(network, folder)
    elif network.about.source == "regraft":
        bundled.save(network.name, network.module, folder)
    else:
        weights.save(network, folder)
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
