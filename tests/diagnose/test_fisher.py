"""Fisher products: against dense Jacobians and automatic Hessians in float64, as operators, and beside Eq. 5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest, toy_network
from torch import Tensor, nn
from torch.nn import functional

from regraft.diagnose import DifferenceFisher, Fisher, LossHessian, ProductError, fisher, product_error
from regraft.errors import DataError, ModelError, SolverError
from regraft.linear import Dense, DenseOperator, FeatureDesign, Tag, cg, jacobi
from regraft.network import About, ArrayPreprocess, Network

LOSSES = ("softmax", "sigmoid", "squared")


class Normed(nn.Module):
    """A convolution, BatchNorm, a smooth activation, a linear head, and a parameter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))


class Writing(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu_(x))


def made(module: nn.Module, shape: tuple[int, ...], seed: int = 0) -> Network:
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
    return Network("made", module, ArrayPreprocess(shape), About("module"))


def normed() -> tuple[Network, Tensor]:
    return made(Normed(), (2, 5, 5)), torch.randn(7, 2, 5, 5, generator=torch.Generator().manual_seed(1))


def explicit(network: Network, batch: Tensor, names: list[str]) -> tuple[Tensor, Tensor]:
    """The Jacobian ``(N, C, P)`` and the outputs, by backward passes in float64."""
    params = {name: value.double() for name, value in network.params.items()}
    buffers = {name: b.double() if b.is_floating_point() else b for name, b in network.buffers.items()}

    def outputs(*chosen: Tensor) -> Tensor:
        return network({**params, **dict(zip(names, chosen))}, buffers, batch.double())

    given = tuple(params[name] for name in names)
    blocks = torch.autograd.functional.jacobian(outputs, given)
    return torch.cat([block.flatten(2) for block in blocks], dim=2), outputs(*given).detach()


def value(loss: str, outputs: Tensor) -> Tensor:
    """The loss of one row at fixed labels, whose second derivative does not depend on them."""
    if loss == "softmax":
        return functional.cross_entropy(outputs[None], torch.tensor([1]))
    if loss == "sigmoid":
        return functional.binary_cross_entropy_with_logits(outputs, torch.ones_like(outputs), reduction="sum")
    return 0.5 * (outputs - 1).square().sum()


def oracle(loss: str, jacobian: Tensor, outputs: Tensor, weights: Tensor) -> Tensor:
    """Σ_i w_i J_iᵀ H_i J_i with automatic Hessians of the loss."""
    hessians = [torch.autograd.functional.hessian(lambda f: value(loss, f), row) for row in outputs]
    return torch.einsum("n,nca,ncd,ndb->ab", weights, jacobian, torch.stack(hessians), jacobian)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fast", [True, False])
def test_the_exact_product_is_the_dense_matrix(loss: Any, fast: bool) -> None:
    network, batch = normed()
    matrix = fisher(network, batch, loss=loss, dtype=torch.float64, batch_size=3, fast=fast)
    names = list(matrix.shapes)
    assert names == list(network.params)
    expected = oracle(loss, *explicit(network, batch, names), torch.full((7,), 1 / 7, dtype=torch.float64))
    scale = float(expected.abs().max())
    np.testing.assert_allclose(matrix.dense().numpy(), expected.numpy(), rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(matrix.diagonal().numpy(), expected.diagonal().numpy(), rtol=0, atol=1e-12 * scale)


def test_it_is_symmetric_and_positive_semidefinite_of_the_rank_that_softmax_leaves() -> None:
    network, batch = normed()
    matrix = fisher(network, batch[:2], dtype=torch.float64)
    assert {Tag.SYMMETRIC, Tag.POSITIVE_SEMIDEFINITE} <= matrix.tags
    dense = matrix.dense()
    values = torch.linalg.eigvalsh(dense).flip(0)
    assert float((dense - dense.T).abs().max()) <= 1e-15 * float(dense.abs().max())
    assert float(values.min()) >= -1e-14 * float(values[0])
    # each of the two rows gives C − 1 = 2 directions, for equal logits' change moves no probability
    assert float(values[3]) > 1e-8 * float(values[0]) > float(values[4])


@pytest.mark.parametrize("loss", LOSSES)
def test_selected_parameters_and_weights_of_rows(loss: Any) -> None:
    network, batch = normed()
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0, 0.1], dtype=torch.float64)
    matrix = fisher(network, batch, loss=loss, select=["conv.*", "norm.bias"], weights=weights, dtype=torch.float64)
    names = ["conv.weight", "conv.bias", "norm.bias"]
    assert list(matrix.shapes) == names
    expected = oracle(loss, *explicit(network, batch, names), weights)
    np.testing.assert_allclose(matrix.dense().numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)


