"""A finding: one observation as coded data. Rendering is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Severity", "counted"]

Severity = Literal["info", "advice", "warning", "not-applicable"]


@dataclass(frozen=True)
class Finding:
    """One observation about the data, the network or the fit.

    Attributes:
        code: a stable name such as ``duplicate-rows``; documentation and tests refer to it.
        title: one sentence for people.
        severity: ``info`` (worth knowing), ``advice`` (something to try), ``warning`` (the scores may
            mislead) or ``not-applicable`` (the check could not run; ``detail`` says why).
        value, unit: the measured number, where there is one.
        low, high: its interval, where there is one.
        detail: what lies behind the title, in a sentence or two.
        advice: what to do about it.
        cost_seconds: what the check took.
    """

    code: str
    title: str
    severity: Severity = "info"
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    detail: str = ""
    advice: str = ""
    cost_seconds: float = 0.0


def counted(number: float, one: str, many: str = "") -> str:
    """``1 row``, ``2,500 rows``: how a finding counts; ``many`` where it is not ``one`` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
