"""One digest of everything a network's numbers depend on."""

from __future__ import annotations

import argparse
import contextlib
import dis
import functools
import hashlib
import importlib.util
import inspect
import math
import os
import re
import site
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from regraft.files import canonical_json, digest
from regraft.network.lambdas import among_others

__all__ = ["architecture", "fingerprint", "reading"]

# Code of these is known by its name: a network must keep its fingerprint when they are upgraded.
_LIBRARIES = frozenset(("torch", "transformers", "timm", "torchvision", "regraft", "numpy", *sys.stdlib_module_names))
_IN_JSON = (bool, int, float, str, type(None))
_PLAIN = (*_IN_JSON, complex, bytes)
_FEW = 16  # numbers of a tensor that a module keeps to itself: a setting, not what a pass left behind
# values that hold each other, a tensor without values, a variable that is not set yet, an object that acts its part
_UNREADABLE = (RuntimeError, ValueError, AttributeError, TypeError)
_ELSEWHERE = tuple(path + os.sep for path in (*site.getsitepackages(), site.getusersitepackages()))
_INSTALLED = tuple({path + os.sep for path in map(sysconfig.get_path, ("purelib", "platlib"))})
_SPACES = (argparse.Namespace, types.SimpleNamespace)
_REPEATED = (slice, range, re.Pattern, PurePath)  # whose text says all
_WRITTEN = (
    *(list, tuple, deque, Mapping, set, frozenset, Tensor, np.ndarray, np.generic),
    *(*_PLAIN, *_REPEATED, *_SPACES, torch.dtype, torch.device, functools.partial, types.MethodType),
)

_NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
# Hooks that look on: transformers leaves them where hidden states or attentions were once asked for.
_LOOK_ON = frozenset(("transformers.utils.output_capturing",))
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def architecture(module: nn.Module, config: Mapping[str, Any] | None = None) -> str:
    """The module tree as text: per module its path, class and settings.

    The settings are what the module prints of itself, and either ``config`` (a published architecture
    configuration) or, without one, every plain attribute of every module (numbers of heads, strides, switches) and
    every attribute that can be called, so that two networks with the same weights and another forward pass differ;
    further the hooks that change what a module takes or gives and, without ``config``, where a module or a tensor
    stands once more. Classes and functions that belong to no library count with their source text and with what
    they use of their file, and modules of such classes with tensors, arrays, settings objects, mappings and sets as
    well (those of torch and torchvision with mappings and sets of plain values). Private ones of these count where
    they hold plain values or few numbers: larger ones are mostly what a forward pass keeps for the next. What no
    parameter or buffer holds counts too: the code of a traced module, and values of its state that are of another
    form (packed weights of quantised layers).
    """
    write, lines = _Writer(), []
    for path, part in module.named_modules():
        settings = "" if config is not None else canonical_json(write.settings(part))
        lines.append(f"{path}:{type(part).__qualname__}({_printed(part)}){settings}")
        hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
        hooks = [hook for hook in hooks if getattr(hook, "__module__", "") not in _LOOK_ON]
        lines += [f"{path} calls {write.bound(hook)}" for hook in hooks]
        lines += [f"{path} {text}" for text in write.kept(part)]
    if config is None:
        lines += _repeated(module)
    kinds = dict.fromkeys(kind for part in module.modules() for kind in type(part).__mro__)
    lines += [write.code(kind) for kind in kinds if _is_own(kind)]
    return "\n".join(lines) + "\n" + (canonical_json(_json(config)) if config is not None else "")


def _printed(part: nn.Module) -> str:
    """What a module prints of itself, without what some versions of torch add: whether a normalisation has a bias,
    which its tensors tell."""
    text = part.extra_repr()
    if isinstance(part, _NORMALISATIONS) and type(part).extra_repr.__module__.startswith("torch."):
        text = text.replace(", bias=True", "").replace(", bias=False", "")
    return text


def _repeated(module: nn.Module) -> list[str]:
    """Where a module, a parameter or a buffer stands once more, and where it stood first."""
    lines = []
    for kind in ("modules", "parameters", "buffers"):
        first: dict[int, str] = {}
        for path, held in getattr(module, f"named_{kind}")(remove_duplicate=False):
            if (known := first.setdefault(id(held), path)) != path:
                lines.append(f"{path} is {known}")
    return lines


