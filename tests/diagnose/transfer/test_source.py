"""LEEP and NCE on sources whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.diagnose.transfer.estimate import Resamples
from regraft.diagnose.transfer.labels import Labels
from regraft.diagnose.transfer.source import checked_source, leep, nce
from regraft.errors import DataError


def _entropy(labels: Labels) -> float:
    shares = (labels.counts / labels.rows).numpy()
    return float(-(shares * np.log(shares)).sum())


def test_a_perfect_source(rows) -> None:
    made = rows()
    source = torch.eye(4, dtype=torch.float64)[torch.from_numpy(made.y) + 1]  # a source class for each, one unused
    for found in (leep(source, made.labels, made.resamples), nce(source.argmax(1), made.labels, made.resamples)):
        assert found.value == pytest.approx(0, abs=1e-12)
        assert (found.low, found.high) == pytest.approx((0, 0), abs=1e-9)


def test_a_source_that_tells_nothing(rows) -> None:
    made = rows()
    same = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).expand(60, 3)
    for found in (leep(same, made.labels, made.resamples), nce(same.argmax(1), made.labels, made.resamples)):
        assert found.value == pytest.approx(-_entropy(made.labels), rel=1e-12)
    independent = Labels.of(np.tile([0, 0, 1], 20))
    found = nce(np.repeat([4, 9], 30), independent, made.resamples)
    assert found.value == pytest.approx(-_entropy(independent), rel=1e-12)


def test_leep_is_its_definition(rows) -> None:
    made = rows()
    source = torch.rand(60, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)
    theta, y = source.numpy(), made.y
    joint = np.zeros((3, 7))
    for i in range(60):
        joint[y[i]] += theta[i] / 60
    wanted = np.mean([np.log((theta[i] * joint[y[i]] / joint.sum(0)).sum()) for i in range(60)])
    assert leep(source, made.labels, made.resamples).value == pytest.approx(wanted, rel=1e-12)
    rounded = checked_source(source * torch.linspace(0.9995, 1.0005, 60, dtype=torch.float64)[:, None], 60)
    assert leep(rounded, made.labels, made.resamples).value == pytest.approx(wanted, rel=1e-12)


def test_nce_is_minus_the_conditional_entropy(rows) -> None:
    made = rows()
    z = np.random.default_rng(1).integers(0, 4, 60)
    joint = np.array([[((made.y == y) & (z == k)).mean() for k in range(4)] for y in range(3)])
    conditional = joint / joint.sum(0)
    wanted = (joint[joint > 0] * np.log(conditional[joint > 0])).sum()
    assert nce(z, made.labels, made.resamples).value == pytest.approx(wanted, rel=1e-12)


def test_leep_of_certain_predictions_is_nce(rows) -> None:
    made = rows()
    z = torch.from_numpy(np.random.default_rng(1).integers(0, 4, 60))
    hard = torch.eye(4, dtype=torch.float64)[z]
    assert leep(hard, made.labels, made.resamples).value == pytest.approx(nce(z, made.labels, made.resamples).value)


def test_the_order_of_the_arguments_matters() -> None:
    y, z = np.repeat([0, 1], 20), np.tile(np.arange(4), 10) + 4 * np.repeat([0, 1], 20)  # z refines y
    one, other = Labels.of(y), Labels.of(z)
    draws = Resamples.of(one, count=9)
    assert nce(z, one, draws).value == pytest.approx(0, abs=1e-12)  # y is known given z
    assert nce(y, other, draws).value == pytest.approx(-np.log(4), rel=1e-12)  # z given y is one of four


def test_both_lie_between_minus_the_entropy_and_zero(rows) -> None:
    for seed in range(20):
        made = rows(seed=seed)
        generator = torch.Generator().manual_seed(seed)
        source = (5 * torch.randn(60, 4, generator=generator, dtype=torch.float64)).softmax(1)
        for found in (leep(source, made.labels, made.resamples), nce(source.argmax(1), made.labels, made.resamples)):
            assert -_entropy(made.labels) - 1e-12 <= found.value <= 0


def test_nce_owes_a_row_what_goes_with_it(rows) -> None:
    made = rows(n=80)
    z = np.random.default_rng(1).integers(0, 4, 80)
    found = nce(z, made.labels, made.resamples)
    for row in range(0, 80, 9):
        rest, kept = made.without(row), np.arange(80) != row
        left = nce(z[kept], rest.labels, rest.resamples).value
        assert float(found.influence[row]) == pytest.approx((1 - 1 / 80) * (found.value - left), rel=1e-9)


def test_leep_owes_a_row_its_derivative(rows) -> None:
    made = rows(n=80)
    source = (2 * torch.randn(80, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).softmax(1)
    theta, y = source.numpy(), made.y

    def weighted(w: np.ndarray) -> float:
        joint = np.stack([(w * (y == c)) @ theta for c in range(3)])
        return float(w @ np.log((theta * (joint / joint.sum(0))[y]).sum(1)) / w.sum())

    found = leep(source, made.labels, made.resamples)
    assert found.value == pytest.approx(weighted(np.ones(80)), rel=1e-12)
    for row in range(0, 80, 9):
        step = 1e-5 * (np.arange(80) == row)
        slope = (weighted(1 + step) - weighted(1 - step)) / 2e-5
        assert float(found.influence[row]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    "source",
    [
        torch.randn(60, 4, dtype=torch.float64),  # logits
        torch.ones(60, 1, dtype=torch.float64),
        torch.full((59, 4), 0.25, dtype=torch.float64),
        torch.full((60, 4), float("nan"), dtype=torch.float64),
        torch.zeros(60, dtype=torch.int64),
    ],
)
def test_what_is_no_table_of_probabilities_is_refused(source: torch.Tensor) -> None:
    with pytest.raises(DataError, match="source's predictions"):
        checked_source(source, 60)


def test_source_labels_are_integers(rows) -> None:
    made = rows()
    for wrong in (np.zeros(59, dtype=int), np.zeros(60), np.zeros((60, 2), dtype=int)):
        with pytest.raises(DataError, match="source labels"):
            nce(wrong, made.labels, made.resamples)
