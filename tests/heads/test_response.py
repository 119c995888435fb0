from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.errors import DataError, SolverError
from regraft.heads import Response, group_lasso, select, select_reference, solve, solve_sparse
from regraft.heads.response import require_learnable
from regraft.linear import ShapeError


def test_classes_become_one_hot_and_missing_rows_are_masked() -> None:
    response = Response.of("multiclass", ["a", "b", "c"], np.array([2, 0, -1]))
    assert response.values.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert response.present.tolist() == [True, True, False]
    assert response.codes is not None
    assert response.codes.tolist() == [2, 0, -1]
    assert response.link == "softmax"
    assert response.n_outputs == 3


def test_columns_keep_a_mask_of_missing_labels() -> None:
    response = Response.of("multilabel", ["a", "b"], np.array([[1.0, np.nan], [0, 1]], dtype=np.float32))
    assert response.mask is not None
    assert response.mask.tolist() == [[True, False], [True, True]]
    assert response.values.tolist() == [[1, 0], [0, 1]]
    assert Response.of("regression", ["y"], np.arange(3.0)).values.shape == (3, 1)


def test_take_keeps_everything_together() -> None:
    response = Response.of("multiclass", ["a", "b", "c"], np.array([2, 0, -1, 1]))
    part = response.take([3, 2])
    assert part.codes is not None
    assert part.codes.tolist() == [1, -1]
    assert part.present.tolist() == [True, False]
    assert torch.equal(part.values, response.values[[3, 2]])


@pytest.mark.parametrize(
    ("kind", "classes", "values"),
    [
        ("multiclass", ["a", "b"], [0, 2]),
        ("multiclass", ["a", "b"], [0, -2]),
        ("multiclass", ["a", "b"], [0.0, 1.0]),
        ("binary", ["a", "b", "c"], [0, 1]),
        ("multilabel", ["a"], [[2.0]]),
        ("multilabel", ["a", "b"], [[1.0]]),
        ("regression", ["a"], [[np.inf]]),
        ("ordinal", ["a"], [0]),
    ],
)
def test_values_that_do_not_fit_the_kind_are_refused(kind: str, classes: list[str], values: list) -> None:
    with pytest.raises(DataError):
        Response.of(kind, classes, np.array(values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (Response.of("multiclass", ["a", "b"], np.array([1, 1, -1])), "one class only"),
        (Response.of("multiclass", ["a", "b"], np.array([-1, -1])), "no labelled row"),
        (Response.of("multiclass", ["a", "b"], np.zeros(0, dtype=int)), "no labelled row"),
        (Response.of("multilabel", ["a", "empty"], np.array([[1, np.nan], [0, np.nan]])), "'empty'"),
    ],
)
def test_labels_without_information_are_refused(response: Response, words: str) -> None:
    with pytest.raises(SolverError, match=words):
        require_learnable(response)


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
@pytest.mark.parametrize("values", [["a", "b"], [0, None], [0j, 1]])
def test_labels_that_are_no_numbers_are_refused_in_a_sentence(kind, values) -> None:
    with pytest.raises(DataError, match=rf"{kind} labels are of type .*; expected numbers"):
        Response.of(kind, ["a", "b"], values)


def test_bare_labels_are_refused_in_a_sentence() -> None:
    x, labels = np.eye(4), np.array([0, 1, 0, 1])
    search = {"folds": labels, "metric": "accuracy"}
    for call in (
        lambda: group_lasso(x, labels),  # type: ignore[arg-type]
        lambda: solve(x, labels, **search),  # type: ignore[arg-type]
        lambda: solve_sparse(x, labels, penalty="l1", **search),  # type: ignore[arg-type]
        lambda: select({"a": x}, labels, **search),  # type: ignore[arg-type,dict-item]
        lambda: select_reference({"a": x}, labels, **search),  # type: ignore[arg-type,dict-item]
    ):
        with pytest.raises(DataError, match=r"expected a Response; got a ndarray.*Response\.of"):
            call()


@pytest.mark.parametrize("dtype", [">f8", np.float16, np.longdouble])
def test_targets_may_be_stored_in_any_way(dtype) -> None:
    values = np.array([0.5, 2.0, np.nan], dtype)
    found = Response.of("regression", ["y"], values)
    assert found.values[:, 0].tolist() == [0.5, 2.0, 0.0]
    assert found.mask is not None
    assert found.mask[:, 0].tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [">i4", np.uint8, np.uint16])
def test_classes_and_pixels_may_be_stored_in_any_way(dtype) -> None:
    assert Response.of("multiclass", ["a", "b"], np.array([0, 1, 1], dtype)).codes.tolist() == [0, 1, 1]
    counts = Response.of("segmentation", ["a", "b"], np.array([[3, 0], [1, 2]], dtype))
    assert counts.values.tolist() == [[3.0, 0.0], [1.0, 2.0]]


def test_targets_may_be_tensors_of_any_kind() -> None:
    values = torch.tensor([0.5, 2.0], dtype=torch.bfloat16, requires_grad=True)
    assert Response.of("regression", ["y"], values).values[:, 0].tolist() == [0.5, 2.0]


def test_no_row_may_be_taken() -> None:
    response = Response.of("multiclass", ["a", "b"], [0, 1])
    assert len(response.take([])) == 0
    with pytest.raises(ShapeError, match="out of range"):
        response.take([2])


def unknown_by_rule(values: np.ndarray, there: np.ndarray, folds: list[int], sides: tuple[int, ...]) -> np.ndarray:
    """Row by row and output by output: no row of another fold has this label."""
    out = np.zeros(values.shape, bool)
    for row, column in zip(*np.nonzero(there)):
        others = [k for k in range(len(values)) if folds[k] != folds[row] and there[k, column]]
        same = any(values[k, column] == values[row, column] for k in others)
        out[row, column] = folds[row] >= 0 and values[row, column] in sides and not same
    return out


@pytest.mark.parametrize("seed", range(8))
def test_labels_that_no_other_fold_has_are_taken_as_missing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    folds = rng.integers(-1, 3, 14)
    classes = rng.integers(-1, 7, 14)
    response = Response.of("multiclass", [str(c) for c in range(7)], classes)
    there = np.repeat(classes[:, None] >= 0, 7, 1)
    alone = unknown_by_rule(response.values.numpy(), there, folds.tolist(), (1,)).any(1)
    found = response.seen_elsewhere(torch.from_numpy(folds))
    assert found.codes is not None
    assert found.codes.tolist() == np.where(alone, -1, classes).tolist()
    assert found.present.tolist() == ((classes >= 0) & ~alone).tolist()

    columns = rng.choice([0, 1, 1, np.nan], (14, 4)) * (rng.random((14, 4)) < 0.3)
    several = Response.of("multilabel", list("abcd"), columns)
    unknown = unknown_by_rule(several.values.numpy(), ~np.isnan(columns), folds.tolist(), (0, 1))
    mask = several.seen_elsewhere(torch.from_numpy(folds)).mask
    assert ((~np.isnan(columns) & ~unknown) == (True if mask is None else mask.numpy())).all()


def test_where_other_folds_have_all_labels_nothing_changes() -> None:
    folds = torch.tensor([0, 1, 0, 1])
    response = Response.of("binary", ["a", "b"], [0, 0, 1, 1])
    assert response.seen_elsewhere(folds) is response
    numbers = Response.of("regression", ["y"], [1.0, 2.0, 3.0, 4.0])
    assert numbers.seen_elsewhere(folds) is numbers
