import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator

from regraft.linear import (
    BlockDiagonal,
    DenseOperator,
    DiagonalOperator,
    Identity,
    KroneckerIdentity,
    Operator,
    ShapeError,
    Tag,
    Tagged,
)
from regraft.linear.operator import add, dense, diagonal
from regraft.linear.tags import closure, meet

PSD, SYM, DIAG, KRON = Tag.POSITIVE_SEMIDEFINITE, Tag.SYMMETRIC, Tag.DIAGONAL, Tag.IDENTITY_KRONECKER


class Plain(Operator):
    """An operator without any structure, so that the general rules are tested."""

    def __init__(self, matrix, tags=()):
        super().__init__(tuple(matrix.shape), matrix.dtype, tags=tags)
        self.matrix = matrix

    def _apply(self, vectors):
        return self.matrix @ vectors

    def _adjoint(self, vectors):
        return self.matrix.T @ vectors


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


A, B = normal(4, 4, seed=1), normal(4, 4, seed=2)
S = A @ A.T
D = torch.tensor([1.0, 0.0, 2.0, 3.0], dtype=torch.float64)
H = normal(2, 2, 2, seed=3)
EYE = torch.eye(4, dtype=torch.float64)
BUILT = {
    "plain": (Plain(A), A),
    "dense": (DenseOperator(A), A),
    "wide": (DenseOperator(A[:2]), A[:2]),
    "diagonal": (DiagonalOperator(D), torch.diag(D)),
    "identity": (Identity(4, torch.float64), EYE),
    "blocks": (BlockDiagonal(H), torch.block_diag(*H)),
    "kronecker": (KroneckerIdentity(DenseOperator(A[:2, :2]), 2), torch.kron(A[:2, :2], EYE[:2, :2])),
    "kronecker-wide": (
        KroneckerIdentity(DenseOperator(A[:1, :2]), 3),
        torch.kron(A[:1, :2], torch.eye(3, dtype=torch.float64)),
    ),
    "transposed": (Plain(A[:2]).T, A[:2].T),
    "sum": (Plain(A) + DenseOperator(B), A + B),
    "difference": (DenseOperator(A) - Plain(B), A - B),
    "multiple": (-(2.0 * Plain(A)), -2 * A),
    "product": (Plain(A[:2]) @ DenseOperator(B), A[:2] @ B),
    "tagged": (Tagged(Plain(S), (PSD,)), S),
    "dense-sum": (DenseOperator(A) + DenseOperator(B) * 3.0, A + 3 * B),
    "shifted-plain": (Plain(A).shifted(0.5), A + 0.5 * EYE),
    "shifted-dense": (DenseOperator(A).shifted(-0.5), A - 0.5 * EYE),
    "shifted-diagonal": (DiagonalOperator(D).shifted(1.5), torch.diag(D + 1.5)),
    "shifted-kronecker": (
        KroneckerIdentity(DenseOperator(A[:2, :2]), 2).shifted(2.0),
        torch.kron(A[:2, :2] + 2 * EYE[:2, :2], EYE[:2, :2]),
    ),
    "kronecker-sum": (
        KroneckerIdentity(Plain(A[:2, :2]), 2) + KroneckerIdentity(DiagonalOperator(D[:2]), 2) * 2.0,
        torch.kron(A[:2, :2] + 2 * torch.diag(D[:2]), EYE[:2, :2]),
    ),
    "kronecker-and-plain": (KroneckerIdentity(Plain(A[:2, :2]), 2) + Plain(B), torch.kron(A[:2, :2], EYE[:2, :2]) + B),
}


@pytest.mark.parametrize("name", list(BUILT))
def test_every_operator_is_its_matrix(name):
    operator, matrix = BUILT[name]
    assert operator.shape == tuple(matrix.shape)
    torch.testing.assert_close(operator.dense(), matrix)
    torch.testing.assert_close(operator.T.dense(), matrix.T)
    x, y = normal(matrix.shape[1], 3, seed=5), normal(matrix.shape[0], 3, seed=6)
    torch.testing.assert_close(operator @ x, matrix @ x)
    torch.testing.assert_close(operator @ x[:, 0], matrix @ x[:, 0])
    torch.testing.assert_close(operator.adjoint(y), matrix.T @ y)
    torch.testing.assert_close(operator.adjoint(y[:, 0]), matrix.T @ y[:, 0])
    if matrix.shape[0] == matrix.shape[1]:
        torch.testing.assert_close(operator.diagonal(), matrix.diagonal())


@pytest.mark.parametrize("name", list(BUILT))
def test_tags_hold_of_the_matrix(name):
    operator, matrix = BUILT[name]
    if SYM in operator.tags:
        torch.testing.assert_close(matrix, matrix.T)
        assert operator.T is operator
    if PSD in operator.tags:
        assert torch.linalg.eigvalsh(matrix).min() > -1e-12
    if DIAG in operator.tags:
        assert not (matrix - torch.diag(matrix.diagonal())).any()


