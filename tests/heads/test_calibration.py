from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from regraft.errors import DataError
from regraft.heads import Response, ece, link, nll, reliability, temperature
from regraft.heads.calibration import temperatures


def likelihood(t: float, logits: torch.Tensor, response: Response) -> float:
    """Of the labels, each of which holds with the chance (n + 1) / (n + 2) of Laplace's rule of succession."""
    if response.kind == "multilabel":
        there = torch.ones_like(response.values, dtype=torch.bool) if response.mask is None else response.mask
        chance = 1 / (int(there.sum()) + 2)
        targets = response.values.clamp(chance, 1 - chance)
        each = torch.nn.functional.binary_cross_entropy_with_logits(logits / t, targets, reduction="none")
        return float(each[there].sum())
    there, classes = response.present, logits.shape[1]
    chance = 1 / (int(there.sum()) + 2)
    return float(
        torch.nn.functional.cross_entropy(
            logits[there] / t,
            response.codes[there],
            reduction="sum",
            label_smoothing=chance * classes / (classes - 1),
        )
    )


def cases() -> list[tuple[torch.Tensor, Response]]:
    rng = np.random.default_rng(0)
    codes = rng.integers(4, size=200)
    logits = torch.tensor(3 * rng.normal(size=(200, 4)) + 2 * np.eye(4)[codes])
    hidden = codes.copy()
    hidden[::5] = -1
    labels = (rng.random((100, 3)) < 0.4).astype(float)
    scores = torch.tensor(0.2 * (2 * labels - 1) + 0.3 * rng.normal(size=labels.shape))
    partly = labels.copy()
    partly[rng.random(labels.shape) < 0.4] = np.nan
    return [
        (logits, Response.of("multiclass", list("abcd"), codes)),
        (logits, Response.of("multiclass", list("abcd"), hidden)),
        (logits / 50, Response.of("multiclass", list("abcd"), codes)),
        (scores, Response.of("multilabel", list("abc"), labels)),
        (scores, Response.of("multilabel", list("abc"), partly)),
    ]


@pytest.mark.parametrize("case", range(5))
def test_the_temperature_minimises_the_likelihood(case: int) -> None:
    logits, response = cases()[case]
    oracle = minimize_scalar(
        lambda s: likelihood(np.exp(s), logits, response), bounds=(-6, 6), method="bounded", options={"xatol": 1e-10}
    )
    assert temperature(logits, response) == pytest.approx(np.exp(oracle.x), rel=1e-5)


def test_many_sets_at_once_equal_one_by_one() -> None:
    logits, response = cases()[0]
    sets = torch.stack([logits, logits / 7, logits.flip(0)])
    assert temperatures(sets, response).tolist() == pytest.approx([temperature(s, response) for s in sets])


def test_extremes_stay_within_bounds() -> None:
    codes = np.array([0, 1, 0, 1])
    response = Response.of("binary", ["a", "b"], codes)
    right = torch.tensor(np.eye(2)[codes])
    assert temperature(right * 1e-6, response) == pytest.approx(1e-3)
    assert temperature(-right, response) == pytest.approx(1e3)
    assert temperature(torch.zeros(4, 2), response) == 1.0
    assert temperature(torch.full((4, 2), 0.5), response) == 1.0  # of a ridge head without features
    missing = Response.of("multilabel", ["a", "b"], np.array([[1, np.nan], [0, np.nan]]))
    assert temperature(torch.tensor([[0.0, 5], [0, 5]]), missing) == 1.0  # what is not flat has no label
    assert temperature(torch.zeros(4, 1), Response.of("regression", ["y"], np.arange(4.0))) == 1.0
    with pytest.raises(DataError, match="NaN"):
        temperature(right * torch.nan, response)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("rows", [4, 80, 5000])
def test_where_every_row_is_right_confidence_is_that_of_the_rule_of_succession(rows: int, classes: int) -> None:
    codes = np.arange(rows) % classes
    kind = "binary" if classes == 2 else "multiclass"
    response = Response.of(kind, [str(c) for c in range(classes)], codes)
    logits = torch.tensor(9.0 * np.eye(classes)[codes])
    confidence = link("softmax", logits / temperature(logits, response)).amax(1)
    assert confidence.tolist() == pytest.approx([(rows + 1) / (rows + 2)] * rows)


