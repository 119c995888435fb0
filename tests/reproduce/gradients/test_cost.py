"""Operations of a step against counts by hand, and the row's check."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.network import ArrayPreprocess, from_module
from regraft.network.resnet import s4
from regraft.reproduce import ROWS
from regraft.reproduce.gradients import cost
from regraft.reproduce.gradients.cost import TOPMOST, steps
from regraft.reproduce.result import Result
from regraft.reproduce.sources import pack_network

ROW = next(row for row in ROWS if row.id == "gf-cost")
#: Of a row of 32 x 32 pixels in S4: the fourth and the third convolution (on 4 x 4 and 8 x 8), and a head of 5.
FOURTH, THIRD, HEAD = 2 * 16 * 9 * 128 * 256, 2 * 64 * 9 * 64 * 128, 2 * 256 * 5


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return from_module(s4(5), ArrayPreprocess((3, 32, 32)))


def test_one_layer_costs_as_much_as_fine_tuning_it(network):
    found = steps(network, ["conv4.*", "bn4.*"], network.example(4))
    assert found["apply"] == found["adjoint"] == FOURTH + 2 * HEAD
    assert found["tuning"] == 2 * FOURTH + 3 * HEAD
    assert found["linear"] == found["apply"] + found["adjoint"]


def test_two_layers_by_hand(network):
    """Eq. 6 has two terms in the fourth layer and one in the third; fine-tuning needs no derivative by its input."""
    found = steps(network, ["conv3.*", "bn3.*", "conv4.*", "bn4.*"], network.example(4))
    assert found["apply"] == found["adjoint"] == THIRD + 2 * FOURTH + 2 * HEAD
    assert found["tuning"] == 2 * THIRD + 3 * FOURTH + 3 * HEAD
    assert min(found["linear seconds"], found["tuning seconds"]) > 0
    forward = cost._forward(network, ["conv3.*", "bn3.*", "conv4.*", "bn4.*"], network.example(4))
    assert forward == THIRD + FOURTH + HEAD


def result(**ratios):
    names = {TOPMOST: 1.0, "last block": 1.9, "last two blocks": 2.0, **ratios}
    arms = {
        "operations of a linear step": {name: [100 * ratio] for name, ratio in names.items()},
        "operations of a fine-tuning step": {name: [100.0] for name in names},
    }
    return Result(arms, seeds=(0,))


def test_the_check_fails_on_disturbed_numbers():
    must_fail_when_disturbed(ROW, result())


@pytest.mark.parametrize("name", [TOPMOST, "last block", "last two blocks"])
@pytest.mark.parametrize("ratio", [0.5, 1.4, 2.5])
def test_each_band_is_judged(name, ratio):
    assert ROW.judge(result(**{name: ratio})).status == "fail"
    assert ROW.judge(replace(result(), seeds=(0,))).status == "pass"


def test_theta_2_of_mobilenet(data_pack):
    found = cost.selections(pack_network("V1a", data_pack))
    assert found[TOPMOST] == ("mobilenet_v1.layer.25.*",)
    assert found["last block"] == ("mobilenet_v1.layer.24.*", "mobilenet_v1.layer.25.*")
    assert len(found["last two blocks"]) == 4
