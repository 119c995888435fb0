"""The report: one self-contained HTML page, a pure function of the Record."""

from regraft.app.report.render import check_page, render, write

__all__ = ["check_page", "render", "write"]