_READ: dict[int, dict[str, Any]] = {}  # by the number of a preprocessing that is alive


def reading(preprocess: Any) -> dict[str, Any]:
    """What a preprocessing's numbers depend on: its ``identity()``; of one that belongs to no library its code and
    attributes as well, of which that need not tell. They are looked at once, for some keep what a call left behind;
    private ones count where they are plain, objects of libraries by their class alone."""
    kinds = [kind for kind in type(preprocess).__mro__ if _is_own(kind)]
    if not kinds:
        return dict(preprocess.identity())
    if (known := _READ.get(id(preprocess))) is not None:
        return known
    write, held = _Writer(), []
    for name, value in getattr(preprocess, "__dict__", {}).items():
        kept = isinstance(inspect.getattr_static(type(preprocess), name, None), functools.cached_property)
        if kept or (name.startswith("_") and not isinstance(value, _PLAIN)):
            continue
        try:
            if isinstance(value, nn.Module):
                held.append(f"{name}:{architecture(value)}{write.bound(value.state_dict())}")
            elif hasattr(value, "__qualname__") or _is_own(type(value)) or isinstance(value, _WRITTEN):
                held.append(f"{name}:{write.bound(value)}")
            else:
                held.append(f"{name}:{type(value).__qualname__}")
        except _UNREADABLE:
            held.append(f"{name}:{type(value).__qualname__}")
    found = {**preprocess.identity(), "code": "\n".join([*map(write.code, kinds), *held])}
    with contextlib.suppress(TypeError):  # of a class without weak references
        weakref.finalize(preprocess, _READ.pop, id(preprocess), None)
        _READ[id(preprocess)] = found
    return found


