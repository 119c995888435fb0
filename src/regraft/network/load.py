"""From what the user typed to a network."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.network.loaders import bundled, timm, torchvision, transformers, weights
from regraft.network.loaders import module as own
from regraft.network.loaders.text import TextPreprocess
from regraft.network.molecule import MoleculePreprocess
from regraft.network.network import About, Network
from regraft.network.preprocess import ArrayPreprocess, ImagePreprocess, Preprocess
from regraft.network.seeding import seeded
from regraft.wording import near

__all__ = ["check_weights", "load", "preprocess_from_json"]

_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_KINDS = "regraft/NAME, a local folder, org/name of the hub, timm/NAME, torchvision/NAME or package.module:callable"


def load(
    name: str,
    *,
    weights: str | None = None,
    revision: str | None = None,
    head: bool = True,
    random: int | None = None,
    allow_code: bool = True,
) -> Network:
    """Load a network by name, with its preprocessing, frozen and in eval mode, and run an example through it.

    Args:
        name: ``regraft/NAME`` (bundled), a local folder made by ``save_pretrained``, ``org/name`` of the
            Hugging Face hub, ``timm/NAME``, ``torchvision/NAME``, or ``package.module:callable``.
        weights: a safetensors file, for ``package.module:callable`` alone.
        revision: of the hub's repository.
        head: keep the classifier, where there is one; without it the network gives its embedding.
        random: a seed: random weights instead of the trained ones.
        allow_code: import and call ``package.module:callable``. Switch it off for a name that was read from a
            file instead of typed by the user.

    Raises:
        ModelError: the name is unknown (near names are given), nothing can be reached, the weights do not
            fit, the network gives no tensors, or the name is code where none is allowed.
        MissingDependencyError: the package that the name asks for is not installed or does not load.
    """
    if not isinstance(name, str | os.PathLike):
        raise ModelError(
            f"a model of type {type(name).__name__}",
            expected="a name, a folder or a regraft.network.Network",
            do="wrap a module of your own: regraft.network.from_module(module, preprocess)",
        )
    return _finished(str(name), _dispatch(os.fspath(name), weights, revision, head, random, allow_code), head)


def _finished(name: str, network: Network, head: bool) -> Network:
    """The network with its head or without, tried on an example."""
    if not head:
        network = network.without_head()
    _ = network.sites  # a network that does not run is found here, not after the rows were read
    if not head and network.has_logits:
        raise ModelError(
            f"{name} cannot be loaded without its head",
            got="logits that no single linear layer gives",
            do="load it whole, or as a module of your own that returns what its last layer is given",
        )
    return network


def _dispatch(
    name: str, file: str | None, revision: str | None, head: bool, seed: int | None, allow_code: bool
) -> Network:
    if file is not None and not _IMPORT.fullmatch(name):
        raise ModelError(
            "weights belong to package.module:callable", got=f"the model {name}", do="leave the weights out"
        )
    folder = Path(os.path.expanduser(name))
    if os.path.isfile(folder / "config.json"):  # a model of one's own, whatever its folder is called
        return _folder(os.path.expanduser(name), folder, head, seed)
    if (found := _of_library(name, head, seed)) is not None:
        return found
    if _IMPORT.fullmatch(name):
        if not allow_code:
            raise ModelError(
                f"{name} is code, and code is only ever run on your word", do=f"name it yourself: --model {name}"
            )
        return own.load(name, file, seed, preprocess_from_json)
    if name and os.path.exists(folder):  # of names that no file can have Path raises
        return _folder(os.path.expanduser(name), folder, head, seed)
    if name.startswith((".", "/", "~")) or not _HUB.fullmatch(name):
        raise _unknown(name)
    return transformers.load(name, revision, head, seed)


def _of_library(name: str, head: bool, seed: int | None) -> Network | None:
    """What an installed library gives by this name; ``None`` where it names no library."""
    kind, _, rest = name.partition("/")
    if kind == "timm" and rest:
        return timm.load(name, rest, head, seed)
    if kind == "torchvision" and rest:
        return torchvision.load(name, rest, seed)
    return _bundled(name, *bundled.load(name), seed) if kind == "regraft" and rest else None


def _folder(name: str, folder: Path, head: bool, seed: int | None) -> Network:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{name} is no model",
            expected="a folder with config.json and model.safetensors, as save_pretrained writes them",
            got="a file" if folder.is_file() else "a folder without config.json",
        )
    if weights.is_folder(folder):
        return _with_weights(name, *weights.read(folder), head, seed)
    if bundled.is_folder(folder):
        return _bundled(name, *bundled.load_folder(folder), seed)
    return transformers.load(str(folder), None, head, seed)


def _with_weights(
    name: str,
    architecture: str,
    tensors: Mapping[str, Tensor],
    preprocess: Mapping[str, Any] | None,
    head: bool,
    seed: int | None,
) -> Network:
    """The architecture with a folder's tensors, which say whether it was saved with its head; without it, if so asked,
    as its library builds it."""
    for kept in (True, False) if head else (False,):
        made = _of_library(architecture, kept, seed or 0)  # by no other folder, whatever lies here under that name
        if made is None:
            raise ModelError(f"the architecture of {name} is of no library", got=architecture)
        network = _finished(architecture, made, kept)
        saved = network.module.state_dict().keys() - tensors.keys()
        lacking = [key for key in (*network.params, *network.buffers) if key in saved]
        if not lacking:
            own = {**network.params, **network.buffers}
            given = tensors if head else {key: value for key, value in tensors.items() if key in own}
            network = network.with_params(given) if seed is None else network
            network.name, network.about = name, replace(network.about, architecture=architecture)
            return network if preprocess is None else network.reading(preprocess_from_json(preprocess))
    raise ModelError(
        f"the weights in {name} are not those of {architecture}", got=f"{len(lacking)} missing, such as {lacking[0]}"
    )


def _bundled(name: str, module: nn.Module, preprocess: Preprocess, about: About, seed: int | None) -> Network:
    if seed is not None:
        with seeded(seed):
            for part in module.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
    return Network(name, module, preprocess, about)


def _unknown(name: str) -> ModelError:
    path = Path(os.path.expanduser(name))
    parent = path.parent
    folders = [p for p in sorted(parent.iterdir()) if p.is_dir()] if os.path.isdir(parent) else []
    models = [p.name for p in folders if (p / "config.json").is_file()]  # others hold no model
    guess = near(path.name, models, f" in {parent}" if parent != Path() else "")
    if name.startswith((".", "/", "~")):
        return ModelError(f"there is no model in {name}", got="no such folder", do=guess or "check the path")
    if not guess and "/" not in name:
        guess = f"write timm/{name} or torchvision/{name} if it is one of theirs, or a folder"
    return ModelError(f"the model {name!r} is not known", expected=_KINDS, do=guess)


def check_weights(model: str | Network, weights: str | None) -> None:
    """Refuse weights beside a network that is loaded, and has its own.

    Raises:
        ModelError: there are both.
    """
    if weights is not None and isinstance(model, Network):
        raise ModelError(
            f"weights are named beside {model.name}, a network that is loaded", got=str(weights),
            do="load it with them: regraft.network.load(NAME, weights=...)",
        )  # fmt: skip


def preprocess_from_json(value: Mapping[str, Any]) -> Preprocess:
    """The inverse of :meth:`regraft.network.Preprocess.to_json`.

    Raises:
        ModelError: the kind is unknown or the value is torn.
    """
    kinds = {
        "image": ImagePreprocess,
        "array": ArrayPreprocess,
        "text": TextPreprocess,
        "molecule": MoleculePreprocess,
        "processor": transformers.ProcessorPreprocess,
    }
    made = kinds.get(str(value.get("kind")))
    if made is None:
        raise ModelError("unknown preprocessing", expected=", ".join(kinds), got=str(value.get("kind")))
    try:
        return made.from_json(value)  # type: ignore[attr-defined]
    except (KeyError, TypeError) as error:
        raise ModelError("the preprocessing's description is torn", got=str(error)) from error
