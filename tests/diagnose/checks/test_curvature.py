"""What the check of curvature draws and says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from regraft.diagnose.checks.check import Case, Subject
from regraft.diagnose.checks.curvature import CURVATURE, _findings
from regraft.diagnose.curvature.spectrum import curvature
from regraft.diagnose.objective import LossName
from regraft.graft.loop.objective import Objective
from regraft.network import ArrayPreprocess, from_module


@pytest.fixture
def subject() -> Subject:
    """A linear layer of four outputs that are numbers: its Hessian is that of one, four times."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 12, generator=generator), torch.randn(30, 4, generator=generator)
    torch.manual_seed(0)
    network = from_module(nn.Sequential(nn.Linear(12, 4)).eval(), ArrayPreprocess((12,)))
    return Subject("pretrained", network, [x], y, "squared")


@pytest.mark.parametrize("top", [3, 6])
def test_eigenvalues_that_outputs_share_are_each_counted(subject: Subject, top: int) -> None:
    (drawn,) = CURVATURE.run(Case((subject,), None, 30, top=top), lambda done, total: None).figure["subjects"]
    wide = torch.cat([subject.inputs[0].double(), torch.ones(30, 1, dtype=torch.float64)], 1)
    every = torch.linalg.eigvalsh(wide.T @ wide / 30).flip(0).repeat_interleave(4)
    assert drawn["eigenvalues"] == pytest.approx(every[:top].tolist(), rel=2e-3)
    above = drawn["above"]
    for at, low, high in zip(above["at"], above["low"], above["high"]):
        fewest, most = (float((every > at * near).double().mean()) for near in (1.002, 0.998))
        assert low - 1e-9 <= most
        assert fewest <= high + 1e-9


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "squared"])
def test_the_stable_rate_is_that_of_the_loss_which_training_lowers(subject: Subject, loss: LossName) -> None:
    kind = {"softmax": "multiclass", "sigmoid": "multilabel", "squared": "regression"}[loss]
    targets = subject.targets.argmax(1) if loss == "softmax" else subject.targets.gt(0).float()
    subject = replace(subject, loss=loss, targets=targets)
    weight, bias = (subject.network.params[name].double() for name in ("0.weight", "0.bias"))
    rows, labels = subject.inputs[0].double(), targets.double() if targets.is_floating_point() else targets
    training = Objective(kind, "accuracy")

    def lowered(flat: Tensor) -> Tensor:
        return training.loss(rows @ flat[:48].view(4, 12).T + flat[48:], labels)

    hessian = torch.autograd.functional.hessian(lowered, torch.cat([weight.flatten(), bias]))
    (said,) = _findings(Case((subject,), None, 30), [curvature(subject.objective, k=1)])
    assert said.value == pytest.approx(2 / float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-3)


def test_advice_on_bounds_is_an_option_of_a_diagnosis(subject: Subject) -> None:
    found = curvature(subject.objective, k=6, max_products=7)
    said = next(f for f in _findings(Case((subject,), None, 30), [found]) if f.code == "curvature-bounds")
    assert "after 7 products of at most 7." in said.detail
    assert "max_products" not in said.detail
    assert "--top" in said.advice
