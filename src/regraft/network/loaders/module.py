"""Own modules: ``package.module:callable``, with weights from a safetensors file."""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn.parameter import is_lazy

from regraft.errors import MissingPathError, ModelError
from regraft.network.network import About, Network
from regraft.network.preprocess import IMAGENET_MEAN, IMAGENET_STD, ArrayPreprocess, ImagePreprocess, Preprocess
from regraft.network.seeding import seeded
from regraft.wording import near

__all__ = ["from_module", "load", "read_weights"]

_HOW = (
    "let the callable return (module, preprocess) with a regraft.network.ImagePreprocess or "
    'ArrayPreprocess, or write {"input": {"size": [3, 32, 32], "mean": […], "std": […]}} into '
    "config.json beside the weights"
)


def from_module(
    module: nn.Module, preprocess: Preprocess, *, name: str = "module", about: About | None = None
) -> Network:
    """A network from a module that you hold; the module itself is copied and stays as it is. The copy is float32.

    Args:
        module: gives logits or features for a batch of ``preprocess``.
        preprocess: raw input to the module's input.
        name: a short name for messages and records.
        about: where it comes from, its classes and licence.

    Raises:
        ModelError: lazy layers that have no size yet; a module that torch cannot copy, has no values or is scripted;
            what is no preprocessing.
    """
    if not isinstance(preprocess, Preprocess):
        raise ModelError(
            f"the preprocessing of {name} is none",
            expected="an ImagePreprocess, ArrayPreprocess or another Preprocess",
            got=f"{type(preprocess).__name__} {preprocess!r}"[:80],
        )
    module = _plain(module, name)
    try:
        copied = copy.deepcopy(module)
    except RuntimeError as error:
        raise ModelError(
            f"{name} cannot be copied",
            got=str(error).partition(". ")[0],
            do="detach the tensors that it keeps; instead of torch.nn.utils.weight_norm and spectral_norm take those "
            "of torch.nn.utils.parametrizations",
        ) from error
    return Network(name, _whole(_sized(copied, name)).float(), preprocess, about or About("module"))


def _plain(module: nn.Module, name: str) -> nn.Module:
    """What is inside of a compiled or a divided module; what is none of PyTorch's in Python, or has no values, is
    refused."""
    module = getattr(module, "_orig_mod", module)
    module = module.module if isinstance(module, nn.DataParallel) else module
    if not isinstance(module, nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"{name} is no module that can be looked into",
            expected="a torch.nn.Module",
            got=f"a {type(module).__name__}",
            do="give the module that it was made from",
        )
    if any(value.is_meta for value in itertools.chain(module.parameters(), module.buffers())):
        raise ModelError(f"{name} has tensors without values (meta)", do="load its weights first")
    return module


def _whole(module: nn.Module) -> nn.Module:
    """The module with compiled parts as they were written, for hooks do not hear what is compiled; a layer alone in a
    sequence of one, where another head can take its place."""
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            if inside := getattr(child, "_orig_mod", None):
                setattr(part, name, inside)
    return nn.Sequential(module) if isinstance(module, nn.Linear | nn.Conv2d) else module


def _sized(module: nn.Module, name: str) -> nn.Module:
    """The module, unless a lazy layer of it is yet to be made."""
    held = itertools.chain(module.named_parameters(), module.named_buffers())
    if empty := next((path for path, tensor in held if is_lazy(tensor)), ""):
        raise ModelError(
            f"{name} has a lazy layer that has no size yet ({empty})", do="run the module once on a batch before"
        )
    return module


