"""Operations counted, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from regraft.network.flops import Operations


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
    with Operations() as counter:
        layer(x)
    assert counter.total == 2 * forward
    with Operations() as counter:
        layer(x).sum().backward()  # of the input there is no gradient
    assert counter.total == 2 * 2 * forward
    with Operations() as counter:
        layer(x.requires_grad_()).sum().backward()
    assert counter.total == 2 * 3 * forward


def test_a_matrix_product():
    with Operations() as counter:
        torch.randn(3, 4) @ torch.randn(4, 5)
    assert counter.total == 2 * 3 * 4 * 5


def test_operations_are_those_of_torchs_counter():
    layer, rows = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(3, 5, 8)
    with Operations() as ours:
        layer(rows).sum().backward()
    with FlopCounterMode(display=False) as torchs:
        layer(rows).sum().backward()
    assert ours.total == torchs.get_total_flops() > 3 * 5 * 8 * 8


@pytest.mark.parametrize("masked", [False, True])
def test_attention(masked):
    """2 B H L M (k + v) forward; backward twice that, and the scores again where they are not kept."""
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    mask = torch.ones(5, 7, dtype=torch.bool) if masked else None
    scores = 2 * 2 * 3 * 5 * 7 * 8
    with torch.no_grad(), Operations() as counter:
        scaled_dot_product_attention(query, key, value, mask)
    assert counter.total == 2 * scores
    with Operations() as counter:
        scaled_dot_product_attention(query.requires_grad_(), key, value, mask).sum().backward()
    assert counter.total in (6 * scores, 7 * scores)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Operations() as counter:
        scaled_dot_product_attention(query, key, value, mask)
    assert counter.total == 2 * scores


def test_a_recurrent_layer():
    layer, rows = nn.LSTM(8, 4, bidirectional=True), torch.randn(5, 3, 8, requires_grad=True)
    with Operations() as counter:
        layer(rows)[0].sum().backward()
    assert counter.total == 3 * 2 * (2 * 5 * 3 * (16 * 8 + 16 * 4))
