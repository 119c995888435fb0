"""Which of several lambdas on a line a function is."""

from __future__ import annotations

import ast
import contextlib
import inspect
import types

__all__ = ["among_others"]


def among_others(function: types.FunctionType) -> str:
    """A lambda's own text, where another one begins on its line: the source of either is the whole of that."""
    lines, first = inspect.findsource(function)[0], function.__code__.co_firstlineno
    with contextlib.suppress(SyntaxError):
        nodes = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Lambda)]
        there = [node for node in nodes if node.lineno == first]
        found = [node for node in there if _covers(node.body, function.__code__)]
        if len(there) > 1 and found:
            innermost = max(found, key=lambda node: (node.body.lineno, node.body.col_offset))
            return ast.get_source_segment("".join(lines), innermost) or ""
    return ""


def _covers(body: ast.expr, code: types.CodeType) -> bool:
    """Whether an expression is what ``code`` was compiled from, or holds that: all steps of it lie inside."""
    begin, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    steps = [at for at in code.co_positions() if at[2] is not None and at[2:] != (0, 0)]
    return bool(steps) and all(begin <= (first, left) and (last, right) <= end for first, last, left, right in steps)
