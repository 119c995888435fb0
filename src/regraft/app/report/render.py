"""Turn a Record into one self-contained HTML page.

The page is safe to open whatever the Record holds: every value is escaped, pictures come only from base64
data URIs, and a content security policy allows nothing but this page's own style sheet and script (named by
their hashes): no request can leave the file.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from regraft.app.report.page import page
from regraft.app.report.prose import runs
from regraft.errors import DataError, RecipeError
from regraft.files import write_bytes
from regraft.record import Record
from regraft.record.folder import check_same, record_in

__all__ = ["check_page", "render", "write"]

_BREAK = re.compile(r"(?<=[/_])(?=\w)|(?<=\.)(?=[A-Za-z])")
_WHOLE = 28  # letters of code that fit on the line of a telephone
_OURS = b"<p>Made by regraft"  # in the foot of every report
_TEMPLATES = Path(__file__).parent / "templates"


def render(record: Record) -> str:
    """The report as one HTML document: a pure function of the Record, the same text for the same Record.

    What the Record lacks (a figure, a score, a cost) is left out of the page.
    """
    style, script = _asset("style.css"), _asset("script.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    template = _environment().get_template("page.html")
    return template.render(page=page(record), policy=policy, style=Markup(style), script=Markup(script))


def check_page(path: Path) -> None:
    """Refuse what a slip may name: a picture, a record, a folder, a page that is no report.

    Raises:
        DataError: not the name of a page, or a file that would be lost.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise DataError(f"cannot write a report as {path.name}", expected="a .html file")
    if path.is_file() and (there := path.read_bytes()) and _OURS not in there:
        raise DataError(
            f"{path} is no report", expected="a new file, or a report to write again", do="choose another name"
        )


def write(record: Record, path: Path | str) -> Path:
    """Render the Record and write the page to ``path``, whole or not at all.

    Raises:
        RecipeError: something else than a Record.
        DataError: ``path`` names no ``.html`` file, one that is no report, or that of another run in its folder.
        StoreError: the folder cannot be written.
    """
    if not isinstance(record, Record):
        raise RecipeError(
            "a report", expected="a Record", got=type(record).__name__, do="give run.record, or Record.load(folder)"
        )
    path = Path(path)
    check_page(path)
    there = record_in(path.parent) if path.name.lower() == "report.html" else None
    if there is not None:
        check_same(path.parent, there, record, do="choose another name")
    write_bytes(path, render(record).encode())
    return path


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["soft"] = _soft
    environment.filters["said"] = _said
    return environment


@functools.cache
def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8").strip()


def _soft(text: str) -> Markup:
    """The escaped text, with places where a long name may break: after ``/`` or ``_``, and before a suffix."""
    return Markup("<wbr>").join(escape(part) for part in _BREAK.split(text))


def _said(text: str) -> Markup:
    """The escaped sentence, with its code set as such: what is short is never broken."""
    code = Markup('<code class="{}">{}</code>')
    parts = (
        code.format("said" if len(r.text) <= _WHOLE else "said long", r.text) if r.code else _soft(r.text)
        for r in runs(text)
    )
    return Markup("").join(parts)


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
