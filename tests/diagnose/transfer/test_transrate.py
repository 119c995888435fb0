"""TransRate by its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Resamples
from regraft.diagnose.transfer.labels import Labels
from regraft.diagnose.transfer.transrate import transrate
from regraft.errors import DataError


def _rate(z: np.ndarray, distortion: float) -> float:
    return 0.5 * float(np.linalg.slogdet(np.eye(z.shape[1]) + z.T @ z / (len(z) * distortion))[1])


def _by_hand(x: np.ndarray, y: np.ndarray, distortion: float, scaled: bool) -> float:
    z = x - x.mean(0)
    if scaled:
        z = z / np.sqrt(np.square(z).sum() / len(z))
    return _rate(z, distortion) - sum((y == c).mean() * _rate(z[y == c], distortion) for c in np.unique(y))


@pytest.mark.parametrize(("n", "d"), [(60, 8), (30, 40)])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("distortion", [1e-4, 0.1])
def test_is_its_definition(rows, n: int, d: int, scaled: bool, distortion: float) -> None:
    made = rows(n=n, d=d)
    found = transrate(*made.parts, distortion=distortion, scaled=scaled)
    assert found.value == pytest.approx(_by_hand(made.x.numpy(), made.y, distortion, scaled), rel=1e-9)


def test_scaled_it_ignores_scale_place_rotation_and_order(rows) -> None:
    made = rows()
    value = transrate(*made.parts).value
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    order = np.random.default_rng(0).permutation(60)
    moved = Decomposition.of((9 * made.x @ turn - 4)[torch.from_numpy(order)])
    labels = Labels.of(np.array([7, 3, 5])[made.y][order])
    assert transrate(moved, labels, made.resamples).value == pytest.approx(value, rel=1e-9)
    assert transrate(*made.parts, scaled=False).value != pytest.approx(value, rel=1e-3)


def test_classes_that_differ_nowhere_save_next_to_nothing() -> None:
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    doubled, y = torch.cat([x, x]), np.repeat([0, 1], 300)  # each class is the same cloud
    labels = Labels.of(y)
    assert abs(transrate(Decomposition.of(doubled), labels, Resamples.of(labels, count=9)).value) < 1e-9


def test_what_it_owes_to_a_row_is_nearly_what_goes_with_it(rows) -> None:
    made = rows(n=1500, d=3)
    found = transrate(*made.parts, distortion=1.0)
    own = np.flatnonzero(made.y == 1)[::40]  # intervals are of deviations within classes
    left = np.array([transrate(*made.without(row).parts, distortion=1.0).value for row in own])
    owed, got = (1 - 1 / 1500) * (found.value - left), found.influence[own].numpy()
    np.testing.assert_allclose(got - got.mean(), owed - owed.mean(), atol=0.02 * np.abs(owed - owed.mean()).max())


def test_refuses_numbers_and_no_distortion(rows) -> None:
    made = rows()
    with pytest.raises(DataError, match="defined for classes"):
        transrate(made.decomposition, Labels.of(np.linspace(0, 1, 60)), made.resamples)
    with pytest.raises(DataError, match="distortion"):
        transrate(*made.parts, distortion=0.0)
