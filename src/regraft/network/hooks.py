"""Module hooks for a while, heard by the thread that hung them alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from torch import nn

__all__ = ["Hook", "hooked"]

Hook = tuple[nn.Module, Literal["before", "after"], Callable[..., None]]
_TURN = threading.RLock()  # torch's lists of hooks bear no change by one thread while another walks through them


@contextlib.contextmanager
def hooked(hooks: Iterable[Hook]) -> Iterator[None]:
    """Inside this context, call ``hook(module, args, kwargs)`` before or ``hook(module, args, kwargs, output)``
    after each pass through a module by the thread that entered the context.

    A module is shared by all threads, and so are its hooks: threads that hang hooks take turns, and passes of a
    thread that hung none go by unheard.
    """
    owner: list[int] = [threading.get_ident()]
    with _TURN:
        handles = [_register(module, when, _heard_by(owner, hook)) for module, when, hook in hooks]
        try:
            yield
        finally:
            owner.clear()  # a copy of the module that was made meanwhile keeps its hooks, and they stay silent
            for handle in handles:
                handle.remove()


def _register(module: nn.Module, when: str, hook: Callable[..., None]) -> Any:
    if when == "before":
        return module.register_forward_pre_hook(hook, with_kwargs=True)
    return module.register_forward_hook(hook, with_kwargs=True)


def _heard_by(owner: list[int], hook: Callable[..., None]) -> Callable[..., None]:
    # Any arguments: torch leaves the keywords out if the hook is removed while another thread's pass comes to it.
    def heard(*args: Any) -> None:
        if threading.get_ident() in owner:
            hook(*args)

    return heard
