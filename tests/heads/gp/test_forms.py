"""What is not finite is refused, what is large is not."""

import pytest
import scipy.sparse
import torch
from tests.heads.gp.problems import kernel, normal

from regraft.errors import SolverError
from regraft.heads.gp.forms import KernelForm, check_pairs, check_symmetric, finite


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("spoiled", [[torch.nan], [torch.inf], [-torch.inf], [torch.inf, -torch.inf]])
def test_nan_and_infinities_are_refused(spoiled, wide):
    values = torch.ones(6, 5)
    values.view(-1)[7 : 7 + len(spoiled)] = torch.tensor(spoiled)
    with pytest.raises(SolverError, match=r"the kernel.*finite numbers"):
        finite(values, "the kernel", wide=wide)


@pytest.mark.parametrize("values", [torch.eye(3).to_sparse(), torch.eye(3) * 1j, scipy.sparse.eye(3), [["a"]]])
def test_what_is_no_dense_array_of_real_numbers_is_refused(values):
    with pytest.raises(SolverError, match=r"the kernel; expected an? (dense )?array"):
        finite(values, "the kernel")


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


def test_every_output_is_judged_in_its_own_units():
    """A large output does not hide what is wrong with another."""
    large, small = 1e6 * torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 5.0], [0.0, 1.0]], dtype=torch.float64)
    for systems in (torch.stack([large, small]), torch.stack([small, large])):
        with pytest.raises(SolverError, match=r"differ from their mirror by 5.0e\+00, the largest being 1.0e\+00"):
            check_symmetric(systems)
    check_symmetric(torch.stack([large, torch.zeros_like(large)]))


# ---------------------------------------------------------------------- two rows at a time


def test_rows_that_cannot_vary_together_so_much_are_refused_wherever_they_are():
    gram = kernel("per-output", 100, 2)
    check_pairs(gram)
    gram[1, 3, 70] = gram[1, 70, 3] = -2 * gram[1].diagonal().max()
    with pytest.raises(SolverError, match=r"semi-definite.*rows 3 and 70 have the variances .* and the covariance -"):
        check_pairs(gram)
    with pytest.raises(SolverError, match="row 1 has the variance -5"):
        check_pairs(torch.diag(torch.tensor([1.0, -0.5, 1.0]))[None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_rounding_refuses_no_pair(dtype, unit):
    """Rows of zeros, tiny rows and repeated ones, of kernels that rounding in float32 spoiled."""
    phi = normal(90, 3, seed=8)
    phi[10], phi[11], phi[12] = 0, 1e-6 * phi[11], phi[13]
    gram = phi @ phi.T
    shaken = 1e-5 * normal(90, 90, seed=10)
    for each in (gram, gram + shaken + shaken.T, torch.zeros_like(gram), gram - 10 * torch.finfo(torch.float32).eps):
        check_pairs((unit * each).to(dtype)[None])
    check_pairs(torch.full((1, 3, 3), 3e38))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_refused_has_an_eigenvalue_far_below_zero(seed):
    gram = kernel("shared", 6, 1, seed=seed) + 0.3 * normal(6, 6, seed=seed)
    gram = (gram + gram.T) / 2
    values = torch.linalg.eigvalsh(gram)
    try:
        check_pairs(gram[None])
    except SolverError:
        assert float(values[0]) < -1e-4 * float(values[-1])


# ---------------------------------------------------------------------- variances


def test_variances_of_outputs_with_their_own_kernels_are_not_taken_row_by_row():
    """(N, C) has as many numbers as (C, N)."""
    form, prior = KernelForm("per-output", 3), torch.tensor([[1.0, 1.0], [5.0, 5.0], [9.0, 9.0]], dtype=torch.float64)
    assert torch.equal(form.diagonal(prior, 2), prior)
    with pytest.raises(SolverError, match=r"expected \(C, N\) = \(3, 2\); got \(2, 3\)"):
        form.diagonal(prior.T, 2)
    assert form.release(form.diagonal(prior[:, :1], 1)).shape == (3, 1)
    assert KernelForm("per-output", 1).diagonal(torch.ones(4), 4).shape == (1, 4)
