"""The closed forms against automatic differentiation and really training; the rows' checks fail when disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.reproduce.disturbed import must_fail_when_disturbed
from torch.autograd.functional import jacobian

from regraft.reproduce import ROWS
from regraft.reproduce.row import Context
from regraft.reproduce.taskhead import theory_rows
from regraft.reproduce.taskhead.theory import Model, aligned, generic, head_for
from regraft.reproduce.taskhead.theory_rows import descend

BY_ID = {row.id: row for row in ROWS}
CONTEXT = Context(Path("absent"), Path("absent"))


@pytest.mark.parametrize("make", [generic, aligned])
def test_the_kernels_are_products_of_derivatives(make):
    model = make(3)

    def outputs(backbone, head):
        return model.inputs @ backbone.T @ head

    by_backbone, by_head = jacobian(outputs, (model.backbone, model.head))
    by_backbone = by_backbone.flatten(1)
    torch.testing.assert_close(by_backbone @ by_backbone.T, model.backbone_kernel)
    torch.testing.assert_close(by_head @ by_head.T, model.head_kernel)
    torch.testing.assert_close(model.kernel, model.backbone_kernel + model.head_kernel)
    # Eqs. 29 and 31: one Gauss-Newton step of least norm
    joint = torch.cat([by_backbone, by_head], 1)
    step = torch.linalg.lstsq(joint, model.labels - model.outputs, driver="gelsd").solution
    torch.testing.assert_close(model.tuned_backbone, model.backbone + step[:-10].view(10, 12))
    torch.testing.assert_close(model.tuned_head, model.head + step[-10:])


def test_aligned_draws_are_what_proposition_2_asks_for():
    model = aligned(0)
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(model.inputs @ model.inputs.T, eye)
    torch.testing.assert_close(model.kernel, model.kernel[0, 0] * eye)
    share = float(model.backbone_kernel[0, 0] / model.kernel[0, 0])
    expected = (1 - share) / (2 - share) * model.labels
    torch.testing.assert_close(model.critical_norm(model.backbone_kernel), expected)


def test_the_printed_kernel_swaps_the_limits_of_lemma_3():
    """A head that is long beside the backbone: corrected α → 0, printed α → ½."""
    model = aligned(1)
    long = Model(model.inputs, model.labels, model.backbone, 1e3 * model.head)
    torch.testing.assert_close(long.critical_norm(long.backbone_kernel), 0 * long.labels, atol=1e-4, rtol=0)
    torch.testing.assert_close(long.critical_norm(long.head_kernel), long.labels / 2, atol=1e-4, rtol=0)


def test_a_head_of_the_same_norm_gives_the_outputs():
    model = generic(2)
    wanted = 0.3 * model.labels
    found = head_for(model, wanted)
    torch.testing.assert_close(found.outputs, wanted)
    torch.testing.assert_close(found.head.norm(), model.head.norm())
    torch.testing.assert_close(found.kernel, model.kernel)
    with pytest.raises(ValueError, match="need a head of norm"):
        head_for(model, 100 * model.labels)


def test_descent_is_automatic_differentiation():
    model = generic(4)
    backbone, head = (value.clone().requires_grad_() for value in (model.backbone, model.head))
    optimiser = torch.optim.SGD([backbone, head], lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        (0.5 * (model.inputs @ backbone.T @ head - model.labels).square().sum()).backward()
        optimiser.step()
    for found, expected in zip(descend(model, 0.05, 3), (backbone, head)):
        torch.testing.assert_close(found, expected.detach())


@pytest.fixture(scope="module")
def results():
    return {name: theory_rows.MEASURED[name].run(CONTEXT) for name in theory_rows.MEASURED}


@pytest.mark.parametrize("name", theory_rows.MEASURED)
def test_the_row_passes_and_each_check_fails_on_disturbed_numbers(name, results):
    must_fail_when_disturbed(BY_ID[name], results[name])


def test_the_rows_have_the_pages_draws(results):
    assert len(results["th-lem1-3"].seeds) == len(results["th-prop2"].seeds) == 20
    assert results["th-eq28-31"].seeds == (0, 1, 2, 3, 4)


def test_the_closed_form_is_nearer_the_lazier_training_is(results):
    errors = results["th-eq28-31"].notes["error by factor"]
    assert list(errors) == ["0.1", "0.03", "0.01", "0.003"]
    for seed in range(5):
        assert errors["0.1"][seed] > errors["0.03"][seed] > errors["0.01"][seed] > errors["0.003"][seed]


def test_table_9_is_read_along_the_path_and_not_along_the_list(results):
    """The same numbers on a path that runs the other way follow no arrow."""
    result = results["th-prop2"]
    verdicts = (
        BY_ID["th-prop2"]
        .judge(type(result)(result.arms, {"q₀/Y": list(result.axes["q₀/Y"])[::-1]}, result.seeds, (), result.notes))
        .verdicts
    )
    assert not any(verdict.outcome.holds for verdict in verdicts)
