"""A training's whole state as one safetensors file, digest and all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regraft.errors import ArtifactError
from regraft.files import canonical_json, digest, write_bytes

__all__ = ["read", "tensor_digest", "write"]


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    parts: list[str | bytes] = []
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        parts += [name, str(value.dtype), str(tuple(value.shape))]
        parts.append(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest(*parts)


def write(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """One safetensors file: tensors and, in its header, the state as JSON with a digest of both."""
    held = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    text = canonical_json(state)
    metadata = {"state": text, "digest": digest(text, tensor_digest(held))}
    write_bytes(path, safetensors.torch.save(held, metadata))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write` wrote.

    Raises:
        ArtifactError: the file is torn or was changed.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["state"]
        if metadata["digest"] != digest(text, tensor_digest(tensors)):
            raise ValueError("the digest differs")
        return tensors, json.loads(text)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ArtifactError(
            f"{path} is damaged", got=str(error) or type(error).__name__, do="delete it and start again"
        ) from error