def test_the_mean_over_rows_does_not_depend_on_batches_nor_on_repeated_rows() -> None:
    network, batch = normed()
    vector = torch.randn(sum(p.numel() for p in network.params.values()), 2, dtype=torch.float64)
    whole = fisher(network, batch, dtype=torch.float64, batch_size=64).apply(vector)
    parts = fisher(network, [batch[:4], batch[4:]], dtype=torch.float64, batch_size=2).apply(vector)
    twice = fisher(network, torch.cat([batch, batch]), dtype=torch.float64, batch_size=5).apply(vector)
    for other in (parts, twice):
        np.testing.assert_allclose(other.numpy(), whole.numpy(), rtol=1e-10, atol=1e-13)


def test_conjugate_gradients_solve_with_it() -> None:
    """(F + δI) x = b, whose dense solution is known, and the diagonal as a preconditioner."""
    network, batch = normed()
    matrix = fisher(network, batch, dtype=torch.float64).shifted(1e-2)
    right = torch.randn(matrix.shape[0], dtype=torch.float64)
    names = list(network.params)
    dense = oracle("softmax", *explicit(network, batch, names), torch.full((7,), 1 / 7, dtype=torch.float64))
    expected = torch.linalg.solve(dense + 1e-2 * torch.eye(len(dense), dtype=torch.float64), right)
    for preconditioner in (None, jacobi(matrix)):
        found = cg(matrix, right, tol=1e-12, preconditioner=preconditioner)
        assert found.converged
        np.testing.assert_allclose(found.solution.numpy(), expected.numpy(), rtol=1e-8, atol=1e-10)


def test_of_a_linear_head_it_is_the_textbook_matrix() -> None:
    """Σ_i w_i x_i x_iᵀ ⊗ H_i: logistic regression's Fisher matrix, of features alone."""
    x, coefficients = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    matrix = Fisher(FeatureDesign({"x": Dense(x)}, n_outputs=3), x @ coefficients)
    chance = torch.softmax(x @ coefficients, 1)
    blocks = torch.diag_embed(chance) - chance[:, :, None] * chance[:, None, :]
    expected = torch.einsum("na,nb,ncd->acbd", x, x, blocks).reshape(12, 12) / 6
    np.testing.assert_allclose(matrix.dense().numpy(), expected.numpy(), rtol=1e-12, atol=1e-15)


def test_the_loss_hessian_is_that_of_design_ggn() -> None:
    network, batch = normed()
    matrix = fisher(network, batch, dtype=torch.float64)
    chance = torch.softmax(matrix.design.outputs, 1)  # type: ignore[attr-defined]
    blocks = (torch.diag_embed(chance) - chance[:, :, None] * chance[:, None, :]) / len(batch)
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    for hessian in (blocks, matrix.hessian):
        found = matrix.design.ggn(hessian).apply(vector)
        np.testing.assert_allclose(found.numpy(), matrix.apply(vector).numpy(), rtol=1e-11, atol=1e-14)


def test_rows_of_a_manifest() -> None:
    network, (images, _) = toy_network(), toy_arrays(6)
    batch = torch.stack([torch.as_tensor(network.preprocess(image)) for image in images])
    vector = torch.randn(sum(p.numel() for p in network.params.values()))
    for kind in (fisher, DifferenceFisher):
        one, other = (kind(network, given, batch_size=4).apply(vector) for given in (toy_manifest(6), batch))
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------- the finite difference


