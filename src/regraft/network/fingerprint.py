"""One digest of everything a network's numbers depend on."""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regraft.files import canonical_json, digest

__all__ = ["architecture", "fingerprint"]

# Code of these is known by its name: a network must keep its fingerprint when they are upgraded.
_LIBRARIES = frozenset(("torch", "transformers", "timm", "torchvision", "regraft", "numpy", *sys.stdlib_module_names))
_PLAIN = (bool, int, float, str, type(None))
_SPACES = (argparse.Namespace, types.SimpleNamespace)

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def architecture(module: nn.Module, config: Mapping[str, Any] | None = None) -> str:
    """The module tree as text: per module its path, class and settings.

    The settings are what the module prints of itself, and either ``config`` (a published architecture
    configuration) or, without one, every plain attribute of every module (numbers of heads, strides,
    switches) and every attribute that can be called, so that two networks with the same weights and another
    forward pass differ. Classes and functions that belong to no library count with their source text, and modules of
    such classes with their private plain attributes and their public mappings, sets, tensors, arrays and settings
    objects as well: private ones of these kinds are mostly what a forward pass keeps for the next one.
    """
    lines = []
    for path, part in module.named_modules():
        settings = "" if config is not None else canonical_json(_plain(part))
        lines.append(f"{path}:{type(part).__qualname__}({part.extra_repr()}){settings}")
    kinds = dict.fromkeys(kind for part in module.modules() for kind in type(part).__mro__)
    lines += [_code(kind) for kind in kinds if _is_own(kind)]
    return "\n".join(lines) + "\n" + (canonical_json(_json(config)) if config is not None else "")


def _plain(module: nn.Module) -> dict[str, Any]:
    settings: dict[str, str] = {}
    own = _is_own(type(module))
    for name, value in vars(module).items():
        if name in _OF_EVERY_MODULE:
            continue
        public = not name.startswith("_")
        if (public or own) and _is_plain(value):
            settings[name] = repr(value)
            continue
        try:
            text = _bound(value) if own and public else _called(value)
        except (RuntimeError, ValueError):  # they hold each other, a tensor has no values, a variable is not set yet
            text = type(value).__qualname__
        if text:
            settings[name] = text
    return settings


def _called(value: Any) -> str:
    """The functions, classes and callable objects in ``value`` as text, with what is bound to them; or nothing.

    Library code by module and name, other code by name and source. No text holds an address in memory.
    """
    if isinstance(value, list | tuple):
        entries = [_called(entry) for entry in value]
        return canonical_json(entries) if any(entries) else ""
    if isinstance(value, Mapping):
        found = {str(key): text for key, entry in value.items() if (text := _called(entry))}
        return canonical_json(found) if found else ""
    if isinstance(value, nn.Module):  # in a list, say: no part of the tree
        return ",".join(f"{path}:{type(part).__qualname__}" for path, part in value.named_modules())
    if isinstance(value, functools.partial):
        return f"partial({_called(value.func)},{_bound(value.args)},{_bound(value.keywords)})"
    if inspect.ismethod(value):
        owner = value.__self__
        held = {} if isinstance(owner, nn.Module | type) else getattr(owner, "__dict__", {})
        return f"{type(owner).__qualname__}{_bound(held)}:{_called(value.__func__)}"
    if not callable(value):
        return ""
    if not hasattr(value, "__qualname__"):  # an object of a class with __call__
        return f"{_called(type(value))}{_bound(getattr(value, '__dict__', {}))}"
    return _code(value) if _is_own(value) else f"{value.__module__}.{value.__qualname__}"


def _bound(value: Any) -> str:
    """Arguments or settings of a callable: plain values as they are, callables by :func:`_called`."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(_bound(entry) for entry in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_bound(key)}:{_bound(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(map(_bound, value))) + "}"
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}{digest(bytes(_content(value)))}"
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return f"{value.dtype}{value.shape}{digest(value.tobytes())}"
    if isinstance(value, (*_PLAIN, torch.dtype, torch.device)):
        return repr(value)
    return _called(value) or type(value).__qualname__ + (_bound(held) if (held := _held(value)) else "")


def _held(value: Any) -> dict[str, Any]:
    """The attributes of an object that is there to hold settings: of a class that belongs to no library, or a
    namespace."""
    if not (_is_own(type(value)) or isinstance(value, _SPACES)):
        return {}
    slots = {name: getattr(value, name, None) for name in getattr(value, "__slots__", ())}
    return {**getattr(value, "__dict__", {}), **slots}


def _is_own(code: Any) -> bool:
    """Whether a class or function belongs to no library. What was built into the interpreter does not count."""
    module = getattr(code, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] not in _LIBRARIES


def _code(code: Any) -> str:
    """Name and source of a class or function; where there is none (typed in), what it was compiled to."""
    try:
        text = inspect.getsource(code)
    except (OSError, TypeError):
        members = vars(code).values() if isinstance(code, type) else [code]
        compiled = [body for entry in members if (body := getattr(entry, "__code__", None))]
        text = ",".join(
            f"{c.co_code.hex()}{c.co_names}{[k for k in c.co_consts if isinstance(k, _PLAIN)]}" for c in compiled
        )
    bound = ""
    if inspect.isfunction(code):
        cells = list(inspect.getclosurevars(code).nonlocals.items())
        bound = _bound([code.__defaults__ or (), code.__kwdefaults__ or {}, cells])
    return f"{code.__qualname__}{bound}={text}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(entry) for entry in value)
    return isinstance(value, _PLAIN)


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json(entry) for entry in value]
    return value if isinstance(value, _PLAIN) else str(value)


def fingerprint(tensors: Mapping[str, Tensor], architecture: str, preprocess: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the tensors by name (dtype, shape, bytes), the architecture and preprocessing.

    The order of the tensors does not matter; the same tensors give the same digest in every process and
    on every device.
    """
    sha = hashlib.sha256()
    for text in (architecture, canonical_json(_json(preprocess))):
        raw = text.encode()
        sha.update(len(raw).to_bytes(8, "little") + raw)
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        sha.update(_content(tensor))
    return sha.hexdigest()


def _content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's values, in order."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
