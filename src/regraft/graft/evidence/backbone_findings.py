"""What is to be said of the backbone, whatever the task."""

from __future__ import annotations

from collections.abc import Iterator

from regraft.graft.evidence.context import Context
from regraft.graft.network_findings import first_output
from regraft.record import Finding

__all__ = ["BACKBONE_CHECKS"]


def _first_output(context: Context) -> Iterator[Finding]:
    return first_output(() if context.network is None else context.network.unread)


BACKBONE_CHECKS = (_first_output,)
