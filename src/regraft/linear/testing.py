"""The contract of a Design as tests: a new Design gets all of them from a few lines.

>>> import torch
>>> from regraft.linear import Dense, FeatureDesign
>>> class TestFeatures(DesignContract):
...     def make_design(self):
...         x = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
...         return FeatureDesign({"layer": Dense(x)}, n_outputs=2)
...     def dense(self, design):
...         return torch.kron(design.dense(), torch.eye(2, dtype=torch.float64))
>>> TestFeatures().test_apply_agrees_with_the_dense_matrix()

pytest collects the ``test_`` methods of a subclass whose name starts with ``Test``; nothing here
needs pytest. ``AssertionError`` says which part of the contract does not hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from regraft.errors import RegraftError
from regraft.linear.blocks import Blocks
from regraft.linear.design import Design
from regraft.linear.krylov import cg
from regraft.linear.tags import Tag

__all__ = ["DesignContract"]


class DesignContract(ABC):
    """Tests of a Design against a dense oracle. Subclass and give the two methods.

    Class attributes:
        tolerance: relative, to the largest entry of the expected value; by default 1e-10 for
            float64 and 2e-4 for float32 (looser for 16 bits).
        seed: of the random vectors.
    """

    tolerance: float | None = None
    seed: int = 0

    @abstractmethod
    def make_design(self) -> Design:
        """Return a small design (at least 2 rows) to test; the same one at every call."""

    @abstractmethod
    def dense(self, design: Design) -> Tensor:
        """Return Φ as a matrix ``(N·C, P)`` that was *not* computed by the design.

        Rows are ``(n, c)`` row-major; columns the blocks in the order of ``design.shapes``, each
        flattened row-major.
        """

    # ---- helpers

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def _normal(self, generator: torch.Generator, shape: tuple[int, ...], design: Design) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(dtype=design.dtype, device=design.device)

    def _coefficients(self, design: Design, generator: torch.Generator) -> Blocks:
        return Blocks({name: self._normal(generator, shape, design) for name, shape in design.shapes.items()})

    def _outputs(self, design: Design, generator: torch.Generator) -> Tensor:
        return self._normal(generator, (design.n_rows, design.n_outputs), design)

    def _oracle(self, design: Design) -> Tensor:
        matrix = self.dense(design)
        wanted = (design.n_rows * design.n_outputs, sum(prod(shape) for shape in design.shapes.values()))
        self._holds(tuple(matrix.shape) == wanted, f"dense() gives {tuple(matrix.shape)}, not {wanted}")
        return matrix.to(device=design.device, dtype=torch.float64)

    def _close(self, found: Tensor, expected: Tensor, what: str) -> None:
        self._holds(
            found.shape == expected.shape,
            f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}",
        )
        default = {torch.float64: 1e-10, torch.float32: 2e-4}.get(found.dtype, 5e-2)
        tolerance = default if self.tolerance is None else self.tolerance
        found, expected = found.double(), expected.double()
        self._holds(bool(torch.isfinite(found).all()), f"{what}: NaN or infinity")
        if expected.numel():
            size = max(float(expected.abs().max()), 1e-300)
            error = float((found - expected).abs().max()) / size
            self._holds(error <= tolerance, f"{what}: relative error {error:.2e} above {tolerance:.0e}")

    @staticmethod
    def _holds(condition: bool, message: str) -> None:
        if not condition:
            raise AssertionError(message)

    def _refused(self, call: Callable[[], object], what: str) -> None:
        try:
            call()
        except RegraftError:
            return
        raise AssertionError(f"{what} was not refused by a RegraftError")

    def _index(self, design: Design) -> list[int]:
        return [design.n_rows - 1, 0, 0]  # out of order and with a repeat

    def _oracle_rows(self, design: Design, index: list[int]) -> Tensor:
        matrix = self._oracle(design)
        return matrix.view(design.n_rows, design.n_outputs, -1)[index].reshape(-1, matrix.shape[1])

    def _prior(self, design: Design) -> dict[str, float]:
        return {name: 0.5 + number for number, name in enumerate(design.shapes)}

    def _deviations(self, design: Design, prior: dict[str, float]) -> Tensor:
        parts = [torch.full((prod(shape),), prior[name], dtype=torch.float64) for name, shape in design.shapes.items()]
        return torch.cat(parts).to(design.device)

    # ---- the contract

    def test_apply_agrees_with_the_dense_matrix(self) -> None:
        """Φ w = dense · w."""
        design = self.make_design()
        weights = self._coefficients(design, self._generator())
        expected = self._oracle(design) @ weights.flatten().double()
        self._close(design.apply(weights).reshape(-1), expected, "apply")

    def test_adjoint_agrees_with_the_dense_matrix(self) -> None:
        """Φᵀ y = denseᵀ · y."""
        design = self.make_design()
        outputs = self._outputs(design, self._generator())
        expected = self._oracle(design).T @ outputs.reshape(-1).double()
        self._close(design.adjoint(outputs).flatten(), expected, "adjoint")

    def test_adjoint_identity(self) -> None:
        """⟨Φ w, y⟩ = ⟨w, Φᵀ y⟩, without the oracle."""
        design, generator = self.make_design(), self._generator()
        weights, outputs = self._coefficients(design, generator), self._outputs(design, generator)
        image, back = design.apply(weights), design.adjoint(outputs)
        left = (image.double() * outputs.double()).sum()
        right = (weights.flatten().double() * back.flatten().double()).sum()
        scale = torch.linalg.vector_norm(image.double()) * torch.linalg.vector_norm(outputs.double())
        one = torch.ones((), dtype=torch.float64, device=design.device)
        gap = (left - right) / torch.clamp(scale, min=1e-300)
        self._close((one + gap).to(design.dtype), one, "the adjoint identity")

    def test_linearity(self) -> None:
        """Φ(2u - 3v) = 2 Φu - 3 Φv, Φ0 = 0, and the same for the adjoint."""
        design, generator = self.make_design(), self._generator()
        first, second = self._coefficients(design, generator), self._coefficients(design, generator)
        mixed = design.apply(first * 2.0 - second * 3.0)
        self._close(mixed, design.apply(first) * 2.0 - design.apply(second) * 3.0, "linearity of apply")
        nothing = design.apply(first * 0.0)
        self._holds(not bool(nothing.any()), "apply of zero coefficients is not zero")
        y, z = self._outputs(design, generator), self._outputs(design, generator)
        mixed = design.adjoint(2.0 * y - 3.0 * z).flatten()
        expected = (design.adjoint(y) * 2.0 - design.adjoint(z) * 3.0).flatten()
        self._close(mixed, expected, "linearity of adjoint")

    def test_same_input_gives_the_same_bits(self) -> None:
        """Two calls, and two designs made alike, give the same bits."""
        one, two, generator = self.make_design(), self.make_design(), self._generator()
        weights, outputs = self._coefficients(one, generator), self._outputs(one, generator)
        for each in (one, two):
            self._holds(torch.equal(one.apply(weights), each.apply(weights)), "apply is not repeatable")
            self._holds(one.adjoint(outputs) == each.adjoint(outputs), "adjoint is not repeatable")
        self._holds(list(one.shapes) == list(two.shapes), "the blocks change their order")

    def test_rows_agree_with_the_dense_matrix(self) -> None:
        """rows(index) are the rows of the dense matrix, ``(n, C, *shape)`` a block."""
        design = self.make_design()
        index = self._index(design)
        rows = design.rows(index)
        flat = torch.cat([block.reshape(len(index) * design.n_outputs, -1) for block in rows.values()], dim=1)
        self._close(flat, self._oracle_rows(design, index), "rows")
        self._holds(all(not block.numel() for block in design.rows([]).values()), "rows([]) is not empty")

    def test_row_chunks_are_the_dense_matrix_in_parts(self) -> None:
        """row_chunks() gives every row once, in order, whatever the size of its parts and the order of blocks."""
        design = self.make_design()
        one = design.n_outputs * design.n_coefficients * design.dtype.itemsize
        every = self._oracle_rows(design, list(range(design.n_rows)))
        for nbytes in (1, 2 * one + 1, 1000 * one):
            parts = list(design.row_chunks(nbytes))
            self._holds([p.start for p, _ in parts] == [0, *(p.stop for p, _ in parts[:-1])], "rows are left out")
            self._close(torch.cat([rows.flatten(0, 1) for _, rows in parts]), every, "row_chunks")
        turned = [rows for _, rows in design.row_chunks(one, names=reversed(design.shapes), start=1)]
        widths = [prod(shape) for shape in design.shapes.values()]
        wanted = torch.cat(every[design.n_outputs :].split(widths, dim=1)[::-1], dim=1)
        self._holds(len(turned) == design.n_rows - 1, "row_chunks(start=1) does not begin at row 1")
        if turned:
            self._close(torch.cat(turned).flatten(0, 1), wanted, "row_chunks in another order")

    def test_row_blocks_are_the_dense_matrix_in_parts(self) -> None:
        """row_blocks() gives of every part of the rows each block once, and what is given may be written into."""
        design = self.make_design()
        one = design.n_outputs * design.n_coefficients * design.dtype.itemsize
        wanted = self._oracle_rows(design, list(range(design.n_rows)))
        widths = [prod(shape) for shape in design.shapes.values()]
        for nbytes in (1, 2 * one + 1, 1000 * one):
            found: dict[str, list[Tensor]] = {name: [] for name in design.shapes}
            ends: dict[str, int] = dict.fromkeys(design.shapes, 0)
            for part, name, numbers in design.row_blocks(nbytes):
                self._holds(part.start == ends[name], "row_blocks leaves rows out")
                ends[name] = part.stop
                found[name].append(numbers.flatten(0, 1).clone())
                numbers.zero_()
            for name, expected in zip(design.shapes, wanted.split(widths, dim=1)):
                self._close(torch.cat(found[name]), expected, f"row_blocks of {name}")

    def test_take_agrees_with_the_dense_matrix(self) -> None:
        """take(index) keeps order and repeats, in apply, adjoint and rows, and composes."""
        design, generator = self.make_design(), self._generator()
        index = self._index(design)
        taken, matrix = design.take(index), self._oracle_rows(design, index)
        weights = self._coefficients(design, generator)
        self._close(taken.apply(weights).reshape(-1), matrix @ weights.flatten().double(), "take then apply")
        outputs = self._outputs(taken, generator)
        back = taken.adjoint(outputs).flatten()
        self._close(back, matrix.T @ outputs.reshape(-1).double(), "take then adjoint")
        twice = taken.take([1]).apply(weights)
        self._close(twice, design.apply(weights)[index[1] : index[1] + 1], "take of take")
        whole = design.take(slice(None)).apply(weights)
        self._close(whole, design.apply(weights), "take of every row")
        mask = torch.zeros(design.n_rows, dtype=torch.bool)
        mask[-1] = True
        self._close(design.take(mask).apply(weights), design.apply(weights)[-1:], "take by mask")
        self._close(
            taken.rows([0])[next(iter(design.shapes))],
            design.rows(index[:1])[next(iter(design.shapes))],
            "rows of take",
        )

    def test_scaled_agrees_with_the_dense_matrix(self) -> None:
        """scaled(s) multiplies the columns of block b by s_b."""
        design, generator = self.make_design(), self._generator()
        prior = self._prior(design)
        scaled, matrix = design.scaled(prior), self._oracle(design) * self._deviations(design, prior)
        weights, outputs = self._coefficients(design, generator), self._outputs(design, generator)
        self._close(scaled.apply(weights).reshape(-1), matrix @ weights.flatten().double(), "scaled apply")
        back = scaled.adjoint(outputs).flatten()
        self._close(back, matrix.T @ outputs.reshape(-1).double(), "scaled adjoint")

    def test_side_by_side_agrees_with_the_dense_matrix(self) -> None:
        """(A | B)(u, v) = A u + B v, adjoint alike; equal names are refused; tags are the meet."""
        design, generator = self.make_design(), self._generator()
        self._refused(lambda: design | design, "A | A with equal block names")
        both, matrix = design | design.scaled(2.0).renamed("other/"), self._oracle(design)
        matrix = torch.cat([matrix, 2.0 * matrix], dim=1)
        weights, outputs = self._coefficients(both, generator), self._outputs(both, generator)
        self._close(both.apply(weights).reshape(-1), matrix @ weights.flatten().double(), "A | B apply")
        back = both.adjoint(outputs).flatten()
        self._close(back, matrix.T @ outputs.reshape(-1).double(), "A | B adjoint")
        self._close(both.gram().dense(), matrix @ matrix.T, "the Gram of A | B")
        self._holds(both.tags == design.tags, "the tags of A | A are not those of A")

    def test_gram_agrees_with_the_dense_matrix(self) -> None:
        """gram(prior) = Φ diag(prior²) Φᵀ, symmetric and positive semi-definite."""
        design, matrix = self.make_design(), self._oracle(self.make_design())
        prior = self._prior(design)
        scaled = matrix * self._deviations(design, prior)
        for gram, expected in (
            (design.gram(), matrix @ matrix.T),
            (design.gram(prior), scaled @ scaled.T),
            (design.scaled(prior).gram(), scaled @ scaled.T),
        ):
            found = gram.dense()
            self._close(found, expected, "the Gram")
            self._holds(Tag.POSITIVE_SEMIDEFINITE in gram.tags, "the Gram is not tagged positive semi-definite")
            self._close(gram.diagonal(), expected.diagonal(), "the diagonal of the Gram")

    def test_ggn_agrees_with_the_dense_matrix(self) -> None:
        """ggn(H) = Φᵀ H Φ for the Hessian of a softmax loss."""
        design, generator = self.make_design(), self._generator()
        matrix = self._oracle(design)
        chance = torch.softmax(self._outputs(design, generator), dim=1)
        hessian = torch.diag_embed(chance) - chance[:, :, None] * chance[:, None, :]
        expected = matrix.T @ torch.block_diag(*hessian.double()) @ matrix
        vector = self._coefficients(design, generator).flatten()
        ggn = design.ggn(hessian)
        self._close(ggn.apply(vector), expected @ vector.double(), "the Gauss-Newton product")
        self._holds(Tag.POSITIVE_SEMIDEFINITE in ggn.tags, "the Gauss-Newton operator is not tagged")

    def test_tags_hold(self) -> None:
        """A design tagged IDENTITY_KRONECKER is X ⊗ I_C in the dense matrix."""
        design = self.make_design()
        if Tag.IDENTITY_KRONECKER not in design.tags:
            return
        count = design.n_outputs
        for name, shape in design.shapes.items():
            self._holds(bool(shape) and shape[-1] == count, f"block {name!r} does not end in C = {count}")
        matrix = self._oracle(design).view(design.n_rows, count, -1, count)
        shared = matrix[:, 0, :, 0]
        eye = torch.eye(count, dtype=torch.float64, device=design.device)
        self._close(matrix.to(design.dtype), shared[:, None, :, None] * eye[None, :, None, :], "X ⊗ I_C")

    def test_primal_and_dual_ridge_agree(self) -> None:
        """(ΦᵀΦ + λI)⁻¹Φᵀy, dense, equals Φᵀ(ΦΦᵀ + λI)⁻¹y by CG on the Gram operator."""
        design, generator = self.make_design(), self._generator()
        matrix, outputs = self._oracle(design), self._outputs(design, generator)
        ridge = max(float((matrix**2).sum()) / matrix.shape[0], 1e-12)
        eye = torch.eye(matrix.shape[1], dtype=torch.float64, device=design.device)
        primal = torch.linalg.solve(matrix.T @ matrix + ridge * eye, matrix.T @ outputs.reshape(-1).double())
        tol = {torch.float64: 1e-13, torch.float32: 1e-6}.get(design.dtype, 1e-2)
        dual = cg(design.gram().shifted(ridge), outputs.reshape(-1), tol=tol)
        self._holds(dual.converged, f"ridge in the dual: {dual.message}")
        back = design.adjoint(dual.solution.view(outputs.shape)).flatten()
        self._close(back, primal, "primal and dual ridge")

    def test_wrong_input_is_refused(self) -> None:
        """Other names, shapes, dtypes and rows are refused in a sentence, never broadcast."""
        design, generator = self.make_design(), self._generator()
        weights, outputs = self._coefficients(design, generator), self._outputs(design, generator)
        other = torch.float32 if design.dtype == torch.float64 else torch.float64
        name = next(iter(design.shapes))
        self._refused(lambda: design.apply({"?" + name: weights[name]}), "an unknown block")
        self._refused(lambda: design.apply(weights.map(lambda block: block[None])), "a wrong block shape")
        self._refused(lambda: design.apply(weights.to(other)), "another dtype of coefficients")
        self._refused(lambda: design.adjoint(outputs[:-1]), "too few outputs")
        self._refused(lambda: design.adjoint(outputs.to(other)), "another dtype of outputs")
        self._refused(lambda: design.take([design.n_rows]), "a row out of range")
        self._refused(lambda: design.scaled({name: -1.0}), "a negative prior deviation")
        self._refused(lambda: design.gram({"?" + name: 1.0}), "a prior of an unknown block")