def load(
    path: str, weights: str | None, seed: int | None, described: Callable[[Mapping[str, Any]], Preprocess]
) -> Network:
    """Import ``package.module``, call ``callable()`` and load the weights.

    The callable returns a module, ``(module, preprocess)`` or what :func:`from_module` gives; a module may also carry
    its preprocessing as the attribute ``preprocess``. It runs under a fixed seed, so that layers without weights in
    the file are the same in every process. With ``seed`` they keep what was drawn under it, whatever the file holds.
    ``described`` makes a preprocessing of the JSON that a saved network's ``config.json`` holds.

    Raises:
        ModelError: the import fails, the call gives no module, the weights do not fit, or the
            preprocessing is not known.
        MissingPathError: the weights file is not there.
    """
    with _working_folder():  # for what the call itself imports, too
        builder = _import(path)
        with seeded(0 if seed is None else seed):
            try:
                made = builder()
            except Exception as error:
                raise ModelError(f"{path}() fails", got=f"{type(error).__name__}: {error}") from error
    about, traits = About("module"), None
    if isinstance(made, Network):
        about, traits, made = made.about, made.traits, (made.module, made.preprocess)
    module, preprocess = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        got = type(module).__name__
        raise ModelError(f"{path}() gives no module", expected="a torch.nn.Module", got=got, do=_HOW)
    module = _plain(module, f"what {path}() gives")
    module = _sized(module, f"what {path}() gives").float()
    sidecar: Mapping[str, Any] = {}
    if weights is not None:
        file = Path(os.path.expanduser(weights))
        if seed is None:
            read_weights(module, file, path)
        sidecar = _sidecar(file)
    try:
        own = getattr(module, "preprocess", None)  # or a method of that name
        preprocess = preprocess or (own if isinstance(own, Preprocess) else _preprocess(module, sidecar, described))
        classes = tuple(map(str, sidecar.get("classes") or about.classes))
    except ModelError:
        raise
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json beside {weights} cannot be read", got=str(error), do=_HOW) from error
    module = _whole(module)
    if not isinstance(preprocess, Preprocess):
        raise ModelError(f"the preprocessing of {path} is not known", do=_HOW)
    about = About("module", str(sidecar.get("licence") or about.licence), classes)
    return Network(path, module, preprocess, about, traits=traits)


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    """Modules of the working folder can be imported, as under `python -m`; the console script leaves it out."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _import(path: str) -> Any:
    name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except ImportError as error:
        raise ModelError(
            f"{path}: module {name} cannot be imported",
            got=str(error),
            do="check the spelling, and run where the package is installed or in its folder",
        ) from error
    except Exception as error:
        raise ModelError(f"{path}: importing {name} fails", got=f"{type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ModelError(f"{name} has no {part!r}", do=near(part, dir(found)) or f"give {name}:CALLABLE")
        found = getattr(found, part)
    if not callable(found):
        raise ModelError(f"{path} cannot be called", expected="a function or class that gives a module")
    return found


def read_weights(module: nn.Module, path: Path, name: str) -> None:
    """Load a safetensors file strictly: every tensor fits, none is missing, none is left over.

    BatchNorm's ``num_batches_tracked`` may be missing, for it plays no part in eval mode, and so may all names but one
    of a tensor that has several. Buffers that the module does not save may be there; they stay as its code made them.

    Raises:
        MissingPathError, ModelError: the file is absent, no safetensors, or does not fit.
    """
    if not path.is_file():
        raise MissingPathError(f"weights {path} are not there", expected="a .safetensors file")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} is no safetensors file", got=str(error), do="save weights with safetensors.torch.save_file"
        ) from error
    own = module.state_dict(keep_vars=True)
    given = {id(own[key]) for key in tensors if key in own}
    missing = [key for key in own if id(own[key]) not in given and not key.endswith("num_batches_tracked")]
    unsaved = {key for key, _ in module.named_buffers() if key not in own}
    extra = [key for key in tensors if key not in own and key not in unsaved]
    shapes = [key for key in own if key in tensors and own[key].shape != tensors[key].shape]
    if missing or extra or shapes:
        wrong = [f"{len(keys)} {what} ({keys[0]})" for keys, what in (
            (missing, "missing"), (extra, "left over"), (shapes, "of another shape")) if keys]  # fmt: skip
        raise ModelError(f"{path.name} does not fit {name}", expected=f"its {len(own)} tensors", got=", ".join(wrong))
    module.load_state_dict(tensors, strict=False)


def _sidecar(weights: Path) -> Mapping[str, Any]:
    path = weights.parent / "config.json"
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{path} is no JSON", got=str(error)) from error
    return value if isinstance(value, dict) else {}


def _preprocess(
    module: nn.Module, sidecar: Mapping[str, Any], described: Callable[[Mapping[str, Any]], Preprocess]
) -> Preprocess | None:
    """From the sidecar's ``preprocess`` or ``input``, else for plain arrays from the first layer's width."""
    if isinstance(saved := sidecar.get("preprocess"), Mapping):
        return described(saved)
    given = sidecar.get("input")
    if isinstance(given, Mapping) and len(size := given.get("size", ())) == 3:
        channels, height, width = map(int, size)
        if ("mean" in given) != ("std" in given):
            raise ModelError(
                "the input's normalisation in config.json beside the weights", expected="mean and std, or neither",
                got=f"{'mean' if 'mean' in given else 'std'} alone",
            )  # fmt: skip
        default = (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((), ())
        mean, std = (tuple(map(float, given.get(key, d))) for key, d in zip(("mean", "std"), default))
        return ImagePreprocess((height, width), None, 2, mean, std, channels=channels)
    if sidecar:
        return None
    first = next((part for part in module.modules() if next(part.parameters(recurse=False), None) is not None), None)
    return ArrayPreprocess((first.in_features,)) if isinstance(first, nn.Linear) else None
