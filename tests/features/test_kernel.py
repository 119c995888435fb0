"""The finite neural tangent kernel against the explicit Jacobian in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.features.test_tangent import jacobian, made
from tests.features.toy import toy_manifest, toy_network
from tests.network.zoo import Residual
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.features import NTK, Tangent, form_error, ntk, ntk_adjoints, ntk_project, ntk_within_rows
from regraft.features.tangent import kernel
from regraft.features.tangent.tape import Tape
from regraft.linear import Blocks, Dense, Design, FeatureDesign, cg
from regraft.network import Network


class Shared(nn.Module):
    """One layer called twice, one whose weight a function reads too, and a vector that no module owns."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.tied, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = torch.tanh(self.tied(x) + x @ self.tied.weight) * self.scale
        return self.head(self.norm(x))


class Choosing(nn.Module):
    """A vector that no rule knows; ``looking`` at numbers, which no pass over all rows at once can."""

    def __init__(self, looking: bool = True) -> None:
        super().__init__()
        self.looking, self.head, self.scale = looking, nn.Linear(4, 3), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x * self.scale) if not self.looking or float(x.detach().sum()) < 1e9 else x)


class Tokens(nn.Module):
    """A token and positions of length one, as in a vision transformer; ``mixing``: all rows would be seen by each."""

    def __init__(self, mixing: bool = False) -> None:
        super().__init__()
        self.mixing, self.head = mixing, nn.Linear(4, 3)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        positions = self.positions.mean(0, keepdim=True) if self.mixing else self.positions
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + positions
        return self.head(torch.tanh(x).mean(1))


class Gained(nn.Module):
    """A residual branch under a gain, a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + self.gain * torch.tanh(self.branch(x)))


class InPlace(nn.Module):
    """What layers returned is written into afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.first(x))
        y = self.second(x)
        y += x
        return self.head(torch.relu_(y).mean((2, 3)))


def flat_network() -> Network:
    torch.manual_seed(0)
    return made(
        nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7, bias=False), nn.ReLU(), nn.Linear(7, 3)), (6,)
    )


def exact(tangent: Tangent, batch: object, prior: dict[str, float] | None = None) -> Tensor:
    """J D^½ by reverse mode on the whole network, ``(N, C, P)``."""
    matrix = jacobian(tangent.network, tangent.names, batch).view(tangent.n_rows, tangent.n_outputs, -1)
    sizes = {name: torch.Size(shape).numel() for name, shape in tangent.shapes.items()}
    scale = torch.cat([torch.full((size,), (prior or {}).get(name, 1.0)) for name, size in sizes.items()])
    return matrix * scale.to(matrix)


