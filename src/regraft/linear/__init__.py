"""The design matrix as a linear operator over named coefficient blocks."""

from regraft.linear import combine as _combine  # noqa: F401  (registers the rules of every Design)
from regraft.linear.basis import Krylov
from regraft.linear.blocks import Blocks
from regraft.linear.checks import ShapeError, all_finite
from regraft.linear.design import Design
from regraft.linear.determinant import factored_log_determinant, log_determinant
from regraft.linear.features import FeatureDesign
from regraft.linear.krylov import Outcome, cg, jacobi
from regraft.linear.lanczos import Eigenvalues, Which, lanczos
from regraft.linear.lowrank import LowRank, nystrom, pivoted_cholesky
from regraft.linear.matrix import (
    Cast,
    Dense,
    Kept,
    Matrix,
    Moved,
    Scaled,
    SignedRoot,
    Taken,
    UnitRows,
    columns_of,
    row_norms,
)
from regraft.linear.operator import Identity, Operator, Tagged
from regraft.linear.quadrature import Density, spectral_density
from regraft.linear.structured import BlockDiagonal, DenseOperator, DiagonalOperator, KroneckerIdentity
from regraft.linear.symmetric import mirror
from regraft.linear.tags import Tag
from regraft.linear.trace import Estimate, deflated_trace, trace

__all__ = [
    "BlockDiagonal",
    "Blocks",
    "Cast",
    "Dense",
    "DenseOperator",
    "Density",
    "Design",
    "DiagonalOperator",
    "Eigenvalues",
    "Estimate",
    "FeatureDesign",
    "Identity",
    "Kept",
    "KroneckerIdentity",
    "Krylov",
    "LowRank",
    "Matrix",
    "Moved",
    "Operator",
    "Outcome",
    "Scaled",
    "ShapeError",
    "SignedRoot",
    "Tag",
    "Tagged",
    "Taken",
    "UnitRows",
    "Which",
    "all_finite",
    "cg",
    "columns_of",
    "deflated_trace",
    "factored_log_determinant",
    "jacobi",
    "lanczos",
    "log_determinant",
    "mirror",
    "nystrom",
    "pivoted_cholesky",
    "row_norms",
    "spectral_density",
    "trace",
]
