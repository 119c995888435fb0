"""Jacobian similarity and spectra: against the printed formula on dense matrices, closed forms, and invariances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from tests.features.toy import toy_network
from torch import Tensor, nn

from regraft.diagnose import jacobian_similarities, jacobian_similarity, jacobian_spectrum
from regraft.errors import DataError, ModelError, SolverError
from regraft.features import Tangent, ntk
from regraft.linear import Dense, Design, FeatureDesign
from regraft.network import About, ArrayPreprocess, Network


def design(matrix: Tensor) -> Design:
    """A design whose Jacobian, of one output, is the matrix."""
    return FeatureDesign({"x": Dense(matrix)}, n_outputs=1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(size: int, seed: int) -> Tensor:
    return torch.linalg.qr(random(size, size, seed=seed))[0]


def printed(a: Tensor, b: Tensor) -> float:
    """tr(AᵀB BᵀA) / (‖AAᵀ‖_F ‖BBᵀ‖_F), letter by letter."""
    return float(torch.trace(a.T @ b @ b.T @ a) / (torch.linalg.norm(a @ a.T) * torch.linalg.norm(b @ b.T)))


def test_it_is_the_printed_formula_over_parameters_and_over_rows() -> None:
    one, other = random(5, 8), random(4, 8, seed=1)
    assert jacobian_similarity(design(one), design(other)) == pytest.approx(printed(one.T, other.T), rel=1e-12)
    wide = random(5, 3, seed=2)
    found = jacobian_similarity(design(one), design(wide), over="rows")
    assert found == pytest.approx(printed(one, wide), rel=1e-12)


def test_the_order_of_blocks_is_no_matter() -> None:
    one, other = random(5, 3), random(5, 4, seed=1)
    there = FeatureDesign({"a": Dense(one), "b": Dense(other)}, 1)
    back = FeatureDesign({"b": Dense(other), "a": Dense(one)}, 1)
    assert jacobian_similarity(there, back) == pytest.approx(1, rel=1e-12)


def test_closed_forms() -> None:
    one = random(4, 9)
    for over in ("parameters", "rows"):
        assert jacobian_similarity(design(one), design(-3 * one), over=over) == pytest.approx(1.0, rel=1e-12)
    apart = torch.zeros(2, 4, 9, dtype=torch.float64)
    apart[0, :, :4], apart[1, :, 4:8] = random(4, 4), random(4, 4, seed=1)
    assert jacobian_similarity(design(apart[0]), design(apart[1])) == 0.0
    assert jacobian_similarity(design(apart[0].T), design(apart[1].T), over="rows") == 0.0
    # of two lines it is the squared cosine of their angle, to the power that the formula gives
    lines = torch.tensor([[1.0, 0.0], [np.cos(0.7), np.sin(0.7)]], dtype=torch.float64)
    assert jacobian_similarity(design(lines[:1]), design(lines[1:])) == pytest.approx(np.cos(0.7) ** 2, rel=1e-12)
    # r orthonormal directions of which s are shared: s / r
    basis = rotation(9, 3)
    assert jacobian_similarity(design(basis[:4]), design(basis[1:5])) == pytest.approx(3 / 4, rel=1e-12)


def test_what_it_does_not_change_with() -> None:
    one, other = random(5, 8), random(5, 8, seed=1)
    over_parameters, over_rows = (
        jacobian_similarity(design(one), design(other), over=o) for o in ("parameters", "rows")
    )
    turned, rows = rotation(8, 2), rotation(5, 3)
    mixed = jacobian_similarity(design(rows @ one), design(other))  # rows of one among themselves
    both = jacobian_similarity(design(one @ turned), design(other @ turned))  # both alike in parameter space
    assert mixed == pytest.approx(over_parameters, rel=1e-10)
    assert both == pytest.approx(over_parameters, rel=1e-10)
    alone = jacobian_similarity(design(one @ turned), design(other), over="rows")  # one network's own parameters
    assert alone == pytest.approx(over_rows, rel=1e-10)
    # and what it does change with
    assert abs(jacobian_similarity(design(one @ turned), design(other)) - over_parameters) > 1e-3
    assert abs(jacobian_similarity(design(rows @ one), design(other), over="rows") - over_rows) > 1e-3


def test_networks_and_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against dense Jacobians of two networks and of two batches; the size of the chunks changes nothing."""
    batches = [random(3, 3, 6, 6).float(), random(4, 3, 6, 6, seed=1).float()]
    networks = [toy_network(seed) for seed in (0, 1)]
    names = [name for name in networks[0].params if not name.startswith("fc.")]
    given = [(networks[0], batches[0]), (networks[0], batches[1]), (networks[1], batches[0])]
    tangents = [Tangent(network, names, batch, dtype=torch.float64) for network, batch in given]
    dense = [t.operator().dense() for t in tangents]
    expected = [[printed(a.T, b.T) for b in dense] for a in dense]
    for size in (2**28, 1):
        monkeypatch.setattr("regraft.diagnose.jacobian._BYTES", size)
        seen: list[tuple[int, int]] = []
        found = jacobian_similarities(tangents, progress=lambda *done, seen=seen: seen.append(done))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
        assert seen == [(k, 6) for k in range(1, 7)]
    assert 0 < float(found[0, 1]) < 1
    over_rows = jacobian_similarities([tangents[0], tangents[2]], over="rows")
    assert float(over_rows[0, 1]) == pytest.approx(printed(dense[0], dense[2]), rel=1e-9)


