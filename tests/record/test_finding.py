"""How findings count."""

from __future__ import annotations

import pytest

from regraft.record import counted


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (2500, ("row",), "2,500 rows"),
        (1, ("class was", "classes were"), "1 class was"),
        (3, ("class was", "classes were"), "3 classes were"),
    ],
)
def test_one_is_not_many(number, words, expected):
    assert counted(number, *words) == expected
