"""One digest of everything a network's numbers depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regraft.files import canonical_json

__all__ = ["architecture", "fingerprint"]

_PLAIN = (bool, int, float, str, type(None))


def architecture(module: nn.Module, config: Mapping[str, Any] | None = None) -> str:
    """The module tree as text: per module its path, class and settings.

    The settings are what the module prints of itself, and either ``config`` (a published architecture
    configuration) or, without one, every plain attribute of every module (numbers of heads, strides,
    switches), so that two networks with the same weights and another forward pass differ.
    """
    lines = []
    for path, part in module.named_modules():
        settings = "" if config is not None else canonical_json(_plain(part))
        lines.append(f"{path}:{type(part).__qualname__}({part.extra_repr()}){settings}")
    return "\n".join(lines) + "\n" + (canonical_json(_json(config)) if config is not None else "")


def _plain(module: nn.Module) -> dict[str, Any]:
    return {
        name: repr(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }


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
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
