"""The family of errors: one line, and the built-in kind that users already catch."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft import errors
from regraft.errors import RegraftError

BUILT_IN = {
    "ArtifactError": ValueError,
    "DataError": ValueError,
    "MissingDependencyError": ImportError,
    "WorkerError": RuntimeError,
    "MissingPathError": FileNotFoundError,
    "ModelError": ValueError,
    "RecipeError": ValueError,
    "SolverError": ValueError,
    "StoreError": OSError,
    "TapError": ValueError,
}


def test_every_public_error_is_in_the_table() -> None:
    assert set(errors.__all__) == {*BUILT_IN, "RegraftError"}


@pytest.mark.parametrize(("name", "kind"), BUILT_IN.items())
def test_is_of_the_family_and_of_the_built_in_kind(name: str, kind: type[Exception]) -> None:
    error = getattr(errors, name)
    for caught in (RegraftError, kind):
        with pytest.raises(caught, match=r"^photos/: no image\.$"):
            raise error("photos/: no image")


@pytest.mark.parametrize("name", errors.__all__)
def test_message_has_its_parts_in_order(name: str) -> None:
    error = getattr(errors, name)("photos/: no image.", expected="PNG or JPEG", got="3 text files", do="name another.")
    assert str(error) == ("photos/: no image; expected PNG or JPEG; got 3 text files. To mend it: name another.")
    assert (error.what, error.expected, error.got, error.do) == (
        "photos/: no image.",
        "PNG or JPEG",
        "3 text files",
        "name another.",
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "it."),
        ({"expected": "a"}, "it; expected a."),
        ({"got": "b"}, "it; got b."),
        ({"do": "c"}, "it. To mend it: c."),
        ({"expected": "a", "do": "c"}, "it; expected a. To mend it: c."),
    ],
)
def test_absent_parts_leave_no_trace(parts: dict[str, str], message: str) -> None:
    assert str(RegraftError("it", **parts)) == message


@given(st.text(min_size=1).filter(lambda text: text.strip(".")))
def test_message_ends_in_exactly_one_full_stop(what: str) -> None:
    message = str(RegraftError(what))
    assert message.endswith(".")
    assert message[:-1] == what.rstrip(".")


@pytest.mark.parametrize("name", errors.__all__)
def test_crosses_a_process_border(name: str) -> None:
    """Worker processes hand their errors to the main process by pickling them."""
    error = getattr(errors, name)("it", expected="a", got="b", do="c")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
