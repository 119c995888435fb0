"""The variation along the gradient: a quadratic by hand, rows and batches, mistakes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from regraft.diagnose import Objective, Spread, batch_variation, variation
from regraft.errors import DataError
from regraft.network import ArrayPreprocess, Network, from_module

WIDTH, OUTPUTS, ROWS = 4, 2, 12


def _linear() -> Network:
    torch.manual_seed(3)
    return from_module(nn.Sequential(nn.Linear(WIDTH, OUTPUTS)), preprocess=ArrayPreprocess((WIDTH,)))


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, OUTPUTS, generator=generator)


def _quadratic(**options: object) -> Objective:
    x, y = _data()
    return Objective(_linear(), x, y, loss="squared", dtype=torch.float64, **options)  # type: ignore[arg-type]


def _by_hand(objective: Objective) -> tuple[float, float, float]:
    """L, ‖g‖² and gᵀHg of ½ mean ‖W x + b − y‖², with inputs (x, 1)."""
    x, y = (value.double() for value in _data())
    inputs = torch.cat([x, torch.ones(ROWS, 1)], 1)
    weight = torch.cat([objective.point["0.weight"], objective.point["0.bias"][:, None]], 1)
    left = inputs @ weight.T - y
    gradient = left.T @ inputs / ROWS
    return (
        float(0.5 * left.square().sum() / ROWS),
        float(gradient.square().sum()),
        float((inputs @ gradient.T).square().sum() / ROWS),
    )


@pytest.mark.parametrize(("protocol", "size"), [("gradient", 0.3), ("fixed", 0.2)])
def test_the_loss_of_a_linear_network_is_the_parabola(protocol: str, size: float) -> None:
    objective = _quadratic(batch_size=5)
    loss, square, curve = _by_hand(objective)
    found = variation(objective, protocol=protocol, size=size, steps=20)  # type: ignore[arg-type]
    factor = size if protocol == "gradient" else size / math.sqrt(square)
    steps = np.arange(21) * factor
    wanted = loss - steps * square + 0.5 * steps**2 * curve
    np.testing.assert_allclose(found.losses, wanted, rtol=1e-10)
    changes = np.abs(wanted - loss)[1:]
    assert found.maximum == pytest.approx(changes.max(), rel=1e-10)
    assert found.argmax == 1 + int(changes.argmax())
    assert found.mean == pytest.approx(changes.mean(), rel=1e-10)
    assert found.rise == pytest.approx(max(0.0, (wanted - loss).max()), rel=1e-9)
    assert found.gradient == pytest.approx(math.sqrt(square), rel=1e-10)
    assert found.step == pytest.approx(factor * math.sqrt(square), rel=1e-10)


def test_protocols_agree_where_their_steps_do() -> None:
    objective = _quadratic()
    own = variation(objective, size=0.1, steps=7)
    fixed = variation(objective, protocol="fixed", size=own.step, steps=7)
    np.testing.assert_allclose(fixed.losses, own.losses, rtol=1e-12)


def test_batches_change_nothing_and_equal_calls_are_equal() -> None:
    one, other = _quadratic(batch_size=64), _quadratic(batch_size=5)
    first, second = variation(one, steps=9), variation(other, steps=9)
    np.testing.assert_allclose(first.losses, second.losses, rtol=1e-12)
    assert first.error == pytest.approx(second.error, rel=1e-10)
    assert variation(one, steps=9) == first


def test_the_error_is_that_of_a_mean_over_rows() -> None:
    objective = _quadratic()
    found = variation(objective, size=0.2, steps=6)
    x, y = (value.double() for value in _data())
    _, gradient = objective.gradient()
    moved = objective.point - gradient * (0.2 * found.argmax)
    rows = [
        0.5 * (functional.linear(x, at["0.weight"], at["0.bias"]) - y).square().sum(1)
        for at in (objective.point, moved)
    ]
    change = rows[1] - rows[0]
    assert found.maximum == pytest.approx(abs(float(change.mean())), rel=1e-10)
    assert found.error == pytest.approx(float(change.std()) / math.sqrt(ROWS), rel=1e-10)


def test_another_point() -> None:
    objective = _quadratic()
    there = {"0.bias": objective.point["0.bias"] * 2.0}
    found = variation(objective, steps=3, point=there)
    moved = Objective(_linear().with_params(there), *_data(), loss="squared", dtype=torch.float64)
    np.testing.assert_allclose(found.losses, variation(moved, steps=3).losses, rtol=1e-12)


def test_each_batch_along_its_own_gradient() -> None:
    found = batch_variation(_quadratic(batch_size=4), steps=8, size=0.2)
    x, y = _data()
    alone = [
        variation(
            Objective(_linear(), x[i : i + 4], y[i : i + 4], loss="squared", dtype=torch.float64), steps=8, size=0.2
        )
        for i in (0, 4, 8)
    ]
    assert found.maximum.values == pytest.approx([one.maximum for one in alone], rel=1e-10)
    assert found.maximum.mean == pytest.approx(np.mean([one.maximum for one in alone]), rel=1e-10)
    assert found.maximum.deviation == pytest.approx(np.std([one.maximum for one in alone], ddof=1), rel=1e-9)
    assert found.mean.error == pytest.approx(found.mean.deviation / math.sqrt(3), rel=1e-12)


def test_a_loss_that_overflows_is_infinite() -> None:
    x, y = _data()
    objective = Objective(_linear(), x, y, loss="squared")
    found = variation(objective, size=1e30, steps=2)
    assert found.maximum == math.inf
    assert math.isnan(found.error)


class _Unsaid(nn.Module):
    """Outputs that are NaN for one row, on which no gradient depends."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).masked_fill((x == 0).all(1, keepdim=True), torch.nan)


def test_a_loss_that_is_no_number_where_the_line_begins_is_refused() -> None:
    x, y = _data()
    x[3] = 0
    objective = Objective(from_module(_Unsaid(), ArrayPreprocess((WIDTH,))), x, y, loss="squared")
    with pytest.raises(DataError, match="the loss where a line begins; expected a finite number; got nan"):
        variation(objective, steps=2)


def test_progress_counts_steps() -> None:
    seen: list[tuple[int, int]] = []
    variation(_quadratic(), steps=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_mistakes_are_named() -> None:
    x, y = _data()
    objective = _quadratic()
    with pytest.raises(DataError, match="gradient or fixed"):
        variation(objective, protocol="other")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="1 step or more"):
        variation(objective, steps=0)
    with pytest.raises(DataError, match="two batches"):
        batch_variation(objective)
    fitted = Objective(_linear(), x, objective.outputs(), loss="squared", dtype=torch.float64)
    with pytest.raises(DataError, match="not zero"):
        variation(fitted)
    assert math.isnan(variation(Objective(_linear(), x[:1], y[:1], loss="squared"), steps=2).error)  # one row
    assert math.isnan(Spread((1.0,)).deviation)