def test_chunks_of_derivatives_that_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = [random(5, 8), random(7, 8, seed=1)]
    expected = [[printed(a.T, b.T) for b in matrices] for a in matrices]
    for size in (1, 2 * 8 * 8, 2**28):  # a row at a time, two, all
        monkeypatch.setattr("regraft.diagnose.jacobian._BYTES", size)
        found = jacobian_similarities([design(matrix) for matrix in matrices])
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


class Positions(nn.Module):
    """One linear layer, on the mean of the positions of a row or on each of them."""

    def __init__(self, each: bool, again: bool = False) -> None:
        super().__init__()
        self.first, self.fc, self.each, self.again = nn.Linear(4, 5), nn.Linear(5, 2), each, again

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x if self.each else x.mean(1)))
        if self.again:
            x = torch.tanh(x @ self.first.weight @ self.first.weight.T)
        return self.fc(x.mean(1) if self.each else x)


class Scaled(nn.Module):
    """A scale and a shift without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


class Normed(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.fc = first, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.first(x)).mean(1))


@pytest.mark.parametrize(
    "kinds",
    [
        (lambda: Positions(True), lambda: Positions(False)),
        (lambda: Positions(False), lambda: Positions(False, again=True)),
        (lambda: Normed(nn.LayerNorm(4)), lambda: Normed(Scaled())),
    ],
)
def test_networks_whose_layers_differ_in_kind(kinds: Sequence[Callable[[], nn.Module]]) -> None:
    """The same names and shapes, but one network's layer sees one position a row and the other's three, or is read by a
    function of the network as well, or has no rule."""
    batch, tangents = random(4, 3, 4).float(), []
    for make in kinds:
        torch.manual_seed(0)
        network = Network("made", make(), ArrayPreprocess((3, 4)), About("module"))
        tangents.append(Tangent(network, "first.*", batch, dtype=torch.float64))
    dense = [t.operator().dense() for t in tangents]
    for one, other in ((0, 1), (1, 0)):
        expected = printed(dense[one].T, dense[other].T)
        assert jacobian_similarity(tangents[one], tangents[other]) == pytest.approx(expected, rel=1e-9)
        with pytest.raises(ModelError, match=r"found alike; got another of first\.weight\. .*multiply their rows"):
            ntk(tangents[one], tangents[other])
        with pytest.raises(ModelError, match="found alike"):
            ntk(tangents[one], tangents[other].take([1]), form="shared")


def test_kernels_between_tangents_of_one_network_need_not_be_found_alike() -> None:
    """Of one row what is added to every row is not tried for all rows at once, and is derived in another way."""

    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.fc = nn.Parameter(torch.randn(1, 1, 4)), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.tanh(torch.cat([self.token.expand(len(x), -1, -1), x], 1)).mean(1))

    torch.manual_seed(0)
    network = Network("made", Token(), ArrayPreprocess((3, 4)), About("module"))
    batch = random(6, 3, 4).float()
    several, one = (Tangent(network, "*", batch[:rows], dtype=torch.float64) for rows in (6, 1))
    expected = several.operator().dense() @ one.operator().dense().T
    torch.testing.assert_close(ntk(several, one), expected)
    torch.testing.assert_close(ntk(one, several), expected.T)


def test_a_network_is_more_like_itself_after_a_small_change_than_another_one() -> None:
    batch, network = random(6, 3, 6, 6).float(), toy_network(0)
    moved = network.with_params({n: p + 0.02 * torch.randn_like(p) for n, p in network.params.items()})
    tangents = [Tangent(each, "conv*", batch) for each in (network, moved, toy_network(1))]
    found = jacobian_similarities(tangents)
    assert float(found[0, 1]) > 0.9 > float(found[0, 2])


@pytest.mark.parametrize("shape", [(4, 9), (9, 4)])
def test_the_spectrum_is_that_of_singular_values(shape: tuple[int, int]) -> None:
    matrix = random(*shape)
    found = jacobian_spectrum(design(matrix))
    np.testing.assert_allclose(found.values.numpy(), torch.linalg.svdvals(matrix).square().numpy(), rtol=1e-10)
    turned = jacobian_spectrum(design(rotation(shape[0], 5) @ matrix @ rotation(shape[1], 6)))
    np.testing.assert_allclose(turned.values.numpy(), found.values.numpy(), rtol=1e-9)


@pytest.mark.parametrize("size", [1, 2**28])
def test_the_spectrum_of_single_precision_is_multiplied_in_double(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three columns, or rows, that almost depend on one another: the least eigenvalue is 1e-8 of the largest."""
    monkeypatch.setattr("regraft.diagnose.jacobian._BYTES", size)
    matrix = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    matrix[:, 2] = matrix[:, 0] + matrix[:, 1] + 1e-4 * matrix[:, 2]
    network = Network("made", nn.Linear(40, 1), ArrayPreprocess((40,)), About("module"))
    tangent = Tangent(network, "weight", matrix.T[:, :40].contiguous())
    features = FeatureDesign({"a": Dense(matrix.T.contiguous())}, 2)
    for each in (design(matrix), features, tangent, tangent.scaled(0.5), tangent | design(matrix.T.contiguous())):
        dense = each.operator().dense().double()
        expected = torch.linalg.svdvals(dense).square()
        np.testing.assert_allclose(jacobian_spectrum(each).values.numpy(), expected.numpy(), rtol=1e-5)


