"""From a network to a folder that :func:`regraft.network.load` reads without any hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

from regraft.errors import ModelError, RegraftError
from regraft.network.load import load
from regraft.network.loaders import bundled, transformers, weights
from regraft.network.network import Network

__all__ = ["save"]

_BY_NAME = ("regraft", "timm", "torchvision", "transformers")  # what a folder is loaded as without code of the user's


def save(network: Network, folder: str | Path) -> tuple[Path, ...]:
    """Write a copy of ``network`` into ``folder``, in the form of the library that it came from.

    Networks of transformers are written by ``save_pretrained``, with their processor or tokeniser; those
    of ``regraft pretrain`` in its own form; all others as tensors beside the name of their architecture
    (timm and torchvision must then be installed where it is loaded). The copy is loaded once before it is put there.

    Returns:
        the files written, in order of their names.

    Raises:
        StoreError: the folder cannot be written.
        ModelError: the network's processor can no longer be read; what would be loaded is another network, as of one
            with another last layer. Nothing is written then.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=folder) as name:
        made = Path(name)
        if network.about.source == "transformers":
            transformers.save(network, made)
        elif network.about.source == "regraft":
            bundled.save(network, made)
        else:
            weights.save(network, made)
        if network.about.source in _BY_NAME:
            _check(network, made)
        written = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
        for path in written:
            (folder / path).parent.mkdir(exist_ok=True)
            (made / path).replace(folder / path)
        if Path(transformers.PREPROCESS) not in written:  # of a network that was saved there before
            (folder / transformers.PREPROCESS).unlink(missing_ok=True)
    return tuple(folder / path for path in written)


def _check(network: Network, folder: Path) -> None:
    """Refuse to leave a folder that gives another network, or none."""
    try:
        again = load(str(folder))
    except RegraftError as error:
        got = error.what.replace(str(folder), "the folder")
    else:
        if (again.fingerprint, again.about.classes) == (network.fingerprint, network.about.classes):
            return
        got = "the names of other classes" if again.fingerprint == network.fingerprint else "another network"
    raise ModelError(
        f"{network.name} cannot be saved as it is now",
        expected="a folder that gives the same network once it is loaded",
        got=got,
        do="save it as it was loaded, without another last layer and not folded; without its head from "
        "load(name, head=False)",
    )
