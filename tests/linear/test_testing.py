"""The contract itself: a right design passes every test, each wrong one fails the test that names it."""

import pytest
import torch

from regraft.errors import RegraftError
from regraft.linear import Blocks, Design, Tag
from regraft.linear.design import gram_of, rows_of, take_of
from regraft.linear.testing import DesignContract

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Right(Design):
    """Φ = X ⊗ I_2, written plainly."""

    def __init__(self, x=X, tags=()):
        super().__init__({"w": (x.shape[1], 2)}, len(x), 2, torch.float64, tags=tags)
        self.x = x

    def _apply(self, coefficients):
        return self.x @ coefficients["w"]

    def _adjoint(self, outputs):
        return {"w": self.x.T @ outputs}


class WrongAdjoint(Right):
    def _adjoint(self, outputs):
        return {"w": 1.001 * (self.x.T @ outputs)}


class WrongApply(Right):
    def _apply(self, coefficients):
        return self.x.flip(0) @ coefficients["w"]


class Affine(Right):
    def _apply(self, coefficients):
        return self.x @ coefficients["w"] + 0.01


class Quadratic(Right):
    def _apply(self, coefficients):
        return self.x @ coefficients["w"] ** 2


class NonLinearAdjoint(Right):
    def _adjoint(self, outputs):
        return {"w": self.x.T @ outputs.relu()}


class Noisy(Right):
    def _apply(self, coefficients):
        return self.x @ coefficients["w"] * (1 + 1e-13 * torch.rand((), dtype=torch.float64))


class Nan(Right):
    def _adjoint(self, outputs):
        return {"w": self.x.T @ outputs * float("nan")}


class WrongRows(Right):
    pass


@rows_of.register
def _(design: WrongRows, index: torch.Tensor) -> Blocks:
    return Blocks({"w": torch.zeros(len(index), 2, 3, 2, dtype=torch.float64)})


class WrongTake(Right):
    """Forgets the order and the repeats."""


@take_of.register
def _(design: WrongTake, index: torch.Tensor) -> Design:
    return Right(design.x[: len(index)])


class WrongGram(Right):
    pass


@gram_of.register
def _(design: WrongGram, deviations: dict) -> object:
    return gram_of(Right(design.x), dict.fromkeys(deviations, 1.0))  # forgets the prior


class WrongTag(Right):
    def __init__(self):
        super().__init__(tags=(Tag.IDENTITY_KRONECKER,))
        self.mix = torch.tensor([[1.0, 0.2], [0.0, 1.0]], dtype=torch.float64)

    def _apply(self, coefficients):
        return self.x @ coefficients["w"] @ self.mix

    def _adjoint(self, outputs):
        return {"w": self.x.T @ outputs @ self.mix.T}


def contract(make):
    class Contract(DesignContract):
        def make_design(self):
            return make()

        def dense(self, design):
            mix = getattr(design, "mix", torch.eye(2, dtype=torch.float64))
            return torch.kron(X, mix.T.contiguous())

    return Contract()


def failures(make):
    """The names of the contract's tests that a design fails."""
    found = []
    for name in dir(DesignContract):
        if name.startswith("test_"):
            try:
                getattr(contract(make), name)()
            except (AssertionError, RegraftError):
                found.append(name)
    return found


def test_a_right_design_passes_every_test():
    assert failures(Right) == []
    assert failures(lambda: Right(tags=(Tag.IDENTITY_KRONECKER,))) == []
    assert sum(name.startswith("test_") for name in dir(DesignContract)) >= 13


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (WrongAdjoint, "test_adjoint_agrees_with_the_dense_matrix"),
        (WrongAdjoint, "test_adjoint_identity"),
        (WrongAdjoint, "test_primal_and_dual_ridge_agree"),
        (WrongApply, "test_apply_agrees_with_the_dense_matrix"),
        (WrongApply, "test_adjoint_identity"),
        (Affine, "test_linearity"),
        (Quadratic, "test_linearity"),
        (Quadratic, "test_ggn_agrees_with_the_dense_matrix"),
        (NonLinearAdjoint, "test_linearity"),
        (Noisy, "test_same_input_gives_the_same_bits"),
        (Nan, "test_adjoint_identity"),
        (Nan, "test_adjoint_agrees_with_the_dense_matrix"),
        (WrongRows, "test_rows_agree_with_the_dense_matrix"),
        (WrongRows, "test_row_blocks_are_the_dense_matrix_in_parts"),
        (WrongTake, "test_take_agrees_with_the_dense_matrix"),
        (WrongGram, "test_gram_agrees_with_the_dense_matrix"),
        (WrongTag, "test_tags_hold"),
    ],
)
def test_a_wrong_design_fails_the_test_that_names_it(make, name):
    assert name in failures(make)


ROWS_OR_TAKE = [
    "test_rows_agree_with_the_dense_matrix",
    "test_row_blocks_are_the_dense_matrix_in_parts",
    "test_row_chunks_are_the_dense_matrix_in_parts",
    "test_take_agrees_with_the_dense_matrix",
]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (WrongRows, ROWS_OR_TAKE),
        (WrongTake, ROWS_OR_TAKE),
        (WrongGram, ["test_gram_agrees_with_the_dense_matrix", "test_side_by_side_agrees_with_the_dense_matrix"]),
        (WrongTag, ["test_tags_hold"]),
        (Noisy, ["test_same_input_gives_the_same_bits"]),
    ],
)
def test_a_failure_points_at_what_is_wrong(make, names):
    assert set(failures(make)) <= set(names)


def test_a_wrong_oracle_is_told():
    class Contract(DesignContract):
        def make_design(self):
            return Right()

        def dense(self, design):
            return X

    with pytest.raises(AssertionError, match="dense"):
        Contract().test_apply_agrees_with_the_dense_matrix()


def test_input_that_should_be_refused_and_is_not_fails():
    suite = contract(Right)
    suite._refused(lambda: Right().apply({"v": X}), "an unknown block")
    with pytest.raises(AssertionError, match="an unknown block was not refused"):
        suite._refused(lambda: None, "an unknown block")
