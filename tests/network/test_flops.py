"""Operations counted, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regraft.network.flops import counting


@pytest.mark.parametrize(
    ("layer", "forward"),
    [
        (nn.Conv2d(6, 8, 3, padding=1, bias=False), 2 * 25 * 9 * 6 * 8),
        (nn.Conv2d(6, 8, 3, padding=1, groups=2), 2 * 25 * 9 * 3 * 8),
        (nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), 2 * 25 * 9 * 6),
        (nn.ConvTranspose2d(6, 4, 3, groups=2, bias=False), 2 * 25 * 9 * 6 * 2),
        (nn.Conv1d(6, 6, 3, padding=1, groups=3), 2 * 25 * 3 * 2 * 6),
    ],
)
def test_each_gradient_of_a_convolution_takes_what_its_forward_pass_takes(layer, forward):
    x = torch.randn(2, 6, *([25] if isinstance(layer, nn.Conv1d) else [5, 5]))
    with counting() as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * forward
    with counting() as counter:
        layer(x).sum().backward()  # of the input there is no gradient
    assert counter.get_total_flops() == 2 * 2 * forward
    with counting() as counter:
        layer(x.requires_grad_()).sum().backward()
    assert counter.get_total_flops() == 2 * 3 * forward


def test_a_matrix_product():
    with counting() as counter:
        torch.randn(3, 4) @ torch.randn(4, 5)
    assert counter.get_total_flops() == 2 * 3 * 4 * 5
