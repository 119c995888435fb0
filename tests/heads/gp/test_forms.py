"""What is not finite is refused, what is large is not."""

import pytest
import torch

from regraft.errors import SolverError
from regraft.heads.gp.forms import finite


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("spoiled", [[torch.nan], [torch.inf], [-torch.inf], [torch.inf, -torch.inf]])
def test_nan_and_infinities_are_refused(spoiled, wide):
    values = torch.ones(6, 5)
    values.view(-1)[7 : 7 + len(spoiled)] = torch.tensor(spoiled)
    with pytest.raises(SolverError, match=r"the kernel.*finite numbers"):
        finite(values, "the kernel", wide=wide)


def test_finite_numbers_whose_sum_overflows_are_not():
    values = torch.full((4, 3), 3e38)
    assert torch.isinf(values.sum())
    assert torch.equal(finite(values, "the kernel", wide=False), values)
    assert finite(values, "the kernel").dtype == torch.float64
