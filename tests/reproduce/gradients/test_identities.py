"""The identities of paper 000: the rules by hand, the errors that must be seen, and the row's checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.reproduce.disturbed import must_fail_when_disturbed
from torch import nn
from torch.nn import functional

from regraft.features import Tangent
from regraft.linear import Blocks
from regraft.network import ArrayPreprocess, from_module
from regraft.network.resnet import cifar_resnet, s4
from regraft.reproduce import ROWS
from regraft.reproduce.gradients import identities
from regraft.reproduce.gradients.identities import NETWORKS, STEPS, errors, smooth
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context

ROW = next(row for row in ROWS if row.id == "gf-eq3-7")


class Plain(nn.Module):
    """Two convolutions with ReLUs, a mean, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1)
        self.one, self.two = nn.ReLU(), nn.ReLU()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(self.two(self.above(self.one(self.below(x)))).mean((2, 3)))


def plain():
    torch.manual_seed(0)
    return from_module(Plain(), ArrayPreprocess((3, 8, 8)))


def test_equations_6_and_7_written_out():
    """∂h/∂r = h(z; w̃, b̃) + h(∂z/∂r; w, 0), and at a ReLU its indicator times ∂z/∂r."""
    network, batch = plain(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    at = {name: value.double() for name, value in network.params.items()}
    moving = {name: torch.randn_like(value) for name, value in at.items() if not name.startswith("fc")}
    z, dz = batch, torch.zeros_like(batch)  # the seed of the chain
    for layer in ("below", "above"):
        weight, bias = at[f"{layer}.weight"], at[f"{layer}.bias"]
        image = functional.conv2d(z, weight, bias, 2, 1)
        dz = functional.conv2d(z, moving[f"{layer}.weight"], moving[f"{layer}.bias"], 2, 1) + functional.conv2d(
            dz, weight, None, 2, 1
        )
        z, dz = image.relu(), dz * (image >= 0)
    expected = dz.mean((2, 3)) @ at["fc.weight"].T
    tangent = Tangent(network, ["below.*", "above.*"], batch.float(), dtype=torch.float64)
    exact = Tangent(network, ["below.*", "above.*"], batch, dtype=torch.float64)
    torch.testing.assert_close(exact.apply(Blocks(moving)), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(tangent.apply(Blocks(moving)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "select"), [(s4(4), ("conv4.*", "bn4.*")), (cifar_resnet(8), ("layer3.0.*",))], ids=["s4", "resnet"]
)
def test_identities_hold_and_wrong_ones_do_not(module, select):
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.fill_(3.0)
    found = errors(from_module(module, ArrayPreprocess((3, 16, 16))), select, 0)
    assert max(found["jvp"], found["adjoint"], found["still"]) < 1e-12
    assert found["folded"] < 1e-5
    assert min(found["without a tensor"], found["moved"], found["no statistics"]) > 1e-2
    ratio = STEPS[0] / STEPS[-1]
    assert found["remainder"][0] / found["remainder"][-1] == pytest.approx(ratio**2, rel=0.1)
    assert found["change"][0] / found["change"][-1] == pytest.approx(ratio, rel=0.1)


def test_a_network_without_batchnorm_has_nothing_to_fold():
    assert "folded" not in errors(plain(), ("above.*",), 0)


def test_the_smooth_copy_has_no_kink_and_the_network_keeps_its_own():
    network = from_module(nn.Sequential(nn.Linear(2, 3), nn.ReLU6(), nn.Linear(3, 3), nn.ReLU()), ArrayPreprocess((2,)))
    made = smooth(network).module
    assert not any(isinstance(part, nn.ReLU | nn.ReLU6) for part in made.modules())
    assert isinstance(network.module[1], nn.ReLU6)
    x = torch.tensor([-20.0, 3.0, 30.0])
    torch.testing.assert_close(made[1](x), torch.tensor([0.0, 3.0, 6.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(made[3](x), torch.tensor([0.0, 3.05, 30.0]), atol=0.05, rtol=0)


@pytest.fixture
def result():
    """As it should come out, in the form in which it comes out."""
    small, large = {name: [1e-15] * 5 for name in NETWORKS}, {name: [0.5] * 5 for name in NETWORKS}
    arms = {arm: large if "without" in arm or "another" in arm else small for arm in identities._ARMS}
    arms["remainder"] = {name: [[step**2 for step in STEPS]] * 5 for name in NETWORKS}
    arms["change"] = {name: [list(STEPS)] * 5 for name in NETWORKS}
    return Result(arms, {"r": list(STEPS)}, range(5))


def test_the_checks_fail_on_disturbed_numbers(result):
    must_fail_when_disturbed(ROW, result)


@pytest.mark.parametrize(
    ("arm", "value"),
    [
        ("JVP error", 1e-9),
        ("adjoint error", 1e-9),
        ("error at w2 = 0", 1e-11),
        ("folding error", 1e-4),
        ("remainder", [step**1.8 for step in STEPS]),
    ],
)
def test_one_network_that_is_off_fails_the_row(result, arm, value):
    values = [*result.arms[arm]["R20"][:4], value] if arm != "remainder" else [value] * 5
    arms = {**result.arms, arm: {**result.arms[arm], "R20": values}}
    assert ROW.judge(replace(result, arms=arms)).status == "fail"


@pytest.mark.slow
def test_the_row_is_run_on_every_network(data_pack):
    found = identities.run(Context(data_pack, Path("absent"), seeds=(3,)))
    assert {arm: set(table) for arm, table in found.arms.items() if "statistics" not in arm and "fold" not in arm} == {
        arm: set(NETWORKS) for arm in found.arms if "statistics" not in arm and "fold" not in arm
    }
    assert set(found.arms["folding error"]) == set(NETWORKS) - {"attention"}
    assert ROW.judge(found).status == "not run"  # of five seeds
    verdicts = ROW.judge(replace(found, gates=())).verdicts
    assert all(verdict.outcome.holds for verdict in verdicts)
