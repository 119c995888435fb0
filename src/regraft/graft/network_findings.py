"""What is to be said of a backbone, whatever is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regraft.record import Finding
from regraft.wording import some

__all__ = ["first_output"]


def first_output(unread: Sequence[tuple[int, ...]], whose: str = "the backbone's") -> Iterator[Finding]:
    """Several outputs of which none is named as what it is, so that the first was read; ``unread`` are the shapes of a
    row of the others."""
    if not unread:
        return
    others = [" × ".join(map(str, shape)) or "one number" for shape in unread]
    yield Finding(
        "first-output-read",
        f"Of {whose} {1 + len(others)} outputs the first was read, for none is named as logits or an embedding.",
        "advice",
        len(others),
        "outputs",
        detail=f"Not read, of a row: {some(others)}.",
        advice="If another one matters, wrap the module in one whose forward returns that.",
    )
