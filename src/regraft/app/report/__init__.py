"""The report: one self-contained HTML page, a pure function of the Record."""

from regraft.app.report.render import render, write

__all__ = ["render", "write"]
