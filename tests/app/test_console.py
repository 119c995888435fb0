"""What is printed, line by line."""

from __future__ import annotations

from regraft.app.console import table


def test_a_line_stays_a_line_whatever_a_class_is_called(capsys) -> None:
    table([("task", "2 classes (a\nb, c\u2028d), 4 rows"), ("", "next")])
    assert capsys.readouterr().out == "task  2 classes (a b, c d), 4 rows\n      next\n"
