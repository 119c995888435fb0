"""Reading plain JSON values that may be absent, null or of another type, without ever raising.

A Record comes from a file. A picture whose data are missing or odd is left out of the page; it never
stops the page, and no ``NaN`` or ``None`` reaches a reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["amount", "flag", "items", "mapping", "number", "numbers", "rows", "short_name", "text", "thumbnail"]

# Control characters have no place in HTML; lone surrogates (undecodable file names) have none in UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_THUMBNAIL = re.compile(r"data:image/(?:jpeg|png);base64,[A-Za-z0-9+/]+={0,2}")


def text(value: Any) -> str:
    """A string for the page: ``""`` for nothing, numbers plainly, sequences joined by commas."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(text, value)))
    return ""


def number(value: Any) -> float | None:
    """A finite float, or ``None`` where there is none (a bool is no number here)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def amount(row: Mapping[str, Any], key: str) -> float:
    """A number that is zero where it is missing or below."""
    return max(number(row.get(key)) or 0.0, 0.0)


def numbers(values: Any) -> list[float]:
    """The finite numbers of a sequence."""
    return [n for n in map(number, items(values)) if n is not None]


def flag(value: Any) -> bool:
    """Whether the value is literally ``true``."""
    return value is True


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """The value as a list if it is a sequence, else an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def rows(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a sequence."""
    return [row for row in items(value) if isinstance(row, Mapping)]


def thumbnail(value: Any) -> str:
    """A base64 JPEG or PNG data URI, or ``""``: no other source of a picture is let onto the page."""
    return value if isinstance(value, str) and _THUMBNAIL.fullmatch(value) else ""


def short_name(value: Any) -> str:
    """The last part of a path-like name (``models/resnet18/`` gives ``resnet18``)."""
    name = text(value).strip()
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] or name
