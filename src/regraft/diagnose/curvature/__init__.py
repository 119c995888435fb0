"""Curvature of a loss: its Hessian and Gauss-Newton matrix, their extreme eigenvalues, spectral density and trace."""

from regraft.diagnose.curvature.hessian import Hessian, ggn
from regraft.diagnose.curvature.spectrum import Matrix, Spectrum, curvature

__all__ = ["Hessian", "Matrix", "Spectrum", "curvature", "ggn"]
