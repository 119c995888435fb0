"""The package transformers itself: imported here alone, kept quiet, its errors in a sentence."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

from regraft.errors import MissingDependencyError, ModelError, RegraftError
from regraft.wording import one_line

__all__ = ["NO_CODE", "library", "quiet", "unusable"]

NO_CODE = {"trust_remote_code": False}  # said outright: left open, the library asks on the standard input


def library() -> Any:
    """The module ``transformers``.

    Raises:
        MissingDependencyError: it is not installed or does not load.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "transformers is not installed or does not load", got=str(error), do="pip install 'regraft[hub]'"
        ) from error
    return transformers


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No log lines, warnings or progress bars; what was set before is restored."""
    settings = transformers.utils.logging
    level, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity(logging.CRITICAL)
    settings.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        settings.set_verbosity(level)
        if bars:
            settings.enable_progress_bar()


def unusable(name: str, local: bool, error: Exception) -> RegraftError:
    """What could not be loaded, and what helps."""
    reason = one_line(error, 300)
    if "trust_remote_code" in str(error):
        return ModelError(
            f"{name} needs code of its own, and none of a repository's is run",
            expected="an architecture, a preprocessing and a tokeniser that transformers itself holds",
            do="build it in a module of yours and name that as package.module:callable",
        )
    if isinstance(error, ImportError):
        return MissingDependencyError(
            f"{name} needs a package that is not installed or does not load", got=f"{type(error).__name__}: {reason}"
        )
    if local:
        return ModelError(
            f"{name} holds no usable model",
            expected="config.json, model.safetensors and a preprocessing file, as save_pretrained writes them",
            got=f"{type(error).__name__}: {reason}",
        )
    offline = re.search(r"offline|connect|resolve|internet|network|timed? ?out|cached files", reason, re.I)
    return ModelError(
        f"{name} is not in the cache and the hub cannot be reached" if offline else f"{name} cannot be loaded",
        got=f"{type(error).__name__}: {reason}",
        do="check the name and the connection, or give a local folder made by save_pretrained",
    )
