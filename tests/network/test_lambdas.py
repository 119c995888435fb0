"""Each of several lambdas on a line has the text of its own; one that is alone there has its line."""

from __future__ import annotations

from regraft.network.lambdas import among_others


def test_each_of_several_on_a_line_has_its_own_text() -> None:
    first, second, outer = lambda x: x + 1, lambda x: x - 1, lambda: lambda x: x * 2
    assert among_others(first) == "lambda x: x + 1"
    assert among_others(second) == "lambda x: x - 1"
    assert among_others(outer) == "lambda: lambda x: x * 2"
    assert among_others(outer()) == "lambda x: x * 2"


def test_one_that_is_alone_on_its_line_needs_none() -> None:
    alone = [lambda x: x + 1]
    assert among_others(alone[0]) == ""
