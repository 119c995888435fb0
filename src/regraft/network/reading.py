"""Reading one tensor out of whatever a module returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from regraft.errors import ModelError

__all__ = ["Pooled", "Reading", "attention_mask", "choose", "first_tensor", "pool_tokens", "unchosen", "written"]

_LOGITS = ("logits", "out")
_POOLED = ("pooler_output", "image_embeds", "text_embeds")
_HIDDEN = ("last_hidden_state", "hidden_states")
Pooled = Literal["as is", "cls", "last", "mean", "features first", "features last"]


@dataclass(frozen=True)
class Reading:
    """Which entry of a module's output is read, and how it becomes the network's output.

    Attributes:
        key: the field of a mapping or dataclass; empty for a bare tensor or the first of a tuple.
        logits: whether the value is the class scores (else it is the embedding).
        pool: what is done to a value that still has positions: the first token, the last, or the mean over
            positions (leaving out padding); ``as is`` keeps it. The mean is of tokens (B, L, D) or a map (B, C, H, W);
            of values that lie in another way, their features on axis 1 or on the last, ``features first`` or ``last``.
    """

    key: str
    logits: bool
    pool: Pooled = "as is"

    def __call__(self, output: Any, batch: Any) -> Tensor:
        """The network's output: ``(B, C)`` logits (dense heads: ``(B, C, H, W)``) or ``(B, D)``."""
        return pool_tokens(self.raw(output), self.pool, attention_mask(batch))

    def raw(self, output: Any) -> Tensor:
        """The entry itself, before pooling."""
        value = dict(_fields(output)).get(self.key) if self.key else first_tensor(output)
        if not isinstance(value, Tensor):
            raise ModelError("the network's output changed its form", expected=self.key or "a tensor")
        return value


def choose(output: Any, *, pooler: bool = True) -> tuple[str, Tensor]:
    """The field of ``output`` to read and its tensor: logits before a pooled embedding before the rest.

    Raises:
        ModelError: there is no floating tensor in the output.
    """
    fields = dict(_fields(output))
    for key in (*_LOGITS, *(_POOLED if pooler else ()), *_HIDDEN):
        value = first_tensor(fields.get(key))
        if value is not None and isinstance(fields[key], Tensor):
            return key, value
    value = first_tensor(output)
    if value is None:
        raise ModelError(
            "the network's outputs are no tensors",
            expected="a floating tensor, or a tuple, mapping or dataclass that holds one",
            got=type(output).__name__,
            do="wrap the module in one whose forward returns its logits or features",
        )
    return next((key for key, entry in fields.items() if entry is value), ""), value


def unchosen(output: Any, key: str) -> tuple[Tensor, ...]:
    """The floating tensors of ``output`` behind the one that :func:`choose` took for being the first: none where
    ``key``, which it gave, is a name that says what it is."""
    return () if key in (*_LOGITS, *_POOLED, *_HIDDEN) else tuple(_tensors(output))[1:]


def written(value: Tensor) -> int:
    """How often it was changed in place; of what ``torch.inference_mode`` made that is not known."""
    return 0 if value.is_inference() else value._version


def first_tensor(value: Any) -> Tensor | None:
    """The first floating tensor in a tensor, sequence, mapping or dataclass, depth first."""
    return next(_tensors(value), None)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
        return
    entries = value if isinstance(value, list | tuple) else (entry for _, entry in _fields(value))
    for entry in entries:
        yield from _tensors(entry)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), entry) for key, entry in value.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))


def attention_mask(batch: Any) -> Tensor | None:
    """The batch's padding mask ``(B, L)``, where it has one."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) else None


def pool_tokens(value: Tensor, pool: Pooled, mask: Tensor | None) -> Tensor:
    """``(B, L, D)`` or ``(B, C, H, W)`` to ``(B, D)`` by ``pool``, or ``(B, C, …)`` and ``(B, …, C)`` to ``(B, C)``;
    anything else unchanged.

    The mean over tokens is Σ_l m_l x_l / Σ_l m_l with the padding mask m, whose ones are in front; the last is that
    of the last of them.
    """
    if pool == "as is":
        return value.flatten(1) if value.ndim > 2 and value.shape[1] == value[0].numel() else value
    if pool == "cls":
        return value[:, 0]
    if pool == "features first":
        return value.flatten(2).mean(2)
    if pool == "features last":
        return value.flatten(1, -2).mean(1)
    if value.ndim == 4:
        return value.mean((2, 3))
    if mask is None or mask.shape != value.shape[:2]:
        return value[:, -1] if pool == "last" else value.mean(1)
    weight = mask.to(value.dtype)[..., None]
    if pool == "last":
        return (value * (weight - functional.pad(weight, (0, 0, -1, 1)))).sum(1)
    return (value * weight).sum(1) / torch.clamp(weight.sum(1), min=1)
