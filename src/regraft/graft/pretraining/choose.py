"""Pretexts by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from regraft.errors import RecipeError
from regraft.graft.pretraining.autoencoder import Autoencoder
from regraft.graft.pretraining.bigan import Bigan
from regraft.graft.pretraining.jigsaw import Jigsaw
from regraft.graft.pretraining.pretext import Pretext
from regraft.graft.pretraining.rotation import Rotation
from regraft.graft.pretraining.supervised import Supervised
from regraft.wording import near

__all__ = ["OBJECTIVES", "pretext_of"]

_MAKE: Mapping[str, Callable[[int], Pretext]] = {
    "supervised": lambda size: Supervised(),
    "rotation": lambda size: Rotation(),
    "jigsaw": Jigsaw.of,
    "vae": lambda size: Autoencoder(),
    "bigan": lambda size: Bigan(),
}
OBJECTIVES: tuple[str, ...] = tuple(_MAKE)


def pretext_of(objective: str | Pretext, size: int) -> Pretext:
    """A pretext by its name, as it is meant for pictures of ``size`` x ``size`` pixels, or a pretext itself.

    Raises:
        RecipeError: there is none of this name, or the pictures are too small for it.
    """
    if isinstance(objective, Pretext):
        found = objective
    elif objective in _MAKE:
        found = _MAKE[objective](size)
    else:
        raise RecipeError(
            f"there is no objective {objective!r}", expected=", ".join(OBJECTIVES), do=near(objective, OBJECTIVES)
        )
    found.check(size)
    return found