class _Writer:
    """Settings and code as text without addresses in memory; of each function and class the code is written once."""

    def __init__(self) -> None:
        self._written: dict[int, Any] = {}  # held, for the number of what is gone is given to another

    def settings(self, module: nn.Module) -> dict[str, str]:
        """The attributes of a module that its forward pass may read, by name."""
        found: dict[str, str] = {}
        own = _is_own(type(module))
        for name, value in vars(module).items():
            if name in _OF_EVERY_MODULE:
                continue
            public = not name.startswith("_")
            if (public or own) and _is_plain(value):
                found[name] = repr(value)
                continue
            # Those of transformers and timm say where weights come from or are tied, or follow from a configuration.
            if public and type(module).__module__.startswith(("torch.", "torchvision.")) and _is_table(value):
                found[name] = self.bound(value)
                continue
            try:
                text = self.bound(value) if own and (public or _is_small(value)) else self.called(value)
            except _UNREADABLE:
                text = type(value).__qualname__
            if text:
                found[name] = text
        return found

    def kept(self, module: nn.Module) -> list[str]:
        """What a module's pass goes by besides its attributes, parameters and buffers, a line each."""
        lines = []
        if isinstance(module, fx.GraphModule):
            lines.append(f"runs {module.code}")
            called = (node.target for node in module.graph.nodes if node.op == "call_function")
            lines += [f"uses {self.code(function)}" for function in dict.fromkeys(called) if _is_own(function)]
        if _has_state(type(module)):
            state: dict[str, Any] = {}
            module._save_to_state_dict(state, "", False)
            own = module._parameters.keys() | module._buffers.keys()
            lines += [f"holds {name}:{self._text(value)}" for name, value in state.items() if name not in own]
        return lines

    def _text(self, value: Any) -> str:
        try:
            return self.bound(value)
        except _UNREADABLE:
            return type(value).__qualname__

    def called(self, value: Any) -> str:
        """The functions, classes and callable objects in ``value``, with what is bound to them; or nothing.

        Library code by module and name, other code by name and source.
        """
        if isinstance(value, list | tuple):
            entries = [self.called(entry) for entry in value]
            return canonical_json(entries) if any(entries) else ""
        if isinstance(value, Mapping):
            found = {str(key): text for key, entry in value.items() if (text := self.called(entry))}
            return canonical_json(found) if found else ""
        if isinstance(value, nn.Module):  # in a list, say: no part of the tree
            return ",".join(f"{path}:{type(part).__qualname__}" for path, part in value.named_modules())
        if isinstance(value, functools.partial):
            return f"partial({self.called(value.func)},{self.bound(value.args)},{self.bound(value.keywords)})"
        if inspect.ismethod(value):
            owner = value.__self__
            held = {} if isinstance(owner, nn.Module | type) else getattr(owner, "__dict__", {})
            return f"{type(owner).__qualname__}{self.bound(held)}:{self.called(value.__func__)}"
        if not callable(value):
            return ""
        if not hasattr(value, "__qualname__"):  # an object of a class with __call__
            return f"{self.called(type(value))}{self.bound(getattr(value, '__dict__', {}))}"
        return self.code(value) if _is_own(value) else f"{value.__module__}.{value.__qualname__}"

    def bound(self, value: Any) -> str:
        """Arguments or settings of a callable: plain values as they are, callables by :meth:`called`."""
        if isinstance(value, list | tuple | deque):
            return "[" + ",".join(self.bound(entry) for entry in value) + "]"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{self.bound(key)}:{self.bound(entry)}" for key, entry in value.items()) + "}"
        if isinstance(value, set | frozenset):
            return "{" + ",".join(sorted(map(self.bound, value))) + "}"
        if isinstance(value, Tensor):
            plain = value.dequantize() if value.is_quantized else value
            return f"{value.dtype}{tuple(value.shape)}{digest(bytes(_content(plain)))}"
        if isinstance(value, torch.ScriptObject):
            return self.bound(value.__getstate__())
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return f"{value.dtype}{value.shape}{digest(value.tobytes())}"
        if isinstance(value, (*_PLAIN, *_REPEATED, torch.dtype, torch.device)):
            return repr(value)
        if text := self.called(value):
            return text
        kind = self.code(type(value)) if _is_own(type(value)) and not _is_installed(type(value)) else ""
        return (kind or type(value).__qualname__) + (self.bound(held) if (held := _held(value)) else "")

    def code(self, code: Any) -> str:
        """Name and source of a class or function; where there is none (typed in), what it was compiled to. Further
        what is bound to a function, and the functions, classes and values of own files that it uses."""
        if id(code) in self._written:
            return str(code.__qualname__)
        self._written[id(code)] = code
        try:
            text = inspect.getsource(code)
            if getattr(code, "__name__", "") == "<lambda>":
                text += among_others(code)
        except (OSError, TypeError):
            members = vars(code).values() if isinstance(code, type) else [code]
            compiled = [body for entry in members if (body := getattr(entry, "__code__", None))]
            text = ",".join(
                f"{c.co_code.hex()}{c.co_names}{[k for k in c.co_consts if isinstance(k, _PLAIN)]}" for c in compiled
            )
        bound = ""
        if inspect.isfunction(code):
            cells = list(inspect.getclosurevars(code).nonlocals.items())
            bound = self.bound([code.__defaults__ or (), code.__kwdefaults__ or {}, cells])
        return f"{code.__qualname__}{bound}={text}{'' if _is_installed(code) else self._used(code)}"

    def _used(self, code: Any) -> str:
        """What the functions of a class, or one function, read by global names, a line each."""
        lines = []
        found = _globals_of(code)
        for name, value in sorted(found.items()):
            if isinstance(value, types.ModuleType):
                if "getattr" in found and _is_own_module(value):  # whichever of its names that takes
                    lines.append(f"\n{name}:{_source(value)}")
                continue
            if value is getattr:
                continue
            try:
                lines.append(f"\n{name}:{self.bound(value)}")
            except _UNREADABLE:
                lines.append(f"\n{name}:{type(value).__qualname__}")
        return "".join(lines)


def _globals_of(code: Any) -> dict[str, Any]:
    """The global names that the functions of a class, or one function, read, and their values."""
    found: dict[str, Any] = {}
    for member in vars(code).values() if isinstance(code, type) else [code]:
        wrapped = next((inner for of in ("fget", "func", "__func__") if (inner := getattr(member, of, None))), member)
        function = inspect.unwrap(wrapped) if callable(wrapped) else None
        if inspect.isfunction(function):
            found |= _read(function.__code__, function.__globals__)
    return found


