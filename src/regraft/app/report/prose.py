"""Sentences of a Record as runs of words and of code, with the signs that print uses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from regraft.app.report import words

__all__ = ["Run", "runs"]

# names in quotes as repr writes them, what stands between backticks, and options such as --source
_SET = re.compile(
    r"""(?<![\w'"])(?P<name>(?P<quote>['"])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote))(?!\w)"""
    r"|`(?P<code>[^`\n]+)`|(?<![\w`-])(?P<option>--[A-Za-z][\w-]*)"
)
# of a number, not of a range, a name or a path
_MINUS = re.compile(r"(?<![\w.)\]/-])-(?=\.?\d)")
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d{2,3})(?!\w)")


@dataclass(frozen=True)
class Run:
    """A run of a sentence; ``code`` where it is to be typed as it stands."""

    text: str
    code: bool = False


def runs(text: str) -> tuple[Run, ...]:
    """A sentence in runs: code between backticks (which go) and options; in words ``-0.2`` and ``9e-05`` become
    ``−0.2`` and ``9 × 10⁻⁵``, and names in quotes stay as they are."""
    found, end = [], 0
    for match in _SET.finditer(text):
        name = match["name"]
        found += [Run(_signs(text[end : match.start()])), Run(name or match["code"] or match["option"], code=not name)]
        end = match.end()
    return tuple(run for run in (*found, Run(_signs(text[end:]))) if run.text)


def _signs(text: str) -> str:
    return _MINUS.sub(words.MINUS, _POWER.sub(lambda m: words.power(m[1], int(m[2])), text))