NETWORKS = {
    "flat": flat_network,
    "residual": lambda: made(Residual(3), (3, 5, 4)),
    "shared": lambda: made(Shared(), (4,)),
    "gained": lambda: made(Gained(), (5,)),
    "in place": lambda: made(InPlace(), (2, 6, 6)),
    "tokens": lambda: made(Tokens(), (3, 4)),
    "mixed tokens": lambda: made(Tokens(mixing=True), (3, 4)),
}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_form_is_what_the_jacobian_gives(name: str, device: str) -> None:
    torch.manual_seed(1)
    network = NETWORKS[name]().to(device)
    batch = network.example(5).double()
    tangent = Tangent(network, "*", batch, dtype=torch.float64, batch_size=2)
    prior = {parameter: 0.5 + 0.25 * i for i, parameter in enumerate(tangent.names)}
    j = exact(tangent, batch, prior)
    full = torch.einsum("icp,jdp->icjd", j, j)
    n, c = tangent.n_rows, tangent.n_outputs
    outputs = full.diagonal(dim1=1, dim2=3).permute(2, 0, 1)
    approx = {"rtol": 1e-9, "atol": 1e-9 * float(full.abs().max())}
    torch.testing.assert_close(ntk(tangent, prior=prior), full.reshape(n * c, n * c), **approx)
    torch.testing.assert_close(ntk(tangent, prior=prior, form="per-output"), outputs, **approx)
    torch.testing.assert_close(ntk(tangent, prior=prior, form="shared"), outputs.mean(0), **approx)
    within = full.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    torch.testing.assert_close(ntk_within_rows(tangent, prior=prior), within, **approx)
    some, rest = torch.tensor([4, 1]), torch.tensor([0, 4, 2])
    cross = ntk(tangent.take(some), tangent.take(rest), prior=prior)
    torch.testing.assert_close(cross, full[some][:, :, rest].reshape(2 * c, 3 * c), **approx)
    kept = {"per-output": full * torch.eye(c, dtype=torch.float64, device=device)[None, :, None, :]}
    kept["shared"] = (
        outputs.mean(0)[:, None, :, None] * torch.eye(c, dtype=torch.float64, device=device)[None, :, None, :]
    )
    for form, approximate in kept.items():
        error = float((full - approximate).norm() / full.norm())
        assert form_error(tangent, form, prior=prior) == pytest.approx(error, rel=1e-6, abs=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("form", ["full", "per-output", "shared"])
def test_little_memory_means_more_passes_and_the_same_kernel(name: str, form: str, device: str) -> None:
    torch.manual_seed(1)
    network = NETWORKS[name]().to(device)
    tangent = Tangent(network, "*", network.example(4).double(), dtype=torch.float64)
    seen: list[tuple[int, int]] = []
    tight = ntk(tangent, form=form, memory=2000, progress=lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    torch.testing.assert_close(tight, ntk(tangent, form=form), rtol=1e-10, atol=1e-10)  # type: ignore[arg-type]
    assert seen[-1][0] == seen[-1][1] > tangent.n_rows


@pytest.mark.parametrize("form", ["per-output", "shared"])
@pytest.mark.parametrize("two", [False, True])
def test_where_like_outputs_meet_alone_little_memory_takes_them_one_by_one(form: str, two: bool) -> None:
    """Five outputs, and room for all parameters of one of them: five passes forward and backward beside the at least
    five forward and 25 backward of all outputs at once."""
    network = toy_network()
    tangent = Tangent(network, "*", network.example(6).double(), dtype=torch.float64, batch_size=2)
    sides = (tangent.take([0, 1, 2]), tangent.take([3, 4, 5])) if two else (tangent,)
    wanted = ntk(*sides, form=form)  # type: ignore[arg-type]
    room = 8 * (5 if two else 6) * tangent.n_coefficients
    before, spent = tangent.passed_rows, tangent.spent_flops
    found = ntk(*sides, form=form, memory=room)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert tangent.passed_rows - before == 5 * 6
    rows, spent = tangent.passed_rows, tangent.spent_flops - spent
    before = tangent.spent_flops
    ntk(*sides, memory=room)  # between unlike outputs nothing can be left out
    assert tangent.passed_rows - rows >= 5 * 6
    assert tangent.spent_flops - before > 2 * spent


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("form", ["full", "per-output", "shared"])
@pytest.mark.parametrize("memory", [2000, 2**31])
def test_rows_of_the_larger_side_pass_by_those_of_the_smaller_one(
    name: str, form: str, memory: int, device: str
) -> None:
    """Both ways round, in batches that do not divide them: the same part of the kernel of all rows."""
    torch.manual_seed(1)
    network = NETWORKS[name]().to(device)
    tangent = Tangent(network, "*", network.example(7).double(), dtype=torch.float64, batch_size=2)
    few, many = tangent.take([6, 1]), tangent.take([0, 4, 2, 5, 3])
    whole = ntk(tangent.take([6, 1, 0, 4, 2, 5, 3]), form=form)  # type: ignore[arg-type]
    cut = 2 * tangent.n_outputs if form == "full" else 2
    for left, right, part in ((few, many, whole[..., :cut, cut:]), (many, few, whole[..., cut:, :cut])):
        done: dict[int, int] = {}  # by all rows of all passes
        found = ntk(
            left, right, form=form, memory=memory, progress=lambda so_far, rows, done=done: done.update({rows: so_far})
        )
        torch.testing.assert_close(found, part, rtol=1e-10, atol=1e-10)
        assert list(done) == list(done.values())


def test_of_two_sides_the_memory_is_for_the_smaller_one() -> None:
    """A row beside six, one row of which passes at a time: room for two rows is room for all, in one pass over each."""
    network = NETWORKS["residual"]()
    tangent = Tangent(network, "*", network.example(7).double(), dtype=torch.float64, batch_size=1)
    room = 2 * 8 * tangent.n_outputs * tangent.n_coefficients
    before = tangent.passed_rows
    ntk(tangent.take([0]), tangent.take([1, 2, 3, 4, 5, 6]))
    tried = tangent.passed_rows - before - 7  # rules are tried on some rows first
    ntk(tangent.take([1, 2, 3, 4, 5, 6]), tangent.take([0]), memory=room)
    assert tangent.passed_rows - before == tried + 14


@pytest.mark.parametrize("form", ["full", "per-output", "shared"])
def test_kernels_in_single_precision_are_symmetric_to_the_last_bit(form: str) -> None:
    network = toy_network()
    found = ntk(Tangent(network, "*", network.example(150)), form=form)  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    assert torch.equal(found, found.mT)


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("form", ["full", "per-output", "shared"])
def test_derivatives_in_single_precision_are_multiplied_in_double(name: str, form: str) -> None:
    torch.manual_seed(1)
    network = NETWORKS[name]()
    tangent = Tangent(network, "*", network.example(6), batch_size=4)
    found = ntk(tangent, form=form, dtype=torch.float64)  # type: ignore[arg-type]
    assert found.dtype == torch.float64
    single = ntk(tangent, form=form)  # type: ignore[arg-type]
    torch.testing.assert_close(found, single.double(), rtol=1e-4, atol=1e-5 * float(single.abs().max()))
    between = ntk(tangent.take([0, 1]), tangent.take([2, 3, 4, 5]), form=form, dtype=torch.float64)  # type: ignore[arg-type]
    cut = 2 * tangent.n_outputs if form == "full" else 2
    torch.testing.assert_close(between, found[..., :cut, cut:], rtol=1e-5, atol=1e-7 * float(single.abs().max()))
    if name == "residual":  # no layer's sum over positions is rounded: the kernel is that of the very derivatives
        j = torch.cat([block.flatten(2) for block in tangent.rows(torch.arange(6)).values()], dim=2).double()
        full = torch.einsum("icp,jdp->icjd", j, j)
        own = full.diagonal(dim1=1, dim2=3)
        expected = {"full": full.flatten(2).flatten(0, 1), "per-output": own.permute(2, 0, 1), "shared": own.mean(2)}
        torch.testing.assert_close(found, expected[form], rtol=0, atol=1e-13 * float(full.abs().max()))


def test_tiles_of_a_symmetric_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.features.tangent.kernel._TILE", 3)
    for make in (NETWORKS["flat"], NETWORKS["residual"]):
        network = make()
        batch = network.example(8)
        tangent = Tangent(network, "*", batch.double(), dtype=torch.float64)
        j = exact(tangent, batch.double()).flatten(0, 1)
        torch.testing.assert_close(ntk(tangent), j @ j.T)
        assert torch.equal(ntk(tangent, form="shared"), ntk(tangent, form="shared").T)


def test_through_a_head_and_rows_of_it() -> None:
    network = NETWORKS["residual"]()
    batch = network.example(5).double()
    tangent = Tangent(network, None, batch, of="embedding", dtype=torch.float64)
    head = torch.randn(2, tangent.n_outputs, dtype=torch.float64)
    through = tangent.through(head).take([3, 0, 4])
    whole = jacobian(network.without_head(), tangent.names, batch).view(5, tangent.n_outputs, -1)
    j = torch.einsum("cd,ndp->ncp", head, whole[[3, 0, 4]]).flatten(0, 1)
    torch.testing.assert_close(ntk(through), j @ j.T)
    blocks = (j @ j.T).view(3, 2, 3, 2).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    torch.testing.assert_close(ntk_within_rows(through), blocks)


@pytest.mark.parametrize("outputs", [2, 3, 9])
def test_through_a_head_of_dependent_rows(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that sum to zero, as classes' do, or more of them than features: so many products as are independent."""
    network = NETWORKS["residual"]()
    batch = network.example(5).double()
    tangent = Tangent(network, None, batch, of="embedding", dtype=torch.float64)
    head = torch.randn(outputs, tangent.n_outputs, dtype=torch.float64)
    head = tangent.through(head - head.mean(0))
    whole = jacobian(network.without_head(), tangent.names, batch).view(5, tangent.n_outputs, -1)
    j = torch.einsum("cd,ndp->ncp", head.weight, whole)
    asked = []
    told = kernel.Side.batches
    monkeypatch.setattr(kernel.Side, "batches", lambda side: asked.append(side.outputs) or told(side))
    found = ntk(head)
    assert torch.equal(found, found.T)
    torch.testing.assert_close(found, j.flatten(0, 1) @ j.flatten(0, 1).T)
    between = j[:3].flatten(0, 1) @ j[[4, 1]].flatten(0, 1).T
    torch.testing.assert_close(ntk(head.take([0, 1, 2]), head.take([4, 1])), between)
    assert set(asked) == {min(outputs - 1, tangent.n_outputs)}
    one = tangent.through(torch.randn(1, tangent.n_outputs, dtype=torch.float64))  # another head on the other side
    mixed = torch.einsum("cd,ndp->ncp", one.weight, whole).flatten(0, 1)
    torch.testing.assert_close(ntk(head, one), j.flatten(0, 1) @ mixed.T)
    torch.testing.assert_close(ntk(one, head), mixed @ j.flatten(0, 1).T)


@pytest.mark.parametrize("name", ["flat", "residual"])
def test_the_operator_is_the_kernel(name: str, device: str) -> None:
    """Products from layers' inputs and gradients (flat) or from the tangent; dense and diagonal by layers."""
    network = NETWORKS[name]().to(device)
    tangent = Tangent(network, "*", network.example(5).double(), dtype=torch.float64)
    prior = dict.fromkeys(tangent.names, 0.7)
    gram = tangent.gram(prior)
    dense = ntk(tangent, prior=prior)
    assert isinstance(gram, NTK)
    assert (gram.outers is not None) == (name == "flat")
    torch.testing.assert_close(gram.dense(), dense)
    torch.testing.assert_close(gram.diagonal(), dense.diagonal())
    v = torch.randn(len(dense), 2, dtype=torch.float64, device=device)
    torch.testing.assert_close(gram.apply(v), dense @ v)
    torch.testing.assert_close(gram.adjoint(v), dense @ v)
    shifted = gram.shifted(0.1)
    solved = cg(shifted, v, tol=1e-10)
    torch.testing.assert_close(
        solved.solution, torch.linalg.solve(dense + 0.1 * torch.eye(len(dense), device=device), v)
    )


@pytest.mark.parametrize("name", list(NETWORKS))
def test_many_directions_at_once(name: str, device: str) -> None:
    network = NETWORKS[name]().to(device)
    batch = network.example(5).double()
    tangent = Tangent(network, "*", batch, dtype=torch.float64, batch_size=2)
    prior = {parameter: 0.5 + 0.25 * i for i, parameter in enumerate(tangent.names)}
    j = exact(tangent, batch, prior)
    vectors = torch.randn(5, tangent.n_outputs, 3, dtype=torch.float64, device=device)
    back = ntk_adjoints(tangent, vectors, prior=prior)
    flat = torch.cat([block.reshape(len(block), -1) for block in back.values()], dim=1)
    torch.testing.assert_close(flat, torch.einsum("nck,ncp->kp", vectors, j))
    found = ntk_project(tangent, back, prior=prior)
    torch.testing.assert_close(found.along, j @ flat.T)
    torch.testing.assert_close(found.within, j @ j.mT)


def test_the_operator_takes_many_vectors_in_one_pass_over_the_rows(device: str) -> None:
    network = NETWORKS["residual"]().to(device)
    batch = network.example(5).double()
    whole = Tangent(network, "*", batch, dtype=torch.float64, batch_size=2)
    seen = Tangent(network, "layer1.*", batch, of="embedding", dtype=torch.float64)
    for design in (whole, whole.take([3, 0, 3]), seen.through(network.params["fc.weight"].double()).take([4, 1])):
        rows, dense = design.operator(), design.rows(range(design.n_rows))
        j = torch.cat([block.flatten(2) for block in dense.values()], 2).flatten(0, 1)
        for count in (2, 2 * design.n_outputs + 1):
            before = (whole.passed_rows, seen.passed_rows)
            v = torch.randn(design.n_coefficients, count, dtype=torch.float64, device=device)
            torch.testing.assert_close(rows.apply(v), j @ v)
            torch.testing.assert_close(rows.adjoint(j @ v), j.T @ (j @ v))
            passed = [tangent.passed_rows - rows for tangent, rows in zip((whole, seen), before)]
            if count == 2:
                assert passed == [0, 0]
            else:  # what comes before layer1 is kept
                assert passed in ([2 * design.n_rows, 0], [0, seen.n_rows])


@pytest.mark.parametrize(("name", "select"), [("residual", "layer1.1.*"), ("in place", "second.*")])
def test_rows_that_are_read_again_begin_where_the_parameters_do(name, select) -> None:
    network = NETWORKS[name]()
    batch = network.example(7).double()

    def tangent(memory: int = 2**30) -> Tangent:
        return Tangent(network, select, batch, of="embedding", dtype=torch.float64, batch_size=3, memory=memory)

    kept, not_kept = tangent(), tangent(memory=0)
    looked = [each.tape.rows for each in (kept, not_kept)]
    head = torch.randn(2, kept.n_outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    passed, flops = [], []
    for some in (range(7), [5, 0, 2], range(7), [1, 1, 6]):
        found = [ntk(each.through(head).take(some)) for each in (kept, not_kept)]
        torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
        passed.append((kept.passed_rows - looked[0], not_kept.passed_rows - looked[1]))
        flops.append((kept.spent_flops, not_kept.spent_flops))
    assert passed == [(7, 7), (14, 10), (14, 17), (14, 20)]
    spent = [b - a for a, b in zip(flops[1], flops[2])]
    assert 0 < spent[0] < spent[1]
    other = kept.on(network.example(4).double())  # its own rows, none of them kept
    torch.testing.assert_close(ntk(other.through(head)), ntk(not_kept.on(network.example(4).double()).through(head)))
    assert kept.passed_rows - looked[0] == 14 + 4
    at_once = tangent().keep()
    looked = at_once.tape.rows
    first = ntk(at_once.through(head).take(range(6)))  # as of a fold: of some rows, what comes before kept of all
    torch.testing.assert_close(first, ntk(not_kept.through(head).take(range(6))), rtol=1e-10, atol=1e-10)
    ntk(at_once.through(head))
    assert at_once.passed_rows == looked + 7


def test_products_and_kernels_share_what_is_kept() -> None:
    """Rows that are prepared are read again: a kernel begins where the parameters do from its first pass on."""
    network = NETWORKS["residual"]()
    tangent = Tangent(network, network.topmost, network.example(6), of="embedding", fast=False).prepare()
    head, looked = torch.randn(2, tangent.n_outputs), tangent.tape.rows
    first = ntk(tangent.through(head))
    assert tangent.passed_rows == looked
    plain = Tangent(network, network.topmost, network.example(6), of="embedding", fast=False)
    torch.testing.assert_close(first, ntk(plain.through(head)), rtol=1e-4, atol=1e-5)


def test_few_derivatives_are_written_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS["residual"]()
    tangent = Tangent(network, "*", network.example(5).double(), dtype=torch.float64)
    wanted, vectors = ntk_within_rows(tangent), torch.randn(5, tangent.n_outputs, 2, dtype=torch.float64)
    back = ntk_adjoints(tangent, vectors)
    sizes: list[int] = []
    read = Tape.read
    monkeypatch.setattr(
        Tape, "read", lambda self, batch, *rest: (sizes.append(len(batch)), read(self, batch, *rest))[1]
    )
    monkeypatch.setattr("regraft.features.tangent.rowwise._BYTES", 2 * 8 * tangent.n_outputs * tangent.n_coefficients)
    torch.testing.assert_close(ntk_within_rows(tangent), wanted)
    torch.testing.assert_close(ntk_adjoints(tangent, vectors).flatten(), back.flatten())
    assert sizes == [2, 2, 1] * 2
    row = 8 * tangent.n_outputs * tangent.n_coefficients
    assert {part.stop - part.start for part, _, _ in tangent.row_blocks(3 * row)} == {3, 2}


def test_the_rows_of_a_network_that_writes_into_its_input_are_left_as_they_were() -> None:
    network, batch = made(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), (4,)), torch.randn(5, 4)
    given = batch.clone()
    tangent = Tangent(network, "*", batch, batch_size=2)
    ntk(tangent)
    tangent.rows(slice(1, 4))
    assert torch.equal(batch, given)


def test_rows_of_a_manifest_and_float32() -> None:
    network = toy_network()
    manifest = toy_manifest(6)
    tangent = Tangent(network, None, manifest, batch_size=4)
    kernel = ntk(tangent)
    rows = torch.cat([block.flatten(0, 1).flatten(1) for block in tangent.rows(range(6)).values()], dim=1).double()
    assert float((kernel - rows @ rows.T).abs().max()) <= 1e-4 * float(kernel.abs().max())
    assert kernel.dtype == torch.float32


def test_path_says_what_has_no_rule() -> None:
    tangent = Tangent(NETWORKS["shared"](), "*", torch.randn(3, 4))
    said = " ".join(tangent.tape.path)
    assert "tied.weight" in said
    assert "scale" in said
    assert "twice" not in said
    assert "by vmap" in said
    assert "1 layer by rules" in Tangent(NETWORKS["shared"](), "head.*", torch.randn(3, 4)).tape.path[0]


class Halved(nn.Linear):
    """Its rule gives twice its derivatives, which beside those of the head are small."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight / 2, self.bias)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.head = Halved(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.small(x) + 2000 * torch.tanh(x))


def test_a_rule_is_judged_by_the_size_of_its_own_derivatives() -> None:
    network, batch = made(Small(), (4,)), torch.randn(3, 4)
    tangent = Tangent(network, "*", batch)
    found = tangent.rows([0, 1, 2])["small.weight"].flatten(2).double()
    torch.testing.assert_close(found, exact(tangent, batch)[:, :, :16], rtol=1e-4, atol=1e-5)


def test_one_of_length_one_is_taken_a_row_only_where_rows_stay_apart() -> None:
    def said(network: Network, rows: int) -> str:
        return " ".join(Tangent(network, "*", torch.randn(rows, 3, 4)).tape.path)

    assert "token, positions: differentiated in the same pass" in said(NETWORKS["tokens"](), 3)
    assert "token, positions: differentiated by vmap" in said(NETWORKS["mixed tokens"](), 3)
    assert "by vmap" in said(NETWORKS["tokens"](), 1)  # of one row it could not be told


def test_what_vmap_cannot_run_is_differentiated_row_by_row() -> None:
    batch = torch.randn(5, 4, dtype=torch.float64)
    tangent = Tangent(made(Choosing(), (4,)), "*", batch, dtype=torch.float64, batch_size=2)
    assert "row by row" in " ".join(tangent.tape.path)
    j = exact(tangent, batch).flatten(0, 1)
    torch.testing.assert_close(ntk(tangent), j @ j.T, rtol=1e-9, atol=1e-9)


def test_what_has_no_such_kernel() -> None:
    network, other = flat_network(), made(Residual(3), (3, 5, 4))
    tangent = Tangent(network, "*", network.example(3))
    with pytest.raises(ModelError, match="the same parameters"):
        ntk(tangent, Tangent(other, "*", other.example(2)))
    design: Design = FeatureDesign({"x": Dense(torch.randn(3, 2))}, 1)
    with pytest.raises(ModelError, match="expected a Tangent"):
        ntk(design)


def test_infinite_width_is_approached() -> None:
    """One hidden ReLU layer, both layers trained, standard normal weights scaled by 1/√width: the closed form is
    Θ = x·x' (π − φ)/2π · [weights below] + (‖x‖‖x'‖/2π)(sin φ + (π − φ) cos φ) · [weights above], φ the angle between
    the inputs (Cho & Saul, 2009; Jacot et al., 2018)."""
    torch.manual_seed(0)
    width = 20_000
    network = made(nn.Sequential(nn.Linear(3, width, bias=False), nn.ReLU(), nn.Linear(width, 1, bias=False)), (3,))
    for layer in (network.module[0], network.module[2]):
        nn.init.normal_(layer.weight)
    network.module[2].weight.data /= width**0.5  # f = v·relu(W x)/√m, its derivative by v carries the 1/√m as a prior
    x = torch.randn(4, 3)
    names = list(network.params)
    found = ntk(Tangent(network, "*", x), prior={names[0]: 1.0, names[1]: width**-0.5})
    norms = x.norm(dim=1)
    cosine = (x @ x.T / norms[:, None] / norms).clamp(-1, 1)
    angle = torch.arccos(cosine)
    below = (x @ x.T) * (torch.pi - angle) / (2 * torch.pi)
    above = norms[:, None] * norms / (2 * torch.pi) * (torch.sin(angle) + (torch.pi - angle) * cosine)
    assert float((found - below - above).abs().max() / (below + above).max()) < 0.05


def test_rows_and_operations_are_counted() -> None:
    """A linear layer of d inputs and o outputs: 2 d o forward a row; backward 2 d o again for the layer below it."""
    network = flat_network()
    tangent = Tangent(network, "*", network.example(4))
    before = tangent.spent_flops
    ntk(tangent)
    forward, backward = 2 * (6 * 9 + 9 * 7 + 7 * 3), 2 * (9 * 7 + 7 * 3)
    checked = 3 * (forward + backward)  # the rules are tried on three rows and one output first
    assert tangent.passed_rows == 3 + 4
    assert tangent.spent_flops - before == checked + 4 * (forward + 3 * backward)


@pytest.mark.parametrize("looking", [True, False])
def test_passes_for_what_has_no_rule_are_counted(looking: bool) -> None:
    """The head's product takes 24 forward, and 24 more for each of three outputs down to the vector below it."""
    tangent = Tangent(made(Choosing(looking), (4,)), "*", torch.randn(5, 4), batch_size=2)
    assert ("row by row" if looking else "by vmap") in " ".join(tangent.tape.path)
    before, rows = tangent.spent_flops, tangent.passed_rows
    ntk(tangent)
    own = 24 + 3 * 24
    assert tangent.passed_rows - rows == 5 + 5
    assert tangent.spent_flops - before == 5 * 24 + (1 + 5) * own  # a row is passed once more for counting alone


def test_a_form_that_is_none() -> None:
    tangent = Tangent(flat_network(), "*", torch.randn(3, 6))
    for refused in (ntk, form_error):
        with pytest.raises(ModelError, match=r"expected full or per-output or shared; got 'outputs'"):
            refused(tangent, form="outputs")


class Padded(nn.Module):
    """Token numbers as an array, one of which stands for padding: its embedding counts in the output like any other."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 5, **how), nn.Linear(5, 3)
        nn.init.normal_(self.embed.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x.long().clamp(0, 6))).mean(1))


@pytest.mark.parametrize("how", [{"padding_idx": 0}, {"scale_grad_by_freq": True}, {"sparse": True}])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 4, 0, 1, 2]])
def test_an_embedding_has_the_same_derivative_in_every_product(order: list[int], how: dict[str, Any]) -> None:
    """However its gradients are changed for training."""
    network = made(Padded(**how), (4,))
    x = torch.tensor([[1, 2, 3, 4], [5, 6, 1, 2], [3, 3, 4, 5], [1, 0, 0, 0], [2, 3, 0, 0]])[order].double()
    tangent = Tangent(network, ["embed.*"], x, dtype=torch.float64)
    body = network.module.double()

    def outputs(weight: Tensor) -> Tensor:
        return body.head(torch.tanh(torch.nn.functional.embedding(x.long(), weight)).mean(1))

    exact_rows = torch.func.jacrev(outputs)(body.embed.weight.detach()).flatten(2).flatten(0, 1)
    torch.testing.assert_close(ntk(tangent), exact_rows @ exact_rows.T)
    weights = Blocks({"embed.weight": torch.randn(7, 5, dtype=torch.float64)})
    y = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(tangent.apply(weights).flatten(), exact_rows @ weights.flatten())
    torch.testing.assert_close(tangent.adjoint(y).flatten(), exact_rows.T @ y.flatten())


class Branching(nn.Module):
    """A weight that acts twice, the second time on some rows alone: no layer's rule holds for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        again = torch.nn.functional.linear(x, self.first.weight) * (x[:, :1] > 1)
        return self.head(torch.tanh(self.first(x)) + again)


def test_rules_are_tried_on_rows_from_all_over() -> None:
    """The first rows do not take the branch that the last ones do."""
    network, x = made(Branching(), (4,)), torch.randn(9, 4, dtype=torch.float64)
    x[:, 0] = torch.linspace(-3, 3, 9)
    tangent = Tangent(network, "*", x, dtype=torch.float64)
    j = exact(tangent, x).flatten(0, 1)
    torch.testing.assert_close(ntk(tangent), j @ j.T)


class Adapter(nn.Module):
    """A layer beside the others for some rows alone; for ``every`` other row a second time."""

    def __init__(self, every: bool) -> None:
        super().__init__()
        self.every, self.first, self.adapter, self.head = every, nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        some = (x[:, 0] > 0).nonzero()[:, 0]
        y = torch.tanh(self.first(x))
        if not self.every:
            return self.head(y.index_add(0, some, torch.tanh(self.adapter(x[some]))))
        y = y + torch.tanh(self.adapter(x))
        return self.head(y + torch.tanh(self.adapter(-x)) * (x[:, :1] <= 0) if len(some) < len(x) else y)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_a_layer_that_is_not_given_every_row_once_is_refused(size: int, every: bool) -> None:
    """One row of two was taken for both of them; the second call was left out."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).abs().double()
    network, some = made(Adapter(every), (4,)), x.clone()
    some[[1, 6], 0] *= -1
    with pytest.raises(ModelError, match=r"adapter of .* took another path"):
        ntk(Tangent(network, "adapter.*", some, batch_size=size, dtype=torch.float64))
    tangent = Tangent(network, "adapter.*", x, batch_size=size, dtype=torch.float64)
    j = exact(tangent, x).flatten(0, 1)
    torch.testing.assert_close(ntk(tangent), j @ j.T)


class Positioned(nn.Module):
    """A linear layer on a table that has no rows, as of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.positions, self.head = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(6, 2)
        self.register_buffer("table", torch.randn(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x) + self.positions(self.table)))


def test_a_tangent_of_one_row_serves_many() -> None:
    """Beside one row the table looks like that row's own input."""
    network, x = made(Positioned(), (4,)), torch.randn(5, 4, dtype=torch.float64)
    many = Tangent(network, "*", x[:1], dtype=torch.float64).on(x)
    j = exact(many, x).flatten(0, 1)
    torch.testing.assert_close(ntk(many), j @ j.T)
    blocks = (j @ j.T).view(5, 2, 5, 2)[range(5), :, range(5)]
    torch.testing.assert_close(ntk_within_rows(many), blocks)


def test_a_kernel_waits_for_no_graph_of_products(monkeypatch):
    def traced(*_: Any) -> None:
        raise AssertionError("a graph was traced")

    monkeypatch.setattr("regraft.features.tangent.engine.Graph", traced)
    tangent = Tangent(toy_network(), "*", torch.rand(4, 3, 6, 6))
    ntk(tangent)
    other = tangent.on(torch.rand(4, 3, 5, 7))
    monkeypatch.setattr(other, "_new_engine", traced)
    ntk(other)
    assert not other.prepared
    with pytest.raises(AssertionError, match="traced"):
        tangent.apply(Blocks({name: torch.zeros(shape) for name, shape in tangent.shapes.items()}))
