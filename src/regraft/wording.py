"""Lists, near names, passes, errors of others and names of files as parts of a sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path

__all__ = ["by_folders", "first_line", "near", "one_line", "passes", "printable", "some"]


def some(names: Collection[object], of: int = 5, separator: str = ", ") -> str:
    """The first few names and how many more there are: ``a, b and 3 more``; of phrases ``a; b; and 3 more``.

    Args:
        names: in order; anything that can be written.
        of: how many are named.
        separator: between names, of phrases ``; ``.
    """
    named = separator.join(str(name) for name in islice(names, of))
    more = len(names) - of
    return f"{named}{' ' if separator == ', ' else separator}and {more:,} more" if more > 0 else named


def by_folders(paths: Sequence[Path]) -> list[str]:
    """What each of some whole paths is called: its last part, or as many as tell it from the others."""
    every = [path.parts for path in paths]
    names = []
    for path in every:
        others = [other for other in every if other != path]
        fit = (k for k in range(1, len(path)) if all(other[-k:] != path[-k:] for other in others))
        names.append(str(Path(*path[-next(fit, len(path)) :])))
    return names


def near(name: object, names: Iterable[str], place: str = "") -> str:
    """``did you mean a, b or c?``: the names most like one that is none of them; empty where none is like it.

    Args:
        name: what was given; a name of which it begins a part, such as ``bn`` of ``layer1.bn1``, is near too.
        names: what could have been given.
        place: follows the names, such as `` in FOLDER``.
    """
    asked, options = str(name), list(dict.fromkeys(names))
    close = difflib.get_close_matches(asked, options, n=3, cutoff=0.5)
    part = re.compile(rf"(?<![^\W_]){re.escape(asked)}")
    close += [option for option in options if asked and part.search(option) and option not in close]
    *first, last = close[:3] or [""]
    return f"did you mean {', '.join(first) + ' or ' if first else ''}{last}{place}?" if last else ""


def one_line(said: object, most: int = 200) -> str:
    """What an error of another library says, in one line of at most so many characters."""
    return " ".join(str(said).split())[:most]


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of what an error says, of at most so many characters; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most].rstrip()


def passes(number: float) -> str:
    """How often the rows crossed the backbone: ``0.60 of a backbone pass``, ``1.0 backbone pass``."""
    if number in (0, 1):
        return f"{'1' if number else 'no'} backbone pass"
    if number < 0.995:
        return f"{number:.2f} of a backbone pass"
    body = f"{number:.1f}"
    return f"{body} backbone {'pass' if body == '1.0' else 'passes'}"


def printable(name: str) -> str:
    """A file's name as every file and terminal takes it: bytes of it that are no UTF-8 stand there as ``\\xfc``."""
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half characters, which Windows allows in names
        raw = name.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")
