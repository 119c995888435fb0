"""Memory that a process keeps for its next tensors, where glibc gives it back to the system after each.

A tensor of 32 MiB or more is mapped anew by every operation, and the system clears each page when it is first written
to. That takes half of a plain pass of a ResNet-50.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

__all__ = ["kept_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_… of malloc.h
_PIECE = 2**28  # bytes: larger tensors are few, and keeping their place would cost more than clearing it
_OWN = 2**25  # what glibc's own adaptation ends at
_lock = threading.Lock()
_inside = 0


@contextmanager
def kept_memory() -> Iterator[None]:
    """Inside (or as a decorator), freed memory of up to 256 MiB a tensor stays with the process; at the end of the
    outermost it goes back.

    Only where the allocator is glibc's, and where neither ``MALLOC_…_THRESHOLD_`` nor ``GLIBC_TUNABLES`` set it.
    """
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _set(_PIECE, 2**31 - 1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _set(_OWN, 2 * _OWN)
                if (library := _glibc()) is not None:
                    library.malloc_trim(0)


def _set(piece: int, spare: int) -> None:
    if (library := _glibc()) is None:
        return
    if not library.mallopt(_MMAP_THRESHOLD, piece):  # some versions take no more than their own limit
        library.mallopt(_MMAP_THRESHOLD, _OWN)
    library.mallopt(_TRIM_THRESHOLD, spare)


@cache
def _glibc() -> Any | None:
    """The library, where there is one and nobody has set what is set here."""
    try:
        known = (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
        library = ctypes.CDLL(None)
        library.mallopt, library.malloc_trim  # noqa: B018 - that they are there
    except (AttributeError, OSError, TypeError, ValueError):
        return None
    set_by_others = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & set(os.environ)
    return None if not known or set_by_others or "malloc" in os.environ.get("GLIBC_TUNABLES", "") else library
