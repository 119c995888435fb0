from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from regraft.errors import DataError
from regraft.heads import Response, ece, link, reliability, temperature
from regraft.heads.calibration import temperatures


def likelihood(t: float, logits: torch.Tensor, response: Response) -> float:
    if response.kind == "multilabel":
        each = torch.nn.functional.binary_cross_entropy_with_logits(logits / t, response.values, reduction="none")
        return float(each.sum() if response.mask is None else each[response.mask].sum())
    there = response.present
    return float(torch.nn.functional.cross_entropy(logits[there] / t, response.codes[there], reduction="sum"))


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
    assert 1e-3 <= temperature(right, response) < 0.05  # the likelihood is 1 to rounding from there on
    assert temperature(-right, response) == pytest.approx(1e3)
    assert temperature(torch.zeros(4, 2), response) == 1.0
    assert temperature(torch.full((4, 2), 0.5), response) == 1.0  # of a ridge head without features
    missing = Response.of("multilabel", ["a", "b"], np.array([[1, np.nan], [0, np.nan]]))
    assert temperature(torch.tensor([[0.0, 5], [0, 5]]), missing) == 1.0  # what is not flat has no label
    assert temperature(torch.zeros(4, 1), Response.of("regression", ["y"], np.arange(4.0))) == 1.0
    with pytest.raises(DataError, match="NaN"):
        temperature(right * torch.nan, response)


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
