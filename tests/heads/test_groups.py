"""Group names as numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from regraft.errors import DataError
from regraft.heads.groups import group_numbers


def test_every_name_has_one_number_whatever_the_order_of_rows() -> None:
    names = [10, "b", 2, None, "1", 1, float("nan"), "b", 2.0, "None"]
    numbers = group_numbers(names, 10)
    assert numbers.tolist() == [2, 6, 1, 4, 3, 0, 4, 6, 1, 5]
    order = np.random.default_rng(0).permutation(10)
    assert group_numbers([names[i] for i in order], 10).tolist() == numbers[order].tolist()


@pytest.mark.parametrize(
    "given", [np.array, pd.Series, torch.tensor, tuple], ids=["array", "series", "tensor", "tuple"]
)
def test_numbers_are_those_of_numpy(given) -> None:
    values = np.random.default_rng(0).integers(-3, 20, 50).tolist()
    assert group_numbers(given(values), 50).tolist() == np.unique(values, return_inverse=True)[1].tolist()
    words = [f"p{v}" for v in values]
    assert group_numbers(words, 50).tolist() == np.unique(words, return_inverse=True)[1].tolist()


@pytest.mark.parametrize("names", [["a"], [["a", "b"], ["a", "c"]], np.zeros((2, 2)), [{"a"}, {"b"}]])
def test_one_name_a_row(names) -> None:
    with pytest.raises(DataError, match=r"one (name )?a row"):
        group_numbers(names, 2)


def test_the_gaps_of_pandas_are_one_group() -> None:
    names = pd.Series(["a", pd.NA, "b", pd.NA], dtype="string")
    assert group_numbers(names, 4).tolist() == group_numbers(["a", None, "b", None], 4).tolist()
    assert group_numbers(pd.Series([1, pd.NA, 1], dtype="Int64"), 3).tolist() == [0, 1, 0]