def test_a_matrix_free_diagonal_goes_over_more_than_one_batch():
    matrix = normal(130, 130)
    torch.testing.assert_close(Plain(matrix).diagonal(), matrix.diagonal())


class Known(Plain):
    """One whose matrix is known, so that products with unit vectors are none too many."""

    def _apply(self, vectors):
        raise AssertionError("a product")


dense.register(Known, lambda operator: operator.matrix)
diagonal.register(Known, lambda operator: operator.matrix.diagonal())


def test_sums_and_multiples_ask_their_parts_for_what_is_known():
    operator = (Known(A) - 2.0 * Known(B)).shifted(0.5)
    torch.testing.assert_close(operator.dense(), A - 2 * B + 0.5 * EYE)
    torch.testing.assert_close(operator.diagonal(), (A - 2 * B).diagonal() + 0.5)


def test_scipy_reads_the_same_operator():
    operator = Plain(A[:2]) @ DenseOperator(B)
    other = LinearOperator(
        operator.shape,
        matvec=lambda x: operator.apply(torch.from_numpy(x)).numpy(),
        rmatvec=lambda y: operator.adjoint(torch.from_numpy(y)).numpy(),
        dtype="float64",
    )
    x, y = normal(4).numpy(), normal(2).numpy()
    assert abs(y @ other.matvec(x) - other.rmatvec(y) @ x) < 1e-12
    torch.testing.assert_close(torch.from_numpy(other @ EYE.numpy()), A[:2] @ B)


def test_structure_survives_the_algebra():
    kron = KroneckerIdentity(DenseOperator(S, (PSD,)), 3)
    for kept in (kron.shifted(0.1), kron + kron, 2.0 * kron):
        assert isinstance(kept, KroneckerIdentity)
        assert {PSD, SYM, KRON} <= kept.tags
    assert PSD not in (-kron).tags
    assert SYM in (-kron).tags
    assert PSD not in kron.shifted(-0.1).tags
    assert not isinstance(kron + KroneckerIdentity(DenseOperator(normal(6, 6)), 2), KroneckerIdentity)
    assert (Plain(S, (PSD,)) + DiagonalOperator(D)).tags >= {PSD, SYM}
    assert DIAG not in (Plain(S, (PSD,)) + DiagonalOperator(D)).tags
    assert (Plain(S, (PSD,)) @ Plain(S, (PSD,))).tags == frozenset()
    assert DiagonalOperator(-D).tags == {DIAG, SYM}
    assert Plain(A).T.T.dense().equal(A)
    assert KroneckerIdentity in add.registry


def test_kronecker_never_forms_the_large_matrix():
    size, outputs = 50, 4000  # the dense matrix would take 320 GB
    operator = KroneckerIdentity(DenseOperator(normal(size, size)), outputs)
    assert operator.apply(torch.ones(size * outputs, dtype=torch.float64)).shape == (size * outputs,)
    assert operator.shifted(1.0).diagonal().shape == (size * outputs,)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_kronecker_identity_is_the_kronecker_product(rows, columns, outputs, vectors):
    k = normal(rows, columns)
    operator = KroneckerIdentity(DenseOperator(k), outputs)
    dense = torch.kron(k, torch.eye(outputs, dtype=torch.float64))
    x, y = normal(columns * outputs, vectors, seed=1), normal(rows * outputs, vectors, seed=2)
    torch.testing.assert_close(operator @ x, dense @ x)
    torch.testing.assert_close(operator.adjoint(y), dense.T @ y)


def test_tags_imply_and_meet():
    assert closure((PSD,)) == {PSD, SYM}
    assert closure((DIAG,)) == {DIAG, SYM}
    assert meet((PSD,), (DIAG,)) == {SYM}
    assert meet((KRON, PSD), (KRON,)) == {KRON}


class WrongShape(Operator):
    def _apply(self, vectors):
        return vectors[:-1]

    _adjoint = _apply


@pytest.mark.parametrize(
    "make",
    [
        lambda: DenseOperator(A) @ normal(3),
        lambda: DenseOperator(A) @ normal(4, dtype=torch.float32),
        lambda: DenseOperator(A) @ normal(4, 1, 1),
        lambda: DenseOperator(A).adjoint(normal(5)),
        lambda: DenseOperator(A) + DenseOperator(A[:2]),
        lambda: DenseOperator(A) + DenseOperator(A.float()),
        lambda: DenseOperator(A) + A,
        lambda: DenseOperator(A) @ DenseOperator(A[:2]),
        lambda: DenseOperator(A[:2]).shifted(1.0),
        lambda: DenseOperator(A[:2]).diagonal(),
        lambda: DenseOperator(A[:2], (SYM,)),
        lambda: DenseOperator(torch.ones(2, 2, dtype=torch.int64)),
        lambda: DenseOperator(torch.ones(2)),
        lambda: DiagonalOperator(A),
        lambda: BlockDiagonal(A),
        lambda: KroneckerIdentity(DenseOperator(A), 0),
        lambda: WrongShape((4, 4), torch.float64) @ normal(4),
    ],
)
def test_what_does_not_fit_is_refused(make):
    with pytest.raises(ShapeError):
        make()