def test_the_spectrum_of_a_network() -> None:
    tangent = Tangent(toy_network(), "*", random(4, 3, 6, 6), dtype=torch.float64)
    found, dense = jacobian_spectrum(tangent), tangent.operator().dense()
    np.testing.assert_allclose(
        found.values.numpy(), torch.linalg.svdvals(dense).square().numpy(), rtol=1e-9, atol=1e-12
    )
    assert found.values.shape == (20,)


def test_counts_of_directions() -> None:
    equal = jacobian_spectrum(design(3 * rotation(7, 0)[:5]))
    assert equal.effective_rank == pytest.approx(5, rel=1e-9)
    assert equal.participation == pytest.approx(5, rel=1e-9)
    assert equal.dimension(9.0) == pytest.approx(2.5, rel=1e-9)
    assert [equal.needed(share) for share in (0.1, 0.2, 0.21, 1.0)] == [1, 1, 2, 5]
    for share in (0.0, -0.5, 2.0, float("nan")):
        with pytest.raises(SolverError, match="the share of a spectrum; expected 0 < share ≤ 1"):
            equal.needed(share)
    for ridge in (0.0, -1.0, float("nan")):
        with pytest.raises(SolverError, match="the ridge of an effective dimension; expected a positive number"):
            equal.dimension(ridge)
    single = jacobian_spectrum(design(torch.outer(random(4), random(6, seed=1))))
    assert single.effective_rank == pytest.approx(1, abs=1e-6)
    assert single.participation == pytest.approx(1, rel=1e-9)
    assert float(single.values.min()) >= 0
    # λ = 3, 1: shares 3/4, 1/4
    two = jacobian_spectrum(design(torch.diag(torch.tensor([1.0, 3.0**0.5], dtype=torch.float64))))
    assert two.shares.tolist() == pytest.approx([0.75, 0.25])
    assert two.effective_rank == pytest.approx(4 / 3**0.75, rel=1e-9)
    assert two.participation == pytest.approx(1.6, rel=1e-9)


def test_what_cannot_be_compared_is_refused() -> None:
    one, more = design(random(4, 6)), design(random(5, 6))
    with pytest.raises(DataError, match=r'use over="rows"'):
        jacobian_similarity(one, design(random(4, 7)))
    with pytest.raises(DataError, match=r'use over="parameters"'):
        jacobian_similarity(one, more, over="rows")
    with pytest.raises(DataError, match="one dtype"):
        jacobian_similarity(one, design(random(4, 6).float()))
    with pytest.raises(DataError, match="parameters or rows"):
        jacobian_similarity(one, more, over="columns")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="at least one"):
        jacobian_similarities([])
    for bad in (torch.zeros(4, 6, dtype=torch.float64), torch.full((4, 6), torch.nan, dtype=torch.float64)):
        for over in ("parameters", "rows"):
            with pytest.raises(SolverError, match=r"zero or NaN|NaN or infinity"):
                jacobian_similarity(one, design(bad), over=over)  # type: ignore[arg-type]
        with pytest.raises(SolverError, match=r"zero or NaN|NaN or infinity"):
            jacobian_spectrum(design(bad))