def _read(body: types.CodeType, space: Mapping[str, Any]) -> dict[str, Any]:
    """What a function's code, and code inside it, reads of its module, and of own modules that it imported."""
    found = {name: space[name] for name in body.co_names if name in space}
    if "getattr" in body.co_names:
        found["getattr"] = getattr
    reached = {name: value for name, value in found.items() if isinstance(value, types.ModuleType)}
    found |= _imported(body, space)
    seen = set[int]()
    while reached:
        name, module = reached.popitem()
        if id(module) in seen or module.__name__.split(".")[0] in _LIBRARIES:
            continue
        seen.add(id(module))
        for inner in body.co_names:
            if inner in vars(module):
                found[f"{name}.{inner}"] = value = vars(module)[inner]
                if isinstance(value, types.ModuleType) and _is_own_module(value):
                    reached[f"{name}.{inner}"] = value
    for inner in body.co_consts:
        if isinstance(inner, types.CodeType):
            found |= _read(inner, space)
    return found


def _imported(body: types.CodeType, space: Mapping[str, Any]) -> dict[str, str]:
    """The source of own files that import statements inside a function name. None is run: it may be a program."""
    found: dict[str, str] = {}
    steps = [step for step in dis.get_instructions(body) if step.opname != "EXTENDED_ARG"]
    for place, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, wanted = steps[place - 2].argval or 0, steps[place - 1].argval or ()
        package = str(space.get("__package__") or "").split(".")
        name = ".".join(
            [*package[: len(package) - level + 1], *filter(None, [step.argval])] if level else [step.argval]
        )
        for each in (name, *(f"{name}.{inner}" for inner in wanted)):
            if (file := _own_file(each)) is not None:
                found[f"import {each}"] = file.read_text(encoding="utf-8", errors="replace")
    return found


def _own_file(name: str) -> Path | None:
    """The file of a module, found without running any; ``None`` of a library's, and where there is none."""
    first, *rest = name.split(".")
    if first in _LIBRARIES:
        return None
    try:
        top = importlib.util.find_spec(first)
    except (ImportError, ValueError, AttributeError):
        return None
    if top is None:
        return None
    places, file = [Path(place) for place in top.submodule_search_locations or ()], top.origin
    for part in rest:
        options = [place / part / "__init__.py" for place in places] + [place / f"{part}.py" for place in places]
        file = next((str(option) for option in options if option.is_file()), None)
        places = [place / part for place in places]
    there = None if file is None or not file.endswith(".py") else Path(file)
    return None if there is None or str(there).startswith(_ELSEWHERE) else there


def _is_own_module(module: types.ModuleType) -> bool:
    """Whether a module belongs to no library and no installed package."""
    file = getattr(module, "__file__", None) or ""
    return module.__name__.split(".")[0] not in _LIBRARIES and not file.startswith(_INSTALLED)


def _source(module: types.ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return module.__name__


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


def _is_installed(code: Any) -> bool:
    """Whether a class or function belongs to an installed package, whose own parts are then left aside."""
    file = getattr(sys.modules.get(code.__module__), "__file__", None) or ""
    return file.startswith(_INSTALLED)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(entry) for entry in value)
    return isinstance(value, _PLAIN)


def _is_table(value: Any) -> bool:
    """Whether a value is a mapping of plain values to plain values, or a set of them, and not empty."""
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(key, _PLAIN) and _is_plain(entry) for key, entry in value.items())
    return isinstance(value, set | frozenset) and bool(value) and all(map(_is_plain, value))


def _has_state(kind: type[nn.Module]) -> bool:
    """Whether modules of a class write more into their state than parameters and buffers."""
    names = ("_save_to_state_dict", "get_extra_state")
    return any(getattr(kind, name) is not getattr(nn.Module, name) for name in names)


def _is_small(value: Any) -> bool:
    """Whether a value holds plain values alone, and of tensors and arrays few numbers."""
    if isinstance(value, Tensor | np.ndarray):
        return math.prod(value.shape) <= _FEW
    if isinstance(value, list | tuple | set | frozenset | deque):
        return all(map(_is_small, value))
    if isinstance(value, Mapping):
        return all(map(_is_small, value.values()))
    return isinstance(value, _PLAIN) or (bool(held := _held(value)) and all(map(_is_small, held.values())))


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json(entry) for entry in value]
    return value if isinstance(value, _IN_JSON) else str(value)


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
