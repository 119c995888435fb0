"""The loss along lines and over planes of weights."""

from regraft.diagnose.landscape.directions import (
    Directions,
    filter_norms,
    given_directions,
    normalised,
    random_directions,
    towards,
)
from regraft.diagnose.landscape.evaluate import evaluate
from regraft.diagnose.landscape.plane import Plane, Profile, axis, plane, profile
from regraft.diagnose.landscape.surrogate import Surrogate, surrogate, surrogate_plane

__all__ = [
    "Directions",
    "Plane",
    "Profile",
    "Surrogate",
    "axis",
    "evaluate",
    "filter_norms",
    "given_directions",
    "normalised",
    "plane",
    "profile",
    "random_directions",
    "surrogate",
    "surrogate_plane",
    "towards",
]