def test_a_class_that_no_label_shows_does_not_change_the_temperature() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(2, size=200)
    margins = 6 * (codes - 0.5) + rng.normal(size=200)
    logits = torch.tensor(np.c_[-margins, margins])
    ruled_out = torch.full((200, 8), -36.0, dtype=torch.float64)  # where a sparse head has them
    shown, declared = (Response.of("multiclass", "abcdefghij"[:c], codes) for c in (2, 10))
    t = temperature(torch.cat([logits, ruled_out], 1), declared)
    assert t == pytest.approx(temperature(logits, shown), rel=1e-6)


def test_of_two_classes_the_mean_confidence_by_margin_is_that_of_the_rule_of_succession() -> None:
    codes = np.arange(50) % 2
    margins = np.random.default_rng(0).gamma(2.0, size=50)
    logits = torch.tensor(margins[:, None] * np.eye(2)[codes])
    response = Response.of("binary", ["a", "b"], codes)
    confidence = link("softmax", logits / temperature(logits, response)).amax(1).numpy()
    assert np.average(confidence, weights=margins) == pytest.approx(51 / 52)


def test_labels_that_are_all_right_have_the_confidence_of_the_rule_of_succession() -> None:
    labels = (np.random.default_rng(0).random((30, 3)) < 0.3).astype(float)
    labels[:9, 1] = np.nan
    response = Response.of("multilabel", list("abc"), labels)
    logits = torch.tensor(np.where(labels == 1, 4.0, -4.0))
    confidence = link("sigmoid", logits / temperature(logits, response))
    there = ~np.isnan(labels)
    assert np.where(labels == 1, confidence, 1 - confidence)[there] == pytest.approx(82 / 83)  # 81 labels are there


def test_rows_that_are_all_right_do_not_make_the_wrong_rows_of_another_part_certain() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(3, size=1000)
    logits = torch.tensor(rng.normal(size=(1000, 3)) + 3 * np.eye(3)[codes])
    right = (logits.argmax(1).numpy() == codes).nonzero()[0][:60]
    later = np.setdiff1d(np.arange(1000), right)
    fitted, other = (Response.of("multiclass", list("abc"), codes[rows]) for rows in (right, later))
    t = temperature(logits[right], fitted)
    said = nll(other, link("softmax", logits[later] / t))
    best = nll(other, link("softmax", logits[later] / temperature(logits[later], other)))
    assert said < 1.5 * best


def test_calibration_lowers_the_calibration_error_of_overconfident_logits() -> None:
    logits, response = cases()[0]
    t = temperature(logits, response)
    assert t > 1.5
    assert ece(response, link("softmax", logits / t)) < ece(response, link("softmax", logits))


def test_the_reliability_bins_hold_all_rows_and_give_the_calibration_error() -> None:
    for logits, response in cases():
        p = link(response.link, logits)
        bins = reliability(p, response)
        count = sum(row["count"] for row in bins)
        if response.kind == "multilabel":
            assert count == (response.values.numel() if response.mask is None else int(response.mask.sum()))
        else:
            assert count == int(response.present.sum())
        gap = sum(row["count"] * abs(row["accuracy"] - row["confidence"]) for row in bins) / count
        assert gap == pytest.approx(ece(response, p))
        assert all(row["low"] <= row["confidence"] <= row["high"] for row in bins)


def test_reliability_takes_what_the_calibration_error_takes_and_refuses_what_it_refuses() -> None:
    response = Response.of("binary", ["a", "b"], np.arange(8) % 2)
    probabilities = torch.softmax(torch.linspace(-2, 2, 16).reshape(8, 2), 1).bfloat16().requires_grad_()
    assert reliability(probabilities, response) == reliability(probabilities.detach().double(), response)
    with pytest.raises(DataError, match=r"shape \(5, 2\)"):
        reliability(probabilities[:5], response)
    with pytest.raises(DataError, match="NaN"):
        reliability(probabilities * torch.nan, response)
    with pytest.raises(DataError, match="needs probabilities"):
        reliability(8 * probabilities, response)