@pytest.mark.parametrize("loss", LOSSES)
def test_the_finite_difference_is_the_gradient_of_the_divergence(loss: Any) -> None:
    """Eq. 5 as it is printed: ∇_θ' KL(p(y|θ) ‖ p(y|θ')) at θ + εu, by automatic differentiation of the KL itself."""
    network, batch = normed()
    matrix = DifferenceFisher(network, batch, loss=loss, step=1e-3, dtype=torch.float64, batch_size=3)
    point = {name: value.double() for name, value in network.params.items()}
    buffers = {name: b.double() if b.is_floating_point() else b for name, b in network.buffers.items()}
    flat = torch.cat([value.reshape(-1) for value in point.values()])
    assert matrix.epsilon == pytest.approx(1e-3 * float(flat.norm()), rel=1e-12)
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    moved = flat + matrix.epsilon * vector / vector.norm()

    def outputs(at: Tensor) -> Tensor:
        pieces = at.split([value.numel() for value in point.values()])
        return network({n: p.view(point[n].shape) for n, p in zip(point, pieces)}, buffers, batch.double())

    def divergence(at: Tensor) -> Tensor:
        first, second = outputs(flat).detach(), outputs(at)
        if loss == "softmax":
            logs = torch.log_softmax(first, 1)
            return (logs.exp() * (logs - torch.log_softmax(second, 1))).sum() / len(batch)
        if loss == "sigmoid":
            pairs = [torch.distributions.Bernoulli(logits=each) for each in (first, second)]
        else:
            pairs = [torch.distributions.Normal(each, torch.ones_like(each)) for each in (first, second)]
        return torch.distributions.kl_divergence(*pairs).sum() / len(batch)

    leaf = moved.requires_grad_(True)
    expected = torch.autograd.grad(divergence(leaf), leaf)[0] * vector.norm() / matrix.epsilon
    np.testing.assert_allclose(matrix.apply(vector).numpy(), expected.numpy(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_its_error_falls_with_the_step(loss: Any) -> None:
    """O(ε): a slope of one in a log-log plot, in float64."""
    network, batch = normed()
    exact = fisher(network, batch, loss=loss, dtype=torch.float64)
    steps = np.array([1e-2, 1e-3, 1e-4, 1e-5])
    errors = [
        product_error(DifferenceFisher(network, batch, loss=loss, step=step, dtype=torch.float64), exact).median
        for step in steps
    ]
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(1.0, abs=0.1)


def test_its_error_in_float32_is_what_the_paper_says() -> None:
    """Relative error "on the order of 0.001", with the default step."""
    network, batch = normed()
    exact = fisher(network, batch, dtype=torch.float64)
    error = product_error(DifferenceFisher(network, batch), exact)
    assert 0 < error.median < 5e-3
    assert error.median <= error.largest < 5e-2
    assert product_error(fisher(network, batch), exact).largest < 1e-5  # the exact one, in float32


def test_it_is_homogeneous_and_solves_by_conjugate_gradients() -> None:
    network, batch = normed()
    matrix = DifferenceFisher(network, batch, step=1e-5, dtype=torch.float64)
    assert matrix.tags == {Tag.SYMMETRIC}
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    np.testing.assert_allclose(matrix.apply(1e6 * vector), 1e6 * matrix.apply(vector), rtol=1e-9)
    assert not bool(matrix.apply(torch.zeros_like(vector)).any())
    exact = fisher(network, batch, dtype=torch.float64)
    found = cg(matrix.shifted(0.1), vector, tol=1e-4)
    assert found.converged
    wanted = cg(exact.shifted(0.1), vector, tol=1e-10).solution
    assert float((found.solution - wanted).norm() / wanted.norm()) < 1e-3


def test_selection_weights_and_batches_of_the_finite_difference() -> None:
    network, batch = normed()
    given: dict[str, Any] = {"select": "fc.*", "weights": torch.arange(7.0), "dtype": torch.float64}
    exact = fisher(network, batch, **given)
    assert product_error(DifferenceFisher(network, batch, step=1e-6, batch_size=2, **given), exact).largest < 1e-4


def test_what_a_network_writes_into_is_a_copy() -> None:
    network, batch = made(Writing(), (4,)), torch.randn(5, 4)
    before, exact = batch.clone(), fisher(network, batch, dtype=torch.float64)
    approximate = DifferenceFisher(network, batch, step=1e-6, dtype=torch.float64)
    assert product_error(approximate, exact).largest < 1e-4
    assert torch.equal(batch, before)


# ----------------------------------------------------------------------------------------- mistakes


def test_what_does_not_fit_is_refused() -> None:
    network, batch = normed()
    for kind in (fisher, DifferenceFisher):
        with pytest.raises(DataError, match="softmax, sigmoid, squared; got 'hinge'"):
            kind(network, batch, loss="hinge")  # type: ignore[operator]
        with pytest.raises(DataError, match=r"expected \(7,\)"):
            kind(network, batch, weights=torch.ones(6))  # type: ignore[operator]
        with pytest.raises(DataError, match="finite numbers >= 0"):
            kind(network, batch, weights=-torch.ones(7))  # type: ignore[operator]
        with pytest.raises(ModelError, match="no parameter of made matches"):
            kind(network, batch, select="nothing.*")  # type: ignore[operator]
        with pytest.raises(DataError, match="no rows"):
            kind(network, batch[:0])  # type: ignore[operator]
    for step in (0.0, float("inf"), float("nan")):
        with pytest.raises(SolverError, match="finite positive number"):
            DifferenceFisher(network, batch, step=step)
    with pytest.raises(DataError, match="outputs of a design"):
        Fisher(FeatureDesign({"x": Dense(torch.ones(4, 2))}, n_outputs=3), torch.ones(3, 3))
    with pytest.raises(DataError, match="outputs of a loss"):
        LossHessian(torch.ones(0, 3))
    network.module.train()
    for kind in (fisher, DifferenceFisher):
        with pytest.raises(ModelError, match="training mode"):
            kind(network, batch)  # type: ignore[operator]


class Rooted(nn.Module):
    """Finite everywhere, its derivative below zero NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        return self.fc(torch.where(z > 0, z.sqrt(), torch.zeros_like(z)))


def test_derivatives_that_are_not_finite_are_said_to_be_so() -> None:
    network, batch = made(Rooted(), (2,)), torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    for found, error in (
        (fisher(network, batch), ModelError),
        (DifferenceFisher(network, batch), SolverError),
    ):
        with pytest.raises(error, match=r"the derivatives of made.*NaN or infinity"):
            found.apply(torch.ones(21, 1))


def test_the_median_of_an_even_number_of_errors_lies_between_the_middle_ones() -> None:
    assert ProductError(torch.tensor([4.0, 1.0, 3.0, 2.0])).median == 2.5
    assert ProductError(torch.tensor([1e-1, 1e-3], dtype=torch.float64)).median == pytest.approx(0.0505, rel=1e-12)
    assert ProductError(torch.tensor([3.0, 1.0, 2.0])).median == 2.0


def test_errors_of_products_that_do_not_exist_are_refused() -> None:
    one = DenseOperator(torch.eye(3))
    assert product_error(one, one).largest == 0.0
    assert product_error(DenseOperator(1.5 * torch.eye(3)), one).median == pytest.approx(0.5, rel=1e-6)
    with pytest.raises(SolverError, match="two operators"):
        product_error(one, DenseOperator(torch.eye(2)))
    with pytest.raises(SolverError, match="not zero"):
        product_error(one, DenseOperator(torch.zeros(3, 3)))
    with pytest.raises(SolverError, match=r"probes.*at least one; got 0"):
        product_error(one, one, probes=0)
