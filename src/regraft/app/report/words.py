"""Numbers as people read them. Every function takes a float or ``None``; ``None`` gives ``""``."""

from __future__ import annotations

import math
import re
from datetime import datetime

__all__ = [
    "MINUS",
    "NBSP",
    "apart",
    "bytes_",
    "count",
    "date",
    "decimal",
    "flops",
    "interval",
    "passes",
    "passes_number",
    "percent",
    "plural",
    "power",
    "seconds",
    "short",
    "strength",
    "times",
    "trimmed",
]

NBSP = "\u00a0"  # keeps a number and its unit on one line
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# written out: the locale's names would change the page
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "June", "July", "Aug", "Sep", "Oct", "Nov", "Dec")
MINUS = "\u2212"


def _signed(body: str, value: float) -> str:
    return MINUS + body if value < 0 and any(c in "123456789" for c in body) else body


def percent(value: float | None, *, unit: bool = True) -> str:
    """A share as a percentage with one decimal: ``0.912`` gives ``91.2 %``.

    Exactly 0 and 1 lose the decimal; a share that only rounds to them keeps an honest ``<`` or ``>``.
    """
    if value is None:
        return ""
    size = abs(value)
    if value in (0, 1):
        body = f"{value * 100:.0f}"
    elif size < 0.0005:
        body = "<" + NBSP + "0.1"
    elif 0.9995 <= value < 1:
        body = ">" + NBSP + "99.9"
    else:
        scaled = min(size, 1e300) * 100
        body = _signed(f"{scaled:.1f}" if scaled < 1e7 else _scientific(scaled), value)
    return body + (NBSP + "%" if unit else "")


def decimal(value: float | None) -> str:
    """About three significant digits: ``0.031``, ``1.27``, ``12.4``, ``1,234``; ``3.1 × 10⁻⁵`` where tiny."""
    if value is None:
        return ""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 5e-4 or size >= 1e7:
        return _scientific(value)
    digits = 3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0
    if size < 0.01:
        digits = 4 if size >= 0.001 else 5
    return _signed(f"{size:,.{digits}f}", value)


def _scientific(value: float, digits: int = 1) -> str:
    mantissa, exponent = f"{abs(value):.{digits}e}".split("e")
    return _signed(power(mantissa.removesuffix(".0"), int(exponent)), value)


def power(mantissa: str, exponent: int) -> str:
    """A multiple of a power of ten: ``3.1 × 10⁻⁵``."""
    tens = "10" + str(exponent).translate(_SUPERSCRIPT)
    return tens if mantissa == "1" else f"{mantissa}{NBSP}×{NBSP}{tens}"


def apart(low: float, high: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart: two of their difference at least, where a float has them."""
    if low == high:
        return decimal(low), decimal(high)
    size = max(abs(low), abs(high))
    gap = min(abs(high - low), size)  # the difference of two huge numbers may be infinite
    small = size < 5e-4 or size >= 1e7
    lead = math.floor(math.log10(size)) if small else 0
    digits = min(max(lead - math.floor(math.log10(gap)) + 1, 1), 16)
    if small:
        return _scientific(low, digits), _scientific(high, digits)
    plain = decimal(low), decimal(high)
    if all(len(text.partition(".")[2]) >= digits for text in plain):
        return plain
    return _signed(f"{abs(low):,.{digits}f}", low), _signed(f"{abs(high):,.{digits}f}", high)


def strength(value: float | None) -> str:
    """A regularisation strength: powers of ten as powers, others with two digits."""
    if value is None:
        return ""
    if value <= 0:
        return decimal(value)
    if 0.01 <= value < 999.5:  # from there on three digits are written 1e+03
        return f"{value:.3g}"
    return _scientific(value)


def count(value: float | None) -> str:
    """A whole number with thousands separated: ``2,589``."""
    if value is None:
        return ""
    return _signed(f"{abs(value):,.0f}", value) if abs(value) < 1e15 else decimal(value)


def plural(value: float, one: str, many: str = "") -> str:
    """``1 row``, ``2 rows``."""
    return f"{count(value)}{NBSP}{one if value == 1 else many or one + 's'}"


def seconds(value: float | None) -> str:
    """A duration: ``420 ms``, ``3.2 s``, ``31 s``, ``2 min 5 s``, ``1 h 4 min``."""
    if value is None:
        return ""
    value = max(value, 0.0)
    if value == 0:
        return f"0{NBSP}s"
    if value < 0.9995:
        milliseconds = value * 1000
        return f"{milliseconds:.0f}{NBSP}ms" if milliseconds >= 1 else f"<{NBSP}1{NBSP}ms"
    if value < 9.95:
        return f"{value:.1f}{NBSP}s"
    whole = round(value)
    if whole < 60:
        return f"{whole}{NBSP}s"
    if whole < 3600:
        return f"{whole // 60}{NBSP}min" + (f" {whole % 60}{NBSP}s" if whole % 60 else "")
    minutes = round(value / 60)
    hours = f"{minutes // 60:,}{NBSP}h"
    return hours + (f" {minutes % 60}{NBSP}min" if minutes % 60 else "")


def _prefixed(value: float, prefixes: tuple[str, ...], unit: str) -> str:
    index = 0
    while index < len(prefixes) - 1 and abs(value) >= 999.5:
        value, index = value / 1000, index + 1
    digits = 1 if index and abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}{NBSP}{prefixes[index]}{unit}"


def bytes_(value: float | None) -> str:
    """A size in decimal units: ``1.3 GB``."""
    return "" if value is None else _prefixed(value, ("", "k", "M", "G", "T", "P"), "B")


def flops(value: float | None) -> str:
    """A number of floating-point operations: ``1.6 TFLOP``."""
    return "" if value is None else _prefixed(value, ("", "k", "M", "G", "T", "P", "E"), "FLOP")


def passes(value: float | None) -> str:
    """``1.0 backbone pass``, ``2.4 backbone passes``, ``0 backbone passes``."""
    if value is None:
        return ""
    body = passes_number(value)
    return f"{body} backbone {'pass' if body == '1.0' else 'passes'}"


def passes_number(value: float | None) -> str:
    """How often the rows crossed the backbone: ``1.0``."""
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:.2f}" if value < 0.1 else f"{value:,.1f}"


def times(value: float | None) -> str:
    """A multiple: ``1.08 ×``."""
    if value is None:
        return ""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}{NBSP}×"


def date(value: str) -> str:
    """``20 Nov 2026, 10:41 UTC`` from an ISO date; other words stay as they are."""
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return value
    zone = at.tzname() or ""
    month = _MONTHS[at.month - 1]
    return f"{at.day} {month} {at.year}, {at:%H:%M}{' ' + zone if zone else ''}"


def trimmed(label: str) -> str:
    """A tick label without idle zeros: ``25.0 %`` gives ``25 %``, ``0.400`` gives ``0.4``."""
    return re.sub(r"(\d)\.0+(?!\d)|(\.\d*?[1-9])0+(?!\d)", lambda m: m[1] or m[2], label)


def short(value: float) -> str:
    """A decimal number as a tick label."""
    return trimmed(decimal(value))


def interval(low: float | None, high: float | None, form: str) -> str:
    """``89.1 to 92.9`` (percentages without their sign) or ``0.021 to 0.044``; ``""`` where a bound is missing."""
    if low is None or high is None:
        return ""
    if form == "percent":
        return f"{percent(low, unit=False)} to {percent(high, unit=False)}"
    return f"{decimal(low)} to {decimal(high)}"
