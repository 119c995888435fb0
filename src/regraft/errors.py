"""The package's own exceptions: what was expected, what came, and what to do.

Every class also derives from the built-in kind that users already catch (``ValueError``,
``FileNotFoundError`` …), so ``except ValueError`` keeps working around regraft calls.
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "DataError",
    "MissingDependencyError",
    "MissingPathError",
    "ModelError",
    "RecipeError",
    "RegraftError",
    "SolverError",
    "StoreError",
    "TapError",
    "WorkerError",
]


class RegraftError(Exception):
    """A mistake that the user can mend, said in one line.

    Args:
        what: the subject and what is wrong with it.
        expected: what would have been right.
        got: what came instead.
        do: the next step to take.
    """

    def __init__(self, what: str, *, expected: str = "", got: str = "", do: str = "") -> None:
        parts = [what.rstrip(".")]
        if expected:
            parts.append(f"expected {expected.rstrip('.')}")
        if got:
            parts.append(f"got {got.rstrip('.')}")
        message = "; ".join(parts) + "."
        if do:
            message += f" To mend it: {do.rstrip('.')}" + ("" if do.endswith("?") else ".")
        super().__init__(message)
        self.what, self.expected, self.got, self.do = what, expected, got, do


class DataError(RegraftError, ValueError):
    """The rows or labels cannot be used as they are."""


class MissingPathError(RegraftError, FileNotFoundError):
    """A path that the user named is not there."""


class ModelError(RegraftError, ValueError):
    """The network cannot be found, loaded or run."""


class TapError(RegraftError, ValueError):
    """A tap pattern matches nothing, or a tap gives no tensor."""


class StoreError(RegraftError, OSError):
    """The feature store cannot be read or written (disk full, read-only, torn)."""


class RecipeError(RegraftError, ValueError):
    """The stages of a recipe do not fit together or do not fit the task."""


class SolverError(RegraftError, ValueError):
    """A solver was given numbers that it cannot use (NaN, no rows, no columns)."""


class ArtifactError(RegraftError, ValueError):
    """An artifact is torn, changed, or made for another backbone."""


class MissingDependencyError(RegraftError, ImportError):
    """An optional dependency is not installed or does not load."""


class WorkerError(RegraftError, RuntimeError):
    """A process that decodes inputs did not live."""
