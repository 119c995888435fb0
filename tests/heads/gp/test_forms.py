"""What is not finite is refused, what is large is not."""

import pytest
import torch
from tests.heads.gp.problems import kernel

from regraft.errors import SolverError
from regraft.heads.gp.forms import KernelForm, check_symmetric, finite


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


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_symmetry_is_judged_in_units_of_the_largest_entry(unit):
    """Differences of 1e-6 of it are roundings of float32, of 1e-2 they are not, however large the kernel is."""
    gram = kernel("per-output", 300, 2)
    gram /= gram.diagonal(dim1=1, dim2=2).max()
    for difference, refused in ((1e-6, False), (1e-2, True)):
        moved = unit * gram
        moved[1, 280, 3] += unit * difference
        if refused:
            with pytest.raises(SolverError, match="symmetric"):
                check_symmetric(moved)
        else:
            check_symmetric(moved)


def test_variances_of_outputs_with_their_own_kernels_are_not_taken_row_by_row():
    """(N, C) has as many numbers as (C, N)."""
    form, prior = KernelForm("per-output", 3), torch.tensor([[1.0, 1.0], [5.0, 5.0], [9.0, 9.0]], dtype=torch.float64)
    assert torch.equal(form.diagonal(prior, 2), prior)
    with pytest.raises(SolverError, match=r"expected \(C, N\) = \(3, 2\); got \(2, 3\)"):
        form.diagonal(prior.T, 2)
    assert form.release(form.diagonal(prior[:, :1], 1)).shape == (3, 1)
    assert KernelForm("per-output", 1).diagonal(torch.ones(4), 4).shape == (1, 4)
