"""Kernel × direction × energy: the kernel written out in full, other orders, and the row's check."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.reproduce.disturbed import must_fail_when_disturbed
from torch.func import functional_call, jacrev

from regraft.reproduce import ROWS
from regraft.reproduce.row import Context
from regraft.reproduce.taskhead.one_step import CLASSES, LOSSES, RATES, predicted, residuals, run, split

ROW = next(row for row in ROWS if row.id == "th-eq2")


@pytest.mark.parametrize("loss", LOSSES)
def test_the_kernel_may_be_written_out(loss):
    """Eq. 10 sum by sum, with κ(j, n) as a matrix (h, h)."""
    backbone, head, inputs = split("MLP", 0)
    codes = torch.arange(len(inputs)) % CLASSES
    weights = {name: value.detach() for name, value in backbone.named_parameters()}
    by_weights = jacrev(lambda tensors: functional_call(backbone, tensors, (inputs,)))(weights)
    flat = torch.cat([value.flatten(2) for value in by_weights.values()], 2)  # (N, h, P)
    features = backbone(inputs).detach()
    energy = LOSSES[loss][1](head(features), codes).detach()
    expected = torch.zeros_like(features)
    for j in range(len(inputs)):
        for n in range(len(inputs)):
            direction = torch.autograd.functional.jacobian(head, features[n])  # (C, h)
            expected[j] += flat[j] @ flat[n].T @ direction.T @ energy[n] / len(inputs)
    torch.testing.assert_close(predicted(backbone, head, inputs, codes, loss), expected)


def test_a_prediction_without_its_energy_is_of_first_order(monkeypatch):
    monkeypatch.setitem(LOSSES, "CE", (LOSSES["CE"][0], lambda outputs, codes: 0.9 * LOSSES["MSE"][1](outputs, codes)))
    found = residuals("MLP", "CE", 0)["residual"]
    assert 1.9 < found[-2] / found[-1] < 2.1  # halved with the rate, where Eq. 2 has a quarter


def test_the_row_passes_and_its_check_fails_on_disturbed_numbers():
    result = run(Context(Path("absent"), Path("absent")))
    assert list(result.arms["residual"]) == ["MLP CE", "MLP MSE", "S4 CE", "S4 MSE"]
    assert result.arm("residual").shape == (4, 5, len(RATES))
    must_fail_when_disturbed(ROW, result)
