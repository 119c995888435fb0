"""How curved a loss is where a network stands: extreme eigenvalues with their bounds, density, trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from torch import Tensor

from regraft.diagnose.curvature.hessian import Hessian, ggn
from regraft.diagnose.objective import Objective
from regraft.errors import DataError
from regraft.linear import Density, Eigenvalues, Estimate, Operator, Which, deflated_trace, lanczos, spectral_density

__all__ = ["Matrix", "Spectrum", "curvature"]

Matrix = Literal["hessian", "ggn"]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The curvature of L at θ.

    Attributes:
        matrix: ``hessian`` or ``ggn``.
        top: the extreme eigenvalues with their bounds: :class:`regraft.linear.Eigenvalues`. They are in units of the
            loss over those of θ squared, so that they compare networks of one parametrisation only (Dinh et al., 2017).
        density: of all eigenvalues, with the spread over probes; ``None`` where none were asked for.
        trace: with its standard error: the extreme eigenvalues' sum, and two random vectors a probe of the density for
            the rest; ``None`` without a density.
        loss: L(θ).
        gradient_norm: ‖∇L(θ)‖₂: θ is a minimum only where this is small.
        parameters, rows: P and N.
        products: with the matrix, the density's and the trace's too.
        seconds: of wall time, all told.
    """

    matrix: Matrix
    top: Eigenvalues
    density: Density | None
    trace: Estimate | None
    loss: float
    gradient_norm: float
    parameters: int
    rows: int
    products: int
    seconds: float

    @property
    def values(self) -> Tensor:
        """The extreme eigenvalues, ``(k,)``."""
        return self.top.values

    @property
    def bounds(self) -> Tensor:
        """How near to each there is an eigenvalue of the matrix, ``(k,)``."""
        return self.top.bounds


def curvature(
    objective: Objective,
    matrix: Matrix = "hessian",
    k: int = 20,
    *,
    which: Which = "largest",
    tol: float = 1e-3,
    max_products: int | None = None,
    copies: bool = False,
    vectors: bool = False,
    probes: int = 0,
    steps: int = 40,
    memory: int = 2**31,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Spectrum:
    """The k extreme eigenvalues of the Hessian or Gauss-Newton matrix of a loss, each with a bound.

    The paper draws the largest 20 (002, Section 4: Towards Understanding the Transferability of Deep Representations).
    Cost: 50 to 160 products for k = 20, each of 1.3 to 2.6 gradients of the loss over all rows (``ggn``: 0.9 to 1.4),
    and ``probes`` times ``steps`` for the density. A bound is of the matrix as computed: in float32, where a unit
    stands at the kink of a ReLU, that may be a little off; take ``dtype=torch.float64`` in the objective to see.

    Args:
        objective: L and θ.
        matrix: ``hessian`` or ``ggn``, see :class:`Hessian` and :func:`ggn`.
        k: how many; all where there are fewer parameters.
        which, tol, max_products, copies, vectors, seed: see :func:`regraft.linear.lanczos`.
        probes: of the spectral density; none by default.
        steps: of Lanczos for each probe.
        memory: bytes that graphs of the Hessian may keep, and as many that the vectors of Lanczos may.
        progress: called with (products, most products), for the eigenvalues and anew for the density.

    Raises:
        ModelError: as :class:`Hessian` and :func:`ggn` do.
        DataError: an unknown matrix.
        SolverError: NaN, or numbers out of range.
    """
    began = time.perf_counter()
    if matrix not in get_args(Matrix):
        raise DataError("the matrix of a curvature", expected=" or ".join(get_args(Matrix)), got=repr(matrix))
    operator: Operator
    if matrix == "hessian":
        operator = hessian = Hessian(objective, memory=memory)
        loss, norm = hessian.loss, float(hessian.gradient.double().norm())
    else:
        operator = ggn(objective)
        loss, gradient = objective.gradient()
        norm = float(gradient.flatten().double().norm())
    top = lanczos(
        operator,
        k,
        which=which,
        tol=tol,
        max_products=max_products,
        vectors=vectors or bool(probes),
        copies=copies,
        memory=memory,
        seed=seed,
        progress=progress,
    )
    made, density, rest = top.products, None, None
    if probes and top.vectors is not None:
        density = spectral_density(operator, probes=probes, steps=steps, seed=seed, progress=progress)
        rest = deflated_trace(operator, top.values, top.vectors, products=2 * probes, seed=seed)
        made += density.products + rest.probes
        top = top if vectors else replace(top, vectors=None)
    seconds = time.perf_counter() - began
    return Spectrum(matrix, top, density, rest, loss, norm, objective.size, objective.rows, made, seconds)
