"""Sentences in runs of words and of code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.app.report.prose import Run, runs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a slope of -0.2 (-0.3 to +1)", "a slope of −0.2 (−0.3 to +1)"),
        ("-3 of 4", "−3 of 4"),
        ("20 ± 9e-05 and -1.5e+12", "20 ± 9 × 10⁻⁵ and −1.5 × 10¹²"),
        ("1e-05 of it", "10⁻⁵ of it"),
        ("resnet-50, 3-4, 2020-01-02, lp-ft", "resnet-50, 3-4, 2020-01-02, lp-ft"),
        ("images/-3.png and ab1e-05", "images/-3.png and ab1e-05"),
        ("one ` alone", "one ` alone"),
    ],
)
def test_signs_of_numbers_are_those_of_print_and_names_stay(text: str, shown: str) -> None:
    (run,) = runs(text)
    assert (run.text.replace("\u00a0", " "), run.code) == (shown, False)


def test_code_is_what_stands_between_backticks_and_options() -> None:
    assert runs("Train (`--rate -0.1`), with --source.") == (
        Run("Train ("), Run("--rate -0.1", True), Run("), with "), Run("--source", True), Run("."),
    )  # fmt: skip
    assert runs("a--b --- `") == (Run("a--b --- `"),)
    assert runs("") == ()


@pytest.mark.parametrize("name", ["-1", "1e-05", "--word", "`x`", "a `b` -2", "l'été -1", 'it\'s "--so" `1`', "\\"])
def test_names_in_quotes_stay_as_they_are(name: str) -> None:
    found = runs(f"The folds' score is no better than always saying {name!r}; see `--metric`, rows' -0.2.")
    assert not any(run.code for run in found[:-2])
    assert "".join(run.text for run in found[:-2]) == f"The folds' score is no better than always saying {name!r}; see "
    assert found[-2:] == (Run("--metric", True), Run(", rows' −0.2."))


@given(st.text(st.sampled_from("ab `-.("), max_size=30))
def test_nothing_but_backticks_is_lost(text: str) -> None:
    assert "".join(run.text for run in runs(text)).replace("`", "") == text.replace("`", "")
